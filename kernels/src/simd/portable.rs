//! The lanes as arrays: runs anywhere, and is the plainest statement of what every other path computes.

use super::{LANES, Simd};
use crate::activation::Q8Block;

#[derive(Clone, Copy)]
pub struct Portable;

type F = [f32; LANES];
type I = [i32; LANES];

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

/// `depth` 0..32 of column `n` in a block of nibbles.
#[inline(always)]
unsafe fn nibble(w: *const u8, n: usize, depth: usize) -> i32 {
    let at = (depth % 16) / 4 * 64 + n * 4 + depth % 4;
    // SAFETY: `at` < 256, which the caller promises are readable.
    let byte = unsafe { *w.add(at) };
    i32::from(if depth < 16 { byte & 15 } else { byte >> 4 })
}

#[allow(clippy::undocumented_unsafe_blocks)] // The trait's contract is the one argument for every body here.
impl Simd for Portable {
    type F = F;
    type I = I;
    const WIDE: bool = false;

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
    unsafe fn dot_nibble<const R: usize>(w: *const u8, a: *const Q8Block, stride: usize) -> [I; R] {
        std::array::from_fn(|r| {
            let q = unsafe { &(*a.add(r * stride)).q };
            std::array::from_fn(|n| {
                (0..32)
                    .map(|k| unsafe { nibble(w, n, k) } * i32::from(q[k]))
                    .sum()
            })
        })
    }

    #[inline(always)]
    unsafe fn dot_byte<const R: usize>(w: *const u8, a: *const Q8Block, stride: usize) -> [I; R] {
        std::array::from_fn(|r| {
            let q = unsafe { &(*a.add(r * stride)).q };
            std::array::from_fn(|n| {
                let weight = |k: usize| {
                    i32::from((unsafe { *w.add(k / 4 * 64 + n * 4 + k % 4) } ^ 0x80) as i8)
                };
                (0..32).map(|k| weight(k) * i32::from(q[k])).sum()
            })
        })
    }

    #[inline(always)]
    unsafe fn dot_six<const R: usize>(w: *const u8, a: *const Q8Block, stride: usize) -> [I; R] {
        std::array::from_fn(|r| {
            let q = unsafe { &(*a.add(r * stride)).q };
            std::array::from_fn(|n| {
                let weight = |k: usize| {
                    let group = k / 4;
                    let high = unsafe { *w.add(256 + group / 4 * 64 + n * 4 + k % 4) }
                        >> (2 * (group % 4))
                        & 3;
                    (unsafe { nibble(w, n, k) } | i32::from(high) << 4) - 32
                };
                let half = |h: usize| -> i32 {
                    let scale = i32::from(unsafe { *w.add(384 + h * LANES + n) } as i8);
                    scale
                        * (h * 16..h * 16 + 16)
                            .map(|k| weight(k) * i32::from(q[k]))
                            .sum::<i32>()
                };
                half(0) + half(1)
            })
        })
    }
}
