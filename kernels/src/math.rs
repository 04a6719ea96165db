//! Exponential, gates and soft caps, sixteen lanes at a time.

use crate::cpu::{Cpu, Kernel};
use crate::simd::{LANES, Simd};

/// Below this, `exp` is 0: the result would be denormal.
const EXP_ZERO_BELOW: f32 = -87.0;
/// Above this, `exp` would overflow; the argument is clamped.
const EXP_CLAMP_ABOVE: f32 = 88.0;

/// `e^x` within 2 units in the last place for -87 to 88; 0 below, clamped above.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller has the instruction set.
    unsafe {
        let bounded = S::min(
            S::max(x, S::splat(EXP_ZERO_BELOW)),
            S::splat(EXP_CLAMP_ABOVE),
        );
        let n = S::round(S::mul(bounded, S::splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, so that n times the first is exact.
        let r = S::fma(n, S::splat(-0.693_359_4), bounded);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        // Minimax polynomial of (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2 (Cephes expf).
        let mut p = S::splat(1.987_569_1e-4);
        for c in [
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ] {
            p = S::fma(p, r, S::splat(c));
        }
        let e = S::add(S::fma(p, S::mul(r, r), r), S::splat(1.0));
        let e = S::mul(e, S::pow2(n));
        S::select_lt(x, S::splat(EXP_ZERO_BELOW), S::splat(0.0), e)
    }
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller has the instruction set.
    unsafe { S::div(x, S::add(S::splat(1.0), exp::<S>(S::sub(S::splat(0.0), x)))) }
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, for which `x / (1 + e^(-2 u))` is another way of writing.
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<S: Simd>(x: S::F) -> S::F {
    const MINUS_TWO_ROOT: f32 = -1.595_769;
    // SAFETY: arithmetic only; the caller has the instruction set.
    unsafe {
        let cubic = S::fma(S::mul(x, x), S::splat(0.044_715), S::splat(1.0));
        let exponent = S::mul(S::mul(x, S::splat(MINUS_TWO_ROOT)), cubic);
        S::div(x, S::add(S::splat(1.0), exp::<S>(exponent)))
    }
}

/// `cap * tanh(x / cap)`, within `3e-7 * cap`.
#[inline(always)]
pub(crate) unsafe fn softcap<S: Simd>(x: S::F, cap: f32) -> S::F {
    // SAFETY: arithmetic only; the caller has the instruction set.
    unsafe {
        // tanh(y) = (1 - e^-2|y|) / (1 + e^-2|y|) with the sign of y: no overflow.
        let e = exp::<S>(S::mul(S::abs(x), S::splat(-2.0 / cap)));
        let one = S::splat(1.0);
        let size = S::mul(S::splat(cap), S::div(S::sub(one, e), S::add(one, e)));
        S::select_lt(x, S::splat(0.0), S::sub(S::splat(0.0), size), size)
    }
}

/// What a gated feed-forward layer does to its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`: Llama, Mistral, Qwen, Phi-3.
    Silu,
    /// The Gaussian error linear unit by its hyperbolic tangent: Gemma.
    GeluTanh,
}

impl Activation {
    #[inline(always)]
    pub(crate) unsafe fn apply<S: Simd>(self, x: S::F) -> S::F {
        // SAFETY: arithmetic only; the caller has the instruction set.
        unsafe {
            match self {
                Self::Silu => silu::<S>(x),
                Self::GeluTanh => gelu_tanh::<S>(x),
            }
        }
    }
}

/// The first `count` (1..=16) lanes from `p`, zeros after.
#[inline(always)]
pub(crate) unsafe fn load_partial<S: Simd>(p: *const f32, count: usize) -> S::F {
    // SAFETY: the caller promises `count` readable values.
    unsafe {
        if count >= LANES {
            return S::load(p);
        }
        let mut lanes = [0.0; LANES];
        std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), count);
        S::load(lanes.as_ptr())
    }
}

/// Stores the first `count` lanes.
#[inline(always)]
pub(crate) unsafe fn store_partial<S: Simd>(p: *mut f32, x: S::F, count: usize) {
    // SAFETY: the caller promises `count` writable values.
    unsafe {
        if count >= LANES {
            return S::store(p, x);
        }
        let mut lanes = [0.0; LANES];
        S::store(lanes.as_mut_ptr(), x);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, count);
    }
}

#[derive(Clone, Copy)]
enum Function {
    Exp,
    Gate(Activation),
    Softcap(f32),
}

struct Map<'a>(Function, &'a mut [f32]);

impl Kernel for Map<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for chunk in self.1.chunks_mut(LANES) {
            // SAFETY: loads and stores stay within the chunk's length.
            unsafe {
                let x = load_partial::<S>(chunk.as_ptr(), chunk.len());
                let y = match self.0 {
                    Function::Exp => exp::<S>(x),
                    Function::Gate(activation) => activation.apply::<S>(x),
                    Function::Softcap(cap) => softcap::<S>(x, cap),
                };
                store_partial::<S>(chunk.as_mut_ptr(), y, chunk.len());
            }
        }
    }
}

/// Replaces every `x` by `e^x` (0 below -87, `e^88` above 88).
pub fn exp_rows(cpu: Cpu, x: &mut [f32]) {
    cpu.execute(Map(Function::Exp, x));
}

/// Applies `activation` to every `x`.
pub fn activate_rows(cpu: Cpu, activation: Activation, x: &mut [f32]) {
    cpu.execute(Map(Function::Gate(activation), x));
}

/// Replaces every `x` by `cap * tanh(x / cap)`; `cap` is above 0.
pub fn softcap_rows(cpu: Cpu, cap: f32, x: &mut [f32]) {
    cpu.execute(Map(Function::Softcap(cap), x));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(low: f32, high: f32) -> Vec<f32> {
        (0..100_003)
            .map(|i| low + (high - low) * i as f32 / 100_002.0)
            .collect()
    }

    #[test]
    fn exp_is_within_two_ulp_and_paths_agree_bit_for_bit() {
        let x = grid(-86.9, 87.9);
        let mut portable = x.clone();
        exp_rows(Cpu::portable(), &mut portable);
        for (&x, &y) in x.iter().zip(&portable) {
            let truth = f64::from(x).exp();
            assert!(
                (f64::from(y) - truth).abs() <= 2.4e-7 * truth,
                "exp({x}) = {y}, not {truth}"
            );
        }
        for cpu in Cpu::available() {
            let mut y = x.clone();
            exp_rows(cpu, &mut y);
            assert!(
                y.iter()
                    .zip(&portable)
                    .all(|(a, b)| a.to_bits() == b.to_bits()),
                "{}",
                cpu.name()
            );
        }
    }

    #[test]
    fn exp_is_exact_at_zero_and_zero_far_below() {
        for cpu in Cpu::available() {
            let mut x = [0.0, -87.5, -1e30, f32::NEG_INFINITY];
            exp_rows(cpu, &mut x);
            assert_eq!(x, [1.0, 0.0, 0.0, 0.0]);
        }
    }

    #[test]
    fn silu_matches_double_precision() {
        for cpu in Cpu::available() {
            let x = grid(-100.0, 100.0);
            let mut y = x.clone();
            activate_rows(cpu, Activation::Silu, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                let truth = f64::from(x) / (1.0 + (-f64::from(x)).exp());
                assert!(
                    (f64::from(y) - truth).abs() <= 4e-7 * truth.abs() + 1e-30,
                    "silu({x}) = {y}, not {truth}"
                );
            }
        }
    }

    #[test]
    fn gelu_matches_double_precision_and_paths_agree_bit_for_bit() {
        let x = grid(-20.0, 20.0);
        let mut portable = x.clone();
        activate_rows(Cpu::portable(), Activation::GeluTanh, &mut portable);
        for (&x, &y) in x.iter().zip(&portable) {
            let x = f64::from(x);
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            let truth = 0.5 * x * (1.0 + u.tanh());
            assert!(
                (f64::from(y) - truth).abs() <= 5e-7 * x.abs(),
                "gelu({x}) = {y}, not {truth}"
            );
        }
        for cpu in Cpu::available() {
            let mut y = x.clone();
            activate_rows(cpu, Activation::GeluTanh, &mut y);
            assert_eq!(y, portable, "{}", cpu.name());
        }
        let mut far = [-1e30, 1e30, 0.0];
        activate_rows(Cpu::detect(), Activation::GeluTanh, &mut far);
        assert_eq!(far[1..], [1e30, 0.0]);
        assert!(far[0].abs() <= 1e-7, "{}", far[0]);
    }

    #[test]
    fn softcap_matches_double_precision_and_never_passes_the_cap() {
        for cap in [1.0f32, 30.0, 50.0] {
            let x = grid(-1e3, 1e3);
            let mut portable = x.clone();
            softcap_rows(Cpu::portable(), cap, &mut portable);
            for (&x, &y) in x.iter().zip(&portable) {
                let truth = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                assert!(
                    (f64::from(y) - truth).abs() <= 3e-7 * f64::from(cap),
                    "{x} {y} {truth}"
                );
                assert!(y.abs() <= cap);
            }
            for cpu in Cpu::available() {
                let mut y = x.clone();
                softcap_rows(cpu, cap, &mut y);
                assert_eq!(y, portable, "{}", cpu.name());
            }
        }
    }
}
