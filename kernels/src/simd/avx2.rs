//! AVX2 with FMA and F16C: a vector is two registers, lanes 0 to 7 and 8 to 15.

#[allow(clippy::wildcard_imports)] // Two hundred intrinsics.
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::{Quants, Simd};
use crate::activation::Q8Block;

/// AVX2, and `D` for dots of bytes.
#[derive(Clone, Copy)]
pub struct Avx2<D>(PhantomData<D>);

type F = [__m256; 2];
type I = [__m256i; 2];

/// The expression for both registers. Not a function of a closure: what is not inlined here is compiled without AVX2.
macro_rules! each {
    (|$i:ident| $x:expr) => {
        [
            {
                let $i = 0;
                $x
            },
            {
                let $i = 1;
                $x
            },
        ]
    };
}

mod dots;

#[cfg(test)]
pub use dots::Evex;
pub use dots::{ByteDots, Pairs, Vex, Vnni};

#[allow(clippy::undocumented_unsafe_blocks)] // The trait's contract is the one argument for every body here.
impl<D: ByteDots> Simd for Avx2<D> {
    type F = F;
    type I = I;
    type B = I;
    const WIDE: bool = false;
    const ROWS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        unsafe { each!(|i| _mm256_cvtph_ps(_mm_loadu_si128(p.add(8 * i).cast()))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: F) {
        unsafe {
            for (i, &half) in x.iter().enumerate() {
                _mm_storeu_si128(
                    p.add(8 * i).cast(),
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(half),
                );
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        unsafe {
            each!(|i| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8 * i).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        unsafe {
            each!(|i| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(
                p.add(8 * i).cast()
            ))))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> F {
        unsafe {
            each!(|i| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(
                p.add(8 * i).cast()
            ))))
        }
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> F {
        unsafe { [_mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned())); 2] }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        unsafe { each!(|i| _mm256_add_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        unsafe { each!(|i| _mm256_sub_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        unsafe { each!(|i| _mm256_mul_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        unsafe { each!(|i| _mm256_div_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        unsafe { each!(|i| _mm256_fmadd_ps(a[i], b[i], c[i])) }
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        unsafe { each!(|i| _mm256_max_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        unsafe { each!(|i| _mm256_min_ps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        unsafe { each!(|i| _mm256_andnot_ps(_mm256_set1_ps(-0.0), a[i])) }
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        unsafe {
            each!(|i| _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a[i]))
        }
    }
    #[inline(always)]
    unsafe fn pow2(n: F) -> F {
        unsafe {
            each!(|i| {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n[i]), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            })
        }
    }
    #[inline(always)]
    unsafe fn select_lt(a: F, b: F, x: F, y: F) -> F {
        unsafe { each!(|i| _mm256_blendv_ps(y[i], x[i], _mm256_cmp_ps::<_CMP_LT_OQ>(a[i], b[i]))) }
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: F) -> F {
        unsafe { each!(|i| _mm256_permute_ps::<0b10_11_00_01>(a[i])) }
    }
    #[inline(always)]
    unsafe fn sum(a: F) -> f32 {
        unsafe {
            let a = _mm256_add_ps(a[0], a[1]);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    unsafe fn largest(a: F) -> f32 {
        unsafe {
            let a = _mm256_max_ps(a[0], a[1]);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    unsafe fn to_f32(a: I) -> F {
        unsafe { each!(|i| _mm256_cvtepi32_ps(a[i])) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: F) -> i32 {
        unsafe {
            let (low, high) = (_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1]));
            // Packing works within 128-bit halves: put the quarters back in order before the last step.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            let bytes = _mm_packs_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(p.cast(), bytes);
            let sums = _mm256_add_epi32(low, high);
            let sums = _mm_add_epi32(
                _mm256_castsi256_si128(sums),
                _mm256_extracti128_si256::<1>(sums),
            );
            let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b00_00_11_10>(sums));
            _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32::<1>(sums)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn zero_i() -> I {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn load_i8_i(p: *const i8) -> I {
        unsafe { each!(|i| _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8 * i).cast()))) }
    }
    #[inline(always)]
    unsafe fn load_nibbles_i(p: *const u8) -> [I; 2] {
        unsafe {
            let bytes = each!(|i| _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8 * i).cast())));
            [
                each!(|i| _mm256_and_si256(bytes[i], _mm256_set1_epi32(15))),
                each!(|i| _mm256_srli_epi32::<4>(bytes[i])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        unsafe { each!(|i| _mm256_add_epi32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul_i(a: I, b: I) -> I {
        unsafe { each!(|i| _mm256_mullo_epi32(a[i], b[i])) }
    }

    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> I {
        unsafe { each!(|i| _mm256_loadu_si256(p.add(32 * i).cast())) }
    }
    #[inline(always)]
    unsafe fn or_b(a: I, b: I) -> I {
        unsafe { each!(|i| _mm256_or_si256(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn field_b(a: I, shift: i32, mask: u8) -> I {
        unsafe {
            let mask = _mm256_set1_epi8(mask as i8);
            each!(|i| _mm256_and_si256(
                shifted!(a[i], shift, _mm256_srli_epi16, _mm256_slli_epi16),
                mask
            ))
        }
    }
    #[inline(always)]
    unsafe fn lookup_b(table: &[u8; 16], indices: I) -> I {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            each!(|i| _mm256_shuffle_epi8(table, indices[i]))
        }
    }

    #[inline(always)]
    unsafe fn dots<Q: Quants, const FROM: usize, const TO: usize, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
        start: [I; R],
    ) -> [I; R] {
        unsafe { D::dots::<Self, Q, FROM, TO, R>(w, a, stride, start) }
    }
}
