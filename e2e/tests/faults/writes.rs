//! Writes that the API server refuses for a while.

use std::time::Duration;

use anyhow::{Result, ensure};
use pagoda_e2e::faults::{Fault, Match};

use crate::bed::{PATIENCE, eventually};
use crate::stage::{Stage, at_zero, numbered, on_stage};

/// How long the fault lasts.
const FAULT: Duration = Duration::from_mins(1);
const A_WHILE: Duration = Duration::from_secs(15);
const SERVICES: usize = 4;
/// Refused writes that a service may cost in that time. With waits that double from a quarter of a second it is eight tries
/// of one or two writes each; a loop without waits makes thousands.
const TRIES_A_SERVICE: u64 = 60;

pub fn conflicts_on_every_write_for_a_minute_are_outlived_without_a_hot_loop() {
    on_stage("conflict", |stage| async move {
        outlives(&stage, 409, None).await
    });
}

pub fn too_many_requests_on_every_write_for_a_minute_are_outlived_without_a_hot_loop() {
    on_stage("too-many", |stage| async move {
        outlives(&stage, 429, Some(1)).await
    });
}

/// Half of the services are there before, and changed in the bad minute; half come in it.
async fn outlives(stage: &Stage, status: u16, retry_after: Option<u32>) -> Result<()> {
    let old = numbered("old", SERVICES / 2);
    let new = numbered("new", SERVICES / 2);
    stage.services_at_rest(&old).await?;

    let before = stage.proxy.counts();
    let refused = Fault::Answer {
        status,
        retry_after,
    };
    let rule = stage.proxy.add(Match::writes().except("leases"), refused);
    for name in &old {
        stage.change(name, 32).await?;
    }
    for name in &new {
        stage.bed.apply(&at_zero(name)).await?;
    }
    tokio::time::sleep(FAULT).await;
    let tried = stage.written_since(&before);
    let hits = stage.proxy.remove(rule);

    ensure!(
        hits >= SERVICES as u64,
        "only {hits} writes met the fault: {tried}"
    );
    ensure!(
        hits <= TRIES_A_SERVICE * SERVICES as u64,
        "{hits} refused writes in {} s are a hot loop:\n{tried}",
        FAULT.as_secs()
    );
    for name in &old {
        stage.carried_out(name, 32).await?;
    }
    for name in &new {
        stage.bed.ready(name).await?;
        stage.bed.settled_children(name).await?;
    }
    ensure!(
        stage.operator().exit_status()?.is_none(),
        "the operator gave up leading although nobody refused its lease"
    );
    stage.rests().await
}

pub fn refused_leases_for_a_minute_end_the_operator_and_its_successor_leads() {
    on_stage("no-lease", |stage| async move {
        stage.services_at_rest(&numbered("old", 1)).await?;
        let refused = Fault::Answer {
            status: 409,
            retry_after: None,
        };
        stage.proxy.add(Match::writes(), refused);
        stage.operator().wait_for_exit(PATIENCE).await?;
        let _supervision = stage.supervise();
        stage.change("old-0", 32).await?;
        let before = stage.proxy.counts();
        tokio::time::sleep(FAULT).await;
        // Nobody leads, so nobody may write.
        let written = stage.written_since(&before);
        ensure!(written.is_empty(), "without a lease was written\n{written}");
        stage.proxy.heal().await;
        stage.carried_out("old-0", 32).await?;
        stage.rests().await
    });
}

pub fn server_errors_and_lost_answers_end_in_the_same_children() {
    on_stage("errors", |stage| async move {
        let writes = || Match::writes().except("leases");
        let failures = [500, 503, 504].map(|status| Fault::Answer {
            status,
            retry_after: None,
        });
        let kinds = failures
            .into_iter()
            .chain([Fault::HangUp, Fault::LoseAnswer]);
        let names = numbered("some", 3);
        // Each fault for the next few writes, one after the other; the next write after them is as it should be.
        let rules: Vec<_> = kinds
            .map(|fault| stage.proxy.add_times(3, writes(), fault))
            .collect();
        for name in &names {
            stage.bed.apply(&at_zero(name)).await?;
        }
        for name in &names {
            stage.bed.ready(name).await?;
            stage.bed.settled_children(name).await?;
        }
        stage.rests().await?;
        let spent = rules.iter().all(|rule| stage.proxy.hits(*rule) == 3);
        ensure!(spent, "not every fault was met");
        eventually(
            "each service has one child of each kind",
            PATIENCE,
            async || {
                for name in &names {
                    let children = stage.bed.children(name).await?;
                    ensure!(
                        children.len() == crate::stage::CHILD_KINDS.len(),
                        "children are {children:?}"
                    );
                }
                Ok(())
            },
        )
        .await
    });
}

/// Children are as they should be, and nothing happens any more that would make the operator look again.
pub fn a_status_that_is_refused_for_a_while_is_told_in_the_end() {
    on_stage("status", |stage| async move {
        let names = numbered("told", 2);
        for (name, status) in names.iter().zip([409, 500]) {
            let refused = Fault::Answer {
                status,
                retry_after: None,
            };
            let statuses = Match::writes().of("inferenceservices/status").named(name);
            stage.proxy.add(statuses, refused);
            stage.bed.apply(&at_zero(name)).await?;
            stage.bed.settled_children(name).await?;
        }
        tokio::time::sleep(A_WHILE).await;
        stage.proxy.heal().await;
        for name in &names {
            stage.bed.ready(name).await?;
        }
        stage.rests().await
    });
}
