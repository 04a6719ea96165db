//! What GitOps tools and people do to a service all day long: none of it fights with the autoscaler, and none of it sees a
//! difference where there is none.
//!
//! How Argo CD and Flux judge health is tested in `e2e/judges`; here is how they apply and compare.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::bed::{Bed, PATIENCE, eventually, on_cluster};
use crate::load::Load;
use crate::manifests::{simulated, with};

/// Somebody who keeps a service as a manifest says, with kubectl as the tool does it.
struct Tool {
    name: &'static str,
    apply: &'static [&'static str],
    diff: &'static [&'static str],
}

const TOOLS: [Tool; 3] = [
    // People, and Argo CD unless told otherwise: a three-way patch with the last manifest in an annotation.
    Tool {
        name: "client-side",
        apply: &["apply", "--filename", "-"],
        diff: &["diff", "--filename", "-"],
    },
    // Argo CD with ServerSideApply=true.
    Tool {
        name: "argo",
        apply: &[
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=argocd-controller",
            "--filename",
            "-",
        ],
        diff: &[
            "diff",
            "--server-side",
            "--force-conflicts",
            "--field-manager=argocd-controller",
            "--filename",
            "-",
        ],
    },
    Tool {
        name: "flux",
        apply: &[
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=kustomize-controller",
            "--filename",
            "-",
        ],
        diff: &[
            "diff",
            "--server-side",
            "--force-conflicts",
            "--field-manager=kustomize-controller",
            "--filename",
            "-",
        ],
    },
];

/// Grows to three pods under the load of [`Load`] and falls to none in silence. As in Git: nothing about replicas.
fn manifest(tool: &Tool) -> Value {
    let scaling = json!({
        "minReplicas": 0,
        "maxReplicas": 3,
        "idleSeconds": 5,
        "scaleDownStabilizationSeconds": 3,
        "targets": [{"metric": "InFlightRequests", "averageValue": "4"}],
    });
    with(simulated(tool.name), &["spec", "scaling"], scaling)
}

#[test]
fn applies_and_diffs_are_empty_while_the_autoscaler_moves_replicas_and_at_zero() {
    on_cluster("gitops", |bed| async move {
        for tool in &TOOLS {
            bed.kubectl_ok(tool.apply, Some(&manifest(tool).to_string()))
                .await?;
            bed.ready(tool.name).await?;
            in_sync(&bed, tool).await?;
        }
        for tool in &TOOLS {
            let wave = Load::start(&bed.gateway, &bed.chat(tool.name, 50), 12);
            bed.ready_pods(tool.name, 3).await?;
            in_sync(&bed, tool).await?;
            ensure!(
                replicas(&bed, tool.name).await? == json!(3),
                "{} moved replicas",
                tool.name
            );
            wave.stop().await.unharmed()?;
        }
        for tool in &TOOLS {
            bed.ready_pods(tool.name, 0).await?;
            in_sync(&bed, tool).await?;
            bed.ready(tool.name).await?;
            ensure!(
                replicas(&bed, tool.name).await? == json!(0),
                "{} woke the service",
                tool.name
            );
        }
        Ok(())
    });
}

/// A change in Git reaches the service, and says nothing about its replicas either.
#[test]
fn a_change_in_git_leaves_a_sleeping_service_asleep() {
    on_cluster("gitops-asleep", |bed| async move {
        for tool in &TOOLS {
            bed.kubectl_ok(tool.apply, Some(&manifest(tool).to_string()))
                .await?;
        }
        for tool in &TOOLS {
            bed.ready(tool.name).await?;
            bed.ready_pods(tool.name, 0).await?;
            let changed = with(
                manifest(tool),
                &["spec", "engine", "maxSequences"],
                json!(32),
            );
            let changed = changed.to_string();
            let (same, said) = bed.kubectl(tool.diff, Some(&changed)).await?;
            ensure!(
                !same && said.contains("maxSequences: 32"),
                "{} sees no difference: {said}",
                tool.name
            );
            bed.kubectl_ok(tool.apply, Some(&changed)).await?;
            bed.ready(tool.name).await?;
            ensure!(
                replicas(&bed, tool.name).await? == json!(0),
                "{} woke the service",
                tool.name
            );
            ensure!(
                bed.pods(tool.name).await?.is_empty(),
                "{} started a pod",
                tool.name
            );
        }
        bed.answers("flux").await.map(drop)
    });
}

/// Applies once more and compares: nothing is written, nothing differs.
async fn in_sync(bed: &Bed, tool: &Tool) -> Result<()> {
    let manifest = manifest(tool).to_string();
    let generation = bed.service(tool.name).await?["metadata"]["generation"].take();
    let (same, said) = bed.kubectl(tool.diff, Some(&manifest)).await?;
    ensure!(
        same && said.trim().is_empty(),
        "{} sees a difference: {said}",
        tool.name
    );
    bed.kubectl_ok(tool.apply, Some(&manifest)).await?;
    let after = bed.service(tool.name).await?["metadata"]["generation"].take();
    // The autoscaler may have moved replicas in between, which is a generation too.
    let (same, said) = bed.kubectl(tool.diff, Some(&manifest)).await?;
    ensure!(
        same && said.trim().is_empty(),
        "{} sees a difference after {generation} became {after}: {said}",
        tool.name
    );
    Ok(())
}

async fn replicas(bed: &Bed, service: &str) -> Result<Value> {
    Ok(bed.service(service).await?["spec"]["replicas"].take())
}

#[test]
fn kubectl_edit_changes_a_service_and_the_change_rolls_out() {
    on_cluster("edit", |bed| async move {
        bed.kubectl_ok(
            &["create", "--filename", "-"],
            Some(&simulated("edited").to_string()),
        )
        .await?;
        bed.ready("edited").await?;
        let (ok, said) = bed
            .kubectl_edit("edited", "sed -i 's/maxSequences: 64/maxSequences: 48/'")
            .await?;
        ensure!(ok && said.contains("edited"), "kubectl edit: {said}");
        bed.ready("edited").await?;
        ensure!(
            bed.service("edited").await?["spec"]["engine"]["maxSequences"] == 48,
            "the edit was lost"
        );
        bed.answers("edited").await?;
        // An edit that cannot work is shown to its author again, with the reason, and changes nothing.
        let (ok, said) = bed
            .kubectl_edit("edited", "sed -i 's/minReplicas: 1/minReplicas: 9/'")
            .await?;
        ensure!(!ok && said.contains("is invalid"), "kubectl edit: {said}");
        let shown = what_kubectl_showed_again(&said)?;
        ensure!(
            shown.contains("scaling.minReplicas is above scaling.maxReplicas"),
            "the author is not told what to change: {shown}"
        );
        bed.ready("edited").await?;
        let scaling = &bed.service("edited").await?["spec"]["scaling"];
        ensure!(
            scaling["minReplicas"] == 1,
            "a refused edit was taken: {scaling}"
        );
        Ok(())
    });
}

/// kubectl leaves the file that a refused edit came to, with the reason in comments on top, where it says.
fn what_kubectl_showed_again(said: &str) -> Result<String> {
    let file = said
        .split('"')
        .find(|word| word.contains("kubectl-edit-"))
        .with_context(|| format!("kubectl names no file: {said}"))?;
    let shown = std::fs::read_to_string(file)?;
    std::fs::remove_file(file)?;
    Ok(shown)
}

/// kubectl replace sends what somebody has read, replicas and all; a version in between is a conflict, not a silent loss.
#[test]
fn kubectl_replace_with_an_outdated_object_is_refused() {
    on_cluster("replace", |bed| async move {
        bed.kubectl_ok(
            &["create", "--filename", "-"],
            Some(&simulated("replaced").to_string()),
        )
        .await?;
        let read = bed.service("replaced").await?;
        bed.ready("replaced").await?;
        bed.kubectl_ok(
            &["annotate", "isvc", "replaced", "example.com/note=later"],
            None,
        )
        .await?;
        let (taken, said) = bed
            .kubectl(&["replace", "--filename", "-"], Some(&read.to_string()))
            .await?;
        ensure!(
            !taken && said.contains("Conflict"),
            "kubectl replace: {said}"
        );
        eventually("the newer object replaces", PATIENCE, async || {
            let newest = bed.service("replaced").await?;
            let (taken, said) = bed
                .kubectl(&["replace", "--filename", "-"], Some(&newest.to_string()))
                .await?;
            ensure!(taken, "kubectl replace: {said}");
            Ok(())
        })
        .await
    });
}

/// Until the operator has looked, no tool may take a new service for done.
#[test]
fn a_service_that_no_operator_has_seen_says_so() {
    on_cluster("unseen", |bed| async move {
        let dry = [
            "create",
            "--dry-run=server",
            "--output=json",
            "--filename",
            "-",
        ];
        let (ok, said) = bed
            .kubectl(&dry, Some(&simulated("unseen").to_string()))
            .await?;
        ensure!(ok, "{said}");
        let created: Value = serde_json::from_str(&said)?;
        ensure!(
            created["status"]["observedGeneration"] == -1,
            "the status is {}",
            created["status"]
        );
        Ok(())
    });
}

#[test]
fn kubectl_explain_has_words_for_every_field() {
    on_cluster("explain", |bed| async move {
        let request =
            http::Request::get("/openapi/v3/apis/serving.pagoda.dev/v1alpha1").body(Vec::new())?;
        let document: Value = bed.client.request(request).await?;
        let schemas = document["components"]["schemas"]
            .as_object()
            .into_iter()
            .flatten();
        let (_, schema) = schemas
            .into_iter()
            .find(|(name, _)| name.ends_with(".InferenceService"))
            .ok_or_else(|| anyhow::anyhow!("no schema of InferenceService"))?;
        let mut fields = Vec::new();
        for part in ["spec", "status"] {
            walk(part, &schema["properties"][part], &mut fields);
        }
        ensure!(fields.len() > 80, "only {} fields", fields.len());
        let silent: Vec<&str> = fields
            .iter()
            .filter(|(_, words)| words.len() < 4)
            .map(|(path, _)| path.as_str())
            .collect();
        ensure!(silent.is_empty(), "no words for {silent:?}");
        // What kubectl prints is what the schema says.
        for (path, words) in fields.iter().step_by(17) {
            let said = bed
                .kubectl_ok(&["explain", &format!("isvc.{path}")], None)
                .await?;
            let first: String = words
                .split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(" ");
            ensure!(
                said.contains(&first),
                "kubectl explain isvc.{path} does not say '{first}': {said}"
            );
        }
        Ok(())
    });
}

/// Path and description of each field below `schema`, that of free-form parts left out.
fn walk(path: &str, schema: &Value, found: &mut Vec<(String, String)>) {
    let items = if schema["items"].is_object() {
        &schema["items"]
    } else {
        schema
    };
    for (name, field) in items["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        found.push((
            path.clone(),
            field["description"].as_str().unwrap_or_default().to_owned(),
        ));
        walk(&path, field, found);
    }
}
