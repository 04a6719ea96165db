//! AVX-512 with VNNI: a vector is one register, four multiply-adds of bytes a lane and instruction.

#[allow(clippy::wildcard_imports)] // Two hundred intrinsics.
use std::arch::x86_64::*;

use super::Simd;
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

#[inline(always)]
unsafe fn load_bytes(p: *const u8) -> I {
    // SAFETY: the caller promises 64 readable bytes.
    unsafe { _mm512_loadu_si512(p.cast()) }
}

#[allow(clippy::undocumented_unsafe_blocks)] // The trait's contract is the one argument for every body here.
impl Simd for Avx512 {
    type F = F;
    type I = I;
    const WIDE: bool = true;

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
    unsafe fn dot_nibble<const R: usize>(w: *const u8, a: *const Q8Block, stride: usize) -> [I; R] {
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let mut low_sums = [_mm512_setzero_si512(); R];
            let mut high_sums = [_mm512_setzero_si512(); R];
            for j in 0..4 {
                let packed = load_bytes(w.add(64 * j));
                let low = _mm512_and_si512(packed, mask);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
                for r in 0..R {
                    let row = a.add(r * stride);
                    low_sums[r] = _mm512_dpbusd_epi32(low_sums[r], low, quad(row, 4 * j));
                    // Few rows wait on latency, so they keep two chains; many rows need the registers.
                    let high_chain = if R <= 2 {
                        &mut high_sums[r]
                    } else {
                        &mut low_sums[r]
                    };
                    *high_chain = _mm512_dpbusd_epi32(*high_chain, high, quad(row, 16 + 4 * j));
                }
            }
            if R <= 2 {
                for r in 0..R {
                    low_sums[r] = _mm512_add_epi32(low_sums[r], high_sums[r]);
                }
            }
            low_sums
        }
    }

    #[inline(always)]
    unsafe fn dot_byte<const R: usize>(w: *const u8, a: *const Q8Block, stride: usize) -> [I; R] {
        unsafe {
            // The stored byte is the weight plus 128: take 128 times the activations' sum away first.
            let mut sums = [_mm512_setzero_si512(); R];
            for r in 0..R {
                sums[r] = _mm512_set1_epi32((*a.add(r * stride)).minus_128_sum);
            }
            for j in 0..8 {
                let weights = load_bytes(w.add(64 * j));
                for r in 0..R {
                    sums[r] = _mm512_dpbusd_epi32(sums[r], weights, quad(a.add(r * stride), 4 * j));
                }
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn dot_six<const R: usize>(w: *const u8, a: *const Q8Block, stride: usize) -> [I; R] {
        unsafe {
            let (mask, two_bits) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
            let mut halves = [[_mm512_setzero_si512(); R]; 2];
            for (h, sums) in halves.iter_mut().enumerate() {
                for r in 0..R {
                    sums[r] = _mm512_set1_epi32(-32 * i32::from((*a.add(r * stride)).half_sums[h]));
                }
                let high = load_bytes(w.add(256 + 64 * h));
                let high = [
                    _mm512_slli_epi16::<4>(high),
                    _mm512_slli_epi16::<2>(high),
                    high,
                    _mm512_srli_epi16::<2>(high),
                ];
                for j in 0..4 {
                    let packed = load_bytes(w.add(64 * j));
                    let nibbles = if h == 0 {
                        packed
                    } else {
                        _mm512_srli_epi16::<4>(packed)
                    };
                    let weights = _mm512_or_si512(
                        _mm512_and_si512(nibbles, mask),
                        _mm512_and_si512(high[j], two_bits),
                    );
                    for r in 0..R {
                        sums[r] = _mm512_dpbusd_epi32(
                            sums[r],
                            weights,
                            quad(a.add(r * stride), 16 * h + 4 * j),
                        );
                    }
                }
            }
            let first = _mm512_cvtepi8_epi32(_mm_loadu_si128(w.add(384).cast()));
            let second = _mm512_cvtepi8_epi32(_mm_loadu_si128(w.add(400).cast()));
            let [mut sums, others] = halves;
            for r in 0..R {
                sums[r] = _mm512_add_epi32(
                    _mm512_mullo_epi32(sums[r], first),
                    _mm512_mullo_epi32(others[r], second),
                );
            }
            sums
        }
    }
}
