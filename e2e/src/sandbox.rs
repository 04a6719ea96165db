//! A network and process namespace for one run of a program: what it starts can reach nothing but itself, finds every port
//! free, and is gone when the program is, however it ends. Needs no root where user namespaces are allowed.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// Set inside, so that the program does not enter again.
const INSIDE: &str = "PAGODA_SANDBOX";
/// Every address that clusters of ours use is local here, so that one listener can stand for thousands of pods.
const SETUP: &str = r#"ip link set lo up && ip route add local 198.18.0.0/15 dev lo && exec "$@""#;

/// Whether this process is inside.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs this very program, with the arguments that it was called with, inside; waits for it and returns its exit code.
/// What needs the network (building programs) has to be done before.
pub fn enter() -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", SETUP, "sh"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command
            .env_remove(name)
            .env_remove(name.to_ascii_lowercase());
    }
    let status = command
        .status()
        .context("cannot start unshare: install util-linux")?;
    if let Some(signal) = status.signal() {
        bail!("the run was ended by signal {signal}");
    }
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}
