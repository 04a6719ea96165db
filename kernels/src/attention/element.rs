//! Stored keys and values as attention reads them.

use crate::kv::{BLOCK_TOKENS, KV_GROUP};
use crate::simd::Simd;

/// How stored keys and values become floats.
///
/// # Safety
/// Pointers are to a head's keys or values in a block, in the layout of [`crate::kv`]; the instruction set is there.
pub(super) trait Element {
    /// True when decoding asks memory for the next block. Measured: a fifth faster for bytes from memory, no gain for halves.
    const AHEAD: bool;
    /// Scales of the 16 tokens' keys in the group of depths from `group` on.
    unsafe fn key_scales<S: Simd>(keys: *const u8, dim: usize, group: usize) -> S::F;
    /// Depth `d` of the 16 tokens' keys.
    unsafe fn key<S: Simd>(keys: *const u8, d: usize, scales: S::F) -> S::F;
    /// Sixteen values of a token from `d` on, a multiple of 16.
    unsafe fn value<S: Simd>(values: *const u8, padded: usize, token: usize, d: usize) -> S::F;
}

pub(super) struct Halves;
pub(super) struct Bytes;

#[allow(clippy::undocumented_unsafe_blocks)] // All bodies read within a head of `crate::kv`'s layout.
impl Element for Halves {
    const AHEAD: bool = false;
    #[inline(always)]
    unsafe fn key_scales<S: Simd>(_: *const u8, _: usize, _: usize) -> S::F {
        unsafe { S::splat(1.0) }
    }
    #[inline(always)]
    unsafe fn key<S: Simd>(keys: *const u8, d: usize, _: S::F) -> S::F {
        unsafe { S::load_f16(keys.cast::<u16>().add(d * BLOCK_TOKENS)) }
    }
    #[inline(always)]
    unsafe fn value<S: Simd>(values: *const u8, padded: usize, token: usize, d: usize) -> S::F {
        unsafe { S::load_f16(values.cast::<u16>().add(token * padded + d)) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl Element for Bytes {
    const AHEAD: bool = true;
    #[inline(always)]
    unsafe fn key_scales<S: Simd>(keys: *const u8, dim: usize, group: usize) -> S::F {
        let scales = dim * BLOCK_TOKENS + group / KV_GROUP * BLOCK_TOKENS * 2;
        unsafe { S::load_f16(keys.add(scales).cast()) }
    }
    #[inline(always)]
    unsafe fn key<S: Simd>(keys: *const u8, d: usize, scales: S::F) -> S::F {
        unsafe { S::mul(S::load_i8(keys.add(d * BLOCK_TOKENS).cast()), scales) }
    }
    #[inline(always)]
    unsafe fn value<S: Simd>(values: *const u8, padded: usize, token: usize, d: usize) -> S::F {
        let scale = token * padded.div_ceil(KV_GROUP) + d / KV_GROUP;
        unsafe {
            let scales = values.add(padded * BLOCK_TOKENS).cast::<u16>();
            let lanes = S::load_i8(values.add(token * padded + d).cast());
            S::mul(lanes, S::splat_f16(scales.add(scale)))
        }
    }
}
