//! Manifests that cannot work are refused by the API server itself, with a sentence that says what to change; those of
//! earlier releases are accepted for ever.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::bed::on_cluster;

/// Each file of `e2e/samples/bad` says in its first line what the refusal must contain.
#[test]
fn manifests_that_cannot_work_are_refused_by_kubectl_apply_with_what_to_change() {
    on_cluster("refused", |bed| async move {
        for (file, text) in yaml_files(&samples().join("bad"))? {
            refused(&bed, &file, &text, expectation(&file, &text)?).await?;
        }
        let left = bed
            .services()
            .list(&kube::api::ListParams::default())
            .await?;
        ensure!(left.items.is_empty(), "a refused manifest left an object");
        Ok(())
    });
}

/// Each file of `e2e/samples/bad-updates` holds an object, and a change of it that the first line's sentence refuses.
#[test]
fn changes_that_may_not_be_made_are_refused_with_why() {
    on_cluster("refused-updates", |bed| async move {
        for (file, text) in yaml_files(&samples().join("bad-updates"))? {
            let expected = expectation(&file, &text)?;
            let (before, after) = text
                .split_once("\n---\n")
                .with_context(|| format!("{file} does not hold two documents"))?;
            bed.kubectl_ok(&["apply", "--filename", "-"], Some(before))
                .await?;
            refused(&bed, &file, after, expected).await?;
        }
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

/// Whoever has an object of an earlier release can read, change and delete it.
#[test]
fn objects_of_earlier_releases_are_accepted_changed_and_deleted() {
    on_cluster("released", |bed| async move {
        let mut seen = 0;
        for release in std::fs::read_dir(samples().join("released"))? {
            for (file, text) in yaml_files(&release?.path())? {
                seen += 1;
                // Its pods may find no node: it is the API that is looked at.
                bed.kubectl_ok(&["apply", "--filename", "-"], Some(&text))
                    .await
                    .with_context(|| file.clone())?;
                for arguments in [
                    &["label", "--filename", "-", "changed=yes"][..],
                    &[
                        "patch",
                        "--filename",
                        "-",
                        "--type=merge",
                        "--patch",
                        r#"{"spec":{"scaling":{"idleSeconds":7}}}"#,
                    ],
                    &[
                        "apply",
                        "--server-side",
                        "--force-conflicts",
                        "--filename",
                        "-",
                    ],
                    &["delete", "--filename", "-"],
                ] {
                    bed.kubectl_ok(arguments, Some(&text))
                        .await
                        .with_context(|| file.clone())?;
                }
            }
        }
        ensure!(seen >= 5, "only {seen} manifests of earlier releases");
        Ok(())
    });
}

async fn refused(bed: &crate::bed::Bed, file: &str, text: &str, expected: &str) -> Result<()> {
    let (accepted, output) = bed
        .kubectl(&["apply", "--filename", "-"], Some(text))
        .await?;
    ensure!(!accepted, "{file} was accepted: {output}");
    ensure!(
        output.contains(expected),
        "{file} was refused without saying '{expected}': {output}"
    );
    Ok(())
}

fn expectation<'a>(file: &str, text: &'a str) -> Result<&'a str> {
    let first = text.lines().next().unwrap_or_default();
    let expected = first.strip_prefix("# expect: ");
    expected
        .map(str::trim)
        .with_context(|| format!("{file} does not begin with '# expect: '"))
}

fn samples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples")
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
