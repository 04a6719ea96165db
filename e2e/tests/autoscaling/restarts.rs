//! An operator that ends in the middle and one that begins: what the first had seen, the second has not.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use rustix::process::Signal;
use serde_json::json;

use crate::stage::{EACH, LOOK, PATIENCE, Stage, elastic, with};

/// Pods are removed after so long of a lower load, so that an operator that forgot it would be seen to.
const STABLE_SECONDS: u32 = 20;

async fn killed(stage: &Stage) -> Result<()> {
    let operator = stage.operator()?;
    operator.signal(Signal::KILL)?;
    operator.wait_for_exit(PATIENCE).await.map(drop)
}

pub async fn an_operator_that_starts_again_in_mid_burst_goes_on_and_removes_nothing(
    stage: Arc<Stage>,
) -> Result<()> {
    stage.at_four(&elastic("bursting", 1, 20)).await?;
    let since = Instant::now();
    stage.load("bursting").set_in_flight(12 * EACH);
    killed(&stage).await?;
    stage.start().await?;
    stage.has("bursting", 12).await?;
    stage.stayed_within("bursting", since, 4, 20)
}

pub async fn an_operator_that_starts_again_in_panic_removes_nothing(
    stage: Arc<Stage>,
) -> Result<()> {
    let stable = json!(STABLE_SECONDS);
    let path = ["spec", "scaling", "scaleDownStabilizationSeconds"];
    stage
        .at_four(&with(elastic("panicking", 1, 20), &path, stable))
        .await?;
    // Twice what there is, and more: a panic.
    stage.load("panicking").set_in_flight(14 * EACH);
    stage.has("panicking", 14).await?;
    let since = Instant::now();
    killed(&stage).await?;
    stage.load("panicking").set_in_flight(1);
    stage.start().await?;
    tokio::time::sleep(LOOK).await;
    stage.stayed_within("panicking", since, 14, 20)?;
    // What it has watched for long enough itself, it follows.
    stage.has("panicking", 1).await
}
