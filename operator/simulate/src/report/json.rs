//! Reports for programs.

use serde_json::{Value, json};

use super::{Report, coarser};
use crate::time::seconds;

/// Points of a report's time line.
const POINTS: usize = 600;

/// One object: `runs` has one for each scaler, with the keys of the CSV and, in them, `events` and `timeline`.
pub fn to_json(reports: &[Report]) -> Value {
    json!({ "runs": reports.iter().map(run).collect::<Vec<_>>() })
}

fn run(r: &Report) -> Value {
    json!({
        "scaler": r.scaler,
        "note": r.note,
        "slo": {
            "ttft_ms": r.slo_first_token_ms,
            "itl_ms": r.slo_inter_token_ms,
            "attainment": r.attainment(),
        },
        "ttft_ms": r.first_token,
        "itl_ms": r.inter_token,
        "gpu_hours": r.gpu_hours,
        "gpus_per_pod": r.gpus_per_pod,
        "cost": r.cost,
        "mean_replicas": r.mean_replicas,
        "most_replicas": r.most_replicas,
        "reversals": r.reversals,
        "requests": {
            "total": r.counts.requests,
            "completed": r.counts.completed,
            "met": r.counts.met,
            "hold_full": r.counts.hold_full,
            "hold_timeout": r.counts.hold_timeout,
            "cut": r.counts.cut,
            "too_long": r.counts.too_long,
            "unfinished": r.unfinished,
        },
        "tokens": { "prompt": r.counts.prompt_tokens, "output": r.counts.output_tokens },
        "cached_share": r.cached_share,
        "preemptions": r.preemptions,
        "seconds": r.seconds,
        "events": r.events.iter().map(|event| json!({
            "second": seconds(event.at),
            "from": event.from,
            "to": event.to,
            "reason": event.reason,
        })).collect::<Vec<_>>(),
        "timeline": coarser(&r.moments, POINTS).iter().map(|m| json!({
            "second": seconds(m.at),
            "lasts": seconds(m.lasts),
            "desired": m.desired,
            "ready": m.ready,
            "loading": m.loading,
            "in_flight": m.in_flight,
            "held": m.held,
            "arrived": m.arrived,
            "ended": m.ended,
            "met": m.met,
        })).collect::<Vec<_>>(),
    })
}
