//! The one folder that holds everything built, downloaded or run outside the clone.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// `${PAGODA_CACHE_DIR:-$HOME/.cache/pagoda}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache the environment names. Fails when neither `PAGODA_CACHE_DIR` nor `HOME` is set.
    pub fn from_env() -> Result<Self> {
        let set = |name| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let root = set("PAGODA_CACHE_DIR")
            .or_else(|| set("HOME").map(|home| home.join(".cache/pagoda")))
            .context("neither PAGODA_CACHE_DIR nor HOME is set: set PAGODA_CACHE_DIR to a folder with 10 GB free")?;
        Ok(Self {
            root: std::path::absolute(root)?,
        })
    }

    /// A cache at `root`, for tests.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Programs we built: `kubernetes`, `kubectl`, `helm`, `pause`.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// Image archives.
    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// Everything of the local cluster `name`; `cluster down` removes it whole.
    pub fn cluster(&self, name: &str) -> PathBuf {
        self.root.join("cluster").join(name)
    }
}
