//! An operator that ends and one that starts anew: how long until every service has been looked at, and what it writes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pagoda_e2e::operator_process::OperatorProcess;

use super::{QUIET, Run};
use crate::bed::Bed;
use crate::bed::audit::{AuditLog, Write, in_words};
use crate::report::{Figure, Report};

const POLL: Duration = Duration::from_millis(50);
/// No reconcile for this long ends the first round.
const PAUSE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_mins(5);

/// When what happened, in seconds since the program was started.
struct Start {
    leads: f64,
    reconciled: f64,
    reconciles: f64,
}

/// Returns the operator that runs in the end.
pub(super) async fn measure(
    run: &Run<'_>,
    bed: &Bed,
    operator: OperatorProcess,
    audit: &mut AuditLog,
    report: &mut Report,
) -> Result<OperatorProcess> {
    run.progress.step("SIGTERM, and a new operator");
    operator.stop().await?;
    audit.skip()?;
    let (operator, clean) = start(run, bed, "operator-b").await?;
    tokio::time::sleep(QUIET).await;
    let writes: Vec<Write> = audit
        .read_on()?
        .into_iter()
        .filter(Write::is_work)
        .collect();
    tell(run, report, &clean, &writes);
    run.progress
        .step("SIGKILL, and a new operator, which has to wait for the lease");
    operator.signal(rustix::process::Signal::KILL)?;
    operator.wait_for_exit(Duration::from_secs(10)).await?;
    audit.skip()?;
    let (operator, crash) = start(run, bed, "operator-c").await?;
    tokio::time::sleep(QUIET).await;
    let after_crash = audit.read_on()?.into_iter().filter(Write::is_work).count();
    report.fact("crash_lease_s", crash.leads);
    report.fact("crash_restart_s", crash.reconciled - crash.leads);
    report.fact("crash_restart_writes", after_crash as f64);
    Ok(operator)
}

fn tell(run: &Run<'_>, report: &mut Report, start: &Start, writes: &[Write]) {
    let count = run.arguments.services;
    report.fact("restart_lease_s", start.leads);
    report.fact("restart_reconciles", start.reconciles);
    report.figure(Figure {
        key: "restart_s".into(),
        what: format!("start until all {count} are reconciled"),
        value: start.reconciled,
        target: Some(10.0),
        unit: "s".into(),
        note: format!(
            "of it {:.2} s until it led; {:.0} reconciles",
            start.leads, start.reconciles
        ),
    });
    report.figure(Figure {
        key: "restart_writes".into(),
        what: "writes after the start".to_owned(),
        value: writes.len() as f64,
        target: Some(0.0),
        unit: "".into(),
        note: in_words(writes),
    });
}

/// The first round is over when there were as many reconciles as services, and then none for a while.
async fn start(run: &Run<'_>, bed: &Bed, identity: &str) -> Result<(OperatorProcess, Start)> {
    let wanted = f64::from(run.arguments.services);
    let began = Instant::now();
    let operator = bed.operator(identity, None).await?;
    let (mut leads, mut reconciles, mut last) = (None, 0.0, began);
    loop {
        let now = Instant::now();
        if leads.is_none() && leading(&operator).await {
            leads = Some(now.duration_since(began).as_secs_f64());
        }
        let seen = operator
            .metric("pagoda_operator_reconciles_total")
            .await
            .unwrap_or_default();
        if seen > reconciles {
            (reconciles, last) = (seen, now);
        }
        if reconciles >= wanted && last.elapsed() > PAUSE {
            break;
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "{reconciles} reconciles of {wanted} services after {} s:\n{}",
            PATIENCE.as_secs(),
            operator.log_tail()
        );
        tokio::time::sleep(POLL).await;
    }
    let start = Start {
        leads: leads.unwrap_or_default(),
        reconciled: last.duration_since(began).as_secs_f64(),
        reconciles,
    };
    Ok((operator, start))
}

async fn leading(operator: &OperatorProcess) -> bool {
    let leader = operator.metric("pagoda_operator_leader").await;
    leader.unwrap_or_default() > 0.0
}
