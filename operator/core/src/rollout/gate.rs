//! Whether a canary does as well as the revision before it.
//!
//! Both are measured in the same window of time, so a slow hour is slow for both. A canary is given up only where chance
//! does not explain what it did: with few requests, one failure or one slow answer says nothing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;

use crate::{
    exposition::{ExpositionError, Sample, parse},
    validate::CanarySettings,
};

const REQUESTS: &str = "pagoda_gateway_revision_requests_total";
const TTFT_BUCKET: &str = "pagoda_gateway_revision_ttft_seconds_bucket";
/// A hundredth of fair draws lies beyond so many standard deviations.
const DEVIATIONS: f64 = 2.33;

/// What was counted of a revision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevisionReading {
    /// Attempts that went well.
    pub ok: u64,
    /// Attempts that failed.
    pub error: u64,
    /// Answers by time to first token: `(upper bound in seconds, answers up to it)`, growing; the last bound is infinite.
    pub ttft: Vec<(f64, u64)>,
}

/// Counts by namespace, service and revision.
pub type RevisionReadings = BTreeMap<(String, String, String), RevisionReading>;

impl RevisionReading {
    /// Reads a gateway's metrics. Without series no canary runs that it knows of.
    pub fn parse_all(text: &str) -> Result<RevisionReadings, ExpositionError> {
        let mut readings = RevisionReadings::new();
        for sample in parse(text, &[REQUESTS, TTFT_BUCKET])? {
            let labels = (
                sample.label("namespace"),
                sample.label("service"),
                sample.label("revision"),
            );
            let (Some(namespace), Some(service), Some(revision)) = labels else {
                continue;
            };
            let key = (
                namespace.to_owned(),
                service.to_owned(),
                revision.to_owned(),
            );
            readings.entry(key).or_default().add_sample(&sample);
        }
        Ok(readings)
    }

    fn add_sample(&mut self, sample: &Sample<'_>) {
        let value = sample.count();
        match (sample.name, sample.label("outcome")) {
            (REQUESTS, Some("error")) => self.error += value,
            (REQUESTS, _) => self.ok += value,
            _ => {
                let bound = match sample.label("le") {
                    Some("+Inf") => Some(f64::INFINITY),
                    Some(bound) => bound.parse().ok().filter(|b: &f64| !b.is_nan()),
                    None => None,
                };
                if let Some(bound) = bound {
                    self.add_bucket(bound, value);
                }
            }
        }
    }

    fn add_bucket(&mut self, bound: f64, value: u64) {
        let at = self.ttft.partition_point(|(b, _)| *b < bound);
        match self.ttft.get_mut(at) {
            Some((b, count)) if b.total_cmp(&bound).is_eq() => *count += value,
            _ => self.ttft.insert(at, (bound, value)),
        }
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.error += other.error;
        for (bound, value) in &other.ttft {
            self.add_bucket(*bound, *value);
        }
    }

    /// What was counted since an earlier look at the same gateway. One that was started anew counts from zero.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let count = |reading: &Self, bound: f64| {
            let found = reading
                .ttft
                .iter()
                .find(|(b, _)| b.total_cmp(&bound).is_eq());
            found.map_or(0, |(_, count)| *count)
        };
        let began_anew = self.ok < earlier.ok
            || self.error < earlier.error
            || self.ttft.iter().any(|(b, c)| *c < count(earlier, *b));
        if began_anew {
            return self.clone();
        }
        Self {
            ok: self.ok - earlier.ok,
            error: self.error - earlier.error,
            ttft: self
                .ttft
                .iter()
                .map(|(b, c)| (*b, c - count(earlier, *b)))
                .collect(),
        }
    }

    /// Attempts in all.
    pub fn requests(&self) -> u64 {
        self.ok + self.error
    }

    fn answers(&self) -> u64 {
        self.ttft.last().map_or(0, |(_, count)| *count)
    }

    /// Seconds within which so many percent of the answers began, as Prometheus' `histogram_quantile` reads it.
    fn quantile(&self, percent: u32) -> Option<f64> {
        let answers = self.answers();
        let rank = answers as f64 * f64::from(percent) / 100.0;
        let at = self
            .ttft
            .iter()
            .position(|(_, count)| answers > 0 && *count as f64 >= rank)?;
        let (lower, below) = if at == 0 { (0.0, 0) } else { self.ttft[at - 1] };
        let (upper, count) = self.ttft[at];
        if upper.is_infinite() || count <= below {
            return Some(lower);
        }
        Some(lower + (upper - lower) * (rank - below as f64) / (count - below) as f64)
    }

    /// Answers that began later than this, as far as buckets tell: those of the bucket that it falls into are shared out.
    fn later_than(&self, seconds: f64) -> f64 {
        let at = self.ttft.partition_point(|(bound, _)| *bound < seconds);
        let Some((upper, count)) = self.ttft.get(at).copied() else {
            return 0.0;
        };
        let (lower, below) = if at == 0 { (0.0, 0) } else { self.ttft[at - 1] };
        let inside = count.saturating_sub(below) as f64;
        // Nothing is known of how far beyond the last bound an answer lies.
        let share = if upper.is_infinite() {
            0.0
        } else {
            (upper - seconds) / (upper - lower)
        };
        self.answers().saturating_sub(count) as f64 + inside * share
    }
}

/// What gateways counted since a step of a canary began.
#[derive(Clone, Debug, PartialEq)]
pub struct GateReadings {
    /// The step, counted from 0.
    pub step: i32,
    /// Since when.
    pub since: Time,
    /// Of the new revision.
    pub target: RevisionReading,
    /// Of all others.
    pub others: RevisionReading,
}

/// Counts of one step, gateway by gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GateWindow {
    /// Last counts of each gateway, by revision.
    last: BTreeMap<String, BTreeMap<String, RevisionReading>>,
    /// What was counted in the window, by revision.
    counted: BTreeMap<String, RevisionReading>,
}

impl GateWindow {
    /// Takes in what a gateway tells of the service's revisions. Its first words set where it counts from.
    pub fn note(&mut self, gateway: &str, readings: BTreeMap<String, RevisionReading>) {
        let last = self.last.insert(gateway.to_owned(), readings.clone());
        let Some(last) = last else { return };
        for (revision, reading) in readings {
            let counted = match last.get(&revision) {
                Some(earlier) => reading.since(earlier),
                None => reading,
            };
            self.counted.entry(revision).or_default().add(&counted);
        }
    }

    /// What was counted of a revision and of all others.
    pub fn readings(&self, target: &str, step: i32, since: Time) -> GateReadings {
        let mut readings = GateReadings {
            step,
            since,
            target: RevisionReading::default(),
            others: RevisionReading::default(),
        };
        for (revision, reading) in &self.counted {
            if revision == target {
                readings.target.add(reading);
            } else {
                readings.others.add(reading);
            }
        }
        readings
    }
}

/// What a gate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Too few requests yet.
    Open,
    /// As good as the one before.
    Pass,
    /// Worse: a CamelCase word, and the numbers.
    Fail(&'static str, String),
}

pub(super) fn judge(settings: &CanarySettings, readings: &GateReadings) -> Verdict {
    if readings.target.requests() < u64::from(settings.min_requests) {
        return Verdict::Open;
    }
    let slower = [50, 95]
        .into_iter()
        .find_map(|percent| slower(settings, readings, percent));
    match errors(settings, readings).or(slower) {
        Some((reason, message)) => Verdict::Fail(reason, message),
        None => Verdict::Pass,
    }
}

fn errors(settings: &CanarySettings, readings: &GateReadings) -> Option<(&'static str, String)> {
    let (new, old) = (&readings.target, &readings.others);
    let share = |r: &RevisionReading| r.error as f64 / (r.requests().max(1)) as f64;
    let allowed = (share(old) + f64::from(settings.max_error_percent) / 100.0).min(1.0);
    exceeds(new.error as f64, new.requests(), allowed).then(|| {
        let message = format!(
            "{} of {} requests failed, against {} of {} of the revision before; rollout.canary.maxErrorPercent allows {} percent more",
            new.error,
            new.requests(),
            old.error,
            old.requests(),
            settings.max_error_percent
        );
        ("CanaryErrors", message)
    })
}

/// The median and other percentiles are compared by how many answers come later than the old one's percentile and its
/// allowance: of equal ones, half come later than the median.
fn slower(
    settings: &CanarySettings,
    readings: &GateReadings,
    percent: u32,
) -> Option<(&'static str, String)> {
    let (new, old) = (&readings.target, &readings.others);
    let enough = u64::from(settings.min_requests);
    if new.answers() < enough || old.answers() < enough {
        return None;
    }
    let usual = old.quantile(percent)?;
    let allowed = usual * (1.0 + f64::from(settings.max_ttft_increase_percent) / 100.0);
    let later = new.later_than(allowed);
    exceeds(later, new.answers(), 1.0 - f64::from(percent) / 100.0).then(|| {
        let message = format!(
            "time to first token is {} at the {percent}th percentile, against {} of the revision before; rollout.canary.maxTtftIncreasePercent allows {} percent more",
            milliseconds(new.quantile(percent)),
            milliseconds(Some(usual)),
            settings.max_ttft_increase_percent
        );
        ("CanaryTtft", message)
    })
}

/// Whether so many of so many are more than that share, beyond what chance explains.
fn exceeds(hits: f64, of: u64, share: f64) -> bool {
    let expected = of as f64 * share;
    hits > expected + DEVIATIONS * (expected * (1.0 - share)).sqrt()
}

fn milliseconds(seconds: Option<f64>) -> String {
    format!("{:.0} ms", seconds.unwrap_or_default() * 1000.0)
}
