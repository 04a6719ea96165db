use proptest::prelude::*;

use super::*;
use crate::kv::{KvElement, KvShape};
use crate::rope::{QkvAdjust, RopeStyle, RopeTable, rope_and_store};

/// Shapes of models, the odd ones out, and what windows and caps make of them.
fn shapes() -> Vec<AttentionShape> {
    let plain = |heads, kv_heads, head_dim| AttentionShape::new(heads, kv_heads, head_dim);
    vec![
        plain(9, 3, 64),
        plain(4, 4, 20),
        plain(8, 1, 128),
        plain(2, 2, 16),
        AttentionShape {
            window: Some(19),
            ..plain(6, 2, 32)
        },
        AttentionShape {
            window: Some(1),
            ..plain(2, 1, 16)
        },
        AttentionShape {
            softcap: Some(2.5),
            scale: 0.4,
            ..plain(4, 1, 48)
        },
        AttentionShape {
            window: Some(150),
            softcap: Some(5.0),
            ..plain(2, 1, 16)
        },
    ]
}

const ELEMENTS: [KvElement; 2] = [KvElement::F16, KvElement::Int8Group32];

fn wave(seed: u64, i: usize) -> f32 {
    ((i as f32 * 0.613 + (seed % 977) as f32) * 1.7).sin()
}

/// A sequence computed in segments of the given lengths (all rows of `lens` before the last in earlier steps), with blocks in
/// a scattered order and every unused slot NaN. Returns the outputs of all tokens.
fn run(
    cpu: Cpu,
    threads: usize,
    shape: AttentionShape,
    element: KvElement,
    lens: &[usize],
    seed: u64,
) -> Vec<f32> {
    let total: usize = lens.iter().sum();
    let blocks = total.div_ceil(BLOCK_TOKENS) + 2;
    let kv = KvShape {
        layers: 2,
        blocks,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        element,
    };
    let mut cache = KvCache::new(kv);
    cache.poison();
    let table: Vec<u32> = (0..blocks as u32).rev().collect();
    let pool = ThreadPool::new(threads).unwrap();
    let mut rope = RopeTable::new(RopeStyle::Adjacent, shape.head_dim / 2 * 2, 1e4, &[]);
    let (mut scratch, mut outputs, mut start) = (AttentionScratch::default(), Vec::new(), 0);
    for &len in lens {
        let segments = [Segment::new(&table, start, len, blocks).unwrap()];
        let width = shape.row_width();
        let mut qkv: Vec<f32> = (start * width..(start + len) * width)
            .map(|i| wave(seed, i))
            .collect();
        rope.fill(start..start + len);
        let adjust = QkvAdjust::default();
        rope_and_store(
            cpu, &pool, &rope, adjust, shape, &segments, &mut qkv, &mut cache, 1,
        );
        let mut out = vec![f32::NAN; len * shape.heads * shape.head_dim];
        attend(
            cpu,
            &pool,
            shape,
            &segments,
            &qkv,
            &cache,
            1,
            &mut scratch,
            &mut out,
        );
        outputs.extend(out);
        start += len;
    }
    outputs
}

/// The same in double precision, with keys and values rounded to half precision.
fn truth(shape: AttentionShape, total: usize, seed: u64) -> Vec<f64> {
    let (width, dim) = (shape.row_width(), shape.head_dim);
    let half = |x: f64| half::f16::from_f64(x).to_f64();
    let turned = |token: usize, head: usize| -> Vec<f64> {
        let x: Vec<f64> = (0..dim)
            .map(|i| f64::from(wave(seed, token * width + head * dim + i)))
            .collect();
        let turn = |i: usize| {
            let angle = token as f64 * 1e4f64.powf(-((i / 2 * 2) as f64) / (dim / 2 * 2) as f64);
            x[i] * angle.cos()
                + x[i ^ 1]
                    * if i.is_multiple_of(2) {
                        -angle.sin()
                    } else {
                        angle.sin()
                    }
        };
        (0..dim).map(turn).collect()
    };
    let mut out = Vec::new();
    for token in 0..total {
        for head in 0..shape.heads {
            let kv_head = head / (shape.heads / shape.kv_heads);
            let q = turned(token, head);
            let score = |t: usize| {
                let k = turned(t, shape.heads + kv_head);
                let dot = q.iter().zip(&k).map(|(q, k)| q * half(*k)).sum::<f64>();
                let score = dot * f64::from(shape.scale);
                match shape.softcap {
                    Some(cap) => f64::from(cap) * (score / f64::from(cap)).tanh(),
                    None => score,
                }
            };
            let first = shape
                .window
                .map_or(0, |window| (token + 1).saturating_sub(window));
            let scores: Vec<f64> = (first..=token).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..dim).map(|d| {
                let value = |t: usize| {
                    half(f64::from(wave(
                        seed,
                        t * width + (shape.heads + shape.kv_heads + kv_head) * dim + d,
                    )))
                };
                weights
                    .iter()
                    .enumerate()
                    .map(|(t, w)| w * value(first + t))
                    .sum::<f64>()
                    / sum
            }));
        }
    }
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// What a stored number's rounding may change of an output: values of magnitude 1 lie within 1 / 254 as bytes.
fn tolerance(element: KvElement) -> f64 {
    match element {
        // Keys may round to the neighbouring half where the turned values differ in the last bit.
        KvElement::F16 => 1e-3,
        KvElement::Int8Group32 => 1e-2,
    }
}

#[test]
fn outputs_match_double_precision_with_unused_slots_poisoned() {
    for shape in shapes() {
        for total in [1, 15, 16, 17, 40] {
            let expected = truth(shape, total, 5);
            for (cpu, element) in Cpu::available()
                .into_iter()
                .flat_map(|cpu| ELEMENTS.map(|e| (cpu, e)))
            {
                let got = run(cpu, 2, shape, element, &[total], 5);
                for (g, t) in got.iter().zip(&expected) {
                    assert!(
                        (f64::from(*g) - t).abs() <= tolerance(element),
                        "{shape:?} {element:?} {total} {}: {g} {t}",
                        cpu.name()
                    );
                }
            }
        }
    }
}

#[test]
fn long_contexts_cross_chunks_and_windows_leave_chunks_out_correctly() {
    let total = 2 * CHUNK + 37;
    for window in [
        None,
        Some(1),
        Some(30),
        Some(CHUNK),
        Some(CHUNK + 60),
        Some(1000),
    ] {
        let shape = AttentionShape {
            window,
            ..AttentionShape::new(2, 1, 16)
        };
        let expected = truth(shape, total, 9);
        for element in ELEMENTS {
            let got = run(Cpu::detect(), 2, shape, element, &[total], 9);
            for (g, t) in got.iter().zip(&expected) {
                assert!(
                    (f64::from(*g) - t).abs() <= tolerance(element),
                    "{window:?} {element:?}: {g} {t}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_cut_any_threads_and_any_path_give_the_same_bits(
        shape in prop::sample::select(shapes()), element in prop::sample::select(ELEMENTS.to_vec()),
        mut lens in prop::collection::vec(1usize..90, 1..5), ones in 0usize..4, seed: u64, threads in 1usize..4,
    ) {
        lens.extend(std::iter::repeat_n(1, ones));
        let whole = run(Cpu::portable(), 1, shape, element, &[lens.iter().sum()], seed);
        prop_assert!(whole.iter().all(|x| x.is_finite()));
        for cpu in Cpu::available() {
            let got = run(cpu, threads, shape, element, &lens, seed);
            prop_assert_eq!(bits(&got), bits(&whole), "{} {:?}", cpu.name(), lens);
        }
    }
}

#[test]
fn token_by_token_over_many_chunks_equals_one_prompt() {
    for window in [None, Some(CHUNK + 9)] {
        let shape = AttentionShape {
            window,
            ..AttentionShape::new(9, 3, 64)
        };
        let total = 2 * CHUNK + 20;
        let whole = run(Cpu::detect(), 2, shape, KvElement::F16, &[total], 3);
        let mut lens = vec![CHUNK - 5];
        lens.extend(std::iter::repeat_n(1, total - lens[0]));
        assert_eq!(
            bits(&run(Cpu::detect(), 2, shape, KvElement::F16, &lens, 3)),
            bits(&whole)
        );
    }
}

#[test]
fn segments_without_blocks_for_their_tokens_are_refused() {
    assert!(Segment::new(&[0, 1], 0, 32, 2).is_some());
    assert!(Segment::new(&[0, 1], 1, 32, 2).is_none());
    assert!(Segment::new(&[0, 2], 0, 32, 2).is_none());
    assert!(Segment::new(&[0], 0, 0, 2).is_none());
    assert!(Segment::new(&[0], usize::MAX, 1, 2).is_none());
}

#[test]
fn copied_blocks_hold_the_same_tokens() {
    for element in ELEMENTS {
        let shape = AttentionShape::new(2, 2, 16);
        let kv = KvShape {
            layers: 1,
            blocks: 2,
            kv_heads: 2,
            head_dim: 16,
            element,
        };
        let (mut cache, pool) = (KvCache::new(kv), ThreadPool::new(1).unwrap());
        let mut rope = RopeTable::new(RopeStyle::Adjacent, 16, 1e4, &[]);
        rope.fill(0..16);
        let mut qkv: Vec<f32> = (0..16 * shape.row_width()).map(|i| wave(1, i)).collect();
        let (cpu, adjust) = (Cpu::detect(), QkvAdjust::default());
        let segment = Segment::new(&[0], 0, 16, 2).unwrap();
        rope_and_store(
            cpu,
            &pool,
            &rope,
            adjust,
            shape,
            &[segment],
            &mut qkv,
            &mut cache,
            0,
        );
        cache.copy_block(0, 1);
        let mut outs = [vec![0.0; 16 * 32], vec![0.0; 16 * 32]];
        for (block, out) in outs.iter_mut().enumerate() {
            let table = [block as u32];
            let segment = Segment::new(&table, 0, 16, 2).unwrap();
            let scratch = &mut AttentionScratch::default();
            attend(cpu, &pool, shape, &[segment], &qkv, &cache, 0, scratch, out);
        }
        assert_eq!(outs[0], outs[1]);
    }
}
