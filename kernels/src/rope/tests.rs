use proptest::prelude::*;

use super::*;
use crate::kv::{KvElement, KvShape};

#[test]
fn pairs_turn_by_position_times_frequency_and_factors_slow_them() {
    let mut table = RopeTable::new(RopeStyle::Adjacent, 4, 100.0, &[1.0, 8.0]);
    table.fill([3].into_iter());
    let angles = [3.0f64, 3.0 * 0.1 / 8.0];
    for (i, angle) in angles.iter().enumerate() {
        assert!((f64::from(table.rows[2 * i]) - angle.cos()).abs() < 1e-7);
        assert!((f64::from(table.rows[4 + 2 * i]) + angle.sin()).abs() < 1e-7);
        assert!((f64::from(table.rows[4 + 2 * i + 1]) - angle.sin()).abs() < 1e-7);
    }
}

#[test]
fn a_magnitude_multiplies_cosines_and_sines() {
    let mut table = RopeTable::from_frequencies(RopeStyle::Halves, vec![0.5, 0.25], 1.5);
    table.fill([2].into_iter());
    for (got, truth) in table
        .rows
        .iter()
        .zip([1f64.cos(), 0.5f64.cos(), 1f64.sin(), 0.5f64.sin()])
    {
        assert!((f64::from(*got) - 1.5 * truth).abs() < 1e-6);
    }
}

/// A row of two query heads, one key head and one value head of `dim` values in double precision, as `rope_and_store` is
/// to leave it.
fn truth(
    row: &[f32],
    style: RopeStyle,
    dims: usize,
    position: usize,
    adjust: QkvAdjust<'_>,
    scale: f32,
) -> Vec<f64> {
    let dim = row.len() / 4;
    let mut out: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
    if let Some(bias) = adjust.bias {
        out.iter_mut()
            .zip(bias)
            .for_each(|(x, &b)| *x += f64::from(b));
    }
    for (index, head) in out.chunks_mut(dim).take(3).enumerate() {
        if let Some(norm) = adjust.norm {
            let mean = head.iter().map(|x| x * x).sum::<f64>() / dim as f64;
            let weight = if index < 2 { norm.query } else { norm.key };
            for (x, &w) in head.iter_mut().zip(weight) {
                *x *= f64::from(w) / (mean + f64::from(norm.eps)).sqrt();
            }
        }
        for pair in 0..dims / 2 {
            let (i, j) = match style {
                RopeStyle::Adjacent => (2 * pair, 2 * pair + 1),
                RopeStyle::Halves => (pair, dims / 2 + pair),
            };
            let (sin, cos) =
                (position as f64 * 1e4f64.powf(-2.0 * pair as f64 / dims as f64)).sin_cos();
            (head[i], head[j]) = (head[i] * cos - head[j] * sin, head[j] * cos + head[i] * sin);
        }
        if index < 2 {
            for x in head.iter_mut() {
                *x *= f64::from(scale);
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn queries_change_in_place_and_keys_and_values_land_in_their_slot_on_every_path(
        dim in 1usize..80, cut in 0usize..80, halves: bool, bias: bool, norm: bool, position in 16usize..32, seed in 0f32..100.0,
    ) {
        let dims = (dim - cut % dim) / 2 * 2;
        let style = if halves { RopeStyle::Halves } else { RopeStyle::Adjacent };
        let shape = AttentionShape { scale: 0.3, ..AttentionShape::new(2, 1, dim) };
        let wave = |i: usize, step: f32| (i as f32 * step + seed).sin();
        let original: Vec<f32> = (0..4 * dim).map(|i| wave(i, 0.7)).collect();
        let biases: Vec<f32> = (0..4 * dim).map(|i| wave(i, 0.3)).collect();
        let weights: Vec<f32> = (0..2 * dim).map(|i| 1.0 + wave(i, 0.1) / 2.0).collect();
        let adjust = QkvAdjust {
            bias: bias.then_some(&biases[..]),
            norm: norm.then_some(QkNorm { query: &weights[..dim], key: &weights[dim..], eps: 1e-6 }),
        };
        let expected = truth(&original, style, dims, position, adjust, 0.3);
        let mut seen: Option<Vec<u32>> = None;
        for cpu in Cpu::available() {
            let mut cache = KvCache::new(KvShape { layers: 2, blocks: 3, kv_heads: 1, head_dim: dim, element: KvElement::F16 });
            let segment = Segment::new(&[2, 1], position, 1, 3).unwrap();
            let mut table = RopeTable::new(style, dims, 1e4, &[]);
            table.fill([position].into_iter());
            let (mut qkv, pool) = (original.clone(), ThreadPool::new(1).unwrap());
            rope_and_store(cpu, &pool, &table, adjust, shape, &[segment], &mut qkv, &mut cache, 1);
            for (got, truth) in qkv.iter().zip(&expected) {
                prop_assert!((f64::from(*got) - truth).abs() <= 1e-5, "{} {}", got, truth);
            }
            for i in 0..dim {
                let stored = [cache.key(1, 1, 0, position % 16, i), cache.value(1, 1, 0, position % 16, i)];
                let given = [qkv[2 * dim + i], qkv[3 * dim + i]];
                prop_assert_eq!(stored, given.map(|x| half::f16::from_f32(x).to_f32()));
            }
            let bits = qkv.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(seen.get_or_insert_with(|| bits.clone()), &bits, "{}", cpu.name());
        }
    }
}
