//! Sixteen lanes of `f32` or `i32`, with one implementation an instruction set.
//!
//! All implementations give the same bits for finite values: products and sums are fused where `fma` says so, reductions
//! add halves to halves (16, 8, 4, 2, 1), and integer dot products are exact.

/// Runs a statement for depth groups 0 to 7, each with a constant index.
macro_rules! each_group {
    (|$j:ident| $body:block) => {
        each_group!(@ $j $body 0 1 2 3 4 5 6 7)
    };
    (@ $j:ident $body:block $($index:literal)*) => {
        $({
            const $j: usize = $index;
            $body
        })*
    };
}

/// Whether group `index` is one of `from..to`; of constants, so that groups left out cost nothing.
#[inline(always)]
const fn within(index: usize, from: usize, to: usize) -> bool {
    from <= index && index < to
}

/// Lanes shifted right, or left for a negative `shift`, by a number known when compiling.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! shifted {
    ($a:expr, $shift:expr, $right:ident, $left:ident) => {
        match $shift {
            -4 => $left::<4>($a),
            -3 => $left::<3>($a),
            -2 => $left::<2>($a),
            -1 => $left::<1>($a),
            1 => $right::<1>($a),
            2 => $right::<2>($a),
            3 => $right::<3>($a),
            4 => $right::<4>($a),
            5 => $right::<5>($a),
            6 => $right::<6>($a),
            7 => $right::<7>($a),
            _ => $a,
        }
    };
}
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(all(target_arch = "x86_64", test))]
pub use avx2::Evex;
#[cfg(target_arch = "x86_64")]
pub use avx2::{Avx2, Pairs, Vex, Vnni};
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::{DotProduct, Neon, Widening};
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
    /// 16 lanes of four bytes.
    type B: Copy;
    /// True when a vector is one register of a file of 32: tiles may then be wide.
    const WIDE: bool;
    /// Rows of a product's tile, at most: 8, 4, or 1.
    const ROWS: usize;

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

    unsafe fn zero_i() -> Self::I;
    unsafe fn splat_i(x: i32) -> Self::I;
    unsafe fn load_i8_i(p: *const i8) -> Self::I;
    /// Low nibbles of 16 bytes, and high ones.
    unsafe fn load_nibbles_i(p: *const u8) -> [Self::I; 2];
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn mul_i(a: Self::I, b: Self::I) -> Self::I;

    /// 64 bytes.
    unsafe fn load_b(p: *const u8) -> Self::B;
    unsafe fn or_b(a: Self::B, b: Self::B) -> Self::B;
    /// Bits `mask` of every byte shifted right by `shift` (left where it is negative); no bit of `mask` is one that a shift of
    /// pairs of bytes moved across.
    unsafe fn field_b(a: Self::B, shift: i32, mask: u8) -> Self::B;
    /// Bytes `indices` (below 16) of `table`.
    unsafe fn lookup_b(table: &[u8; 16], indices: Self::B) -> Self::B;

    /// `start` plus dots of depth groups `FROM..TO` (of eight groups of four) of a 16-column block of weights with the same
    /// depths of `R` rows of activations. `a`: the block of row 0; row `r` lies `r * stride` blocks on. Weights of
    /// [`Quants::SIGNED`] count as signed, all groups are then asked for.
    unsafe fn dots<Q: Quants, const FROM: usize, const TO: usize, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
        start: [Self::I; R],
    ) -> [Self::I; R];
}

/// Weights of a block of 16 columns by 32 deep, as unsigned bytes.
pub trait Quants {
    /// Bytes of the block.
    const BYTES: usize;
    /// Largest weight.
    const LARGEST: i32;
    /// True when a byte is a signed weight with its top bit flipped: the weight plus 128.
    const SIGNED: bool = false;
    /// Depth group `J` of the block at `w`: byte `(n, i)` of `[16][4]` is depth `4 * J + i` of column `n`.
    ///
    /// # Safety
    /// `w` is readable for `BYTES`, and the instruction set is there.
    unsafe fn quad<S: Simd, const J: usize>(w: *const u8) -> S::B;
}

#[cfg(test)]
mod tests;
