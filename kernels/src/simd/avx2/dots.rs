//! Dots of bytes on 256-bit registers: AVX2 adds pairs of products into 16 bits, AVX-VNNI all four into 32.

#[allow(clippy::wildcard_imports)] // As there.
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::I;
use crate::activation::Q8Block;
use crate::simd::{Quants, Simd, within};

/// How 16 columns of bytes meet rows of activations.
pub trait ByteDots: Copy {
    /// As [`Simd::dots`], for vectors of two registers.
    ///
    /// # Safety
    /// As there.
    unsafe fn dots<
        S: Simd<I = I, B = I>,
        Q: Quants,
        const FROM: usize,
        const TO: usize,
        const R: usize,
    >(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
        start: [I; R],
    ) -> [I; R];
}

/// What AVX2 alone has: `vpmaddubsw`.
#[derive(Clone, Copy)]
pub struct Pairs;

/// `vpdpbusd`, in the encoding that `E` names.
#[derive(Clone, Copy)]
pub struct Vnni<E>(PhantomData<E>);

/// One instruction in two encodings, each a feature of its own.
pub trait Dpbusd: Copy {
    /// `sums` plus, lane by lane, four products of unsigned bytes `weights` with signed bytes `activations`, exact.
    ///
    /// # Safety
    /// The processor has the encoding.
    unsafe fn dpbusd(sums: __m256i, weights: __m256i, activations: __m256i) -> __m256i;
}

/// That of AVX-VNNI.
#[derive(Clone, Copy)]
pub struct Vex;

/// That of AVX-512 with VNNI, for tests on machines that have no AVX-VNNI.
#[cfg(test)]
#[derive(Clone, Copy)]
pub struct Evex;

impl Dpbusd for Vex {
    #[inline(always)]
    unsafe fn dpbusd(sums: __m256i, weights: __m256i, activations: __m256i) -> __m256i {
        // SAFETY: the caller has AVX-VNNI.
        unsafe { _mm256_dpbusd_avx_epi32(sums, weights, activations) }
    }
}

#[cfg(test)]
impl Dpbusd for Evex {
    #[inline(always)]
    unsafe fn dpbusd(sums: __m256i, weights: __m256i, activations: __m256i) -> __m256i {
        // SAFETY: the caller has AVX-512 with VNNI and vectors of 256 bits.
        unsafe { _mm256_dpbusd_epi32(sums, weights, activations) }
    }
}

/// Four consecutive activations, in every lane.
#[inline(always)]
unsafe fn quad(a: *const Q8Block, depth: usize) -> __m256i {
    // SAFETY: the caller passes a readable block and a depth of at most 28.
    unsafe {
        _mm256_set1_epi32(
            (&raw const (*a).q)
                .cast::<i8>()
                .add(depth)
                .cast::<i32>()
                .read_unaligned(),
        )
    }
}

/// Pairs of 16-bit sums added into 32 bits.
#[inline(always)]
unsafe fn widen(sums: __m256i) -> __m256i {
    // SAFETY: needs AVX2 only, which the caller has.
    unsafe { _mm256_madd_epi16(sums, _mm256_set1_epi16(1)) }
}

#[allow(clippy::undocumented_unsafe_blocks)] // The trait's contract is the argument.
impl ByteDots for Pairs {
    #[inline(always)]
    unsafe fn dots<
        S: Simd<I = I, B = I>,
        Q: Quants,
        const FROM: usize,
        const TO: usize,
        const R: usize,
    >(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
        start: [I; R],
    ) -> [I; R] {
        unsafe {
            let mut sums = start;
            let mut words = [S::zero_i(); R];
            each_group!(|J| {
                if within(J, FROM, TO) {
                    let weights = Q::quad::<S, J>(w);
                    let last = (J + 1 - FROM).is_multiple_of(steps(Q::LARGEST)) || J + 1 == TO;
                    for r in 0..R {
                        let quad = quad(a.add(r * stride), 4 * J);
                        if Q::SIGNED {
                            // |w| times a with w's sign: a pair sums to at most 2 * 128 * 127, which 16 bits hold.
                            let flip = _mm256_set1_epi8(-128);
                            let signed = each!(|i| _mm256_xor_si256(weights[i], flip));
                            sums[r] = each!(|i| {
                                let size = _mm256_abs_epi8(signed[i]);
                                let turned = _mm256_sign_epi8(quad, signed[i]);
                                _mm256_add_epi32(
                                    sums[r][i],
                                    widen(_mm256_maddubs_epi16(size, turned)),
                                )
                            });
                            continue;
                        }
                        words[r] = each!(|i| _mm256_add_epi16(
                            words[r][i],
                            _mm256_maddubs_epi16(weights[i], quad)
                        ));
                        if last {
                            sums[r] = each!(|i| _mm256_add_epi32(sums[r][i], widen(words[r][i])));
                            words[r] = S::zero_i();
                        }
                    }
                }
            });
            sums
        }
    }
}

/// Depth groups whose sums of pairs of products stay within 16 bits.
const fn steps(largest: i32) -> usize {
    (32_767 / (2 * 127 * largest)) as usize
}

#[allow(clippy::undocumented_unsafe_blocks)] // As above.
impl<E: Dpbusd> ByteDots for Vnni<E> {
    #[inline(always)]
    unsafe fn dots<
        S: Simd<I = I, B = I>,
        Q: Quants,
        const FROM: usize,
        const TO: usize,
        const R: usize,
    >(
        w: *const u8,
        a: *const Q8Block,
        stride: usize,
        start: [I; R],
    ) -> [I; R] {
        unsafe {
            let mut sums = start;
            // Few rows wait on latency, so they keep two chains; many rows need the registers.
            let mut odd = [S::zero_i(); R];
            if Q::SIGNED {
                // The byte is the weight plus 128: take 128 times the activations' sum away first.
                for r in 0..R {
                    let excess = S::splat_i((*a.add(r * stride)).minus_128_sum);
                    sums[r] = S::add_i(sums[r], excess);
                }
            }
            each_group!(|J| {
                if within(J, FROM, TO) {
                    let weights = Q::quad::<S, J>(w);
                    for r in 0..R {
                        let quad = quad(a.add(r * stride), 4 * J);
                        let chain = if R <= 2 && J % 2 == 1 {
                            &mut odd[r]
                        } else {
                            &mut sums[r]
                        };
                        *chain = each!(|i| E::dpbusd(chain[i], weights[i], quad));
                    }
                }
            });
            if R <= 2 {
                for r in 0..R {
                    sums[r] = S::add_i(sums[r], odd[r]);
                }
            }
            sums
        }
    }
}
