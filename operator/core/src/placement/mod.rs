//! Whether any node of the cluster could ever hold a pod: on an empty node, by what the scheduler looks at.
//!
//! It answers for good, not for now: pods that run there and pressures that pass are left out. A cordoned node holds
//! nothing until a person lets it.

mod demand;
mod node;
#[cfg(test)]
mod tests;
mod words;

pub use node::NodeView;

use serde_json::Value;
use std::collections::BTreeMap;

use demand::Demand;

/// Amounts by resource, in thousandths of its unit.
pub type Amounts = BTreeMap<String, i128>;

/// Why no node can ever hold a pod: the arithmetic, for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoNodeFits(String);

/// Looks for a node that could hold a pod of this template if nothing else ran there. Without any node known, or with a
/// template that cannot be read, nothing is said against it.
pub fn verdict(pod_template: &Value, nodes: &[NodeView]) -> Result<(), NoNodeFits> {
    let demand = Demand::of(pod_template);
    if nodes.is_empty() || nodes.iter().any(|node| demand.fits(node)) {
        return Ok(());
    }
    Err(NoNodeFits(words::arithmetic(&demand, nodes)))
}
