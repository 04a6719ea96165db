//! Serves targets with a `scale` subresource and the metrics that they are scaled by, and notes what an HPA reads and writes.
//!
//! A reconcile of an HPA reads the scale, then the metrics, and may write the scale. The answer to the first is held back until
//! the next tick of a clock that all targets share, so the moments of a run are known beforehand.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::scenarios::{STEPS, Scenario};

/// Between two moments: an even number of seconds, where every window is an odd one.
pub const PACE_MILLIS: u64 = 2_000;
/// Group of the targets.
pub const GROUP: &str = "judge.pagoda.dev";
/// Namespace of everything.
pub const NAMESPACE: &str = "default";

/// One reconcile.
#[derive(Debug, Clone)]
pub struct Step {
    /// Milliseconds from the beginning of the run to the answer that told the scale.
    pub at_millis: u64,
    /// Pods that the scale told.
    pub replicas: u32,
    /// What each metric told, in the order of the HPA; none where it was absent, or was not asked for.
    pub metrics: Vec<Option<u64>>,
    /// Pods that the HPA wrote.
    pub written: Option<u32>,
    /// When the last of this came. Between `at_millis` and then, and hardly later, the HPA read its clock.
    pub until_millis: u64,
}

/// What became of each target, by name.
pub type Runs = HashMap<String, Vec<Step>>;

struct Target {
    metrics: Vec<crate::script::Series>,
    replicas: u32,
    steps: Vec<Step>,
    next_tick: u64,
}

/// Targets and metrics.
pub struct Judge {
    began: Instant,
    targets: Mutex<HashMap<String, Target>>,
}

impl Judge {
    /// All targets at their beginning.
    pub fn new(scenarios: &[Scenario]) -> Arc<Self> {
        let target = |scenario: &Scenario| {
            let target = Target {
                metrics: scenario.metrics.clone(),
                replicas: scenario.start,
                steps: Vec::new(),
                next_tick: 0,
            };
            (scenario.name.clone(), target)
        };
        Arc::new(Self {
            began: Instant::now(),
            targets: Mutex::new(scenarios.iter().map(target).collect()),
        })
    }

    /// Whether every target has had all of its moments.
    pub fn is_over(&self) -> bool {
        // The last one is there to tell what became of the one before.
        self.with(|targets| targets.values().all(|target| target.steps.len() > STEPS))
    }

    /// What became of each.
    pub fn runs(&self) -> Runs {
        self.with(|targets| {
            let runs = targets.iter();
            runs.map(|(name, target)| (name.clone(), target.steps.clone()))
                .collect()
        })
    }

    fn with<T>(&self, look: impl FnOnce(&mut HashMap<String, Target>) -> T) -> T {
        look(&mut self.targets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn millis(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Serves by TLS under a certificate that nobody signed: it is the cluster of this test alone that asks.
    pub async fn serve(self: Arc<Self>, address: SocketAddr) -> Result<()> {
        let key = rcgen::generate_simple_self_signed(vec!["judge.default.svc".to_owned()])?;
        let secret = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()));
        let mut tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], secret)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let tls = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind(address)
            .await
            .context("cannot serve targets")?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, judge) = (tls.clone(), self.clone());
                tokio::spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else {
                        return;
                    };
                    let service = service_fn(move |request| answer(judge.clone(), request));
                    let server = Builder::new(TokioExecutor::new());
                    server
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                        .ok();
                });
            }
        });
        Ok(())
    }

    /// The scale of a target, at the next tick.
    async fn scale(&self, name: &str) -> Option<Value> {
        let now = self.millis();
        let tick = self.with(|targets| {
            let target = targets.get_mut(name)?;
            target.next_tick = (now / PACE_MILLIS + 1).max(target.next_tick + 1);
            Some(target.next_tick)
        })?;
        let until = self.began + Duration::from_millis(tick * PACE_MILLIS);
        tokio::time::sleep_until(until.into()).await;
        let at_millis = self.millis();
        let replicas = self.with(|targets| {
            let target = targets.get_mut(name)?;
            target.steps.push(Step {
                at_millis,
                replicas: target.replicas,
                metrics: vec![None; target.metrics.len()],
                written: None,
                until_millis: at_millis,
            });
            Some(target.replicas)
        })?;
        Some(scale(name, replicas))
    }

    /// Notes a write of an HPA.
    fn write(&self, name: &str, body: &Value) -> Option<Value> {
        let replicas = u32::try_from(body["spec"]["replicas"].as_u64().unwrap_or(0)).ok()?;
        let now = self.millis();
        self.with(|targets| {
            let target = targets.get_mut(name)?;
            let step = target.steps.last_mut()?;
            step.written = Some(replicas);
            step.until_millis = now;
            target.replicas = replicas;
            Some(scale(name, replicas))
        })
    }

    /// What a metric says at this step.
    fn metric(&self, metric: &str) -> Option<Value> {
        let (name, number) = metric.rsplit_once('.')?;
        let number: usize = number.parse().ok()?;
        let now = self.millis();
        let value = self.with(|targets| {
            let target = targets.get_mut(name)?;
            let step = target.steps.len().checked_sub(1)?;
            let series = target.metrics.get(number)?;
            let value = series[step.min(series.len() - 1)];
            target.steps[step].metrics[number] = value;
            target.steps[step].until_millis = now;
            Some(value)
        })?;
        let item = |milli: u64| {
            json!({
                "metricName": metric,
                "metricLabels": {},
                "timestamp": jiff::Timestamp::now().to_string(),
                "value": format!("{milli}m"),
            })
        };
        Some(json!({
            "kind": "ExternalMetricValueList",
            "apiVersion": "external.metrics.k8s.io/v1beta1",
            "metadata": {},
            "items": value.map(item).into_iter().collect::<Vec<_>>(),
        }))
    }
}

fn scale(name: &str, replicas: u32) -> Value {
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"replicas": replicas},
        // All pods that are asked for are there: what an HPA reckons with is known.
        "status": {"replicas": replicas, "selector": format!("judge={name}")},
    })
}

async fn answer(
    judge: Arc<Judge>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().trim_matches('/').to_owned();
    let words: Vec<&str> = path.split('/').collect();
    let found = match (&parts.method, words.as_slice()) {
        (&Method::GET, ["apis", group, version]) => discovery(group, version),
        (
            &Method::GET,
            [
                "apis",
                "external.metrics.k8s.io",
                _,
                "namespaces",
                NAMESPACE,
                metric,
            ],
        ) => judge.metric(metric),
        (
            method,
            [
                "apis",
                GROUP,
                "v1",
                "namespaces",
                NAMESPACE,
                "targets",
                name,
                "scale",
            ],
        ) => answer_scale(&judge, method, name, body).await,
        _ => None,
    };
    let status = if found.is_some() {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    let text = found.unwrap_or_else(|| json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}));
    let mut response = Response::new(Full::new(Bytes::from(text.to_string())));
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, json);
    Ok(response)
}

async fn answer_scale(judge: &Judge, method: &Method, name: &str, body: Incoming) -> Option<Value> {
    match *method {
        Method::GET => judge.scale(name).await,
        Method::PUT => {
            let bytes = Limited::new(body, 1 << 20).collect().await;
            let bytes = bytes
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            let body: Value = serde_json::from_slice(&bytes).ok()?;
            judge.write(name, &body)
        }
        _ => None,
    }
}

fn discovery(group: &str, version: &str) -> Option<Value> {
    let resources = match group {
        GROUP => json!([
            {"name": "targets", "singularName": "target", "namespaced": true, "kind": "Target", "verbs": ["get"]},
            {"name": "targets/scale", "singularName": "", "namespaced": true, "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get", "update"]},
        ]),
        "external.metrics.k8s.io" => json!([]),
        _ => return None,
    };
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{group}/{version}"),
        "resources": resources,
    }))
}
