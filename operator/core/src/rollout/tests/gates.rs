use crate::{
    rollout::{
        GateReadings, GateWindow, RevisionReading,
        gate::{Verdict, judge},
    },
    validate::CanarySettings,
};
use proptest::prelude::*;

use super::model::at;

fn settings() -> CanarySettings {
    CanarySettings {
        steps: vec![50],
        step_seconds: 1,
        min_requests: 20,
        max_error_percent: 1,
        max_ttft_increase_percent: 20,
    }
}

/// `(seconds, answers)`: so many answers below each bound.
fn reading(error: u64, ttft: &[(f64, u64)]) -> RevisionReading {
    let ok = ttft.last().map_or(0, |(_, count)| *count);
    let mut ttft = ttft.to_vec();
    ttft.push((f64::INFINITY, ok));
    RevisionReading { ok, error, ttft }
}

fn verdict(target: RevisionReading, others: RevisionReading) -> Verdict {
    let readings = GateReadings {
        step: 0,
        since: at(0),
        target,
        others,
    };
    judge(&settings(), &readings)
}

fn fails_for(verdict: &Verdict, reason: &str) -> bool {
    matches!(verdict, Verdict::Fail(word, _) if *word == reason)
}

#[test]
fn too_few_requests_say_nothing() {
    let few = reading(19, &[]);
    assert_eq!(verdict(few, reading(0, &[(1.0, 1000)])), Verdict::Open);
}

#[test]
fn one_failure_of_twenty_is_chance_and_four_are_not() {
    let old = || reading(0, &[(1.0, 1000)]);
    assert_eq!(verdict(reading(1, &[(1.0, 19)]), old()), Verdict::Pass);
    assert!(fails_for(
        &verdict(reading(4, &[(1.0, 16)]), old()),
        "CanaryErrors"
    ));
}

#[test]
fn failures_that_the_old_revision_has_as_well_are_not_the_new_ones_fault() {
    let old = reading(100, &[(1.0, 900)]);
    assert_eq!(verdict(reading(10, &[(1.0, 90)]), old), Verdict::Pass);
}

#[test]
fn slower_answers_fail_the_gate_and_equal_ones_do_not() {
    let old = || reading(0, &[(0.1, 500), (0.2, 900), (0.4, 1000)]);
    let same = reading(0, &[(0.1, 50), (0.2, 90), (0.4, 100)]);
    assert_eq!(verdict(same, old()), Verdict::Pass);
    let median = reading(0, &[(0.1, 10), (0.2, 90), (0.4, 100)]);
    assert!(fails_for(&verdict(median, old()), "CanaryTtft"));
    let tail = reading(0, &[(0.1, 50), (0.2, 70), (0.4, 75), (1.0, 100)]);
    let failed = verdict(tail, old());
    assert!(fails_for(&failed, "CanaryTtft"));
    assert!(matches!(failed, Verdict::Fail(_, words) if words.contains("95th percentile")));
}

#[test]
fn a_gateway_that_began_anew_counts_from_zero() {
    let mut window = GateWindow::default();
    let tell = |ok| {
        [("b".to_owned(), reading(0, &[(1.0, ok)]))]
            .into_iter()
            .collect()
    };
    window.note("g", tell(100));
    window.note("g", tell(110));
    window.note("g", tell(5));
    window.note("other", tell(50));
    let readings = window.readings("b", 0, at(0));
    assert_eq!(
        (readings.target.requests(), readings.others.requests()),
        (15, 0)
    );
}

#[test]
fn gateways_counts_are_read_by_revision() {
    let text = "pagoda_gateway_revision_requests_total{namespace=\"n\",service=\"s\",revision=\"b\",outcome=\"ok\"} 7\n\
        pagoda_gateway_revision_requests_total{namespace=\"n\",service=\"s\",revision=\"b\",outcome=\"error\"} 2\n\
        pagoda_gateway_revision_ttft_seconds_bucket{namespace=\"n\",service=\"s\",revision=\"b\",le=\"0.5\"} 3\n\
        pagoda_gateway_revision_ttft_seconds_bucket{namespace=\"n\",service=\"s\",revision=\"b\",le=\"+Inf\"} 7\n";
    let readings = RevisionReading::parse_all(text).expect("well-formed");
    let expected = RevisionReading {
        ok: 7,
        error: 2,
        ttft: vec![(0.5, 3), (f64::INFINITY, 7)],
    };
    assert_eq!(readings[&("n".into(), "s".into(), "b".into())], expected);
}

proptest! {
    /// The verdict must not depend on a revision's luck: whatever the old one's figures, a new one with the very same passes.
    #[test]
    fn equal_revisions_pass(counts in proptest::collection::vec(0_u64..500, 1..8), error in 0_u64..100) {
        let mut sum = 0;
        let ttft: Vec<(f64, u64)> = counts.iter().enumerate().map(|(i, c)| { sum += c; (0.05 * 2_f64.powi(i as i32), sum) }).collect();
        let one = reading(error, &ttft);
        prop_assert!(!matches!(verdict(one.clone(), one), Verdict::Fail(..)));
    }

    /// Slower and worse answers never turn a failed gate into a passed one.
    #[test]
    fn more_failures_are_never_better(ok in 20_u64..300, error in 0_u64..50, more in 0_u64..50) {
        let old = || reading(3, &[(1.0, 500)]);
        let fails = |error| fails_for(&verdict(reading(error, &[(1.0, ok)]), old()), "CanaryErrors");
        prop_assert!(!fails(error) || fails(error + more));
    }
}
