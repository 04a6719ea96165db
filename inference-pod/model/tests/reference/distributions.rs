//! The compact distributions file: see `e2e/reference/README.md` for its layout and for why the sum is unbiased.

use crate::expected::path_of;

/// The reference's distributions, one a position.
pub struct Compact {
    pub positions: Vec<Position>,
}

/// Tokens with their log-probabilities: the most probable, and some drawn from the rest.
pub struct Position {
    top: Vec<(usize, f64)>,
    drawn: Vec<(usize, f64)>,
    rest: f64,
}

impl Compact {
    /// Reads the expected file `name`.
    pub fn load(name: &str) -> Self {
        let path = path_of(name);
        let bytes = std::fs::read(&path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        Self::parse(&bytes).unwrap_or_else(|| {
            panic!(
                "{} is not a whole distributions file of version 1 or 2",
                path.display()
            )
        })
    }

    /// `None` unless `bytes` is exactly one file of version 1 or 2.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader {
            bytes: bytes.strip_prefix(b"PGDD")?,
        };
        let [version, positions, top, drawn] =
            [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
        if !matches!(version, 1 | 2) {
            return None;
        }
        let wide = version == 2;
        let positions = (0..positions)
            .map(|_| reader.position(top as usize, drawn as usize, wide))
            .collect::<Option<_>>()?;
        reader.bytes.is_empty().then_some(Self { positions })
    }

    /// Estimate of the KL divergence, in nats, of `log_probs` (of the whole vocabulary) from the reference.
    pub fn divergence(&self, position: usize, log_probs: &[f64]) -> f64 {
        let Position { top, drawn, rest } = &self.positions[position];
        let excess = |token: usize, p: f64| {
            let log_ratio = log_probs[token] - p;
            log_ratio.exp() - 1.0 - log_ratio
        };
        let of_top: f64 = top
            .iter()
            .map(|&(token, p)| p.exp() * excess(token, p))
            .sum();
        let of_rest: f64 = drawn.iter().map(|&(token, p)| excess(token, p)).sum();
        of_top + rest * of_rest / drawn.len() as f64
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn f32(&mut self) -> Option<f64> {
        self.take()
            .map(|bytes| f64::from(f32::from_le_bytes(bytes)))
    }

    /// A token id: 16 bits, or 32 where they are `wide`.
    fn id(&mut self, wide: bool) -> Option<usize> {
        if wide {
            self.u32().map(|id| id as usize)
        } else {
            self.take().map(|id| usize::from(u16::from_le_bytes(id)))
        }
    }

    fn position(&mut self, top: usize, drawn: usize, wide: bool) -> Option<Position> {
        let rest = self.f32()?;
        let ids: Vec<usize> = (0..top + drawn)
            .map(|_| self.id(wide))
            .collect::<Option<_>>()?;
        let log_probs: Vec<f64> = (0..top + drawn)
            .map(|_| self.f32())
            .collect::<Option<_>>()?;
        let mut pairs: Vec<(usize, f64)> = ids.into_iter().zip(log_probs).collect();
        let drawn = pairs.split_off(top);
        Some(Position {
            top: pairs,
            drawn,
            rest,
        })
    }
}

/// Natural log-probabilities of one row of logits.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits
        .iter()
        .map(|&logit| (f64::from(logit) - largest).exp())
        .sum();
    let shift = largest + total.ln();
    logits
        .iter()
        .map(|&logit| f64::from(logit) - shift)
        .collect()
}
