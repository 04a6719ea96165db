use super::model::{Cluster, Kind, at, service};
use crate::{
    pods::PodView,
    rollout::{PrefetchSeen, RevisionSeen, RolloutSeen, plan},
};
use pagoda_crds::api::{InferenceServiceStatus, RolloutPhase};
use serde_json::json;

fn auto() -> serde_json::Value {
    json!({"progressDeadlineSeconds": 300})
}

#[test]
fn the_first_revision_gets_all_pods_at_once() {
    let mut cluster = Cluster::empty(4, auto());
    cluster.release("a", Kind::Good(5));
    let first = cluster.look();
    assert_eq!((first.target_replicas, first.status), (4, None));
    assert_eq!(first.current.as_deref(), Some("a"));
}

#[test]
fn a_service_at_rest_gets_an_empty_plan() {
    let cluster = Cluster::at_rest(4, auto());
    assert_eq!(
        (&cluster.last.scale, &cluster.last.delete),
        (&vec![], &vec![])
    );
    assert_eq!(cluster.last.target_replicas, 4);
    assert_eq!(
        (&cluster.last.status, cluster.last.look_again_seconds),
        (&None, None)
    );
}

#[test]
fn new_pods_come_before_old_ones_leave() {
    let mut cluster = Cluster::at_rest(4, auto());
    cluster.release("b", Kind::Good(30));
    cluster.tick();
    assert_eq!((cluster.spec("a"), cluster.spec("b")), (Some(4), Some(1)));
    assert_eq!(cluster.phase(), Some(RolloutPhase::Surging));
    cluster.settle();
    assert_eq!((cluster.spec("a"), cluster.spec("b")), (None, Some(4)));
    assert_eq!(cluster.phase(), None);
}

#[test]
fn a_deployment_of_an_earlier_release_is_one_more_old_revision() {
    let pod = PodView {
        name: "demo-5d4f8c9b7d-abcde".into(),
        ready: true,
        ready_since: Some(at(0)),
        ..PodView::default()
    };
    let legacy = RevisionSeen {
        revision: "demo".into(),
        deployment_name: "demo".into(),
        is_legacy: true,
        spec_replicas: 1,
        pods: vec![pod],
        ..RevisionSeen::default()
    };
    let revisions = [legacy];
    let seen = RolloutSeen {
        target: "b",
        target_name: "demo-b",
        target_model_key: None,
        revisions: &revisions,
        prefetch: &PrefetchSeen::Absent,
        gate: None,
        has_cache: false,
        fits: true,
    };
    let status = InferenceServiceStatus::default();
    let first = plan(&service(1, auto()), &seen, &status, &at(5));
    assert_eq!((first.target_replicas, first.scale), (1, vec![]));
    assert_eq!(first.current.as_deref(), Some("demo"));
    let canary = service(1, json!({"strategy": "Canary"}));
    let first = plan(&canary, &seen, &status, &at(5));
    let traffic = first.status.expect("a rollout").traffic;
    assert_eq!(
        traffic[0].pod_prefix, "demo-5d4f8c9b7d-",
        "demo- would name the canary's pods as well"
    );
}

#[test]
fn without_room_for_a_new_pod_old_ones_end_first_and_it_does_not_flip_back() {
    let mut cluster = Cluster::at_rest(4, auto());
    cluster.capacity = 4;
    cluster.release("b", Kind::Good(10));
    cluster.tick();
    assert_eq!(cluster.phase(), Some(RolloutPhase::Surging));
    let mut phases = vec![];
    for _ in 0..600 {
        cluster.tick();
        phases.push(cluster.phase());
    }
    phases.dedup();
    assert_eq!(
        phases,
        [
            Some(RolloutPhase::Surging),
            Some(RolloutPhase::TerminatingFirst),
            None
        ]
    );
    assert_eq!((cluster.spec("a"), cluster.ready("b")), (None, 4));
}

#[test]
fn old_pods_are_not_ended_for_a_pod_that_no_node_holds() {
    let mut cluster = Cluster::at_rest(2, auto());
    cluster.capacity = 2;
    cluster.fits = false;
    cluster.release("b", Kind::Good(10));
    cluster.settle();
    assert_eq!(
        (cluster.phase(), cluster.ready("a")),
        (Some(RolloutPhase::Surging), 2)
    );
    assert!(cluster.last.overdue);
    let mut cluster = Cluster::at_rest(2, json!({"strategy": "TerminateFirst"}));
    cluster.fits = false;
    cluster.release("b", Kind::Good(10));
    cluster.settle();
    assert_eq!((cluster.ready("a"), cluster.spec("b")), (2, Some(0)));
    cluster.fits = true;
    cluster.settle();
    assert_eq!((cluster.ready("b"), cluster.spec("a")), (2, None));
}

#[test]
fn a_revision_that_cannot_run_stays_beside_the_old_one_under_surge() {
    for kind in [Kind::Hopeless, Kind::Crashing, Kind::Silent] {
        let mut cluster = Cluster::at_rest(
            4,
            json!({"strategy": "Surge", "progressDeadlineSeconds": 60}),
        );
        cluster.release("b", kind);
        cluster.settle();
        assert_eq!(
            (cluster.ready("a"), cluster.spec("b")),
            (4, Some(1)),
            "{kind:?}"
        );
        assert!(cluster.last.overdue, "{kind:?}");
        assert_eq!(cluster.last.look_again_seconds, None, "no storm of looks");
    }
}

#[test]
fn a_revision_that_cannot_run_is_rolled_back_and_not_tried_again_until_the_spec_changes() {
    let mut cluster = Cluster::at_rest(
        4,
        json!({"strategy": "TerminateFirst", "progressDeadlineSeconds": 60}),
    );
    cluster.release("b", Kind::Hopeless);
    cluster.settle();
    assert_eq!(cluster.phase(), Some(RolloutPhase::RolledBack));
    let failed = cluster
        .status
        .rollout
        .clone()
        .and_then(|r| r.failed)
        .expect("told");
    assert_eq!(
        (failed.revision.as_str(), failed.reason.as_str()),
        ("b", "HashMismatch")
    );
    assert_eq!((cluster.ready("a"), cluster.spec("b")), (4, Some(0)));
    cluster.service.replicas = 0;
    cluster.settle();
    assert_eq!((cluster.spec("a"), cluster.spec("b")), (Some(0), Some(0)));
    cluster.service.replicas = 2;
    cluster.settle();
    assert_eq!(
        (cluster.ready("a"), cluster.spec("b")),
        (2, Some(0)),
        "the old one wakes"
    );
    cluster.release("c", Kind::Good(5));
    cluster.settle();
    assert_eq!((cluster.ready("c"), cluster.deployments.len()), (2, 1));
}

#[test]
fn a_revert_in_mid_rollout_makes_the_old_revision_the_target_again() {
    for strategy in ["Auto", "Surge", "TerminateFirst", "Canary"] {
        let mut cluster = Cluster::at_rest(4, json!({"strategy": strategy}));
        cluster.release("b", Kind::Good(20));
        for _ in 0..8 {
            cluster.tick();
        }
        cluster.release("a", Kind::Good(5));
        cluster.settle();
        assert_eq!(
            (cluster.ready("a"), cluster.deployments.len()),
            (4, 1),
            "{strategy}"
        );
        assert_eq!(
            (cluster.phase(), cluster.last.current.as_deref()),
            (None, Some("a"))
        );
    }
}

#[test]
fn a_deployment_whose_pods_still_finish_their_streams_is_not_deleted() {
    let mut cluster = Cluster::at_rest(1, auto());
    cluster.drain = 120;
    cluster.release("b", Kind::Good(5));
    for _ in 0..6 {
        cluster.tick();
    }
    assert_eq!((cluster.phase(), cluster.spec("a")), (None, Some(0)));
    assert!(cluster.pods.iter().any(|p| p.deployment == "demo-a"));
    cluster.settle();
    assert_eq!(cluster.spec("a"), None);
}

#[test]
fn pods_that_are_still_ending_are_counted_before_new_ones_start() {
    let mut cluster = Cluster::at_rest(1, json!({"strategy": "TerminateFirst"}));
    cluster.drain = 60;
    cluster.release("b", Kind::Good(5));
    for _ in 0..8 {
        cluster.tick();
        assert_eq!(cluster.spec("b"), Some(0));
    }
    cluster.settle();
    assert_eq!(cluster.ready("b"), 1);
}

#[test]
fn a_change_at_zero_takes_over_directly() {
    let mut cluster = Cluster::at_rest(1, auto());
    cluster.service.replicas = 0;
    cluster.settle();
    cluster.release("b", Kind::Good(5));
    cluster.settle();
    assert_eq!(cluster.deployments.len(), 1);
    assert_eq!(
        (cluster.phase(), cluster.last.current.as_deref()),
        (None, Some("b"))
    );
}

#[test]
fn zero_in_mid_rollout_keeps_the_old_revision_until_the_new_one_has_shown_itself() {
    let mut cluster = Cluster::at_rest(2, auto());
    cluster.release("b", Kind::Good(60));
    cluster.tick();
    cluster.service.replicas = 0;
    cluster.settle();
    assert_eq!((cluster.spec("a"), cluster.spec("b")), (Some(0), Some(0)));
    assert!(cluster.pods.is_empty());
    cluster.service.replicas = 2;
    cluster.settle();
    assert_eq!((cluster.ready("b"), cluster.spec("a")), (2, None));
}

#[test]
fn a_rollout_that_fails_when_the_service_goes_to_zero_is_given_up() {
    let mut cluster = Cluster::at_rest(1, json!({"strategy": "Surge"}));
    cluster.release("b", Kind::Hopeless);
    cluster.tick();
    cluster.tick();
    cluster.service.replicas = 0;
    cluster.settle();
    assert_eq!(cluster.phase(), Some(RolloutPhase::RolledBack));
    cluster.service.replicas = 1;
    cluster.settle();
    assert_eq!((cluster.ready("a"), cluster.spec("b")), (1, Some(0)));
}

#[test]
fn a_model_is_brought_to_the_nodes_before_old_pods_end() {
    let rollout = json!({"strategy": "TerminateFirst", "progressDeadlineSeconds": 60});
    let mut cluster = Cluster::at_rest(2, rollout);
    cluster.has_cache = true;
    cluster.release("b", Kind::Good(5));
    cluster.tick();
    let nodes = cluster.last.prefetch_nodes.clone().expect("nodes");
    assert_eq!(nodes.len(), 2);
    cluster.prefetch = PrefetchSeen::Running;
    cluster.tick();
    assert_eq!(
        (cluster.phase(), cluster.ready("a")),
        (Some(RolloutPhase::Prefetching), 2)
    );
    cluster.prefetch = PrefetchSeen::Done;
    cluster.tick();
    assert_eq!(cluster.phase(), Some(RolloutPhase::TerminatingFirst));
    assert_eq!(
        cluster.last.prefetch_nodes, None,
        "the Job has done its work"
    );
    cluster.prefetch = PrefetchSeen::Absent;
    cluster.settle();
    assert_eq!((cluster.ready("b"), cluster.phase()), (2, None));
}

#[test]
fn a_model_that_cannot_be_brought_leaves_the_old_revision_serving_and_says_why() {
    let rollout = json!({"strategy": "TerminateFirst", "progressDeadlineSeconds": 60});
    let mut cluster = Cluster::at_rest(2, rollout);
    cluster.has_cache = true;
    cluster.release("b", Kind::Good(5));
    cluster.tick();
    cluster.prefetch = PrefetchSeen::Failed {
        reason: "HashMismatch".into(),
        message: "it is another file".into(),
    };
    cluster.settle();
    let failed = cluster
        .status
        .rollout
        .clone()
        .and_then(|r| r.failed)
        .expect("told");
    assert_eq!(failed.message, "it is another file");
    assert_eq!((cluster.ready("a"), cluster.spec("b")), (2, Some(0)));
}

#[test]
fn a_prefetch_that_no_node_takes_is_skipped_after_a_moment() {
    let rollout = json!({"strategy": "TerminateFirst", "progressDeadlineSeconds": 3000});
    let mut cluster = Cluster::at_rest(2, rollout);
    cluster.has_cache = true;
    cluster.release("b", Kind::Good(5));
    cluster.tick();
    assert_eq!(cluster.phase(), Some(RolloutPhase::Prefetching));
    let since = at(cluster.now + 5);
    cluster.prefetch = PrefetchSeen::Crowded { since };
    cluster.tick();
    assert_eq!(
        (cluster.phase(), cluster.last.look_again_seconds),
        (Some(RolloutPhase::Prefetching), Some(10))
    );
    cluster.tick();
    cluster.tick();
    assert_eq!(cluster.phase(), Some(RolloutPhase::TerminatingFirst));
    cluster.prefetch = PrefetchSeen::Absent;
    cluster.settle();
    assert_eq!((cluster.ready("b"), cluster.phase()), (2, None));
}

#[test]
fn pods_that_fail_while_nobody_answers_are_given_up_after_a_few_tries() {
    let rollout = json!({"strategy": "TerminateFirst", "progressDeadlineSeconds": 3000});
    let mut cluster = Cluster::at_rest(1, rollout.clone());
    cluster.release("b", Kind::Crashing);
    let mut longest = None;
    for _ in 0..60 {
        cluster.tick();
        longest = longest.max(cluster.last.look_again_seconds);
    }
    assert_eq!(cluster.phase(), Some(RolloutPhase::RolledBack));
    assert!(longest <= Some(90), "{longest:?}");
    assert_eq!((cluster.ready("a"), cluster.spec("b")), (1, Some(0)));
    let failed = cluster.status.rollout.clone().and_then(|r| r.failed);
    assert_eq!(failed.expect("told").reason, "Crashed");
    // Three of four old pods still answer: there is no hurry.
    let mut cluster = Cluster::at_rest(4, rollout);
    cluster.release("b", Kind::Crashing);
    for _ in 0..60 {
        cluster.tick();
    }
    assert_eq!(
        (cluster.phase(), cluster.ready("a")),
        (Some(RolloutPhase::TerminatingFirst), 3)
    );
}

#[test]
fn pods_that_take_long_and_do_not_fail_have_the_whole_deadline() {
    let rollout = json!({"strategy": "TerminateFirst", "progressDeadlineSeconds": 3000});
    let mut cluster = Cluster::at_rest(1, rollout);
    cluster.release("b", Kind::Good(1000));
    for _ in 0..60 {
        cluster.tick();
    }
    assert_eq!(cluster.phase(), Some(RolloutPhase::TerminatingFirst));
    cluster.settle();
    assert_eq!((cluster.ready("b"), cluster.phase()), (1, None));
}

#[test]
fn a_stuck_rollout_follows_a_change_of_its_strategy() {
    let mut cluster = Cluster::at_rest(1, json!({"strategy": "Surge"}));
    cluster.capacity = 1;
    cluster.release("b", Kind::Good(5));
    cluster.settle();
    assert_eq!(
        (cluster.phase(), cluster.ready("a")),
        (Some(RolloutPhase::Surging), 1)
    );
    cluster.service = service(1, json!({"strategy": "TerminateFirst"}));
    cluster.settle();
    assert_eq!((cluster.ready("b"), cluster.phase()), (1, None));
}

#[test]
fn old_pods_that_are_all_broken_do_not_hold_a_rollout_up() {
    for strategy in ["Auto", "TerminateFirst"] {
        let mut cluster = Cluster::empty(4, json!({"strategy": strategy}));
        cluster.capacity = 4;
        cluster.release("a", Kind::Crashing);
        cluster.settle();
        cluster.release("b", Kind::Good(5));
        cluster.settle();
        assert_eq!(
            (cluster.ready("b"), cluster.deployments.len()),
            (4, 1),
            "{strategy}"
        );
    }
}

#[test]
fn of_three_revisions_the_one_that_never_took_over_goes_first() {
    let mut cluster = Cluster::at_rest(8, json!({"strategy": "Surge"}));
    cluster.release("b", Kind::Good(20));
    for _ in 0..7 {
        cluster.tick();
    }
    let of_b = cluster.ready("b");
    assert!((1..8).contains(&of_b), "{of_b}");
    cluster.release("c", Kind::Good(20));
    let mut a_when_b_went = None;
    for _ in 0..600 {
        cluster.tick();
        let serving = cluster.ready("a") + cluster.ready("b") + cluster.ready("c");
        assert!(serving >= 8, "{serving} of 8 answer");
        if cluster.spec("b") == Some(0) && a_when_b_went.is_none() {
            a_when_b_went = cluster.spec("a");
        }
    }
    assert!(a_when_b_went > Some(0), "{a_when_b_went:?}");
    assert_eq!((cluster.ready("c"), cluster.deployments.len()), (8, 1));
}

#[test]
fn a_prefetch_that_slept_is_not_late_when_it_wakes() {
    let rollout = json!({"strategy": "TerminateFirst", "progressDeadlineSeconds": 60});
    let mut cluster = Cluster::at_rest(2, rollout);
    cluster.has_cache = true;
    cluster.release("b", Kind::Good(5));
    cluster.tick();
    cluster.service.replicas = 0;
    cluster.settle();
    assert_eq!(cluster.last.prefetch_nodes, None);
    cluster.service.replicas = 2;
    cluster.tick();
    assert_ne!(cluster.phase(), Some(RolloutPhase::RolledBack));
    cluster.prefetch = PrefetchSeen::Done;
    cluster.settle();
    assert_eq!(cluster.ready("b"), 2);
}

#[test]
fn a_status_that_lost_its_rollout_does_not_take_the_old_revision_down() {
    let mut cluster = Cluster::at_rest(4, auto());
    cluster.release("b", Kind::Silent);
    cluster.tick();
    cluster.status.rollout = None;
    cluster.settle();
    assert_eq!((cluster.ready("a"), cluster.spec("b")), (4, Some(1)));
    cluster.status = InferenceServiceStatus::default();
    cluster.settle();
    assert_eq!((cluster.ready("a"), cluster.spec("b")), (4, Some(1)));
}

#[test]
fn a_rollout_past_its_deadline_is_given_up_in_the_schedulers_words() {
    let rollout = json!({"strategy": "Canary", "progressDeadlineSeconds": 60});
    let mut cluster = Cluster::at_rest(2, rollout);
    cluster.capacity = 2;
    cluster.release("b", Kind::Good(5));
    cluster.settle();
    let failed = cluster.status.rollout.clone().and_then(|r| r.failed);
    assert_eq!(failed.expect("told").reason, "Unschedulable");
    assert_eq!(cluster.ready("a"), 2);
}
