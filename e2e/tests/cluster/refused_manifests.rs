//! Manifests that cannot work are refused by the API server itself, with a sentence that says what to change.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::bed::on_cluster;

/// Each file of `e2e/samples/bad` says in its first line what the refusal must contain.
#[test]
fn manifests_that_cannot_work_are_refused_by_kubectl_apply_with_what_to_change() {
    on_cluster("refused", |bed| async move {
        for (file, text) in bad_samples()? {
            let expected = text
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("# expect: "));
            let expected = expected
                .with_context(|| format!("{file} does not begin with '# expect: '"))?
                .trim();
            let (accepted, output) = bed
                .kubectl(&["apply", "--filename", "-"], Some(&text))
                .await?;
            ensure!(!accepted, "{file} was accepted: {output}");
            ensure!(
                output.contains(expected),
                "{file} was refused without saying '{expected}': {output}"
            );
        }
        let left = bed
            .services()
            .list(&kube::api::ListParams::default())
            .await?;
        ensure!(left.items.is_empty(), "a refused manifest left an object");
        Ok(())
    });
}

/// The samples that users are shown are accepted as they stand.
#[test]
fn the_samples_are_accepted() {
    on_cluster("samples", |bed| async move {
        for (file, text) in yaml_files(&samples())? {
            let (accepted, output) = bed
                .kubectl(
                    &["apply", "--dry-run=server", "--filename", "-"],
                    Some(&text),
                )
                .await?;
            ensure!(accepted, "{file} was refused: {output}");
        }
        Ok(())
    });
}

fn samples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples")
}

fn bad_samples() -> Result<Vec<(String, String)>> {
    let files = yaml_files(&samples().join("bad"))?;
    ensure!(files.len() >= 3, "only {} bad samples", files.len());
    Ok(files)
}

fn yaml_files(folder: &Path) -> Result<Vec<(String, String)>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("failed to list {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            files.push((path.display().to_string(), std::fs::read_to_string(&path)?));
        }
    }
    files.sort();
    Ok(files)
}
