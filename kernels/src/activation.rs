//! Activations quantised to signed bytes in blocks of 32.

use crate::cpu::{Cpu, Kernel};
use crate::pool::ThreadPool;
use crate::simd::Simd;

/// Depth of a block of activations, and of a block of a weight panel.
pub(crate) const BLOCK: usize = 32;

/// 32 activations: `x[i]` is about `scale * q[i]`, with `scale` the largest magnitude over 127.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Q8Block {
    pub(crate) q: [i8; BLOCK],
    pub(crate) scale: f32,
    /// `scale` times the sum of `q`: what a weight's minimum multiplies.
    pub(crate) scaled_sum: f32,
    /// -128 times the sum of `q`: what weights stored with an offset of 128 add too much.
    pub(crate) minus_128_sum: i32,
    /// Sums of `q[..16]` and `q[16..]`.
    pub(crate) half_sums: [i16; 2],
}

impl Q8Block {
    /// The numbers the block stands for.
    pub fn values(&self) -> [f32; BLOCK] {
        self.q.map(|q| self.scale * f32::from(q))
    }
}

/// Below this magnitude a block counts as zero: its reciprocal scale would overflow.
const SMALLEST: f32 = 1e-35;

/// Quantises 32 values given as two vectors. A block whose largest magnitude is infinite gets an infinite scale, so that the
/// overflow shows in the result; NaN lanes do not raise the largest magnitude and quantise to an arbitrary byte.
#[inline(always)]
pub(crate) unsafe fn quantise_block<S: Simd>(x0: S::F, x1: S::F, out: *mut Q8Block) {
    // SAFETY: the caller passes a writable block and has the instruction set.
    unsafe {
        let largest = S::largest(S::max(S::abs(x0), S::abs(x1)));
        let inverse = if largest < SMALLEST { 0.0 } else { 127.0 / largest };
        let scale = if largest < SMALLEST { 0.0 } else { largest / 127.0 };
        let q = (&raw mut (*out).q).cast::<i8>();
        let first = S::store_i8(q, S::mul(x0, S::splat(inverse)));
        let second = S::store_i8(q.add(16), S::mul(x1, S::splat(inverse)));
        (*out).scale = scale;
        (*out).scaled_sum = scale * (first + second) as f32;
        (*out).minus_128_sum = -128i32.wrapping_mul(first.wrapping_add(second));
        (*out).half_sums = [first as i16, second as i16];
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    out: &'a mut [Q8Block],
}

impl Kernel for Quantise<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (x, out) in self.x.chunks_exact(BLOCK).zip(self.out) {
            // SAFETY: `x` has 32 values and `execute` chose an available instruction set.
            unsafe { quantise_block::<S>(S::load(x.as_ptr()), S::load(x.as_ptr().add(16)), out) }
        }
    }
}

/// Quantises `x`, rows of `k` values, block by block into `out`.
///
/// # Panics
/// When `k` is no multiple of 32 or the lengths do not fit.
pub fn quantise_rows(cpu: Cpu, pool: &ThreadPool, x: &[f32], k: usize, out: &mut [Q8Block]) {
    assert!(k > 0 && k.is_multiple_of(BLOCK) && x.len().is_multiple_of(k), "rows of whole blocks");
    assert_eq!(x.len() / BLOCK, out.len(), "one output block for 32 values");
    // A row of a small model takes a tenth of a microsecond, a fork several.
    pool.split_chunks(out, k / BLOCK, 4096usize.div_ceil(k), |row, out| {
        cpu.execute(Quantise { x: &x[row * k..][..k], out });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quantised(cpu: Cpu, x: &[f32]) -> Vec<Q8Block> {
        let mut out = vec![Q8Block::default(); x.len() / BLOCK];
        quantise_rows(cpu, &ThreadPool::new(1).unwrap(), x, BLOCK, &mut out);
        out
    }

    proptest! {
        #[test]
        fn values_come_back_within_half_a_step_on_every_path(x in prop::collection::vec(-1e4f32..1e4, 64)) {
            let truth = quantised(Cpu::portable(), &x);
            for (block, x) in truth.iter().zip(x.chunks(BLOCK)) {
                for (value, x) in block.values().iter().zip(x) {
                    prop_assert!((value - x).abs() <= block.scale * 0.501, "{value} {x}");
                }
                let sum: i32 = block.q.iter().map(|&q| i32::from(q)).sum();
                prop_assert_eq!(block.minus_128_sum, -128 * sum);
                prop_assert_eq!(i32::from(block.half_sums[0]) + i32::from(block.half_sums[1]), sum);
            }
            for cpu in Cpu::available() {
                prop_assert_eq!(&quantised(cpu, &x), &truth, "{}", cpu.name());
            }
        }
    }

    #[test]
    fn zeros_and_denormals_give_zero_blocks_and_infinities_show() {
        for cpu in Cpu::available() {
            for x in [0.0, 1e-40, -1e-38] {
                let block = quantised(cpu, &[x; 32])[0];
                assert_eq!((block.scale, block.q), (0.0, [0; 32]));
            }
            let mut x = [1.0; 32];
            x[3] = f32::INFINITY;
            assert!(quantised(cpu, &x)[0].scale.is_infinite());
        }
    }
}
