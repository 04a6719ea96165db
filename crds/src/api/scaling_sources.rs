//! `spec.scaling.prometheus`, `schedules` and `lookAhead`: what beside the pods' own metrics moves their number.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema::quantity;

/// Targets for figures that a Prometheus knows.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusTargets {
    /// Which of the servers that the operator was given (chart value prometheus.servers).
    #[serde(default = "default_server")]
    #[schemars(length(min = 1, max = 63))]
    pub server: String,
    /// Seconds between two questions.
    #[serde(default = "interval")]
    #[schemars(range(min = 1, max = 3600))]
    pub interval_seconds: u32,
    /// Age in seconds beyond which a figure counts as absent.
    #[serde(default = "max_age")]
    #[schemars(range(min = 1, max = 3600))]
    pub max_age_seconds: u32,
    /// What is asked.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub queries: Vec<PrometheusQuery>,
}

/// A question to Prometheus, and the target for its answer.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = (
    "has(self.averageValue) != has(self.value)",
    "a query of scaling.prometheus takes either averageValue, when the answer is a sum that the pods share, or value, when each pod more or less moves the answer itself"
))]
#[serde(rename_all = "camelCase")]
pub struct PrometheusQuery {
    /// Name that decisions call it by.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z]([-_A-Za-z0-9]*[A-Za-z0-9])?$')",
        "a query's name is made of letters, digits, hyphens and underscores, and starts with a letter"
    ))]
    pub name: String,
    /// PromQL that yields one figure: a scalar, or a vector of one series.
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,
    /// How much of the answer each pod should carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    #[x_kube(validation = (
        "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('1m')) && !quantity(string(self)).isGreaterThan(quantity('1000000000'))",
        "averageValue must be a quantity from 1m to 1000000000: how much of the answer each pod should carry"
    ))]
    pub average_value: Option<Quantity>,
    /// What the answer should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    #[x_kube(validation = (
        "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('1m')) && !quantity(string(self)).isGreaterThan(quantity('1000000000'))",
        "value must be a quantity from 1m to 1000000000: what the answer should be"
    ))]
    pub value: Option<Quantity>,
}

/// A recurring time at which at least so many pods run.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// Name that decisions call it by.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z]([-_A-Za-z0-9]*[A-Za-z0-9])?$')",
        "a schedule's name is made of letters, digits, hyphens and underscores, and starts with a letter"
    ))]
    pub name: String,
    /// When it begins: minute, hour, day of the month, month, day of the week, such as "0 8 * * 1-5".
    #[schemars(length(min = 9, max = 128))]
    #[x_kube(validation = (
        "self.matches('^[-0-9A-Za-z*/,?#]+( +[-0-9A-Za-z*/,?#]+){4}$')",
        "cron must have five fields, minute, hour, day of the month, month and day of the week, such as \"0 8 * * 1-5\""
    ))]
    pub cron: String,
    /// Time zone of cron, by its IANA name, such as Europe/Berlin.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z][-+_A-Za-z0-9]*(/[-+_A-Za-z0-9]+){0,2}$')",
        "timeZone must be an IANA name, such as Europe/Berlin or UTC"
    ))]
    pub time_zone: String,
    /// How long it lasts.
    #[schemars(range(min = 1, max = 10_080))]
    pub duration_minutes: u32,
    /// Fewest pods meanwhile.
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: u32,
}

/// How the load is foreseen of the moment when a pod that is started now has loaded.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LookAhead {
    /// Goes on with the present trend of a load that rises.
    #[serde(default = "yes")]
    pub trend: bool,
    /// Expects what the same hour of the same weekday brought, once it has been seen.
    #[serde(default)]
    pub recurring: bool,
}

impl Default for LookAhead {
    fn default() -> Self {
        Self {
            trend: yes(),
            recurring: false,
        }
    }
}

fn yes() -> bool {
    true
}

fn default_server() -> String {
    "default".to_owned()
}

fn interval() -> u32 {
    15
}

fn max_age() -> u32 {
    60
}

fn utc() -> String {
    "UTC".to_owned()
}
