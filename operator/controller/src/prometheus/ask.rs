//! One question to a server: the figure, and how old what it stands on is.

use std::{
    error::Error as _,
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{
    HeaderMap,
    header::{AUTHORIZATION, CONTENT_LENGTH, DATE},
};
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use prometheus_http_query::Error;
use reqwest::Response;

use super::{
    answer::{Number, milli, number},
    connection::{Connection, Connections},
    problem::{Problem, Skew, words},
    selectors::age_query,
};

/// One series is some hundred bytes. More is a query that nobody aggregated, and is refused, not read.
const MOST_BYTES: usize = 256 << 10;
/// What a server answers that takes no POST, and by what Prometheus' own client tells it.
const NO_POST: [u16; 2] = [405, 501];

/// What a server answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Thousandths.
    pub value_milli: u64,
    /// Age that the oldest sample behind it had when it was reckoned, by the server's clock alone.
    pub age: Duration,
    /// When it was reckoned, by the server's clock: an answer that comes out of a cache tells the same moment twice.
    pub evaluated_seconds: f64,
    /// How the server's clock differs from ours.
    pub skew: Option<Skew>,
}

/// Asks a server for the figure of a query.
pub async fn ask(connections: &Connections, query: &str) -> Result<Figure, Problem> {
    let connection = connections
        .get()
        .map_err(|error| Problem::Files(error.to_string()))?;
    let timeout = connections.server().timeout;
    let found = tokio::time::timeout(timeout, figure(&connection, query, timeout)).await;
    found.unwrap_or(Err(Problem::Timeout(timeout.as_secs())))
}

async fn figure(
    connection: &Connection,
    query: &str,
    timeout: Duration,
) -> Result<Figure, Problem> {
    let found = instant(connection, query, None, timeout).await?;
    let value_milli = milli(found.value)?;
    let oldest = oldest_sample(connection, query, found, timeout).await?;
    let age = oldest.map_or(0.0, |oldest| found.evaluated_seconds - oldest);
    Ok(Figure {
        value_milli,
        age: Duration::try_from_secs_f64(age.max(0.0)).unwrap_or(Duration::MAX),
        evaluated_seconds: found.evaluated_seconds,
        skew: Skew::between(found.evaluated_seconds as i64, unix_seconds()),
    })
}

/// Time of the oldest sample behind a figure, as of the moment at which the figure was reckoned; `None` when the query does
/// not tell.
async fn oldest_sample(
    connection: &Connection,
    query: &str,
    found: Number,
    timeout: Duration,
) -> Result<Option<f64>, Problem> {
    let Some(query) = age_query(query) else {
        return Ok(None);
    };
    match instant(connection, &query, Some(found.evaluated_seconds), timeout).await {
        Ok(oldest) => Ok(Some(oldest.value)),
        // No series, or words that were told apart wrongly.
        Err(Problem::Empty { .. } | Problem::Refused(_) | Problem::NotANumber(_)) => Ok(None),
        Err(problem) => Err(problem),
    }
}

async fn instant(
    connection: &Connection,
    query: &str,
    at_seconds: Option<f64>,
    timeout: Duration,
) -> Result<Number, Problem> {
    let mut response = send(connection, query, at_seconds, timeout).await?;
    if NO_POST.contains(&response.status().as_u16())
        && !connection.takes_get_only.load(Ordering::Relaxed)
    {
        connection.use_get();
        response = send(connection, query, at_seconds, timeout).await?;
    }
    let status = response.status().as_u16();
    let skew = skew(response.headers());
    let body = bounded_body(response, timeout).await?;
    number(status, &body).map_err(|problem| match problem {
        // Samples that were sent by a clock that is right are nowhere near the present of one that is wrong.
        Problem::Empty { .. } => Problem::Empty { skew },
        other => other,
    })
}

/// By the `Date` of an answer, for one that holds no time of its own.
fn skew(headers: &HeaderMap) -> Option<Skew> {
    let date = DateTimeParser::new().parse_timestamp(headers.get(DATE)?.as_bytes());
    Skew::between(date.ok()?.as_second(), unix_seconds())
}

async fn send(
    connection: &Connection,
    query: &str,
    at_seconds: Option<f64>,
    timeout: Duration,
) -> Result<Response, Problem> {
    let mut question = connection
        .client
        .query(query)
        // The server gives up when we do.
        .timeout(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX))
        // Thanos fails then, where it would leave out what it cannot read; others know no such parameter.
        .query("partial_response", "false");
    if let Some(seconds) = at_seconds {
        question = question.query("time", seconds);
    }
    if let Some(authorization) = &connection.authorization {
        question = question.header(AUTHORIZATION, authorization.clone());
    }
    let sent = if connection.takes_get_only.load(Ordering::Relaxed) {
        question.get_raw().await
    } else {
        question.post_raw().await
    };
    sent.map_err(|error| transport(&error, timeout))
}

async fn bounded_body(mut response: Response, timeout: Duration) -> Result<Vec<u8>, Problem> {
    let announced = response.headers().get(CONTENT_LENGTH);
    let announced = announced.and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > MOST_BYTES) {
        return Err(Problem::TooLarge(MOST_BYTES));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| broken(e, timeout))? {
        if body.len() + chunk.len() > MOST_BYTES {
            return Err(Problem::TooLarge(MOST_BYTES));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn transport(error: &Error, timeout: Duration) -> Problem {
    match error {
        Error::Client(client) => match client.inner() {
            Some(inner) if inner.is_timeout() && !inner.is_connect() => {
                Problem::Timeout(timeout.as_secs())
            }
            Some(inner) => Problem::Unreachable(cause(inner)),
            None => Problem::Unreachable(words(&client.to_string())),
        },
        other => Problem::Unreachable(words(&other.to_string())),
    }
}

/// A body that ended early.
fn broken(error: reqwest::Error, timeout: Duration) -> Problem {
    if error.is_timeout() {
        return Problem::Timeout(timeout.as_secs());
    }
    Problem::Garbage(format!("it broke off: {}", cause(&error.without_url())))
}

/// The innermost reason: it names what happened, where the outer ones name addresses.
fn cause(error: &reqwest::Error) -> String {
    let mut innermost: Option<&dyn std::error::Error> = error.source();
    while let Some(deeper) = innermost.and_then(std::error::Error::source) {
        innermost = Some(deeper);
    }
    let text = innermost.map_or_else(
        || {
            if error.is_connect() {
                "the connection failed".to_owned()
            } else {
                "the request failed".to_owned()
            }
        },
        ToString::to_string,
    );
    words(&text)
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}
