//! More pods than may be, or than can be: bounds hold, nothing runs away, and the reason stands where the user looks.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ResourceQuota;
use serde_json::json;

use crate::stage::{EACH, LOOK, Stage, elastic, with};

/// The least that the API allows.
const DEADLINE_SECONDS: u32 = 10;

pub async fn a_load_beyond_the_maximum_is_said_and_never_followed_beyond_it(
    stage: Arc<Stage>,
) -> Result<()> {
    let since = Instant::now();
    stage.load("bounded").set_in_flight(100 * EACH);
    stage.apply(&elastic("bounded", 2, 5)).await?;
    stage.has("bounded", 5).await?;
    stage.says("bounded", &["AtMaximum"]).await?;
    tokio::time::sleep(LOOK).await;
    stage.stayed_within("bounded", since, 1, 5)?;
    // Neither below the minimum, when the load goes.
    stage.load("bounded").set_in_flight(0);
    stage.has("bounded", 2).await?;
    tokio::time::sleep(LOOK / 2).await;
    stage.stayed_within("bounded", since, 1, 5)?;
    stage.has("bounded", 2).await
}

pub async fn pods_that_never_get_ready_are_said_and_no_more_are_asked_for(
    stage: Arc<Stage>,
) -> Result<()> {
    let nowhere = json!({"spec": {"nodeSelector": {"example.com/there": "is-no-such-node"}}});
    let manifest = with(elastic("stuck", 1, 20), &["spec", "podTemplate"], nowhere);
    let deadline = json!({"progressDeadlineSeconds": DEADLINE_SECONDS});
    let manifest = with(manifest, &["spec", "rollout"], deadline);
    // Held by the gateway, for there never is a pod.
    stage.load("stuck").set_in_flight(4 * EACH);
    stage.apply(&manifest).await?;
    stage.asks_for("stuck", 4).await?;
    let since = Instant::now();
    tokio::time::sleep(LOOK * 2).await;
    stage.stayed_within("stuck", since, 4, 4)?;
    let said = stage.says("stuck", &["PodsNotReady"]).await?;
    ensure!(said["status"] == "False", "it says {said}");
    stage.stayed_within("stuck", since, 4, 4)
}

pub async fn a_quota_that_stops_pods_is_said_and_no_more_are_asked_for(
    stage: Arc<Stage>,
) -> Result<()> {
    stage
        .create::<ResourceQuota>(
            json!({"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "2"}}}),
        )
        .await?;
    let deadline = json!({"progressDeadlineSeconds": DEADLINE_SECONDS});
    let manifest = with(elastic("crowded", 1, 20), &["spec", "rollout"], deadline);
    stage.load("crowded").set_in_flight(4 * EACH);
    stage.apply(&manifest).await?;
    stage.asks_for("crowded", 4).await?;
    let since = Instant::now();
    stage
        .eventually("the quota is said", async || {
            let service = stage.service("crowded").await?;
            let conditions = service["status"]["conditions"].to_string();
            ensure!(
                conditions.contains("exceeded quota"),
                "conditions are {conditions}"
            );
            Ok(())
        })
        .await?;
    tokio::time::sleep(LOOK * 2).await;
    stage.stayed_within("crowded", since, 4, 4)?;
    stage.says("crowded", &["PodsNotReady"]).await?;
    ensure!(stage.load("crowded").pods() == 2, "the quota allows two");
    Ok(())
}
