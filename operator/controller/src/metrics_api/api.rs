//! The two APIs as HTTP: who asks, whether they may, and what is known.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Extension, Path, Query, Request, State},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use pagoda_crds::names;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    authentication::{FrontProxy, User},
    authorization::{Authorizer, Wish},
    discovery::{self, Api, CUSTOM, EXTERNAL, PODS, SERVICES},
    refusal::Refusal,
    selector::Selector,
    served::{self, Series, Served, quantity},
};
use crate::{autoscaler::signals::Signals, key::Key};

/// Which services' pods have which labels is the API server's to know; HPAs select a service's pods by this one.
const POD_LABEL: &str = names::LABEL_SERVICE;

/// What answers are made of.
pub struct Sources {
    /// Figures.
    pub signals: Arc<Signals>,
    /// Rights.
    pub authorizer: Authorizer,
}

/// The client of a connection.
#[derive(Clone)]
pub struct Caller {
    /// How to know the aggregation layer.
    pub proxy: Arc<FrontProxy>,
    /// Name of the client's certificate, which was verified; none without one.
    pub common_name: Option<String>,
}

/// Selectors as clients send them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selectors {
    #[serde(default)]
    label_selector: String,
    #[serde(default)]
    metric_label_selector: String,
}

type Answer = Result<Json<Value>, Refusal>;

/// Everything that is served. Each request carries its [`Caller`].
pub fn router(sources: Arc<Sources>) -> Router {
    let (external, custom) = (EXTERNAL.group_version(), CUSTOM.group_version());
    Router::new()
        .route("/apis", get(async || Json(discovery::groups())))
        .route("/apis/{group}", get(group))
        .route("/apis/{group}/{version}", get(resources))
        .route("/openapi/v2", get(async || Json(discovery::open_api_v2())))
        .route(
            "/openapi/v3",
            get(async || Json(discovery::open_api_v3_index())),
        )
        .route("/openapi/v3/apis/{group}/{version}", get(open_api_v3))
        .route(
            &format!("/apis/{external}/namespaces/{{namespace}}/{{metric}}"),
            get(list_external),
        )
        .route(
            &format!("/apis/{custom}/namespaces/{{namespace}}/{{resource}}/{{name}}/{{metric}}"),
            get(get_custom),
        )
        .fallback(async || {
            Refusal::NotFound("there is no such path in the metrics APIs".to_owned())
        })
        .method_not_allowed_fallback(async || Refusal::Method)
        .layer(from_fn(authenticate))
        .with_state(sources)
}

/// Nobody unknown gets further. What there is may be known to everybody who is: it tells of no service.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    let user = caller.and_then(|caller| {
        caller
            .proxy
            .user(caller.common_name.as_deref(), request.headers())
    });
    let Some(user) = user else {
        return Refusal::Unauthenticated.into_response();
    };
    request.extensions_mut().insert(user);
    next.run(request).await
}

async fn group(Path(group): Path<String>) -> Answer {
    let api = Api::of_group(&group).ok_or_else(|| no_group(&group))?;
    Ok(Json(discovery::group(api)))
}

async fn resources(Path((group, version)): Path<(String, String)>) -> Answer {
    Ok(Json(discovery::resources(api(&group, &version)?)))
}

async fn open_api_v3(Path((group, version)): Path<(String, String)>) -> Answer {
    api(&group, &version).map(|_| Json(discovery::open_api_v3()))
}

fn api(group: &str, version: &str) -> Result<Api, Refusal> {
    let api = Api::of_group(group).ok_or_else(|| no_group(group))?;
    if api.version == version {
        Ok(api)
    } else {
        let served = api.group_version();
        Err(Refusal::NotFound(format!(
            "{group} has no version {version}: {served} is served"
        )))
    }
}

fn no_group(group: &str) -> Refusal {
    let groups = Api::ALL.map(|api| api.group).join(" and ");
    Refusal::NotFound(format!(
        "the group {group} is not served here: {groups} are"
    ))
}

async fn list_external(
    State(sources): State<Arc<Sources>>,
    Extension(user): Extension<User>,
    Path((namespace, metric)): Path<(String, String)>,
    Query(selectors): Query<Selectors>,
) -> Answer {
    sources
        .authorizer
        .check(&user, Wish::external(&namespace, &metric))
        .await?;
    let served = named(&metric)?;
    let selector = parse(&selectors.label_selector)?;
    let now = Instant::now();
    let found = served::series(&sources.signals, &namespace, served, &selector, now);
    let items: Vec<Value> = whole(&found)
        .unwrap_or_default()
        .iter()
        .map(|series| external(series, served))
        .collect();
    Ok(Json(json!({
        "kind": "ExternalMetricValueList",
        "apiVersion": EXTERNAL.group_version(),
        "metadata": {},
        "items": items,
    })))
}

/// All of the series, or none of them: an HPA adds up what it gets, and a part of a sum would take pods away.
fn whole(found: &[Series]) -> Option<&[Series]> {
    found
        .iter()
        .all(|series| series.figure.is_some())
        .then_some(found)
}

fn external(series: &Series, served: Served) -> Value {
    let (milli, age) = series.figure.map_or((0, 0), |f| (f.milli, f.age_millis));
    let mut labels = json!({"service": series.service.name()});
    if let Some(query) = &series.query {
        labels["query"] = json!(&**query);
    }
    json!({
        "metricName": served.name(),
        "metricLabels": labels,
        "timestamp": timestamp(age),
        "value": quantity(milli),
    })
}

async fn get_custom(
    State(sources): State<Arc<Sources>>,
    Extension(user): Extension<User>,
    Path((namespace, resource, name, metric)): Path<(String, String, String, String)>,
    Query(selectors): Query<Selectors>,
) -> Answer {
    let wish = Wish::custom(&namespace, &resource, &name, &metric);
    sources.authorizer.check(&user, wish).await?;
    let served = named(&metric)?;
    if !selectors.metric_label_selector.is_empty() {
        let reason =
            "the metrics of custom.metrics.k8s.io have no labels: leave out metric.selector";
        return Err(Refusal::Malformed(reason.to_owned()));
    }
    let selector = parse(&selectors.label_selector)?;
    let items = match resource.as_str() {
        SERVICES => of_services(&sources.signals, &namespace, &name, served, &selector),
        PODS => of_pods(&sources.signals, &namespace, &name, served, &selector),
        other => Err(Refusal::NotFound(format!(
            "{other} have no metrics here: {SERVICES} and {PODS} have"
        ))),
    }?;
    Ok(Json(json!({
        "kind": "MetricValueList",
        "apiVersion": CUSTOM.group_version(),
        "metadata": {},
        "items": items,
    })))
}

fn of_services(
    signals: &Signals,
    namespace: &str,
    name: &str,
    served: Served,
    selector: &Selector,
) -> Result<Vec<Value>, Refusal> {
    if served == Served::Query {
        let reason = "the answers of queries are in external.metrics.k8s.io, by the labels service and query";
        return Err(Refusal::NotFound(reason.to_owned()));
    }
    if name == "*" && *selector != Selector::default() {
        let reason = "labels of InferenceServices are not known here: name one";
        return Err(Refusal::Malformed(reason.to_owned()));
    }
    let one = (name != "*").then(|| Selector::parse(&format!("service={name}")));
    let which = one.unwrap_or_else(|| Ok(Selector::default()));
    let which = which.map_err(|error| Refusal::Malformed(error.to_string()))?;
    let found = served::series(signals, namespace, served, &which, Instant::now());
    let items: Vec<Value> = found
        .iter()
        .filter_map(|series| {
            let figure = series.figure?;
            let object = json!({
                "kind": names::KIND,
                "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
                "namespace": namespace,
                "name": series.service.name(),
            });
            Some(item(&object, served, figure.milli, figure.age_millis))
        })
        .collect();
    if name != "*" && items.is_empty() {
        let metric = served.name();
        return Err(Refusal::NotFound(format!(
            "nobody knows {metric} of {namespace}/{name} now"
        )));
    }
    Ok(items)
}

/// HPAs select the pods of a service by the label that its `/scale` tells. A pod that told nothing is not there, which an HPA
/// takes for a missing sample.
fn of_pods(
    signals: &Signals,
    namespace: &str,
    name: &str,
    served: Served,
    selector: &Selector,
) -> Result<Vec<Value>, Refusal> {
    if !Served::OF_PODS.contains(&served) {
        let known = Served::OF_PODS.map(Served::name).join(", ");
        return Err(Refusal::NotFound(format!(
            "pods do not tell {}: they tell {known}",
            served.name()
        )));
    }
    let Some(service) = selector.exactly(POD_LABEL) else {
        return Err(Refusal::Malformed(format!(
            "select the pods of one service: {POD_LABEL}=NAME"
        )));
    };
    let now = Instant::now();
    let Some(seen) = signals.of(&Key::new(namespace, service)) else {
        return Ok(Vec::new());
    };
    if !served::is_fresh(&seen, now) {
        return Ok(Vec::new());
    }
    let pods = seen
        .pods
        .iter()
        .filter(|pod| name == "*" || *pod.name == *name);
    let known = pods.filter_map(|pod| Some((pod, served::of_pod(pod, served)?)));
    let items = known.map(|(pod, milli)| {
        let object = json!({
            "kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": &*pod.name,
        });
        item(&object, served, milli, served::age(&seen, now))
    });
    Ok(items.collect())
}

fn item(object: &Value, served: Served, milli: u64, age_millis: u64) -> Value {
    json!({
        "describedObject": object,
        "metric": {"name": served.name(), "selector": null},
        "timestamp": timestamp(age_millis),
        "value": quantity(milli),
    })
}

fn named(metric: &str) -> Result<Served, Refusal> {
    Served::named(metric).ok_or_else(|| {
        let all = Served::ALL.map(Served::name).join(", ");
        Refusal::NotFound(format!("there is no metric {metric}: there are {all}"))
    })
}

fn parse(selector: &str) -> Result<Selector, Refusal> {
    Selector::parse(selector).map_err(|error| Refusal::Malformed(error.to_string()))
}

/// Kubernetes' times have no fractions.
fn timestamp(age_millis: u64) -> String {
    let age = SignedDuration::from_millis(i64::try_from(age_millis).unwrap_or(i64::MAX));
    let then = Timestamp::now().checked_sub(age).unwrap_or_default();
    let whole = Timestamp::from_second(then.as_second()).unwrap_or_default();
    whole.to_string()
}

#[cfg(test)]
mod tests;
