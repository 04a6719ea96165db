//! Panels of quantised weights, block by block.

use crate::activation::{Q8Block, RowsView};
use crate::format::IQ4NL_LEVELS;
use crate::pack::{BIT_BYTES, BYTE_BYTES, GROUPS, HALVES, NIBBLE_BYTES, PAIR, TWO_BIT_BYTES};
use crate::simd::{LANES, Quants, Simd};

/// Weight bytes ahead of the stream to ask for: what memory delivers in about its latency.
const PREFETCH_BYTES: usize = 2048;

/// Asks memory for the `bytes` that lie `PREFETCH_BYTES` ahead: past the end of a page and of a panel, where the
/// processor's own prefetching stops.
#[inline(always)]
unsafe fn prefetch<S: Simd>(w: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { S::prefetch(w.wrapping_add(PREFETCH_BYTES + 64 * line)) };
    }
}

/// Scales of a block's columns, and its minimums: none (0), one a column (1), or one for each half of 16 deep (2).
pub(super) struct Scales<S: Simd> {
    scale: S::F,
    mins: [S::F; 2],
}

/// A quantised format's panel, block by block.
pub(super) trait Blocks {
    /// Minimums a column.
    const MINS: usize;
    /// Where block `b` of the panel at `w` lies, and its bytes.
    fn place(w: *const u8, b: usize) -> (*const u8, usize);
    /// Dots of `R` rows of activations with the block at `w`.
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R];
    /// Scales of block `b` of `panel`, which lies at `w`.
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize, w: *const u8) -> Scales<S>;
}

/// Products of `R` rows with a panel of quantised blocks.
#[inline(always)]
pub(super) unsafe fn blocks_panel<S: Simd, B: Blocks, const R: usize>(
    panel: *const u8,
    rows: RowsView,
) -> [S::F; R] {
    let stride = rows.blocks;
    // SAFETY: the panel holds as many blocks as each of the `R` rows.
    unsafe {
        let mut coarse = [S::splat(0.0); R];
        // Indexed by a row known at run time only, so it lives in memory.
        let mut fine = [S::splat(0.0); R];
        for b in 0..rows.blocks {
            let (w, bytes) = B::place(panel, b);
            prefetch::<S>(w, bytes);
            let scales = B::scales::<S>(panel, b, w);
            let a = rows.coarse.add(b);
            // Before the coarse dots: after them the compiler moves these behind this loop and, with their operands, to the stack.
            let mut flags = u32::from(*rows.flags.add(b)) >> rows.shift & ((1 << R) - 1);
            while flags != 0 {
                let r = flags.trailing_zeros() as usize;
                let a = rows.fine.add(r * stride + b);
                let dots = B::dots::<S, 1>(w, a, stride);
                fine[r] = accumulate::<S, B>(fine[r], dots[0], &scales, a);
                flags &= flags - 1;
            }
            let dots = B::dots::<S, R>(w, a, stride);
            for r in 0..R {
                coarse[r] = accumulate::<S, B>(coarse[r], dots[r], &scales, a.add(r * stride));
            }
        }
        for r in 0..R {
            coarse[r] = S::add(coarse[r], fine[r]);
        }
        coarse
    }
}

/// `acc + dot * (scale * a's scale) + minimum * a's scaled sum`.
#[inline(always)]
unsafe fn accumulate<S: Simd, B: Blocks>(
    acc: S::F,
    dot: S::I,
    scales: &Scales<S>,
    a: *const Q8Block,
) -> S::F {
    // SAFETY: the caller passes a readable block.
    unsafe {
        let scale = S::mul(scales.scale, S::splat((*a).scale));
        let acc = S::fma(S::to_f32(dot), scale, acc);
        match B::MINS {
            0 => acc,
            1 => S::fma(scales.mins[0], S::splat((*a).scaled_sum), acc),
            _ => {
                let [first, second] = (*a).half_sums;
                let sum = S::splat((*a).scale * f32::from(first));
                let acc = S::fma(scales.mins[0], sum, acc);
                let sum = S::splat((*a).scale * f32::from(second));
                S::fma(scales.mins[1], sum, acc)
            }
        }
    }
}

/// Nibbles: `[4][16][4]` bytes whose low nibbles are depths 0 to 15 and whose high nibbles are depths 16 to 31.
pub(super) struct Nibbles;
/// Nibbles that name one of 16 levels.
pub(super) struct Levels;
/// Nibbles, then fifth bits: bit `j` of byte `(n, i)` of `[16][4]` belongs to depth `4j + i`.
pub(super) struct FiveBits;
/// Nibbles, then two high bits as [`TwoBits`].
pub(super) struct SixBits;
/// `[2][16][4]` bytes: bits `2j` and `2j + 1` of byte `(v, n, i)` are depth `16v + 4j + i`.
pub(super) struct TwoBits;
/// Two low bits, then third bits as in [`FiveBits`].
pub(super) struct ThreeBits;
/// `[8][16][4]` signed bytes.
pub(super) struct SignedBytes;

/// Depth group `J`'s part of fields of two bits, shifted left by `to`.
#[inline(always)]
unsafe fn two_bits<S: Simd, const J: usize>(w: *const u8, to: i32) -> S::B {
    // SAFETY: the caller passes 128 bytes.
    unsafe {
        S::field_b(
            S::load_b(w.add(J / 4 * 64)),
            2 * (J as i32 % 4) - to,
            3 << to,
        )
    }
}

/// Depth group `J`'s bits, shifted left by `to`.
#[inline(always)]
unsafe fn one_bit<S: Simd, const J: usize>(w: *const u8, to: i32) -> S::B {
    // SAFETY: the caller passes 64 bytes.
    unsafe { S::field_b(S::load_b(w), J as i32 - to, 1 << to) }
}

#[allow(clippy::undocumented_unsafe_blocks)] // All bodies read within `BYTES`.
impl Quants for Nibbles {
    const BYTES: usize = NIBBLE_BYTES;
    const LARGEST: i32 = 15;
    #[inline(always)]
    unsafe fn quad<S: Simd, const J: usize>(w: *const u8) -> S::B {
        unsafe { S::field_b(S::load_b(w.add(J % 4 * 64)), J as i32 / 4 * 4, 15) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Quants for Levels {
    const BYTES: usize = NIBBLE_BYTES;
    const LARGEST: i32 = 255;
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn quad<S: Simd, const J: usize>(w: *const u8) -> S::B {
        const TABLE: [u8; 16] = flipped(IQ4NL_LEVELS);
        unsafe { S::lookup_b(&TABLE, Nibbles::quad::<S, J>(w)) }
    }
}

/// The levels with their top bits flipped.
const fn flipped(levels: [i8; 16]) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = levels[i] as u8 ^ 0x80;
        i += 1;
    }
    out
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Quants for FiveBits {
    const BYTES: usize = NIBBLE_BYTES + BIT_BYTES;
    const LARGEST: i32 = 31;
    #[inline(always)]
    unsafe fn quad<S: Simd, const J: usize>(w: *const u8) -> S::B {
        unsafe {
            S::or_b(
                Nibbles::quad::<S, J>(w),
                one_bit::<S, J>(w.add(NIBBLE_BYTES), 4),
            )
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Quants for SixBits {
    const BYTES: usize = NIBBLE_BYTES + TWO_BIT_BYTES;
    const LARGEST: i32 = 63;
    #[inline(always)]
    unsafe fn quad<S: Simd, const J: usize>(w: *const u8) -> S::B {
        unsafe {
            S::or_b(
                Nibbles::quad::<S, J>(w),
                two_bits::<S, J>(w.add(NIBBLE_BYTES), 4),
            )
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Quants for TwoBits {
    const BYTES: usize = TWO_BIT_BYTES;
    const LARGEST: i32 = 3;
    #[inline(always)]
    unsafe fn quad<S: Simd, const J: usize>(w: *const u8) -> S::B {
        unsafe { two_bits::<S, J>(w, 0) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Quants for ThreeBits {
    const BYTES: usize = TWO_BIT_BYTES + BIT_BYTES;
    const LARGEST: i32 = 7;
    #[inline(always)]
    unsafe fn quad<S: Simd, const J: usize>(w: *const u8) -> S::B {
        unsafe {
            S::or_b(
                two_bits::<S, J>(w, 0),
                one_bit::<S, J>(w.add(TWO_BIT_BYTES), 2),
            )
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Quants for SignedBytes {
    const BYTES: usize = BYTE_BYTES;
    const LARGEST: i32 = 255;
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn quad<S: Simd, const J: usize>(w: *const u8) -> S::B {
        unsafe { S::load_b(w.add(64 * J)) }
    }
}

/// A minimum that lies in the file, for [`Simple`].
pub(super) const STORED: i32 = 1;

/// Blocks of 32 with a scale. `MIN`: 0 without minimums, [`STORED`], or else what times the scale is the minimum.
pub(super) struct Simple<Q, const MIN: i32>(Q);

#[allow(clippy::undocumented_unsafe_blocks)] // All bodies read within the block that `blocks_panel` walks to.
impl<Q: Quants, const MIN: i32> Blocks for Simple<Q, MIN> {
    const MINS: usize = if MIN == 0 { 0 } else { 1 };
    #[inline(always)]
    fn place(panel: *const u8, b: usize) -> (*const u8, usize) {
        let bytes = Q::BYTES + if MIN == STORED { 2 * HALVES } else { HALVES };
        (panel.wrapping_add(b * bytes), bytes)
    }
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R] {
        unsafe { S::dots::<Q, 0, 8, R>(w, a, stride, [S::zero_i(); R]) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(_: *const u8, _: usize, w: *const u8) -> Scales<S> {
        unsafe {
            let scale = S::load_f16(w.add(Q::BYTES).cast());
            // Weights centred on 8 are weights with a minimum of -8 scales.
            let min = if MIN == STORED {
                S::load_f16(w.add(Q::BYTES + HALVES).cast())
            } else {
                S::mul(scale, S::splat(MIN as f32))
            };
            Scales {
                scale,
                mins: [min; 2],
            }
        }
    }
}

/// Where block `b` lies in a panel of blocks of 256 that begin with `halves` vectors of half-precision numbers.
#[inline(always)]
fn super_place(panel: *const u8, b: usize, halves: usize, group: usize) -> (*const u8, usize) {
    let head = super_head(panel, b, halves, group);
    (
        head.wrapping_add(halves * HALVES + b % GROUPS * group),
        group,
    )
}

#[inline(always)]
fn super_head(panel: *const u8, b: usize, halves: usize, group: usize) -> *const u8 {
    panel.wrapping_add(b / GROUPS * (halves * HALVES + GROUPS * group))
}

/// Blocks of 256 whose groups of 32 have a scale and a minimum, both unsigned.
pub(super) struct ScaleAndMin<Q>(Q);

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl<Q: Quants> Blocks for ScaleAndMin<Q> {
    const MINS: usize = 1;
    #[inline(always)]
    fn place(panel: *const u8, b: usize) -> (*const u8, usize) {
        super_place(panel, b, 2, Q::BYTES + PAIR)
    }
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R] {
        unsafe { S::dots::<Q, 0, 8, R>(w, a, stride, [S::zero_i(); R]) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize, w: *const u8) -> Scales<S> {
        unsafe {
            let halves = super_head(panel, b, 2, Q::BYTES + PAIR);
            let scale = S::mul(S::load_f16(halves.cast()), S::load_u8(w.add(Q::BYTES)));
            let min = S::mul(
                S::load_f16(halves.add(HALVES).cast()),
                S::load_u8(w.add(Q::BYTES + LANES)),
            );
            Scales {
                scale,
                mins: [S::sub(S::splat(0.0), min); 2],
            }
        }
    }
}

/// Blocks of 256 of weights centred on `CENTRE` whose groups of 16 have a signed scale.
pub(super) struct TwoScales<Q, const CENTRE: i32>(Q);

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl<Q: Quants, const CENTRE: i32> Blocks for TwoScales<Q, CENTRE> {
    const MINS: usize = 0;
    #[inline(always)]
    fn place(panel: *const u8, b: usize) -> (*const u8, usize) {
        super_place(panel, b, 1, Q::BYTES + PAIR)
    }
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R] {
        unsafe {
            let mut starts = [[S::zero_i(); R]; 2];
            for r in 0..R {
                let sums = (*a.add(r * stride)).half_sums;
                starts[0][r] = S::splat_i(-CENTRE * i32::from(sums[0]));
                starts[1][r] = S::splat_i(-CENTRE * i32::from(sums[1]));
            }
            let first = S::load_i8_i(w.add(Q::BYTES).cast());
            let second = S::load_i8_i(w.add(Q::BYTES + LANES).cast());
            let mut sums = S::dots::<Q, 0, 4, R>(w, a, stride, starts[0]);
            for r in 0..R {
                sums[r] = S::mul_i(sums[r], first);
            }
            let others = S::dots::<Q, 4, 8, R>(w, a, stride, starts[1]);
            for r in 0..R {
                sums[r] = S::add_i(sums[r], S::mul_i(others[r], second));
            }
            sums
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize, _: *const u8) -> Scales<S> {
        unsafe {
            Scales {
                scale: S::load_f16(super_head(panel, b, 1, Q::BYTES + PAIR).cast()),
                mins: [S::splat(0.0); 2],
            }
        }
    }
}

/// Blocks of 256 whose groups of 16 have a scale and a minimum of four bits each.
pub(super) struct Q2K;

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Blocks for Q2K {
    const MINS: usize = 2;
    #[inline(always)]
    fn place(panel: *const u8, b: usize) -> (*const u8, usize) {
        super_place(panel, b, 2, TWO_BIT_BYTES + PAIR)
    }
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R] {
        unsafe {
            let [first, _] = S::load_nibbles_i(w.add(TWO_BIT_BYTES));
            let [second, _] = S::load_nibbles_i(w.add(TWO_BIT_BYTES + LANES));
            let mut sums = S::dots::<TwoBits, 0, 4, R>(w, a, stride, [S::zero_i(); R]);
            for r in 0..R {
                sums[r] = S::mul_i(sums[r], first);
            }
            let others = S::dots::<TwoBits, 4, 8, R>(w, a, stride, [S::zero_i(); R]);
            for r in 0..R {
                sums[r] = S::add_i(sums[r], S::mul_i(others[r], second));
            }
            sums
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize, w: *const u8) -> Scales<S> {
        unsafe {
            let halves = super_head(panel, b, 2, TWO_BIT_BYTES + PAIR);
            let scale = S::load_f16(halves.cast());
            let min = S::sub(S::splat(0.0), S::load_f16(halves.add(HALVES).cast()));
            let [_, first] = S::load_nibbles_i(w.add(TWO_BIT_BYTES));
            let [_, second] = S::load_nibbles_i(w.add(TWO_BIT_BYTES + LANES));
            Scales {
                scale,
                mins: [
                    S::mul(min, S::to_f32(first)),
                    S::mul(min, S::to_f32(second)),
                ],
            }
        }
    }
}

#[cfg(test)]
mod tests;
