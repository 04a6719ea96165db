//! What a pod asks of a node.

use k8s_openapi::{
    api::core::v1::{
        Container, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, ResourceRequirements, Taint,
        Toleration,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

use super::{Amounts, NodeView};
use crate::quantity::parse_milli;

/// What a pod asks of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    pub requests: Amounts,
    node_name: Option<String>,
    selector: BTreeMap<String, String>,
    /// Alternatives; none when everything will do.
    terms: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
}

impl Demand {
    pub fn of(pod_template: &Value) -> Self {
        let spec = PodSpec::deserialize(&pod_template["spec"]).unwrap_or_default();
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|a| a.node_affinity.as_ref());
        let required = affinity.and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
        Self {
            requests: requests(&spec),
            terms: required.map(|r| r.node_selector_terms.clone()),
            node_name: spec.node_name,
            selector: spec.node_selector.unwrap_or_default(),
            tolerations: spec.tolerations.unwrap_or_default(),
        }
    }

    pub fn fits(&self, node: &NodeView) -> bool {
        !node.unschedulable && self.holds(node) && self.selects(node) && self.tolerates(node)
    }

    /// Whether the empty node has enough of everything.
    pub fn holds(&self, node: &NodeView) -> bool {
        let enough = |(name, amount): (&String, &i128)| {
            *amount <= node.allocatable.get(name).copied().unwrap_or(0)
        };
        self.requests.iter().all(enough)
    }

    pub fn tolerates(&self, node: &NodeView) -> bool {
        let tolerated = |taint: &Taint| self.tolerations.iter().any(|t| covers(t, taint));
        node.taints.iter().all(tolerated)
    }

    pub fn selects(&self, node: &NodeView) -> bool {
        let labelled = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
        self.node_name
            .as_ref()
            .is_none_or(|name| *name == node.name)
            && self.selector.iter().all(labelled)
            && self
                .terms
                .as_ref()
                .is_none_or(|terms| terms.iter().any(|term| matches(term, node)))
    }
}

/// By the scheduler's rule: containers and sidecars run together; each other init container beside the sidecars before it.
fn requests(spec: &PodSpec) -> Amounts {
    let mut peak = Amounts::new();
    let mut sidecars = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = of_container(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut together = sidecars.clone();
            add(&mut together, &own);
            raise(&mut peak, &together);
        }
    }
    let mut running = sidecars;
    for container in &spec.containers {
        add(&mut running, &of_container(container));
    }
    raise(&mut peak, &running);
    // Said for the pod as a whole, it stands for what its containers say.
    if let Some(resources) = &spec.resources {
        peak.extend(of_resources(resources));
    }
    let overhead = spec.overhead.iter().flatten();
    add(&mut peak, &overhead.filter_map(amount).collect());
    peak.retain(|_, amount| *amount > 0);
    peak
}

fn of_container(container: &Container) -> Amounts {
    container
        .resources
        .as_ref()
        .map(of_resources)
        .unwrap_or_default()
}

/// A limit without a request is one.
fn of_resources(resources: &ResourceRequirements) -> Amounts {
    let limits = resources.limits.iter().flatten();
    let requests = resources.requests.iter().flatten();
    limits.chain(requests).filter_map(amount).collect()
}

fn amount((name, quantity): (&String, &Quantity)) -> Option<(String, i128)> {
    Some((name.clone(), parse_milli(quantity).ok()?))
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let most = to.entry(name.clone()).or_default();
        *most = (*most).max(*amount);
    }
}

fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let value = |v: &Option<String>| v.clone().unwrap_or_default();
    (effect.is_empty() || effect == taint.effect)
        && ((key.is_empty() && exists) || key == taint.key)
        && (exists || value(&toleration.value) == value(&taint.value))
}

/// A term without any requirement matches no node.
fn matches(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let empty = labels.clone().next().is_none() && fields.clone().next().is_none();
    let label = |r: &NodeSelectorRequirement| meets(r, node.labels.get(&r.key));
    let field =
        |r: &NodeSelectorRequirement| r.key == "metadata.name" && meets(r, Some(&node.name));
    !empty && labels.into_iter().all(label) && fields.into_iter().all(field)
}

fn meets(requirement: &NodeSelectorRequirement, actual: Option<&String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = || {
        let actual: i64 = actual?.parse().ok()?;
        let bound: i64 = values.first()?.parse().ok()?;
        Some(actual.cmp(&bound))
    };
    match requirement.operator.as_str() {
        "In" => actual.is_some_and(|a| values.contains(a)),
        "NotIn" => actual.is_none_or(|a| !values.contains(a)),
        "Exists" => actual.is_some(),
        "DoesNotExist" => actual.is_none(),
        "Gt" => number().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => number().is_some_and(std::cmp::Ordering::is_lt),
        // One that is not known yet is not held against the cluster.
        _ => true,
    }
}
