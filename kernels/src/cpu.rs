//! Which instruction set computes: asked of the processor and the operating system, or forced by name.

use crate::simd::{Portable, Simd};

/// An instruction-set level this process may run. Values exist only for levels the machine has, so holding one is the
/// proof that its instructions are safe to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
}

/// What `PAGODA_CPU` takes, on any machine.
const NAMES: [&str; 6] = [
    "portable",
    "avx2",
    "avxvnni",
    "avx512vnni",
    "neon",
    "neondot",
];

/// Why a forced instruction set cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CpuError {
    /// The name is none we know.
    #[error(
        "unknown instruction set {0:?}: use portable, avx2, avxvnni, avx512vnni, neon or neondot"
    )]
    Unknown(String),
    /// The processor or the operating system lacks it.
    #[error("instruction set {wanted} is not available on this machine, which has {available}")]
    Unavailable {
        /// The name asked for.
        wanted: String,
        /// The names that would work, joined by commas.
        available: String,
    },
}

impl Cpu {
    /// The fastest level of this machine.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self(Level::Portable))
    }

    /// The level that is always there.
    pub fn portable() -> Self {
        Self(Level::Portable)
    }

    /// Every level of this machine, slowest first.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut levels = vec![Self(Level::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            // The standard macro asks CPUID and XGETBV: it answers no when the operating system does not save the registers.
            if has_avx2() {
                levels.push(Self(Level::Avx2));
                if is_x86_feature_detected!("avxvnni") {
                    levels.push(Self(Level::AvxVnni));
                }
                if has_avx512_vnni() {
                    levels.push(Self(Level::Avx512Vnni));
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            levels.push(Self(Level::Neon));
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                levels.push(Self(Level::NeonDot));
            }
        }
        levels
    }

    /// The level named by the environment variable `PAGODA_CPU`, or the fastest when it is unset or empty.
    pub fn from_env() -> Result<Self, CpuError> {
        match std::env::var("PAGODA_CPU") {
            Ok(name) => Self::from_name(Some(&name)),
            Err(_) => Ok(Self::detect()),
        }
    }

    /// The level called `name` (`portable`, `avx2`, `avxvnni`, `avx512vnni`, `neon`, `neondot`); the fastest for `None` or an
    /// empty name.
    pub fn from_name(name: Option<&str>) -> Result<Self, CpuError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(Self::detect());
        };
        if !NAMES.contains(&name) {
            return Err(CpuError::Unknown(name.to_owned()));
        }
        let available = Self::available();
        available
            .iter()
            .copied()
            .find(|cpu| cpu.name() == name)
            .ok_or_else(|| CpuError::Unavailable {
                wanted: name.to_owned(),
                available: available
                    .iter()
                    .map(|cpu| cpu.name())
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }

    /// The level's name, as `PAGODA_CPU` takes it.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => "neondot",
        }
    }

    /// Runs `kernel`, which asks for no dots of bytes: levels that differ in those alone share what is compiled. (One that
    /// does ask gets those of the slower level.)
    #[inline]
    pub(crate) fn execute<K: Kernel>(self, kernel: K) {
        match self.0 {
            Level::Portable => kernel.run::<Portable>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Cpu` of this level is only made by `available`, after the features were detected.
            Level::Avx2 | Level::AvxVnni => unsafe { x86::avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512Vnni => unsafe { x86::avx512_vnni(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::Neon | Level::NeonDot => unsafe { arm64::neon(kernel) },
        }
    }

    /// Runs `kernel` compiled for this level, dots of bytes included.
    #[inline]
    pub(crate) fn execute_dots<K: Kernel>(self, kernel: K) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `execute`.
            Level::AvxVnni => unsafe { x86::avx_vnni(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as in `execute`.
            Level::NeonDot => unsafe { arm64::neon_dot(kernel) },
            _ => self.execute(kernel),
        }
    }
}

/// A piece of work written once for every instruction set. Implementations mark `run` `#[inline(always)]`, and so every
/// function they call that takes a [`Simd`] parameter: only then is the body compiled with the level's features. Closures
/// (`map`, `from_fn`) around vector operations are out for the same reason: nothing forces them inline.
pub(crate) trait Kernel {
    fn run<S: Simd>(self);
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512_vnni() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Kernel;
    use crate::simd::{Avx2, Avx512, Pairs, Vex, Vnni};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<K: Kernel>(kernel: K) {
        kernel.run::<Avx2<Pairs>>();
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avx_vnni<K: Kernel>(kernel: K) {
        kernel.run::<Avx2<Vnni<Vex>>>();
    }

    /// As `avx_vnni` but for the instruction's encoding.
    #[cfg(test)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
    pub fn avx_vnni_by_evex<K: Kernel>(kernel: K) {
        kernel.run::<Avx2<Vnni<crate::simd::Evex>>>();
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub fn avx512_vnni<K: Kernel>(kernel: K) {
        kernel.run::<Avx512>();
    }
}

/// Runs `kernel` as level `avxvnni` would but for the encoding of its one instruction, where AVX-512 has that other one;
/// otherwise leaves `kernel` alone and says so by `false`.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) fn execute_avx_vnni_by_evex<K: Kernel>(kernel: K) -> bool {
    let there = has_avx2() && has_avx512_vnni();
    if there {
        // SAFETY: the features were just detected.
        unsafe { x86::avx_vnni_by_evex(kernel) }
    }
    there
}

#[cfg(target_arch = "aarch64")]
mod arm64 {
    use super::Kernel;
    use crate::simd::{DotProduct, Neon, Widening};

    #[target_feature(enable = "neon")]
    pub fn neon<K: Kernel>(kernel: K) {
        kernel.run::<Neon<Widening>>();
    }

    #[target_feature(enable = "neon,dotprod")]
    pub fn neon_dot<K: Kernel>(kernel: K) {
        kernel.run::<Neon<DotProduct>>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_level_can_be_forced_by_its_name() {
        for cpu in Cpu::available() {
            assert_eq!(Cpu::from_name(Some(cpu.name())), Ok(cpu));
        }
        assert_eq!(Cpu::from_name(None), Ok(Cpu::detect()));
        assert_eq!(Cpu::from_name(Some("")), Ok(Cpu::detect()));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = Cpu::from_name(Some("mmx")).unwrap_err();
        assert!(
            NAMES.iter().all(|name| error.to_string().contains(name)),
            "{error}"
        );
    }

    #[test]
    fn a_name_of_another_machine_is_refused_with_what_this_one_has() {
        let available = Cpu::available();
        for name in NAMES {
            match Cpu::from_name(Some(name)) {
                Ok(cpu) => assert!(cpu.name() == name && available.contains(&cpu)),
                Err(error) => {
                    assert!(available.iter().all(|cpu| cpu.name() != name));
                    assert!(error.to_string().contains("has portable"), "{error}");
                }
            }
        }
    }
}
