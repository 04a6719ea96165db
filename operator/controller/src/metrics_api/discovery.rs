//! What is served, as clients of the Kubernetes API find it out.

use serde_json::{Value, json};

use super::served::Served;

/// `external.metrics.k8s.io`, for HPA's metrics of type External.
pub const EXTERNAL: Api = Api {
    group: "external.metrics.k8s.io",
    version: "v1beta1",
};
/// `custom.metrics.k8s.io`, for HPA's metrics of types Object and Pods.
pub const CUSTOM: Api = Api {
    group: "custom.metrics.k8s.io",
    version: "v1beta2",
};
/// Services as custom metrics call them: resource and group.
pub const SERVICES: &str = "inferenceservices.serving.pagoda.dev";
/// Pods as custom metrics call them.
pub const PODS: &str = "pods";

/// A group and the one version of it that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    /// The group.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
}

impl Api {
    /// Both.
    pub const ALL: [Self; 2] = [EXTERNAL, CUSTOM];

    /// As it stands in `apiVersion`.
    pub fn group_version(self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// Name of its APIService.
    pub fn object(self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    /// By its group.
    pub fn of_group(group: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.group == group)
    }
}

/// `/apis`.
pub fn groups() -> Value {
    let groups: Vec<Value> = Api::ALL.into_iter().map(group).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub fn group(api: Api) -> Value {
    let version = json!({"groupVersion": api.group_version(), "version": api.version});
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": api.group,
        "versions": [version],
        "preferredVersion": version,
    })
}

/// `/apis/GROUP/VERSION`.
pub fn resources(api: Api) -> Value {
    let resource = |name: String, kind: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get"]});
    let resources: Vec<Value> = if api == EXTERNAL {
        let all = Served::ALL.iter();
        all.map(|served| resource(served.name().to_owned(), "ExternalMetricValueList"))
            .collect()
    } else {
        let services = Served::ALL
            .iter()
            .filter(|served| **served != Served::Query);
        let services = services.map(|served| format!("{SERVICES}/{}", served.name()));
        let pods = Served::OF_PODS
            .iter()
            .map(|served| format!("{PODS}/{}", served.name()));
        let all = services.chain(pods);
        all.map(|name| resource(name, "MetricValueList")).collect()
    };
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api.group_version(),
        "resources": resources,
    })
}

/// `/openapi/v2`: the aggregation layer asks for it, and nothing here is written, so nothing has a schema.
pub fn open_api_v2() -> Value {
    json!({"swagger": "2.0", "info": info(), "paths": {}, "definitions": {}})
}

/// `/openapi/v3`.
pub fn open_api_v3_index() -> Value {
    let entry = |api: Api| {
        let path = format!("apis/{}", api.group_version());
        let url = format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"));
        (path, json!({"serverRelativeURL": url}))
    };
    let paths: serde_json::Map<String, Value> = Api::ALL.into_iter().map(entry).collect();
    json!({"paths": paths})
}

/// `/openapi/v3/apis/GROUP/VERSION`.
pub fn open_api_v3() -> Value {
    json!({"openapi": "3.0.0", "info": info(), "paths": {}})
}

fn info() -> Value {
    json!({"title": "Pagoda metrics", "version": env!("CARGO_PKG_VERSION")})
}
