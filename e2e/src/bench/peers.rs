//! Peers that we measure beside ourselves, installed into the cache from their registries at pinned versions.

mod llama_cpp_python;
mod mistral_rs;
mod node_llama_cpp;

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use pagoda_e2e::process::run;

pub use llama_cpp_python::LlamaCpp;
pub use mistral_rs::MistralRs;
pub use node_llama_cpp::{InstructionSets, NodeLlamaCpp};

/// One sequence: a prompt, then single tokens after it.
#[derive(Clone, Copy, Debug)]
pub struct SpeedWork<'a> {
    pub model: &'a Path,
    pub threads: usize,
    pub prompt_tokens: usize,
    pub decode_tokens: usize,
    /// Times, of which the median counts.
    pub repeats: usize,
}

/// Makes a Python environment in `folder` unless it is there.
fn python_environment(folder: &Path) -> Result<()> {
    if folder.join("bin/python").exists() {
        return Ok(());
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(folder)).map(|_| ())
}

/// `pip install` in the environment of `python`; what to install is to be added.
fn pip_install(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    command
}
