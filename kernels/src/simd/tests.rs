//! Conversions, all values of them, on every path.

use half::{bf16, f16};

use super::{LANES, Simd};
use crate::cpu::{Cpu, Kernel};

/// What to do with every vector of the input.
#[derive(Clone, Copy)]
enum Step {
    LoadHalf,
    LoadBrain,
    LoadByte,
    StoreHalf,
}

struct Convert<'a> {
    step: Step,
    bits: &'a [u16],
    floats: &'a mut [f32],
    halves: &'a mut [u16],
}

impl Kernel for Convert<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for at in (0..self.floats.len()).step_by(LANES) {
            // SAFETY: all three slices are as long, a whole number of vectors.
            unsafe {
                let (bits, floats) = (self.bits.as_ptr().add(at), self.floats.as_mut_ptr().add(at));
                match self.step {
                    Step::LoadHalf => {
                        S::store(floats, S::load_f16(bits));
                        for lane in 0..LANES {
                            let mut splat = [0.0; LANES];
                            S::store(splat.as_mut_ptr(), S::splat_f16(bits.add(lane)));
                            let first = *floats.add(lane);
                            assert!(splat.iter().all(|x| x.to_bits() == first.to_bits()));
                        }
                    }
                    Step::LoadBrain => S::store(floats, S::load_bf16(bits)),
                    Step::LoadByte => {
                        let bytes: [i8; LANES] = std::array::from_fn(|i| *bits.add(i) as i8);
                        S::store(floats, S::load_i8(bytes.as_ptr()));
                    }
                    Step::StoreHalf => {
                        S::store_f16(self.halves.as_mut_ptr().add(at), S::load(floats));
                    }
                }
            }
        }
    }
}

fn all_bits() -> Vec<u16> {
    (0..=u16::MAX).collect()
}

fn loaded(cpu: Cpu, step: Step) -> Vec<f32> {
    let (bits, mut floats) = (all_bits(), vec![0.0; 1 << 16]);
    cpu.execute(Convert {
        step,
        bits: &bits,
        floats: &mut floats,
        halves: &mut [],
    });
    floats
}

fn stored(cpu: Cpu, mut floats: Vec<f32>) -> Vec<u16> {
    let mut halves = vec![0; floats.len()];
    cpu.execute(Convert {
        step: Step::StoreHalf,
        bits: &[],
        floats: &mut floats,
        halves: &mut halves,
    });
    halves
}

/// Sixteen bits of sign, exponent and fraction by the definition of the formats, in double precision.
fn meaning(bits: u16, fraction_bits: i32, bias: i32) -> f64 {
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) * 2f64.powi(-fraction_bits);
    let largest = (1 << (15 - fraction_bits)) - 1;
    let exponent = i32::from(bits >> fraction_bits) & largest;
    let size = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        e if e == largest && fraction > 0.0 => f64::NAN,
        e if e == largest => f64::INFINITY,
        e => (1.0 + fraction) * 2f64.powi(e - bias),
    };
    if bits >> 15 == 1 { -size } else { size }
}

fn same(a: f32, b: f64) -> bool {
    (a.is_nan() && b.is_nan())
        || (f64::from(a) == b && a.is_sign_negative() == b.is_sign_negative())
}

#[test]
fn every_half_brain_float_and_byte_is_read_exactly_on_every_path() {
    for cpu in Cpu::available() {
        let (halves, brains) = (loaded(cpu, Step::LoadHalf), loaded(cpu, Step::LoadBrain));
        let bytes = loaded(cpu, Step::LoadByte);
        for bits in all_bits() {
            let i = usize::from(bits);
            assert!(
                same(halves[i], meaning(bits, 10, 15)),
                "{} {bits:#06x} {}",
                cpu.name(),
                halves[i]
            );
            assert!(
                same(brains[i], meaning(bits, 7, 127)),
                "{} {bits:#06x} {}",
                cpu.name(),
                brains[i]
            );
            assert_eq!(bytes[i], f32::from(bits as u8 as i8));
            // The library that reads files agrees.
            assert!(same(f16::from_bits(bits).to_f32(), meaning(bits, 10, 15)));
            assert!(same(bf16::from_bits(bits).to_f32(), meaning(bits, 7, 127)));
        }
    }
}

#[test]
fn every_half_comes_back_and_what_lies_between_two_goes_to_the_nearer_or_the_even_one() {
    // Positive finite halves; the next above the largest would be 65536, beyond which all is infinite.
    let halves: Vec<u16> = (0..0x7c00).collect();
    let value = |bits: u16| {
        if bits == 0x7c00 {
            65536.0
        } else {
            meaning(bits, 10, 15)
        }
    };
    let mut cases: Vec<(f32, u16)> = Vec::new();
    for &bits in &halves {
        let (low, high) = (value(bits), value(bits + 1));
        let middle = f64::midpoint(low, high) as f32;
        let even = bits + (bits & 1);
        cases.push((low as f32, bits));
        cases.push((middle, even));
        cases.push((middle.next_down(), bits));
        cases.push((middle.next_up(), bits + 1));
    }
    cases.extend([
        (1e9, 0x7c00),
        (f32::INFINITY, 0x7c00),
        (1e-30, 0),
        (f32::from_bits(1), 0),
    ]);
    cases.extend(
        cases
            .clone()
            .into_iter()
            .map(|(x, bits)| (-x, bits | 0x8000)),
    );
    cases.resize(cases.len().next_multiple_of(LANES), (0.0, 0));
    for cpu in Cpu::available() {
        let got = stored(cpu, cases.iter().map(|&(x, _)| x).collect());
        for (&(x, expected), got) in cases.iter().zip(got) {
            assert_eq!(got, expected, "{} {x:e}", cpu.name());
        }
    }
}
