//! Services at rest: nothing may be written, and next to no processor time used.

use std::time::{Duration, Instant};

use anyhow::Result;
use pagoda_e2e::operator_process::OperatorProcess;

use super::Run;
use crate::bed::audit::{AuditLog, Write, in_words};
use crate::report::{Figure, Report};

const SAY_EVERY: Duration = Duration::from_mins(1);

pub(super) async fn measure(
    run: &Run<'_>,
    operator: &OperatorProcess,
    audit: &mut AuditLog,
    report: &mut Report,
) -> Result<()> {
    let length = Duration::from_secs(run.arguments.idle_seconds.into());
    let count = run.arguments.services;
    run.progress.step(format!(
        "{count} services at rest for {} s, half of them one pod each, half at zero with autoscaling on",
        length.as_secs()
    ));
    audit.skip()?;
    let (began, cpu_before) = (Instant::now(), operator.cpu_time());
    let (mut writes, mut leases, mut said) = (Vec::new(), 0, Instant::now());
    while began.elapsed() < length {
        let left = length.saturating_sub(began.elapsed());
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
        for write in audit
            .read_on()?
            .into_iter()
            .filter(|write| write.by_operator)
        {
            if write.is_of_lease() {
                leases += 1;
            } else {
                writes.push(write);
            }
        }
        if said.elapsed() >= SAY_EVERY {
            run.progress.step(format!("{} writes", writes.len()));
            said = Instant::now();
        }
    }
    let cpu = operator.cpu_time().saturating_sub(cpu_before).as_secs_f64();
    let percent = cpu / began.elapsed().as_secs_f64() * 100.0;
    tell(report, count, length, &writes, percent);
    report.fact("idle_lease_writes", f64::from(leases));
    report.fact("idle_seconds", length.as_secs_f64());
    report.fact(
        "rss_mib_at_rest",
        operator.resident_bytes() as f64 / f64::from(1 << 20),
    );
    Ok(())
}

fn tell(report: &mut Report, count: u32, length: Duration, writes: &[Write], percent: f64) {
    let minutes = length.as_secs_f64() / 60.0;
    report.figure(Figure {
        key: "idle_writes".into(),
        what: format!("writes, {count} services at rest, {minutes:.1} min"),
        value: writes.len() as f64,
        target: Some(0.0),
        unit: "".into(),
        note: in_words(writes),
    });
    report.figure(Figure {
        key: "idle_cpu_percent".into(),
        what: "processor time over the same time".to_owned(),
        value: percent,
        target: Some(1.0),
        unit: "% of a core".into(),
        note: String::new(),
    });
}
