//! What keeps a query's figure from being known, in words for whoever wrote the query.
//!
//! The words hold nothing that moves by itself, such as an age in seconds: they stand in a condition, which must not change
//! while nothing changes.

use std::fmt;

/// Characters of somebody else's words that are told.
const MOST_WORDS: usize = 300;

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The operator was given no server of that name.
    #[error(
        "the operator knows no such server: the chart's value prometheus.servers names those that there are"
    )]
    UnknownServer,
    /// The server is not for this namespace.
    #[error("it may not be asked for this namespace (prometheus.servers[].allowedNamespaces)")]
    NamespaceNotAllowed,
    /// Its credentials or its authorities cannot be used.
    #[error("its files cannot be used: {0}")]
    Files(String),
    /// Nobody answers.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It does not answer in time.
    #[error("it does not answer within {0} s")]
    Timeout(u64),
    /// The operator may not ask.
    #[error("it answers {0}: the credentials in prometheus.servers are not accepted")]
    NotPermitted(u16),
    /// It sends the operator elsewhere.
    #[error(
        "it answers {status}, a redirect, which is not followed: put the address it leads to into prometheus.servers"
    )]
    Redirect {
        /// HTTP status.
        status: u16,
    },
    /// It fails, or is no Prometheus.
    #[error("it answers {status}{}", said(.words))]
    Failed {
        /// HTTP status.
        status: u16,
        /// What it says, or nothing.
        words: String,
    },
    /// Its answer is larger than is read.
    #[error("its answer is larger than {} KiB: aggregate to one series, as in sum(...)", .0 / 1024)]
    TooLarge(usize),
    /// Its answer is not one of a Prometheus.
    #[error("its answer is not one of a Prometheus: {0}")]
    Garbage(String),
    /// It refuses the query.
    #[error("it refuses the query: {0}")]
    Refused(String),
    /// Only a part of the data was read.
    #[error("it has only a part of the data: {0}")]
    Partial(String),
    /// There is no series.
    #[error("the query finds no series{}", skewed(.skew.as_ref()))]
    Empty {
        /// How the server's clock differs from the operator's.
        skew: Option<Skew>,
    },
    /// More than one series.
    #[error("{0} series came instead of one: aggregate them, as in sum(...), max(...) or avg(...)")]
    ManySeries(usize),
    /// Another kind than one figure.
    #[error("{0}")]
    NotAFigure(&'static str),
    /// Not a number that can be scaled by.
    #[error("the figure is {0}, which no number of pods follows from")]
    NotANumber(&'static str),
    /// Too old.
    #[error("its newest sample is older than maxAgeSeconds ({max_age_seconds}){}", skewed(.skew.as_ref()))]
    Stale {
        /// What the service allows.
        max_age_seconds: u32,
        /// How the server's clock differs from the operator's.
        skew: Option<Skew>,
    },
    /// Not asked yet.
    #[error("it was not asked yet")]
    Pending,
}

impl Problem {
    /// CamelCase word for a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownServer | Self::NamespaceNotAllowed => "PrometheusNotAllowed",
            Self::Files(_)
            | Self::Unreachable(_)
            | Self::Timeout(_)
            | Self::NotPermitted(_)
            | Self::Redirect { .. }
            | Self::Failed { .. }
            | Self::Garbage(_)
            | Self::Pending => "PrometheusUnreachable",
            Self::Refused(_) => "QueryRefused",
            Self::Empty { .. } => "QueryFindsNothing",
            Self::Partial(_) | Self::Stale { .. } => "QueryStale",
            Self::TooLarge(_) | Self::ManySeries(_) | Self::NotAFigure(_) | Self::NotANumber(_) => {
                "QueryNotOneFigure"
            }
        }
    }

    /// Whether every query would fail alike. Of an answer that took too long or failed nobody knows: one query can bring a
    /// server that far, and must not silence the others.
    pub fn is_of_server(&self) -> bool {
        matches!(
            self,
            Self::Files(_) | Self::Unreachable(_) | Self::NotPermitted(401) | Self::Redirect { .. }
        )
    }

    /// Whether the server evaluated the query: what it knew before is no longer so.
    pub fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::Partial(_)
                | Self::Empty { .. }
                | Self::ManySeries(_)
                | Self::NotAFigure(_)
                | Self::NotANumber(_)
        )
    }

    /// Whether asking was in vain, so that it is asked ever more rarely. What merely finds nothing may find something soon.
    pub fn is_failure(&self) -> bool {
        !matches!(
            self,
            Self::Empty { .. }
                | Self::Stale { .. }
                | Self::NotANumber(_)
                | Self::Partial(_)
                | Self::ManySeries(_)
        )
    }
}

fn said(words: &str) -> String {
    if words.is_empty() {
        String::new()
    } else {
        format!(": {words}")
    }
}

fn skewed(skew: Option<&Skew>) -> String {
    skew.map_or_else(String::new, |skew| format!("; {skew}"))
}

/// How far a server's clock is from the operator's, in whole minutes, so that its words stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// Minutes; negative when the server's clock is behind.
    pub minutes: i64,
}

impl Skew {
    /// Of two clocks, in seconds since 1970; `None` when they are within half a minute.
    pub fn between(server_seconds: i64, own_seconds: i64) -> Option<Self> {
        let seconds = server_seconds.saturating_sub(own_seconds);
        let minutes = seconds.saturating_add(30 * seconds.signum()) / 60;
        (minutes != 0).then_some(Self { minutes })
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (minutes, direction) = (self.minutes.unsigned_abs(), self.minutes > 0);
        let word = if direction { "ahead of" } else { "behind" };
        write!(f, "its clock is {minutes} min {word} the operator's")
    }
}

/// Somebody else's words, short and without control characters.
pub fn words(text: &str) -> String {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MOST_WORDS)
        .collect();
    if text.chars().nth(MOST_WORDS).is_some() {
        line.push('…');
    }
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_by_seconds_agree_and_others_are_told_apart_by_minutes() {
        assert_eq!(Skew::between(1000, 1000), None);
        assert_eq!(Skew::between(1029, 1000), None);
        assert_eq!(Skew::between(971, 1000), None);
        let ahead = Skew::between(1601, 1000).expect("ten minutes");
        assert_eq!(
            ahead.to_string(),
            "its clock is 10 min ahead of the operator's"
        );
        let behind = Skew::between(400, 1001).expect("ten minutes");
        assert_eq!(
            behind.to_string(),
            "its clock is 10 min behind the operator's"
        );
        assert!(Skew::between(i64::MAX, i64::MIN).is_some());
    }

    #[test]
    fn words_of_others_are_one_short_line() {
        assert_eq!(
            words("parse error:\n\tunexpected"),
            "parse error:  unexpected"
        );
        assert_eq!(words(&"x".repeat(5000)).chars().count(), MOST_WORDS + 1);
        assert_eq!(words(&"é".repeat(300)).chars().count(), 300);
    }
}
