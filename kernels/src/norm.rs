//! Root-mean-square normalisation, fused with the quantisation of what it yields.

use crate::activation::{BLOCK, BlockWriter, QuantisedRows};
use crate::buffer::SharedMut;
use crate::cpu::{Cpu, Kernel};
use crate::math::{load_partial, store_partial};
use crate::pool::ThreadPool;
use crate::simd::{LANES, Simd};

/// Where normalised rows go: as `f32` for float weights, as bytes for quantised ones, onto a sum, or several of these.
#[derive(Default)]
pub struct NormOutput<'a> {
    /// Rows of `k` values.
    pub f32: Option<&'a mut [f32]>,
    /// Made to hold the rows.
    pub q8: Option<&'a mut QuantisedRows>,
    /// Rows of `k` values that they are added to.
    pub add: Option<&'a mut [f32]>,
}

struct Row<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    f32: Option<*mut f32>,
    index: usize,
    q8: Option<BlockWriter>,
    add: Option<*mut f32>,
}

impl Row<'_> {
    #[inline(always)]
    unsafe fn scale<S: Simd>(&self) -> f32 {
        // SAFETY: loads stay within `x`; partial ones add zeros.
        unsafe {
            let mut squares = S::splat(0.0);
            for chunk in self.x.chunks(LANES) {
                let x = load_partial::<S>(chunk.as_ptr(), chunk.len());
                squares = S::fma(x, x, squares);
            }
            1.0 / (S::sum(squares) / self.x.len() as f32 + self.eps).sqrt()
        }
    }

    #[inline(always)]
    unsafe fn lanes<S: Simd>(&self, at: usize, scale: S::F) -> S::F {
        let count = self.x.len() - at;
        // SAFETY: `at` lies within the row and its weights; partial loads stay inside.
        unsafe {
            let x = load_partial::<S>(self.x.as_ptr().add(at), count);
            S::mul(
                S::mul(x, scale),
                load_partial::<S>(self.weight.as_ptr().add(at), count),
            )
        }
    }
}

impl Kernel for Row<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let k = self.x.len();
        // SAFETY: `rms_norm` checked that outputs hold the row's values, or its blocks with `k` a multiple of 32.
        unsafe {
            let scale = S::splat(self.scale::<S>());
            if let Some(out) = self.f32 {
                for at in (0..k).step_by(LANES) {
                    store_partial::<S>(out.add(at), self.lanes::<S>(at, scale), k - at);
                }
            }
            if let Some(out) = self.add {
                for at in (0..k).step_by(LANES) {
                    let sum = load_partial::<S>(out.add(at), k - at);
                    let sum = S::add(sum, self.lanes::<S>(at, scale));
                    store_partial::<S>(out.add(at), sum, k - at);
                }
            }
            if let Some(out) = self.q8 {
                for block in 0..k / BLOCK {
                    let first = self.lanes::<S>(block * BLOCK, scale);
                    let second = self.lanes::<S>(block * BLOCK + LANES, scale);
                    out.write::<S>(self.index, block, [first, second]);
                }
            }
        }
    }
}

/// `x / sqrt(mean(x^2) + eps) * weight` for every row of `weight.len()` values of `x`.
///
/// # Panics
/// When lengths do not fit, or quantised output is asked of rows that are no multiple of 32.
pub fn rms_norm(
    cpu: Cpu,
    pool: &ThreadPool,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    out: NormOutput<'_>,
) {
    let k = weight.len();
    assert!(k > 0 && x.len().is_multiple_of(k), "whole rows");
    let rows = x.len() / k;
    let shared = |out: &mut [f32]| {
        assert_eq!(out.len(), x.len(), "as many outputs as inputs");
        SharedMut::new(out)
    };
    let (f32_out, add_out) = (out.f32.map(shared), out.add.map(shared));
    let mut q8 = out.q8;
    let q8_out = q8.as_mut().map(|out| {
        assert!(k.is_multiple_of(BLOCK), "whole blocks");
        out.resize(rows, k);
        out.writer()
    });
    pool.split(rows, 4096usize.div_ceil(k), |range| {
        for row in range {
            // SAFETY: `row` is below `rows`, for which there is room, and belongs to this thread.
            let f32 = f32_out.map(|p| unsafe { p.at(row * k) });
            // SAFETY: as above.
            let add = add_out.map(|p| unsafe { p.at(row * k) });
            cpu.execute(Row {
                x: &x[row * k..][..k],
                weight,
                eps,
                f32,
                index: row,
                q8: q8_out,
                add,
            });
        }
    });
    if let Some(q8) = q8 {
        q8.mark(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_match_double_precision_and_paths_agree(
            k in 1usize..100, rows in 1usize..4, seed in prop::collection::vec(-3f32..3.0, 400)
        ) {
            let pool = ThreadPool::new(2).unwrap();
            let (x, weight) = (&seed[..rows * k], &seed[seed.len() - k..]);
            let mut first: Option<Vec<f32>> = None;
            for cpu in Cpu::available() {
                let mut y = vec![0.0; rows * k];
                rms_norm(cpu, &pool, x, weight, 1e-5, NormOutput { f32: Some(&mut y), ..NormOutput::default() });
                for (x, y) in x.chunks(k).zip(y.chunks(k)) {
                    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / k as f64;
                    for i in 0..k {
                        let truth = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                        prop_assert!((f64::from(y[i]) - truth).abs() <= 1e-6 * truth.abs().max(1.0));
                    }
                }
                prop_assert_eq!(first.get_or_insert_with(|| y.clone()), &y);
                let mut sum: Vec<f32> = (0..rows * k).map(|i| i as f32).collect();
                rms_norm(cpu, &pool, x, weight, 1e-5, NormOutput { add: Some(&mut sum), ..NormOutput::default() });
                for (i, (sum, y)) in sum.iter().zip(&y).enumerate() {
                    prop_assert_eq!(*sum, i as f32 + y);
                }
            }
        }
    }

    #[test]
    fn fused_quantisation_equals_normalising_then_quantising() {
        let pool = ThreadPool::new(1).unwrap();
        let x: Vec<f32> = (0..192).map(|i| (i as f32 * 0.7).sin()).collect();
        let weight: Vec<f32> = (0..64).map(|i| 1.0 + i as f32 / 64.0).collect();
        for cpu in Cpu::available() {
            let mut plain = vec![0.0; 192];
            let mut fused = QuantisedRows::default();
            rms_norm(
                cpu,
                &pool,
                &x,
                &weight,
                1e-6,
                NormOutput {
                    f32: Some(&mut plain),
                    q8: Some(&mut fused),
                    add: None,
                },
            );
            let mut after = QuantisedRows::default();
            crate::quantise_rows(cpu, &pool, &plain, 64, &mut after);
            assert_eq!(fused, after);
        }
    }
}
