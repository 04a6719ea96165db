//! A million random steps of a scheduler, each followed by everything that must always hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pagoda_engine_core::{
    FinishReason, Limits, NewSequence, PlannedRow, Progress, Refusal, Scheduler, SequenceId,
    StepPlan, uniform,
};

/// A stream of small numbers that a seed repeats.
struct Draws {
    seed: u64,
    index: u64,
}

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.index += 1;
        (uniform(self.seed, self.index) * bound as f64) as usize
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// What the test itself knows about a sequence.
struct Known {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    allowed: usize,
    computed: usize,
    arrived: u64,
    last_planned: Option<u64>,
}

/// A scheduler beside an independent account of what it should hold.
struct World {
    scheduler: Scheduler,
    known: HashMap<SequenceId, Known>,
    draws: Draws,
    step: u64,
    finished: u64,
    preempted: u64,
}

const STOP: u32 = 0;

/// The token a sequence gets at a position: a function of both, so that an answer repeats after preemption.
fn token(id: SequenceId, position: usize) -> u32 {
    1 + (uniform(id.0, position as u64) * 1000.0) as u32
}

impl World {
    fn new(seed: u64, limits: Limits) -> Self {
        Self {
            scheduler: Scheduler::new(limits).expect("limits are sound"),
            known: HashMap::new(),
            draws: Draws { seed, index: 0 },
            step: 0,
            finished: 0,
            preempted: 0,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.step)
    }

    fn submit(&mut self) {
        let limits = *self.scheduler.limits();
        let longest = limits.longest_sequence();
        let prompt_tokens = if self.draws.chance(20) {
            self.draws.below(longest + 3)
        } else {
            self.draws.below(24)
        };
        let prompt: Vec<u32> = (0..prompt_tokens)
            .map(|_| 1 + self.draws.below(1000) as u32)
            .collect();
        let most_new_tokens = if self.draws.chance(10) { 500 } else { 20 };
        let max_new_tokens = 1 + self.draws.below(most_new_tokens);
        let new = NewSequence {
            prompt: prompt.clone(),
            max_new_tokens,
            stop_tokens: Arc::from([STOP]),
            ..NewSequence::default()
        };
        match self.scheduler.submit(new, self.now()) {
            Ok(id) => {
                let allowed = max_new_tokens.min(longest - prompt_tokens);
                let known = Known {
                    prompt,
                    answer: Vec::new(),
                    allowed,
                    computed: 0,
                    arrived: self.step,
                    last_planned: None,
                };
                assert!(self.known.insert(id, known).is_none());
            }
            Err(Refusal::EmptyPrompt) => assert_eq!(prompt_tokens, 0),
            Err(Refusal::TooLong { .. }) => assert!(prompt_tokens >= longest),
            Err(Refusal::QueueFull { waiting }) => assert!(waiting >= limits.max_waiting),
        }
    }

    fn cancel_any(&mut self) {
        let mut ids: Vec<SequenceId> = self.known.keys().copied().collect();
        ids.sort_unstable();
        if !ids.is_empty() {
            let id = ids[self.draws.below(ids.len())];
            assert!(self.scheduler.cancel(id));
            self.known.remove(&id);
        }
    }

    fn run_step(&mut self) {
        let had_work = !self.scheduler.is_idle();
        let plan = self.scheduler.schedule(self.now());
        assert_eq!(
            had_work,
            !plan.rows.is_empty(),
            "a step with work does some"
        );
        self.check_plan(&plan);
        // A client may leave between planning and recording.
        if self.draws.chance(50) {
            self.cancel_any();
        }
        for row in &plan.rows {
            self.record(row);
        }
        self.step += 1;
    }

    fn check_plan(&mut self, plan: &StepPlan) {
        let limits = *self.scheduler.limits();
        assert!(plan.tokens() <= limits.step_tokens);
        assert!(plan.preempted.is_empty() || plan.admitted.is_empty());
        self.preempted += plan.preempted.len() as u64;
        for id in &plan.preempted {
            self.known
                .get_mut(id)
                .expect("only live sequences are preempted")
                .computed = 0;
        }
        let mut owned = vec![false; limits.block_count as usize];
        for row in &plan.rows {
            let known = self
                .known
                .get_mut(&row.sequence)
                .expect("only live sequences are planned");
            assert!(
                known.last_planned != Some(self.step),
                "a sequence has one row a step"
            );
            known.last_planned = Some(self.step);
            assert_eq!(
                row.start, known.computed,
                "nothing is skipped or computed twice"
            );
            let total = known.prompt.len() + known.answer.len();
            assert!(row.len >= 1 && row.start + row.len <= total);
            assert_eq!(row.logits, usize::from(row.start + row.len == total));
            let table = self.scheduler.block_table(row.sequence);
            assert!(
                table.len() * limits.block_tokens >= row.start + row.len,
                "every computed token has a place"
            );
            for block in table {
                let shared = std::mem::replace(&mut owned[*block as usize], true);
                assert!(!shared, "block {block} has two owners");
            }
        }
    }

    fn record(&mut self, row: &PlannedRow) {
        let Some(known) = self.known.get_mut(&row.sequence) else {
            assert_eq!(self.scheduler.record(row, &[STOP]), Progress::Unknown);
            return;
        };
        known.computed += row.len;
        let stops = row.logits > 0 && self.draws.chance(40);
        let sampled = if stops {
            STOP
        } else {
            token(row.sequence, known.answer.len())
        };
        let progress = self
            .scheduler
            .record(row, &vec![sampled; row.logits]);
        if row.logits > 0 && !stops {
            known.answer.push(sampled);
        }
        let expected = match (stops, known.answer.len() == known.allowed) {
            (true, _) => Progress::Finished(FinishReason::Stop),
            (false, true) => Progress::Finished(FinishReason::Length),
            (false, false) => Progress::Running,
        };
        assert_eq!(progress, expected);
        if expected == Progress::Running {
            let tokens = self.scheduler.tokens(row.sequence);
            assert!(
                tokens.starts_with(&known.prompt) && tokens[known.prompt.len()..] == known.answer
            );
        } else {
            self.known.remove(&row.sequence);
            self.finished += 1;
        }
    }

    fn check_account(&self) {
        let load = self.scheduler.load();
        let owned: usize = self
            .known
            .keys()
            .map(|id| self.scheduler.block_table(*id).len())
            .sum();
        assert_eq!(
            load.used_blocks, owned,
            "free and referenced blocks are all blocks"
        );
        assert_eq!(load.running + load.waiting, self.known.len());
        assert!(load.running <= self.scheduler.limits().max_sequences);
    }

    /// Nobody waits longer than it takes everyone before it to finish, many times over.
    fn check_starvation(&self) {
        for (id, known) in &self.known {
            assert!(
                self.step - known.last_planned.unwrap_or(known.arrived) < 20_000,
                "sequence {id:?} starves"
            );
        }
    }
}

fn run(seed: u64, limits: Limits, steps: u64) -> World {
    let mut world = World::new(seed, limits);
    for _ in 0..steps {
        // Bursts and lulls: the queue fills and empties again and again.
        let busy = (world.step / 400).is_multiple_of(2);
        if world.draws.chance(if busy { 2 } else { 12 }) {
            world.submit();
        }
        if world.draws.chance(60) {
            world.cancel_any();
        }
        world.run_step();
        world.check_account();
        if world.step.is_multiple_of(4096) {
            world.check_starvation();
        }
    }
    world
}

fn drain(mut world: World) {
    for _ in 0..1_000_000 {
        if world.known.is_empty() {
            assert!(world.scheduler.is_idle());
            assert_eq!(
                world.scheduler.load().used_blocks,
                0,
                "every block came back"
            );
            return;
        }
        world.run_step();
    }
    panic!("{} sequences never finished", world.known.len());
}

#[test]
fn a_million_random_steps_keep_every_invariant() {
    let tight = Limits {
        max_sequences: 6,
        max_waiting: 40,
        step_tokens: 24,
        block_tokens: 4,
        block_count: 24,
        context_tokens: 80,
    };
    let shapes = [
        tight,
        Limits {
            step_tokens: 6,
            ..tight
        },
        Limits {
            block_count: 200,
            ..tight
        },
        Limits {
            block_tokens: 16,
            block_count: 5,
            ..tight
        },
        Limits {
            max_sequences: 1,
            ..tight
        },
    ];
    let run_shape = |seed, limits| {
        let world = run(seed, limits, 200_000);
        let (finished, preempted) = (world.finished, world.preempted);
        assert!(
            finished > 1_000,
            "too little finished to mean anything: {finished}"
        );
        drain(world);
        preempted
    };
    let preempted: u64 = std::thread::scope(|scope| {
        let shapes = (0..).zip(shapes);
        let runs: Vec<_> = shapes
            .map(|(seed, limits)| scope.spawn(move || run_shape(seed, limits)))
            .collect();
        runs.into_iter()
            .map(|run| run.join().expect("every invariant held"))
            .sum()
    });
    assert!(
        preempted > 1_000,
        "preemption was hardly exercised: {preempted}"
    );
}
