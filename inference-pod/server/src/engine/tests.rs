//! What the engine's thread does: here when the executor misbehaves.

mod exact;
mod scheduling;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pagoda_engine_core::{FinishReason, Limits, Policy, SamplingParams};

use super::*;
use crate::executor::{Executor, ExecutorError, ExecutorInfo, Logits, StepRow};
use crate::language::Language;
use crate::metrics::Metrics;
use crate::simulated::{SimulatedExecutor, SimulatedSpeed};

/// What goes wrong at tokens of a given value.
#[derive(Clone, Copy)]
enum Fault {
    Error,
    NotANumber,
    Panic,
}

/// A simulated executor that fails whenever it sees `trigger` in a prompt.
struct Faulty {
    inner: SimulatedExecutor,
    fault: Fault,
    trigger: u32,
}

impl Executor for Faulty {
    fn info(&self) -> &ExecutorInfo {
        self.inner.info()
    }

    fn forward(&mut self, rows: &[StepRow<'_>], logits: &mut Logits) -> Result<(), ExecutorError> {
        let hit = rows
            .iter()
            .position(|row| row.tokens.contains(&self.trigger));
        match (hit, self.fault) {
            (Some(row), Fault::Error) => return Err(ExecutorError::EmptyRow { row }),
            (Some(_), Fault::Panic) => panic!("the accelerator caught fire"),
            _ => self.inner.forward(rows, logits)?,
        }
        if let Some(row) = hit {
            let wanted = rows[..row].iter().map(|row| row.logits).sum();
            logits.row_mut(wanted).fill(f32::NAN);
        }
        Ok(())
    }
}

fn limits() -> Limits {
    Limits {
        max_sequences: 4,
        max_waiting: 8,
        step_tokens: 64,
        block_tokens: 16,
        block_count: 64,
        context_tokens: 256,
    }
}

fn start(fault: Fault) -> (EngineHandle, EngineEnd) {
    let language = Language::bytes();
    let speed = SimulatedSpeed {
        prefill_tokens_per_second: 1e7,
        decode_step: Duration::from_millis(1),
    };
    let inner = SimulatedExecutor::new(&language, speed, 256, 16, 64);
    let executor = Box::new(Faulty {
        inner,
        fault,
        trigger: u32::from(b'!'),
    });
    let setup = EngineSetup {
        executor,
        language: Arc::new(language),
        limits: limits(),
        policy: Policy::default(),
        metrics: Arc::new(Metrics::new("m")),
    };
    setup.start().unwrap()
}

fn choice(prompt: &str) -> NewChoice {
    NewChoice {
        prompt: prompt.bytes().map(u32::from).collect(),
        max_new_tokens: 20,
        sampling: SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        },
        ..NewChoice::default()
    }
}

/// The last event of every choice.
async fn ends(mut generation: Generation, choices: usize) -> Vec<Option<Event>> {
    let mut ends = vec![None; choices];
    while let Some(ChoiceEvent { choice, event }) = generation.next().await {
        ends[choice] = Some(event);
    }
    ends
}

const FINISHED: Option<Event> = Some(Event::Finished {
    reason: FinishReason::Length,
    completion_tokens: 20,
    cached_tokens: 0,
});

#[tokio::test]
async fn a_failing_step_fails_only_the_sequence_that_fails_alone() {
    let (engine, _end) = start(Fault::Error);
    let generation = engine
        .submit(vec![choice("fine"), choice("bad!"), choice("fine too")])
        .await
        .unwrap();
    let ends = ends(generation, 3).await;
    assert_eq!((&ends[0], &ends[2]), (&FINISHED, &FINISHED));
    assert!(
        matches!(&ends[1], Some(Event::Failed(Failure::Executor(_)))),
        "{:?}",
        ends[1]
    );
    // And the engine is still there.
    let again = engine.submit(vec![choice("again")]).await.unwrap();
    assert_eq!(self::ends(again, 1).await, [FINISHED]);
}

#[tokio::test]
async fn logits_that_are_no_numbers_fail_their_sequence_alone() {
    let (engine, _end) = start(Fault::NotANumber);
    let generation = engine
        .submit(vec![choice("bad!"), choice("fine")])
        .await
        .unwrap();
    let ends = ends(generation, 2).await;
    assert!(
        matches!(&ends[0], Some(Event::Failed(Failure::Sampling(_)))),
        "{:?}",
        ends[0]
    );
    assert_eq!(ends[1], FINISHED);
}

#[tokio::test]
async fn an_engine_that_crashes_tells_its_clients_and_the_process() {
    let (engine, end) = start(Fault::Panic);
    let generation = engine.submit(vec![choice("bad!")]).await.unwrap();
    assert_eq!(
        ends(generation, 1).await,
        [Some(Event::Failed(Failure::EngineGone))]
    );
    assert_eq!(
        end.await.unwrap(),
        Err("the accelerator caught fire".into())
    );
    assert_eq!(
        engine.submit(vec![choice("x")]).await.unwrap_err(),
        SubmitError::Gone
    );
}

#[tokio::test]
async fn an_idle_engine_gives_signs_of_life() {
    let (engine, _end) = start(Fault::Error);
    let later = Instant::now() + Duration::from_millis(1500);
    while engine.heartbeat().age(later) > Duration::from_secs(1) {
        assert!(
            Instant::now() < later + Duration::from_secs(20),
            "no sign of life"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn submissions_are_accepted_or_refused_as_a_whole() {
    let (engine, _end) = start(Fault::Error);
    let refused = engine
        .submit(vec![choice("fine"), choice(&"x".repeat(256))])
        .await
        .unwrap_err();
    assert!(matches!(refused, SubmitError::Refused(_)));
    let refused = engine
        .submit((0..9).map(|_| choice("x")).collect())
        .await
        .unwrap_err();
    assert!(matches!(
        refused,
        SubmitError::Refused(pagoda_engine_core::Refusal::QueueFull { .. })
    ));
}
