//! The rules of Kubernetes' HorizontalPodAutoscaler v2, as `k8s.io/kubernetes` 1.34 has them.
//!
//! Arithmetic is in `f64` where the original's is, with the same expressions in the same order: where a product of fractions
//! comes out a hair below a whole number, both come to the same number of pods.

mod behavior;
mod replicas;
#[cfg(test)]
mod tests;

pub(super) use behavior::Pace;
pub(super) use replicas::{PodSamples, Tolerances, average_value, pods, value};
