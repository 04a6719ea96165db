//! What was last answered, for whoever decides, and what is wrong where nothing was. No client.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagoda_operator_core::{autoscale::QueryReading, validate::PrometheusSettings};
use tokio::time::Instant;

use super::{ask::Figure, config::Servers, problem::Problem, schedule::Question};
use crate::key::Key;

/// What the operator knows by Prometheus servers.
#[derive(Debug, Default)]
pub struct Readings {
    servers: Arc<Servers>,
    answers: Mutex<HashMap<Question, Answer>>,
}

#[derive(Clone, Debug, Default)]
struct Answer {
    figure: Option<Kept>,
    problem: Option<Problem>,
}

/// A figure, and when it was asked for.
#[derive(Clone, Copy, Debug)]
struct Kept {
    figure: Figure,
    asked: Instant,
}

impl Kept {
    fn age(&self, now: Instant) -> Duration {
        self.figure
            .age
            .saturating_add(now.saturating_duration_since(self.asked))
    }
}

/// What is in the way of a service's figures, for its condition. The words stand still while nothing changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// CamelCase word.
    pub reason: &'static str,
    /// Which query of which server, and what to do.
    pub message: String,
}

impl Readings {
    /// Of these servers.
    pub fn of_servers(servers: Servers) -> Self {
        Self {
            servers: Arc::new(servers),
            answers: Mutex::default(),
        }
    }

    /// The servers.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// One for each query of a service, in the order of its spec; `None` where the figure is unknown, or older than the
    /// service allows.
    pub fn of(
        &self,
        service: &Key,
        settings: &PrometheusSettings,
        now: Instant,
    ) -> Vec<Option<QueryReading>> {
        let figures = self.look(service, settings, now);
        let reading = |found: Result<(u64, Duration), Problem>| {
            let (value_milli, age) = found.ok()?;
            Some(QueryReading {
                value_milli,
                age_millis: age.as_millis() as u64,
            })
        };
        figures.into_iter().map(reading).collect()
    }

    /// What is wrong with the first of a service's queries that has no figure; `None` while all have one. What failed once
    /// is no trouble while the last figure is fresh, and a question that was not answered yet is none either.
    pub fn trouble(
        &self,
        service: &Key,
        settings: &PrometheusSettings,
        now: Instant,
    ) -> Option<Trouble> {
        let found = self.look(service, settings, now);
        let mut named = settings.queries.iter().zip(found);
        named.find_map(|(query, found)| {
            let problem = found.err().filter(|problem| *problem != Problem::Pending)?;
            let (name, server) = (&query.name, &settings.server);
            Some(Trouble {
                reason: problem.reason(),
                message: format!("query {name} of Prometheus {server}: {problem}"),
            })
        })
    }

    fn look(
        &self,
        service: &Key,
        settings: &PrometheusSettings,
        now: Instant,
    ) -> Vec<Result<(u64, Duration), Problem>> {
        let refusal = refusal(&self.servers, service.namespace(), &settings.server);
        let answers = self.lock();
        let server: Arc<str> = settings.server.as_str().into();
        let of_query = |query: &str| {
            if let Some(refusal) = &refusal {
                return Err(refusal.clone());
            }
            let question = Question {
                server: server.clone(),
                query: query.into(),
            };
            let answer = answers.get(&question).ok_or(Problem::Pending)?;
            answer.figure_within(settings.max_age_seconds, now)
        };
        let queries = settings.queries.iter();
        queries.map(|query| of_query(&query.query)).collect()
    }

    /// Takes in what came of a question that was asked at that time.
    pub fn note(&self, question: &Question, outcome: Result<Figure, Problem>, asked: Instant) {
        let mut answers = self.lock();
        let answer = answers.entry(question.clone()).or_default();
        match outcome {
            Ok(figure) => {
                answer.problem = None;
                // The same moment told twice comes out of a cache, and is as old as it was.
                let is_news = answer.figure.is_none_or(|kept| {
                    kept.figure.evaluated_seconds.to_bits() != figure.evaluated_seconds.to_bits()
                });
                if is_news {
                    answer.figure = Some(Kept { figure, asked });
                }
            }
            Err(problem) => {
                // It answered, and what it knew before is no longer so.
                if problem.is_answer() {
                    answer.figure = None;
                }
                answer.problem = Some(problem);
            }
        }
    }

    /// Forgets what nobody asks any more.
    pub fn retain(&self, wanted: impl Fn(&Question) -> bool) {
        self.lock().retain(|question, _| wanted(question));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Question, Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer {
    fn figure_within(
        &self,
        max_age_seconds: u32,
        now: Instant,
    ) -> Result<(u64, Duration), Problem> {
        let Some(kept) = self.figure else {
            return Err(self.problem.clone().unwrap_or(Problem::Pending));
        };
        let age = kept.age(now);
        if age <= Duration::from_secs(max_age_seconds.into()) {
            return Ok((kept.figure.value_milli, age));
        }
        // Why it was not renewed tells more than that it is old.
        Err(self.problem.clone().unwrap_or(Problem::Stale {
            max_age_seconds,
            skew: kept.figure.skew,
        }))
    }
}

/// Why a service may not have a server asked.
pub fn refusal(servers: &Servers, namespace: &str, server: &str) -> Option<Problem> {
    match servers.get(server) {
        None => Some(Problem::UnknownServer),
        Some(server) if !server.allows(namespace) => Some(Problem::NamespaceNotAllowed),
        Some(_) => None,
    }
}
