//! llama.cpp as node-llama-cpp ships it: prebuilt, a library for each generation of processors, several sequences in a batch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use pagoda_e2e::cache::Cache;
use pagoda_e2e::process::{find_program, run};
use pagoda_e2e::progress::Progress;

use super::SpeedWork;

const VERSION: &str = "3.21.1";

/// Which of the prebuilt libraries it may choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSets {
    /// All: it takes the best for the processor, by itself.
    Best,
    /// None that uses AMX's tiles.
    UpToAvx512,
    /// None beyond AVX2.
    UpToAvx2,
}

/// Libraries with instructions beyond AVX2, by what follows `libggml-cpu-` in their names.
const BEYOND_AVX2: [&str; 8] = [
    "alderlake",
    "cannonlake",
    "cascadelake",
    "cooperlake",
    "icelake",
    "sapphirerapids",
    "skylakex",
    "zen4",
];
const WITH_TILES: [&str; 1] = ["sapphirerapids"];

impl InstructionSets {
    fn suffix(self) -> &'static str {
        match self {
            Self::Best => "",
            Self::UpToAvx512 => "-avx512",
            Self::UpToAvx2 => "-avx2",
        }
    }

    fn refused(self) -> &'static [&'static str] {
        match self {
            Self::Best => &[],
            Self::UpToAvx512 => &WITH_TILES,
            Self::UpToAvx2 => &BEYOND_AVX2,
        }
    }
}

/// An installed copy.
#[derive(Debug)]
pub struct NodeLlamaCpp {
    modules: PathBuf,
    node: PathBuf,
}

impl NodeLlamaCpp {
    /// Installs the pinned packages unless they are there, less the libraries that `sets` leaves out.
    pub fn install(cache: &Cache, sets: InstructionSets, progress: &Progress) -> Result<Self> {
        let node = find_program("node").context("node is missing: install Node.js 20 or newer")?;
        let folder = cache
            .root()
            .join(format!("node-llama-cpp-{VERSION}{}", sets.suffix()));
        let modules = folder.join("node_modules");
        let stamp = folder.join("pagoda-stamp");
        if !stamp.exists() {
            progress.step(format!(
                "installing node-llama-cpp {VERSION}{}",
                sets.suffix()
            ));
            fs::create_dir_all(&folder)?;
            npm_install(&folder)?;
            leave_out(&modules, sets.refused())?;
            fs::write(&stamp, VERSION)?;
        }
        Ok(Self { modules, node })
    }

    /// The command that measures one sequence; it prints one JSON line.
    pub fn speed_command(&self, workspace: &Path, work: &SpeedWork<'_>) -> Command {
        let mut command = self.command(workspace, "speed", work.model, work.threads);
        command.args([work.prompt_tokens, work.decode_tokens, work.repeats].map(|n| n.to_string()));
        command
    }

    /// The command that measures `streams` sequences that begin in the same moment.
    pub fn streams_command(
        &self,
        workspace: &Path,
        model: &Path,
        threads: usize,
        prompt_tokens: usize,
        answer_tokens: usize,
        streams: usize,
    ) -> Command {
        let mut command = self.command(workspace, "streams", model, threads);
        command.args([prompt_tokens, answer_tokens, streams].map(|n| n.to_string()));
        command
    }

    fn command(&self, workspace: &Path, work: &str, model: &Path, threads: usize) -> Command {
        let mut command = Command::new(&self.node);
        command
            .arg(workspace.join("e2e/bench/node_llama_cpp.mjs"))
            .arg(work)
            .arg(&self.modules)
            .arg(model)
            .arg(threads.to_string());
        command
    }
}

/// The package with the libraries for this processor is named, and the optional ones (for GPUs, hundreds of megabytes) are not
/// brought. Nothing is built and no script of a package is run.
fn npm_install(folder: &Path) -> Result<()> {
    let platform = match std::env::consts::ARCH {
        "x86_64" => "linux-x64",
        "aarch64" => "linux-arm64",
        other => bail!("node-llama-cpp ships nothing prebuilt for {other}"),
    };
    run(Command::new("npm")
        .current_dir(folder)
        .args(["install", "--prefix", "."])
        .args([
            "--omit=optional",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
        ])
        .arg("--no-package-lock")
        .arg("--save-exact")
        .arg(format!("node-llama-cpp@{VERSION}"))
        .arg(format!("@node-llama-cpp/{platform}@{VERSION}")))
    .map(|_| ())
}

fn leave_out(modules: &Path, refused: &[&str]) -> Result<()> {
    if refused.is_empty() {
        return Ok(());
    }
    let libraries = modules.join("@node-llama-cpp/linux-x64/bins/linux-x64");
    let mut left_out = 0;
    for name in refused {
        let library = libraries.join(format!("libggml-cpu-{name}.so"));
        if library.exists() {
            fs::remove_file(&library)?;
            left_out += 1;
        }
    }
    ensure!(
        left_out > 0,
        "{} has none of the libraries that should be left out: the package is laid out otherwise now",
        libraries.display()
    );
    Ok(())
}
