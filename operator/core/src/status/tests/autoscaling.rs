use super::*;
use crate::rollout::DeploymentView;
use pagoda_crds::api::{CapacityStatus, LastDecision};

fn seen(standing: Option<Standing>) -> Observed<'static> {
    Observed {
        autoscaling: Autoscaling {
            standing,
            ..Autoscaling::default()
        },
        ..Observed::default()
    }
}

fn told(service: &Service, seen: &Observed<'_>, second: i64) -> Condition {
    let none = InferenceServiceStatus::default();
    let status = status(service, REVISION, seen, &none, &at(second));
    find(&status, AUTOSCALING).expect("there").clone()
}

fn reason(standing: Option<Standing>) -> String {
    told(&service(1), &seen(standing), 1).reason
}

#[test]
fn the_condition_says_who_moves_the_number() {
    assert_eq!(reason(None), "Starting");
    assert_eq!(reason(Some(Standing::NoMetrics)), "NoMetrics");
    assert_eq!(reason(Some(Standing::Follows)), "FollowsMetrics");
    let fixed = checked(json!({"engine": {"executor": "simulated"}}));
    assert_eq!(told(&fixed, &seen(None), 1).reason, "FixedReplicas");
    let external = checked(
        json!({"engine": {"executor": "simulated"}, "scaling": {"maxReplicas": 5, "managedBy": "External"}}),
    );
    assert_eq!(told(&external, &seen(None), 1).reason, "ManagedExternally");
}

#[test]
fn another_scaler_is_told_whoever_owns_the_number() {
    let conflict = || Standing::Told {
        reason: "ConflictingScaler",
        message: "two".into(),
    };
    for scaling in [
        json!({"maxReplicas": 5}),
        json!({}),
        json!({"maxReplicas": 5, "managedBy": "External"}),
    ] {
        let service = checked(json!({"engine": {"executor": "simulated"}, "scaling": scaling}));
        let said = told(&service, &seen(Some(conflict())), 1);
        assert_eq!(
            (said.status.as_str(), said.reason.as_str()),
            ("False", "ConflictingScaler")
        );
    }
}

#[test]
fn a_restart_of_the_operator_is_no_news() {
    let none = InferenceServiceStatus::default();
    for standing in [
        Standing::Follows,
        Standing::Panic,
        Standing::PodsNotReady,
        Standing::WaitsForColdStart { most: 3 },
    ] {
        let before = status(&service(1), REVISION, &seen(Some(standing)), &none, &at(1));
        let after = status(&service(1), REVISION, &seen(None), &before, &at(9));
        assert_eq!(find(&after, AUTOSCALING), find(&before, AUTOSCALING));
    }
}

#[test]
fn what_hinders_it_is_told_in_an_event_and_what_goes_well_is_not() {
    let none = InferenceServiceStatus::default();
    let before = status(
        &service(1),
        REVISION,
        &seen(Some(Standing::Follows)),
        &none,
        &at(1),
    );
    let events = |standing| {
        let after = status(
            &service(1),
            REVISION,
            &seen(Some(standing)),
            &before,
            &at(2),
        );
        transitions(&before, &after).len()
    };
    assert_eq!(events(Standing::Panic), 0);
    assert_eq!(events(Standing::AtMaximum), 0);
    assert_eq!(events(Standing::PodsNotReady), 1);
    let conflict = Standing::Told {
        reason: "ConflictingScaler",
        message: "two".into(),
    };
    assert_eq!(events(conflict), 1);
}

#[test]
fn pods_that_do_not_get_ready_are_counted_and_explained_in_the_schedulers_words_and_the_words_stay_the_same()
 {
    let late = PodView::of(
        &serde_json::from_value(json!({
            "metadata": {"name": "demo-2", "creationTimestamp": "2026-01-01T00:00:05Z", "labels": {names::LABEL_REVISION: REVISION}},
            "status": {"conditions": [
                {"type": "Ready", "status": "False"},
                {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
            ]}
        }))
        .expect("a pod of the test"),
    );
    let pods = [pod(REVISION, true, json!({})), late];
    let look = |second| {
        let seen = Observed {
            pods: &pods,
            ..seen(Some(Standing::PodsNotReady))
        };
        told(&service(2), &seen, second)
    };
    let condition = look(50);
    assert_eq!(
        (&*condition.status, &*condition.reason),
        ("False", "PodsNotReady")
    );
    let message = &condition.message;
    assert!(
        message.starts_with(
            "1 of 2 pods do not get ready, the first of them since 2026-01-01T00:00:05Z"
        ),
        "{message}"
    );
    assert!(
        message.ends_with("no node takes the pod: 0/3 nodes are available"),
        "{message}"
    );
    assert_eq!(look(59).message, *message);
}

#[test]
fn pods_that_a_quota_refuses_are_explained_in_its_words() {
    let deployment = DeploymentView {
        refused: Some("exceeded quota: gpus".into()),
        ..DeploymentView::default()
    };
    let pods = [pod(REVISION, true, json!({}))];
    let seen = Observed {
        pods: &pods,
        deployment: Some(&deployment),
        ..seen(Some(Standing::PodsNotReady))
    };
    let message = told(&service(3), &seen, 1).message;
    assert!(message.starts_with("2 of 3 pods"), "{message}");
    assert!(
        message.ends_with("pods are refused: exceeded quota: gpus"),
        "{message}"
    );
}

fn change(second: i64, from: i32, to: i32) -> LastDecision {
    LastDecision {
        time: at(second),
        from,
        to,
        reason: "AboveTarget".into(),
    }
}

#[test]
fn the_last_five_changes_are_remembered_newest_first_and_survive_a_restart() {
    let mut status_before = InferenceServiceStatus::default();
    for second in 1..8 {
        let autoscaling = Autoscaling {
            changes: vec![change(second, second as i32, second as i32 + 1)],
            ..Autoscaling::default()
        };
        let seen = Observed {
            autoscaling,
            ..Observed::default()
        };
        status_before = status(&service(1), REVISION, &seen, &status_before, &at(second));
    }
    let scaling = status_before.scaling.clone().expect("told");
    let from: Vec<i32> = scaling.history.iter().map(|c| c.from).collect();
    assert_eq!(from, [7, 6, 5, 4, 3]);
    assert_eq!(scaling.last_decision, Some(change(7, 7, 8)));
    let restarted = status(&service(1), REVISION, &seen(None), &status_before, &at(20));
    assert_eq!(restarted.scaling, Some(scaling));
}

#[test]
fn what_pods_carry_is_kept_until_something_else_was_learned() {
    let learned = |tokens| {
        vec![CapacityStatus {
            revision: REVISION.into(),
            hardware: "cpu".into(),
            tokens_per_second: Some(tokens),
            ..CapacityStatus::default()
        }]
    };
    let look = |capacity, before: &InferenceServiceStatus| {
        let autoscaling = Autoscaling {
            capacity,
            ..Autoscaling::default()
        };
        let seen = Observed {
            autoscaling,
            ..Observed::default()
        };
        status(&service(1), REVISION, &seen, before, &at(1))
    };
    let first = look(Some(learned(100)), &InferenceServiceStatus::default());
    let kept = look(None, &first);
    assert_eq!(kept.scaling.expect("told").capacity, learned(100));
    let next = look(Some(learned(200)), &first);
    assert_eq!(next.scaling.expect("told").capacity, learned(200));
}
