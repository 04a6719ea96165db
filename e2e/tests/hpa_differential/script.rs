//! The series that metrics follow: pseudo-random, so that a seed repeats them.

/// A metric's value at each step, in thousandths; none where it is absent.
pub type Series = Vec<Option<u64>>;

/// The seed of this run.
pub fn seed() -> u64 {
    let given = std::env::var("PAGODA_TEST_SEED").ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()) + 1)
}

/// Xorshift: good enough to vary a test, and the same everywhere.
pub struct Random(u64);

impl Random {
    /// One that repeats itself for the same seed and salt.
    pub fn new(seed: u64, salt: &str) -> Self {
        let mixed = salt
            .bytes()
            .fold(seed ^ 0x9e37_79b9_7f4a_7c15, |mixed, byte| {
                (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let mut random = Self(mixed.max(1));
        // The first numbers of seeds that lie side by side are alike.
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    /// From 0 to `bound` without it.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }

    /// One of these.
    pub fn of<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A load in the life of a service with this target for each pod: steady stretches, drifts, bursts, silence, and values on the very
/// edge of the tolerance.
pub fn load(random: &mut Random, steps: usize, each_milli: u64) -> Series {
    let mut series = Vec::with_capacity(steps);
    let mut level = each_milli * (1 + random.below(6));
    while series.len() < steps {
        let stretch = 1 + random.below(6) as usize;
        let kind = random.below(6);
        for _ in 0..stretch {
            level = match kind {
                0 => level,
                1 => level + random.below(each_milli),
                2 => level.saturating_sub(random.below(each_milli * 2)),
                3 => each_milli * (1 + random.below(25)),
                4 => random.below(each_milli),
                _ => {
                    each_milli * (1 + random.below(8)) * random.of(&[89, 90, 91, 109, 110, 111])
                        / 100
                }
            };
            series.push(Some(level));
        }
    }
    series.truncate(steps);
    series
}

/// The same, which nobody knows at some moments.
pub fn with_gaps(random: &mut Random, series: Series) -> Series {
    let mut gap = 0;
    series
        .into_iter()
        .map(|value| {
            if gap == 0 && random.once_in(5) {
                gap = 1 + random.below(3);
            }
            let absent = gap > 0;
            gap = gap.saturating_sub(1);
            value.filter(|_| !absent)
        })
        .collect()
}
