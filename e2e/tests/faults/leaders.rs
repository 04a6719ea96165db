//! Two operators and one Lease.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagoda_e2e::faults::Match;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bed::{PATIENCE, eventually};
use crate::manifests::{simulated, with};
use crate::stage::{Stage, lease, numbered, on_stage, written};

/// Longer than a lease lasts.
const BEYOND_THE_LEASE: Duration = Duration::from_secs(25);
/// A woken operator gets this long to do what it must not.
const AFTER_WAKING: Duration = Duration::from_secs(10);

pub fn a_killed_leader_is_followed_by_the_one_that_waits() {
    on_stage("killed", |stage| async move {
        stage.services_at_rest(&numbered("kept", 2)).await?;
        let (waiting, second) = stage.second().await?;
        eventually("the second asks for the lease", PATIENCE, async || {
            let asked = waiting.counts().total(&Match::any().of("leases"));
            ensure!(asked > 1, "it asked {asked} times");
            Ok(())
        })
        .await?;
        let written_before = written(&waiting.counts());
        ensure!(
            written_before.is_empty(),
            "one that waits wrote\n{written_before}"
        );

        stage.operator().signal(Signal::KILL)?;
        stage.change("kept-0", 32).await?;
        second.wait_until_leading(PATIENCE).await?;
        stage.carried_out("kept-0", 32).await?;
        ensure!(
            holder(&stage).await?.starts_with("second"),
            "somebody else holds the lease"
        );
        // What was right already was not written again.
        let others = written(&waiting.counts()).only(&Match::any().named("kept-1"));
        ensure!(others.is_empty(), "the successor wrote\n{others}");
        second.stop().await.map(drop)
    });
}

pub fn a_leader_that_was_stopped_for_longer_than_its_lease_wakes_writes_nothing_and_ends() {
    on_stage("stopped", |stage| async move {
        stage.services_at_rest(&numbered("kept", 2)).await?;
        let (second_proxy, second) = stage.second().await?;
        let first = stage.operator();
        first.signal(Signal::STOP)?;
        // Work waits for it in its connections when it wakes.
        let deleted = stage.delete_child("Service", "kept-0").await?;
        stage.change("kept-1", 32).await?;
        second.wait_until_leading(PATIENCE).await?;
        tokio::time::sleep(BEYOND_THE_LEASE).await;
        stage.made_anew("Service", "kept-0", &deleted).await?;
        stage.carried_out("kept-1", 32).await?;

        let again = stage.delete_child("PodDisruptionBudget", "kept-0").await?;
        let asleep = stage.proxy.counts();
        first.signal(Signal::CONT)?;
        stage.change("kept-1", 33).await?;
        let ended = first.wait_for_exit(PATIENCE).await?;
        ensure!(!ended.success(), "losing the lease is no success");
        tokio::time::sleep(AFTER_WAKING).await;
        let late = stage.proxy.counts().since(&asleep).only(&Match::writes());
        ensure!(late.is_empty(), "the woken leader wrote\n{late}");

        ensure!(
            holder(&stage).await?.starts_with("second"),
            "somebody else holds the lease"
        );
        stage
            .made_anew("PodDisruptionBudget", "kept-0", &again)
            .await?;
        stage.carried_out("kept-1", 33).await?;
        ensure!(
            !written(&second_proxy.counts()).is_empty(),
            "the second never wrote"
        );
        second.stop().await.map(drop)
    });
}

pub fn an_operator_that_starts_again_writes_nothing() {
    on_stage("restart", |stage| async move {
        stage.bed.apply(&with_many_maps("running")).await?;
        stage.bed.ready("running").await?;
        let services = numbered("kept", 8);
        stage.services_at_rest(&services).await?;
        for signal in [Signal::TERM, Signal::KILL] {
            let before = stage.proxy.counts();
            stage.operator().signal(signal)?;
            stage.operator().wait_for_exit(PATIENCE).await?;
            stage.start_again()?;
            stage.operator().wait_until_leading(PATIENCE).await?;
            eventually("every service was looked at", PATIENCE, async || {
                let turns = stage
                    .operator()
                    .metric("pagoda_operator_reconciles_total")
                    .await?;
                ensure!(turns > services.len() as f64, "{turns} reconciles");
                Ok(())
            })
            .await?;
            stage.quiet().await?;
            let written = stage.written_since(&before);
            ensure!(
                written.is_empty(),
                "after {signal:?} the operator wrote\n{written}"
            );
        }
        Ok(())
    });
}

async fn holder(stage: &Stage) -> Result<String> {
    let lease: Value = lease(stage).await?;
    let holder = lease["spec"]["holderIdentity"].as_str();
    holder.map(str::to_owned).context("nobody holds the lease")
}

/// Whoever goes through a map in the order of its hashes builds another pod template in each process.
fn with_many_maps(name: &str) -> Value {
    let many = |prefix: &str| -> Value {
        let entries = (0..20).map(|number| (format!("example.com/{prefix}-{number}"), json!("x")));
        entries.collect::<serde_json::Map<_, _>>().into()
    };
    let metadata = json!({"labels": many("label"), "annotations": many("annotation")});
    let manifest = with(
        simulated(name),
        &["spec", "podTemplate"],
        json!({"metadata": metadata}),
    );
    with(manifest, &["metadata", "labels"], many("label"))
}
