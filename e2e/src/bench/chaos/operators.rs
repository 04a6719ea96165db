//! The two operators, each behind a proxy of its own that brings faults, each started again when it ends, as a kubelet would.

use std::time::{Duration, Instant};

use anyhow::Result;
use pagoda_e2e::faults::{Fault, FaultProxy, Match, WatchFault};
use pagoda_e2e::operator_process::OperatorProcess;
use rustix::process::Signal;

use super::plan::{Strike, Which};
use crate::bed::Bed;

const RESTART_AFTER: Duration = Duration::from_secs(1);

struct Operator {
    name: &'static str,
    proxy: FaultProxy,
    process: OperatorProcess,
    starts: u32,
    /// When a stopped process goes on.
    resumes: Option<Instant>,
    /// When the proxy's faults end.
    heals: Option<Instant>,
    /// When one that has ended is started again.
    restarts: Option<Instant>,
}

impl Operator {
    async fn start(bed: &Bed, name: &'static str) -> Result<Self> {
        let proxy = FaultProxy::start_before(&bed.plane.kubeconfig()).await?;
        let process = bed
            .operator(&format!("{name}-0"), Some(&proxy.url()))
            .await?;
        Ok(Self {
            name,
            proxy,
            process,
            starts: 0,
            resumes: None,
            heals: None,
            restarts: None,
        })
    }

    async fn restart(&mut self, bed: &Bed) -> Result<()> {
        self.starts += 1;
        let identity = format!("{}-{}", self.name, self.starts);
        self.process = bed.operator(&identity, Some(&self.proxy.url())).await?;
        self.restarts = None;
        self.resumes = None;
        Ok(())
    }

    fn resume(&mut self) -> Result<()> {
        self.resumes = None;
        self.process.signal(Signal::CONT)
    }

    async fn heal(&mut self) {
        self.heals = None;
        self.proxy.heal().await;
    }

    async fn tend(&mut self, bed: &Bed) -> Result<()> {
        let due = |at: Option<Instant>| at.is_some_and(|at| Instant::now() >= at);
        if due(self.resumes) {
            self.resume()?;
        }
        if due(self.heals) {
            self.heal().await;
        }
        if self.process.exit_status()?.is_some() && self.restarts.is_none() {
            self.restarts = Some(Instant::now() + RESTART_AFTER);
        }
        // The API server may be away; then it is tried again.
        if due(self.restarts) && self.restart(bed).await.is_err() {
            self.restarts = Some(Instant::now() + RESTART_AFTER);
        }
        Ok(())
    }
}

/// Both.
pub(super) struct Operators {
    pair: [Operator; 2],
}

impl Operators {
    pub(super) async fn start(bed: &Bed) -> Result<Self> {
        Ok(Self {
            pair: [
                Operator::start(bed, "chaos-a").await?,
                Operator::start(bed, "chaos-b").await?,
            ],
        })
    }

    fn of(&mut self, which: Which) -> &mut Operator {
        match which {
            Which::A => &mut self.pair[0],
            Which::B => &mut self.pair[1],
        }
    }

    /// Ends faults whose time is over and starts what has ended.
    pub(super) async fn tend(&mut self, bed: &Bed) -> Result<()> {
        for operator in &mut self.pair {
            operator.tend(bed).await?;
        }
        Ok(())
    }

    /// Ends all faults.
    pub(super) async fn heal(&mut self) -> Result<()> {
        for operator in &mut self.pair {
            operator.resume()?;
            operator.heal().await;
        }
        Ok(())
    }

    /// Programs started so far, the first two not counted.
    pub(super) fn restarts(&self) -> u32 {
        self.pair.iter().map(|operator| operator.starts).sum()
    }

    pub(super) fn signal(&mut self, which: Which, signal: Signal) -> Result<()> {
        let operator = self.of(which);
        // One that is stopped would keep SIGTERM waiting.
        operator.resume()?;
        operator.process.signal(signal)
    }

    pub(super) fn pause(&mut self, which: Which, length: Duration) -> Result<()> {
        let operator = self.of(which);
        operator.resumes = Some(Instant::now() + length);
        operator.process.signal(Signal::STOP)
    }

    pub(super) async fn fault(
        &mut self,
        which: Which,
        matching: Match,
        fault: Fault,
        length: Duration,
    ) {
        let operator = self.of(which);
        operator.heal().await;
        operator.proxy.add(matching, fault);
        operator.heals = Some(Instant::now() + length);
    }

    pub(super) fn silence(&mut self, which: Which, length: Duration) {
        let operator = self.of(which);
        operator.proxy.fall_silent();
        operator.heals = Some(Instant::now() + length);
    }

    pub(super) async fn cut_off(&mut self, which: Which, length: Duration) {
        let operator = self.of(which);
        operator.proxy.refuse_connections().await;
        operator.heals = Some(Instant::now() + length);
    }

    pub(super) fn strike(&mut self, which: Which, strike: Strike) {
        let fault = match strike {
            Strike::Cut => WatchFault::Cut,
            Strike::Close => WatchFault::Close,
            Strike::Gone => WatchFault::Gone,
            Strike::Freeze => WatchFault::Freeze,
        };
        let operator = self.of(which);
        operator.proxy.strike(&Match::any(), fault);
        if strike == Strike::Freeze {
            operator.heals = Some(Instant::now() + Duration::from_secs(5));
        }
    }

    /// Both end for good.
    pub(super) async fn stop(&mut self) -> Result<()> {
        self.heal().await?;
        for operator in &self.pair {
            operator.process.stop().await?;
        }
        Ok(())
    }

    /// The ends of both logs.
    pub(super) fn log_tails(&self) -> String {
        let tail =
            |operator: &Operator| format!("--- {}\n{}", operator.name, operator.process.log_tail());
        self.pair.iter().map(tail).collect::<Vec<_>>().join("\n")
    }
}
