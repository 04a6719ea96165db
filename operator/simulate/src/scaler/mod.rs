//! Who decides how many pods there are: Pagoda's own rule, and the rules of others to compare it with.

mod hpa;
mod kpa;
mod pagoda;
mod saturation;
#[cfg(test)]
mod tests;

pub use hpa::{Hpa, HpaMetric, HpaSettings};
pub use kpa::{Kpa, KpaSettings};
pub use pagoda::Pagoda;
pub use saturation::{Saturation, SaturationSettings};

use crate::fleet::{Fleet, Member, Stage};
use crate::gateway::GatewayCounts;
use crate::requests::Requests;
use crate::setup::Setup;
use crate::time::Nanos;

/// A number of pods to have from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Pods; brought within the bounds by whoever carries it out.
    pub replicas: u32,
    /// Why, in a line.
    pub reason: String,
}

/// Who decides how many pods there are.
pub trait Scaler {
    /// What it is called in a report.
    fn name(&self) -> String;

    /// Looks, once a second of simulated time, and says what should change, if anything.
    fn look(&mut self, seen: &FleetView<'_>) -> Option<Wish>;
}

/// What can be seen of the service at one moment.
#[derive(Debug)]
pub struct FleetView<'a> {
    /// The moment.
    pub now: Nanos,
    /// What is simulated.
    pub setup: &'a Setup,
    /// What the gateway counts.
    pub gateway: GatewayCounts,
    fleet: &'a Fleet,
    requests: &'a Requests,
}

impl<'a> FleetView<'a> {
    pub(crate) fn new(
        now: Nanos,
        setup: &'a Setup,
        fleet: &'a Fleet,
        gateway: GatewayCounts,
        requests: &'a Requests,
    ) -> Self {
        Self {
            now,
            setup,
            gateway,
            fleet,
            requests,
        }
    }

    /// Pods that should run.
    pub fn desired(&self) -> u32 {
        self.fleet.desired()
    }

    /// Pods that load or serve, oldest first.
    pub fn members(&self) -> impl Iterator<Item = &'a Member> {
        let fleet = self.fleet;
        fleet
            .living()
            .filter(|member| !matches!(member.stage, Stage::Draining | Stage::Ended))
    }

    /// Pods that serve.
    pub fn ready(&self) -> u32 {
        self.members()
            .filter(|member| member.stage == Stage::Ready)
            .count() as u32
    }

    /// Requests that run, wait or are held.
    pub fn requests_under_way(&self) -> u64 {
        self.gateway.in_flight + self.gateway.held
    }

    /// Tokens of the prompts that wait in a pod.
    pub fn waiting_tokens(&self, member: &Member) -> u64 {
        member
            .pod
            .as_ref()
            .map_or(0, |pod| pod.waiting_tokens(self.requests))
    }
}
