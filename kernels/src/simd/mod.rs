//! Sixteen lanes of `f32` or `i32`, with one implementation an instruction set.
//!
//! All implementations give the same bits for finite values: products and sums are fused where `fma` says so, reductions
//! add halves to halves (16, 8, 4, 2, 1), and integer dot products are exact.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use portable::Portable;

use crate::activation::Q8Block;

/// Lanes of a vector, and columns of a weight panel.
pub const LANES: usize = 16;

/// The operations kernels are written in. `min`, `max` and `select_lt` follow x86: when a lane is NaN the second operand wins.
///
/// # Safety
/// Functions that take pointers need them valid for the bytes their names say (16 lanes unless stated); no alignment is
/// asked. All functions need the implementation's instruction set.
pub trait Simd: Copy {
    /// 16 lanes of `f32`.
    type F: Copy;
    /// 16 lanes of `i32`.
    type I: Copy;
    /// True when a vector is one register of a file of 32: tiles may then be wide.
    const WIDE: bool;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Rounds to nearest even.
    unsafe fn store_f16(p: *mut u16, x: Self::F);
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    unsafe fn load_u8(p: *const u8) -> Self::F;
    unsafe fn load_i8(p: *const i8) -> Self::F;
    /// One number, in every lane.
    unsafe fn splat_f16(p: *const u16) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `2^n` for integral `n` in -126..=127.
    unsafe fn pow2(n: Self::F) -> Self::F;
    /// `if a < b { x } else { y }`, lane by lane.
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// Exchanges lanes 2i and 2i + 1.
    unsafe fn swap_pairs(a: Self::F) -> Self::F;
    unsafe fn sum(a: Self::F) -> f32;
    unsafe fn largest(a: Self::F) -> f32;
    unsafe fn to_f32(a: Self::I) -> Self::F;
    /// Rounds 16 lanes within ±127 to `i8`, stores them and returns their sum.
    unsafe fn store_i8(p: *mut i8, a: Self::F) -> i32;
    unsafe fn prefetch(p: *const u8);

    /// Dots of one 16-column by 32-deep block of unsigned nibbles with the same block of `R` rows of activations.
    /// `w`: 256 bytes, byte `(j, n, i)` of shape `[4][16][4]` holds depth `4j + i` of column `n` in its low nibble and depth
    /// `16 + 4j + i` in its high one. `a`: the block of row 0; row `r` lies `r * stride` blocks on.
    unsafe fn dot_nibble<const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [Self::I; R];

    /// As `dot_nibble` for signed bytes stored with their top bit flipped. `w`: 512 bytes of shape `[8][16][4]`.
    unsafe fn dot_byte<const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [Self::I; R];

    /// As `dot_nibble` for 6-bit weights offset by 32, each half of 16 deep multiplied by its own signed scale.
    /// `w`: 256 bytes of nibbles, 128 of high bits (byte `(v, n, i)` of `[2][16][4]` holds two bits for depth groups `4v` to
    /// `4v + 3`), 16 scales of the first half, 16 of the second.
    unsafe fn dot_six<const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
    ) -> [Self::I; R];
}
