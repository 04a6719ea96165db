//! Pods that tell nothing, or what cannot be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pagoda_e2e::sources::Fault;
use serde_json::json;

use crate::stage::{EACH, LOOK, Stage, elastic, with};

/// Every fault, by a name of a service.
pub const FAULTS: [(&str, Fault); 7] = [
    ("gone", Fault::Gone),
    ("silent", Fault::Silent),
    ("slow", Fault::Slow(Duration::from_secs(5))),
    ("error", Fault::Status(500)),
    ("garbage", Fault::Garbage),
    ("nan", Fault::NotANumber),
    ("negative", Fault::Negative),
];
/// What the condition may say of partial knowledge.
const HELD: [&str; 2] = ["PartialMetrics", "NoMetrics"];

pub async fn whatever_is_wrong_with_all_pods_none_is_removed_and_the_reason_is_said(
    stage: Arc<Stage>,
) -> Result<()> {
    for (name, _) in FAULTS {
        stage.load(name).set_in_flight(4 * EACH);
        stage.apply(&elastic(name, 1, 10)).await?;
    }
    for (name, _) in FAULTS {
        stage.has(name, 4).await?;
    }
    let since = Instant::now();
    for (name, fault) in FAULTS {
        stage.load(name).set_fault(fault, usize::MAX);
        // The gateway, which is sound, tells of next to nothing.
        stage.load(name).set_in_flight(1);
    }
    tokio::time::sleep(LOOK).await;
    for (name, _) in FAULTS {
        stage.says(name, &HELD).await.context(name)?;
        stage.stayed_within(name, since, 4, 4)?;
    }
    // Heard again, the same load removes them: it was the fault that held them.
    for (name, _) in FAULTS {
        stage.load(name).set_fault(Fault::None, 0);
    }
    for (name, _) in FAULTS {
        stage.has(name, 1).await.context(name)?;
    }
    Ok(())
}

pub async fn one_silent_pod_of_ten_lets_the_service_grow_and_not_shrink(
    stage: Arc<Stage>,
) -> Result<()> {
    let load = stage.load("ten");
    load.set_in_flight(10 * EACH);
    stage.apply(&elastic("ten", 1, 20)).await?;
    stage.has("ten", 10).await?;
    let since = Instant::now();
    load.set_fault(Fault::Silent, 1);
    load.set_in_flight(1);
    tokio::time::sleep(LOOK).await;
    stage.says("ten", &HELD).await?;
    stage.stayed_within("ten", since, 10, 10)?;
    load.set_in_flight(15 * EACH);
    stage.has("ten", 15).await?;
    stage.stayed_within("ten", since, 10, 20)?;
    load.set_in_flight(1);
    load.set_fault(Fault::None, 0);
    stage.has("ten", 1).await
}

pub async fn counters_that_begin_anew_remove_no_pod(stage: Arc<Stage>) -> Result<()> {
    // 64 open requests of 2 s each are 32 a second.
    let target = json!([{"metric": "RequestsPerSecond", "averageValue": "8"}]);
    let manifest = with(
        elastic("counted", 1, 10),
        &["spec", "scaling", "targets"],
        target,
    );
    stage.load("counted").set_in_flight(64);
    stage.apply(&manifest).await?;
    stage.has("counted", 4).await?;
    let since = Instant::now();
    for _ in 0..4 {
        stage.load("counted").reset_counters();
        tokio::time::sleep(LOOK / 4).await;
    }
    stage.stayed_within("counted", since, 4, 5)?;
    // Fewer requests a second that are counted without a break do.
    stage.load("counted").set_in_flight(2);
    stage.has("counted", 1).await
}
