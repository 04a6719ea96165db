use super::*;
use crate::fleet::Fleet;
use crate::gateway::GatewayCounts;
use crate::tests::{Fixed, setup};
use crate::time::SECOND;

/// What a scaler sees of `desired` loading pods and so many requests.
fn look(scaler: &mut dyn Scaler, desired: u32, now: Nanos, gateway: GatewayCounts) -> Option<u32> {
    use rand::SeedableRng;
    let setup = setup();
    let mut fleet = Fleet::new(&setup);
    let mut random = rand::rngs::SmallRng::seed_from_u64(0);
    fleet.scale(desired, 0, &setup, &mut random, |_| 0);
    for id in fleet.living_ids().to_vec() {
        fleet.member_mut(id).stage = Stage::Ready;
        fleet.member_mut(id).ready_since = Some(0);
    }
    let requests = Requests::default();
    let view = FleetView::new(now, &setup, &fleet, gateway, &requests);
    scaler.look(&view).map(|wish| wish.replicas)
}

fn in_flight(in_flight: u64) -> GatewayCounts {
    GatewayCounts {
        in_flight,
        ..GatewayCounts::default()
    }
}

#[test]
fn the_kpa_follows_knatives_vectors() {
    let mut kpa = Kpa::new(KpaSettings::new(7.0));
    assert_eq!(kpa.decide(14.0, 90.0, 2, 0), 13, "a panic");
    assert_eq!(
        kpa.decide(14.0, 14.0, 13, 30 * SECOND),
        13,
        "and it never decreases"
    );
    assert_eq!(
        kpa.decide(14.0, 14.0, 13, 61 * SECOND),
        6,
        "half of what is ready at most, once it is over"
    );
    assert_eq!(
        Kpa::new(KpaSettings::new(7.0)).decide(0.0, 0.0, 8, 0),
        4,
        "idle"
    );
}

#[test]
fn the_hpa_sees_a_burst_only_when_its_metric_has_come_through() {
    let mut hpa = Hpa::new("hpa", HpaSettings::new(HpaMetric::InFlight, 8.0));
    assert_eq!(look(&mut hpa, 2, 0, in_flight(16)), None);
    for second in 1..30 {
        assert_eq!(
            look(&mut hpa, 2, second * SECOND, in_flight(160)),
            None,
            "at {second} s"
        );
    }
    assert_eq!(
        look(&mut hpa, 2, 30 * SECOND, in_flight(160)),
        Some(6),
        "four more at most"
    );
}

#[test]
fn the_hpa_keeps_within_tolerance_and_removes_only_after_its_window() {
    let mut hpa = Hpa::new("hpa", HpaSettings::new(HpaMetric::InFlight, 10.0));
    for second in 0..=600 {
        assert_eq!(look(&mut hpa, 10, second * SECOND, in_flight(108)), None);
    }
    for second in 601..915 {
        assert_eq!(
            look(&mut hpa, 10, second * SECOND, in_flight(50)),
            None,
            "at {second} s"
        );
    }
    assert_eq!(look(&mut hpa, 10, 915 * SECOND, in_flight(50)), Some(5));
}

#[test]
fn the_hpa_counts_queries_per_second_over_a_minute() {
    let mut hpa = Hpa::new("hpa", HpaSettings::new(HpaMetric::QueriesPerSecond, 1.0));
    let mut last = None;
    for second in 0..=120 {
        let gateway = GatewayCounts {
            arrived: second * 5,
            ..GatewayCounts::default()
        };
        last = look(&mut hpa, 4, second * SECOND, gateway).or(last);
    }
    assert_eq!(last, Some(5));
}

#[test]
fn the_saturation_scaler_looks_once_a_minute_and_removes_one_at_a_time() {
    let mut saturation = Saturation::new(SaturationSettings::default());
    for second in 0..60 {
        assert_eq!(
            look(&mut saturation, 9, second * SECOND, in_flight(0)),
            None
        );
    }
    assert_eq!(look(&mut saturation, 9, 60 * SECOND, in_flight(0)), Some(8));
    assert_eq!(look(&mut saturation, 1, 120 * SECOND, in_flight(0)), None);
}

#[test]
fn a_fixed_number_wishes_for_nothing_else() {
    assert_eq!(look(&mut Fixed(3), 3, 0, in_flight(100)), None);
    assert_eq!(look(&mut Fixed(3), 2, 0, in_flight(100)), Some(3));
}
