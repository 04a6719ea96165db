//! What the machine itself must offer. Debian's packages are installed when missing; for all else there is a sentence.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::paths::Paths;
use crate::process::{find_program, run};
use crate::progress::Progress;

/// Programs needed, each with the Debian package that has it.
const PROGRAMS: [(&str, &str); 9] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
    ("conntrack", "conntrack"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("mount", "mount"),
];
const CNI_PACKAGE: &str = "containernetworking-plugins";
const CNI_FOLDERS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// Installs what is missing, saying what, or says what to install.
pub(super) fn ensure(paths: &Paths, progress: &Progress) -> Result<()> {
    let missing = missing_packages(
        |program| find_program(program).is_some(),
        cni_folder().is_some(),
    );
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if find_program("apt-get").is_none() {
        bail!(
            "these are missing: {list} (Debian's package names); install them with your package manager and run this again"
        );
    }
    progress.step(format!("installing Debian packages: {list}"));
    let log = install(paths, &missing)?;
    let left = missing_packages(
        |program| find_program(program).is_some(),
        cni_folder().is_some(),
    );
    if !left.is_empty() {
        bail!(
            "after apt-get these are still missing: {}; see {}",
            left.join(" "),
            log.display()
        );
    }
    Ok(())
}

/// The folder of the CNI plug-ins.
pub(super) fn cni_folder() -> Option<&'static Path> {
    let has_plugins = |folder: &&str| {
        ["ptp", "host-local", "portmap", "loopback"]
            .iter()
            .all(|p| Path::new(folder).join(p).exists())
    };
    CNI_FOLDERS
        .iter()
        .find(|folder| has_plugins(folder))
        .map(|folder| Path::new(*folder))
}

fn missing_packages(has_program: impl Fn(&str) -> bool, has_cni: bool) -> Vec<&'static str> {
    let mut missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| !has_program(program))
        .map(|(_, package)| *package)
        .collect();
    if !has_cni {
        missing.push(CNI_PACKAGE);
    }
    missing.dedup();
    missing
}

fn install(paths: &Paths, packages: &[&str]) -> Result<PathBuf> {
    let folder = paths.cache.root().join("logs");
    fs::create_dir_all(&folder)?;
    let log = folder.join("apt.log");
    let script = r#"log=$1; shift; { apt-get update && apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1"#;
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(&log)
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive");
    if let Err(error) = run(&mut command) {
        bail!(
            "apt-get could not install {}: see {} ({error})",
            packages.join(" "),
            log.display()
        );
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_each_missing_package_once() {
        assert_eq!(
            missing_packages(
                |program| !["containerd", "ctr", "ip"].contains(&program),
                false
            ),
            ["containerd", "iproute2", CNI_PACKAGE]
        );
    }

    #[test]
    fn asks_for_nothing_where_all_is_there() {
        assert!(missing_packages(|_| true, true).is_empty());
    }
}
