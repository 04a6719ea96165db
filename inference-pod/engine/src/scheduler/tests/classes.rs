//! Urgency, deadlines, and what predictions change.

use super::*;
use crate::class::Class;

const AGEING: Duration = Duration::from_secs(30);

impl Scheduler {
    fn add_at(
        &mut self,
        at: u64,
        class: u8,
        prompt_tokens: usize,
        max_new_tokens: usize,
    ) -> SequenceId {
        let new = NewSequence {
            class: Class(class),
            ..request(prompt_tokens, max_new_tokens)
        };
        self.submit(new, seconds(at)).unwrap()
    }

    fn plan_at(&mut self, at: u64) -> StepPlan {
        let plan = self.schedule(seconds(at));
        for row in &plan.rows {
            self.record(row, &vec![2; usize::from(row.draws)]);
        }
        plan
    }
}

fn ids(plan: &StepPlan) -> Vec<SequenceId> {
    plan.rows.iter().map(|row| row.sequence).collect()
}

#[test]
fn the_more_urgent_of_two_that_wait_goes_first() {
    let mut scheduler = scheduler(Limits {
        max_sequences: 1,
        ..limits()
    });
    let running = scheduler.add_at(0, 0, 2, 2);
    scheduler.plan_at(0);
    let (patient, urgent) = (scheduler.add_at(1, 2, 2, 1), scheduler.add_at(5, 0, 2, 1));
    assert_eq!(ids(&scheduler.plan_at(6)), [running]);
    assert_eq!(ids(&scheduler.plan_at(6)), [urgent]);
    assert_eq!(ids(&scheduler.plan_at(6)), [patient]);
}

#[test]
fn a_patient_sequence_that_has_aged_is_not_overtaken_any_more() {
    let mut scheduler = scheduler(Limits {
        max_sequences: 1,
        ..limits()
    });
    let running = scheduler.add_at(0, 0, 2, 2);
    scheduler.plan_at(0);
    let patient = scheduler.add_at(1, 1, 2, 1);
    let after = 2 + AGEING.as_secs();
    scheduler.add_at(after, 0, 2, 1);
    assert_eq!(ids(&scheduler.plan_at(after)), [running]);
    assert_eq!(ids(&scheduler.plan_at(after)), [patient]);
}

#[test]
fn an_urgent_sequence_waits_neither_for_a_place_nor_for_blocks_of_less_urgent_ones() {
    for limits in [
        Limits {
            max_sequences: 2,
            ..limits()
        },
        Limits {
            block_count: 8,
            ..limits()
        },
    ] {
        let mut scheduler = scheduler(limits);
        let (first, last) = (scheduler.add_at(0, 3, 12, 4), scheduler.add_at(0, 3, 12, 4));
        scheduler.plan_at(0);
        let urgent = scheduler.add_at(1, 0, 12, 4);
        let plan = scheduler.plan_at(1);
        assert_eq!(
            (ids(&plan), plan.preempted.clone()),
            (vec![first, urgent], vec![last])
        );
        // And the victim, which is next, comes back when there is room.
        let back = (0..20).find(|_| ids(&scheduler.plan_at(2)).contains(&last));
        assert!(back.is_some());
    }
}

#[test]
fn nobody_is_preempted_for_one_that_would_not_fit_even_so_or_is_no_more_urgent() {
    let mut scheduler = scheduler(Limits {
        block_count: 8,
        ..limits()
    });
    scheduler.add_at(0, 0, 16, 4);
    scheduler.add_at(0, 3, 4, 4);
    scheduler.plan_at(0);
    scheduler.add_at(1, 1, 28, 2);
    scheduler.add_at(1, 3, 20, 2);
    assert!(scheduler.plan_at(1).preempted.is_empty());
}

#[test]
fn an_urgent_prompt_takes_the_budget_before_a_patient_one_under_way() {
    let mut scheduler = scheduler(Limits {
        step_tokens: 8,
        ..limits()
    });
    let patient = scheduler.add_at(0, 2, 30, 1);
    scheduler.plan_at(0);
    let urgent = scheduler.add_at(1, 0, 6, 1);
    assert_eq!(ids(&scheduler.plan_at(1)), [urgent, patient]);
}

#[test]
fn what_has_expired_ends_before_it_costs_more_whether_it_runs_or_waits() {
    let mut scheduler = scheduler(Limits {
        max_sequences: 1,
        ..limits()
    });
    let until = |deadline| NewSequence {
        deadline: Some(seconds(deadline)),
        ..request(8, 20)
    };
    let running = scheduler.submit(until(5), seconds(0)).unwrap();
    let waiting = scheduler.submit(until(4), seconds(0)).unwrap();
    assert_eq!(ids(&scheduler.plan_at(3)), [running]);
    let plan = scheduler.plan_at(5);
    assert_eq!((plan.expired, plan.rows), (vec![waiting, running], vec![]));
    assert!(scheduler.is_idle());
    assert_eq!(scheduler.load().used_blocks, 0);
    // A sequence that ended in time expires no more.
    let done = scheduler
        .submit(
            NewSequence {
                max_new_tokens: 1,
                ..until(9)
            },
            seconds(6),
        )
        .unwrap();
    assert_eq!(ids(&scheduler.plan_at(7)), [done]);
    assert!(scheduler.plan_at(10).expired.is_empty());
}

fn predicting() -> Scheduler {
    let policy = Policy {
        predict_lengths: true,
        ..Policy::default()
    };
    let limits = Limits {
        max_sequences: 2,
        max_waiting: 1000,
        block_count: 64,
        ..limits()
    };
    Scheduler::with_policy(
        limits,
        Policy {
            speculation: crate::policy::Speculation::Off,
            ..policy
        },
    )
    .unwrap()
}

/// A prompt of an application, which sets its first 16 tokens, and of one user.
fn of_application(application: u32, user: u32) -> Vec<u32> {
    [vec![application; 16], vec![user; 2]].concat()
}

#[test]
fn answers_predicted_to_be_short_go_before_long_ones_of_the_same_moment() {
    let mut scheduler = predicting();
    let submit = |scheduler: &mut Scheduler, application, user, tokens| {
        let new = NewSequence {
            prompt: of_application(application, user),
            max_new_tokens: tokens,
            stop_tokens: Arc::from([]),
            ..NewSequence::default()
        };
        scheduler.submit(new, seconds(0)).unwrap()
    };
    for user in 0..40 {
        for (application, tokens) in [(100, 30), (200, 2)] {
            submit(&mut scheduler, application, user, tokens);
            while !scheduler.is_idle() {
                scheduler.plan_at(0);
            }
        }
    }
    let blockers = [
        submit(&mut scheduler, 300, 1, 3),
        submit(&mut scheduler, 400, 2, 3),
    ];
    let plan = scheduler.plan_at(0);
    assert_eq!(ids(&plan), blockers);
    let long = submit(&mut scheduler, 100, 99, 30);
    let short = submit(&mut scheduler, 200, 99, 30);
    let mut order = Vec::new();
    while order.len() < 2 {
        order.extend(scheduler.plan_at(0).admitted.into_iter().map(|(id, _)| id));
    }
    assert_eq!(order, [short, long]);
}

#[test]
fn without_anything_learned_predictions_change_nothing() {
    let plain = Policy {
        prefix_cache: Policy::default().prefix_cache,
        ..Policy::plain()
    };
    let limits = Limits {
        max_sequences: 2,
        max_waiting: 1000,
        block_count: 64,
        ..limits()
    };
    let mut with = predicting();
    let mut without = Scheduler::with_policy(limits, plain).unwrap();
    for scheduler in [&mut with, &mut without] {
        for tokens in 1..10 {
            scheduler.add(tokens, 12 - tokens);
        }
    }
    for _ in 0..40 {
        assert_eq!(with.plan_at(1), without.plan_at(1));
    }
}

/// A scheduler that knows that a row costs a tenth of a step's fixed part, and a token of a prompt as much as a row.
fn that_knows_costs() -> Scheduler {
    let limits = Limits {
        max_sequences: 16,
        step_tokens: 64,
        block_count: 400,
        context_tokens: 400,
        ..limits()
    };
    let policy = Policy {
        prompt_slowdown: Some(0.4),
        ..Policy::plain()
    };
    let mut scheduler = Scheduler::with_policy(limits, policy).unwrap();
    for tokens in 2..10 {
        scheduler.add(tokens, 200);
    }
    for _ in 0..60 {
        let plan = scheduler.plan_at(0);
        if plan.rows.iter().all(crate::plan::PlannedRow::is_decode) {
            scheduler.note_step(
                &plan,
                Duration::from_micros(1000 + 100 * plan.tokens() as u64),
            );
        }
    }
    scheduler
}

#[test]
fn one_long_prompt_among_many_that_decode_comes_in_pieces_that_hold_nobody_up() {
    let mut scheduler = that_knows_costs();
    let long = scheduler.add(300, 1);
    let plan = scheduler.plan_at(0);
    let row = plan.rows.last().unwrap();
    // 1.8 ms for eight rows: 40 % more are seven tokens.
    assert_eq!((row.sequence, plan.rows.len()), (long, 9));
    assert!((5..=8).contains(&row.len), "{row:?}");
}

#[test]
fn prompts_that_are_as_many_as_those_who_decode_get_the_whole_step() {
    let mut scheduler = that_knows_costs();
    for _ in 0..8 {
        scheduler.add(30, 1);
    }
    assert_eq!(scheduler.plan_at(0).tokens(), 64);
}

#[test]
fn a_prompt_gets_the_whole_step_where_nobody_decodes_or_nothing_is_known() {
    let policy = Policy {
        prompt_slowdown: Some(0.4),
        ..Policy::plain()
    };
    let mut scheduler = Scheduler::with_policy(limits(), policy).unwrap();
    scheduler.add(30, 9);
    assert_eq!(scheduler.plan_at(0).tokens(), 30);
    scheduler.add(20, 9);
    assert_eq!(scheduler.plan_at(0).tokens(), 21);
}
