//! A service and its pods as they change: what `kubectl get --watch` tells, said in lines for a person.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Deserializer, Value};

use crate::kubectl::Kubectl;

/// The service and its pods, followed until this is dropped.
pub struct Follower {
    updates: Receiver<Value>,
    watchers: Vec<Child>,
    shown: BTreeMap<String, String>,
}

impl Follower {
    /// Begins to watch `service` in `namespace`. Objects that are there already come first.
    pub fn start(kubectl: &Kubectl, namespace: &str, service: &str) -> Result<Self> {
        let selector = format!("--selector=serving.pagoda.dev/service={service}");
        let (sender, updates) = channel();
        let mut follower = Self {
            updates,
            watchers: Vec::new(),
            shown: BTreeMap::new(),
        };
        for what in [&["inferenceservice", service][..], &["pods", &selector]] {
            let arguments = [
                &["get", "--namespace", namespace, "--watch", "--output=json"][..],
                what,
            ]
            .concat();
            let mut watcher = kubectl
                .command(&arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()?;
            let output = watcher
                .stdout
                .take()
                .context("kubectl has no standard output")?;
            follower.watchers.push(watcher);
            let sender = sender.clone();
            thread::spawn(move || forward(BufReader::new(output), &sender));
        }
        Ok(follower)
    }

    /// Calls `say` with a line for each change until `Ready` is true of the newest generation. Fails after `limit`, or at
    /// once when the service is `Stalled`, with the conditions' own words.
    pub fn until_ready(&mut self, limit: Duration, mut say: impl FnMut(&str)) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            let Ok(object) = self.updates.recv_timeout(rest) else {
                bail!(
                    "not ready after {} s; last seen: {:#?}",
                    limit.as_secs(),
                    self.shown
                );
            };
            for (subject, state) in states(&object) {
                if self.shown.get(&subject) != Some(&state) {
                    say(&format!("{subject}: {state}"));
                    self.shown.insert(subject, state);
                }
            }
            if is_ready(&object) {
                return Ok(());
            }
            if let Some(message) = stalled(&object) {
                bail!("the service cannot become ready: {message}");
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        for watcher in &mut self.watchers {
            // It may have ended by itself; then there is nothing to end.
            let _ = watcher.kill();
            let _ = watcher.wait();
        }
    }
}

/// `kubectl --watch --output=json` writes one JSON object after another.
fn forward(output: impl std::io::Read, sender: &Sender<Value>) {
    for object in Deserializer::from_reader(output)
        .into_iter::<Value>()
        .map_while(Result::ok)
    {
        if sender.send(object).is_err() {
            return;
        }
    }
}

/// Subject and state of everything worth a line in this object.
fn states(object: &Value) -> Vec<(String, String)> {
    match object["kind"].as_str() {
        Some("InferenceService") => conditions(object),
        Some("Pod") => vec![(
            format!("pod {}", text(&object["metadata"]["name"])),
            pod_state(object),
        )],
        _ => Vec::new(),
    }
}

fn conditions(service: &Value) -> Vec<(String, String)> {
    let list = service["status"]["conditions"].as_array();
    let line = |condition: &Value| {
        let words = [
            &condition["status"],
            &condition["reason"],
            &condition["message"],
        ]
        .map(text);
        (
            text(&condition["type"]).to_owned(),
            words.join("  ").trim_end().to_owned(),
        )
    };
    list.into_iter().flatten().map(line).collect()
}

/// The state that `kubectl get pods` would show, near enough.
fn pod_state(pod: &Value) -> String {
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return "Terminating".to_owned();
    }
    let status = &pod["status"];
    if conditions(pod)
        .iter()
        .any(|(kind, state)| kind == "Ready" && state.starts_with("True"))
    {
        return "Ready".to_owned();
    }
    let containers = ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .filter_map(|list| status[list].as_array())
        .flatten();
    for container in containers {
        let name = text(&container["name"]);
        let state = &container["state"];
        if state["running"].is_object() {
            return format!("{name} is running");
        }
        if let Some(reason) = state["waiting"]["reason"].as_str() {
            return format!("{name} waits: {reason}");
        }
        if state["terminated"]["exitCode"]
            .as_i64()
            .is_some_and(|code| code != 0)
        {
            return format!("{name} failed: {}", text(&state["terminated"]["message"]));
        }
    }
    text(&status["phase"]).to_owned()
}

fn is_ready(object: &Value) -> bool {
    object["kind"] == "InferenceService"
        && object["status"]["observedGeneration"] == object["metadata"]["generation"]
        && conditions(object)
            .iter()
            .any(|(kind, state)| kind == "Ready" && state.starts_with("True"))
}

fn stalled(object: &Value) -> Option<String> {
    let found = conditions(object)
        .into_iter()
        .find(|(kind, state)| kind == "Stalled" && state.starts_with("True"));
    found
        .filter(|_| object["kind"] == "InferenceService")
        .map(|(_, state)| state)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(generation: u64, observed: u64, ready: &str) -> Value {
        json!({
            "kind": "InferenceService",
            "metadata": {"name": "a", "generation": generation},
            "status": {"observedGeneration": observed, "conditions": [{"type": "Ready", "status": ready, "reason": "R", "message": "m"}]},
        })
    }

    #[test]
    fn ready_of_an_older_generation_is_not_ready() {
        assert!(is_ready(&service(2, 2, "True")));
        assert!(!is_ready(&service(2, 1, "True")));
        assert!(!is_ready(&service(2, 2, "False")));
    }

    #[test]
    fn a_pod_that_waits_says_for_what() {
        let pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "status": {"phase": "Pending", "initContainerStatuses": [
            {"name": "model", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}});
        assert_eq!(
            states(&pod),
            [(
                "pod p".to_owned(),
                "model waits: ImagePullBackOff".to_owned()
            )]
        );
    }

    #[test]
    fn a_container_that_has_done_its_work_is_passed_over() {
        let pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "status": {"phase": "Running",
            "initContainerStatuses": [{"name": "model", "state": {"terminated": {"exitCode": 0}}}],
            "containerStatuses": [{"name": "engine", "state": {"running": {}}}]}});
        assert_eq!(pod_state(&pod), "engine is running");
    }

    #[test]
    fn objects_are_read_one_after_another_however_they_are_laid_out() {
        let (sender, updates) = channel();
        forward("{\"a\": 1}\n{\n  \"a\": 2\n}\n".as_bytes(), &sender);
        drop(sender);
        assert_eq!(
            updates
                .iter()
                .map(|object| object["a"].as_u64())
                .collect::<Vec<_>>(),
            [Some(1), Some(2)]
        );
    }
}
