//! Revisions: a new one beside the old, ones that fail, canaries, and nodes without a spare GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::bed::{
    Bed, PATIENCE, eventually, is_ready, of_service, on_cluster, pod_name, pod_uid, restarts,
};
use crate::file_server::Served;
use crate::load::Load;
use crate::manifests::{on_cpu, simulated, with};
use crate::model_server::{over_https, serve, sha256};
use crate::node::Node;
use crate::processes::kill_nine;

const REVISION_LABEL: &str = "serving.pagoda.dev/revision";
/// What fetch and load failures are told apart with; small, because its pods never get past it.
const MODEL_IMAGE: &str = "image://pagoda/smollm2-135m-instruct:q4_1//model.gguf";

fn replicas(manifest: Value, count: u32) -> Value {
    let scaling = json!({"minReplicas": count, "maxReplicas": count});
    with(manifest, &["spec", "scaling"], scaling)
}

/// The same service as another revision that serves as well as the first.
fn changed(manifest: Value) -> Value {
    with(manifest, &["spec", "engine", "maxSequences"], json!(32))
}

/// The same service as a revision whose pods never become ready.
fn never_loading(manifest: Value) -> Value {
    with(
        changed(manifest),
        &["spec", "engine", "simulated", "loadSeconds"],
        json!(3000),
    )
}

/// A good canary takes half a minute.
fn canary(manifest: Value, steps: &[u32], step_seconds: u32) -> Value {
    let rollout = json!({
        "strategy": "Canary",
        "canary": {"steps": steps, "stepSeconds": step_seconds, "minRequests": 20, "maxErrorPercent": 5, "maxTtftIncreasePercent": 100},
        "progressDeadlineSeconds": 300,
        "drainSeconds": 60,
    });
    with(manifest, &["spec", "rollout"], rollout)
}

/// The revision that serves, when it is the one of the spec that is there now and no rollout is under way.
async fn at_rest(bed: &Bed, service: &str) -> Result<String> {
    let what = format!("{service} serves its updated revision and no rollout is under way");
    eventually(&what, PATIENCE * 2, async || {
        let found = bed.service(service).await?;
        let status = &found["status"];
        ensure!(
            status["observedGeneration"] == found["metadata"]["generation"],
            "the operator has not seen the spec yet"
        );
        let revision = &status["revision"];
        ensure!(
            revision["current"].is_string() && revision["current"] == revision["updated"],
            "revision is {revision}, rollout {}",
            status["rollout"]
        );
        ensure!(
            status["rollout"]["phase"].is_null(),
            "rollout is {}",
            status["rollout"]
        );
        revision["current"]
            .as_str()
            .map(str::to_owned)
            .context("no revision")
    })
    .await
}

/// Waits until the status speaks of a rollout in this phase; the status then.
async fn in_phase(bed: &Bed, service: &str, phase: &str) -> Result<Value> {
    let what = format!("{service} is {phase}");
    eventually(&what, PATIENCE * 2, async || {
        let mut found = bed.service(service).await?;
        ensure!(
            found["status"]["rollout"]["phase"] == phase,
            "rollout is {}, conditions {}",
            found["status"]["rollout"],
            found["status"]["conditions"]
        );
        Ok(found["status"].take())
    })
    .await
}

fn revision_of(pod: &Pod) -> String {
    pod.metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(REVISION_LABEL))
        .cloned()
        .unwrap_or_default()
}

async fn pods_by_revision(bed: &Bed, service: &str) -> Result<BTreeMap<String, Vec<Pod>>> {
    let mut found: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in bed.pods(service).await? {
        found.entry(revision_of(&pod)).or_default().push(pod);
    }
    Ok(found)
}

/// Waits until the revision `old` is joined by pods of one other; that one's name.
async fn joined(bed: &Bed, service: &str, old: &str) -> Result<String> {
    let what = format!("{service} has pods of another revision than {old}");
    eventually(&what, PATIENCE, async || {
        let pods = pods_by_revision(bed, service).await?;
        pods.into_keys()
            .find(|revision| revision != old)
            .context("there is none")
    })
    .await
}

fn identities(pods: &[Pod]) -> BTreeSet<(String, i32)> {
    pods.iter()
        .map(|pod| (pod_uid(pod), restarts(pod)))
        .collect()
}

/// Waits until only this revision has a Deployment and a ConfigMap, named after it, and pods.
async fn only(bed: &Bed, service: &str, revision: &str) -> Result<()> {
    let what = format!("nothing is left of {service} but revision {revision}");
    let wanted = format!("{service}-{revision}");
    eventually(&what, PATIENCE, async || {
        let by_service = of_service(service);
        let deployments: Api<Deployment> = bed.api();
        let maps: Api<ConfigMap> = bed.api();
        for names in [
            names(
                deployments
                    .list(&by_service)
                    .await?
                    .items
                    .iter()
                    .map(|found| &found.metadata),
            ),
            names(
                maps.list(&by_service)
                    .await?
                    .items
                    .iter()
                    .map(|found| &found.metadata),
            ),
        ] {
            ensure!(names == [wanted.clone()], "there are {names:?}");
        }
        let pods = pods_by_revision(bed, service).await?;
        ensure!(
            pods.keys().eq([revision]),
            "pods are of revisions {:?}",
            pods.keys()
        );
        Ok(())
    })
    .await
}

fn names<'a>(metadata: impl Iterator<Item = &'a kube::core::ObjectMeta>) -> Vec<String> {
    metadata
        .map(|metadata| metadata.name.clone().unwrap_or_default())
        .collect()
}

/// Waits until some condition or the failed rollout speaks of all these words, whatever their case.
async fn says(bed: &Bed, service: &str, words: &[&str]) -> Result<String> {
    let what = format!("{service} says {words:?}");
    eventually(&what, PATIENCE, async || {
        let found = bed.service(service).await?;
        let status = &found["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let failed = status["rollout"]["failed"].clone();
        let mut texts = conditions.iter().chain([&failed]).map(|said| {
            format!(
                "{} {}",
                said["reason"].as_str().unwrap_or_default(),
                said["message"].as_str().unwrap_or_default()
            )
        });
        let has_all = |text: &String| {
            let text = text.to_lowercase();
            words.iter().all(|word| text.contains(&word.to_lowercase()))
        };
        texts.find(has_all).with_context(|| {
            format!(
                "conditions are {}, rollout {}",
                status["conditions"], status["rollout"]
            )
        })
    })
    .await
}

#[test]
fn a_new_revision_starts_beside_the_old_and_no_request_is_lost() {
    on_cluster("beside", |bed| async move {
        let manifest = replicas(simulated("beside"), 2);
        bed.apply(&manifest).await?;
        bed.ready("beside").await?;
        let old = at_rest(&bed, "beside").await?;
        bed.ready_pods("beside", 2).await?;

        let load = Load::start(&bed.gateway, &bed.chat("beside", 100), 8);
        bed.apply(&changed(manifest)).await?;
        let new = joined(&bed, "beside", &old).await?;
        let fewest = async {
            // Until the old revision is gone, as many pods as are wanted are ready at any moment.
            loop {
                let pods = pods_by_revision(&bed, "beside").await?;
                let ready = pods.values().flatten().filter(|pod| is_ready(pod)).count();
                ensure!(ready >= 2, "only {ready} pods are ready");
                if !pods.contains_key(&old) {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, fewest)
            .await
            .context("the old revision does not go")??;
        ensure!(
            at_rest(&bed, "beside").await? == new,
            "another revision serves"
        );
        only(&bed, "beside", &new).await?;
        load.stop().await.unharmed()
    });
}

#[test]
fn a_revision_that_never_loads_leaves_the_old_one_serving_and_says_why() {
    on_cluster("never-loads", |bed| async move {
        let wrong_image = with(
            simulated("no-image"),
            &["spec", "engine"],
            json!({"image": "pagoda.local/nowhere:1"}),
        );
        let tight =
            json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "48Mi"}});
        let out_of_memory = with(
            on_cpu("no-memory", MODEL_IMAGE),
            &["spec", "hardware", "resources"],
            tight,
        );
        let no_file = on_cpu(
            "no-file",
            &MODEL_IMAGE.replace("//model.gguf", "//nowhere.gguf"),
        );
        let server = serve(&bed, [("small.gguf", Served::whole(&b"GGUF"[..]))]).await?;
        let elsewhere = sha256(b"another file");
        let wrong_hash = over_https(&server, "wrong-hash", "small.gguf", Some(&elsewhere));
        let cases = [
            (wrong_image, vec!["image", "pagoda.local/nowhere:1"]),
            (out_of_memory, vec!["memory"]),
            (no_file, vec!["nowhere.gguf"]),
            (wrong_hash, vec!["HashMismatch", &elsewhere]),
        ];
        let mut before = Vec::new();
        for (broken, _) in &cases {
            let service = name_of(broken)?;
            bed.apply(&simulated(service)).await?;
        }
        for (broken, _) in &cases {
            let service = name_of(broken)?;
            bed.ready(service).await?;
            let revision = at_rest(&bed, service).await?;
            before.push((revision, identities(&bed.ready_pods(service, 1).await?)));
            bed.apply(broken).await?;
        }
        for ((broken, words), (revision, pods)) in cases.iter().zip(&before) {
            let service = name_of(broken)?;
            says(&bed, service, words).await?;
            bed.answers(service).await?;
            let serving = pods_by_revision(&bed, service).await?.remove(revision);
            ensure!(
                serving.is_some_and(|serving| identities(&serving) == *pods),
                "the old pod of {service} was touched"
            );
        }
        Ok(())
    });
}

fn name_of(manifest: &Value) -> Result<&str> {
    manifest["metadata"]["name"]
        .as_str()
        .context("the manifest has no name")
}

#[test]
fn a_revert_in_mid_rollout_returns_to_the_old_pods_without_restarting_them() {
    on_cluster("revert", |bed| async move {
        let manifest = replicas(simulated("reverted"), 2);
        bed.apply(&manifest).await?;
        bed.ready("reverted").await?;
        let old = at_rest(&bed, "reverted").await?;
        let pods = identities(&bed.ready_pods("reverted", 2).await?);
        let load = Load::start(&bed.gateway, &bed.chat("reverted", 50), 4);

        bed.apply(&never_loading(manifest.clone())).await?;
        joined(&bed, "reverted", &old).await?;
        bed.apply(&manifest).await?;
        ensure!(
            at_rest(&bed, "reverted").await? == old,
            "another revision serves than before"
        );
        only(&bed, "reverted", &old).await?;
        ensure!(
            identities(&bed.ready_pods("reverted", 2).await?) == pods,
            "the old pods were replaced or restarted"
        );
        load.stop().await.unharmed()
    });
}

/// Of each revision the attempts that went well, and badly.
type Counts = BTreeMap<String, (u64, u64)>;

/// What the gateways have counted.
async fn counted(bed: &Bed, service: &str) -> Result<Counts> {
    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), "pagoda-system");
    let gateways = ListParams::default().labels("app.kubernetes.io/name=pagoda-gateway");
    let mut found: Counts = BTreeMap::new();
    for gateway in pods.list(&gateways).await? {
        let path = format!(
            "/api/v1/namespaces/pagoda-system/pods/{}:8081/proxy/metrics",
            pod_name(&gateway)
        );
        let text = bed
            .client
            .request_text(http::Request::get(path).body(Vec::new())?)
            .await?;
        let of_service = format!("namespace=\"{}\",service=\"{service}\"", bed.namespace);
        for line in text.lines().filter(|line| {
            line.starts_with("pagoda_gateway_revision_requests_total{")
                && line.contains(&of_service)
        }) {
            let label = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\""))?;
                Some(rest.split('"').next()?.to_owned())
            };
            let value: u64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
            let entry = found
                .entry(label("revision").context("a revision")?)
                .or_default();
            match label("outcome").as_deref() {
                Some("ok") => entry.0 += value,
                _ => entry.1 += value,
            }
        }
    }
    Ok(found)
}

/// Percent of the requests that each revision is to get now.
fn shares(status: &Value) -> BTreeMap<String, u64> {
    let traffic = status["rollout"]["traffic"].as_array();
    traffic
        .into_iter()
        .flatten()
        .filter_map(|share| {
            Some((
                share["revision"].as_str()?.to_owned(),
                share["percent"].as_u64()?,
            ))
        })
        .collect()
}

#[test]
fn a_good_canary_takes_its_steps_and_the_gateway_shares_requests_out_as_told() {
    on_cluster("canary-good", |bed| async move {
        let manifest = canary(replicas(simulated("good"), 2), &[20, 50], 15);
        bed.apply(&manifest).await?;
        bed.ready("good").await?;
        let old = at_rest(&bed, "good").await?;
        let load = Load::start(&bed.gateway, &bed.chat("good", 5), 8);
        bed.apply(&changed(manifest)).await?;
        let new = joined(&bed, "good", &old).await?;

        let mut seen = BTreeSet::new();
        let mut measured = BTreeMap::new();
        let mut from: Option<(u64, Counts)> = None;
        let watching = async {
            loop {
                let status = bed.service("good").await?["status"].take();
                let percent = shares(&status).get(&new).copied();
                let counts = counted(&bed, "good").await?;
                match (percent, &from) {
                    (Some(now), Some((then, before))) if now == *then => {
                        let split = |revision: &str| {
                            let of = |counts: &Counts| {
                                counts.get(revision).copied().unwrap_or_default().0
                            };
                            of(&counts).saturating_sub(of(before))
                        };
                        measured.insert(now, (split(&new), split(&old)));
                    }
                    (Some(now), _) => {
                        seen.insert(now);
                        from = Some((now, counts));
                    }
                    (None, _) if seen.is_empty() => {}
                    (None, _) => return Ok(()),
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let ended: Result<()> = tokio::time::timeout(PATIENCE * 2, watching)
            .await
            .context("the canary does not end")?;
        ended?;
        ensure!(
            at_rest(&bed, "good").await? == new,
            "the canary did not take over"
        );
        only(&bed, "good", &new).await?;
        ensure!(
            seen.is_superset(&BTreeSet::from([20, 50])),
            "shares were {seen:?} percent"
        );
        for percent in [20_u64, 50] {
            let (new, old) = measured.get(&percent).copied().unwrap_or_default();
            let all = (new + old) as f64;
            ensure!(
                all >= 100.0,
                "too few requests at {percent} %: {new} and {old}"
            );
            let share = percent as f64 / 100.0;
            let deviation = (all * share * (1.0 - share)).sqrt();
            // The gateway learns of a step a moment after it is written, hence the second term.
            let bound = 6.0 * deviation + 0.1 * all;
            ensure!(
                (new as f64 - all * share).abs() <= bound,
                "at {percent} % the new revision got {new} of {all} requests"
            );
        }
        load.stop().await.unharmed()
    });
}

/// Waits until the canary was taken back, looks that it stays so, and that a better spec is tried again.
async fn is_taken_back(bed: &Bed, service: &str, old: &str, better: &Value) -> Result<String> {
    let status = in_phase(bed, service, "RolledBack").await?;
    let failed = &status["rollout"]["failed"];
    let bad = status["revision"]["updated"].as_str().unwrap_or_default();
    ensure!(
        failed["revision"] == bad && bad != old,
        "failed is {failed}, revisions {}",
        status["revision"]
    );
    ensure!(
        status["revision"]["current"] == old,
        "{}",
        status["revision"]
    );
    let message = failed["message"].as_str().unwrap_or_default().to_owned();
    ensure!(
        message.chars().any(|char| char.is_ascii_digit()),
        "it says no number: {message}"
    );
    eventually("the bad revision has no pod", PATIENCE, async || {
        let pods = pods_by_revision(bed, service).await?;
        ensure!(pods.keys().eq([old]), "pods are of {:?}", pods.keys());
        Ok(())
    })
    .await?;
    // Something makes the operator look again and again; what failed is not tried again by that.
    for round in 0..20 {
        let annotations =
            json!({"metadata": {"annotations": {"example.com/round": round.to_string()}}});
        bed.kubectl_ok(
            &[
                "patch",
                "isvc",
                service,
                "--type=merge",
                "--patch",
                &annotations.to_string(),
            ],
            None,
        )
        .await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let pods = pods_by_revision(bed, service).await?;
        ensure!(
            pods.keys().eq([old]),
            "it is tried again: {:?}",
            pods.keys()
        );
    }
    // Whoever asked the bad one may have given up, and a canary that nobody asks is not judged.
    let load = Load::start(&bed.gateway, &bed.chat(service, 5), 4);
    bed.apply(better).await?;
    let next = at_rest(bed, service).await?;
    ensure!(next != old && next != bad, "revision {next} serves");
    load.stop().await.unharmed()?;
    Ok(message)
}

#[test]
fn a_slower_canary_is_taken_back_and_tried_again_only_with_another_spec() {
    on_cluster("canary-slow", |bed| async move {
        let manifest = canary(simulated("slow"), &[30], 10);
        bed.apply(&manifest).await?;
        bed.ready("slow").await?;
        let old = at_rest(&bed, "slow").await?;
        let load = Load::start(&bed.gateway, &bed.chat("slow", 5), 8);
        let slow = with(
            manifest.clone(),
            &["spec", "engine", "simulated", "prefillTokensPerSecond"],
            json!(60),
        );
        bed.apply(&slow).await?;
        let message = is_taken_back(&bed, "slow", &old, &changed(manifest)).await?;
        ensure!(
            message.to_lowercase().contains("token"),
            "the reason is the time to first token: {message}"
        );
        // It was slow, and that was all that clients saw of it.
        load.stop().await.unharmed()
    });
}

#[test]
fn a_canary_that_answers_errors_is_taken_back() {
    on_cluster("canary-errors", |bed| async move {
        let manifest = canary(simulated("errors"), &[30], 10);
        bed.apply(&manifest).await?;
        bed.ready("errors").await?;
        let old = at_rest(&bed, "errors").await?;
        let load = Load::start(&bed.gateway, &bed.chat("errors", 5), 4);
        bed.apply(&answering_errors(&bed, manifest.clone()).await?)
            .await?;
        is_taken_back(&bed, "errors", &old, &changed(manifest)).await?;
        // Clients did see those errors: that is what the canary's share bounds.
        ensure!(load.stop().await.whole > 0, "no request was answered");
        Ok(())
    });
}

/// The service with another server: a gateway whose only pod is nobody, so that it is healthy and answers 502.
async fn answering_errors(bed: &Bed, manifest: Value) -> Result<Value> {
    let service = name_of(&manifest)?.to_owned();
    let routes = json!([{
        "namespace": bed.namespace, "name": service, "models": [service], "endpoints": ["127.0.0.1:1"], "holdTimeoutSeconds": 0,
    }]);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "routes"}, "data": {"routes.json": routes.to_string()},
    });
    bed.apply_object::<ConfigMap>(&map).await?;
    let engine = json!({
        "image": "pagoda/gateway:dev",
        "args": ["--static-routes=/routes/routes.json", "--listen=0.0.0.0:8000"],
        "healthPath": "/v1/models",
    });
    let overlay = json!({"spec": {
        "volumes": [{"name": "routes", "configMap": {"name": "routes"}}],
        "containers": [{"name": "engine", "volumeMounts": [{"name": "routes", "mountPath": "/routes", "readOnly": true}]}],
    }});
    let manifest = with(manifest, &["spec", "engine"], engine);
    Ok(with(manifest, &["spec", "podTemplate"], overlay))
}

#[test]
fn on_a_node_with_one_gpu_the_old_pod_leaves_first_and_requests_wait() {
    on_cluster("one-gpu", |bed| async move {
        let node = Node::with(&bed.client, "e2e.pagoda.dev/single-gpu", 1).await?;
        let manifest = node.asking(simulated("single"), 1);
        bed.apply(&manifest).await?;
        bed.ready("single").await?;
        let old = at_rest(&bed, "single").await?;
        let load = Load::start(&bed.gateway, &bed.chat("single", 20), 2);
        bed.apply(&changed(manifest.clone())).await?;
        in_phase(&bed, "single", "TerminatingFirst").await?;
        let new = at_rest(&bed, "single").await?;
        ensure!(new != old, "the old revision still serves");
        only(&bed, "single", &new).await?;
        load.stop().await.unharmed()
    });
}

#[test]
fn a_new_revision_that_never_loads_gives_the_only_gpu_back_to_the_old_one() {
    on_cluster("gpu-back", |bed| async move {
        let node = Node::with(&bed.client, "e2e.pagoda.dev/returned-gpu", 1).await?;
        let manifest = with(
            node.asking(simulated("returned"), 1),
            &["spec", "rollout"],
            json!({"strategy": "TerminateFirst", "progressDeadlineSeconds": 15}),
        );
        bed.apply(&manifest).await?;
        bed.ready("returned").await?;
        let old = at_rest(&bed, "returned").await?;
        bed.apply(&never_loading(manifest.clone())).await?;
        let status = in_phase(&bed, "returned", "RolledBack").await?;
        ensure!(status["revision"]["current"] == old, "{status}");
        bed.answers("returned").await?;
        bed.apply(&changed(manifest)).await?;
        ensure!(at_rest(&bed, "returned").await? != old, "it is stuck");
        Ok(())
    });
}

#[test]
fn old_pods_that_are_all_broken_do_not_block_a_rollout() {
    on_cluster("all-broken", |bed| async move {
        let manifest = replicas(simulated("mended"), 2);
        bed.apply(&never_loading(manifest.clone())).await?;
        eventually("two pods load for ever", PATIENCE, async || {
            let pods = bed.pods("mended").await?;
            ensure!(pods.len() == 2, "{} pods", pods.len());
            Ok(())
        })
        .await?;
        bed.apply(&manifest).await?;
        bed.ready("mended").await?;
        let revision = at_rest(&bed, "mended").await?;
        only(&bed, "mended", &revision).await?;
        bed.answers("mended").await.map(drop)
    });
}

#[test]
fn a_rollout_ends_well_while_the_autoscaler_moves_the_number_of_pods() {
    on_cluster("moving", |bed| async move {
        let scaling = json!({
            "minReplicas": 1, "maxReplicas": 3, "scaleDownStabilizationSeconds": 5,
            "targets": [{"metric": "InFlightRequests", "averageValue": "4"}],
        });
        let manifest = with(simulated("moving"), &["spec", "scaling"], scaling);
        bed.apply(&manifest).await?;
        bed.ready("moving").await?;
        let old = at_rest(&bed, "moving").await?;
        let chat = bed.chat("moving", 50);
        let trickle = Load::start(&bed.gateway, &chat, 1);
        let wave = Load::start(&bed.gateway, &chat, 12);
        bed.apply(&changed(manifest)).await?;
        bed.ready_pods("moving", 3).await?;
        let new = at_rest(&bed, "moving").await?;
        ensure!(new != old, "the old revision still serves");
        wave.stop().await.unharmed()?;
        bed.ready_pods("moving", 1).await?;
        only(&bed, "moving", &new).await?;
        trickle.stop().await.unharmed()
    });
}

#[test]
fn an_old_pod_that_restarts_in_mid_rollout_keeps_its_own_configuration() {
    on_cluster("restarts", |bed| async move {
        let manifest = simulated("restarted");
        bed.apply(&manifest).await?;
        bed.ready("restarted").await?;
        let old = at_rest(&bed, "restarted").await?;
        let pods = bed.ready_pods("restarted", 1).await?;
        bed.apply(&never_loading(manifest)).await?;
        joined(&bed, "restarted", &old).await?;

        kill_nine(&pod_uid(&pods[0]), "pagoda-engine")?;
        eventually("the old pod is ready again", PATIENCE, async || {
            let now = pods_by_revision(&bed, "restarted").await?.remove(&old);
            let now = now.and_then(|mut now| now.pop()).context("it is gone")?;
            ensure!(pod_uid(&now) == pod_uid(&pods[0]), "it was replaced");
            ensure!(
                restarts(&now) == 1 && is_ready(&now),
                "{} restarts, ready: {}",
                restarts(&now),
                is_ready(&now)
            );
            Ok(())
        })
        .await?;
        bed.answers("restarted").await.map(drop)
    });
}
