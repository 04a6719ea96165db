//! `spec.routing`: how requests come to pods.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the gateway treats requests for this model.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Routing {
    /// How a pod is chosen: TwoChoices takes the less loaded of two at random.
    #[serde(default)]
    pub policy: RoutingPolicy,
    /// What happens to requests while no pod is ready.
    #[serde(default)]
    pub hold: Hold,
}

/// How a pod is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RoutingPolicy {
    /// The one with fewer requests in flight of two at random.
    #[default]
    TwoChoices,
}

/// What happens to requests while no pod is ready.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// Requests that each gateway holds at most; further ones get 503 at once. 0 holds none.
    #[serde(default = "hold_requests")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_requests: u32,
    /// Seconds that a request is held before it gets 503.
    #[serde(default = "hold_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Seconds after which a held request that asks for a stream is answered with 200 and comments that keep its connection
    /// open, for clients and proxies that give up on silence. An error can then only come as an event of the stream. 0 leaves
    /// the answer to the pod.
    #[serde(default)]
    #[schemars(range(min = 0, max = 3600))]
    pub early_stream_seconds: u32,
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            max_requests: hold_requests(),
            timeout_seconds: hold_seconds(),
            early_stream_seconds: 0,
        }
    }
}

fn hold_requests() -> u32 {
    1000
}

fn hold_seconds() -> u32 {
    120
}
