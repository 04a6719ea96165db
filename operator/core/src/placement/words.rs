//! The arithmetic of a pod that fits no node, in a sentence.

use super::{NodeView, demand::Demand};

const MEBI: i128 = 1 << 20;
const GIBI: i128 = 1 << 30;

pub(super) fn arithmetic(demand: &Demand, nodes: &[NodeView]) -> String {
    let all: Vec<&NodeView> = nodes.iter().collect();
    let of_all = format!("of {}", plural(all.len(), "node"));
    if let Some(lack) = lack(demand, &all, &of_all) {
        return lack;
    }
    let open =
        |node: &&&NodeView| !node.unschedulable && demand.selects(node) && demand.tolerates(node);
    let admissible: Vec<&NodeView> = all.iter().filter(open).copied().collect();
    if admissible.is_empty() {
        return closed(demand, &all, &of_all);
    }
    let of_these = format!(
        "of the {} that take it by label and taint",
        plural(admissible.len(), "node")
    );
    lack(demand, &admissible, &of_these).unwrap_or_else(|| {
        let needs: Vec<String> = demand
            .requests
            .iter()
            .map(|(name, amount)| format!("{} {name}", written(name, *amount)))
            .collect();
        format!(
            "needs {} on one node: {of_these}, none has all of it",
            needs.join(", ")
        )
    })
}

/// The resources that no node of these has enough of.
fn lack(demand: &Demand, nodes: &[&NodeView], of_these: &str) -> Option<String> {
    let each = demand.requests.iter().filter_map(|(name, needed)| {
        let amounts = nodes.iter().filter_map(|n| n.allocatable.get(name));
        let carried: Vec<i128> = amounts.copied().filter(|a| *a > 0).collect();
        let largest = carried.iter().max().copied().unwrap_or(0);
        (largest < *needed).then(|| {
            let there = match carried.len() {
                0 => format!("none carries {name}"),
                1 => format!("1 carries {name} and has {}", written(name, largest)),
                n => format!(
                    "{n} carry {name} and the largest has {}",
                    written(name, largest)
                ),
            };
            format!(
                "needs {} {name}: {of_these}, {there}",
                written(name, *needed)
            )
        })
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| each.join("; "))
}

/// Why nodes that have enough do not take it.
fn closed(demand: &Demand, nodes: &[&NodeView], of_all: &str) -> String {
    let unlabelled = nodes.iter().filter(|n| !demand.selects(n)).count();
    let selected = || nodes.iter().filter(|n| demand.selects(n));
    let tainted = selected().filter(|n| !demand.tolerates(n));
    let mut taints: Vec<&str> = tainted
        .clone()
        .flat_map(|n| n.taints.iter().map(|t| t.key.as_str()))
        .collect();
    taints.sort_unstable();
    taints.dedup();
    taints.truncate(3);
    let cordoned = selected().filter(|n| demand.tolerates(n) && n.unschedulable);
    let parts = [
        (
            unlabelled,
            "not labelled as its node selector and affinity ask".to_owned(),
        ),
        (
            tainted.count(),
            format!(
                "tainted by what it does not tolerate ({})",
                taints.join(", ")
            ),
        ),
        (cordoned.count(), "cordoned".to_owned()),
    ];
    let told: Vec<String> = parts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| {
            let is = if count == 1 { "is" } else { "are" };
            format!("{count} {is} {what}")
        })
        .collect();
    format!("fits no node: {of_all}, {}", told.join(", "))
}

fn plural(count: usize, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// An amount as people write it.
fn written(resource: &str, milli: i128) -> String {
    let whole = milli / 1000;
    let is_bytes =
        ["memory", "ephemeral-storage"].contains(&resource) || resource.starts_with("hugepages-");
    match (is_bytes, milli % 1000) {
        (true, _) if whole >= GIBI => tenths(whole, GIBI, "Gi"),
        (true, _) if whole >= MEBI => tenths(whole, MEBI, "Mi"),
        (true, _) | (false, 0) => whole.to_string(),
        (false, _) => format!("{milli}m"),
    }
}

fn tenths(value: i128, unit: i128, suffix: &str) -> String {
    let tenths = value * 10 / unit;
    if tenths % 10 == 0 {
        format!("{}{suffix}", tenths / 10)
    } else {
        format!("{}.{}{suffix}", tenths / 10, tenths % 10)
    }
}
