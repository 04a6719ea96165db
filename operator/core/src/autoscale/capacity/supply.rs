//! How many pods carry a rate, when not all are of one kind.

/// Pods of a kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// Requests per second that each carries within the target.
    pub rate: f64,
    /// How many there are.
    pub pods: u32,
}

/// Requests per second that a pod of which nothing is known is taken to carry: the mean of those there are, or of all kinds
/// when there are none. None when no kind carries anything.
pub fn typical(kinds: &[Kind]) -> Option<f64> {
    let pods: u32 = kinds.iter().map(|kind| kind.pods).sum();
    let mean = if pods > 0 {
        carried(kinds) / f64::from(pods)
    } else {
        kinds.iter().map(|kind| kind.rate).sum::<f64>() / kinds.len().max(1) as f64
    };
    (mean > 0.0 && mean.is_finite()).then_some(mean)
}

/// Requests per second that all of them carry.
fn carried(kinds: &[Kind]) -> f64 {
    kinds.iter().map(|k| k.rate * f64::from(k.pods)).sum()
}

/// Pods that carry the rate: those there are and so many typical ones, or so many of those there are as carry it when the
/// fastest have left, for nobody promises that the slow ones go first.
pub fn needed(rate: f64, kinds: &[Kind]) -> Option<u32> {
    let typical = typical(kinds)?;
    let pods: u32 = kinds.iter().map(|kind| kind.pods).sum();
    let carried = carried(kinds);
    if rate > carried {
        return Some(pods.saturating_add(ceil((rate - carried) / typical)));
    }
    let mut slowest: Vec<Kind> = kinds.to_vec();
    slowest.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let (mut left, mut count) = (rate, 0_u32);
    for kind in slowest {
        let all = kind.rate * f64::from(kind.pods);
        if left <= all {
            return Some(count + ceil(left / kind.rate.max(f64::MIN_POSITIVE)).min(kind.pods));
        }
        (left, count) = (left - all, count + kind.pods);
    }
    Some(count)
}

/// A hair above a whole number is that number: it comes from rounding.
fn ceil(pods: f64) -> u32 {
    (pods - 1e-9).ceil().clamp(0.0, f64::from(u32::MAX)) as u32
}
