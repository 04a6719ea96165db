//! Panels of quantised weights, block by block.

use crate::activation::{Q8Block, RowsView};
use crate::pack::{BYTE_BYTES, GROUPS, HALVES, NIBBLE_BYTES, Q4K_GROUP, Q6K_GROUP};
use crate::simd::{LANES, Simd};

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

/// A quantised format's panel, block by block.
pub(super) trait Blocks {
    /// Where block `b` of the panel at `w` lies, and its bytes.
    fn place(w: *const u8, b: usize) -> (*const u8, usize);
    /// Dots of `R` rows of activations with the block at `w`.
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R];
    /// Scales of block `b` of `panel`, which lies at `w`, and its minimums if the format has any.
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize, w: *const u8) -> (S::F, Option<S::F>);
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
            let (scale, min) = B::scales::<S>(panel, b, w);
            let a = rows.coarse.add(b);
            let dots = B::dots::<S, R>(w, a, stride);
            for r in 0..R {
                coarse[r] = accumulate::<S>(coarse[r], dots[r], scale, min, a.add(r * stride));
            }
            let mut flags = u32::from(*rows.flags.add(b)) >> rows.shift & ((1 << R) - 1);
            while flags != 0 {
                let r = flags.trailing_zeros() as usize;
                let a = rows.fine.add(r * stride + b);
                fine[r] = accumulate::<S>(fine[r], B::dots::<S, 1>(w, a, stride)[0], scale, min, a);
                flags &= flags - 1;
            }
        }
        for r in 0..R {
            coarse[r] = S::add(coarse[r], fine[r]);
        }
        coarse
    }
}

/// `acc + dot * (scale * a's scale) + min * a's scaled sum`.
#[inline(always)]
unsafe fn accumulate<S: Simd>(
    acc: S::F,
    dot: S::I,
    scale: S::F,
    min: Option<S::F>,
    a: *const Q8Block,
) -> S::F {
    // SAFETY: the caller passes a readable block.
    unsafe {
        let acc = S::fma(S::to_f32(dot), S::mul(scale, S::splat((*a).scale)), acc);
        match min {
            Some(min) => S::fma(min, S::splat((*a).scaled_sum), acc),
            None => acc,
        }
    }
}

pub(super) struct Q8_0;
pub(super) struct Q4<const MIN: bool>;
pub(super) struct Q4K;
pub(super) struct Q6K;

#[allow(clippy::undocumented_unsafe_blocks)] // All bodies read within the block that `blocks_panel` walks to.
impl Blocks for Q8_0 {
    #[inline(always)]
    fn place(panel: *const u8, b: usize) -> (*const u8, usize) {
        (
            panel.wrapping_add(b * (BYTE_BYTES + HALVES)),
            BYTE_BYTES + HALVES,
        )
    }
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R] {
        unsafe { S::dot_byte::<R>(w, a, stride) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(_: *const u8, _: usize, w: *const u8) -> (S::F, Option<S::F>) {
        unsafe { (S::load_f16(w.add(BYTE_BYTES).cast()), None) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl<const MIN: bool> Blocks for Q4<MIN> {
    #[inline(always)]
    fn place(panel: *const u8, b: usize) -> (*const u8, usize) {
        let bytes = NIBBLE_BYTES + if MIN { 2 * HALVES } else { HALVES };
        (panel.wrapping_add(b * bytes), bytes)
    }
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R] {
        unsafe { S::dot_nibble::<R>(w, a, stride) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(_: *const u8, _: usize, w: *const u8) -> (S::F, Option<S::F>) {
        unsafe {
            let scale = S::load_f16(w.add(NIBBLE_BYTES).cast());
            // Nibbles centred on 8 are nibbles with a minimum of -8 scales.
            let min = if MIN {
                S::load_f16(w.add(NIBBLE_BYTES + HALVES).cast())
            } else {
                S::mul(scale, S::splat(-8.0))
            };
            (scale, Some(min))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Blocks for Q4K {
    #[inline(always)]
    fn place(panel: *const u8, b: usize) -> (*const u8, usize) {
        let super_block = b / GROUPS * (2 * HALVES + GROUPS * Q4K_GROUP);
        (
            panel.wrapping_add(super_block + 2 * HALVES + b % GROUPS * Q4K_GROUP),
            Q4K_GROUP,
        )
    }
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R] {
        unsafe { S::dot_nibble::<R>(w, a, stride) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize, w: *const u8) -> (S::F, Option<S::F>) {
        unsafe {
            let halves = panel.add(b / GROUPS * (2 * HALVES + GROUPS * Q4K_GROUP));
            let scale = S::mul(S::load_f16(halves.cast()), S::load_u8(w.add(NIBBLE_BYTES)));
            let min = S::mul(
                S::load_f16(halves.add(HALVES).cast()),
                S::load_u8(w.add(NIBBLE_BYTES + LANES)),
            );
            (scale, Some(S::sub(S::splat(0.0), min)))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Blocks for Q6K {
    #[inline(always)]
    fn place(panel: *const u8, b: usize) -> (*const u8, usize) {
        let super_block = b / GROUPS * (HALVES + GROUPS * Q6K_GROUP);
        (
            panel.wrapping_add(super_block + HALVES + b % GROUPS * Q6K_GROUP),
            Q6K_GROUP,
        )
    }
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [S::I; R] {
        unsafe { S::dot_six::<R>(w, a, stride) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(panel: *const u8, b: usize, _: *const u8) -> (S::F, Option<S::F>) {
        unsafe {
            (
                S::load_f16(panel.add(b / GROUPS * (HALVES + GROUPS * Q6K_GROUP)).cast()),
                None,
            )
        }
    }
}
