//! NEON of 64-bit ARM: a vector is four registers of four lanes.

#[allow(clippy::wildcard_imports)] // A hundred intrinsics.
use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::{Quants, Simd, within};
use crate::activation::Q8Block;

/// NEON, and `D` for dots of bytes.
#[derive(Clone, Copy)]
pub struct Neon<D>(PhantomData<D>);

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];
type B = [uint8x16_t; 4];

/// How bytes of four columns meet four activations.
pub trait ByteDots: Copy {
    /// `sums` plus, for each of four columns, its four bytes of `weights` times bytes `4 * QUAD` to `4 * QUAD + 3` of
    /// `activations`, which are above -128.
    ///
    /// # Safety
    /// The processor has the implementation's instructions.
    unsafe fn add<const QUAD: i32>(
        sums: int32x4_t,
        weights: int8x16_t,
        activations: int8x16_t,
    ) -> int32x4_t;
}

/// What every processor has: products of 16 bits, added in pairs.
#[derive(Clone, Copy)]
pub struct Widening;

/// `sdot`.
#[derive(Clone, Copy)]
pub struct DotProduct;

impl ByteDots for Widening {
    #[inline(always)]
    unsafe fn add<const QUAD: i32>(
        sums: int32x4_t,
        weights: int8x16_t,
        activations: int8x16_t,
    ) -> int32x4_t {
        // SAFETY: NEON only, which the caller has.
        unsafe {
            let quad =
                vreinterpretq_s8_s32(vdupq_laneq_s32::<QUAD>(vreinterpretq_s32_s8(activations)));
            let first = vmull_s8(vget_low_s8(weights), vget_low_s8(quad));
            let second = vmull_high_s8(weights, quad);
            // A pair sums to at most 2 * 128 * 127, which 16 bits hold.
            vpadalq_s16(sums, vpaddq_s16(first, second))
        }
    }
}

impl ByteDots for DotProduct {
    #[inline(always)]
    unsafe fn add<const QUAD: i32>(
        mut sums: int32x4_t,
        weights: int8x16_t,
        activations: int8x16_t,
    ) -> int32x4_t {
        // SAFETY: the caller has the dot-product extension; the instruction reads and writes the registers named, nothing else.
        // (Its intrinsic is not stable in the Rust that the project pins.)
        unsafe {
            asm!(
                "sdot {sums:v}.4s, {weights:v}.16b, {activations:v}.4b[{quad}]",
                sums = inout(vreg) sums,
                weights = in(vreg) weights,
                activations = in(vreg) activations,
                quad = const QUAD,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

/// The expression for all registers. Not a function of a closure: nothing forces closures inline.
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
            {
                let $i = 2;
                $x
            },
            {
                let $i = 3;
                $x
            },
        ]
    };
}

#[inline(always)]
unsafe fn widen_u8(bytes: uint8x16_t) -> [uint32x4_t; 4] {
    // SAFETY: NEON only, which the caller has.
    unsafe {
        let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
        [
            vmovl_u16(vget_low_u16(low)),
            vmovl_high_u16(low),
            vmovl_u16(vget_low_u16(high)),
            vmovl_high_u16(high),
        ]
    }
}

#[inline(always)]
unsafe fn widen_i8(bytes: int8x16_t) -> I {
    // SAFETY: NEON only, which the caller has.
    unsafe {
        let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
        [
            vmovl_s16(vget_low_s16(low)),
            vmovl_high_s16(low),
            vmovl_s16(vget_low_s16(high)),
            vmovl_high_s16(high),
        ]
    }
}

/// The larger, the second of equals and where one is NaN: `vmaxq_f32` would rank zeros by sign and keep NaN.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: NEON only, which the caller has.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

#[allow(clippy::undocumented_unsafe_blocks)] // The trait's contract is the one argument for every body here.
impl<D: ByteDots> Simd for Neon<D> {
    type F = F;
    type I = I;
    type B = B;
    const WIDE: bool = false;
    const ROWS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { each!(|i| vld1q_f32(p.add(4 * i))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        unsafe {
            for (i, &quarter) in x.iter().enumerate() {
                vst1q_f32(p.add(4 * i), quarter);
            }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        unsafe { each!(|i| vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.add(4 * i))))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: F) {
        unsafe {
            for (i, &quarter) in x.iter().enumerate() {
                vst1_u16(p.add(4 * i), vreinterpret_u16_f16(vcvt_f16_f32(quarter)));
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        unsafe {
            each!(|i| {
                let wide = vmovl_u16(vld1_u16(p.add(4 * i)));
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        unsafe {
            let wide = widen_u8(vld1q_u8(p));
            each!(|i| vcvtq_f32_u32(wide[i]))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> F {
        unsafe {
            let wide = widen_i8(vld1q_s8(p));
            each!(|i| vcvtq_f32_s32(wide[i]))
        }
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> F {
        unsafe {
            let bits = vdup_n_u16(p.read_unaligned());
            [vcvt_f32_f16(vreinterpret_f16_u16(bits)); 4]
        }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        unsafe { each!(|i| vaddq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        unsafe { each!(|i| vsubq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        unsafe { each!(|i| vmulq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        unsafe { each!(|i| vdivq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        unsafe { each!(|i| vfmaq_f32(c[i], a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        unsafe { each!(|i| larger(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        unsafe { each!(|i| vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        unsafe { each!(|i| vabsq_f32(a[i])) }
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        unsafe { each!(|i| vrndnq_f32(a[i])) }
    }
    #[inline(always)]
    unsafe fn pow2(n: F) -> F {
        unsafe {
            each!(|i| {
                let biased = vaddq_s32(vcvtq_s32_f32(n[i]), vdupq_n_s32(127));
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
            })
        }
    }
    #[inline(always)]
    unsafe fn select_lt(a: F, b: F, x: F, y: F) -> F {
        unsafe { each!(|i| vbslq_f32(vcltq_f32(a[i], b[i]), x[i], y[i])) }
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: F) -> F {
        unsafe { each!(|i| vrev64q_f32(a[i])) }
    }
    #[inline(always)]
    unsafe fn sum(a: F) -> f32 {
        unsafe {
            let a = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            let a = vadd_f32(vget_low_f32(a), vget_high_f32(a));
            vget_lane_f32::<0>(a) + vget_lane_f32::<1>(a)
        }
    }
    #[inline(always)]
    unsafe fn largest(a: F) -> f32 {
        unsafe {
            let a = larger(larger(a[0], a[2]), larger(a[1], a[3]));
            let a = larger(a, vextq_f32::<2>(a, a));
            let (first, second) = (vgetq_lane_f32::<0>(a), vgetq_lane_f32::<1>(a));
            if first > second { first } else { second }
        }
    }
    #[inline(always)]
    unsafe fn to_f32(a: I) -> F {
        unsafe { each!(|i| vcvtq_f32_s32(a[i])) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: F) -> i32 {
        unsafe {
            let ints = each!(|i| vcvtnq_s32_f32(a[i]));
            let first = vqmovn_high_s32(vqmovn_s32(ints[0]), ints[1]);
            let second = vqmovn_high_s32(vqmovn_s32(ints[2]), ints[3]);
            vst1q_s8(p, vqmovn_high_s16(vqmovn_s16(first), second));
            vaddvq_s32(vaddq_s32(
                vaddq_s32(ints[0], ints[1]),
                vaddq_s32(ints[2], ints[3]),
            ))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe {
            // A hint, which faults on no address. (Its intrinsic is not stable.)
            asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn zero_i() -> I {
        unsafe { [vdupq_n_s32(0); 4] }
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        unsafe { [vdupq_n_s32(x); 4] }
    }
    #[inline(always)]
    unsafe fn load_i8_i(p: *const i8) -> I {
        unsafe { widen_i8(vld1q_s8(p)) }
    }
    #[inline(always)]
    unsafe fn load_nibbles_i(p: *const u8) -> [I; 2] {
        unsafe {
            let bytes = vld1q_u8(p);
            let low = widen_u8(vandq_u8(bytes, vdupq_n_u8(15)));
            let high = widen_u8(vshrq_n_u8::<4>(bytes));
            [
                each!(|i| vreinterpretq_s32_u32(low[i])),
                each!(|i| vreinterpretq_s32_u32(high[i])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        unsafe { each!(|i| vaddq_s32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul_i(a: I, b: I) -> I {
        unsafe { each!(|i| vmulq_s32(a[i], b[i])) }
    }

    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> B {
        unsafe { each!(|i| vld1q_u8(p.add(16 * i))) }
    }
    #[inline(always)]
    unsafe fn or_b(a: B, b: B) -> B {
        unsafe { each!(|i| vorrq_u8(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn field_b(a: B, shift: i32, mask: u8) -> B {
        unsafe {
            let mask = vdupq_n_u8(mask);
            each!(|i| vandq_u8(shifted!(a[i], shift, vshrq_n_u8, vshlq_n_u8), mask))
        }
    }
    #[inline(always)]
    unsafe fn lookup_b(table: &[u8; 16], indices: B) -> B {
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            each!(|i| vqtbl1q_u8(table, indices[i]))
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
            // Bytes are taken as signed: those with their top bit flipped get it back, others never have it.
            const { assert!(Q::SIGNED || Q::LARGEST < 128) }
            let flip = vdupq_n_u8(if Q::SIGNED { 0x80 } else { 0 });
            let mut sums = start;
            each_group!(|J| {
                if within(J, FROM, TO) {
                    let bytes = Q::quad::<Self, J>(w);
                    let weights = each!(|i| vreinterpretq_s8_u8(veorq_u8(bytes[i], flip)));
                    for r in 0..R {
                        let q = (&raw const (*a.add(r * stride)).q).cast::<i8>();
                        let activations = vld1q_s8(q.add(J / 4 * 16));
                        sums[r] = each!(|i| D::add::<{ J as i32 % 4 }>(
                            sums[r][i],
                            weights[i],
                            activations
                        ));
                    }
                }
            });
            sums
        }
    }
}
