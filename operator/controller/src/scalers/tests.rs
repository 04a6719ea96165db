use super::*;
use crate::stores::Content;
use serde_json::json;

fn hpa(api_version: &str, kind: &str, name: &str, maker: Option<&str>) -> Arc<ScalerRow> {
    let owners = maker.map(|name| {
        json!([{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": name, "uid": "1", "controller": true}])
    });
    let object = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "hpa", "namespace": "team", "ownerReferences": owners.unwrap_or(json!([]))},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": name}},
    });
    let object: HorizontalPodAutoscaler = serde_json::from_value(object).expect("an HPA");
    Arc::new(ScalerRow::of(&object))
}

/// What is known once an HPA of the name `hpa` has come.
struct Bed {
    scalers: Scalers,
    queue: Queue,
    deployments: Table<Arc<DeploymentRow>>,
}

impl Bed {
    fn new() -> Self {
        Self {
            scalers: Scalers::default(),
            queue: Queue::default(),
            deployments: Table::default(),
        }
    }

    fn changes(&self, before: Option<&Arc<ScalerRow>>, after: Option<&Arc<ScalerRow>>) {
        let key = Key::new("team", "hpa");
        self.scalers
            .take(&self.queue, &key, before, after, &self.deployments);
    }

    fn conflict(&self, service: &str) -> Option<String> {
        let found = self
            .scalers
            .conflict(&Key::new("team", service), &self.deployments);
        found.map(|conflict| conflict.to_string())
    }
}

#[test]
fn an_hpa_conflicts_with_the_service_that_it_scales_and_with_no_other() {
    let bed = Bed::new();
    let row = hpa(
        "serving.pagoda.dev/v1alpha1",
        "InferenceService",
        "chat",
        None,
    );
    bed.changes(None, Some(&row));
    assert_eq!(
        bed.conflict("chat").as_deref(),
        Some("HorizontalPodAutoscaler hpa")
    );
    assert_eq!(bed.conflict("other"), None);
    let elsewhere = Key::new("elsewhere", "chat");
    assert_eq!(bed.scalers.conflict(&elsewhere, &bed.deployments), None);
    let moved = hpa(
        "serving.pagoda.dev/v1alpha1",
        "InferenceService",
        "other",
        None,
    );
    bed.changes(Some(&row), Some(&moved));
    assert_eq!(
        (bed.conflict("chat"), bed.conflict("other").is_some()),
        (None, true)
    );
    bed.changes(Some(&moved), None);
    assert_eq!(bed.conflict("other"), None);
    assert!(bed.scalers.lock().by_target.is_empty());
}

#[test]
fn what_is_called_alike_in_another_group_is_none_of_ours() {
    for (group, kind) in [
        ("example.com/v1", "InferenceService"),
        ("example.com/v1", "Deployment"),
        ("apps/v1", "StatefulSet"),
    ] {
        let bed = Bed::new();
        bed.changes(None, Some(&hpa(group, kind, "chat", None)));
        assert_eq!(bed.conflict("chat"), None, "{group} {kind}");
    }
}

#[test]
fn an_hpa_that_keda_made_is_called_by_what_somebody_wrote() {
    let bed = Bed::new();
    let row = hpa(
        "serving.pagoda.dev/v1alpha1",
        "InferenceService",
        "chat",
        Some("mine"),
    );
    bed.scalers.table.put(
        crate::stores::Kept {
            key: Key::new("team", "hpa"),
            service: None,
            version: "1".into(),
            value: row.clone(),
        },
        1,
    );
    bed.changes(None, Some(&row));
    assert_eq!(bed.conflict("chat").as_deref(), Some("ScaledObject mine"));
}

fn written_by(uid: &str, manager: &str) -> Arc<ServiceRow> {
    Arc::new(ServiceRow {
        uid: uid.into(),
        generation: 1,
        content: Content::Unreadable {
            metadata: Box::default(),
            error: String::new(),
        },
        scaled: None,
        claim: None,
        replicas_by: Some(manager.into()),
    })
}

#[test]
fn whoever_writes_over_the_autoscaler_again_and_again_is_named_and_given_way() {
    let bed = Bed::new();
    let key = Key::new("team", "chat");
    let ours = written_by("1", names::MANAGER_AUTOSCALER);
    let theirs = written_by("1", "argocd-controller");
    for turn in 0..3 {
        assert_eq!(bed.conflict("chat"), None, "turn {turn}");
        bed.scalers
            .watch_writers(&bed.queue, &key, Some(&ours), Some(&theirs));
        bed.scalers
            .watch_writers(&bed.queue, &key, Some(&theirs), Some(&ours));
    }
    let conflict = bed
        .scalers
        .conflict(&key, &bed.deployments)
        .expect("a rival");
    assert_eq!(conflict.to_string(), "argocd-controller");
    assert!(conflict.pauses());
    assert_eq!(conflict.permitted(2, 6, 1), 2);
    bed.scalers
        .watch_writers(&bed.queue, &key, Some(&ours), None);
    assert_eq!(
        bed.conflict("chat"),
        None,
        "a service that is gone is forgotten"
    );
}

#[test]
fn a_number_that_a_person_sets_or_a_service_that_is_made_anew_is_no_rivalry() {
    let bed = Bed::new();
    let key = Key::new("team", "chat");
    let (ours, kubectl) = (
        written_by("1", names::MANAGER_AUTOSCALER),
        written_by("1", "kubectl"),
    );
    bed.scalers
        .watch_writers(&bed.queue, &key, Some(&ours), Some(&kubectl));
    for _ in 0..5 {
        // It stays as the person set it, and other things change.
        bed.scalers
            .watch_writers(&bed.queue, &key, Some(&kubectl), Some(&kubectl));
    }
    for uid in ["2", "3", "4", "5"] {
        bed.scalers.watch_writers(
            &bed.queue,
            &key,
            Some(&ours),
            Some(&written_by(uid, "kubectl")),
        );
    }
    assert_eq!(bed.conflict("chat"), None);
}
