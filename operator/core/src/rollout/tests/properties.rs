use super::model::{Cluster, Kind, at};
use crate::rollout::{GateReadings, RevisionReading};
use pagoda_crds::api::RolloutPhase;
use proptest::prelude::*;
use serde_json::json;

#[derive(Clone, Debug)]
enum Event {
    Replicas(u32),
    Release(u8, Kind),
    Pass(u8),
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => (0_i64..60).prop_map(Kind::Good),
        1 => Just(Kind::Hopeless),
        1 => Just(Kind::Crashing),
        1 => Just(Kind::Silent),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0_u32..9).prop_map(Event::Replicas),
        2 => (0_u8..3, kind()).prop_map(|(r, k)| Event::Release(r, k)),
        4 => (1_u8..12).prop_map(Event::Pass),
    ]
}

fn names(revision: u8) -> String {
    ["a", "b", "c"][usize::from(revision % 3)].to_owned()
}

fn cluster(strategy: &str, replicas: u32) -> Cluster {
    let rollout = json!({"strategy": strategy, "progressDeadlineSeconds": 120});
    Cluster::at_rest(replicas, rollout)
}

/// Every step of a canary finds a gate that opens.
fn open_gate(cluster: &mut Cluster) {
    let step = cluster.status.rollout.as_ref().and_then(|r| r.step);
    let reading = || RevisionReading {
        ok: 1000,
        error: 0,
        ttft: vec![(1.0, 1000), (f64::INFINITY, 1000)],
    };
    cluster.gate = step.map(|step| GateReadings {
        step,
        since: at(0),
        target: reading(),
        others: reading(),
    });
}

fn specs(cluster: &Cluster) -> u32 {
    cluster.deployments.iter().map(|d| d.spec_replicas).sum()
}

/// What holds after every step.
fn check(cluster: &Cluster, existed: usize) -> Result<(), TestCaseError> {
    let wanted = cluster.service.replicas;
    let budget = (wanted / 4).max(1);
    let phase = cluster.phase();
    if phase == Some(RolloutPhase::Surging) && wanted > 0 {
        prop_assert!(specs(cluster) <= wanted + budget, "{:?}", cluster.last);
        let olds: u32 = specs(cluster) - cluster.last.target_replicas;
        let ready = cluster.ready(&cluster.target) as u32;
        prop_assert!(
            olds + ready >= wanted,
            "old pods made way for none: {:?}",
            cluster.last
        );
    }
    if phase == Some(RolloutPhase::TerminatingFirst) {
        let grew = cluster.pods.len() > existed;
        prop_assert!(
            !grew || cluster.pods.len() <= wanted as usize,
            "{} pods of {wanted}",
            cluster.pods.len()
        );
    }
    if phase.is_none() {
        prop_assert_eq!(cluster.last.target_replicas, wanted);
    }
    Ok(())
}

fn play(cluster: &mut Cluster, events: &[Event]) -> Result<(), TestCaseError> {
    for event in events {
        let ticks = match event {
            Event::Replicas(replicas) => {
                cluster.service.replicas = *replicas;
                1
            }
            Event::Release(revision, kind) => {
                cluster.release(&names(*revision), *kind);
                1
            }
            Event::Pass(ticks) => *ticks,
        };
        for _ in 0..ticks {
            open_gate(cluster);
            let existed = cluster.pods.len();
            cluster.tick();
            check(cluster, existed)?;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever happened before: a good revision takes over whole, and then there is rest.
    #[test]
    fn a_good_revision_takes_over_in_the_end(strategy in 0_usize..4, start in 0_u32..9, spare in 0_usize..4,
        events in proptest::collection::vec(event(), 0..12), replicas in 1_u32..9) {
        let strategy = ["Auto", "Surge", "TerminateFirst", "Canary"][strategy];
        let mut cluster = cluster(strategy, start);
        play(&mut cluster, &events)?;
        cluster.service.replicas = replicas;
        // Surge and Canary need room beside what runs; the others do without.
        let room = if ["Surge", "Canary"].contains(&strategy) { 40 } else { spare };
        cluster.capacity = replicas as usize + room;
        cluster.release("final", Kind::Good(7));
        for _ in 0..900 {
            open_gate(&mut cluster);
            cluster.tick();
        }
        prop_assert_eq!(cluster.ready("final"), replicas as usize, "{:?}", cluster.last);
        prop_assert_eq!(cluster.deployments.len(), 1, "{:?}", cluster.last);
        prop_assert_eq!(cluster.pods.len(), replicas as usize);
        prop_assert_eq!(&cluster.last.status, &None);
        prop_assert_eq!(cluster.last.current.as_deref(), Some("final"));
        prop_assert!(cluster.last.scale.is_empty() && cluster.last.delete.is_empty());
    }

    /// A revision that never becomes ready costs at most the budget, for as long as it takes to see that it fails.
    #[test]
    fn a_bad_revision_never_takes_the_old_one_down(strategy in 0_usize..4, replicas in 1_u32..9, spare in 0_usize..3,
        bad in prop_oneof![Just(Kind::Hopeless), Just(Kind::Crashing), Just(Kind::Silent)]) {
        let strategy = ["Auto", "Surge", "TerminateFirst", "Canary"][strategy];
        let mut cluster = cluster(strategy, replicas);
        cluster.capacity = replicas as usize + spare;
        cluster.release("bad", bad);
        let least = match strategy {
            "Surge" | "Canary" => replicas,
            _ => replicas - (replicas / 4).max(1),
        };
        for _ in 0..400 {
            cluster.tick();
            prop_assert!(cluster.ready("a") >= least as usize, "{:?}", cluster.last);
        }
        prop_assert_eq!(cluster.ready("a"), replicas as usize, "{:?}", cluster.last);
        prop_assert_eq!(cluster.last.current.as_deref(), Some("a"));
        prop_assert!(cluster.last.scale.is_empty() && cluster.last.delete.is_empty());
    }
}
