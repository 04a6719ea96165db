//! What may never be seen, whatever is done: judged from watches and from the audit log alone, by nobody that the operator
//! has a say in. Pure: events in, violations out.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use serde_json::Value;

use crate::bed::audit::Write;
use crate::bed::services::{Key, SERVICE_LABEL};

/// An event of a watch.
#[derive(Debug, Clone)]
pub struct Event {
    pub kind: String,
    pub object: Value,
    pub deleted: bool,
    /// Part of a list with which a watch begins: states in between were missed.
    pub listed: bool,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Observer {
    /// Conditions of each service, by UID and type: status and when it came to be.
    conditions: HashMap<(String, String), (String, String)>,
    /// Somebody else's objects, by UID: the version at which they have to stay.
    foreign: HashMap<String, String>,
    /// UIDs of foreign objects that their owner is deleting.
    leaving: HashSet<String>,
    /// Services that something was done to since all was calm.
    touched: HashSet<Key>,
}

impl Observer {
    /// From now on something may happen to the pods of this service.
    pub fn touch(&mut self, key: Key) {
        self.touched.insert(key);
    }

    /// All came right: whatever happens to pods now needs a new reason.
    pub fn all_calm(&mut self) {
        self.touched.clear();
    }

    /// Somebody else's object: nobody but its owner may change it.
    pub fn guard(&mut self, uid: String, version: String) {
        self.foreign.insert(uid, version);
    }

    /// Its owner deletes it.
    pub fn release(&mut self, uid: &str) {
        self.leaving.insert(uid.to_owned());
    }

    /// What is wrong with this event.
    pub fn see(&mut self, event: &Event) -> Option<String> {
        let mut wrong: Vec<String> = self.foreign_changed(event).into_iter().collect();
        match event.kind.as_str() {
            "InferenceService" => wrong.extend(self.service(event)),
            "Pod" => wrong.extend(self.pod(event)),
            _ => {}
        }
        if wrong.is_empty() {
            return None;
        }
        Some(format!(
            "{} {}: {}",
            event.kind,
            name_of(&event.object),
            wrong.join("; ")
        ))
    }

    fn foreign_changed(&self, event: &Event) -> Option<String> {
        let metadata = &event.object["metadata"];
        let uid = metadata["uid"].as_str()?;
        let version = self.foreign.get(uid)?;
        let changed = event.deleted || metadata["resourceVersion"].as_str() != Some(version);
        (changed && !self.leaving.contains(uid)).then(|| {
            format!(
                "somebody else's object was {}; managers: {}",
                if event.deleted { "deleted" } else { "changed" },
                managers(metadata)
            )
        })
    }

    fn service(&mut self, event: &Event) -> Vec<String> {
        if event.deleted {
            return Vec::new();
        }
        let (object, status) = (&event.object, &event.object["status"]);
        let mut wrong = well_formed(status);
        let generation = object["metadata"]["generation"]
            .as_i64()
            .unwrap_or_default();
        let observed = status["observedGeneration"].as_i64();
        if observed.is_some_and(|observed| observed > generation) {
            wrong.push(format!(
                "observedGeneration {observed:?} is ahead of {generation}"
            ));
        }
        if observed == Some(generation) {
            wrong.extend(out_of_bounds(object));
        }
        wrong.extend(self.transitions(object, event.listed));
        wrong
    }

    /// `lastTransitionTime` moves with the status and with nothing else, and never back.
    fn transitions(&mut self, object: &Value, listed: bool) -> Vec<String> {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let mut wrong = Vec::new();
        for condition in conditions(&object["status"]) {
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            let (kind, now) = (text("type"), (text("status"), text("lastTransitionTime")));
            let before = self
                .conditions
                .insert((uid.to_owned(), kind.clone()), now.clone());
            let Some(before) = before.filter(|_| !listed) else {
                continue;
            };
            if before.0 == now.0 && before.1 != now.1 {
                wrong.push(format!(
                    "{kind} stayed {} and its lastTransitionTime moved from {} to {}",
                    now.0, before.1, now.1
                ));
            }
            if now.1 < before.1 {
                wrong.push(format!(
                    "{kind}'s lastTransitionTime went back from {} to {}",
                    before.1, now.1
                ));
            }
        }
        // A condition that went may come again with a time of its own.
        let there: HashSet<String> = conditions(&object["status"])
            .filter_map(|condition| condition["type"].as_str().map(str::to_owned))
            .collect();
        self.conditions
            .retain(|(of, kind), _| of != uid || there.contains(kind));
        wrong
    }

    fn pod(&self, event: &Event) -> Option<String> {
        let metadata = &event.object["metadata"];
        let service = metadata["labels"][SERVICE_LABEL].as_str()?;
        let leaves = event.deleted || metadata["deletionTimestamp"].is_string();
        let key = (
            metadata["namespace"].as_str()?.to_owned(),
            service.to_owned(),
        );
        (leaves && !self.touched.contains(&key))
            .then(|| format!("a pod of {service}, to which nothing was done, was deleted"))
    }
}

fn name_of(object: &Value) -> String {
    let field = |name: &str| {
        object["metadata"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    format!("{}/{}", field("namespace"), field("name"))
}

fn managers(metadata: &Value) -> String {
    let fields = metadata["managedFields"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let names: Vec<&str> = fields
        .iter()
        .filter_map(|field| field["manager"].as_str())
        .collect();
    names.join(", ")
}

fn conditions(status: &Value) -> impl Iterator<Item = &Value> {
    status["conditions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
}

/// One condition of each type, each whole, Ready among them, and no two that exclude each other.
pub fn well_formed(status: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for condition in conditions(status) {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        *counts.entry(text("type")).or_default() += 1;
        if !["True", "False", "Unknown"].contains(&text("status")) {
            wrong.push(format!(
                "condition with the status {:?}",
                condition["status"]
            ));
        }
        if !is_reason(text("reason")) {
            wrong.push(format!(
                "condition with the reason {:?}",
                condition["reason"]
            ));
        }
        if text("lastTransitionTime").parse::<Timestamp>().is_err() {
            wrong.push(format!(
                "condition with the time {:?}",
                condition["lastTransitionTime"]
            ));
        }
    }
    let doubled = counts.iter().filter(|(_, count)| **count > 1);
    wrong.extend(doubled.map(|(kind, count)| format!("{count} conditions {kind}")));
    // A service that nobody has looked at yet may say less.
    if status["observedGeneration"].as_i64() > Some(0) && !counts.contains_key("Ready") {
        wrong.push("no condition Ready".to_owned());
    }
    let is = |kind: &str| condition_status(status, kind) == Some("True");
    if is("Ready") && is("Stalled") {
        wrong.push("Ready and Stalled at once".to_owned());
    }
    wrong
}

/// The status of one condition.
pub fn condition_status<'a>(status: &'a Value, kind: &str) -> Option<&'a str> {
    conditions(status).find(|condition| condition["type"] == kind)?["status"].as_str()
}

fn is_reason(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn out_of_bounds(object: &Value) -> Option<String> {
    let desired = object["status"]["scaling"]["desiredReplicas"].as_i64()?;
    let scaling = &object["spec"]["scaling"];
    let (least, most) = (
        scaling["minReplicas"].as_i64()?,
        scaling["maxReplicas"].as_i64()?,
    );
    (!(least..=most).contains(&desired))
        .then(|| format!("wants {desired} pods, with {least} to {most} allowed"))
}

/// Work that was written by an operator after another had taken the lease.
pub fn after_takeover(writes: &[Write]) -> Vec<String> {
    let mut leases: Vec<&Write> = writes
        .iter()
        .filter(|write| write.by_operator && write.is_of_lease() && write.code < 300)
        .filter(|write| {
            write
                .holder
                .as_deref()
                .is_some_and(|holder| !holder.is_empty())
        })
        .collect();
    leases.sort_by_key(|write| write.answered);
    // Each token held the lease until the first renewal by another that followed its own.
    let mut lost: HashMap<&str, Timestamp> = HashMap::new();
    for pair in leases.windows(2) {
        let (earlier, later) = (pair[0], pair[1]);
        lost.remove(later.credential.as_str());
        if earlier.credential != later.credential {
            lost.insert(&earlier.credential, later.answered);
        }
    }
    let late = |write: &&Write| {
        write.is_work()
            && write.code < 300
            && lost
                .get(write.credential.as_str())
                .is_some_and(|since| write.received > *since)
    };
    writes
        .iter()
        .filter(late)
        .map(|write| {
            format!(
                "{} {} {}/{} reached the API server at {} from an operator that had lost the lease",
                write.verb, write.resource, write.namespace, write.name, write.received
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(kind: &str, object: Value) -> Event {
        Event {
            kind: kind.to_owned(),
            object,
            deleted: false,
            listed: false,
        }
    }

    fn service(generation: i64, observed: i64, ready: &str, time: &str) -> Value {
        json!({
            "metadata": {"uid": "u", "namespace": "n", "name": "s", "generation": generation},
            "spec": {"scaling": {"minReplicas": 1, "maxReplicas": 2}},
            "status": {
                "observedGeneration": observed,
                "scaling": {"desiredReplicas": 1},
                "conditions": [{"type": "Ready", "status": ready, "reason": "Why", "lastTransitionTime": time}],
            },
        })
    }

    #[test]
    fn a_generation_that_is_not_there_yet_cannot_have_been_observed() {
        let mut observer = Observer::default();
        let time = "2026-01-01T00:00:00Z";
        assert!(
            observer
                .see(&event("InferenceService", service(2, 1, "True", time)))
                .is_none()
        );
        assert!(
            observer
                .see(&event("InferenceService", service(2, 3, "True", time)))
                .is_some()
        );
    }

    #[test]
    fn the_time_of_a_condition_moves_with_its_status_only() {
        let mut observer = Observer::default();
        let mut see = |status, time| {
            usize::from(
                observer
                    .see(&event("InferenceService", service(1, 1, status, time)))
                    .is_some(),
            )
        };
        assert_eq!(see("True", "2026-01-01T00:00:01Z"), 0);
        assert_eq!(see("True", "2026-01-01T00:00:01Z"), 0);
        assert_eq!(see("False", "2026-01-01T00:00:02Z"), 0);
        assert_eq!(see("False", "2026-01-01T00:00:03Z"), 1);
        assert_eq!(see("True", "2026-01-01T00:00:00Z"), 1, "back in time");
    }

    #[test]
    fn doubled_and_broken_conditions_are_told() {
        let whole = json!({"type": "Ready", "status": "True", "reason": "Fine", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        assert!(well_formed(&json!({"observedGeneration": 1, "conditions": [whole]})).is_empty());
        assert_eq!(
            well_formed(&json!({"observedGeneration": 1, "conditions": [whole, whole]})).len(),
            1
        );
        assert_eq!(
            well_formed(&json!({"observedGeneration": 1, "conditions": []})).len(),
            1
        );
        let broken = json!({"type": "Ready", "status": "yes", "reason": "so what", "lastTransitionTime": "then"});
        assert_eq!(well_formed(&json!({"conditions": [broken]})).len(), 3);
    }

    #[test]
    fn more_pods_than_allowed_are_told_once_the_spec_was_seen() {
        let mut object = service(1, 1, "True", "2026-01-01T00:00:00Z");
        object["status"]["scaling"]["desiredReplicas"] = json!(3);
        assert!(out_of_bounds(&object).is_some());
        assert!(
            Observer::default()
                .see(&event("InferenceService", object.clone()))
                .is_some()
        );
        object["metadata"]["generation"] = json!(2);
        assert!(
            Observer::default()
                .see(&event("InferenceService", object))
                .is_none()
        );
    }

    #[test]
    fn a_pod_may_go_only_when_something_was_done_to_its_service() {
        let mut observer = Observer::default();
        let pod = json!({"metadata": {"namespace": "n", "name": "p", "labels": {SERVICE_LABEL: "s"}, "deletionTimestamp": "t"}});
        assert!(observer.see(&event("Pod", pod.clone())).is_some());
        observer.touch(("n".to_owned(), "s".to_owned()));
        assert!(observer.see(&event("Pod", pod.clone())).is_none());
        observer.all_calm();
        assert!(observer.see(&event("Pod", pod)).is_some());
    }

    #[test]
    fn somebody_elses_object_stays_as_it_is_until_its_owner_deletes_it() {
        let mut observer = Observer::default();
        observer.guard("f".to_owned(), "7".to_owned());
        let seen = |version: &str| {
            event(
                "Service",
                json!({"metadata": {"uid": "f", "name": "x", "resourceVersion": version}}),
            )
        };
        assert!(observer.see(&seen("7")).is_none());
        assert!(observer.see(&seen("8")).is_some());
        observer.release("f");
        assert!(
            observer
                .see(&Event {
                    deleted: true,
                    ..seen("9")
                })
                .is_none()
        );
    }

    fn write(credential: &str, second: i64, holder: Option<&str>) -> Write {
        let at = Timestamp::from_second(second).unwrap();
        Write {
            received: at,
            answered: at,
            verb: "patch".to_owned(),
            resource: if holder.is_some() {
                "leases"
            } else {
                "deployments"
            }
            .to_owned(),
            namespace: "n".to_owned(),
            name: "x".to_owned(),
            code: 200,
            by_operator: true,
            credential: credential.to_owned(),
            holder: holder.map(str::to_owned),
        }
    }

    #[test]
    fn work_of_one_who_lost_the_lease_is_told_and_none_before_that_nor_after_it_was_regained() {
        let first = [
            write("a", 1, Some("a")),
            write("a", 2, None),
            write("b", 10, Some("b")),
            write("b", 11, None),
        ];
        assert!(after_takeover(&first).is_empty());
        let late: Vec<Write> = first
            .iter()
            .cloned()
            .chain([write("a", 12, None)])
            .collect();
        assert_eq!(after_takeover(&late).len(), 1);
        let regained = [
            write("a", 1, Some("a")),
            write("a", 5, Some("a")),
            write("a", 6, None),
        ];
        assert!(after_takeover(&regained).is_empty());
        let released = [
            write("a", 1, Some("a")),
            write("a", 2, Some("")),
            write("a", 3, None),
        ];
        assert!(after_takeover(&released).is_empty());
    }
}
