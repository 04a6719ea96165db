//! The life of a release of the charts: the former version installed, upgraded to this one under load, everything turned on,
//! and taken away, with services that go on. Needs the local cluster with the images loaded and without the charts, so it
//! goes first in `./test e2e`, before they are installed for the other tests.
//!
//! The former *charts* are what 0.1.0 shipped (`tests/data/charts-0.1.0`); the images are today's in both, for none of 0.1.0
//! were kept. So today's operator starts under the former chart's rights and is lent those that it needs beyond them, as
//! the chart cannot give what it did not know.

#[path = "cluster/load.rs"]
mod load;
#[path = "cluster/manifests.rs"]
#[allow(dead_code, reason = "the cluster's other tests apply the rest")]
mod manifests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use load::Load;
use manifests::simulated;
use pagoda_e2e::charts::{self, SYSTEM_NAMESPACE, Target};
use pagoda_e2e::cluster::Cluster;
use pagoda_e2e::images;
use pagoda_e2e::kubectl::Kubectl;
use pagoda_e2e::openai::{Chat, OpenAi};
use pagoda_e2e::progress::Progress;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_mins(2);
const NAMESPACE: &str = "t-release";
/// Everything that a chart may bring, and what the programs make in their own namespace.
const NAMESPACED: &str = "deployments,daemonsets,services,serviceaccounts,configmaps,roles,rolebindings,poddisruptionbudgets,networkpolicies,leases";
const OWN: &str = "--selector=app.kubernetes.io/part-of=pagoda";

/// Rights of today's operator that the former chart did not give.
const LENT_RIGHTS: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: t-release-lent}
rules:
  - {apiGroups: [apps], resources: [deployments], verbs: [delete]}
  - {apiGroups: [apps], resources: [deployments/scale], verbs: [patch]}
  - {apiGroups: [""], resources: [configmaps], verbs: [delete]}
  - {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
  - {apiGroups: [batch], resources: [jobs], verbs: [get, list, watch, create, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: t-release-lent}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: t-release-lent}
subjects: [{kind: ServiceAccount, name: pagoda-operator, namespace: pagoda-system}]
"#;

struct Release {
    kubectl: Kubectl,
    target: Target,
    images: images::LoadedImages,
    progress: Progress,
}

impl Release {
    fn new() -> Result<Self> {
        let cluster = Cluster::local()?;
        let release = Self {
            kubectl: cluster.kubectl(),
            target: Target::local(&cluster),
            images: images::recorded(&cluster)?,
            progress: Progress::start(),
        };
        let found = release.own_objects()?;
        ensure!(
            found.is_empty(),
            "the charts are installed here, and this test installs and removes them: {found:?}"
        );
        Ok(release)
    }

    fn install(&self, folder: &str, settings: &[&str]) -> Result<()> {
        let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let settings: Vec<String> = settings.iter().map(|&word| word.to_owned()).collect();
        charts::install(
            &self.target,
            &charts,
            &self.images,
            &settings,
            &self.progress,
        )
    }

    /// Objects that the charts brought or the operator made for itself, but no definition.
    fn own_objects(&self) -> Result<Vec<String>> {
        let in_system = [
            "get",
            NAMESPACED,
            "--namespace",
            SYSTEM_NAMESPACE,
            "--output=name",
        ];
        let everywhere = [
            "get",
            "clusterroles,clusterrolebindings,roles,rolebindings",
            "--all-namespaces",
            OWN,
            "--output=name",
        ];
        let text = self.kubectl.run(&in_system)? + &self.kubectl.run(&everywhere)?;
        let kubernetes_own = ["serviceaccount/default", "configmap/kube-root-ca.crt"];
        Ok(text
            .lines()
            .map(str::trim)
            .filter(|name| !name.is_empty() && !kubernetes_own.contains(name))
            .map(str::to_owned)
            .collect())
    }

    fn service(&self, name: &str) -> Result<Value> {
        self.kubectl.get(&["isvc", name, "--namespace", NAMESPACE])
    }

    fn ready(&self, name: &str) -> Result<()> {
        let is_ready = |_: &Kubectl| {
            let service = self.service(name)?;
            let current =
                service["status"]["observedGeneration"] == service["metadata"]["generation"];
            Ok((current && ready_since(&service).is_some()).then_some(()))
        };
        self.kubectl
            .wait_for(NAMESPACE, &format!("{name} is Ready"), PATIENCE, is_ready)
    }

    /// Name, uid and restarts of the service's pods.
    fn pods(&self, name: &str) -> Result<Vec<(String, String, i64)>> {
        let selector = format!("--selector=serving.pagoda.dev/service={name}");
        let pods = self
            .kubectl
            .get(&["pods", "--namespace", NAMESPACE, &selector])?;
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let items = pods["items"].as_array().context("a list")?;
        Ok(items
            .iter()
            .map(|pod| {
                let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_i64();
                (
                    word(&pod["metadata"]["name"]),
                    word(&pod["metadata"]["uid"]),
                    restarts.unwrap_or(0),
                )
            })
            .collect())
    }

    fn gateway(&self) -> Result<OpenAi> {
        OpenAi::new(&charts::gateway_url(&self.kubectl)?)
    }
}

/// Since when the service has been Ready; none when it is not.
fn ready_since(service: &Value) -> Option<String> {
    let conditions = service["status"]["conditions"].as_array()?;
    let ready = conditions
        .iter()
        .find(|condition| condition["type"] == "Ready")?;
    (ready["status"] == "True").then(|| {
        ready["lastTransitionTime"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    })
}

fn chat(service: &str) -> Chat {
    Chat {
        model: format!("{NAMESPACE}/{service}"),
        prompt: "Count to ten.".to_owned(),
        max_tokens: 20,
        ignore_eos: true,
    }
}

async fn answers(gateway: &OpenAi, service: &str) -> Result<()> {
    let began = Instant::now();
    loop {
        let reply = gateway.stream(&chat(service), |_| ()).await;
        match reply {
            Ok(reply) if reply.is_whole() => return Ok(()),
            other if began.elapsed() > PATIENCE => bail!("{service} does not answer: {other:?}"),
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Takes away what the test made, however it ends.
struct CleanUp<'a>(&'a Release);

impl Drop for CleanUp<'_> {
    fn drop(&mut self) {
        let kubectl = &self.0.kubectl;
        let attempts = [
            charts::uninstall(&self.0.target, &self.0.progress),
            kubectl
                .run(&["delete", "namespace", NAMESPACE, "--ignore-not-found"])
                .map(drop),
            kubectl
                .run(&[
                    "delete",
                    "namespace",
                    "t-release-other",
                    "--ignore-not-found",
                ])
                .map(drop),
            kubectl
                .run(&[
                    "delete",
                    "clusterrole,clusterrolebinding",
                    "t-release-lent",
                    "--ignore-not-found",
                ])
                .map(drop),
            kubectl
                .run(&[
                    "delete",
                    "lease",
                    "pagoda-operator",
                    "--namespace",
                    SYSTEM_NAMESPACE,
                    "--ignore-not-found",
                ])
                .map(drop),
        ];
        for error in attempts.into_iter().filter_map(Result::err) {
            eprintln!("{error:#}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_answer_through_an_upgrade_from_the_former_charts_and_outlive_their_removal()
-> Result<()> {
    let release = Release::new()?;
    let cleaned = CleanUp(&release);
    let kubectl = &release.kubectl;
    release.install("tests/data/charts-0.1.0", &[])?;
    kubectl.run_with_input(&["apply", "--filename", "-"], LENT_RIGHTS)?;
    for namespace in [NAMESPACE, "t-release-other"] {
        kubectl.run(&["create", "namespace", namespace])?;
    }
    kubectl.apply_text(NAMESPACE, &simulated("kept").to_string())?;
    let gateway = release.gateway()?;
    answers(&gateway, "kept").await?;
    upgrade_the_definition(&release)?;
    answers(&gateway, "kept").await?;
    let (pods, since) = (
        release.pods("kept")?,
        ready_since(&release.service("kept")?),
    );

    refuses_to_reuse_values(&release)?;
    upgrade_under_load(&release, &gateway).await?;
    ensure!(
        release.pods("kept")? == pods,
        "an upgrade of the charts touched the service's pods"
    );
    ensure!(
        ready_since(&release.service("kept")?) == since,
        "the service was not Ready all the time"
    );

    everything_on(&release, &gateway).await?;
    ensure!(
        release.pods("kept")? == pods,
        "other values of the charts touched the service's pods"
    );

    tokio::task::block_in_place(|| uninstall_leaves_services_running(&release, &pods))?;
    install_again_finds_them(&release, &pods).await?;
    drop(cleaned);
    ensure!(
        release.own_objects()?.is_empty(),
        "left behind: {:?}",
        release.own_objects()?
    );
    Ok(())
}

/// The definition goes first, under a running operator. An object that was stored under the former one is Ready under the
/// new one without being written by anybody but the operator. (Today's operator cannot write today's status under the former
/// definition, so it is not Ready before.)
fn upgrade_the_definition(release: &Release) -> Result<()> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/pagoda-crds");
    let before = release.service("kept")?;
    release.target.upgrade("pagoda-crds", &folder, &[])?;
    tokio::task::block_in_place(|| release.ready("kept"))?;
    let after = release.service("kept")?;
    for field in ["uid", "generation"] {
        ensure!(
            before["metadata"][field] == after["metadata"][field],
            "{field} of the service changed with its definition"
        );
    }
    Ok(())
}

/// With `--reuse-values` helm leaves out the defaults that are new: the chart must say so, and change nothing.
fn refuses_to_reuse_values(release: &Release) -> Result<()> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/pagoda");
    let said = release
        .target
        .upgrade("pagoda", &folder, &["--reuse-values"]);
    let said = said
        .expect_err("an upgrade with --reuse-values is not refused")
        .to_string();
    ensure!(
        said.contains("--reset-then-reuse-values"),
        "helm said: {said}"
    );
    Ok(())
}

async fn upgrade_under_load(release: &Release, gateway: &OpenAi) -> Result<()> {
    let load = Load::start(gateway, &chat("kept"), 4);
    // helm blocks; the load runs on the runtime's other thread.
    tokio::task::block_in_place(|| release.install("../charts", &[]))?;
    release
        .kubectl
        .run(&["delete", "clusterrole,clusterrolebinding", "t-release-lent"])?;
    // The new operator reconciles with the new chart's rights alone.
    release
        .kubectl
        .apply_text(NAMESPACE, &simulated("newcomer").to_string())?;
    tokio::task::block_in_place(|| release.ready("newcomer"))?;
    answers(gateway, "newcomer").await?;
    load.stop().await.unharmed()
}

/// Each switch at once, as far as this cluster has the definitions; helm waits until all pods are ready, so that a flag
/// which a program does not know is noticed.
async fn everything_on(release: &Release, gateway: &OpenAi) -> Result<()> {
    let settings = [
        "watchNamespaces={t-release,t-release-other}",
        "operator.replicas=2",
        "operator.telemetry.otlpEndpoint=http://127.0.0.1:4318",
        "rbac.nodes=false",
        "modelCache.enabled=true",
        "modelCache.hostPath=/var/lib/pagoda-release-test/models",
        "podDisruptionBudgets.enabled=true",
        "networkPolicies.enabled=true",
        "grafanaDashboard.enabled=true",
    ];
    tokio::task::block_in_place(|| release.install("../charts", &settings))?;
    // Its own APIServices and who asks there are of no namespace; nothing else is granted over the cluster.
    let cluster_wide =
        release
            .kubectl
            .run(&["get", "clusterrolebindings", OWN, "--output=name"])?;
    ensure!(
        cluster_wide.trim().ends_with("/pagoda-operator-metrics")
            && cluster_wide.lines().count() == 1,
        "granted over the cluster: {cluster_wide}"
    );
    release
        .kubectl
        .apply_text("t-release-other", &simulated("other").to_string())?;
    let other = |kubectl: &Kubectl| {
        let service = kubectl.get(&["isvc", "other", "--namespace", "t-release-other"])?;
        Ok(ready_since(&service))
    };
    let wait = || {
        release.kubectl.wait_for(
            "t-release-other",
            "a service in another named namespace is Ready",
            PATIENCE,
            other,
        )
    };
    tokio::task::block_in_place(wait)?;
    answers(gateway, "kept").await
}

fn uninstall_leaves_services_running(
    release: &Release,
    pods: &[(String, String, i64)],
) -> Result<()> {
    release.target.uninstall("pagoda")?;
    let gone = |_: &Kubectl| {
        let left = release.own_objects()?;
        ensure!(
            left == ["lease.coordination.k8s.io/pagoda-operator"],
            "left behind: {left:?}"
        );
        Ok(Some(()))
    };
    release.kubectl.wait_for(
        SYSTEM_NAMESPACE,
        "all but the Lease is gone",
        PATIENCE,
        gone,
    )?;
    ensure!(
        release.pods("kept")? == pods,
        "removing the chart touched a service's pods"
    );
    let path = format!(
        "/api/v1/namespaces/{NAMESPACE}/pods/{}:8000/proxy/health/ready",
        pods[0].0
    );
    release.kubectl.run(&["get", "--raw", &path]).map(drop)
}

async fn install_again_finds_them(release: &Release, pods: &[(String, String, i64)]) -> Result<()> {
    tokio::task::block_in_place(|| release.install("../charts", &[]))?;
    answers(&release.gateway()?, "kept").await?;
    ensure!(
        release.pods("kept")? == pods,
        "installing the chart again touched a service's pods"
    );
    Ok(())
}
