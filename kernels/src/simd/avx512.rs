//! AVX-512 with VNNI: a vector is one register, four multiply-adds of bytes a lane and instruction.

#[allow(clippy::wildcard_imports)] // Two hundred intrinsics.
use std::arch::x86_64::*;

use super::{Quants, Simd, within};
use crate::activation::Q8Block;

#[derive(Clone, Copy)]
pub struct Avx512;

type F = __m512;
type I = __m512i;

/// Four consecutive activations, in every lane.
#[inline(always)]
unsafe fn quad(a: *const Q8Block, depth: usize) -> I {
    // SAFETY: the caller passes a readable block and a depth of at most 28.
    unsafe {
        _mm512_set1_epi32(
            (&raw const (*a).q)
                .cast::<i8>()
                .add(depth)
                .cast::<i32>()
                .read_unaligned(),
        )
    }
}

#[allow(clippy::undocumented_unsafe_blocks)] // The trait's contract is the one argument for every body here.
impl Simd for Avx512 {
    type F = F;
    type I = I;
    type B = I;
    const WIDE: bool = true;
    const ROWS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: F) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(
                _mm256_loadu_si256(p.cast()),
            )))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> F {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> F {
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(p.cast::<i16>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn pow2(n: F) -> F {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn select_lt(a: F, b: F, x: F, y: F) -> F {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: F) -> F {
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(a) }
    }
    #[inline(always)]
    unsafe fn sum(a: F) -> f32 {
        unsafe {
            let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    unsafe fn largest(a: F) -> f32 {
        unsafe {
            let a = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    unsafe fn to_f32(a: I) -> F {
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: F) -> i32 {
        unsafe {
            let ints = _mm512_cvtps_epi32(a);
            _mm_storeu_si128(p.cast(), _mm512_cvtsepi32_epi8(ints));
            _mm512_reduce_add_epi32(ints)
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn zero_i() -> I {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load_i8_i(p: *const i8) -> I {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_nibbles_i(p: *const u8) -> [I; 2] {
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            [
                _mm512_and_si512(bytes, _mm512_set1_epi32(15)),
                _mm512_srli_epi32::<4>(bytes),
            ]
        }
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_i(a: I, b: I) -> I {
        unsafe { _mm512_mullo_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> I {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn or_b(a: I, b: I) -> I {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn field_b(a: I, shift: i32, mask: u8) -> I {
        unsafe {
            _mm512_and_si512(
                shifted!(a, shift, _mm512_srli_epi16, _mm512_slli_epi16),
                _mm512_set1_epi8(mask as i8),
            )
        }
    }
    #[inline(always)]
    unsafe fn lookup_b(table: &[u8; 16], indices: I) -> I {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }

    #[inline(always)]
    unsafe fn dots<Q: Quants, const FROM: usize, const TO: usize, const R: usize>(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
        start: [I; R],
    ) -> [I; R] {
        unsafe {
            let mut sums = start;
            let mut others = [_mm512_setzero_si512(); R];
            if Q::SIGNED {
                // The byte is the weight plus 128: take 128 times the activations' sum away first.
                for r in 0..R {
                    others[r] = _mm512_set1_epi32((*a.add(r * stride)).minus_128_sum);
                }
            }
            each_group!(|J| {
                if within(J, FROM, TO) {
                    let weights = Q::quad::<Self, J>(w);
                    for r in 0..R {
                        let quad = quad(a.add(r * stride), 4 * J);
                        // Few rows wait on latency, so they keep two chains; many rows need the registers.
                        let chain = if (R <= 2 && J % 2 == 1) || (R > 2 && Q::SIGNED) {
                            &mut others[r]
                        } else {
                            &mut sums[r]
                        };
                        *chain = _mm512_dpbusd_epi32(*chain, weights, quad);
                    }
                }
            });
            if R <= 2 || Q::SIGNED {
                for r in 0..R {
                    sums[r] = _mm512_add_epi32(sums[r], others[r]);
                }
            }
            sums
        }
    }
}
