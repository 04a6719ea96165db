use super::model::{Cluster, Kind, at};
use crate::rollout::{GateReadings, RevisionReading};
use pagoda_crds::api::RolloutPhase;
use serde_json::{Value, json};

fn rollout() -> Value {
    json!({"strategy": "Canary", "progressDeadlineSeconds": 300,
        "canary": {"steps": [10, 50], "stepSeconds": 30, "minRequests": 20}})
}

fn gate(step: i32, errors: u64, others_errors: u64) -> GateReadings {
    let reading = |ok, error| RevisionReading {
        ok,
        error,
        ttft: vec![(0.1, ok / 2), (1.0, ok), (f64::INFINITY, ok)],
    };
    GateReadings {
        step,
        since: at(0),
        target: reading(100 - errors, errors),
        others: reading(900 - others_errors, others_errors),
    }
}

#[test]
fn a_canary_grows_step_by_step_and_then_takes_over_whole() {
    let mut cluster = Cluster::at_rest(8, rollout());
    cluster.release("b", Kind::Good(5));
    cluster.tick();
    let status = cluster.status.rollout.clone().expect("under way");
    assert_eq!((status.phase, status.step), (RolloutPhase::Canary, Some(0)));
    let shares: Vec<_> = status
        .traffic
        .iter()
        .map(|t| (t.revision.as_str(), t.pod_prefix.as_str(), t.percent))
        .collect();
    assert_eq!(shares, [("a", "demo-a-", 90), ("b", "demo-b-", 10)]);
    for _ in 0..100 {
        cluster.tick();
    }
    assert_eq!((cluster.ready("a"), cluster.ready("b")), (8, 1));
    assert_eq!(
        cluster.status.rollout.as_ref().and_then(|r| r.step),
        Some(0),
        "no requests yet"
    );
    cluster.gate = Some(gate(0, 0, 0));
    for _ in 0..10 {
        cluster.tick();
    }
    assert_eq!((cluster.ready("a"), cluster.ready("b")), (8, 4));
    cluster.settle();
    assert_eq!(
        cluster.status.rollout.as_ref().and_then(|r| r.step),
        Some(1),
        "what was counted in an earlier step opens no later one"
    );
    cluster.gate = Some(gate(1, 0, 0));
    cluster.tick();
    assert_eq!(cluster.phase(), Some(RolloutPhase::Surging));
    assert!(
        cluster
            .status
            .rollout
            .as_ref()
            .is_some_and(|r| r.traffic.is_empty())
    );
    cluster.settle();
    assert_eq!((cluster.ready("b"), cluster.deployments.len()), (8, 1));
    assert_eq!(cluster.status.rollout, None);
}

#[test]
fn a_canary_with_as_many_pods_as_the_service_has_is_judged_before_it_takes_over() {
    let mut cluster = Cluster::at_rest(1, rollout());
    cluster.release("b", Kind::Good(5));
    cluster.settle();
    assert_eq!(
        (cluster.phase(), cluster.ready("a"), cluster.ready("b")),
        (Some(RolloutPhase::Canary), 1, 1)
    );
    cluster.gate = Some(gate(0, 20, 9));
    cluster.settle();
    assert_eq!(
        (cluster.phase(), cluster.ready("a"), cluster.spec("b")),
        (Some(RolloutPhase::RolledBack), 1, Some(0))
    );
}

#[test]
fn a_canary_that_does_worse_is_rolled_back_with_the_numbers() {
    let mut cluster = Cluster::at_rest(4, rollout());
    cluster.release("b", Kind::Good(5));
    for _ in 0..4 {
        cluster.tick();
    }
    cluster.gate = Some(gate(0, 20, 9));
    cluster.tick();
    let status = cluster.status.rollout.clone().expect("told");
    let failed = status.failed.expect("given up");
    assert_eq!(
        (status.phase, failed.reason.as_str()),
        (RolloutPhase::RolledBack, "CanaryErrors")
    );
    assert!(
        failed.message.contains("20 of 100") && failed.message.contains("9 of 900"),
        "{}",
        failed.message
    );
    assert!(status.traffic.is_empty());
    cluster.settle();
    assert_eq!((cluster.ready("a"), cluster.spec("b")), (4, Some(0)));
}

#[test]
fn a_canary_whose_pods_cannot_run_is_rolled_back() {
    for kind in [Kind::Hopeless, Kind::Crashing, Kind::Silent] {
        let mut cluster = Cluster::at_rest(4, rollout());
        cluster.release("b", kind);
        cluster.settle();
        assert_eq!(cluster.phase(), Some(RolloutPhase::RolledBack), "{kind:?}");
        assert_eq!(
            (cluster.ready("a"), cluster.spec("b")),
            (4, Some(0)),
            "{kind:?}"
        );
    }
}

#[test]
fn without_an_old_pod_that_answers_there_is_no_canary() {
    let mut cluster = Cluster::empty(2, rollout());
    cluster.release("a", Kind::Crashing);
    cluster.settle();
    cluster.release("b", Kind::Good(5));
    cluster.tick();
    assert_eq!(cluster.phase(), Some(RolloutPhase::Surging));
    cluster.settle();
    assert_eq!(cluster.ready("b"), 2);
}

#[test]
fn a_canary_sleeps_and_wakes_with_its_service() {
    let mut cluster = Cluster::at_rest(4, rollout());
    cluster.release("b", Kind::Good(60));
    cluster.tick();
    cluster.service.replicas = 0;
    cluster.settle();
    assert_eq!((cluster.spec("a"), cluster.spec("b")), (Some(0), Some(0)));
    cluster.service.replicas = 4;
    cluster.settle();
    assert_eq!(
        (cluster.phase(), cluster.ready("a"), cluster.ready("b")),
        (Some(RolloutPhase::Canary), 4, 1)
    );
}
