//! llama.cpp through the low-level API of llama-cpp-python, built for this machine.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use pagoda_e2e::cache::Cache;
use pagoda_e2e::images::hex;
use pagoda_e2e::process::{run, run_for_output};
use pagoda_e2e::progress::Progress;
use sha2::{Digest, Sha256};

use super::{SpeedWork, pip_install, python_environment};

/// Instruction sets that llama.cpp's build knows by name: the kernel's flag for each, and the build's.
const X86_SETS: [(&str, &str); 8] = [
    ("avx", "AVX"),
    ("avx2", "AVX2"),
    ("fma", "FMA"),
    ("f16c", "F16C"),
    ("bmi2", "BMI2"),
    ("avx512f", "AVX512"),
    ("avx512_vnni", "AVX512_VNNI"),
    ("avx512_bf16", "AVX512_BF16"),
];

/// A Python environment with llama-cpp-python in it that runs on this processor.
#[derive(Debug)]
pub struct LlamaCpp {
    python: PathBuf,
    /// `native`, or the instruction sets the library was built for where the native build does not run.
    pub build: String,
}

impl LlamaCpp {
    /// Installs what `requirements` pins unless that is there, and checks that it loads `model` and computes.
    ///
    /// A native build is tried first. On some virtual machines it uses instructions that the processor announces and the
    /// system withholds; where it dies of that, it is built again for the plainer sets alone.
    pub fn install(
        cache: &Cache,
        workspace: &Path,
        model: &Path,
        progress: &Progress,
    ) -> Result<Self> {
        let folder = cache.root().join("venv");
        let requirements = workspace.join("e2e/reference/requirements.txt");
        let wanted = hex(&Sha256::digest(
            fs::read(&requirements)
                .with_context(|| format!("cannot read {}", requirements.display()))?,
        ));
        let stamp = folder.join("pagoda-stamp");
        let python = folder.join("bin/python");
        if let Some(build) = fs::read_to_string(&stamp)
            .ok()
            .and_then(|text| Some(text.strip_prefix(&wanted)?.trim().to_owned()))
        {
            return Ok(Self { python, build });
        }
        python_environment(&folder)?;
        progress.step("installing llama-cpp-python, which compiles llama.cpp (minutes)");
        let build = Self::build_one_that_runs(&python, &requirements, workspace, model, progress)?;
        fs::write(&stamp, format!("{wanted} {build}")).context("cannot note what was installed")?;
        Ok(Self { python, build })
    }

    fn build_one_that_runs(
        python: &Path,
        requirements: &Path,
        workspace: &Path,
        model: &Path,
        progress: &Progress,
    ) -> Result<String> {
        install(python, requirements, None)?;
        let Some(signal) = smoke_test(python, workspace, model)? else {
            return Ok("native".to_owned());
        };
        let sets = plain_sets(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        progress.step(format!(
            "its native build dies of signal {signal} here: building it for {} instead",
            sets.join(", ")
        ));
        install(python, requirements, Some(&cmake_arguments(&sets)))?;
        match smoke_test(python, workspace, model)? {
            None => Ok(sets.join("+")),
            Some(signal) => bail!(
                "llama.cpp dies of signal {signal} on this machine, even built for {} alone",
                sets.join(", ")
            ),
        }
    }

    /// The command that measures it; it prints one JSON line.
    pub fn speed_command(&self, workspace: &Path, work: &SpeedWork<'_>) -> Command {
        speed_command(&self.python, workspace, work)
    }
}

fn speed_command(python: &Path, workspace: &Path, work: &SpeedWork<'_>) -> Command {
    let mut command = Command::new(python);
    command
        .arg(workspace.join("e2e/bench/llama_cpp_speed.py"))
        .arg(work.model)
        .args(["--threads", &work.threads.to_string()])
        .args(["--prompt-tokens", &work.prompt_tokens.to_string()])
        .args(["--decode-tokens", &work.decode_tokens.to_string()])
        .args(["--repeats", &work.repeats.to_string()]);
    command
}

fn install(python: &Path, requirements: &Path, cmake_arguments: Option<&str>) -> Result<()> {
    let mut command = pip_install(python);
    command.arg("--requirement").arg(requirements);
    if let Some(arguments) = cmake_arguments {
        command
            .args(["--force-reinstall", "--no-cache-dir"])
            .env("CMAKE_ARGS", arguments);
    }
    run(&mut command).map(|_| ())
}

/// Runs a short measurement with two threads; `Some(signal)` when a signal killed it.
fn smoke_test(python: &Path, workspace: &Path, model: &Path) -> Result<Option<i32>> {
    let short = SpeedWork {
        model,
        threads: 2,
        prompt_tokens: 64,
        decode_tokens: 4,
        repeats: 1,
    };
    let output = run_for_output(&mut speed_command(python, workspace, &short))?;
    if let Some(signal) = output.status.signal() {
        return Ok(Some(signal));
    }
    if !output.status.success() {
        bail!(
            "llama.cpp was installed but does not run: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(None)
}

/// The build's names of the instruction sets in `/proc/cpuinfo` that need nothing but the processor.
fn plain_sets(cpuinfo: &str) -> Vec<&'static str> {
    let flags: Vec<&str> = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("flags"))
        .map(|line| line.split_whitespace().collect())
        .unwrap_or_default();
    X86_SETS
        .iter()
        .filter(|(flag, _)| flags.contains(flag))
        .map(|(_, name)| *name)
        .collect()
}

fn cmake_arguments(sets: &[&str]) -> String {
    let on = |(_, name): &(&str, &str)| {
        format!(
            "-DGGML_{name}={}",
            if sets.contains(name) { "ON" } else { "OFF" }
        )
    };
    let switches: Vec<String> = X86_SETS.iter().map(on).collect();
    format!("-DGGML_NATIVE=OFF {}", switches.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_build_names_what_the_processor_has_and_switches_the_rest_off() {
        let sets =
            plain_sets("processor : 0\nflags\t\t: fpu avx avx2 fma f16c amx_tile\nbugs\t:\n");
        assert_eq!(sets, ["AVX", "AVX2", "FMA", "F16C"]);
        let arguments = cmake_arguments(&sets);
        assert!(
            arguments.contains("-DGGML_NATIVE=OFF") && arguments.contains("-DGGML_AVX2=ON"),
            "{arguments}"
        );
        assert!(
            arguments.contains("-DGGML_AVX512_VNNI=OFF") && !arguments.contains("AMX"),
            "{arguments}"
        );
    }

    #[test]
    fn a_processor_without_the_flags_line_gets_a_build_for_none_of_the_sets() {
        assert!(plain_sets("processor : 0\n").is_empty());
    }
}
