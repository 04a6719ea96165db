use super::*;
use crate::testing::checked;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Condition};
use pagoda_crds::names;
use serde_json::{Value, json};

const REVISION: &str = "r2";

fn pod(revision: &str, ready: bool, extra: Value) -> PodView {
    let mut status =
        json!({"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]});
    if let (Some(status), Some(extra)) = (status.as_object_mut(), extra.as_object()) {
        status.extend(extra.clone());
    }
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "demo-1", "labels": {names::LABEL_REVISION: revision}},
        "status": status
    }))
    .expect("a pod of the test");
    PodView::of(&pod)
}

fn at(second: i64) -> Time {
    let text = format!("\"2026-01-01T00:00:{second:02}Z\"");
    serde_json::from_str(&text).expect("a time")
}

fn service(replicas: u32) -> Service {
    checked(
        json!({"engine": {"executor": "simulated"}, "replicas": replicas, "scaling": {"minReplicas": 0, "maxReplicas": 5}}),
    )
}

fn look(replicas: u32, pods: Vec<PodView>) -> InferenceServiceStatus {
    let seen = Observed {
        pods: &pods,
        gateway_url: "http://gateway/v1",
        ..Observed::default()
    };
    status(
        &service(replicas),
        REVISION,
        &seen,
        &InferenceServiceStatus::default(),
        &at(1),
    )
}

fn find<'a>(status: &'a InferenceServiceStatus, kind: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|c| c.type_ == kind)
}

fn ready(status: &InferenceServiceStatus) -> (&str, &str) {
    let condition = find(status, READY).expect("always there");
    (&condition.status, &condition.reason)
}

fn ended(container: &str, ended: Value) -> Value {
    json!({"initContainerStatuses": [{"name": container, "image": "i", "imageID": "", "ready": false, "restartCount": 2,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}]})
}

#[test]
fn all_pods_answering_is_ready_and_neither_reconciling_nor_stalled() {
    let status = look(1, vec![pod(REVISION, true, json!({}))]);
    assert_eq!(ready(&status), ("True", "PodsReady"));
    assert_eq!(
        find(&status, MODEL_LOADED).map(|c| c.status.as_str()),
        Some("True")
    );
    assert!(find(&status, RECONCILING).is_none() && find(&status, STALLED).is_none());
    assert_eq!((status.replicas, status.ready_replicas), (1, 1));
    assert_eq!(
        status.selector.as_deref(),
        Some("serving.pagoda.dev/service=demo")
    );
}

#[test]
fn zero_replicas_are_ready() {
    assert_eq!(ready(&look(0, vec![])), ("True", "ScaledToZero"));
}

#[test]
fn pods_on_their_way_beside_ones_that_answer_leave_it_ready() {
    let status = look(
        3,
        vec![
            pod(REVISION, true, json!({})),
            pod(REVISION, false, json!({})),
        ],
    );
    assert_eq!(ready(&status), ("True", "PodsReady"));
}

#[test]
fn ready_pods_of_the_old_revision_do_not_make_the_new_one_ready() {
    let status = look(
        1,
        vec![pod("r1", true, json!({})), pod(REVISION, false, json!({}))],
    );
    assert_eq!(ready(&status).0, "False");
    assert!(
        find(&status, READY)
            .expect("there")
            .message
            .contains("go on serving")
    );
    let status = look(
        2,
        vec![pod("r1", true, json!({})), pod(REVISION, true, json!({}))],
    );
    assert_eq!(ready(&status), ("False", "RollingOut"));
    assert!(find(&status, RECONCILING).is_some());
}

#[test]
fn three_failures_of_a_source_are_three_reasons() {
    for (reason, stalled) in [
        ("HashMismatch", true),
        ("DiskFull", false),
        ("ModelNotFound", true),
    ] {
        let words = format!("{{\"reason\":\"{reason}\",\"message\":\"told by the pod\"}}");
        let status = look(
            1,
            vec![pod(
                REVISION,
                false,
                ended("model", json!({"exitCode": 1, "message": words})),
            )],
        );
        assert_eq!(ready(&status), ("False", reason));
        let loaded = find(&status, MODEL_LOADED).expect("there");
        assert_eq!(
            (loaded.reason.as_str(), loaded.message.as_str()),
            (reason, "told by the pod")
        );
        assert_eq!(find(&status, STALLED).is_some(), stalled, "{reason}");
        assert_eq!(find(&status, RECONCILING).is_some(), !stalled, "{reason}");
    }
}

#[test]
fn a_kill_at_the_memory_limit_says_what_to_raise() {
    let status = look(
        1,
        vec![pod(
            REVISION,
            false,
            ended("engine", json!({"exitCode": 137, "reason": "OOMKilled"})),
        )],
    );
    assert_eq!(ready(&status), ("False", "OutOfMemory"));
    assert!(
        find(&status, STALLED)
            .expect("there")
            .message
            .contains("limits.memory")
    );
}

#[test]
fn words_that_are_not_ours_count_as_a_crash() {
    let status = look(
        1,
        vec![pod(
            REVISION,
            false,
            ended("engine", json!({"exitCode": 101, "message": "panicked"})),
        )],
    );
    assert_eq!(ready(&status), ("False", "Crashed"));
}

#[test]
fn images_and_nodes_that_are_missing_are_told() {
    let image = json!({"containerStatuses": [{"name": "engine", "image": "acme/x:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off 20s"}}}]});
    let status = look(1, vec![pod(REVISION, false, image)]);
    assert_eq!(ready(&status), ("False", "ImagePull"));
    assert!(
        find(&status, READY)
            .expect("there")
            .message
            .contains("acme/x:1")
    );
    let node = json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}]});
    let status = look(1, vec![pod(REVISION, false, node)]);
    assert_eq!(ready(&status), ("False", "Unschedulable"));
    assert!(
        find(&status, READY)
            .expect("there")
            .message
            .contains("Insufficient cpu")
    );
}

#[test]
fn quota_that_refuses_pods_is_told() {
    let deployment = serde_json::from_value(json!({"metadata": {}, "status": {"conditions": [
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]}}))
    .expect("a Deployment of the test");
    let deployment = DeploymentView::of(&deployment);
    let seen = Observed {
        deployment: Some(&deployment),
        ..Observed::default()
    };
    let status = status(
        &service(1),
        REVISION,
        &seen,
        &InferenceServiceStatus::default(),
        &at(1),
    );
    assert_eq!(ready(&status), ("False", "PodsRefused"));
}

#[test]
fn leaving_pods_do_not_count() {
    let mut leaving = pod(REVISION, true, json!({}));
    leaving.leaving = true;
    let status = look(1, vec![leaving]);
    assert_eq!((status.replicas, ready(&status).0), (0, "False"));
}

#[test]
fn times_move_only_with_the_status() {
    let first = look(1, vec![pod(REVISION, false, json!({}))]);
    let crashed = [pod(
        REVISION,
        false,
        ended("engine", json!({"exitCode": 1})),
    )];
    let seen = Observed {
        pods: &crashed,
        ..Observed::default()
    };
    let second = status(&service(1), REVISION, &seen, &first, &at(9));
    assert_eq!(
        find(&second, READY).expect("there").last_transition_time,
        at(1),
        "False stayed False"
    );
    let well = [pod(REVISION, true, json!({}))];
    let seen = Observed {
        pods: &well,
        ..Observed::default()
    };
    let third = status(&service(1), REVISION, &seen, &second, &at(20));
    assert_eq!(
        find(&third, READY).expect("there").last_transition_time,
        at(20)
    );
}

#[test]
fn the_same_sight_gives_the_same_status() {
    let pods = || vec![pod(REVISION, true, json!({}))];
    let first = look(1, pods());
    let seen = Observed {
        pods: &pods(),
        gateway_url: "http://gateway/v1",
        ..Observed::default()
    };
    assert_eq!(status(&service(1), REVISION, &seen, &first, &at(30)), first);
}

#[test]
fn a_refusal_is_stalled_and_keeps_what_is_known() {
    let before = look(1, vec![pod(REVISION, true, json!({}))]);
    let refusal = Refusal {
        reason: "InvalidSpec",
        message: "raise maxReplicas".into(),
    };
    let after = refused(4, &refusal, &[pod("r1", true, json!({}))], &before, &at(5));
    assert_eq!(ready(&after), ("False", "InvalidSpec"));
    assert_eq!(
        find(&after, STALLED).map(|c| c.message.as_str()),
        Some("raise maxReplicas")
    );
    assert_eq!(
        (after.observed_generation, after.ready_replicas),
        (Some(4), 1)
    );
    assert_eq!(after.url, before.url);
}

#[test]
fn events_tell_of_failure_and_recovery_and_not_of_steps_on_the_way() {
    let nothing = InferenceServiceStatus::default();
    let starting = look(1, vec![]);
    assert_eq!(transitions(&nothing, &starting), []);
    let words = "{\"reason\":\"HashMismatch\",\"message\":\"m\"}";
    let failed = look(
        1,
        vec![pod(
            REVISION,
            false,
            ended("model", json!({"exitCode": 1, "message": words})),
        )],
    );
    let events = transitions(&starting, &failed);
    assert_eq!(
        events,
        [Transition {
            warning: true,
            reason: "HashMismatch".into(),
            message: "m".into()
        }]
    );
    assert_eq!(transitions(&failed, &failed), []);
    let well = look(1, vec![pod(REVISION, true, json!({}))]);
    let reasons: Vec<String> = transitions(&failed, &well)
        .into_iter()
        .map(|t| t.reason)
        .collect();
    assert_eq!(reasons, ["Loaded", "PodsReady"]);
}

mod autoscaling;
mod load;
mod rollouts;
mod routes;
