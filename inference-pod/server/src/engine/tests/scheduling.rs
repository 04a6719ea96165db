//! What clients see of deadlines and of what is kept.

use super::*;

fn engine(policy: Policy) -> (EngineHandle, EngineEnd) {
    let language = Language::bytes();
    let speed = SimulatedSpeed {
        prefill_tokens_per_second: 1e7,
        decode_step: Duration::from_millis(1),
    };
    let executor = Box::new(SimulatedExecutor::new(&language, speed, 256, 16, 64));
    let setup = EngineSetup {
        executor,
        language: Arc::new(language),
        limits: limits(),
        policy,
        metrics: Arc::new(Metrics::new("m")),
    };
    setup.start().unwrap()
}

#[tokio::test]
async fn a_request_whose_time_is_over_ends_with_that_reason_and_harms_no_other() {
    let (engine, _end) = engine(Policy::default());
    let hurried = NewChoice {
        timeout: Some(Duration::ZERO),
        ..choice("hurried")
    };
    let generation = engine.submit(vec![choice("fine"), hurried]).await.unwrap();
    let ends = ends(generation, 2).await;
    assert_eq!(
        ends,
        [FINISHED, Some(Event::Failed(Failure::DeadlineExceeded))]
    );
}

#[tokio::test]
async fn the_second_of_two_alike_is_told_what_was_kept_for_it() {
    let (engine, _end) = engine(Policy::default());
    let prompt = "the same beginning, long enough for three blocks of sixteen";
    let mut cached = Vec::new();
    for _ in 0..2 {
        let generation = engine.submit(vec![choice(prompt)]).await.unwrap();
        match ends(generation, 1).await.remove(0) {
            Some(Event::Finished { cached_tokens, .. }) => cached.push(cached_tokens),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(cached, [0, 48]);
}
