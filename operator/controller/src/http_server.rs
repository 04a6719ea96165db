//! `/healthz`, `/readyz`, `/metrics`, and `/decisions/NAMESPACE/NAME`: what the autoscaler decided in the last hour, and from what.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use axum::{
    Json, Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use k8s_openapi::jiff::Timestamp;
use pagoda_operator_core::explain::NoDecisions;
use tokio::net::TcpListener;

use crate::{heartbeat::Heartbeats, key::Key, metrics::Metrics};

/// What `/healthz` and `/readyz` answer from.
#[derive(Default)]
pub struct Health {
    /// Signs of life.
    pub heartbeats: Arc<Heartbeats>,
    leading: AtomicBool,
    synced: AtomicBool,
    /// Who leads instead, as the Lease says.
    rival: Mutex<Option<String>>,
}

impl Health {
    /// The loops start now.
    pub fn lead(&self) {
        self.leading.store(true, Ordering::Relaxed);
    }

    /// Every watch has been read once.
    pub fn synced(&self) {
        self.synced.store(true, Ordering::Relaxed);
    }

    /// Another leads.
    pub fn stands_by_for(&self, leader: &str) {
        let mut rival = self.rival.lock().unwrap_or_else(PoisonError::into_inner);
        if rival.as_deref() != Some(leader) {
            *rival = Some(leader.to_owned());
        }
    }

    /// Why this process has decided nothing, if another one leads.
    fn stands_by(&self) -> Option<NoDecisions> {
        if self.leading.load(Ordering::Relaxed) {
            return None;
        }
        let rival = self.rival.lock().unwrap_or_else(PoisonError::into_inner);
        let leader = rival.clone();
        let who = leader.as_deref().unwrap_or("another one");
        Some(NoDecisions {
            message: format!("this operator stands by: {who} leads, and decides"),
            leader,
        })
    }

    /// One that waits to lead is ready to; one that leads is ready once it has seen the cluster.
    fn ready(&self) -> bool {
        !self.leading.load(Ordering::Relaxed) || self.synced.load(Ordering::Relaxed)
    }
}

/// Opens the port, so that a port in use is an error at once.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("failed to listen on {address}"))
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, health: Arc<Health>, metrics: Arc<Metrics>) {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health.clone())
        .merge(
            Router::new()
                .route("/decisions/{namespace}/{name}", get(decisions))
                .with_state((health, metrics.clone())),
        )
        .merge(
            Router::new()
                .route("/metrics", get(scrape))
                .with_state(metrics),
        );
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "health and metrics are no longer served");
    }
}

async fn healthz(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    match health.heartbeats.late() {
        None => (StatusCode::OK, "ok\n".into()),
        Some(silent) => (StatusCode::SERVICE_UNAVAILABLE, format!("{silent}\n")),
    }
}

async fn readyz(State(health): State<Arc<Health>>) -> (StatusCode, &'static str) {
    if health.ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the cluster has not been read yet\n",
        )
    }
}

async fn decisions(
    State((health, metrics)): State<(Arc<Health>, Arc<Metrics>)>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    if let Some(stands_by) = health.stands_by() {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(stands_by)).into_response();
    }
    let service = Key::new(&namespace, &name);
    let now = Timestamp::now().as_second();
    if let Some(log) = metrics.decisions.of(&service, now) {
        return Json(log).into_response();
    }
    let none = NoDecisions {
        message: format!(
            "nothing was decided about {service} in the last hour: there is no such InferenceService, or its number of pods is not the autoscaler's (scaling.minReplicas equals scaling.maxReplicas, or scaling.managedBy is External)"
        ),
        leader: None,
    };
    (StatusCode::NOT_FOUND, Json(none)).into_response()
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics.render())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagoda_operator_core::{
        autoscale::{Decision, Inputs, Reason},
        explain::DecisionLog,
    };

    async fn ask(health: &Arc<Health>, metrics: &Arc<Metrics>, name: &str) -> (u16, Vec<u8>) {
        let path = Path(("n".to_owned(), name.to_owned()));
        let state = State((health.clone(), metrics.clone()));
        let response = decisions(state, path).await;
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
        (status, body.expect("small").to_vec())
    }

    #[tokio::test]
    async fn who_leads_shows_decisions_and_who_stands_by_says_who_leads() {
        let (health, metrics) = (Arc::<Health>::default(), Arc::<Metrics>::default());
        health.stands_by_for("operator-1_7");
        let (status, body) = ask(&health, &metrics, "a").await;
        let none: NoDecisions = serde_json::from_slice(&body).expect("an answer");
        assert_eq!(
            (status, none.leader.as_deref()),
            (503, Some("operator-1_7"))
        );
        health.lead();
        let (status, body) = ask(&health, &metrics, "a").await;
        let none: NoDecisions = serde_json::from_slice(&body).expect("an answer");
        assert_eq!(status, 404);
        assert!(none.message.contains("n/a"), "{}", none.message);
        let decision = Decision {
            replicas: 3,
            reason: Reason::Wake,
            inputs: Inputs::default(),
            next_look: 0,
        };
        metrics.decisions.note(&Key::new("n", "a"), &decision, 7);
        let (status, body) = ask(&health, &metrics, "a").await;
        let log: DecisionLog = serde_json::from_slice(&body).expect("a log");
        assert_eq!((status, log.spans.len(), log.spans[0].from), (200, 1, 7));
        assert_eq!(
            (&*log.spans[0].reason, log.spans[0].replicas),
            ("WakeFromZero", 3)
        );
    }
}
