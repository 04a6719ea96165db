//! `spec.scaling.behavior` and `spec.scaling.panic`: how fast the number of pods may change.
//!
//! `behavior` is `autoscaling/v2 HorizontalPodAutoscalerBehavior`, field by field, with bounds that the API server checks for a
//! HorizontalPodAutoscaler in code and here in the schema.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::quantity;

/// How fast the number of pods may change.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Behavior {
    /// Rules for more pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ScalingRules>,
    /// Rules for fewer pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down: Option<ScalingRules>,
}

/// Rules for one direction.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// Seconds of earlier recommendations that are looked at: the smallest of them counts on the way up, the largest on
    /// the way down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: Option<u32>,
    /// Which of the policies counts: the one that allows the largest change (Max), the smallest (Min), or none, so that
    /// nothing changes in this direction (Disabled). Max when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_policy: Option<SelectPolicy>,
    /// How much may change in how long. At least one, unless all are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8))]
    pub policies: Option<Vec<ScalingPolicy>>,
    /// Share by which a metric may miss its target in this direction before the number of pods changes, such as "0.05" or "50m".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    #[x_kube(validation = (
        "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1'))",
        "tolerance must be a quantity from 0 to 1, such as \"0.05\""
    ))]
    pub tolerance: Option<Quantity>,
}

/// Which policy counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectPolicy {
    /// The one that allows the largest change.
    #[default]
    Max,
    /// The one that allows the smallest change.
    Min,
    /// None: nothing changes in this direction.
    Disabled,
}

/// How much may change in how long.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingPolicy {
    /// Whether value counts pods or percent of them.
    #[serde(rename = "type")]
    pub kind: PolicyKind,
    /// How many pods, or how much percent of those at the period's start.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub value: u32,
    /// The time in which no more may change.
    #[schemars(range(min = 1, max = 1800))]
    pub period_seconds: u32,
}

/// What a policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyKind {
    /// Pods.
    Pods,
    /// Percent of the pods at the period's start.
    Percent,
}

/// What a sudden burst may do beyond behavior, as Knative's autoscaler has it: when a short window asks for a multiple of the
/// pods that answer, the number of pods goes there at once, and is not lowered until the burst is over.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Panic {
    /// Whether a burst may do so at all.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Seconds of the short window; no more than scaling.windowSeconds, which counts where it is less.
    #[serde(default = "panic_window")]
    #[schemars(range(min = 1, max = 360))]
    pub window_seconds: u32,
    /// Percent of the pods that answer which the short window must ask for.
    #[serde(default = "panic_threshold")]
    #[schemars(range(min = 110, max = 1000))]
    pub threshold_percent: u32,
}

impl Default for Panic {
    fn default() -> Self {
        Self {
            enabled: yes(),
            window_seconds: panic_window(),
            threshold_percent: panic_threshold(),
        }
    }
}

fn yes() -> bool {
    true
}

fn panic_window() -> u32 {
    6
}

fn panic_threshold() -> u32 {
    200
}
