//! What is simulated.

use std::sync::Arc;

use crate::pod::{PodProfile, ProfileError};
use crate::time::Nanos;

/// One kind of hardware that pods may run on.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// Its name, as a node's label has it.
    pub name: Arc<str>,
    /// Of all pods it has so large a part as its weight is of all weights.
    pub weight: u32,
    /// What a pod can do there.
    pub profile: PodProfile,
}

/// What is simulated, save the trace and who decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Hardware of the pods; at least one.
    pub hardware: Vec<Hardware>,
    /// Pods that are ready when the first request comes.
    pub initial_replicas: u32,
    /// Fewest pods, whoever decides.
    pub min_replicas: u32,
    /// Most pods, whoever decides.
    pub max_replicas: u32,
    /// From a pod's creation until it is ready.
    pub load: Nanos,
    /// Each pod takes longer or shorter by up to this share, at random.
    pub load_jitter: f64,
    /// What a pod's open requests get when it is removed.
    pub drain: Nanos,
    /// Requests that the gateway holds at most.
    pub hold_requests: usize,
    /// For how long at most.
    pub hold_timeout: Nanos,
    /// From what a scaler sees to the change of the number of pods: scrape, decision, and write.
    pub decision_delay: Nanos,
    /// A request is well served whose first token comes within this,
    pub slo_first_token: Nanos,
    /// and whose further tokens come, on average, within this of each other.
    pub slo_inter_token: Nanos,
    /// GPUs of a pod, for the bill.
    pub gpus_per_pod: u32,
    /// What one costs.
    pub cost_per_gpu_hour: f64,
    /// Seconds since 1970 of the first request, for schedules.
    pub start_unix_seconds: i64,
    /// Of all randomness.
    pub seed: u64,
}

/// What cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SetupError {
    /// Nothing to run on.
    #[error("no hardware is given: name one with its speed")]
    NoHardware,
    /// Nothing of one kind is ever used.
    #[error("hardware {0} has weight 0: give it one from 1 on, or leave it out")]
    NoWeight(Arc<str>),
    /// The bounds are wrong.
    #[error(
        "at most {max} pods and at least {min}: scaling.maxReplicas must be 1 or more and no less than minReplicas"
    )]
    Bounds {
        /// Fewest.
        min: u32,
        /// Most.
        max: u32,
    },
    /// A pod that cannot run.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

impl Setup {
    /// Refuses what cannot run.
    pub fn check(&self) -> Result<(), SetupError> {
        if self.hardware.is_empty() {
            return Err(SetupError::NoHardware);
        }
        if self.max_replicas == 0 || self.min_replicas > self.max_replicas {
            return Err(SetupError::Bounds {
                min: self.min_replicas,
                max: self.max_replicas,
            });
        }
        for hardware in &self.hardware {
            if hardware.weight == 0 {
                return Err(SetupError::NoWeight(hardware.name.clone()));
            }
            hardware.profile.check()?;
        }
        Ok(())
    }

    /// Tokens of the longest sequence that every pod can run.
    pub fn longest_sequence(&self) -> u64 {
        let longest = self.hardware.iter().map(|h| h.profile.longest_sequence());
        longest.min().unwrap_or(0)
    }
}
