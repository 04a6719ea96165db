//! mistral.rs, from its wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use pagoda_e2e::cache::Cache;
use pagoda_e2e::process::run;
use pagoda_e2e::progress::Progress;

use super::{SpeedWork, pip_install, python_environment};

const VERSION: &str = "0.9.5";

/// A Python environment with mistral.rs in it.
#[derive(Debug)]
pub struct MistralRs {
    python: PathBuf,
}

impl MistralRs {
    /// Installs the pinned wheel unless that is there.
    pub fn install(cache: &Cache, progress: &Progress) -> Result<Self> {
        let folder = cache.root().join(format!("venv-mistralrs-{VERSION}"));
        let python = folder.join("bin/python");
        let there = Command::new(&python)
            .args(["-c", "import mistralrs"])
            .output();
        if !there.is_ok_and(|output| output.status.success()) {
            progress.step(format!("installing mistral.rs {VERSION}"));
            python_environment(&folder)?;
            run(pip_install(&python).arg(format!("mistralrs=={VERSION}")))?;
        }
        Ok(Self { python })
    }

    /// The command that measures it once; it prints one JSON line.
    pub fn speed_command(&self, workspace: &Path, work: &SpeedWork<'_>) -> Command {
        let mut command = Command::new(&self.python);
        command
            .arg(workspace.join("e2e/bench/mistral_rs_speed.py"))
            .arg(work.model)
            .args(["--prompt-tokens", &work.prompt_tokens.to_string()])
            .args(["--decode-tokens", &work.decode_tokens.to_string()])
            // Its threads, by the name of the library that makes them.
            .env("RAYON_NUM_THREADS", work.threads.to_string());
        command
    }
}
