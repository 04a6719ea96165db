//! InferenceServices that third parties hold, and ones that are applied again and again.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use pagoda_e2e::faults::Match;
use serde_json::json;

use crate::bed::{PATIENCE, eventually};
use crate::manifests::with;
use crate::stage::{at_zero, numbered, on_stage};

const HELD: Duration = Duration::from_secs(20);

pub fn a_stuck_finalizer_of_a_third_party_costs_nothing_and_hinders_nobody() {
    on_stage("finalizer", |stage| async move {
        let held = with(
            at_zero("held"),
            &["metadata", "finalizers"],
            json!(["example.com/backup"]),
        );
        stage.bed.apply(&held).await?;
        stage.bed.ready("held").await?;
        stage.services_at_rest(&numbered("bystander", 1)).await?;
        stage
            .bed
            .services()
            .delete("held", &DeleteParams::default())
            .await?;
        stage.rests().await?;

        let before = stage.proxy.counts();
        let turns = reconciles(&stage).await?;
        tokio::time::sleep(HELD).await;
        let written = stage.written_since(&before);
        ensure!(
            written.is_empty(),
            "a service that is going was written for:\n{written}"
        );
        let turned = reconciles(&stage).await? - turns;
        ensure!(
            turned < 20.0,
            "{turned} reconciles in {} s are a hot loop",
            HELD.as_secs()
        );
        stage.change("bystander-0", 32).await?;
        stage.carried_out("bystander-0", 32).await?;

        let release = json!({"metadata": {"finalizers": null}});
        stage
            .bed
            .services()
            .patch("held", &PatchParams::default(), &Patch::Merge(&release))
            .await?;
        eventually(
            "the service and its children are gone",
            PATIENCE,
            async || {
                ensure!(
                    stage.bed.services().get_opt("held").await?.is_none(),
                    "the service is still there"
                );
                let left = stage.bed.children("held").await?;
                ensure!(left.is_empty(), "children are {left:?}");
                Ok(())
            },
        )
        .await?;
        stage.rests().await
    });
}

/// Reconciles of services that exist; the gateway's news of services in other namespaces are looked at and dropped.
async fn reconciles(stage: &crate::stage::Stage) -> Result<f64> {
    let text = stage.operator().metrics().await?;
    let series = text
        .lines()
        .filter(|line| line.starts_with("pagoda_operator_reconciles_total{"));
    let existing = series.filter(|line| !line.contains("result=\"gone\""));
    let counts = existing.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>());
    Ok(counts.sum::<Result<f64, _>>()?)
}

pub fn a_hundred_applies_of_the_same_manifest_write_nothing() {
    on_stage("reapplied", |stage| async move {
        let manifest = at_zero("steady");
        stage.services_at_rest(&["steady".to_owned()]).await?;
        let before = stage.proxy.counts();
        for round in 0..100 {
            stage.bed.apply(&manifest).await?;
            // An identical apply is no event; a changed annotation makes the operator look again.
            let annotation = json!({"example.com/round": round.to_string()});
            stage
                .bed
                .apply(&with(
                    manifest.clone(),
                    &["metadata", "annotations"],
                    annotation,
                ))
                .await?;
        }
        stage.rests().await?;
        let written = stage.written_since(&before);
        ensure!(
            written.total(&Match::any()) == 0,
            "the operator wrote\n{written}"
        );
        Ok(())
    });
}
