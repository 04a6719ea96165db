//! A wall clock that jumps, as one does that was set by hand or by a hypervisor. The clock that only ever goes on does not.
//!
//! libfaketime stands between the operator's process and the C library's clock and adds what a file says; this needs a
//! dynamically linked program, as debug builds are.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use pagoda_e2e::operator_process::{OperatorCommand, fake_clock};

use crate::bed::{PATIENCE, eventually};
use crate::stage::{Stage, lease, numbered, on_stage_with};

const HOUR: i64 = 3600;
/// Longer than a lease lasts: one that counts by the wall clock takes it over in this time.
const BEYOND_THE_LEASE: Duration = Duration::from_secs(20);

pub fn a_clock_that_jumps_by_an_hour_costs_neither_the_lease_nor_a_write() {
    let shift = std::env::temp_dir().join(format!("pagoda-clock-{}", std::process::id()));
    let file = shift.clone();
    on_stage_with(
        "clock",
        move |command| shift_clock(command, &file),
        |stage| async move {
            let outcome = jumps(&stage, &shift).await;
            fs::remove_file(&shift).ok();
            outcome
        },
    );
}

fn shift_clock(command: &mut OperatorCommand, file: &Path) -> Result<()> {
    fs::write(file, "+0")?;
    command.environment.extend(fake_clock(file)?);
    Ok(())
}

async fn jumps(stage: &Stage, shift: &Path) -> Result<()> {
    stage.services_at_rest(&numbered("kept", 2)).await?;
    let (_proxy, waiting) = stage.second().await?;
    let transitions = lease(stage).await?["spec"]["leaseTransitions"].clone();
    for (sequences, offset) in (32..).zip([HOUR, -HOUR, 0]) {
        let before = stage.proxy.counts();
        fs::write(shift, format!("{offset:+}"))?;
        renewed_with(stage, offset).await?;
        tokio::time::sleep(BEYOND_THE_LEASE).await;
        let written = stage.written_since(&before);
        ensure!(
            written.is_empty(),
            "a clock off by {offset} s made the operator write\n{written}"
        );
        ensure!(
            stage.operator().exit_status()?.is_none(),
            "the operator ended"
        );
        let now = lease(stage).await?["spec"]["leaseTransitions"].clone();
        ensure!(now == transitions, "the lease changed hands");
        ensure!(
            waiting.exit_status()?.is_none(),
            "the operator that waits ended"
        );
        stage.change("kept-0", sequences).await?;
        stage.carried_out("kept-0", sequences).await?;
        stage.rests().await?;
    }
    waiting.stop().await.map(drop)
}

/// The lease carries the shifted time: without that, the test would show nothing.
async fn renewed_with(stage: &Stage, offset: i64) -> Result<()> {
    eventually(
        "the lease is renewed by the shifted clock",
        PATIENCE,
        async || {
            let lease = lease(stage).await?;
            let renewed: Timestamp = lease["spec"]["renewTime"]
                .as_str()
                .context("never renewed")?
                .parse()?;
            let off = renewed - (Timestamp::now() + SignedDuration::from_secs(offset));
            let off = off.total(k8s_openapi::jiff::Unit::Second)?;
            ensure!(off.abs() < 60.0, "it is off by {off} s");
            Ok(())
        },
    )
    .await
}
