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
    FinishReason, Limits, LimitsError, PlannedRow, Progress, Refusal, Scheduler, SequenceId,
};
use tokio::sync::{mpsc, oneshot};

use super::answer::{Answer, Progressed};
use super::handle::EngineHandle;
use super::heartbeat::Heartbeat;
use super::request::{ChoiceEvent, Command, Event, Failure, NewChoice, Piece, Submission};
use crate::language::Language;
use crate::metrics::{Metrics, SequenceTimes, StepShape};

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
            scheduler: Scheduler::new(self.limits)?,
            executor: self.executor,
            language: self.language,
            metrics: self.metrics,
            live: HashMap::new(),
            logits: Logits::default(),
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

/// A row of one token that is not a prompt's first is a decode.
fn shape(rows: &[PlannedRow]) -> StepShape {
    let mut shape = StepShape::default();
    for row in rows {
        if row.start > 0 && row.len == 1 {
            shape.decode_tokens += 1;
        } else {
            shape.prefill_tokens += row.len;
        }
    }
    shape
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".into())
}

/// A sequence's client side.
struct Live {
    answer: Answer,
    events: mpsc::Sender<ChoiceEvent>,
    choice: usize,
    prompt_tokens: usize,
    arrived: Instant,
    queued: Option<Duration>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

struct EngineLoop {
    scheduler: Scheduler,
    executor: Box<dyn Executor>,
    language: Arc<Language>,
    metrics: Arc<Metrics>,
    live: HashMap<SequenceId, Live>,
    logits: Logits,
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
        let (new, answer) = Answer::begin(choice);
        match self.scheduler.submit(new, self.epoch.elapsed()) {
            Ok(id) => {
                let live = Live {
                    prompt_tokens,
                    answer,
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
        for (id, _) in &plan.admitted {
            self.note_admission(*id, began);
        }
        if plan.rows.is_empty() {
            return;
        }
        match self.forward(&plan.rows) {
            Ok(()) => self.record(&plan.rows),
            Err(error) => self.isolate(&plan.rows, &error),
        }
        self.metrics.step(shape(&plan.rows), began.elapsed());
    }

    fn note_admission(&mut self, id: SequenceId, now: Instant) {
        if let Some(live) = self.live.get_mut(&id)
            && live.queued.is_none()
        {
            let queued = now.saturating_duration_since(live.arrived);
            live.queued = Some(queued);
            self.metrics.admitted(queued);
        }
    }

    fn forward(&mut self, rows: &[PlannedRow]) -> Result<(), ExecutorError> {
        let step_row = |row: &PlannedRow| StepRow {
            tokens: &self.scheduler.tokens(row.sequence)[row.start..row.start + row.len],
            start: row.start,
            block_table: self.scheduler.block_table(row.sequence),
            logits: row.logits,
        };
        let step_rows: Vec<StepRow<'_>> = rows.iter().map(step_row).collect();
        self.executor.forward(&step_rows, &mut self.logits)
    }

    /// A step failed: computes its rows one by one, so that only those fail that fail alone. Computing a position again
    /// writes the same keys and values.
    fn isolate(&mut self, rows: &[PlannedRow], error: &ExecutorError) {
        tracing::error!(%error, rows = rows.len(), "forward pass failed");
        self.metrics.executor_error();
        for row in rows {
            let alone = std::slice::from_ref(row);
            match if rows.len() == 1 {
                Err(error.to_string())
            } else {
                self.forward(alone).map_err(|e| e.to_string())
            } {
                Ok(()) => self.record(alone),
                Err(message) => self.fail(row.sequence, Failure::Executor(message)),
            }
        }
    }

    /// Samples for every row that wanted logits, in order, and tells the scheduler about all rows.
    fn record(&mut self, rows: &[PlannedRow]) {
        let mut logits_row = 0;
        for row in rows {
            if row.logits > 0 {
                self.sample(row, logits_row + row.logits - 1);
                logits_row += row.logits;
            } else {
                self.scheduler.record(row, &[]);
            }
        }
    }

    fn sample(&mut self, row: &PlannedRow, logits_row: usize) {
        let Some(live) = self.live.get_mut(&row.sequence) else {
            return;
        };
        match live.answer.sample(self.logits.row_mut(logits_row)) {
            Ok(token) => {
                let progress = self.scheduler.record(row, &[token]);
                self.advance(row.sequence, token, progress);
            }
            Err(failure) => self.fail(row.sequence, failure),
        }
    }

    fn advance(&mut self, id: SequenceId, token: u32, progress: Progress) {
        if progress == Progress::Finished(FinishReason::Stop) {
            self.complete(id, FinishReason::Stop);
            return;
        }
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        live.note_token(&self.metrics);
        let Progressed { piece, stopped } = live.answer.push(token, &self.language);
        live.send_piece(piece);
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
            cached_tokens: 0,
        });
    }

    fn fail(&mut self, id: SequenceId, failure: Failure) {
        self.scheduler.finish(id);
        if let Some(live) = self.live.remove(&id) {
            self.metrics.finished("error", None);
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

impl Live {
    fn send(&self, event: Event) {
        send(&self.events, self.choice, event);
    }

    fn send_piece(&self, piece: Piece) {
        if !piece.is_empty() {
            self.send(Event::Piece(piece));
        }
    }

    fn note_token(&mut self, metrics: &Metrics) {
        let now = Instant::now();
        match self.last_token {
            None => {
                self.first_token = Some(now);
                let since_arrival = now.saturating_duration_since(self.arrived);
                metrics.first_token(self.prompt_tokens, since_arrival);
            }
            Some(last) => metrics.next_token(now.saturating_duration_since(last)),
        }
        self.last_token = Some(now);
    }

    fn times(&self) -> Option<SequenceTimes> {
        let (queue, first, last) = (self.queued?, self.first_token?, self.last_token?);
        let prefill = first.saturating_duration_since(self.arrived + queue);
        Some(SequenceTimes {
            queue,
            prefill,
            decode: last.saturating_duration_since(first),
        })
    }
}

/// A channel has room for all events of its choices, so only a client that left makes this fail; the next step sees that.
fn send(events: &mpsc::Sender<ChoiceEvent>, choice: usize, event: Event) {
    if let Err(mpsc::error::TrySendError::Full(_)) = events.try_send(ChoiceEvent { choice, event })
    {
        tracing::error!("an answer had more events than its channel was sized for; one is lost");
    }
}

fn reason_label(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn refusal_label(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::EmptyPrompt => "empty_prompt",
        Refusal::TooLong { .. } => "too_long",
        Refusal::QueueFull { .. } => "queue_full",
    }
}
