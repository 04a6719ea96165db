//! The programs we build: Kubernetes in one, `pause`, and helm. Built into the cache once for each version and source.

use std::fs;
use std::io::BufReader;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::cache::Cache;
use crate::process::{find_program, run};
use crate::progress::Progress;

/// The Kubernetes release that `k8s/go.mod` requires.
pub(super) const KUBERNETES_VERSION: &str = "v1.34.2";
const HELM_VERSION: &str = "v3.19.5";
/// Plays the kubelet of nodes that are not there.
const KWOK_VERSION: &str = "v0.8.0";
const MINIMUM_GO: (u32, u32) = (1, 24);

/// The Go module, carried inside this program so that it needs no clone to be around.
const SOURCES: [(&str, &str); 4] = [
    ("go.mod", include_str!("../../cluster/k8s/go.mod")),
    ("go.sum", include_str!("../../cluster/k8s/go.sum")),
    ("main.go", include_str!("../../cluster/k8s/main.go")),
    (
        "pause/main.go",
        include_str!("../../cluster/k8s/pause/main.go"),
    ),
];

/// Packages that a cold build compiles, for the progress bar only.
const KUBERNETES_PACKAGES: u64 = 2000;
const HELM_PACKAGES: u64 = 1100;
const KWOK_PACKAGES: u64 = 1000;

/// Builds what is missing or out of date; returns what identifies this build of them all.
pub(super) fn ensure(cache: &Cache, progress: &Progress) -> Result<String> {
    let stamps = [
        ("kubernetes", kubernetes_stamp()),
        ("helm", format!("helm {HELM_VERSION}")),
    ];
    let stale: Vec<&str> = stamps
        .iter()
        .filter(|(name, stamp)| !is_current(cache, name, stamp))
        .map(|(name, _)| *name)
        .collect();
    if !stale.is_empty() {
        require_go()?;
        fs::create_dir_all(cache.bin()).context("cannot make the folder for programs")?;
    }
    for (name, stamp) in stamps.iter().filter(|(name, _)| stale.contains(name)) {
        match *name {
            "kubernetes" => build_kubernetes(cache, progress)?,
            _ => build_helm(cache, progress)?,
        }
        fs::write(stamp_file(cache, name), stamp)?;
    }
    Ok(stamps.map(|(_, stamp)| stamp).join(", "))
}

/// Builds kwok, which only a [`super::ControlPlane`] needs, unless it is there.
pub(super) fn ensure_kwok(cache: &Cache, progress: &Progress) -> Result<()> {
    let stamp = format!("kwok {KWOK_VERSION}");
    if is_current(cache, "kwok", &stamp) {
        return Ok(());
    }
    require_go()?;
    fs::create_dir_all(cache.bin()).context("cannot make the folder for programs")?;
    let module = format!("sigs.k8s.io/kwok/cmd/kwok@{KWOK_VERSION}");
    install_module(cache, "kwok", &module, KWOK_PACKAGES, progress)?;
    Ok(fs::write(stamp_file(cache, "kwok"), stamp)?)
}

fn kubernetes_stamp() -> String {
    let mut digest = Sha256::new();
    for (name, text) in SOURCES {
        digest.update(format!("{name} {}\n", text.len()));
        digest.update(text);
    }
    format!(
        "kubernetes {KUBERNETES_VERSION} {}",
        crate::images::hex(&digest.finalize()[..8])
    )
}

fn stamp_file(cache: &Cache, name: &str) -> PathBuf {
    cache.bin().join(format!("{name}.stamp"))
}

fn is_current(cache: &Cache, name: &str, stamp: &str) -> bool {
    cache.bin().join(name).exists()
        && fs::read_to_string(stamp_file(cache, name)).is_ok_and(|found| found == stamp)
}

fn require_go() -> Result<()> {
    let advice = "install Go 1.24 or newer (https://go.dev/dl) and put it on the PATH";
    if find_program("go").is_none() {
        bail!("go is missing and Kubernetes is built from source: {advice}");
    }
    let version = run(Command::new("go").args(["env", "GOVERSION"]))?;
    match parse_go_version(&version) {
        Some(found) if found >= MINIMUM_GO => Ok(()),
        _ => bail!(
            "Go {} is too old to build Kubernetes {KUBERNETES_VERSION}: {advice}",
            version.trim()
        ),
    }
}

fn parse_go_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().strip_prefix("go")?.split('.');
    let major = parts.next()?.parse().ok()?;
    let digits: String = parts
        .next()?
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    Some((major, digits.parse().ok()?))
}

fn build_kubernetes(cache: &Cache, progress: &Progress) -> Result<()> {
    let source = cache.root().join("build/kubernetes");
    for (name, text) in SOURCES {
        let file = source.join(name);
        fs::create_dir_all(file.parent().context("a source file has a folder")?)?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    progress.step(format!(
        "building Kubernetes {KUBERNETES_VERSION} from source (about 8 minutes on 2 cores, once)"
    ));
    let mut pause = go(&source, "build");
    pause
        .args(["-ldflags", "-s -w", "-o"])
        .arg(cache.bin().join("pause"))
        .arg("./pause");
    go_build("building pause", 1, pause, progress)?;
    let mut kubernetes = go(&source, "build");
    kubernetes
        .args(["-ldflags", &linker_flags(), "-o"])
        .arg(cache.bin().join("kubernetes"))
        .arg(".");
    go_build(
        "building Kubernetes",
        KUBERNETES_PACKAGES,
        kubernetes,
        progress,
    )?;
    link_kubectl(&cache.bin())
}

/// `kubectl` is the same program, called by that name.
fn link_kubectl(bin: &Path) -> Result<()> {
    let link = bin.join("kubectl");
    if fs::symlink_metadata(&link).is_ok() {
        fs::remove_file(&link)?;
    }
    symlink("kubernetes", &link).context("cannot link kubectl")
}

fn build_helm(cache: &Cache, progress: &Progress) -> Result<()> {
    let module = format!("helm.sh/helm/v3/cmd/helm@{HELM_VERSION}");
    install_module(cache, "helm", &module, HELM_PACKAGES, progress)
}

fn install_module(
    cache: &Cache,
    name: &str,
    module: &str,
    packages: u64,
    progress: &Progress,
) -> Result<()> {
    progress.step(format!(
        "building {module} from source (about 3 minutes on 2 cores, once)"
    ));
    let mut command = go(cache.root(), "install");
    command
        .env("GOBIN", cache.bin())
        .args(["-ldflags", "-s -w", module]);
    go_build(&format!("building {name}"), packages, command, progress)
}

/// `go VERB`, at low priority and free of settings that would make it need more than the module proxy.
fn go(folder: &Path, verb: &str) -> Command {
    let mut command = Command::new("nice");
    command
        .args(["-n", "10", "go", verb, "-v", "-trimpath", "-buildvcs=false"])
        .current_dir(folder);
    command
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "")
        .env("GOWORK", "off")
        .env_remove("GOOS")
        .env_remove("GOARCH");
    command
}

fn go_build(
    what: &str,
    expected_packages: u64,
    mut command: Command,
    progress: &Progress,
) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start `nice -n 10 go`")?;
    let output = BufReader::new(
        child
            .stderr
            .take()
            .context("the compiler's output is piped")?,
    );
    let tail = progress.count_lines(what, expected_packages, output, 12);
    if !child.wait()?.success() {
        bail!(
            "{what} failed; the compiler's last words:\n{}",
            tail.join("\n")
        );
    }
    Ok(())
}

/// The version that a plain `go build` would leave as `v0.0.0-master`.
fn linker_flags() -> String {
    let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    let set = |package: &str| {
        format!(
            " -X {package}.gitVersion={KUBERNETES_VERSION} -X {package}.gitMajor={major} -X {package}.gitMinor={minor} -X {package}.gitTreeState=clean"
        )
    };
    format!(
        "-s -w{}{}",
        set("k8s.io/component-base/version"),
        set("k8s.io/client-go/pkg/version")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_versions_of_releases_and_candidates() {
        assert_eq!(parse_go_version("go1.24.3\n"), Some((1, 24)));
        assert_eq!(parse_go_version("go1.25rc1"), Some((1, 25)));
        assert_eq!(parse_go_version("devel +abc"), None);
    }

    #[test]
    fn the_module_requires_the_release_it_is_labelled_with() {
        assert!(
            SOURCES[0]
                .1
                .contains(&format!("k8s.io/kubernetes {KUBERNETES_VERSION}"))
        );
        let staging = KUBERNETES_VERSION.replacen("v1.", "v0.", 1);
        assert!(
            SOURCES[0]
                .1
                .contains(&format!("k8s.io/api => k8s.io/api {staging}"))
        );
    }

    #[test]
    fn a_program_without_its_stamp_is_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        fs::create_dir_all(cache.bin()).unwrap();
        fs::write(cache.bin().join("helm"), "").unwrap();
        assert!(!is_current(&cache, "helm", "helm v1"));
        fs::write(stamp_file(&cache, "helm"), "helm v1").unwrap();
        assert!(is_current(&cache, "helm", "helm v1"));
        assert!(!is_current(&cache, "helm", "helm v2"));
    }
}
