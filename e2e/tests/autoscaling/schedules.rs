//! Times with a minimum of their own.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::stage::{Stage, elastic, with};

fn scheduled(name: &str, cron: &str, time_zone: &str) -> Value {
    let schedule = json!([{
        "name": "office", "cron": cron, "timeZone": time_zone, "durationMinutes": 5, "minReplicas": 3,
    }]);
    with(
        elastic(name, 1, 10),
        &["spec", "scaling", "schedules"],
        schedule,
    )
}

pub async fn a_schedule_holds_its_minimum_and_says_so(stage: Arc<Stage>) -> Result<()> {
    // Begins each minute and lasts five, so it always holds.
    stage
        .apply(&scheduled("office", "* * * * *", "Europe/Berlin"))
        .await?;
    stage.has("office", 3).await?;
    stage
        .eventually("the schedule is named in the status", async || {
            let service = stage.service("office").await?;
            let scaling = service["status"]["scaling"].to_string();
            ensure!(scaling.contains("office"), "status.scaling is {scaling}");
            Ok(())
        })
        .await?;
    // Without it the service has the minimum of every other time.
    stage.apply(&elastic("office", 1, 10)).await?;
    stage.has("office", 1).await
}

pub async fn a_cron_or_time_zone_that_there_is_not_is_refused_in_a_condition(
    stage: Arc<Stage>,
) -> Result<()> {
    let wrong = [
        ("minute-61", "61 8 * * *", "UTC", "cron"),
        ("month-13", "0 8 1 13 *", "UTC", "cron"),
        ("planet", "0 8 * * *", "Mars/Olympus", "timeZone"),
    ];
    for (name, cron, time_zone, field) in wrong {
        stage.apply(&scheduled(name, cron, time_zone)).await?;
        stage
            .eventually("it is refused", async || {
                let ready = stage.condition(name, "Ready").await?;
                let message = ready["message"].as_str().unwrap_or_default();
                ensure!(
                    ready["reason"] == "InvalidSpec" && message.contains(field),
                    "Ready says {ready}"
                );
                Ok(())
            })
            .await
            .context(name)?;
    }
    Ok(())
}
