//! The lanes as arrays: runs anywhere, and is the plainest statement of what every other path computes.

use super::{LANES, Quants, Simd, within};
use crate::activation::Q8Block;

#[derive(Clone, Copy)]
pub struct Portable;

type F = [f32; LANES];
type I = [i32; LANES];
type B = [u8; 4 * LANES];

#[inline(always)]
fn map2(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Halves onto halves, as the vector paths do.
#[inline(always)]
fn fold(mut a: F, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            a[i] = f(a[i], a[i + width]);
        }
        width /= 2;
    }
    a[0]
}

#[inline(always)]
unsafe fn read<T: Copy>(p: *const T) -> [T; LANES] {
    // SAFETY: the caller promises 16 readable elements.
    unsafe { p.cast::<[T; LANES]>().read_unaligned() }
}

/// Adds dots of groups of weights, less `offset`, with groups of activations. Not inlined: one body serves all formats, and the
/// instruction set is the one that is always there.
#[inline(never)]
fn add_dots(weights: &[B], q: &[i8], offset: i32, sums: &mut I) {
    for (weights, q) in weights.iter().zip(q.chunks_exact(4)) {
        for (sum, weights) in sums.iter_mut().zip(weights.chunks_exact(4)) {
            for (&w, &q) in weights.iter().zip(q) {
                *sum += (i32::from(w) - offset) * i32::from(q);
            }
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // The trait's contract is the one argument for every body here.
impl Simd for Portable {
    type F = F;
    type I = I;
    type B = B;
    const WIDE: bool = false;
    const ROWS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { read(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        unsafe { p.cast::<F>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        unsafe { read(p) }.map(|bits| half::f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: F) {
        unsafe {
            p.cast::<[u16; LANES]>()
                .write_unaligned(x.map(|v| half::f16::from_f32(v).to_bits()));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        unsafe { read(p) }.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        unsafe { read(p) }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> F {
        unsafe { read(p) }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> F {
        [half::f16::from_bits(unsafe { p.read_unaligned() }).to_f32(); LANES]
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        a.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn pow2(n: F) -> F {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn select_lt(a: F, b: F, x: F, y: F) -> F {
        std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: F) -> F {
        std::array::from_fn(|i| a[i ^ 1])
    }
    #[inline(always)]
    unsafe fn sum(a: F) -> f32 {
        fold(a, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn largest(a: F) -> f32 {
        fold(a, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn to_f32(a: I) -> F {
        a.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: F) -> i32 {
        let bytes = a.map(|x| x.round_ties_even() as i8);
        unsafe { p.cast::<[i8; LANES]>().write_unaligned(bytes) };
        bytes.iter().map(|&b| i32::from(b)).sum()
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}

    #[inline(always)]
    unsafe fn zero_i() -> I {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_i8_i(p: *const i8) -> I {
        unsafe { read(p) }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_nibbles_i(p: *const u8) -> [I; 2] {
        let bytes = unsafe { read(p) };
        [
            bytes.map(|b| i32::from(b & 15)),
            bytes.map(|b| i32::from(b >> 4)),
        ]
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn mul_i(a: I, b: I) -> I {
        std::array::from_fn(|i| a[i].wrapping_mul(b[i]))
    }

    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> B {
        unsafe { p.cast::<B>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn or_b(a: B, b: B) -> B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn field_b(a: B, shift: i32, mask: u8) -> B {
        if shift < 0 {
            a.map(|x| x << -shift & mask)
        } else {
            a.map(|x| x >> shift & mask)
        }
    }
    #[inline(always)]
    unsafe fn lookup_b(table: &[u8; 16], indices: B) -> B {
        indices.map(|i| table[usize::from(i & 15)])
    }

    #[inline(never)] // Needs no instruction set: one body serves all callers.
    unsafe fn dots<Q: Quants, const FROM: usize, const TO: usize, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
        start: [I; R],
    ) -> [I; R] {
        let mut weights = [[0u8; 4 * LANES]; 8];
        each_group!(|J| {
            if within(J, FROM, TO) {
                weights[J] = unsafe { Q::quad::<Self, J>(w) };
            }
        });
        let mut sums = start;
        for (r, sums) in sums.iter_mut().enumerate() {
            let q = unsafe { &(*a.add(r * stride)).q };
            let offset = if Q::SIGNED { 128 } else { 0 };
            add_dots(&weights[FROM..TO], &q[4 * FROM..4 * TO], offset, sums);
        }
        sums
    }
}
