//! Client required: marks the pods that a service can best do without, just before it is to have fewer.
//!
//! # Guarantees
//! Nothing is written but right before a Deployment loses some of its ready pods, and then on those alone, and on such that
//! were marked for an earlier time. What cannot be marked delays nothing: other pods go, as Kubernetes would have it.

use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use pagoda_crds::{api::RolloutPhase, names};
use pagoda_operator_core::{
    build::Children,
    rollout::{DeploymentView, Plan},
    scale_in::{DELETION_COST, MARKED_COST, Marks, PodWorth, marks},
    status::PodView,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    autoscaler::signals::{PodSignals, ServiceSignals},
    context::Context,
    dereference::Surroundings,
    key::Key,
    request::bounded,
};

/// Pods that are marked at once.
const CONCURRENCY: usize = 16;
/// Fewer pods are wanted, and that waits for no longer.
const LIMIT: Duration = Duration::from_secs(3);

/// Marks pods of those Deployments that a plan takes pods from for want of load. A rollout takes pods because they are old;
/// there all of them go.
pub async fn mark(
    context: &Context,
    service: &Key,
    plan: &Plan,
    children: &Children,
    around: &Surroundings,
) {
    let phase = plan.status.as_ref().map(|status| status.phase);
    if !matches!(
        phase,
        None | Some(RolloutPhase::Canary | RolloutPhase::RolledBack)
    ) {
        return;
    }
    let target = (&children.revision_name, plan.target_replicas);
    let old = plan.scale.iter().map(|(name, replicas)| (name, *replicas));
    for (name, replicas) in old.chain([target]) {
        let deployment = around.deployments.iter().find(|d| d.name == *name);
        if let Some(deployment) = deployment.filter(|d| d.spec_replicas > replicas) {
            let told = context.signals.of(service);
            let marks = choose(deployment, replicas, &around.pods, told.as_deref());
            write(context, service, &marks).await;
        }
    }
}

/// Which pods of a Deployment to mark, given what they last told.
fn choose<'a>(
    deployment: &DeploymentView,
    replicas: u32,
    pods: &'a [PodView],
    told: Option<&ServiceSignals>,
) -> Marks<'a> {
    let own = || {
        let of = |pod: &&PodView| !pod.leaving && pod.revision == deployment.revision;
        pods.iter().filter(of)
    };
    let ready: Vec<PodWorth<'_>> = own()
        .filter(|pod| pod.ready)
        .map(|pod| worth(pod, told))
        .collect();
    let leaving = own().count().saturating_sub(replicas as usize);
    marks(&ready, own().count() - ready.len(), leaving)
}

fn worth<'a>(pod: &'a PodView, told: Option<&ServiceSignals>) -> PodWorth<'a> {
    let told = told.and_then(|told| told.pods.iter().find(|seen| *seen.name == *pod.name));
    let hits = |told: &PodSignals| {
        let share = told.cache_hits.saturating_mul(1000) / told.cache_queries.max(1);
        (told.cache_queries > 0).then_some(share)
    };
    let created = pod
        .created
        .as_ref()
        .map_or(0, |created| created.0.as_second());
    PodWorth {
        name: &pod.name,
        requests: told.map(|told| told.running + told.waiting),
        cache_milli: told.and_then(|told| told.kv_usage_milli),
        hit_milli: told.and_then(hits),
        made_seconds: created,
        is_marked: pod.is_marked,
    }
}

async fn write(context: &Context, service: &Key, marks: &Marks<'_>) {
    let mut patches = Vec::new();
    for name in &marks.set {
        patches.push(patch(context, service, name, json!(MARKED_COST)).boxed());
    }
    for name in &marks.clear {
        patches.push(patch(context, service, name, Value::Null).boxed());
    }
    let all = stream::iter(patches)
        .buffer_unordered(CONCURRENCY)
        .collect::<()>();
    if timeout(LIMIT, all).await.is_err() {
        tracing::warn!(%service, "pods could not be marked in time; Kubernetes chooses which of them go");
    }
}

async fn patch(context: &Context, service: &Key, pod: &str, cost: Value) {
    if context.leadership.check().is_err() {
        return;
    }
    let api: Api<Pod> = Api::namespaced(context.client.clone(), service.namespace());
    let parameters = PatchParams {
        field_manager: Some(names::MANAGER_CHILDREN.into()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"metadata": {"annotations": {DELETION_COST: cost}}}));
    match bounded(api.patch_metadata(pod, &parameters, &patch)).await {
        Ok(_) => {}
        // Gone meanwhile.
        Err(error) if error.code() == 404 => {}
        Err(error) => {
            tracing::warn!(%error, %service, pod, "failed to mark a pod that is to go first");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    fn pod(name: &str, revision: &str, leaving: bool) -> PodView {
        let mut view = PodView::default();
        view.name = name.into();
        view.revision = Some(revision.into());
        view.ready = true;
        view.leaving = leaving;
        view
    }

    fn told(name: &str, running: u64) -> PodSignals {
        PodSignals {
            name: name.into(),
            running,
            waiting: 0,
            kv_usage_milli: None,
            cache_queries: 0,
            cache_hits: 0,
        }
    }

    #[test]
    fn pods_of_the_deployment_that_shrinks_are_marked_and_of_them_those_that_serve_least() {
        let deployment = DeploymentView {
            revision: Some("r1".into()),
            spec_replicas: 3,
            ..DeploymentView::default()
        };
        let pods = [
            pod("a", "r1", false),
            pod("b", "r1", false),
            pod("c", "r1", false),
            pod("other", "r2", false),
            pod("leaving", "r1", true),
        ];
        let mut signals = ServiceSignals::unknown(Instant::now(), 3);
        signals.pods = vec![told("a", 5), told("b", 0), told("c", 2), told("other", 0)];
        let marks = choose(&deployment, 2, &pods, Some(&signals));
        assert_eq!(marks.set, ["b"]);
        assert_eq!(
            choose(&deployment, 0, &pods, Some(&signals)),
            Marks::default()
        );
    }
}
