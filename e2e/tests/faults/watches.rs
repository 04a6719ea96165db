//! Watches that end, are refused, or bring nothing any more.

use std::time::Duration;

use anyhow::{Result, ensure};
use pagoda_e2e::faults::{Fault, Match, WatchFault};

use crate::bed::eventually;
use crate::stage::{Stage, numbered, on_stage};

/// An operator that begins its watches anew after two or three minutes of silence is noticing it by itself.
const SILENCE: Duration = Duration::from_mins(5);
/// How long watches are answered with 410 as soon as they are opened.
const GONE: Duration = Duration::from_secs(20);

pub fn a_watch_that_closes_is_cut_or_is_gone_misses_nothing() {
    on_stage("watch-ends", |stage| async move {
        stage.services_at_rest(&numbered("kept", 1)).await?;
        let ends = [WatchFault::Close, WatchFault::Cut, WatchFault::Gone];
        for (sequences, end) in (32..).zip(ends) {
            misses_nothing(&stage, end, sequences).await?;
        }
        stage.rests().await
    });
}

/// What happens while no watch is open is seen once they are open again.
async fn misses_nothing(stage: &Stage, end: WatchFault, sequences: u32) -> Result<()> {
    let closed = Fault::Answer {
        status: 503,
        retry_after: None,
    };
    let rule = stage.proxy.add(Match::watches(), closed);
    let struck = stage.proxy.strike(&Match::watches(), end);
    ensure!(struck >= 8, "only {struck} watches were open");
    eventually("no watch is open", crate::bed::PATIENCE, async || {
        let open = stage.proxy.open_watches(&Match::watches());
        ensure!(open == 0, "{open} still are");
        Ok(())
    })
    .await?;
    let deleted = stage.delete_child("Service", "kept-0").await?;
    stage.change("kept-0", sequences).await?;
    stage.proxy.remove(rule);
    stage.carried_out("kept-0", sequences).await?;
    stage.made_anew("Service", "kept-0", &deleted).await?;
    Ok(())
}

pub fn watches_that_are_gone_again_and_again_are_begun_anew_without_a_hot_loop() {
    on_stage("gone-again", |stage| async move {
        stage.services_at_rest(&numbered("kept", 1)).await?;
        let before = stage.proxy.counts();
        let rule = stage
            .proxy
            .add(Match::watches(), Fault::Watch(WatchFault::Gone));
        let watched = stage.proxy.strike(&Match::watches(), WatchFault::Gone) as u64;
        let deleted = stage.delete_child("Service", "kept-0").await?;
        tokio::time::sleep(GONE).await;
        let hits = stage.proxy.remove(rule);
        let asked = stage.proxy.counts().since(&before);
        ensure!(
            hits >= watched,
            "of {watched} watches {hits} were begun anew"
        );
        ensure!(
            hits <= watched * GONE.as_secs() * 4,
            "{hits} watches in {} s are a hot loop:\n{asked}",
            GONE.as_secs()
        );
        stage.made_anew("Service", "kept-0", &deleted).await?;
        stage.rests().await
    });
}

pub fn a_watch_that_goes_silent_is_noticed() {
    on_stage("silent-watch", |stage| async move {
        stage.services_at_rest(&numbered("kept", 1)).await?;
        let frozen = stage.proxy.strike(&Match::watches(), WatchFault::Freeze);
        ensure!(frozen >= 8, "only {frozen} watches were open");
        // An operator may also notice by ending; then its successor sees it all.
        let _supervision = stage.supervise();
        let deleted = stage.delete_child("Service", "kept-0").await?;
        stage.change("kept-0", 32).await?;
        eventually(
            "the change is seen despite the silence",
            SILENCE,
            async || stage.has_configured("kept-0", 32).await,
        )
        .await?;
        stage.made_anew("Service", "kept-0", &deleted).await?;
        stage.bed.ready("kept-0").await?;
        stage.rests().await
    });
}
