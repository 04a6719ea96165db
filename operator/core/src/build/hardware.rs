//! What a service's hardware asks of nodes, laid over whatever the user's own template asks.
//!
//! It comes after the user's overlay, because the API replaces these lists whole: a user who tolerates spot nodes still
//! wants pods on the GPUs that were asked for.

use serde_json::{Value, json};

use crate::validate::{Gpu, Service};

/// Label of nodes with the product of their GPUs.
const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";
/// Resource of whole GPUs; nodes with slices of GPUs are tainted by it as well.
const WHOLE_GPU: &str = "nvidia.com/gpu";
const SLICE_PREFIX: &str = "nvidia.com/mig-";

pub(super) fn lay(spec: &mut Value, service: &Service) {
    if let Some(gpu) = &service.gpu {
        tolerate(spec, gpu);
    }
    let demands = demands(service);
    if !demands.is_empty() {
        require(spec, &demands);
    }
    if let Some(label) = &service.domain_label {
        prefer_domain(spec, service, label);
    }
}

fn tolerate(spec: &mut Value, gpu: &Gpu) {
    let slice = gpu.resource.starts_with(SLICE_PREFIX).then_some(WHOLE_GPU);
    for key in [Some(gpu.resource.as_str()), slice].into_iter().flatten() {
        let toleration = json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
        let there = spec["tolerations"].as_array();
        if !there.is_some_and(|list| list.contains(&toleration)) {
            append(&mut spec["tolerations"], [toleration]);
        }
    }
}

fn demands(service: &Service) -> Vec<Value> {
    let products = service.gpu.iter().filter(|gpu| !gpu.products.is_empty());
    let products =
        products.map(|gpu| json!({"key": PRODUCT_LABEL, "operator": "In", "values": gpu.products}));
    let domain = service.domain_label.iter();
    let domain = domain.map(|label| json!({"key": label, "operator": "Exists"}));
    products.chain(domain).collect()
}

/// Terms are alternatives, so each of them must hold the demands.
fn require(spec: &mut Value, demands: &[Value]) {
    let required =
        &mut spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = &mut required["nodeSelectorTerms"];
    if terms.as_array().is_none_or(Vec::is_empty) {
        *terms = json!([{}]);
    }
    for term in terms.as_array_mut().into_iter().flatten() {
        append(&mut term["matchExpressions"], demands.iter().cloned());
    }
}

/// Near the other pods of the service, in one domain.
fn prefer_domain(spec: &mut Value, service: &Service, label: &str) {
    let preferred =
        &mut spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    let near = json!({
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": super::selector(service)},
            "topologyKey": label
        }
    });
    append(preferred, [near]);
}

/// Appends to a list, which begins where there is none.
fn append(list: &mut Value, items: impl IntoIterator<Item = Value>) {
    match list {
        Value::Array(list) => list.extend(items),
        other => *other = items.into_iter().collect(),
    }
}
