//! Random steps of a scheduler by the hundred thousand, each followed by everything that must always hold, beside an
//! independent account of sequences and of what lies in every block.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pagoda_engine_core::{
    CacheScope, Class, FinishReason, Limits, NewSequence, PlannedRow, Policy, Progress,
    PromptOutputs, Refusal, Scheduler, ScopeParts, SequenceId, Speculation, StepPlan, uniform,
};

/// Steps of each run. A debug build makes fewer: it is the same code, five times slower.
const STEPS: u64 = if cfg!(debug_assertions) {
    25_000
} else {
    125_000
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

/// What the keys and values of a position depend on: everything before it, and the scope.
type State = u64;

fn after(state: State, token: u32) -> State {
    (state ^ u64::from(token))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        ^ 0x5851
}

fn first_state(scope: CacheScope) -> State {
    scope.bits() as u64 ^ 0xabcd
}

/// What the test itself knows about a sequence.
struct Known {
    prompt_tokens: usize,
    tokens: Vec<u32>,
    /// After each number of tokens, 0 included.
    states: Vec<State>,
    allowed: usize,
    computed: usize,
    deadline: Option<Duration>,
    class: u8,
    arrived: u64,
    last_planned: Option<u64>,
}

impl Known {
    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.states
            .push(after(self.states[self.states.len() - 1], token));
    }
}

/// A scheduler beside an independent account of what it should hold.
struct World {
    scheduler: Scheduler,
    policy: Policy,
    classes: usize,
    known: HashMap<SequenceId, Known>,
    /// What lies in each place of each block.
    store: Vec<State>,
    draws: Draws,
    step: u64,
    finished: u64,
    preempted: u64,
    expired: u64,
    found: u64,
}

const STOP: u32 = 0;

/// The token a sequence gets at a place of its answer: a function of both, so that an answer repeats after preemption. Some answers
/// repeat themselves, so that guesses come true.
fn token(id: SequenceId, place: usize) -> u32 {
    match id.0 % 3 {
        0 => 1 + (uniform(id.0, place as u64) * 1000.0) as u32,
        1 => 1 + (place % 4) as u32,
        _ if place % 11 == 7 => 1 + (uniform(id.0, place as u64) * 50.0) as u32,
        _ => 5 + (place % 3) as u32,
    }
}

impl World {
    fn new(seed: u64, limits: Limits, policy: Policy, classes: usize) -> Self {
        Self {
            scheduler: Scheduler::with_policy(limits, policy).expect("limits are sound"),
            policy,
            classes,
            known: HashMap::new(),
            store: vec![0; limits.block_count as usize * limits.block_tokens],
            draws: Draws { seed, index: 0 },
            step: 0,
            finished: 0,
            preempted: 0,
            expired: 0,
            found: 0,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.step)
    }

    /// One of a few beginnings, cut somewhere, and some tokens of its own.
    fn prompt(&mut self, tokens: usize) -> Vec<u32> {
        let family = self.draws.below(4) as u32;
        let shared = self.draws.below(tokens + 1);
        let begin = (0..shared as u32).map(|place| 1 + family * 100 + place % 90);
        let mut prompt: Vec<u32> = begin.collect();
        prompt.extend((shared..tokens).map(|_| 1 + self.draws.below(1000) as u32));
        prompt
    }

    fn new_sequence(&mut self) -> NewSequence {
        let longest = self.scheduler.limits().longest_sequence();
        let most = if self.draws.chance(20) {
            longest + 3
        } else {
            30
        };
        let prompt_tokens = self.draws.below(most);
        let most_new_tokens = if self.draws.chance(10) { 500 } else { 20 };
        let scope = if self.draws.chance(5) {
            CacheScope::of(&ScopeParts {
                weight_version: 1,
                ..ScopeParts::default()
            })
        } else {
            CacheScope::default()
        };
        let deadline = self
            .draws
            .chance(12)
            .then(|| self.now() + Duration::from_millis(self.draws.below(300) as u64));
        NewSequence {
            prompt: self.prompt(prompt_tokens),
            max_new_tokens: 1 + self.draws.below(most_new_tokens),
            stop_tokens: Arc::from([STOP]),
            class: Class(self.draws.below(self.classes) as u8),
            deadline,
            scope,
            prompt_outputs: match self.draws.below(50) {
                0 => PromptOutputs::Logits,
                1 => PromptOutputs::States,
                _ => PromptOutputs::Last,
            },
        }
    }

    fn submit(&mut self) {
        let limits = *self.scheduler.limits();
        let longest = limits.longest_sequence();
        let new = self.new_sequence();
        let prompt_tokens = new.prompt.len();
        match self.scheduler.submit(new.clone(), self.now()) {
            Ok(id) => {
                let mut known = Known {
                    prompt_tokens,
                    tokens: Vec::new(),
                    states: vec![first_state(new.scope)],
                    allowed: new.max_new_tokens.min(longest - prompt_tokens),
                    computed: 0,
                    deadline: new.deadline,
                    class: new.class.0,
                    arrived: self.step,
                    last_planned: None,
                };
                new.prompt.iter().for_each(|token| known.push(*token));
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
        let plan = self.scheduler.schedule(self.now());
        self.check_expired(&plan);
        assert_eq!(
            plan.rows.is_empty(),
            self.scheduler.is_idle(),
            "a step with work does some"
        );
        self.check_plan(&plan);
        // A client may leave between planning and recording.
        if self.draws.chance(50) {
            self.cancel_any();
        }
        for row in &plan.rows {
            if self.known.contains_key(&row.sequence) {
                self.compute(row);
            }
        }
        // Now and then a step stands still.
        let nanos = 10_000 + 700 * plan.tokens() as u64 + self.draws.below(4000) as u64;
        let hiccup = if self.draws.chance(100) { 50 } else { 1 };
        self.scheduler
            .note_step(&plan, Duration::from_nanos(nanos * hiccup));
        for row in &plan.rows {
            self.record(row);
        }
        self.step += 1;
    }

    fn check_expired(&mut self, plan: &StepPlan) {
        for id in &plan.expired {
            let known = self.known.remove(id).expect("only live sequences expire");
            assert!(known.deadline.expect("it had a deadline") <= self.now());
        }
        self.expired += plan.expired.len() as u64;
        let now = self.now();
        assert!(
            self.known
                .values()
                .all(|known| known.deadline.is_none_or(|deadline| deadline > now))
        );
    }

    fn check_plan(&mut self, plan: &StepPlan) {
        let limits = *self.scheduler.limits();
        assert!(plan.tokens() <= limits.step_tokens, "the budget holds");
        assert!(self.classes > 1 || plan.preempted.is_empty() || plan.admitted.is_empty());
        self.preempted += plan.preempted.len() as u64;
        for id in &plan.preempted {
            self.known
                .get_mut(id)
                .expect("only live sequences are preempted")
                .computed = 0;
        }
        for row in &plan.rows {
            let admitted = plan.admitted.iter().any(|(id, _)| *id == row.sequence);
            self.check_row(row, admitted);
        }
        self.check_writes(plan);
        if plan.rows.iter().any(|row| row.drafts > 0) {
            assert!(self.policy.speculation != Speculation::Off);
        }
    }

    fn check_row(&mut self, row: &PlannedRow, admitted: bool) {
        let block_tokens = self.scheduler.limits().block_tokens;
        let table = self.scheduler.block_table(row.sequence);
        let known = self
            .known
            .get_mut(&row.sequence)
            .expect("only live sequences are planned");
        assert!(
            known.last_planned != Some(self.step),
            "a sequence has one row a step"
        );
        known.last_planned = Some(self.step);
        let places = table.len() * block_tokens;
        assert!(
            places >= row.start + row.len,
            "every computed token has a place"
        );
        let stored = |position: usize| {
            self.store
                [table[position / block_tokens] as usize * block_tokens + position % block_tokens]
        };
        if admitted {
            assert!(self.policy.prefix_cache.is_some() || row.start == 0);
            // A hit is a miss: what was found is what would have been computed.
            for position in 0..row.start {
                assert_eq!(
                    stored(position),
                    known.states[position + 1],
                    "position {position} of {:?}",
                    row.sequence
                );
            }
            self.found += row.start as u64;
        } else {
            assert_eq!(
                row.start, known.computed,
                "nothing is skipped or computed twice"
            );
            assert!(row.start == 0 || stored(row.start - 1) == known.states[row.start]);
        }
        let (end, total) = (row.start + row.len - row.drafts, known.tokens.len());
        assert!(row.len > row.drafts && end <= total);
        assert_eq!(row.draws, end == total);
        assert!(row.draws || row.drafts == 0);
        assert!(row.logits > row.drafts || !row.draws);
        assert_eq!(
            self.scheduler.row_tokens(row)[..row.len - row.drafts],
            known.tokens[row.start..end]
        );
        assert!(
            total + row.drafts < known.prompt_tokens + known.allowed || row.drafts == 0,
            "guesses stay within the answer"
        );
    }

    /// No block that is written belongs to two.
    fn check_writes(&self, plan: &StepPlan) {
        let limits = self.scheduler.limits();
        let mut owners = vec![0u8; limits.block_count as usize];
        for id in self.known.keys() {
            for block in self.scheduler.block_table(*id) {
                owners[*block as usize] += 1;
            }
        }
        for row in &plan.rows {
            let table = self.scheduler.block_table(row.sequence);
            let written = row.start / limits.block_tokens
                ..(row.start + row.len).div_ceil(limits.block_tokens);
            assert!(
                table[written]
                    .iter()
                    .all(|block| owners[*block as usize] == 1),
                "a shared block is written"
            );
        }
    }

    /// What an executor does: reads what lies before the row, writes the row's places.
    fn compute(&mut self, row: &PlannedRow) {
        let block_tokens = self.scheduler.limits().block_tokens;
        let table = self.scheduler.block_table(row.sequence);
        let slot = |position: usize| {
            table[position / block_tokens] as usize * block_tokens + position % block_tokens
        };
        let mut state = match row.start {
            0 => self.known[&row.sequence].states[0],
            start => self.store[slot(start - 1)],
        };
        for (position, token) in (row.start..).zip(self.scheduler.row_tokens(row)) {
            state = after(state, *token);
            self.store[slot(position)] = state;
        }
    }

    /// Draws until a token is not the one guessed.
    fn drawn(&mut self, row: &PlannedRow) -> Vec<u32> {
        let mut drawn = Vec::new();
        if !row.draws {
            return drawn;
        }
        let answered = self
            .known
            .get(&row.sequence)
            .map_or(0, |known| known.tokens.len() - known.prompt_tokens);
        let tokens = self.scheduler.row_tokens(row).to_vec();
        for place in 0..=row.drafts {
            let stops = self.draws.chance(40);
            drawn.push(if stops {
                STOP
            } else {
                token(row.sequence, answered + place)
            });
            if tokens.get(row.len - row.drafts + place) != drawn.last() {
                break;
            }
        }
        drawn
    }

    fn record(&mut self, row: &PlannedRow) {
        let drawn = self.drawn(row);
        let progress = self.scheduler.record(row, &drawn);
        let Some(known) = self.known.get_mut(&row.sequence) else {
            assert_eq!(progress, Progress::Unknown);
            return;
        };
        known.computed = row.start + row.len - row.drafts + drawn.len().saturating_sub(1);
        let mut expected = Progress::Running;
        for token in drawn {
            if token == STOP {
                expected = Progress::Finished(FinishReason::Stop);
                break;
            }
            known.push(token);
            if known.tokens.len() == known.prompt_tokens + known.allowed {
                expected = Progress::Finished(FinishReason::Length);
                break;
            }
        }
        assert_eq!(progress, expected);
        if expected == Progress::Running {
            assert_eq!(self.scheduler.tokens(row.sequence), known.tokens);
        } else {
            self.known.remove(&row.sequence);
            self.finished += 1;
        }
    }

    fn check_account(&self) {
        let load = self.scheduler.load();
        let tables = self.known.keys().map(|id| self.scheduler.block_table(*id));
        let owned: HashSet<u32> = tables.flatten().copied().collect();
        assert_eq!(
            load.used_blocks,
            owned.len(),
            "free and referenced blocks are all blocks"
        );
        assert!(load.used_blocks + load.idle_blocks <= load.total_blocks);
        assert_eq!(load.running + load.waiting, self.known.len());
        assert!(load.running <= self.scheduler.limits().max_sequences);
    }

    /// Nobody waits longer than it takes everyone before it to finish, many times over.
    fn check_starvation(&self) {
        for (id, known) in &self.known {
            assert!(
                self.step - known.last_planned.unwrap_or(known.arrived) < 10_000,
                "sequence {id:?} of class {} starves",
                known.class
            );
        }
    }
}

fn run(seed: u64, limits: Limits, policy: Policy, classes: usize) -> World {
    let mut world = World::new(seed, limits, policy, classes);
    for _ in 0..STEPS {
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
        if world.step.is_multiple_of(2048) {
            world.check_starvation();
        }
    }
    world
}

fn drain(world: &mut World) {
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

const TIGHT: Limits = Limits {
    max_sequences: 6,
    max_waiting: 40,
    step_tokens: 24,
    block_tokens: 4,
    block_count: 24,
    context_tokens: 80,
};

/// Time is a millisecond a step: a class is worth 100 steps.
fn policy(speculation: Speculation) -> Policy {
    Policy {
        ageing: Duration::from_millis(100),
        speculation,
        ..Policy::default()
    }
}

#[test]
fn a_million_random_steps_keep_every_invariant() {
    let (plain, all) = (policy(Speculation::Off), policy(Speculation::Fixed(3)));
    let runs = [
        (
            TIGHT,
            Policy {
                ageing: plain.ageing,
                ..Policy::plain()
            },
            1,
        ),
        (TIGHT, plain, 1),
        (TIGHT, all, 4),
        (
            Limits {
                step_tokens: 6,
                ..TIGHT
            },
            all,
            1,
        ),
        (
            Limits {
                block_count: 200,
                ..TIGHT
            },
            policy(Speculation::Auto),
            3,
        ),
        (
            Limits {
                block_tokens: 16,
                block_count: 5,
                ..TIGHT
            },
            all,
            2,
        ),
        (
            Limits {
                max_sequences: 1,
                ..TIGHT
            },
            all,
            2,
        ),
        (
            TIGHT,
            Policy {
                predict_lengths: true,
                ..all
            },
            3,
        ),
    ];
    let finish = |seed, (limits, policy, classes)| {
        let mut world = run(seed, limits, policy, classes);
        assert!(
            world.finished > STEPS / 200,
            "too little finished to mean anything: {}",
            world.finished
        );
        drain(&mut world);
        world
    };
    let worlds: Vec<World> = std::thread::scope(|scope| {
        let finish = &finish;
        let runs: Vec<_> = (0..)
            .zip(runs)
            .map(|(seed, run)| scope.spawn(move || finish(seed, run)))
            .collect();
        runs.into_iter()
            .map(|run| run.join().expect("every invariant held"))
            .collect()
    });
    let sum = |of: fn(&World) -> u64| worlds.iter().map(of).sum::<u64>();
    let exercised = [
        ("preemptions", sum(|world| world.preempted)),
        ("expiries", sum(|world| world.expired)),
        ("tokens found", sum(|world| world.found)),
        (
            "guesses that came true",
            sum(|world| world.scheduler.counters().accepted_tokens),
        ),
        (
            "evictions",
            sum(|world| world.scheduler.counters().evictions),
        ),
    ];
    for (what, times) in exercised {
        assert!(times > 500, "{what} were hardly exercised: {times}");
    }
    assert_eq!(worlds[0].found, 0);
}

#[test]
fn ten_thousand_requests_that_come_and_go_leave_the_pool_as_it_was() {
    let mut world = World::new(77, TIGHT, policy(Speculation::Fixed(3)), 3);
    let mut submitted = 0;
    while submitted < 10_000 {
        world.submit();
        submitted += 1;
        if world.draws.chance(2) {
            world.cancel_any();
        }
        if world.draws.chance(3) {
            world.run_step();
        }
    }
    drain(&mut world);
    let load = world.scheduler.load();
    assert_eq!((load.running, load.waiting, load.used_blocks), (0, 0, 0));
    assert_eq!(load.total_blocks, TIGHT.block_count as usize);
}

/// The checks above see a fault: they are run against blocks whose content somebody changed.
#[test]
#[should_panic(expected = "position")]
fn a_block_that_is_not_what_it_is_kept_for_is_seen() {
    let mut world = World::new(
        5,
        Limits {
            block_count: 200,
            ..TIGHT
        },
        policy(Speculation::Off),
        1,
    );
    for _ in 0..2000 {
        world.submit();
        world.run_step();
        let place = world.draws.below(world.store.len());
        world.store[place] ^= 1;
    }
}
