//! Speculative decoding.

use super::*;
use crate::policy::Speculation;

fn guessing(limits: Limits) -> Scheduler {
    let policy = Policy {
        speculation: Speculation::Fixed(4),
        ..Policy::plain()
    };
    Scheduler::with_policy(limits, policy).unwrap()
}

/// A sequence that has decoded its first token, 2, which came before: 3, 4, 5, 6 followed.
fn begun(max_new_tokens: usize) -> (Scheduler, SequenceId) {
    let mut scheduler = guessing(limits());
    let new = NewSequence {
        prompt: vec![1, 1, 2, 3, 4, 5, 6, 8, 1, 1],
        max_new_tokens,
        stop_tokens: Arc::from([STOP]),
        ..NewSequence::default()
    };
    let id = scheduler.submit(new, seconds(0)).unwrap();
    scheduler.step(2);
    (scheduler, id)
}

#[test]
fn a_row_carries_what_followed_before_and_wants_logits_for_all_of_it() {
    let (mut scheduler, _) = begun(10);
    let plan = scheduler.schedule(seconds(0));
    let row = plan.rows[0];
    assert_eq!(
        (row.start, row.len, row.logits, row.drafts, row.draws),
        (10, 5, 5, 4, true)
    );
    assert_eq!(scheduler.row_tokens(&row), [2, 3, 4, 5, 6]);
    assert_eq!(
        scheduler.tokens(row.sequence).last(),
        Some(&2),
        "guesses are not known tokens"
    );
}

#[test]
fn guesses_count_up_to_the_first_that_is_wrong_and_the_token_drawn_there_counts() {
    for (sampled, start) in [
        (vec![9999], 11),
        (vec![3, 9999], 12),
        (vec![3, 4, 5, 9999], 14),
        (vec![3, 4, 5, 6, 7], 15),
        // Whoever stops drawing early keeps what was drawn.
        (vec![3, 4], 12),
        // What comes after a wrong guess was drawn from logits of another text.
        (vec![3, 9999, 5, 6], 12),
    ] {
        let (mut scheduler, id) = begun(10);
        let row = scheduler.schedule(seconds(0)).rows[0];
        assert_eq!(scheduler.record(&row, &sampled), Progress::Running);
        let counted = start - 10;
        assert_eq!(
            scheduler.tokens(id)[11..],
            sampled[..counted.min(sampled.len())]
        );
        let next = scheduler.schedule(seconds(0)).rows[0];
        assert_eq!((next.start, next.sequence), (start, id), "{sampled:?}");
    }
}

#[test]
fn a_stop_token_among_guesses_ends_the_sequence_there() {
    let (mut scheduler, id) = begun(10);
    let row = scheduler.schedule(seconds(0)).rows[0];
    assert_eq!(
        scheduler.record(&row, &[3, STOP]),
        Progress::Finished(FinishReason::Stop)
    );
    assert!(scheduler.is_idle() && scheduler.tokens(id).is_empty());
}

#[test]
fn no_guess_goes_beyond_the_tokens_asked_for() {
    let (mut scheduler, _) = begun(4);
    let row = scheduler.schedule(seconds(0)).rows[0];
    assert_eq!(row.drafts, 2);
    assert_eq!(
        scheduler.record(&row, &[3, 4, 5]),
        Progress::Finished(FinishReason::Length)
    );
}

#[test]
fn guesses_take_no_block_that_a_running_sequence_might_need() {
    let mut scheduler = guessing(Limits {
        block_count: 3,
        ..limits()
    });
    let new = NewSequence {
        prompt: vec![1, 2, 3, 4, 1, 2],
        max_new_tokens: 6,
        ..NewSequence::default()
    };
    scheduler.submit(new, seconds(0)).unwrap();
    scheduler.step(3);
    let row = scheduler.schedule(seconds(0)).rows[0];
    assert_eq!(
        (row.start, row.drafts),
        (6, 1),
        "one place is left in its block"
    );
}

#[test]
fn guesses_stay_within_the_budget_and_prompts_come_first() {
    let mut scheduler = guessing(Limits {
        step_tokens: 8,
        block_count: 40,
        ..limits()
    });
    for _ in 0..2 {
        let new = NewSequence {
            prompt: vec![1; 6],
            max_new_tokens: 30,
            ..NewSequence::default()
        };
        scheduler.submit(new, seconds(0)).unwrap();
    }
    for _ in 0..3 {
        scheduler.step(1);
    }
    let plan = scheduler.schedule(seconds(0));
    assert_eq!(
        plan.rows.iter().map(|row| row.drafts).collect::<Vec<_>>(),
        [4, 2]
    );
    plan.rows.iter().for_each(|row| {
        scheduler.record(row, &[1]);
    });
    scheduler.add(20, 1);
    let plan = scheduler.schedule(seconds(0));
    assert_eq!(
        plan.rows.iter().map(|row| row.len).collect::<Vec<_>>(),
        [1, 1, 6]
    );
}

#[test]
fn guesses_are_counted_as_made_and_as_come_true() {
    let (mut scheduler, _) = begun(10);
    let row = scheduler.schedule(seconds(0)).rows[0];
    scheduler.record(&row, &[3, 4, 9999]);
    let counters = scheduler.counters();
    assert_eq!((counters.drafted_tokens, counters.accepted_tokens), (4, 2));
}
