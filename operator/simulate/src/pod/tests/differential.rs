//! Against the engine's own scheduler, step by step, with the time that the simulated executor takes.

use std::time::Duration;

use pagoda_engine_core::{Limits, NewSequence, Progress, Scheduler, StepPlan};
use proptest::prelude::*;

use super::*;

/// `SimulatedSpeed::step` of the engine's simulated executor, and what each decoding sequence adds.
fn step(profile: &PodProfile, plan: &StepPlan) -> Nanos {
    let decodes = plan.rows.iter().filter(|row| row.start > 0 && row.len == 1);
    let decodes = decodes.count() as u64;
    let prompts = plan.rows.iter().filter(|row| row.start == 0 || row.len > 1);
    let prompt_tokens: usize = prompts.map(|row| row.len).sum();
    let decode = match decodes {
        0 => 0,
        some => profile.step_nanos + some * profile.sequence_nanos,
    };
    let prefill = Duration::from_secs_f64(prompt_tokens as f64 / profile.prefill_tokens_per_second);
    decode + prefill.as_nanos() as Nanos
}

/// When the first and last token of each come in the engine.
fn engine(profile: &PodProfile, arrivals: &[Arrival]) -> Vec<(Nanos, Nanos)> {
    let mut scheduler = Scheduler::new(Limits {
        max_sequences: profile.max_sequences as usize,
        max_waiting: profile.max_waiting as usize,
        step_tokens: profile.step_tokens as usize,
        block_tokens: profile.block_tokens as usize,
        block_count: profile.kv_blocks,
        context_tokens: profile.context_tokens as usize,
    })
    .expect("limits that work");
    let mut times = vec![(0, 0); arrivals.len()];
    let mut ids = std::collections::HashMap::new();
    let (mut now, mut next) = (0, 0);
    loop {
        // Whoever comes while a step is under way is seen at its end; an idle engine begins with the first at once.
        while next < arrivals.len() && (arrivals[next].at < now || scheduler.is_idle()) {
            let arrival = &arrivals[next];
            now = now.max(arrival.at);
            let sequence = NewSequence {
                prompt: vec![1; arrival.prompt_tokens as usize],
                max_new_tokens: arrival.output_tokens as usize,
                stop_tokens: [].into(),
                ..NewSequence::default()
            };
            let id = scheduler.submit(sequence, Duration::ZERO).expect("fits");
            ids.insert(id, next);
            next += 1;
        }
        let plan = scheduler.schedule(Duration::from_nanos(now));
        if plan.rows.is_empty() {
            return times;
        }
        now += step(profile, &plan);
        for row in &plan.rows {
            let index = ids[&row.sequence];
            if row.logits > 0 && times[index].0 == 0 {
                times[index].0 = now;
            }
            if let Progress::Finished(_) = scheduler.record(row, &vec![2; usize::from(row.draws)]) {
                times[index].1 = now;
            }
        }
    }
}

prop_compose! {
    fn any_profile()(
        step_tokens in 16_u32..400, max_sequences in 1_u32..16, kv_blocks in 40_u32..200,
        step in 1_u64..40, sequence in 0_u64..3,
    ) -> PodProfile {
        PodProfile {
            // A whole number of nanoseconds a token, so that both round alike.
            prefill_tokens_per_second: 1000.0,
            step_nanos: step * MILLISECOND,
            sequence_nanos: sequence * MILLISECOND,
            step_tokens: step_tokens.max(max_sequences),
            max_sequences,
            kv_blocks,
            ..profile()
        }
    }
}

fn any_arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let one = (0_u64..400_000_000, 1_u32..500, 1_u32..120);
    proptest::collection::vec(one, 1..50).prop_map(|rows| {
        let mut at = 0;
        rows.into_iter()
            .map(|(pause, prompt, output)| {
                // Odd nanoseconds: never at the very end of a step.
                at += pause | 1;
                request(at, prompt, output)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_token_comes_when_the_engines_scheduler_has_it_come(profile in any_profile(), arrivals in any_arrivals()) {
        let (bench, times) = run(profile, &arrivals, None);
        prop_assert_eq!(times, engine(&profile, &arrivals));
        let asked: u64 = arrivals.iter().map(|a| u64::from(a.output_tokens)).sum();
        prop_assert_eq!(bench.pod.counters().generated_tokens, asked);
        prop_assert_eq!(bench.pod.counters().finished, arrivals.len() as u64);
        prop_assert_eq!(bench.heard.tokens, asked - arrivals.len() as u64, "each token but the first of an answer");
    }

    #[test]
    fn looking_at_a_pod_changes_nothing(
        profile in any_profile(), arrivals in any_arrivals(), look in 1_u64..50_000_000,
    ) {
        let (blind, unseen) = run(profile, &arrivals, None);
        let (bench, seen) = run(profile, &arrivals, Some(look));
        prop_assert_eq!(unseen, seen);
        prop_assert_eq!(blind.pod.counters(), bench.pod.counters());
    }

    #[test]
    fn with_kept_prefixes_no_request_is_lost_and_no_block_is_taken_twice(
        profile in any_profile(), rows in proptest::collection::vec((0_u64..2_000_000_000, 0_usize..6, 1_u32..500, 1_u32..40, 0_u64..4), 1..40),
    ) {
        let profile = PodProfile { prefix_cache: true, kv_blocks: 300, ..profile };
        let mut at = 0;
        let arrivals: Vec<Arrival> = rows.into_iter().map(|(pause, full, rest, output, family)| {
            at += pause;
            let prefix: Vec<u64> = (0..full as u64).map(|nth| family * 10 + nth).collect();
            Arrival { prefix: prefix.into(), ..request(at, full as u32 * 512 + rest, output) }
        }).collect();
        let (bench, times) = run(profile, &arrivals, Some(SECOND));
        let counters = bench.pod.counters();
        prop_assert_eq!(times.len(), arrivals.len());
        prop_assert!(times.iter().zip(&arrivals).all(|((first, last), a)| a.at < *first && first <= last));
        let prompts: u64 = arrivals.iter().map(|a| u64::from(a.prompt_tokens)).sum();
        prop_assert_eq!(counters.prompt_tokens, prompts);
        if counters.preemptions == 0 {
            prop_assert_eq!(counters.prefill_tokens + counters.cache_hits, prompts - counters_of_last_tokens(counters));
        }
    }
}

/// Last tokens of prompts that went as decodes: decode tokens that no answer has.
fn counters_of_last_tokens(counters: &Counters) -> u64 {
    counters.decode_tokens + counters.finished - counters.generated_tokens
}
