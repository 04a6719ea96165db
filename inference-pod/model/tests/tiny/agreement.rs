//! Tiny random models of every weight type against a plain forward pass in double precision, and the promise that results
//! depend on a sequence alone.

use half::f16;
use pagoda_kernels::Format;
use pagoda_model::{Executor, Logits, StepRow};
use proptest::prelude::*;

use crate::model::{Random, Shape, Tiny, bits, feed};

const TOKENS: usize = 40;

fn half_precision(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

/// How far logits are from the truth over all positions, as shares of the truth's root mean square.
#[derive(Debug)]
struct Errors {
    largest: f64,
    mean_square_root: f64,
}

fn compare(tiny: &Tiny, store: impl Fn(f64) -> f64) -> Errors {
    let tokens = Random::new(7).tokens(TOKENS, tiny.shape.vocab);
    let table: Vec<u32> = (0..4).rev().collect();
    let got = feed(&mut tiny.executor(2, 4), &tokens, &[1; TOKENS], &table);
    let truth = tiny.truth(&tokens, store);
    let pairs = || {
        got.iter()
            .flatten()
            .zip(truth.iter().flatten())
            .map(|(&g, &t)| (f64::from(g) - t, t))
    };
    let mean_square_root = |x: &dyn Fn((f64, f64)) -> f64| {
        (pairs().map(|p| x(p).powi(2)).sum::<f64>() / pairs().count() as f64).sqrt()
    };
    let size = mean_square_root(&|(_, truth)| truth);
    let largest = pairs().map(|(error, _)| error.abs()).fold(0.0, f64::max) / size;
    Errors {
        largest,
        mean_square_root: mean_square_root(&|(error, _)| error) / size,
    }
}

#[test]
fn float_models_match_the_plain_forward_pass() {
    for format in [Format::F32, Format::F16, Format::Bf16] {
        for shape in [Shape::wide(), Shape::odd()] {
            let tiny = Tiny::new(shape, 1, |_| format);
            // A stored number at the edge between two halves may fall on the other side in double precision.
            let errors = compare(&tiny, half_precision);
            assert!(
                errors.largest <= 3e-4 && errors.mean_square_root <= 5e-5,
                "{format:?} {:?}: {errors:?}",
                tiny.shape
            );
            // Keys and values in half precision are the one liberty taken.
            let errors = compare(&tiny, |x| x);
            assert!(
                errors.largest <= 2e-3,
                "{format:?} {:?}: {errors:?}",
                tiny.shape
            );
        }
    }
}

#[test]
fn quantised_models_match_the_plain_forward_pass_on_dequantised_weights() {
    for format in Format::ALL
        .into_iter()
        .filter(|format| format.is_quantised())
    {
        for tied in [true, false] {
            let tiny = Tiny::new(
                Shape {
                    tied,
                    ..Shape::wide()
                },
                2,
                |_| format,
            );
            let errors = compare(&tiny, half_precision);
            assert!(
                errors.mean_square_root <= 0.02 && errors.largest <= 0.1,
                "{format:?}: {errors:?}"
            );
        }
    }
}

#[test]
fn formats_mix_within_a_layer() {
    let format = |name: &str| match name {
        _ if name.contains("attn_v") || name.contains("ffn_down") => Format::Q6K,
        _ if name.contains("attn_k") => Format::F16,
        _ if name.contains("ffn_gate") => Format::Bf16,
        _ if name.contains("token") => Format::Q8_0,
        _ => Format::Q4K,
    };
    let errors = compare(&Tiny::new(Shape::wide(), 3, format), half_precision);
    assert!(
        errors.mean_square_root <= 0.02 && errors.largest <= 0.1,
        "{errors:?}"
    );
}

fn quantised() -> Tiny {
    Tiny::new(
        Shape {
            vocab: 64,
            ..Shape::wide()
        },
        4,
        |name| {
            if name.contains("down") {
                Format::Q8_0
            } else {
                Format::Q4_1
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn any_cut_of_a_prompt_and_any_threads_give_the_same_bits(
        cuts in prop::collection::vec(1usize..200, 1..6), seed: u64, threads in 1usize..4,
    ) {
        let tiny = quantised();
        let total: usize = cuts.iter().sum();
        let tokens = Random::new(seed).tokens(total, tiny.shape.vocab);
        let table: Vec<u32> = (0..64).rev().collect();
        let whole = feed(&mut tiny.executor(1, 64), &tokens, &[total], &table);
        let parts = feed(&mut tiny.executor(threads, 64), &tokens, &cuts, &table);
        prop_assert_eq!(bits(parts.last().unwrap()), bits(&whole[0]));
    }
}

#[test]
fn prompts_longer_than_a_slab_equal_their_pieces() {
    let tiny = quantised();
    let tokens = Random::new(5).tokens(900, tiny.shape.vocab);
    let table: Vec<u32> = (0..57).collect();
    let whole = feed(&mut tiny.executor(2, 57), &tokens, &[900], &table);
    let pieces = feed(
        &mut tiny.executor(2, 57),
        &tokens,
        &[511, 1, 2, 386],
        &table,
    );
    assert_eq!(bits(&pieces[3]), bits(&whole[0]));
}

/// `count` sequences decoded together for some steps after prompts of different lengths; their logits of every step.
fn together(
    tiny: &Tiny,
    threads: usize,
    sequences: &[Vec<u32>],
    steps: usize,
) -> Vec<Vec<Vec<f32>>> {
    let blocks = 12;
    let tables: Vec<Vec<u32>> = (0..sequences.len())
        .map(|s| {
            (0..blocks)
                .map(|b| (b * sequences.len() + s) as u32)
                .collect()
        })
        .collect();
    let mut executor = tiny.executor(threads, blocks * sequences.len());
    let mut out = vec![Vec::new(); sequences.len()];
    let mut logits = Logits::default();
    for step in 0..=steps {
        let rows: Vec<StepRow<'_>> = sequences
            .iter()
            .zip(&tables)
            .map(|(tokens, table)| {
                let prompt = tokens.len() - steps;
                let range = if step == 0 {
                    0..prompt
                } else {
                    prompt + step - 1..prompt + step
                };
                let start = range.start;
                StepRow {
                    tokens: &tokens[range],
                    start,
                    block_table: table,
                    logits: 1,
                }
            })
            .collect();
        executor.forward(&rows, &mut logits).unwrap();
        assert_eq!(logits.rows(), sequences.len());
        (0..sequences.len()).for_each(|s| out[s].push(logits.row(s).to_vec()));
    }
    out
}

#[test]
fn a_sequence_has_the_same_bits_alone_among_8_and_among_32() {
    let tiny = quantised();
    let mut random = Random::new(6);
    let sequences: Vec<Vec<u32>> = (0..32)
        .map(|s| random.tokens(5 + 5 * s, tiny.shape.vocab))
        .collect();
    let all = together(&tiny, 2, &sequences, 4);
    let eight = together(&tiny, 3, &sequences[8..16], 4);
    assert_eq!(all[8..16], eight);
    for s in [0, 9, 31] {
        assert_eq!(
            together(&tiny, 1, &sequences[s..=s], 4)[0],
            all[s],
            "sequence {s}"
        );
    }
}

#[test]
fn the_bit_comparison_notices_another_order_of_operations() {
    // The inverse: the plain forward pass agrees to rounding, and yet hardly a value is the same to the bit.
    let tiny = Tiny::new(Shape::wide(), 1, |_| Format::F32);
    let tokens = Random::new(7).tokens(20, tiny.shape.vocab);
    let got = feed(&mut tiny.executor(1, 2), &tokens, &[20], &[0, 1]);
    let truth = tiny.truth(&tokens, half_precision);
    let other: Vec<f32> = truth[19].iter().map(|&x| x as f32).collect();
    assert!(
        got[0]
            .iter()
            .zip(&other)
            .all(|(a, b)| (a - b).abs() <= 1e-2)
    );
    assert_ne!(bits(&got[0]), bits(&other));
}

#[test]
fn only_wanted_rows_get_logits_in_their_order() {
    let tiny = quantised();
    let mut executor = tiny.executor(2, 8);
    let mut logits = Logits::default();
    let tables = [[0u32, 1], [2, 3], [4, 5]];
    let tokens = [vec![1u32, 2, 3], vec![4, 5], vec![6]];
    let step =
        |executor: &mut pagoda_model::CpuExecutor, wants: [usize; 3], logits: &mut Logits| {
            let rows: Vec<StepRow<'_>> = (0..3)
                .map(|i| StepRow {
                    tokens: &tokens[i],
                    start: 0,
                    block_table: &tables[i],
                    logits: wants[i],
                })
                .collect();
            executor.forward(&rows, logits).unwrap();
        };
    step(&mut executor, [1; 3], &mut logits);
    let all: Vec<Vec<f32>> = (0..3).map(|i| logits.row(i).to_vec()).collect();
    step(&mut executor, [1, 0, 1], &mut logits);
    assert_eq!(
        (logits.rows(), logits.row(0), logits.row(1)),
        (2, &all[0][..], &all[2][..])
    );
    step(&mut executor, [0; 3], &mut logits);
    assert_eq!(logits.rows(), 0);
    executor.forward(&[], &mut logits).unwrap();
    assert_eq!(logits.rows(), 0);
}

#[test]
fn one_step_may_hold_a_sequence_token_by_token() {
    let tiny = quantised();
    let tokens = Random::new(8).tokens(30, tiny.shape.vocab);
    let mut executor = tiny.executor(2, 2);
    let one_by_one = feed(&mut executor, &tokens, &[1; 30], &[0, 1]);
    let mut logits = Logits::default();
    let row = |i: usize| StepRow {
        tokens: &tokens[i..=i],
        start: i,
        block_table: &[1, 0],
        logits: 1,
    };
    let rows: Vec<StepRow<'_>> = (0..30).map(row).collect();
    executor.forward(&rows, &mut logits).unwrap();
    (0..30).for_each(|i| assert_eq!(bits(logits.row(i)), bits(&one_by_one[i])));
}

#[test]
fn logits_of_the_last_tokens_of_a_row_are_those_of_the_tokens_one_by_one() {
    let tiny = quantised();
    let tokens = Random::new(9).tokens(900, tiny.shape.vocab);
    let table: Vec<u32> = (0..57).collect();
    let mut executor = tiny.executor(2, 59);
    let first = feed(&mut executor, &tokens, &[500], &table);
    let one_by_one = feed(&mut tiny.executor(1, 57), &tokens, &[1; 520], &table);
    let mut logits = Logits::default();
    // The row crosses slabs, wants more than its last slab holds, and has another row behind it.
    let long = StepRow {
        tokens: &tokens[..520],
        start: 0,
        block_table: &table,
        logits: 12,
    };
    let short = StepRow {
        tokens: &tokens[..3],
        block_table: &[57],
        logits: 2,
        ..long
    };
    executor.forward(&[long, short], &mut logits).unwrap();
    assert_eq!(logits.rows(), 14);
    for (row, position) in (508..520).chain(1..3).enumerate() {
        assert_eq!(bits(logits.row(row)), bits(&one_by_one[position]));
    }
    assert_eq!(bits(&first[0]), bits(&one_by_one[499]));
}
