//! Reports for spreadsheets.

use std::fmt::Write;

use super::Report;
use crate::time::seconds;

/// One line a scaler.
pub fn summary_csv(reports: &[Report]) -> String {
    let mut text = "scaler,slo_attainment,gpu_hours,cost,ttft_p50_ms,ttft_p95_ms,ttft_p99_ms,itl_p50_ms,itl_p95_ms,itl_p99_ms,\
        mean_replicas,most_replicas,scale_events,reversals,requests,completed,lost,too_long,cached_share,preemptions,seconds\n"
        .to_owned();
    for r in reports {
        let (first, inter) = (r.first_token, r.inter_token);
        let _ = writeln!(
            text,
            "{},{:.6},{:.4},{:.4},{},{},{},{},{},{},{:.3},{},{},{},{},{},{},{},{:.4},{},{:.3}",
            r.scaler,
            r.attainment(),
            r.gpu_hours,
            r.cost,
            first.p50,
            first.p95,
            first.p99,
            inter.p50,
            inter.p95,
            inter.p99,
            r.mean_replicas,
            r.most_replicas,
            r.events.len(),
            r.reversals,
            r.counts.requests,
            r.counts.completed,
            r.lost(),
            r.counts.too_long,
            r.cached_share,
            r.preemptions,
            r.seconds
        );
    }
    text
}

/// What was seen over time: one line a stretch of it and a scaler.
pub fn moments_csv(reports: &[Report]) -> String {
    let mut text =
        "scaler,second,lasts,desired,ready,loading,in_flight,held,arrived,ended,met\n".to_owned();
    for report in reports {
        for m in &report.moments {
            let _ = writeln!(
                text,
                "{},{:.3},{:.3},{},{},{},{},{},{},{},{}",
                report.scaler,
                seconds(m.at),
                seconds(m.lasts),
                m.desired,
                m.ready,
                m.loading,
                m.in_flight,
                m.held,
                m.arrived,
                m.ended,
                m.met
            );
        }
    }
    text
}
