//! The engine's thread: take what arrives, drop what nobody wants, plan, compute, sample, send text. Over and over.
//!
//! Nothing in it waits for a client: events go into channels with room for every token that may come. A client that is
//! gone has closed its channel, which is looked at before every step.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::executor::{Executor, ExecutorError, Logits, StepRow};
use pagoda_engine_core::{
    FinishReason, Limits, LimitsError, PlannedRow, Policy, Progress, Refusal, Scheduler,
    SequenceId, StepPlan,
};
use pagoda_model::PooledStates;
use tokio::sync::{mpsc, oneshot};

use super::answer::{Answer, Progressed};
use super::handle::EngineHandle;
use super::heartbeat::Heartbeat;
use super::labels::{panic_text, reason_label, refusal_label};
use super::live::{Live, send};
use super::request::{ChoiceEvent, Command, Event, Failure, NewChoice, Submission};
use crate::language::Language;
use crate::metrics::{Metrics, StepShape};

/// Submissions that may lie between the API and the engine's thread.
const INBOX: usize = 1024;

/// How often an idle engine gives a sign of life.
const IDLE_BEAT: Duration = Duration::from_secs(1);

/// Everything an engine's thread needs.
pub struct EngineSetup {
    /// Computes.
    pub executor: Box<dyn Executor>,
    /// Turns tokens into text.
    pub language: Arc<Language>,
    /// What the scheduler may use.
    pub limits: Limits,
    /// How it decides.
    pub policy: Policy,
    /// What is measured.
    pub metrics: Arc<Metrics>,
}

/// Resolves when an engine's thread ends: with `Err` and what it said when it crashed.
pub type EngineEnd = oneshot::Receiver<Result<(), String>>;

impl EngineSetup {
    /// Starts the thread.
    pub fn start(self) -> Result<(EngineHandle, EngineEnd), LimitsError> {
        self.metrics.set_limits(&self.limits);
        let (commands, inbox) = sync_channel(INBOX);
        let heartbeat = Arc::new(Heartbeat::default());
        let handle = EngineHandle::new(commands, Arc::clone(&heartbeat));
        let mut engine = EngineLoop {
            scheduler: Scheduler::with_policy(self.limits, self.policy)?,
            executor: self.executor,
            language: self.language,
            metrics: self.metrics,
            live: HashMap::new(),
            logits: Logits::default(),
            states: Vec::new(),
            epoch: Instant::now(),
            inbox,
            heartbeat,
        };
        let (ended, wait) = oneshot::channel();
        let run = move || {
            // The process must hear of a crash: without this thread it would look alive and answer nothing.
            let outcome = catch_unwind(AssertUnwindSafe(|| engine.run()))
                .map_err(|panic| panic_text(&*panic));
            drop(engine);
            // Nobody listens when the process is ending anyway.
            let _ = ended.send(outcome);
        };
        let spawned = std::thread::Builder::new().name("engine".into()).spawn(run);
        if let Err(error) = spawned {
            // The closure is gone and `ended` with it, so `wait` tells that there is no engine.
            tracing::error!(%error, "cannot start the engine's thread");
        }
        Ok((handle, wait))
    }
}

/// What the model is asked for after its last layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Tokens,
    Embeddings,
}

/// Tokens that followed a row.
#[derive(Default)]
struct Drawn {
    tokens: Vec<u32>,
    /// The last of them completed a stop string.
    stopped: bool,
}

struct EngineLoop {
    scheduler: Scheduler,
    executor: Box<dyn Executor>,
    language: Arc<Language>,
    metrics: Arc<Metrics>,
    live: HashMap<SequenceId, Live>,
    logits: Logits,
    /// Of texts to embed.
    states: Vec<f32>,
    epoch: Instant,
    inbox: Receiver<Command>,
    heartbeat: Arc<Heartbeat>,
}

impl EngineLoop {
    fn run(&mut self) {
        loop {
            self.heartbeat.beat(Instant::now());
            if !self.take_commands() {
                self.fail_all(&Failure::ShuttingDown);
                return;
            }
            self.drop_unwanted();
            self.step();
            self.metrics.set_load(self.scheduler.load());
            self.metrics.set_counters(&self.scheduler.counters());
        }
    }

    /// Takes what has arrived; waits for it only when there is nothing else to do. False when told to leave.
    fn take_commands(&mut self) -> bool {
        if self.scheduler.is_idle() {
            match self.inbox.recv_timeout(IDLE_BEAT) {
                Ok(Command::Submit(submission)) => self.accept(submission),
                Err(RecvTimeoutError::Timeout) => return true,
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Submit(submission) => self.accept(submission),
                Command::Stop => return false,
            }
        }
        true
    }

    /// Queues all choices of a submission or none.
    fn accept(&mut self, submission: Submission) {
        let Submission {
            choices,
            events,
            arrived,
        } = submission;
        if let Err(refusal) = self.check(&choices) {
            self.metrics.refused(refusal_label(&refusal));
            send(&events, 0, Event::Refused(refusal));
            return;
        }
        send(&events, 0, Event::Accepted);
        for (index, choice) in choices.into_iter().enumerate() {
            self.queue(index, choice, &events, arrived);
        }
    }

    fn check(&self, choices: &[NewChoice]) -> Result<(), Refusal> {
        choices
            .iter()
            .try_for_each(|choice| self.scheduler.limits().check_prompt(choice.prompt.len()))?;
        let waiting = self.scheduler.load().waiting;
        if waiting + choices.len() > self.scheduler.limits().max_waiting {
            return Err(Refusal::QueueFull { waiting });
        }
        Ok(())
    }

    fn queue(
        &mut self,
        index: usize,
        choice: NewChoice,
        events: &mpsc::Sender<ChoiceEvent>,
        arrived: Instant,
    ) {
        let prompt_tokens = choice.prompt.len();
        let timeout = choice.timeout;
        let embedding = choice.embedding.map(PooledStates::new);
        let (mut new, answer) = Answer::begin(choice);
        let arrived_at = arrived.saturating_duration_since(self.epoch);
        new.deadline = timeout.map(|timeout| arrived_at.saturating_add(timeout));
        let stop_tokens = Arc::clone(&new.stop_tokens);
        match self.scheduler.submit(new, self.epoch.elapsed()) {
            Ok(id) => {
                let live = Live {
                    prompt_tokens,
                    cached_tokens: 0,
                    stop_tokens,
                    answer,
                    embedding,
                    events: events.clone(),
                    choice: index,
                    arrived,
                    queued: None,
                    first_token: None,
                    last_token: None,
                };
                self.live.insert(id, live);
            }
            // Checked before, so this is a fault of ours; the client still hears of it.
            Err(refusal) => send(
                events,
                index,
                Event::Failed(Failure::Executor(refusal.to_string())),
            ),
        }
    }

    /// Ends the sequences whose client is gone.
    fn drop_unwanted(&mut self) {
        let gone: Vec<SequenceId> = self
            .live
            .iter()
            .filter(|(_, live)| live.events.is_closed())
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.live.remove(&id);
            self.scheduler.cancel(id);
            self.metrics.finished("abort", None);
        }
    }

    fn step(&mut self) {
        let began = Instant::now();
        let plan = self.scheduler.schedule(self.epoch.elapsed());
        self.metrics.preempted(plan.preempted.len());
        for id in &plan.expired {
            self.fail(*id, Failure::DeadlineExceeded);
        }
        for (id, _) in &plan.admitted {
            self.note_admission(*id, began);
        }
        if plan.rows.is_empty() {
            return;
        }
        let decoded = self.compute(&plan, began);
        let shape = StepShape {
            prefill_tokens: plan.prompt_tokens(),
            decode_tokens: decoded,
        };
        self.metrics.step(shape, began.elapsed());
    }

    fn note_admission(&mut self, id: SequenceId, now: Instant) {
        if let Some(live) = self.live.get_mut(&id)
            && live.queued.is_none()
        {
            let queued = now.saturating_duration_since(live.arrived);
            live.cached_tokens = self.scheduler.cached_tokens(id);
            live.queued = Some(queued);
            self.metrics.admitted(queued);
        }
    }

    /// Computes a step's rows: first those that end in tokens, then those that end in embeddings. Returns how many tokens decodes
    /// drew.
    fn compute(&mut self, plan: &StepPlan, began: Instant) -> usize {
        let (texts, answers): (Vec<PlannedRow>, Vec<PlannedRow>) =
            plan.rows.iter().partition(|row| self.is_embedded(row));
        let computed = [(Head::Tokens, answers), (Head::Embeddings, texts)]
            .map(|(head, rows)| (head, self.forward(head, &rows), rows));
        if computed.iter().all(|(_, outcome, _)| outcome.is_ok()) {
            self.scheduler.note_step(plan, began.elapsed());
        }
        let mut decoded = 0;
        for (head, outcome, rows) in computed {
            decoded += match outcome {
                Ok(()) => self.record(head, &rows),
                Err(error) => self.isolate(head, &rows, &error),
            };
        }
        decoded
    }

    fn is_embedded(&self, row: &PlannedRow) -> bool {
        let live = self.live.get(&row.sequence);
        live.is_some_and(|live| live.embedding.is_some())
    }

    fn forward(&mut self, head: Head, rows: &[PlannedRow]) -> Result<(), ExecutorError> {
        if rows.is_empty() {
            return Ok(());
        }
        let step_row = |row: &PlannedRow| StepRow {
            tokens: self.scheduler.row_tokens(row),
            start: row.start,
            block_table: self.scheduler.block_table(row.sequence),
            logits: row.logits,
        };
        let step_rows: Vec<StepRow<'_>> = rows.iter().map(step_row).collect();
        match head {
            Head::Tokens => self.executor.forward(&step_rows, &mut self.logits),
            Head::Embeddings => self.executor.states(&step_rows, &mut self.states),
        }
    }

    /// A step failed: computes its rows one by one, so that only those fail that fail alone. Computing a position again
    /// writes the same keys and values. Returns how many tokens decodes drew.
    fn isolate(&mut self, head: Head, rows: &[PlannedRow], error: &ExecutorError) -> usize {
        tracing::error!(%error, rows = rows.len(), "forward pass failed");
        self.metrics.executor_error();
        let mut decoded = 0;
        for row in rows {
            let alone = std::slice::from_ref(row);
            match if rows.len() == 1 {
                Err(error.to_string())
            } else {
                self.forward(head, alone).map_err(|e| e.to_string())
            } {
                Ok(()) => decoded += self.record(head, alone),
                Err(message) => self.fail(row.sequence, Failure::Executor(message)),
            }
        }
        decoded
    }

    fn record(&mut self, head: Head, rows: &[PlannedRow]) -> usize {
        match head {
            Head::Tokens => self.record_tokens(rows),
            Head::Embeddings => {
                self.record_states(rows);
                0
            }
        }
    }

    /// Draws tokens for every row that says so, in order, and tells the scheduler about all rows. Returns how many tokens
    /// decodes drew.
    fn record_tokens(&mut self, rows: &[PlannedRow]) -> usize {
        let mut first_logits = 0;
        let mut decoded = 0;
        for row in rows {
            self.note_prompt(row, first_logits);
            let drawn = self.draw(row, first_logits);
            first_logits += row.logits;
            if row.is_decode() {
                decoded += drawn;
            }
        }
        decoded
    }

    /// Takes the states of texts, and ends those that are complete.
    fn record_states(&mut self, rows: &[PlannedRow]) {
        let wanted: usize = rows.iter().map(|row| row.logits).sum();
        let width = self.states.len() / wanted.max(1);
        let mut states = self.states.chunks_exact(width.max(1));
        for row in rows {
            let live = self.live.get_mut(&row.sequence);
            let mut embedding = live.and_then(|live| live.embedding.as_mut());
            for state in states.by_ref().take(row.logits) {
                if let Some(embedding) = &mut embedding {
                    embedding.push(state);
                }
            }
            self.scheduler.record(row, &[]);
        }
        for row in rows.iter().filter(|row| row.draws) {
            self.embed(row.sequence);
        }
    }

    /// A text's states are complete.
    fn embed(&mut self, id: SequenceId) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        let vector = live.embedding.as_ref().map(PooledStates::vector);
        match vector {
            Some(vector) if vector.iter().all(|value| value.is_finite()) => {
                let since_arrival = live.arrived.elapsed();
                self.metrics.embedded(live.prompt_tokens, since_arrival);
                live.send(Event::Embedding(vector));
                self.scheduler.finish(id);
                self.complete(id, FinishReason::Stop);
            }
            _ => self.fail(id, Failure::NotFinite),
        }
    }

    /// Hands on the logits within a prompt, for those who asked for its log probabilities.
    fn note_prompt(&mut self, row: &PlannedRow, first_logits: usize) {
        let Some(live) = self.live.get_mut(&row.sequence) else {
            return;
        };
        let tokens = self.scheduler.tokens(row.sequence);
        let positions = row.start + row.len - row.logits..row.start + row.len;
        for (position, logits) in positions.zip(first_logits..) {
            if position + 1 < live.prompt_tokens {
                let next = tokens[position + 1];
                live.answer
                    .note_prompt(position, self.logits.row(logits), next);
            }
        }
    }

    /// Draws the tokens that follow a row: one, and one more for each guess that came true. Returns how many.
    fn draw(&mut self, row: &PlannedRow, first_logits: usize) -> usize {
        let drawn = if row.draws {
            self.draw_from(row, first_logits + row.logits - row.drafts - 1)
        } else {
            Ok(Drawn::default())
        };
        match drawn {
            Ok(Drawn { tokens, stopped }) => {
                let progress = self.scheduler.record(row, &tokens);
                self.advance(row.sequence, stopped, progress);
                tokens.len()
            }
            Err(failure) => {
                self.fail(row.sequence, failure);
                0
            }
        }
    }

    /// `logits` is the index of those after the last known token.
    fn draw_from(&mut self, row: &PlannedRow, logits: usize) -> Result<Drawn, Failure> {
        let mut drawn = Drawn::default();
        let Some(live) = self.live.get_mut(&row.sequence) else {
            return Ok(drawn);
        };
        let guesses = &self.scheduler.row_tokens(row)[row.len - row.drafts..];
        for place in 0..=row.drafts {
            let token = live.answer.sample(self.logits.row_mut(logits + place))?;
            drawn.tokens.push(token);
            if live.stop_tokens.contains(&token) {
                break;
            }
            live.note_token(&self.metrics);
            let Progressed { piece, stopped } = live.answer.push(token, &self.language);
            live.send_piece(piece);
            drawn.stopped = stopped;
            if stopped || guesses.get(place) != Some(&token) {
                break;
            }
        }
        Ok(drawn)
    }

    fn advance(&mut self, id: SequenceId, stopped: bool, progress: Progress) {
        if stopped {
            self.scheduler.finish(id);
            self.complete(id, FinishReason::Stop);
        } else if let Progress::Finished(reason) = progress {
            self.complete(id, reason);
        }
    }

    /// Sends what is held back, then the end.
    fn complete(&mut self, id: SequenceId, reason: FinishReason) {
        let Some(mut live) = self.live.remove(&id) else {
            return;
        };
        let rest = live.answer.finish();
        live.send_piece(rest);
        self.metrics.finished(reason_label(reason), live.times());
        live.send(Event::Finished {
            reason,
            completion_tokens: live.answer.tokens(),
            cached_tokens: live.cached_tokens,
        });
    }

    fn fail(&mut self, id: SequenceId, failure: Failure) {
        self.scheduler.finish(id);
        if let Some(live) = self.live.remove(&id) {
            let reason = match failure {
                Failure::DeadlineExceeded => "deadline",
                _ => "error",
            };
            self.metrics.finished(reason, None);
            live.send(Event::Failed(failure));
        }
    }

    fn fail_all(&mut self, failure: &Failure) {
        let ids: Vec<SequenceId> = self.live.keys().copied().collect();
        for id in ids {
            self.fail(id, failure.clone());
        }
    }
}
