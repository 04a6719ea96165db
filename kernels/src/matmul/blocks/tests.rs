//! Dots of bytes, by every implementation: also that of a level whose instruction the machine has in another encoding only.

use std::marker::PhantomData;

use proptest::prelude::*;

use super::*;
use crate::cpu::{Cpu, Kernel};

/// Rows of activations, at most, that go with a block of weights.
const ROWS: usize = 4;

/// Dots of a block of weights with rows of activations: all depths and halves of them, few rows and many.
struct Dots<'a, Q> {
    weights: &'a [u8],
    rows: &'a [Q8Block],
    out: &'a mut Vec<f32>,
    quants: PhantomData<Q>,
}

impl<Q: Quants> Dots<'_, Q> {
    /// Sums are below 2^24, so `f32` holds them exactly.
    #[inline(always)]
    unsafe fn groups<S: Simd, const FROM: usize, const TO: usize, const R: usize>(&mut self) {
        assert!(self.weights.len() >= Q::BYTES && self.rows.len() >= R);
        // SAFETY: the block and the rows are there.
        unsafe {
            let (w, a) = (self.weights.as_ptr(), self.rows.as_ptr());
            for sums in S::dots::<Q, FROM, TO, R>(w, a, 1, [S::splat_i(-7); R]) {
                let mut lanes = [0.0; LANES];
                S::store(lanes.as_mut_ptr(), S::to_f32(sums));
                self.out.extend_from_slice(&lanes);
            }
        }
    }
}

impl<Q: Quants> Kernel for Dots<'_, Q> {
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        // SAFETY: `execute_dots` made sure of the instruction set.
        unsafe {
            self.groups::<S, 0, 8, 1>();
            self.groups::<S, 0, 8, ROWS>();
            if !Q::SIGNED {
                self.groups::<S, 0, 4, ROWS>();
                self.groups::<S, 4, 8, 2>();
            }
        }
    }
}

/// What every implementation on this machine computes, by its name, the portable one first.
fn by_every_implementation<Q: Quants>(
    weights: &[u8],
    rows: &[Q8Block],
) -> Vec<(&'static str, Vec<f32>)> {
    let mut results = Vec::new();
    for cpu in Cpu::available() {
        let mut out = Vec::new();
        cpu.execute_dots(dots::<Q>(weights, rows, &mut out));
        results.push((cpu.name(), out));
    }
    #[cfg(target_arch = "x86_64")]
    {
        let mut out = Vec::new();
        if crate::cpu::execute_avx_vnni_by_evex(dots::<Q>(weights, rows, &mut out)) {
            results.push(("avxvnni by its other encoding", out));
        }
    }
    results
}

fn dots<'a, Q: Quants>(
    weights: &'a [u8],
    rows: &'a [Q8Block],
    out: &'a mut Vec<f32>,
) -> Dots<'a, Q> {
    Dots {
        weights,
        rows,
        out,
        quants: PhantomData,
    }
}

fn block(q: &[i8]) -> Q8Block {
    let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
    Q8Block {
        q: std::array::from_fn(|i| q[i]),
        minus_128_sum: -128 * sum,
        ..Q8Block::default()
    }
}

fn agree<Q: Quants>(weights: &[u8], rows: &[Q8Block]) -> Result<(), TestCaseError> {
    let results = by_every_implementation::<Q>(weights, rows);
    let (_, expected) = &results[0];
    prop_assert!(expected.len() >= (1 + ROWS) * LANES);
    for (name, got) in &results[1..] {
        prop_assert_eq!(got, expected, "{}", name);
    }
    Ok(())
}

/// Anything, or the extremes, whose sums are those that could overflow.
fn weights() -> impl Strategy<Value = Vec<u8>> {
    let same = prop_oneof![Just(0u8), Just(0x7f), Just(0x80), Just(0xff)];
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), BYTE_BYTES),
        1 => same.prop_map(|byte| vec![byte; BYTE_BYTES]),
    ]
}

fn rows() -> impl Strategy<Value = Vec<Q8Block>> {
    let same = prop_oneof![Just(-127i8), Just(127)];
    let row = prop_oneof![
        2 => prop::collection::vec(-127..=127i8, 32),
        1 => same.prop_map(|q| vec![q; 32]),
    ];
    prop::collection::vec(row.prop_map(|q| block(&q)), ROWS)
}

proptest! {
    #[test]
    fn dots_of_bytes_are_the_same_integers_whatever_computes_them(weights in weights(), rows in rows()) {
        agree::<Nibbles>(&weights, &rows)?;
        agree::<Levels>(&weights, &rows)?;
        agree::<FiveBits>(&weights, &rows)?;
        agree::<SixBits>(&weights, &rows)?;
        agree::<TwoBits>(&weights, &rows)?;
        agree::<ThreeBits>(&weights, &rows)?;
        agree::<SignedBytes>(&weights, &rows)?;
    }
}
