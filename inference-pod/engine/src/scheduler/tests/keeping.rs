//! The prefix cache.

use super::*;
use crate::policy::Speculation;
use crate::scope::{CacheScope, ScopeParts};
use crate::sequence::PromptOutputs;

fn keeping(limits: Limits) -> Scheduler {
    let policy = Policy {
        speculation: Speculation::Off,
        ..Policy::default()
    };
    Scheduler::with_policy(limits, policy).unwrap()
}

impl Scheduler {
    fn ask(&mut self, prompt: impl IntoIterator<Item = u32>, max_new_tokens: usize) -> SequenceId {
        self.ask_in(CacheScope::default(), prompt, max_new_tokens)
    }

    fn ask_in(
        &mut self,
        scope: CacheScope,
        prompt: impl IntoIterator<Item = u32>,
        max_new_tokens: usize,
    ) -> SequenceId {
        let new = NewSequence {
            prompt: prompt.into_iter().collect(),
            max_new_tokens,
            scope,
            ..NewSequence::default()
        };
        self.submit(new, seconds(0)).unwrap()
    }

    fn run(&mut self) {
        while !self.is_idle() {
            self.step(7);
        }
    }
}

#[test]
fn a_prompt_that_begins_alike_computes_only_what_is_new() {
    let mut scheduler = keeping(limits());
    scheduler.ask(0..10, 1);
    scheduler.run();
    let id = scheduler.ask((0..8).chain([50, 51, 52]), 2);
    // Two blocks of four are found; the third differs.
    let (plan, _) = scheduler.step(7);
    assert_eq!(rows(&plan), [(1, 8, 3, 1)]);
    assert_eq!(scheduler.cached_tokens(id), 8);
    let counters = scheduler.counters();
    assert_eq!((counters.prefix_queries, counters.prefix_hits), (21, 8));
}

#[test]
fn a_prompt_that_is_wholly_kept_still_computes_its_last_token() {
    let mut scheduler = keeping(limits());
    scheduler.ask(0..8, 1);
    scheduler.run();
    scheduler.ask(0..8, 1);
    let (plan, finished) = scheduler.step(7);
    assert_eq!((rows(&plan), finished.len()), (vec![(1, 4, 4, 1)], 1));
}

#[test]
fn the_answer_is_kept_too_for_the_next_turn() {
    let mut scheduler = keeping(limits());
    scheduler.ask(0..6, 7);
    scheduler.run();
    // 6 tokens of prompt and 6 of the answer are computed: three blocks.
    scheduler.ask((0..6).chain([7; 7]).chain([60, 61]), 1);
    assert_eq!(rows(&scheduler.step(7).0), [(1, 12, 3, 1)]);
}

#[test]
fn scopes_share_nothing() {
    let mut scheduler = keeping(limits());
    scheduler.ask(0..10, 1);
    scheduler.run();
    let scope = CacheScope::of(&ScopeParts {
        tenant_salt: b"other",
        ..ScopeParts::default()
    });
    let id = scheduler.ask_in(scope, 0..10, 1);
    scheduler.step(7);
    assert_eq!(scheduler.cached_tokens(id), 0);
}

#[test]
fn without_a_cache_nothing_is_found_and_nothing_kept() {
    let mut scheduler = scheduler(limits());
    scheduler.ask(0..10, 1);
    scheduler.run();
    scheduler.ask(0..10, 1);
    assert_eq!(rows(&scheduler.step(7).0), [(1, 0, 10, 1)]);
    assert_eq!(
        (scheduler.load().idle_blocks, scheduler.counters()),
        (0, Counters::default())
    );
}

#[test]
fn those_that_begin_alike_wait_for_the_first_to_compute_it() {
    let mut scheduler = keeping(Limits {
        step_tokens: 20,
        ..limits()
    });
    for user in 100..104 {
        scheduler.ask((0..16).chain([user]), 4);
    }
    // The first takes 17 of 20 tokens; the others would only compute the same.
    assert_eq!(rows(&scheduler.step(7).0), [(0, 0, 17, 1)]);
    assert_eq!(
        rows(&scheduler.step(7).0),
        [(0, 17, 1, 1), (1, 16, 1, 1), (2, 16, 1, 1), (3, 16, 1, 1)]
    );
    assert_eq!(scheduler.counters().prefix_hits, 48);
}

#[test]
fn those_that_wait_for_another_go_on_alone_when_it_leaves() {
    let mut scheduler = keeping(Limits {
        step_tokens: 8,
        ..limits()
    });
    let first = scheduler.ask((0..16).chain([100]), 1);
    scheduler.ask((0..16).chain([101]), 1);
    assert_eq!(rows(&scheduler.step(7).0), [(0, 0, 8, 0)]);
    scheduler.cancel(first);
    assert_eq!(
        rows(&scheduler.step(7).0),
        [(1, 8, 8, 0)],
        "and keep what it computed"
    );
}

#[test]
fn a_preempted_sequence_computes_again_only_what_others_took() {
    let mut scheduler = keeping(Limits {
        block_count: 7,
        ..limits()
    });
    scheduler.ask(0..8, 18);
    let victim = scheduler.ask(20..31, 12);
    let plan = loop {
        let (plan, _) = scheduler.step(7);
        if !plan.preempted.is_empty() {
            break plan;
        }
    };
    assert_eq!(plan.preempted, [victim]);
    let computed = scheduler.tokens(victim).len() - 1;
    scheduler.cancel(SequenceId(0));
    let (plan, _) = scheduler.step(7);
    assert!(plan.rows[0].start >= 8, "{plan:?}");
    assert_eq!(
        scheduler.counters().recomputed_tokens,
        (computed - plan.rows[0].start) as u64
    );
    assert_eq!(
        scheduler.cached_tokens(victim),
        0,
        "its own blocks are no hit"
    );
}

#[test]
fn a_prompt_whose_logits_are_wanted_is_computed_whole_and_gives_each_once() {
    let mut scheduler = keeping(Limits {
        context_tokens: 100,
        block_count: 40,
        ..limits()
    });
    scheduler.ask(0..70, 1);
    scheduler.run();
    let new = NewSequence {
        prompt: (0..70).collect(),
        max_new_tokens: 2,
        prompt_outputs: PromptOutputs::Logits,
        ..NewSequence::default()
    };
    scheduler.submit(new, seconds(0)).unwrap();
    assert_eq!(rows(&scheduler.step(7).0), [(1, 0, 32, 32)]);
    assert_eq!(rows(&scheduler.step(7).0), [(1, 32, 32, 32)]);
    assert_eq!(rows(&scheduler.step(7).0), [(1, 64, 6, 6)]);
    assert_eq!(rows(&scheduler.step(7).0), [(1, 70, 1, 1)]);
}

#[test]
fn a_prompt_whose_states_are_wanted_is_computed_whole_in_pieces_as_long_as_a_steps() {
    let mut scheduler = keeping(Limits {
        context_tokens: 100,
        block_count: 40,
        step_tokens: 48,
        ..limits()
    });
    scheduler.ask(0..70, 1);
    scheduler.run();
    let new = NewSequence {
        prompt: (0..70).collect(),
        max_new_tokens: 1,
        prompt_outputs: PromptOutputs::States,
        ..NewSequence::default()
    };
    scheduler.submit(new, seconds(0)).unwrap();
    assert_eq!(rows(&scheduler.step(7).0), [(1, 0, 48, 48)]);
    assert_eq!(rows(&scheduler.step(7).0), [(1, 48, 22, 22)]);
}

#[test]
fn places_that_hold_no_token_yet_are_counted() {
    let mut scheduler = keeping(limits());
    scheduler.ask(0..9, 4);
    scheduler.step(7);
    assert_eq!(scheduler.load().unfilled_tokens, 3);
    scheduler.step(7);
    assert_eq!(scheduler.load().unfilled_tokens, 2);
}
