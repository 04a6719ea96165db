//! llama.cpp's own server, statically linked, as an example of another engine: built from the sources that llama-cpp-python,
//! which the reference values are made with, ships in its source distribution.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::archive::{ImageName, Program};
use super::hex;
use super::load::load;
use crate::cache::Cache;
use crate::cluster::Cluster;
use crate::process::run;
use crate::progress::Progress;

/// What tests put into `engine.image`.
pub const LLAMA_SERVER_IMAGE: &str = "pagoda.local/llama-server:dev";

const PACKAGE: &str = "llama-cpp-python";
const VERSION: &str = "0.3.36";
const ARCHIVE: &str = "llama_cpp_python-0.3.36";
const ARCHIVE_SHA256: &str = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";

/// Static, for processors with AVX2, and without what a test has no use for: TLS, the web page, child processes.
const SETTINGS: [&str; 14] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_C_FLAGS_RELEASE=-O2 -DNDEBUG",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG",
    "-DCMAKE_EXE_LINKER_FLAGS=-static",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_STATIC=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_SUBPROCESS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
];

/// Builds the server unless the cache has it, and loads an image of it, [`LLAMA_SERVER_IMAGE`], into `cluster`. The first
/// time takes minutes.
pub fn load_llama_server(cluster: &Cluster, progress: &Progress) -> Result<()> {
    let program = build(&cluster.paths().cache, progress)?;
    let archive = Program::at(program, "/llama-server");
    let name = ImageName::parse(LLAMA_SERVER_IMAGE)?;
    let by_content = ImageName::new(
        name.repository.clone(),
        format!("content-{}", archive.content_digest()?),
    );
    load(cluster, &archive, &by_content, progress)?;
    cluster.containerd().tag(&by_content.full(), &name.full())
}

fn build(cache: &Cache, progress: &Progress) -> Result<PathBuf> {
    let program = cache.bin().join(format!("llama-server-{VERSION}"));
    if program.exists() {
        return Ok(program);
    }
    let folder = cache.root().join("build/llama-server");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let sources = sources(&folder, progress)?;
    progress.step("building llama.cpp's server (minutes)");
    let objects = folder.join("objects");
    run(Command::new("cmake")
        .arg("-S")
        .arg(&sources)
        .arg("-B")
        .arg(&objects)
        .args(SETTINGS))?;
    run(Command::new("cmake").arg("--build").arg(&objects).args([
        "--target",
        "llama-server",
        "--parallel",
    ]))?;
    fs::create_dir_all(cache.bin())?;
    let fresh = program.with_extension("new");
    fs::copy(objects.join("bin/llama-server"), &fresh).context("the build left no llama-server")?;
    fs::rename(&fresh, &program)?;
    fs::remove_dir_all(&folder).ok();
    Ok(program)
}

/// Brings the source distribution, whose bytes must be those that were looked at, and unpacks it.
fn sources(folder: &Path, progress: &Progress) -> Result<PathBuf> {
    progress.step(format!("downloading the sources of {PACKAGE} {VERSION}"));
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps"])
        .args(["--no-binary", PACKAGE, "--dest"])
        .arg(folder)
        .arg(format!("{PACKAGE}=={VERSION}")))?;
    let archive = folder.join(format!("{ARCHIVE}.tar.gz"));
    let bytes = fs::read(&archive).with_context(|| format!("cannot read {}", archive.display()))?;
    let found = hex(&Sha256::digest(&bytes));
    if found != ARCHIVE_SHA256 {
        bail!(
            "{} has the hash {found} and not {ARCHIVE_SHA256}: it is not the file that was looked at",
            archive.display()
        );
    }
    run(Command::new("tar")
        .arg("--extract")
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(folder))?;
    Ok(folder.join(ARCHIVE).join("vendor/llama.cpp"))
}
