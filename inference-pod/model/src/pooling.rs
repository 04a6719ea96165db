//! From the states of a text's tokens to one vector.

use crate::config::Pooling;

/// The states `[tokens][width]` of one text (with [`Pooling::Last`] its last token's alone) as a vector of length 1; of zeros where
/// they are zeros. The order of additions is the tokens'.
pub(crate) fn pooled(states: &[f32], width: usize, pooling: Pooling) -> Vec<f32> {
    let tokens = states.len() / width;
    let mut sums = vec![0.0f64; width];
    let chosen = match pooling {
        Pooling::Mean => 0..tokens,
        Pooling::First => 0..1,
        Pooling::Last => tokens - 1..tokens,
    };
    for state in states
        .chunks_exact(width)
        .take(chosen.end)
        .skip(chosen.start)
    {
        sums.iter_mut()
            .zip(state)
            .for_each(|(sum, &x)| *sum += f64::from(x));
    }
    // A mean and a sum have the same direction, and no more is left of them.
    let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    sums.iter().map(|x| (x * scale) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_point_where_the_chosen_states_do_and_have_length_1() {
        let states = [3.0, 4.0, 5.0, 12.0, 0.0, -2.0];
        let pooled = |pooling| pooled(&states, 2, pooling);
        assert_eq!(pooled(Pooling::First), [0.6, 0.8]);
        assert_eq!(pooled(Pooling::Last), [0.0, -1.0]);
        let mean = pooled(Pooling::Mean);
        let length = 8f32.hypot(14.0);
        assert!((mean[0] - 8.0 / length).abs() < 1e-6 && (mean[1] - 14.0 / length).abs() < 1e-6);
        assert_eq!(super::pooled(&[0.0; 4], 2, Pooling::Mean), [0.0, 0.0]);
    }
}
