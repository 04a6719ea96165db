//! A wall clock that is wrong: the autoscaler reckons by the clock that only ever goes on.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use pagoda_e2e::operator_process::fake_clock;

use crate::stage::{EACH, LOOK, Stage, elastic};

const TEN_MINUTES: i64 = 600;

pub async fn a_wall_clock_that_is_ten_minutes_off_changes_nothing(stage: Arc<Stage>) -> Result<()> {
    let shift = stage.built().plane.file("clock-shift");
    fs::write(&shift, "+0")?;
    let environment = fake_clock(&shift)?;
    stage
        .start_with(|command| command.environment.extend(environment))
        .await?;
    stage.at_four(&elastic("timed", 1, 20)).await?;
    for offset in [TEN_MINUTES, -TEN_MINUTES, 0] {
        let since = Instant::now();
        fs::write(&shift, format!("{offset:+}"))?;
        tokio::time::sleep(LOOK / 2).await;
        let off = format!("with a clock off by {offset} s");
        stage
            .stayed_within("timed", since, 4, 4)
            .with_context(|| off.clone())?;
        // It goes on following the load in both directions.
        stage.load("timed").set_in_flight(7 * EACH);
        stage.has("timed", 7).await.with_context(|| off.clone())?;
        stage.load("timed").set_in_flight(4 * EACH);
        stage.has("timed", 4).await.with_context(|| off.clone())?;
        stage
            .stayed_within("timed", since, 4, 7)
            .with_context(|| off.clone())?;
    }
    Ok(())
}
