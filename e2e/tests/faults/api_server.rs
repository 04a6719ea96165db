//! An API server that is gone: refusing, silent, killed, or without the versions that the operator last saw.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::WatchParams;
use kube::{Api, ResourceExt};
use pagoda_e2e::cluster::{Cluster, NODE_ADDRESS, State};
use pagoda_e2e::faults::Match;
use pagoda_e2e::process::run;
use pagoda_e2e::progress::Progress;
use rustix::process::Signal;

use crate::bed::{PATIENCE, Versions, eventually};
use crate::manifests::simulated;
use crate::stage::{Stage, numbered, on_stage};

const OUTAGE: Duration = Duration::from_mins(1);
const ETCD: &str = "http://127.0.0.1:2379";

pub fn an_api_server_that_refuses_connections_for_a_minute_finds_the_operator_going_on_where_it_stopped()
 {
    on_stage("refused", |stage| async move {
        let before = stage.services_at_rest(&numbered("kept", 3)).await?;
        let _supervision = stage.supervise();
        stage.proxy.refuse_connections().await;
        // The world goes on meanwhile: one service is changed, one loses a child, one stays as it is.
        stage.change("kept-0", 32).await?;
        let deleted = stage.delete_child("Service", "kept-1").await?;
        tokio::time::sleep(OUTAGE).await;
        stage.proxy.accept_connections().await;
        stage.carried_out("kept-0", 32).await?;
        stage.made_anew("Service", "kept-1", &deleted).await?;
        stage.rests().await?;
        untouched(&stage, "kept-2", &before["kept-2"]).await
    });
}

pub fn an_operator_that_is_never_answered_ends_by_itself_and_its_successor_catches_up() {
    on_stage("unanswered", |stage| async move {
        let before = stage.services_at_rest(&numbered("kept", 2)).await?;
        stage.proxy.fall_silent();
        stage.change("kept-0", 32).await?;
        let ended = stage.operator().wait_for_exit(PATIENCE).await?;
        ensure!(!ended.success(), "ending without an answer is no success");
        let _supervision = stage.supervise();
        stage.proxy.heal().await;
        stage.carried_out("kept-0", 32).await?;
        stage.rests().await?;
        untouched(&stage, "kept-1", &before["kept-1"]).await
    });
}

async fn untouched(stage: &Stage, service: &str, before: &Versions) -> Result<()> {
    let after = stage.bed.children(service).await?;
    ensure!(
        *before == after,
        "children were written: {before:?} became {after:?}"
    );
    Ok(())
}

pub fn a_killed_api_server_is_outlived_and_requests_go_on_meanwhile() {
    on_stage("killed-api", |stage| async move {
        stage.bed.apply(&simulated("serving")).await?;
        stage.bed.ready("serving").await?;
        stage.bed.answers("serving").await?;
        let kept = stage.services_at_rest(&numbered("kept", 2)).await?;
        let serving = stage.bed.settled_children("serving").await?;
        let _supervision = stage.supervise();

        kill_api_server(&stage.cluster).await?;
        let back_at = tokio::time::Instant::now() + OUTAGE;
        while tokio::time::Instant::now() < back_at {
            stage
                .bed
                .answers("serving")
                .await
                .context("while the API server was gone")?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        start_what_died(&stage.cluster).await?;
        stage.change("kept-0", 32).await?;
        stage.carried_out("kept-0", 32).await?;
        stage.rests().await?;
        untouched(&stage, "kept-1", &kept["kept-1"]).await?;
        stage.bed.ready("serving").await?;
        same_but_for_statuses(&stage, "serving", &serving).await?;
        // The cluster had lost its node by then: the gateway has endpoints again when Kubernetes has found it ready.
        eventually("the gateway has endpoints again", PATIENCE, async || {
            stage.bed.answers("serving").await.map(drop)
        })
        .await
    });
}

/// The Deployment's version moves with its status, which is not the operator's; no child is another object.
async fn same_but_for_statuses(stage: &Stage, service: &str, before: &Versions) -> Result<()> {
    let after = stage.bed.children(service).await?;
    let uids = |versions: &Versions| -> Vec<(String, String)> {
        versions
            .iter()
            .map(|(name, (uid, _))| (name.clone(), uid.clone()))
            .collect()
    };
    ensure!(
        uids(before) == uids(&after),
        "children were replaced: {before:?} became {after:?}"
    );
    Ok(())
}

/// Kills it and waits until its port is free: what is left of a killed process may keep it for a moment.
async fn kill_api_server(cluster: &Cluster) -> Result<()> {
    let state = State::load(cluster.paths())?.context("there is no local cluster")?;
    let server = state.process("apiserver").context("no API server runs")?;
    server.signal(Signal::KILL)?;
    eventually("the API server's port is free", PATIENCE, async || {
        let connected = tokio::net::TcpStream::connect((NODE_ADDRESS, 6443)).await;
        ensure!(
            connected.is_err() && !server.is_alive(),
            "somebody still answers"
        );
        Ok(())
    })
    .await
}

/// `cluster up` starts components that have ended, and waits for them.
async fn start_what_died(cluster: &Cluster) -> Result<()> {
    let cluster = cluster.clone();
    tokio::task::spawn_blocking(move || cluster.up(&Progress::start())).await?
}

pub fn versions_that_etcd_has_compacted_are_read_anew() {
    on_stage("compacted", |stage| async move {
        stage.services_at_rest(&numbered("kept", 2)).await?;
        let _supervision = stage.supervise();
        let seen = stage.bed.services().get("kept-0").await?.resource_version();
        let seen = seen.context("an object without a version")?;
        // The operator stands at this version; what comes is hidden from it until its history is gone.
        stage.proxy.refuse_connections().await;
        let deleted = stage.delete_child("Service", "kept-0").await?;
        stage.change("kept-1", 32).await?;
        compact_etcd(&stage)?;
        // The API server remembers some history itself; a new one does not.
        kill_api_server(&stage.cluster).await?;
        start_what_died(&stage.cluster).await?;
        ensure_gone(&stage, &seen).await?;

        stage.proxy.accept_connections().await;
        stage.made_anew("Service", "kept-0", &deleted).await?;
        stage.carried_out("kept-1", 32).await?;
        stage.rests().await?;
        let open = stage.proxy.open_watches(&Match::watches());
        ensure!(open >= 8, "only {open} watches are open again");
        Ok(())
    });
}

/// Compacts etcd at its newest revision, as the API server does it every five minutes at that of five minutes ago.
fn compact_etcd(stage: &Stage) -> Result<()> {
    let revision = etcd(stage, "kv/range", r#"{"key": "AA=="}"#)?;
    let revision = revision["header"]["revision"]
        .as_str()
        .context("etcd tells no revision")?;
    etcd(
        stage,
        "kv/compaction",
        &format!(r#"{{"revision": "{revision}", "physical": true}}"#),
    )?;
    Ok(())
}

/// etcd's gRPC by its HTTP gateway, from within the node's network.
fn etcd(stage: &Stage, method: &str, body: &str) -> Result<serde_json::Value> {
    let netns = format!("--net={}", stage.cluster.paths().netns_file().display());
    let url = format!("{ETCD}/v3/{method}");
    let mut command = std::process::Command::new("nsenter");
    command.args([
        &netns,
        "--",
        "curl",
        "--silent",
        "--show-error",
        "--fail-with-body",
        "--noproxy",
        "*",
        "--data",
        body,
        &url,
    ]);
    let answer = run(&mut command)?;
    serde_json::from_str(&answer).with_context(|| format!("etcd answered {answer}"))
}

/// A watch from this version is refused: without that, the test would show nothing.
async fn ensure_gone(stage: &Stage, version: &str) -> Result<()> {
    use futures::StreamExt;
    let services: Api<_> = stage.bed.services();
    eventually("the version is gone", PATIENCE, async || {
        let refused = match services.watch(&WatchParams::default().timeout(5), version).await {
            Err(kube::Error::Api(status)) => status.code == 410,
            Err(error) => return Err(error.into()),
            Ok(events) => {
                let first = Box::pin(events).next().await;
                matches!(first, Some(Ok(kube::core::WatchEvent::Error(status))) if status.code == 410)
            }
        };
        ensure!(refused, "a watch from version {version} is still served");
        Ok(())
    })
    .await
}
