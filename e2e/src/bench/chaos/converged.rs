//! Whether everything is as it has to be once all is calm. Reads the whole state, then judges it without the cluster.

use std::collections::HashMap;

use anyhow::Result;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt};
use serde_json::Value;

use super::cluster::{EVIL, MARK, Services, Slot, Wanted, pods};
use super::observer::{condition_status, well_formed};
use crate::bed::services::{Key, SERVICE_LABEL, child_resources, resource};

/// All that the cluster has, by service.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    services: HashMap<Key, DynamicObject>,
    /// With their kind.
    children: HashMap<Key, Vec<(String, DynamicObject)>>,
    pods: HashMap<Key, Vec<DynamicObject>>,
}

impl Snapshot {
    pub(super) async fn read(services: &Services) -> Result<Self> {
        let mut snapshot = Self::default();
        let all =
            |kind: &ApiResource| Api::<DynamicObject>::all_with(services.client.clone(), kind);
        for object in all(&resource()).list(&ListParams::default()).await?.items {
            snapshot.services.insert(
                (object.namespace().unwrap_or_default(), object.name_any()),
                object,
            );
        }
        // Not by the label that names the operator: a child without it is wrong, not absent.
        let ours = ListParams::default().labels(SERVICE_LABEL);
        for kind in child_resources() {
            for object in all(&kind).list(&ours).await?.items {
                if let Some(key) = key_of(&object) {
                    snapshot
                        .children
                        .entry(key)
                        .or_default()
                        .push((kind.kind.clone(), object));
                }
            }
        }
        for object in all(&pods()).list(&ours).await?.items {
            if let Some(key) = key_of(&object) {
                snapshot.pods.entry(key).or_default().push(object);
            }
        }
        Ok(snapshot)
    }

    /// What is not as it has to be.
    pub(super) fn wrong(&self, services: &Services) -> Vec<String> {
        let mut wrong = Vec::new();
        for (index, slot) in services.slots.iter().enumerate() {
            let key = services.key(index);
            wrong.extend(
                self.judge(&key, slot)
                    .into_iter()
                    .map(|what| format!("{}/{}: {what}", key.0, key.1)),
            );
        }
        wrong
    }

    fn judge(&self, key: &Key, slot: &Slot) -> Vec<String> {
        match (&slot.wanted, self.services.get(key)) {
            (None, None) => self.leftovers(key),
            (None, Some(_)) => vec!["was deleted and is there".to_owned()],
            (Some(_), None) => vec!["was created and is not there".to_owned()],
            (Some(_), Some(service)) if slot.foreign.is_some() => contested(service),
            (Some(wanted), Some(service)) => self.judge_service(key, wanted, service),
        }
    }

    fn leftovers(&self, key: &Key) -> Vec<String> {
        let children = self.children.get(key).into_iter().flatten();
        let mut left: Vec<String> = children
            .map(|(kind, child)| format!("{kind} {} outlives it", child.name_any()))
            .collect();
        let pods = self.pods.get(key).map_or(0, Vec::len);
        if pods > 0 {
            left.push(format!("{pods} pods outlive it"));
        }
        left
    }

    fn judge_service(&self, key: &Key, wanted: &Wanted, service: &DynamicObject) -> Vec<String> {
        let status = &service.data["status"];
        let mut wrong = well_formed(status);
        let generation = service.metadata.generation;
        if status["observedGeneration"].as_i64() != generation {
            wrong.push(format!(
                "status of generation {} instead of {generation:?}",
                status["observedGeneration"]
            ));
        }
        if condition_status(status, "Ready") != Some("True") {
            wrong.push(format!("not Ready: {}", words(status, "Ready")));
        }
        for kind in ["Reconciling", "Stalled"] {
            if condition_status(status, kind) == Some("True") {
                wrong.push(format!("{kind}: {}", words(status, kind)));
            }
        }
        for (field, found) in [
            ("replicas", &status["replicas"]),
            ("readyReplicas", &status["readyReplicas"]),
        ] {
            if found.as_u64() != Some(wanted.pods.into()) {
                wrong.push(format!("status.{field} is {found}, not {}", wanted.pods));
            }
        }
        wrong.extend(self.judge_pods(key, wanted));
        wrong.extend(self.judge_children(key, service));
        wrong
    }

    fn judge_pods(&self, key: &Key, wanted: &Wanted) -> Option<String> {
        let pods = self.pods.get(key).map_or(&[][..], Vec::as_slice);
        let mark = wanted.mark.to_string();
        let is_right = |pod: &&DynamicObject| {
            pod.annotations().get(MARK) == Some(&mark)
                && pod.metadata.deletion_timestamp.is_none()
                && condition_status(&pod.data["status"], "Ready") == Some("True")
        };
        let right = pods.iter().filter(is_right).count();
        (right != wanted.pods as usize || pods.len() != right).then(|| {
            format!(
                "{} pods, {right} of them ready and of the current spec, instead of {}",
                pods.len(),
                wanted.pods
            )
        })
    }

    fn judge_children(&self, key: &Key, service: &DynamicObject) -> Vec<String> {
        let children = self.children.get(key).map_or(&[][..], Vec::as_slice);
        let mut wrong = Vec::new();
        for kind in child_resources() {
            if !children.iter().any(|(found, _)| *found == kind.kind) {
                wrong.push(format!("has no {}", kind.kind));
            }
        }
        for (kind, child) in children {
            let name = child.name_any();
            let owner = child
                .meta()
                .owner_references
                .iter()
                .flatten()
                .find(|owner| owner.controller == Some(true));
            if owner.map(|owner| &owner.uid) != service.metadata.uid.as_ref() {
                wrong.push(format!("{kind} {name} belongs to another"));
            }
            if bears_edit(child) {
                wrong.push(format!("{kind} {name} is as somebody else edited it"));
            }
        }
        wrong
    }
}

/// A name that is taken: said so, and nothing claimed.
fn contested(service: &DynamicObject) -> Vec<String> {
    let status = &service.data["status"];
    let mut wrong = well_formed(status);
    if condition_status(status, "Ready") != Some("False")
        || !words(status, "Ready").contains("NameConflict")
    {
        wrong.push(format!(
            "its name is taken, and Ready says: {}",
            words(status, "Ready")
        ));
    }
    wrong
}

fn key_of(object: &DynamicObject) -> Option<Key> {
    Some((
        object.namespace()?,
        object.labels().get(SERVICE_LABEL)?.clone(),
    ))
}

fn bears_edit(child: &DynamicObject) -> bool {
    let labels = child.labels().values().any(|value| value == EVIL);
    labels || child.data.to_string().contains(EVIL)
}

fn words(status: &Value, kind: &str) -> String {
    let conditions = status["conditions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
        .map_or_else(
            || "nothing".to_owned(),
            |condition| {
                let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
                format!("{} {}: {}", text("status"), text("reason"), text("message"))
            },
        )
}
