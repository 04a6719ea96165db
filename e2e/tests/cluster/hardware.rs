//! What a service asks of nodes: said when no node can ever hold it, and carried to the pods.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::bed::{Bed, PATIENCE, condition, eventually, on_cluster};
use crate::manifests::{simulated, with};
use crate::node::Node;

#[test]
fn a_pod_that_no_node_can_hold_says_so_with_the_arithmetic_and_heals_when_the_node_grows() {
    on_cluster("no-node-fits", |bed| async move {
        let resource = "e2e.pagoda.dev/many-gpus";
        let node = Node::with(&bed.client, resource, 8).await?;
        bed.apply(&node.asking(simulated("huge"), 64)).await?;
        bed.apply(&simulated("neighbour")).await?;
        let message = bed.fails_with("huge", "Ready", "NoNodeFits").await?;
        ensure!(
            message.contains(resource) && message.contains("64") && message.contains('8'),
            "it names what is asked for, how much, and how much there is: {message}"
        );
        let service = bed.service("huge").await?;
        let stalled = condition(&service, "Stalled").context("it has no condition Stalled")?;
        ensure!(stalled["status"] == "True", "Stalled is {stalled}");
        bed.ready("neighbour").await?;

        node.claim(64).await?;
        bed.ready("huge").await?;
        let service = bed.service("huge").await?;
        ensure!(
            condition(&service, "Stalled").is_none(),
            "conditions are {}",
            service["status"]["conditions"]
        );
        bed.answers("huge").await.map(drop)
    });
}

#[test]
fn products_tolerations_and_runtime_class_reach_the_pod() {
    on_cluster("hardware", |bed| async move {
        let runtime_class = format!("{}-runtime", bed.namespace);
        let classes: Api<RuntimeClass> = Api::all(bed.client.clone());
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": runtime_class}, "handler": "runc",
        });
        classes
            .patch(
                &runtime_class,
                &PatchParams::apply("e2e").force(),
                &Patch::Apply(&class),
            )
            .await?;
        let outcome = reaches_the_pod(&bed, &runtime_class).await;
        classes
            .delete(&runtime_class, &DeleteParams::default())
            .await?;
        outcome
    });
}

async fn reaches_the_pod(bed: &Bed, runtime_class: &str) -> Result<()> {
    let resource = "nvidia.com/mig-1g.10gb";
    let product = "NVIDIA-H100-80GB-HBM3";
    let hardware = json!({
        "accelerator": {"kind": "nvidia", "resource": resource, "count": 1, "products": [product]},
        "runtimeClassName": runtime_class,
        "topology": {"domainLabel": "nvidia.com/gpu.clique"},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    });
    let manifest = with(simulated("demanding"), &["spec", "hardware"], hardware);
    let overlay = json!({"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}], "nodeSelector": {"zone": "z1"}}});
    bed.apply(&with(manifest, &["spec", "podTemplate"], overlay))
        .await?;
    let spec = eventually("the pod is there", PATIENCE, async || {
        let pod = bed.pods("demanding").await?.pop();
        pod.and_then(|pod| pod.spec).context("there is none")
    })
    .await?;
    asks_for(&spec, resource, product, runtime_class)?;
    let message = bed.fails_with("demanding", "Ready", "NoNodeFits").await?;
    ensure!(!message.is_empty(), "it says nothing");
    Ok(())
}

fn asks_for(spec: &PodSpec, resource: &str, product: &str, runtime_class: &str) -> Result<()> {
    ensure!(
        spec.runtime_class_name.as_deref() == Some(runtime_class),
        "the runtime class is {:?}",
        spec.runtime_class_name
    );
    let spec: Value = serde_json::to_value(spec)?;
    let tolerated: Vec<&str> = spec["tolerations"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|toleration| toleration["key"].as_str())
        .collect();
    for key in [resource, "nvidia.com/gpu", "spot"] {
        ensure!(tolerated.contains(&key), "it tolerates {tolerated:?}");
    }
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"][0]["matchExpressions"];
    let demanded = |key: &str| {
        let demands = required.as_array().into_iter().flatten();
        demands.clone().any(|demand| demand["key"] == key)
    };
    ensure!(
        demanded("nvidia.com/gpu.product") && demanded("nvidia.com/gpu.clique"),
        "it requires {required}"
    );
    ensure!(
        required.to_string().contains(product),
        "it requires {required}"
    );
    ensure!(
        spec["nodeSelector"]["zone"] == "z1",
        "the user's own selector is gone"
    );
    let engine = spec["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|container| container["name"] == "engine")
        .context("it has no engine")?;
    ensure!(
        engine["resources"]["limits"][resource] == "1",
        "resources are {}",
        engine["resources"]
    );
    Ok(())
}
