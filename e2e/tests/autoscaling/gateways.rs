//! A gateway that tells nothing, or what cannot be: nobody knows what is held, or that nobody asks.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use pagoda_e2e::sources::Fault;

use crate::pods::FAULTS;
use crate::stage::{EACH, LOOK, Stage, elastic};

const HELD: [&str; 2] = ["PartialMetrics", "NoMetrics"];

pub async fn whatever_is_wrong_with_the_gateway_no_pod_is_removed_and_the_reason_is_said(
    stage: Arc<Stage>,
) -> Result<()> {
    // One may go to zero, the other to one.
    stage.at_four(&elastic("sleeper", 0, 10)).await?;
    stage.at_four(&elastic("waker", 1, 10)).await?;
    let since = Instant::now();
    for (name, fault) in FAULTS {
        stage.set_gateway_fault(fault);
        for service in ["sleeper", "waker"] {
            stage.load(service).set_in_flight(0);
        }
        // Longer than idleSeconds, windows and stabilisation together.
        tokio::time::sleep(LOOK * 2 / 3).await;
        for service in ["sleeper", "waker"] {
            stage.says(service, &HELD).await.context(name)?;
            stage.stayed_within(service, since, 4, 4).context(name)?;
        }
    }
    stage.set_gateway_fault(Fault::None);
    stage.has("waker", 1).await?;
    stage.has("sleeper", 0).await
}

pub async fn when_everybody_is_silent_nothing_moves_and_the_reason_is_said(
    stage: Arc<Stage>,
) -> Result<()> {
    stage.at_four(&elastic("silent", 0, 10)).await?;
    let since = Instant::now();
    stage.set_gateway_fault(Fault::Silent);
    stage.load("silent").set_fault(Fault::Silent, usize::MAX);
    stage.load("silent").set_in_flight(0);
    tokio::time::sleep(LOOK).await;
    stage.says("silent", &["NoMetrics"]).await?;
    stage.stayed_within("silent", since, 4, 4)?;
    // The load that is found when they speak again is followed, in either direction.
    stage.load("silent").set_in_flight(6 * EACH);
    stage.set_gateway_fault(Fault::None);
    stage.load("silent").set_fault(Fault::None, 0);
    stage.has("silent", 6).await?;
    stage.load("silent").set_in_flight(0);
    stage.has("silent", 0).await
}
