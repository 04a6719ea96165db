//! Counter-based randomness: a value is a function of a seed and an index, so no generator state is carried.
//!
//! That is what makes sampling independent of batch, of preemption and of what other requests draw.

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A hash of `seed` and `index`, both mixed before they meet so that neighbouring seeds share no stream.
fn hash(seed: u64, index: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    mix(mix(seed.wrapping_add(GOLDEN)) ^ mix(index.wrapping_mul(GOLDEN).wrapping_add(1)))
}

/// The `index`-th number of the stream of `seed`, uniform in `[0, 1)` with 53 bits.
pub fn uniform(seed: u64, index: u64) -> f64 {
    (hash(seed, index) >> 11) as f64 / (1u64 << 53) as f64
}

/// The seed of choice `choice` of a request (`n > 1`). Choice 0 keeps the request's own seed, so that asking for more
/// choices never changes the first one.
pub fn derive_seed(seed: u64, choice: u32) -> u64 {
    if choice == 0 {
        seed
    } else {
        hash(seed ^ 0x5eed_c401_ce00_0000, u64::from(choice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn is_uniform_to_within_sampling_error() {
        for seed in [0, 1, u64::MAX] {
            let draws = 100_000;
            let mean = (0..draws).map(|index| uniform(seed, index)).sum::<f64>() / draws as f64;
            // Standard deviation of the mean is 0.0009; six of them.
            assert!((mean - 0.5).abs() < 0.0055, "mean {mean} for seed {seed}");
            assert!((0..draws).all(|index| (0.0..1.0).contains(&uniform(seed, index))));
        }
    }

    #[test]
    fn neighbouring_seeds_and_choices_share_no_stream() {
        let mut seen = HashSet::new();
        for seed in 0..100 {
            for choice in 0..8 {
                assert!(seen.insert(uniform(derive_seed(seed, choice), 0).to_bits()));
            }
        }
    }

    #[test]
    fn the_first_choice_keeps_the_seed_of_the_request() {
        assert_eq!(derive_seed(42, 0), 42);
        assert_ne!(derive_seed(42, 1), 42);
    }
}
