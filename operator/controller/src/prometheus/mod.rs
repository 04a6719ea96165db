//! Prometheus as a source of figures to scale by: asks the queries of users, and knows how old the answers are.
//!
//! The servers are the administrator's ([`config`]); a user's object names one and brings PromQL. Each query is asked once an
//! interval for all services that want it ([`schedule`]); an answer must be one figure ([`answer`]). Its age is that of the
//! oldest sample behind it, by the server's own clock ([`selectors`]): neither a wrong clock nor a series that has ended makes
//! an old figure look fresh. A figure that is too old is absent ([`readings`]), and what is absent removes no pod.

mod answer;
mod ask;
pub mod config;
mod connection;
mod problem;
mod readings;
mod schedule;
mod selectors;

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    context::Context,
    heartbeat::Sign,
    metrics::PrometheusAnswer,
    stores::{ServiceRow, Table},
};
use ask::{Figure, ask};
use connection::Connections;
use problem::Problem;
pub use readings::{Readings, Trouble};
use schedule::{Millis, Outcome, Question, Schedule, Wanted};

/// What services want is looked at this often.
const LOOK: Duration = Duration::from_secs(1);

/// Asks until the process ends.
pub async fn run(context: Arc<Context>, sign: Arc<Sign>) {
    let begins = async {
        if context.prometheus.servers().is_empty() {
            std::future::pending::<()>().await;
        }
        context.stores.wait_until_read().await
    };
    let beats = async {
        loop {
            sign.beat();
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        read = begins => if read.is_err() { return },
        () = beats => {}
    }
    for (name, server) in context.prometheus.servers() {
        if server.shows_secrets_in_the_clear() {
            tracing::warn!(
                server = name,
                "credentials for this Prometheus travel over plain http, where others can read them: use https"
            );
        }
    }
    let mut asker = Asker::new(&context.prometheus);
    loop {
        asker.turn(&context).await;
        sign.beat();
    }
}

/// An answer that has come.
type Answered = (Question, Instant, Result<Figure, Problem>);

struct Asker {
    clock: Instant,
    schedule: Schedule,
    connections: BTreeMap<Arc<str>, Arc<Connections>>,
    under_way: JoinSet<Answered>,
    /// Of what is wanted.
    digest: u64,
    next_look: Instant,
    /// Servers whose last failure stands in the log.
    told: BTreeMap<Arc<str>, Problem>,
}

impl Asker {
    fn new(readings: &Readings) -> Self {
        let servers = readings.servers().iter();
        let connections = servers.map(|(name, server)| {
            let connections = Arc::new(Connections::to(server.clone()));
            (Arc::from(name.as_str()), connections)
        });
        Self {
            clock: Instant::now(),
            schedule: Schedule::default(),
            connections: connections.collect(),
            under_way: JoinSet::new(),
            digest: 0,
            next_look: Instant::now(),
            told: BTreeMap::new(),
        }
    }

    /// From one event to the next.
    async fn turn(&mut self, context: &Context) {
        if self.next_look <= Instant::now() {
            self.next_look = Instant::now() + LOOK;
            self.look(context);
        }
        for question in self.schedule.take_due(self.now()) {
            self.begin(question);
        }
        let wake = self.wake();
        tokio::select! {
            Some(answered) = self.under_way.join_next() => {
                // A task that panicked would leave its question asked for ever: that is a bug, and ends the process.
                match answered {
                    Ok(answered) => self.take(context, answered),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
            () = sleep_until(wake) => {}
        }
    }

    /// When there is something to do beside waiting for answers. What is due and has no slot waits for one of them.
    fn wake(&self) -> Instant {
        let due = self.schedule.next_due().filter(|due| *due > self.now());
        let due = due.map(|due| self.clock + Duration::from_millis(due));
        due.map_or(self.next_look, |due| due.min(self.next_look))
    }

    fn now(&self) -> Millis {
        self.clock.elapsed().as_millis() as u64
    }

    /// Learns what services want.
    fn look(&mut self, context: &Context) {
        let rows = wanting(&context.stores.services);
        let digest = digest(&rows);
        if std::mem::replace(&mut self.digest, digest) == digest {
            return;
        }
        let wanted = wanted(&context.prometheus, &rows);
        context
            .prometheus
            .retain(|question| wanted.contains_key(question));
        self.schedule.want(wanted, self.now());
    }

    fn begin(&mut self, question: Question) {
        // Only questions to servers that there are become wanted.
        let Some(connections) = self.connections.get(&question.server).cloned() else {
            return;
        };
        self.under_way.spawn(async move {
            let asked = Instant::now();
            let outcome = ask(&connections, &question.query).await;
            (question, asked, outcome)
        });
    }

    fn take(&mut self, context: &Context, (question, asked, outcome): Answered) {
        let result = match &outcome {
            Err(problem) if problem.is_of_server() => Outcome::ServerFailed,
            Err(problem) if problem.is_failure() => Outcome::QuestionFailed,
            _ => Outcome::Answered,
        };
        count(context, &question, &outcome);
        self.log(&question, &outcome);
        context.prometheus.note(&question, outcome, asked);
        self.schedule.done(&question, result, self.now());
    }

    /// Says once when a server fails, and once when it answers again. The words of a query's failure go to its user alone.
    fn log(&mut self, question: &Question, outcome: &Result<Figure, Problem>) {
        let server = &question.server;
        match outcome {
            Err(problem) if problem.is_of_server() => {
                if self.told.get(server) != Some(problem) {
                    tracing::warn!(%problem, %server, "a Prometheus does not answer");
                    self.told.insert(server.clone(), problem.clone());
                }
            }
            _ => {
                if self.told.remove(server).is_some() {
                    tracing::info!(%server, "a Prometheus answers again");
                }
            }
        }
    }
}

fn count(context: &Context, question: &Question, outcome: &Result<Figure, Problem>) {
    let result = match outcome {
        Ok(_) => "ok",
        Err(problem) => problem.reason(),
    };
    let server = question.server.to_string();
    let labels = PrometheusAnswer { server, result };
    context
        .metrics
        .prometheus_answers
        .get_or_create(&labels)
        .inc();
}

type Row = (crate::key::Key, Arc<ServiceRow>);

/// Services that scale by a Prometheus.
fn wanting(services: &Table<Arc<ServiceRow>>) -> Vec<Row> {
    let wants = |row: &Arc<ServiceRow>| {
        let spec = row.scaled.as_ref();
        spec.is_some_and(|spec| spec.scaling.prometheus.is_some())
    };
    let rows = services.entries_where(wants).into_iter();
    rows.filter_map(|(key, row)| Some((key?, row))).collect()
}

/// The same for the same specs, in whatever order.
fn digest(rows: &[Row]) -> u64 {
    let of = |(key, row): &Row| {
        let mut hasher = DefaultHasher::new();
        (key, &row.uid, row.generation).hash(&mut hasher);
        hasher.finish()
    };
    // So that none is not the same as never having looked.
    rows.iter().map(of).fold(1, u64::wrapping_add)
}

/// Each question once, at the shortest interval that a service wants.
fn wanted(readings: &Readings, rows: &[Row]) -> HashMap<Question, Wanted> {
    let mut all: HashMap<Question, Wanted> = HashMap::new();
    for (key, row) in rows {
        let spec = row.scaled.as_ref();
        let Some(settings) = spec.and_then(|spec| spec.scaling.prometheus.as_ref()) else {
            continue;
        };
        let namespace: Arc<str> = key.namespace().into();
        if readings::refusal(readings.servers(), &namespace, &settings.server).is_some() {
            continue;
        }
        let server: Arc<str> = settings.server.as_str().into();
        // However rarely a service wants to ask, a figure must not grow too old between two questions.
        let seconds = settings.interval_seconds.min(settings.max_age_seconds / 2);
        let interval = Duration::from_secs(seconds.max(1).into());
        for query in &settings.queries {
            let question = Question {
                server: server.clone(),
                query: query.query.as_str().into(),
            };
            let wanted = all.entry(question).or_insert_with(|| Wanted {
                interval,
                namespace: namespace.clone(),
            });
            wanted.interval = wanted.interval.min(interval);
        }
    }
    all
}

#[cfg(test)]
mod tests;
