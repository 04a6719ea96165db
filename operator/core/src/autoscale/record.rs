//! A decision in some thirty bytes, so that an operator can keep an hour of them for every service.
//!
//! Numbers are written in the LEB128 form of DWARF (seven bits a byte, the lowest first), in a fixed order. Nothing is rounded.

use pagoda_crds::api::Metric;

use super::{Decision, Reason, Unit, What};

/// No decision has more.
const MOST_METRICS: usize = 64;
/// Stands for the first query; smaller numbers are metrics.
const QUERY: u64 = 32;

/// What is kept of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in seconds since 1970.
    pub unix_seconds: i64,
    /// Pods that the spec asked for.
    pub current: u32,
    /// Pods that answered.
    pub ready: u32,
    /// Pods from then on.
    pub replicas: u32,
    /// Why.
    pub reason: Reason,
    /// Requests that gateways held.
    pub held: u64,
    /// While a burst was answered beyond `behavior`: the most pods that it asked for.
    pub panic: Option<u32>,
    /// Which of `metrics` asked for the most.
    pub winner: Option<u8>,
    /// Targets in the order of the spec, then queries.
    pub metrics: Vec<RecordedMetric>,
}

/// What is kept of one recommendation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedMetric {
    /// What was measured.
    pub what: RecordedWhat,
    /// How measurement and target compare.
    pub unit: Unit,
    /// See [`super::Recommendation::demand_milli`].
    pub demand_milli: Option<u64>,
    /// See [`super::Recommendation::target_milli`].
    pub target_milli: u64,
    /// Pods that it asked for.
    pub replicas: u32,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedWhat {
    /// By gateways and pods.
    Metric(Metric),
    /// By a Prometheus: the place of the query in the spec.
    Query(u8),
}

impl Record {
    /// What is kept of a decision.
    pub fn of(decision: &Decision, unix_seconds: i64) -> Self {
        let inputs = &decision.inputs;
        let mut queries = 0..=u8::MAX;
        let metrics = inputs
            .recommendations
            .iter()
            .take(MOST_METRICS)
            .map(|r| RecordedMetric {
                what: match &r.what {
                    What::Metric(metric) => RecordedWhat::Metric(*metric),
                    What::Query(_) => RecordedWhat::Query(queries.next().unwrap_or(u8::MAX)),
                },
                unit: r.unit,
                demand_milli: r.demand_milli,
                target_milli: r.target_milli,
                replicas: r.replicas,
            });
        Self {
            unix_seconds,
            current: inputs.current,
            ready: inputs.ready,
            replicas: decision.replicas,
            reason: decision.reason,
            held: inputs.demand.held,
            panic: inputs.panic,
            winner: inputs.winner,
            metrics: metrics.collect(),
        }
    }

    /// Whether this says the same as an earlier record, its time aside.
    pub fn repeats(&self, earlier: &Self) -> bool {
        let rest = |r: &Self| {
            (
                r.current, r.ready, r.replicas, r.reason, r.held, r.panic, r.winner,
            )
        };
        rest(self) == rest(earlier) && self.metrics == earlier.metrics
    }

    /// Appends the packed form.
    pub fn pack(&self, into: &mut Vec<u8>) {
        let seconds = u64::try_from(self.unix_seconds).unwrap_or(0);
        for number in [
            seconds,
            self.current.into(),
            self.ready.into(),
            self.replicas.into(),
        ] {
            put(number, into);
        }
        put(self.reason as u64, into);
        put(self.held, into);
        put_option(self.panic.map(u64::from), into);
        put_option(self.winner.map(u64::from), into);
        put(self.metrics.len().min(MOST_METRICS) as u64, into);
        for metric in self.metrics.iter().take(MOST_METRICS) {
            metric.pack(into);
        }
    }

    /// Takes one record off the front of packed ones; none when that is no record.
    pub fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        let unix_seconds = i64::try_from(take(bytes)?).ok()?;
        let (current, ready, replicas) = (small(bytes)?, small(bytes)?, small(bytes)?);
        let reason = *Reason::ALL.get(usize::try_from(take(bytes)?).ok()?)?;
        let held = take(bytes)?;
        let panic = option(bytes)?.map(u32::try_from).transpose().ok()?;
        let winner = option(bytes)?.map(u8::try_from).transpose().ok()?;
        let count = usize::try_from(take(bytes)?)
            .ok()
            .filter(|count| *count <= MOST_METRICS)?;
        let metrics = (0..count)
            .map(|_| RecordedMetric::unpack(bytes))
            .collect::<Option<_>>()?;
        Some(Self {
            unix_seconds,
            current,
            ready,
            replicas,
            reason,
            held,
            panic,
            winner,
            metrics,
        })
    }
}

impl RecordedMetric {
    fn pack(self, into: &mut Vec<u8>) {
        let what = match self.what {
            RecordedWhat::Metric(metric) => metric as u64,
            RecordedWhat::Query(place) => QUERY + u64::from(place),
        };
        let unit = match self.unit {
            Unit::EachPod => 0,
            Unit::Whole => 101,
            Unit::Share => 102,
            Unit::Percentile(percentile) => u64::from(percentile.clamp(1, 100)),
        };
        put(what, into);
        put(unit, into);
        put_option(self.demand_milli, into);
        put(self.target_milli, into);
        put(self.replicas.into(), into);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        let what = match take(bytes)? {
            metric if metric < QUERY => RecordedWhat::Metric(*Metric::ALL.get(metric as usize)?),
            query => RecordedWhat::Query(u8::try_from(query - QUERY).ok()?),
        };
        let unit = match take(bytes)? {
            0 => Unit::EachPod,
            101 => Unit::Whole,
            102 => Unit::Share,
            percentile @ 1..=100 => Unit::Percentile(percentile as u8),
            _ => return None,
        };
        let (demand_milli, target_milli) = (option(bytes)?, take(bytes)?);
        Some(Self {
            what,
            unit,
            demand_milli,
            target_milli,
            replicas: small(bytes)?,
        })
    }
}

fn put(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Absent is 0, and a number is one more; the largest two are one.
fn put_option(number: Option<u64>, into: &mut Vec<u8>) {
    put(number.map_or(0, |number| number.saturating_add(1)), into);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn option(bytes: &mut &[u8]) -> Option<Option<u64>> {
    Some(take(bytes)?.checked_sub(1))
}

fn small(bytes: &mut &[u8]) -> Option<u32> {
    u32::try_from(take(bytes)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn metric()(metric in 0..Metric::ALL.len(), query in any::<Option<u8>>(), unit in 0_usize..4, percentile in 1_u8..100,
            demand in proptest::option::of(0..u64::MAX), target in any::<u64>(), replicas in any::<u32>()) -> RecordedMetric {
            RecordedMetric {
                what: query.map_or(RecordedWhat::Metric(Metric::ALL[metric]), RecordedWhat::Query),
                unit: [Unit::EachPod, Unit::Whole, Unit::Share, Unit::Percentile(percentile)][unit],
                demand_milli: demand, target_milli: target, replicas,
            }
        }
    }

    prop_compose! {
        fn record()(unix_seconds in 0..i64::MAX, numbers in any::<[u32; 3]>(), reason in 0..Reason::ALL.len(), held in any::<u64>(),
            panic in any::<Option<u32>>(), winner in any::<Option<u8>>(), metrics in proptest::collection::vec(metric(), 0..16)) -> Record {
            Record {
                unix_seconds, current: numbers[0], ready: numbers[1], replicas: numbers[2], reason: Reason::ALL[reason], held, panic, winner, metrics,
            }
        }
    }

    #[test]
    fn every_reason_has_its_number() {
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }

    #[test]
    fn a_usual_decision_takes_less_than_half_of_sixty_four_bytes() {
        let metric = |metric, demand| RecordedMetric {
            what: RecordedWhat::Metric(metric),
            unit: Unit::EachPod,
            demand_milli: Some(demand),
            target_milli: 8000,
            replicas: 12,
        };
        let record = Record {
            unix_seconds: 1_795_000_000,
            current: 12,
            ready: 11,
            replicas: 12,
            reason: Reason::OnTarget,
            held: 0,
            panic: None,
            winner: Some(0),
            metrics: vec![
                metric(Metric::InFlightRequests, 96_500),
                metric(Metric::RequestsPerSecond, 41_250),
            ],
        };
        let mut packed = Vec::new();
        record.pack(&mut packed);
        assert!(packed.len() <= 32, "{} bytes", packed.len());
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked_in_order(records in proptest::collection::vec(record(), 0..8)) {
            let mut packed = Vec::new();
            records.iter().for_each(|record| record.pack(&mut packed));
            let mut rest = &packed[..];
            for record in &records {
                prop_assert_eq!(Record::unpack(&mut rest), Some(record.clone()));
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = &bytes[..];
            while !rest.is_empty() && Record::unpack(&mut rest).is_some() {}
        }
    }
}
