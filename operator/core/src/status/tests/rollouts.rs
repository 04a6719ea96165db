use super::*;
use crate::{placement::NodeView, rollout::Plan};
use pagoda_crds::{
    api::{FailedRevision, RolloutPhase, RolloutStatus, TrafficShare},
    wire::FetchProgress,
};

fn rollout(phase: RolloutPhase) -> RolloutStatus {
    RolloutStatus {
        phase,
        started: Some(at(0)),
        progressed: Some(at(0)),
        step: None,
        traffic: vec![],
        failed: None,
    }
}

fn plan(status: RolloutStatus) -> Plan {
    Plan {
        status: Some(status),
        current: Some("r1".into()),
        ..Plan::default()
    }
}

fn rolled_back() -> Plan {
    plan(RolloutStatus {
        failed: Some(FailedRevision {
            revision: REVISION.into(),
            reason: "HashMismatch".into(),
            message: "it is another file".into(),
        }),
        ..rollout(RolloutPhase::RolledBack)
    })
}

fn look_at(
    replicas: u32,
    pods: &[PodView],
    plan: &Plan,
    previous: &InferenceServiceStatus,
) -> InferenceServiceStatus {
    let seen = Observed {
        pods,
        plan: Some(plan),
        ..Observed::default()
    };
    status(&service(replicas), REVISION, &seen, previous, &at(1))
}

fn nothing() -> InferenceServiceStatus {
    InferenceServiceStatus::default()
}

fn reasons(events: Vec<Transition>) -> Vec<String> {
    events.into_iter().map(|t| t.reason).collect()
}

#[test]
fn a_revision_that_was_given_up_is_stalled_with_its_pods_own_words_even_at_zero() {
    let old = [pod("r1", true, json!({}))];
    for (replicas, pods) in [(1, &old[..]), (0, &[])] {
        let told = look_at(replicas, pods, &rolled_back(), &nothing());
        assert_eq!(ready(&told), ("False", "RolledBack"));
        let message = &find(&told, STALLED).expect("stalled").message;
        assert!(
            message.contains("HashMismatch: it is another file") && message.contains(REVISION),
            "{message}"
        );
        assert!(find(&told, RECONCILING).is_none());
        assert_eq!(
            find(&told, MODEL_LOADED).map(|c| c.reason.as_str()),
            Some("HashMismatch")
        );
        let revision = told.revision.clone().expect("told");
        assert_eq!(
            (revision.current.as_deref(), revision.updated.as_str()),
            (Some("r1"), REVISION)
        );
    }
}

#[test]
fn giving_up_and_each_step_of_a_canary_are_one_event_each() {
    let old = [pod("r1", true, json!({}))];
    let canary = |step: i32, percent: i32| {
        plan(RolloutStatus {
            step: Some(step),
            traffic: vec![TrafficShare {
                revision: REVISION.into(),
                pod_prefix: "demo-r2-".into(),
                percent,
            }],
            ..rollout(RolloutPhase::Canary)
        })
    };
    let before = look_at(1, &old, &Plan::default(), &nothing());
    let first = look_at(1, &old, &canary(0, 5), &before);
    assert_eq!(reasons(transitions(&before, &first)), ["CanaryStep"]);
    let both = [old[0].clone(), pod(REVISION, true, json!({}))];
    let running = look_at(1, &both, &canary(0, 5), &first);
    assert_eq!(ready(&running), ("False", "Canary"));
    assert!(
        find(&running, READY)
            .expect("there")
            .message
            .contains("step 1 of 3")
    );
    assert!(find(&running, RECONCILING).is_some());
    assert_eq!(reasons(transitions(&first, &running)), ["Loaded"]);
    let second = look_at(1, &both, &canary(1, 25), &running);
    let events = transitions(&running, &second);
    assert!(events[0].message.contains("25 percent"), "{events:?}");
    assert_eq!(reasons(events), ["CanaryStep"]);
    let given_up = look_at(1, &old, &rolled_back(), &second);
    assert_eq!(reasons(transitions(&second, &given_up)), ["RolledBack"]);
    assert_eq!(transitions(&given_up, &given_up), []);
}

#[test]
fn a_rollout_on_its_way_is_reconciling_and_one_past_its_deadline_is_stalled() {
    let pods = [pod("r1", true, json!({})), pod(REVISION, false, json!({}))];
    let going = plan(rollout(RolloutPhase::Surging));
    let told = look_at(1, &pods, &going, &nothing());
    assert_eq!(ready(&told), ("False", "RollingOut"));
    assert!(find(&told, RECONCILING).is_some() && find(&told, STALLED).is_none());
    let late = Plan {
        overdue: true,
        ..going
    };
    let told = look_at(1, &pods, &late, &nothing());
    assert!(find(&told, STALLED).is_some() && find(&told, RECONCILING).is_none());
    let half = [
        pod("r1", true, json!({})),
        pod(REVISION, true, json!({})),
        pod(REVISION, false, json!({})),
    ];
    let told = look_at(2, &half, &late, &nothing());
    assert!(find(&told, STALLED).is_some(), "{told:?}");
}

#[test]
fn a_prefetch_says_so() {
    let pods = [pod("r1", true, json!({}))];
    let told = look_at(
        1,
        &pods,
        &plan(rollout(RolloutPhase::Prefetching)),
        &nothing(),
    );
    assert_eq!(ready(&told), ("False", "Prefetching"));
    assert!(
        find(&told, READY)
            .expect("there")
            .message
            .contains("go on serving")
    );
}

#[test]
fn a_service_that_no_node_can_hold_says_so_with_the_arithmetic() {
    let needs = json!({"spec": {"containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}});
    let arithmetic =
        crate::placement::verdict(&needs, &[NodeView::default()]).expect_err("too much");
    let unplaced = [pod(
        REVISION,
        false,
        json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]}),
    )];
    let look = |replicas, pods: &[PodView]| {
        let seen = Observed {
            pods,
            placement: Some(&arithmetic),
            ..Observed::default()
        };
        status(&service(replicas), REVISION, &seen, &nothing(), &at(1))
    };
    let told = look(1, &unplaced);
    assert_eq!(ready(&told), ("False", "NoNodeFits"));
    assert!(
        find(&told, STALLED)
            .expect("there")
            .message
            .contains("needs 8 nvidia.com/gpu")
    );
    assert_eq!(reasons(transitions(&nothing(), &told)), ["NoNodeFits"]);
    assert_eq!(ready(&look(0, &[])), ("True", "ScaledToZero"));
    assert_eq!(
        ready(&look(1, &[pod(REVISION, true, json!({}))])).0,
        "True",
        "it runs, so it fits"
    );
}

#[test]
fn a_fetch_is_told_in_steps_of_five_percent_of_the_pod_that_is_furthest_behind() {
    let fetching = [pod(
        REVISION,
        false,
        json!({"initContainerStatuses": [{"name": "model", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"running": {}}}]}),
    )];
    let look = |progress: &[FetchProgress], previous: &InferenceServiceStatus| {
        let seen = Observed {
            pods: &fetching,
            fetching: progress,
            ..Observed::default()
        };
        status(&service(1), REVISION, &seen, previous, &at(1))
    };
    let at_bytes = |bytes| FetchProgress {
        bytes,
        total_bytes: Some(1000),
        bytes_per_second: 1,
    };
    let told = look(&[at_bytes(999), at_bytes(449)], &nothing());
    let fetch = told.fetch.clone().expect("told");
    assert_eq!((fetch.percent, fetch.total_bytes), (40, 1000));
    assert_eq!(ready(&told), ("False", "Fetching"));
    assert_eq!(reasons(transitions(&nothing(), &told)), ["Fetching"]);
    assert_eq!(
        look(&[], &told).fetch,
        told.fetch,
        "one silent moment is no news"
    );
    let loaded = look_at(
        1,
        &[pod(REVISION, true, json!({}))],
        &Plan::default(),
        &told,
    );
    assert_eq!(loaded.fetch, None);
}
