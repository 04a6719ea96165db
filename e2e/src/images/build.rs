//! Builds the product's programs, statically linked, so that an image needs nothing beside them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::run;
use crate::progress::Progress;

/// One image of the product, of one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProductImage {
    /// `operator`, `gateway` or `engine`: the image's name below `pagoda/`, and its key in the chart's values.
    pub name: &'static str,
    /// Cargo package and program; also the file's name in the image's root.
    pub package: &'static str,
}

/// Every image that the chart installs.
pub const PRODUCT_IMAGES: [ProductImage; 3] = [
    ProductImage {
        name: "operator",
        package: "pagoda-operator",
    },
    ProductImage {
        name: "gateway",
        package: "pagoda-gateway",
    },
    ProductImage {
        name: "engine",
        package: "pagoda-engine",
    },
];

/// Builds `images` in the workspace at `workspace` (release, static) and returns each one's program.
///
/// Naming the target explicitly, even though it is this machine's, keeps the static flag away from build scripts and
/// procedural macros, which cannot be linked so.
pub fn build_product(
    workspace: &Path,
    images: &[ProductImage],
    progress: &Progress,
) -> Result<Vec<(ProductImage, PathBuf)>> {
    let target = host_target(&run(Command::new("rustc")
        .arg("-vV")
        .current_dir(workspace))?)?;
    let names: Vec<&str> = images.iter().map(|image| image.package).collect();
    progress.step(format!("building {} (release, static)", names.join(", ")));
    let mut command = Command::new("cargo");
    command.args([
        "build",
        "--release",
        "--locked",
        "--message-format=json-render-diagnostics",
        "--target",
        &target,
    ]);
    command.args(names.iter().flat_map(|name| ["--package", name]));
    command
        .env(flags_variable(&target), "-C target-feature=+crt-static")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let output = command
        .current_dir(workspace)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo could not build the images' programs: see its messages above");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let find = |image: &ProductImage| {
        let program = executable(&messages, image.package)
            .with_context(|| format!("cargo built no program {}", image.package))?;
        Ok((*image, program))
    };
    images.iter().map(find).collect()
}

/// The `host:` line of `rustc -vV`. Only glibc targets: musl's allocator would be another program to measure.
fn host_target(version: &str) -> Result<String> {
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc -vV names no host")?;
    match host {
        "x86_64-unknown-linux-gnu" | "aarch64-unknown-linux-gnu" => Ok(host.to_owned()),
        _ => bail!(
            "images cannot be built on {host}: use a Linux machine with glibc on x86_64 or aarch64"
        ),
    }
}

fn flags_variable(target: &str) -> String {
    format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        target.to_uppercase().replace('-', "_")
    )
}

/// The program called `name` in cargo's JSON messages.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let matching = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["reason"] == "compiler-artifact" && message["target"]["name"] == name;
        message["executable"]
            .as_str()
            .filter(|_| is_it)
            .map(PathBuf::from)
    };
    messages.lines().find_map(matching)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_program_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"pagoda-engine"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}
{"reason":"compiler-artifact","target":{"name":"pagoda-engine"},"executable":"/t/pagoda-engine"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(
            executable(messages, "pagoda-engine"),
            Some(PathBuf::from("/t/pagoda-engine"))
        );
        assert_eq!(executable(messages, "pagoda-gateway"), None);
    }

    #[test]
    fn the_flags_are_given_to_the_target_and_not_to_the_host() {
        let target = host_target("rustc 1\nhost: aarch64-unknown-linux-gnu\n").unwrap();
        assert_eq!(
            flags_variable(&target),
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS"
        );
    }

    #[test]
    fn a_machine_that_cannot_build_images_is_told_which_can() {
        assert!(
            host_target("host: x86_64-unknown-linux-musl\n")
                .unwrap_err()
                .to_string()
                .contains("glibc")
        );
    }
}
