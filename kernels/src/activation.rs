//! Activations quantised to signed bytes in blocks of 32, the coarsest blocks to two bytes a value.
//!
//! The error of a product comes mostly from the few blocks of a row that hold an outlier, whose step is then coarse for
//! its 31 neighbours. Those whose step is above the row's root mean square step carry what the first byte left over in a
//! second one. Which they are depends on the row alone.

use crate::buffer::SharedMut;
use crate::cpu::{Cpu, Kernel};
use crate::pool::ThreadPool;
use crate::simd::Simd;

/// Depth of a block of activations, and of a block of a weight panel.
pub(crate) const BLOCK: usize = 32;

/// 32 activations: `x[i]` is about `scale * q[i]`, with `scale` the largest magnitude over 127.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Q8Block {
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
    #[cfg(test)]
    pub(crate) fn values(&self) -> [f32; BLOCK] {
        self.q.map(|q| self.scale * f32::from(q))
    }
}

/// Rows whose flags share a byte.
pub(crate) const GROUP_ROWS: usize = 8;

/// Rows of quantised activations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantisedRows {
    rows: usize,
    /// Blocks of a row.
    blocks: usize,
    /// `[rows][blocks]`: the first byte of every value.
    coarse: Vec<Q8Block>,
    /// `[rows][blocks]`: what `coarse` leaves over.
    fine: Vec<Q8Block>,
    /// `[groups of 8 rows][blocks]`: bit `r` says that row `r` of the group uses `fine` for the block.
    flags: Vec<u8>,
}

impl QuantisedRows {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn k(&self) -> usize {
        self.blocks * BLOCK
    }

    /// Forgets all rows, keeping memory.
    pub fn clear(&mut self) {
        self.resize(0, BLOCK);
    }

    /// Makes room for `rows` rows of `k` values, of unspecified content.
    pub(crate) fn resize(&mut self, rows: usize, k: usize) {
        (self.rows, self.blocks) = (rows, k / BLOCK);
        self.coarse.resize(rows * self.blocks, Q8Block::default());
        self.fine.resize(rows * self.blocks, Q8Block::default());
        self.flags
            .resize(rows.div_ceil(GROUP_ROWS) * self.blocks, 0);
    }

    /// A handle through which threads write blocks at once; [`QuantisedRows::mark`] follows.
    pub(crate) fn writer(&mut self) -> BlockWriter {
        let (coarse, fine) = (
            SharedMut::new(&mut self.coarse),
            SharedMut::new(&mut self.fine),
        );
        BlockWriter {
            blocks: self.blocks,
            coarse,
            fine,
        }
    }

    /// Chooses the blocks that use their second byte.
    pub(crate) fn mark(&mut self, pool: &ThreadPool) {
        let (rows, blocks, coarse) = (self.rows, self.blocks, &self.coarse);
        pool.split_chunks(&mut self.flags, blocks.max(1), 8, |group, flags| {
            flags.fill(0);
            let first = group * GROUP_ROWS;
            for row in first..rows.min(first + GROUP_ROWS) {
                let row_blocks = &coarse[row * blocks..][..blocks];
                let mean =
                    row_blocks.iter().map(|b| b.scale * b.scale).sum::<f32>() / blocks as f32;
                for (flag, block) in flags.iter_mut().zip(row_blocks) {
                    *flag |= u8::from(block.scale * block.scale > mean) << (row - first);
                }
            }
        });
    }

    /// What kernels read, from row `row` on.
    #[inline(always)]
    pub(crate) fn view(&self, row: usize) -> RowsView {
        RowsView {
            blocks: self.blocks,
            coarse: self.coarse[row * self.blocks..].as_ptr(),
            fine: self.fine[row * self.blocks..].as_ptr(),
            flags: self.flags[row / GROUP_ROWS * self.blocks..].as_ptr(),
            shift: row % GROUP_ROWS,
        }
    }

    #[cfg(test)]
    pub(crate) fn values(&self) -> Vec<f32> {
        let mut out = Vec::new();
        for (i, (coarse, fine)) in self.coarse.iter().zip(&self.fine).enumerate() {
            let (row, block) = (i / self.blocks, i % self.blocks);
            let flagged =
                self.flags[row / GROUP_ROWS * self.blocks + block] >> (row % GROUP_ROWS) & 1 == 1;
            let rest = if flagged { fine.values() } else { [0.0; BLOCK] };
            out.extend(coarse.values().iter().zip(rest).map(|(a, b)| a + b));
        }
        out
    }

    /// Rows `range` alone.
    #[cfg(test)]
    pub(crate) fn part(&self, range: std::ops::Range<usize>) -> Self {
        let blocks = range.start * self.blocks..range.end * self.blocks;
        let (coarse, fine) = (
            self.coarse[blocks.clone()].to_vec(),
            self.fine[blocks].to_vec(),
        );
        let mut part = Self {
            rows: range.len(),
            blocks: self.blocks,
            coarse,
            fine,
            flags: Vec::new(),
        };
        part.flags
            .resize(part.rows.div_ceil(GROUP_ROWS) * part.blocks, 0);
        part.mark(&ThreadPool::new(1).unwrap());
        part
    }
}

/// Pointers to consecutive rows. Row `r`'s block `b` lies at `r * blocks + b`; its flag is bit `shift + r` of `flags[b]`.
#[derive(Clone, Copy)]
pub(crate) struct RowsView {
    pub blocks: usize,
    pub coarse: *const Q8Block,
    pub fine: *const Q8Block,
    pub flags: *const u8,
    pub shift: usize,
}

/// Where threads write the blocks of rows, each thread others.
#[derive(Clone, Copy)]
pub(crate) struct BlockWriter {
    blocks: usize,
    coarse: SharedMut<Q8Block>,
    fine: SharedMut<Q8Block>,
}

impl BlockWriter {
    /// Quantises 32 values, given as two vectors, into block `block` of row `row`.
    ///
    /// # Safety
    /// Row and block exist, and no other thread writes them.
    #[inline(always)]
    pub unsafe fn write<S: Simd>(self, row: usize, block: usize, x: [S::F; 2]) {
        // SAFETY: within the arrays, as the caller promises.
        unsafe {
            let at = row * self.blocks + block;
            let rest = quantise_block::<S>(x, self.coarse.at(at));
            quantise_block::<S>(rest, self.fine.at(at));
        }
    }
}

/// Below this magnitude a block counts as zero: its reciprocal scale would overflow.
const SMALLEST: f32 = 1e-35;

/// Quantises 32 values and returns what the bytes leave over. A block whose largest magnitude is infinite gets an
/// infinite scale, so that the overflow shows in the result; NaN lanes do not raise the largest magnitude and quantise to
/// an arbitrary byte.
#[inline(always)]
unsafe fn quantise_block<S: Simd>(x: [S::F; 2], out: *mut Q8Block) -> [S::F; 2] {
    // SAFETY: the caller passes a writable block and has the instruction set.
    unsafe {
        let largest = S::largest(S::max(S::abs(x[0]), S::abs(x[1])));
        let inverse = if largest < SMALLEST {
            0.0
        } else {
            127.0 / largest
        };
        let scale = if largest < SMALLEST {
            0.0
        } else {
            largest / 127.0
        };
        let rounded = [
            S::round(S::mul(x[0], S::splat(inverse))),
            S::round(S::mul(x[1], S::splat(inverse))),
        ];
        let q = (&raw mut (*out).q).cast::<i8>();
        let first = S::store_i8(q, rounded[0]);
        let second = S::store_i8(q.add(16), rounded[1]);
        (*out).scale = scale;
        (*out).scaled_sum = scale * (first + second) as f32;
        (*out).minus_128_sum = -128i32.wrapping_mul(first.wrapping_add(second));
        (*out).half_sums = [first as i16, second as i16];
        let minus = S::splat(-scale);
        [
            S::fma(rounded[0], minus, x[0]),
            S::fma(rounded[1], minus, x[1]),
        ]
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    row: usize,
    out: BlockWriter,
}

impl Kernel for Quantise<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (block, x) in self.x.chunks_exact(BLOCK).enumerate() {
            // SAFETY: `x` has 32 values, `quantise_rows` made room for the row, and `execute` chose an available
            // instruction set.
            unsafe {
                let x = [S::load(x.as_ptr()), S::load(x.as_ptr().add(16))];
                self.out.write::<S>(self.row, block, x);
            }
        }
    }
}

/// Quantises `x`, rows of `k` values, into `out`.
///
/// # Panics
/// When `k` is no multiple of 32 or `x` no whole number of rows.
pub fn quantise_rows(cpu: Cpu, pool: &ThreadPool, x: &[f32], k: usize, out: &mut QuantisedRows) {
    assert!(
        k > 0 && k.is_multiple_of(BLOCK) && x.len().is_multiple_of(k),
        "rows of whole blocks"
    );
    let rows = x.len() / k;
    out.resize(rows, k);
    let writer = out.writer();
    // A row of a small model takes a tenth of a microsecond, a fork several.
    pool.split(rows, 4096usize.div_ceil(k), |range| {
        for row in range {
            cpu.execute(Quantise {
                x: &x[row * k..][..k],
                row,
                out: writer,
            });
        }
    });
    out.mark(pool);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quantised(cpu: Cpu, x: &[f32], k: usize) -> QuantisedRows {
        let mut out = QuantisedRows::default();
        quantise_rows(cpu, &ThreadPool::new(2).unwrap(), x, k, &mut out);
        out
    }

    proptest! {
        #[test]
        fn values_come_back_within_half_a_step_on_every_path(x in prop::collection::vec(-1e4f32..1e4, 64)) {
            let truth = quantised(Cpu::portable(), &x, 32);
            for (block, x) in truth.coarse.iter().zip(x.chunks(BLOCK)) {
                for (value, x) in block.values().iter().zip(x) {
                    prop_assert!((value - x).abs() <= block.scale * 0.501, "{value} {x}");
                }
                let sum: i32 = block.q.iter().map(|&q| i32::from(q)).sum();
                prop_assert_eq!(block.minus_128_sum, -128 * sum);
                prop_assert_eq!(i32::from(block.half_sums[0]) + i32::from(block.half_sums[1]), sum);
            }
            for cpu in Cpu::available() {
                prop_assert_eq!(&quantised(cpu, &x, 32), &truth, "{}", cpu.name());
            }
        }
    }

    #[test]
    fn blocks_with_outliers_get_a_second_byte_in_their_row_only() {
        let mut x: Vec<f32> = (0..10 * 96).map(|i| (i as f32).sin()).collect();
        x[9 * 96 + 40] = 100.0;
        let rows = quantised(Cpu::detect(), &x, 96);
        assert_eq!(rows.flags[3 + 1] & 2, 2);
        assert_eq!((rows.flags[3] & 2, rows.flags[5] & 2), (0, 0));
        for (value, x) in rows.values()[9 * 96 + 32..][..32]
            .iter()
            .zip(&x[9 * 96 + 32..])
        {
            assert!((value - x).abs() <= 100.0 / 127.0 / 254.0, "{value} {x}");
        }
    }

    #[test]
    fn zeros_and_denormals_give_zero_blocks_and_infinities_show() {
        for cpu in Cpu::available() {
            for x in [0.0, 1e-40, -1e-38] {
                let block = quantised(cpu, &[x; 32], 32).coarse[0];
                assert_eq!((block.scale, block.q), (0.0, [0; 32]));
            }
            let mut x = [1.0; 32];
            x[3] = f32::INFINITY;
            assert!(quantised(cpu, &x, 32).coarse[0].scale.is_infinite());
        }
    }
}
