use std::sync::Arc;

use super::*;
use crate::limits::Limits;
use crate::plan::Progress;
use crate::sequence::FinishReason;

mod classes;
mod guessing;
mod keeping;

const STOP: u32 = 9;

fn limits() -> Limits {
    Limits {
        max_sequences: 4,
        max_waiting: 64,
        step_tokens: 32,
        block_tokens: 4,
        block_count: 16,
        context_tokens: 64,
    }
}

fn scheduler(limits: Limits) -> Scheduler {
    Scheduler::new(limits).unwrap()
}

fn request(prompt_tokens: usize, max_new_tokens: usize) -> NewSequence {
    NewSequence {
        prompt: vec![1; prompt_tokens],
        max_new_tokens,
        stop_tokens: Arc::from([STOP]),
        ..NewSequence::default()
    }
}

fn seconds(value: u64) -> Duration {
    Duration::from_secs(value)
}

impl Scheduler {
    fn add(&mut self, prompt_tokens: usize, max_new_tokens: usize) -> SequenceId {
        self.submit(request(prompt_tokens, max_new_tokens), seconds(0))
            .unwrap()
    }

    /// One step in which every row that wants logits samples `token`.
    fn step(&mut self, token: u32) -> (StepPlan, Vec<(SequenceId, FinishReason)>) {
        let plan = self.schedule(seconds(1));
        let mut finished = Vec::new();
        for row in &plan.rows {
            if let Progress::Finished(reason) =
                self.record(row, &vec![token; usize::from(row.draws)])
            {
                finished.push((row.sequence, reason));
            }
        }
        (plan, finished)
    }
}

fn rows(plan: &StepPlan) -> Vec<(u64, usize, usize, usize)> {
    plan.rows
        .iter()
        .map(|row| (row.sequence.0, row.start, row.len, row.logits))
        .collect()
}

#[test]
fn computes_a_short_prompt_in_one_step_and_then_one_token_a_step() {
    let mut scheduler = scheduler(limits());
    scheduler.add(5, 3);
    assert_eq!(rows(&scheduler.step(2).0), [(0, 0, 5, 1)]);
    assert_eq!(rows(&scheduler.step(2).0), [(0, 5, 1, 1)]);
    let (plan, finished) = scheduler.step(2);
    assert_eq!(rows(&plan), [(0, 6, 1, 1)]);
    assert_eq!(finished, [(SequenceId(0), FinishReason::Length)]);
    assert!(scheduler.is_idle());
    assert_eq!(scheduler.load().used_blocks, 0);
}

#[test]
fn works_through_a_long_prompt_in_chunks_of_the_budget() {
    let mut scheduler = scheduler(Limits {
        step_tokens: 10,
        ..limits()
    });
    scheduler.add(25, 2);
    assert_eq!(rows(&scheduler.step(2).0), [(0, 0, 10, 0)]);
    assert_eq!(rows(&scheduler.step(2).0), [(0, 10, 10, 0)]);
    assert_eq!(rows(&scheduler.step(2).0), [(0, 20, 5, 1)]);
}

#[test]
fn decodes_come_first_and_prompts_take_what_is_left() {
    let mut scheduler = scheduler(Limits {
        step_tokens: 10,
        ..limits()
    });
    scheduler.add(3, 9);
    scheduler.step(2);
    scheduler.add(12, 9);
    scheduler.add(2, 9);
    assert_eq!(rows(&scheduler.step(2).0), [(0, 3, 1, 1), (1, 0, 9, 0)]);
    assert_eq!(
        rows(&scheduler.step(2).0),
        [(0, 4, 1, 1), (1, 9, 3, 1), (2, 0, 2, 1)]
    );
    assert_eq!(
        rows(&scheduler.step(2).0),
        [(0, 5, 1, 1), (1, 12, 1, 1), (2, 2, 1, 1)]
    );
}

#[test]
fn a_stop_token_ends_a_sequence_and_is_not_part_of_it() {
    let mut scheduler = scheduler(limits());
    let id = scheduler.add(2, 5);
    scheduler.step(2);
    assert_eq!(scheduler.tokens(id), [1, 1, 2]);
    assert_eq!(scheduler.step(STOP).1, [(id, FinishReason::Stop)]);
    assert!(scheduler.is_idle());
}

#[test]
fn a_sequence_ends_at_the_context_whatever_it_asked_for() {
    let mut scheduler = scheduler(Limits {
        context_tokens: 8,
        ..limits()
    });
    scheduler.add(6, usize::MAX);
    assert!(scheduler.step(2).1.is_empty());
    assert_eq!(scheduler.step(2).1, [(SequenceId(0), FinishReason::Length)]);
}

#[test]
fn refuses_what_can_never_fit_with_the_numbers() {
    let mut by_context = scheduler(Limits {
        context_tokens: 8,
        ..limits()
    });
    let refusal = by_context.submit(request(8, 1), seconds(0)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the prompt has 8 tokens, but at most 7 fit: the context is 8 tokens and the answer needs at least one"
    );
    let mut by_memory = scheduler(Limits {
        block_count: 2,
        ..limits()
    });
    let refusal = by_memory.submit(request(9, 1), seconds(0)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the prompt has 9 tokens, but at most 7 fit: the KV memory holds 8 tokens and the answer needs at least one"
    );
    assert_eq!(
        by_memory.submit(request(0, 1), seconds(0)),
        Err(Refusal::EmptyPrompt)
    );
}

#[test]
fn refuses_when_too_many_wait() {
    let mut scheduler = scheduler(Limits {
        max_waiting: 2,
        ..limits()
    });
    scheduler.add(1, 1);
    scheduler.add(1, 1);
    assert_eq!(
        scheduler.submit(request(1, 1), seconds(0)),
        Err(Refusal::QueueFull { waiting: 2 })
    );
    scheduler.step(2);
    scheduler.add(1, 1);
}

#[test]
fn runs_no_more_than_max_sequences_at_once() {
    let mut scheduler = scheduler(limits());
    for _ in 0..6 {
        scheduler.add(2, 3);
    }
    assert_eq!(scheduler.step(2).0.rows.len(), 4);
    assert_eq!((scheduler.load().running, scheduler.load().waiting), (4, 2));
}

#[test]
fn preempts_newest_sequence_when_blocks_run_out() {
    let mut scheduler = scheduler(Limits {
        block_count: 6,
        ..limits()
    });
    let (old, new) = (scheduler.add(8, 12), scheduler.add(7, 12));
    assert_eq!(scheduler.step(2).0.admitted.len(), 2);
    // Three blocks each hold 12 tokens: four more steps fill the old one's.
    for _ in 0..4 {
        assert!(scheduler.step(2).0.preempted.is_empty());
    }
    let (plan, _) = scheduler.step(2);
    assert_eq!(
        (plan.preempted.as_slice(), rows(&plan)),
        ([new].as_slice(), vec![(0, 12, 1, 1)])
    );
    assert_eq!(
        (
            scheduler.block_table(old).len(),
            scheduler.block_table(new).len()
        ),
        (4, 0)
    );
    assert_eq!((scheduler.load().running, scheduler.load().waiting), (1, 1));
}

#[test]
fn a_preempted_sequence_computes_its_answer_so_far_again_and_goes_on() {
    let mut scheduler = scheduler(Limits {
        block_count: 6,
        ..limits()
    });
    let (old, new) = (scheduler.add(8, 12), scheduler.add(7, 12));
    while scheduler.step(2).0.preempted.is_empty() {}
    let kept = scheduler.tokens(new).to_vec();
    scheduler.cancel(old);
    let (plan, _) = scheduler.step(2);
    assert_eq!(rows(&plan), [(new.0, 0, kept.len(), 1)]);
    assert_eq!(scheduler.tokens(new).len(), kept.len() + 1);
}

#[test]
fn admits_nothing_in_a_step_that_preempted() {
    let mut scheduler = scheduler(Limits {
        block_count: 6,
        ..limits()
    });
    scheduler.add(8, 12);
    scheduler.add(7, 12);
    scheduler.add(1, 1);
    loop {
        let (plan, _) = scheduler.step(2);
        if !plan.preempted.is_empty() {
            // The victim's blocks would have been enough.
            assert!(plan.admitted.is_empty());
            break;
        }
    }
}

#[test]
fn cancelling_frees_blocks_at_once_whether_running_or_waiting() {
    let mut scheduler = scheduler(Limits {
        max_sequences: 1,
        ..limits()
    });
    let (running, waiting) = (scheduler.add(8, 4), scheduler.add(8, 4));
    scheduler.step(2);
    assert!(scheduler.cancel(waiting));
    assert_eq!(
        scheduler.load(),
        Load {
            running: 1,
            waiting: 0,
            used_blocks: 3,
            total_blocks: 16,
            ..scheduler.load()
        }
        .with_used(2)
    );
    assert!(scheduler.cancel(running));
    assert_eq!(scheduler.load().used_blocks, 0);
    assert!(!scheduler.cancel(running));
}

impl Load {
    fn with_used(self, used_blocks: usize) -> Self {
        Self {
            used_blocks,
            ..self
        }
    }
}

#[test]
fn a_row_of_a_sequence_cancelled_during_the_step_changes_nothing() {
    let mut scheduler = scheduler(limits());
    let (gone, stays) = (scheduler.add(4, 4), scheduler.add(4, 4));
    let plan = scheduler.schedule(seconds(0));
    scheduler.cancel(gone);
    assert_eq!(scheduler.record(&plan.rows[0], &[2]), Progress::Unknown);
    assert_eq!(scheduler.record(&plan.rows[1], &[2]), Progress::Running);
    assert_eq!(scheduler.tokens(stays).len(), 5);
}

#[test]
fn smaller_sequences_pass_one_that_does_not_fit_but_not_for_ever() {
    let mut scheduler = scheduler(Limits {
        block_count: 16,
        context_tokens: 64,
        max_waiting: 1000,
        ..limits()
    });
    scheduler.add(20, 40);
    scheduler.step(2);
    let large = scheduler.add(60, 1);
    let mut passed = 0;
    for _ in 0..1000 {
        scheduler.add(1, 2);
        let (plan, finished) = scheduler.step(2);
        passed += plan.admitted.iter().filter(|(id, _)| *id != large).count();
        if finished.iter().any(|(id, _)| *id == large) {
            assert_eq!(passed, MAX_PASSED_OVER as usize);
            return;
        }
    }
    panic!("the large sequence starved");
}

#[test]
fn reports_how_long_an_admitted_sequence_waited() {
    let mut scheduler = scheduler(limits());
    let id = scheduler.submit(request(2, 2), seconds(10)).unwrap();
    assert_eq!(scheduler.schedule(seconds(13)).admitted, [(id, seconds(3))]);
}

#[test]
fn limits_that_cannot_work_are_named() {
    let error = |limits| Scheduler::new(limits).unwrap_err().to_string();
    assert_eq!(
        error(Limits {
            block_count: 0,
            ..limits()
        }),
        "block_count must be at least 1"
    );
    assert!(
        error(Limits {
            step_tokens: 3,
            ..limits()
        })
        .starts_with("a step of 3 tokens cannot hold")
    );
}
