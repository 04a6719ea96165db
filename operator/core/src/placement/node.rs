//! A node, reduced to what placement asks of it.

use k8s_openapi::api::core::v1::{Node, Taint};
use std::collections::BTreeMap;

use super::Amounts;
use crate::quantity::parse_milli;

/// What counts of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// What pods may have of it, in thousandths.
    pub allocatable: Amounts,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints that last. Those of a node that is not well go by themselves.
    pub taints: Vec<Taint>,
    /// Whether somebody closed it to new pods.
    pub unschedulable: bool,
}

/// Taints that the cluster itself puts on nodes for a while, and takes away again.
const PASSING_TAINTS: &str = "node.kubernetes.io/";

/// Labels that say what a node computes with, the most telling first.
const HARDWARE_LABELS: [&str; 9] = [
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "gpu.intel.com/product",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];

impl NodeView {
    /// Reads a node.
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        let amounts = allocatable
            .into_iter()
            .flatten()
            .filter_map(|(name, amount)| Some((name.clone(), parse_milli(amount).ok()?)));
        let lasting = |taint: &&Taint| {
            !taint.key.starts_with(PASSING_TAINTS)
                && ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str())
        };
        let taints = spec.and_then(|s| s.taints.as_ref());
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            allocatable: amounts.collect(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: taints
                .into_iter()
                .flatten()
                .filter(lasting)
                .cloned()
                .collect(),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
        }
    }

    /// What it computes with: its accelerator's product, or its instance type, or `cpu`.
    pub fn hardware(&self) -> &str {
        let labels = HARDWARE_LABELS.iter().filter_map(|l| self.labels.get(*l));
        labels
            .map(String::as_str)
            .find(|value| !value.is_empty())
            .unwrap_or("cpu")
    }
}
