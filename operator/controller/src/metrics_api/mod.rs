//! The operator as a metrics server: `external.metrics.k8s.io/v1beta1` and `custom.metrics.k8s.io/v1beta2`, for people who keep
//! an HPA of their own. It reads there what Pagoda's own rule sees.
//!
//! Requests come from the API server's aggregation layer, which says who asks and proves with a certificate that it is the
//! one; whether they may is asked back ([`authorization`]). Only the operator that leads has figures, so it alone stands behind
//! the Service, by an EndpointSlice that it writes itself ([`registration`]); a failover moves it. Certificates are our own
//! and renewed in time ([`certificates`]).
//!
//! # Guarantees
//! A figure that is absent or stale has no item in an answer, so an HPA holds; it is never zero. Connections, requests, heads
//! and times are bounded. A failure here costs HPAs their figures, and Pagoda's own services nothing.

pub mod api;
pub mod authentication;
pub mod authorization;
pub mod certificates;
pub mod discovery;
pub mod listener;
pub mod refusal;
pub mod registration;
pub mod selector;
pub mod served;
pub mod server;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};

use crate::context::Context;
use api::Sources;
use authorization::Authorizer;
use discovery::Api;
use registration::{Place, RegistrationError};
use server::Terms;

/// Between two looks at what the API server must know, and at what we must know of it.
const LOOK: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(5);

/// Serves for as long as the process leads, and never ends: what fails is told and tried again.
pub async fn run(context: Arc<Context>) {
    let settings = &context.settings;
    tokio::join!(
        async {
            if let Some(listen) = settings.metrics_listen {
                serve(&context, listen).await;
            }
        },
        async {
            if let Some(place) = place(&context) {
                stand(&context, &place).await;
            }
        },
    );
    std::future::pending::<()>().await;
}

async fn serve(context: &Context, listen: SocketAddr) {
    let reached = context.settings.pod_ip;
    let listener = retried("listen for the metrics APIs", || {
        listener::bind(listen, reached)
    })
    .await;
    let (first, mut seen) = retried("serve the metrics APIs", || look(context, None)).await;
    let terms = watch::Sender::new(Arc::new(first));
    let sources = Arc::new(Sources {
        signals: context.signals.clone(),
        authorizer: Authorizer::new(context.client.clone()),
    });
    tracing::info!(%listen, "serving the metrics APIs");
    let served = server::serve(listener, terms.subscribe(), api::router(sources));
    let looks = async {
        loop {
            sleep(LOOK).await;
            match look(context, Some(&seen)).await {
                Ok((now, what)) if what != seen => {
                    terms.send_replace(Arc::new(now));
                    seen = what;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "failed to look after the metrics APIs"),
            }
        }
    };
    tokio::join!(served, looks);
}

/// What terms are made of.
type Seen = (certificates::Keys, authentication::FrontProxy);

/// Certificates, trust, and what the API server believes, brought up to date.
async fn look(
    context: &Context,
    before: Option<&Seen>,
) -> Result<(Terms, Seen), RegistrationError> {
    let (client, namespace) = (&context.client, &context.settings.system_namespace);
    let proxy = registration::trust(client).await?;
    match (context.leadership.check(), before) {
        (Ok(()), _) => {}
        (Err(_), Some((keys, _))) => return terms(keys.clone(), proxy),
        (Err(lost), None) => return Err(lost.into()),
    }
    let keys = registration::keys(client, namespace).await?;
    for api in Api::ALL {
        registration::announce(client, api, keys.bundle()).await?;
    }
    terms(keys, proxy)
}

fn terms(
    keys: certificates::Keys,
    proxy: authentication::FrontProxy,
) -> Result<(Terms, Seen), RegistrationError> {
    let terms = Terms {
        tls: Arc::new(keys.server(proxy.verifier()?)?),
        proxy: Arc::new(proxy.clone()),
    };
    Ok((terms, (keys, proxy)))
}

/// Where others find what is served; none when nothing is, or nobody said where.
fn place(context: &Context) -> Option<Place> {
    let settings = &context.settings;
    let ports: Vec<_> = [
        (registration::PORT_HTTPS, settings.metrics_listen),
        (registration::PORT_GRPC, settings.keda_listen),
    ]
    .into_iter()
    .filter_map(|(name, listen)| Some((name, listen?.port())))
    .collect();
    if ports.is_empty() {
        return None;
    }
    if settings.pod_ip.is_none() {
        tracing::warn!(
            "nobody will find the metrics APIs: POD_IP does not say where this process answers"
        );
    }
    let address = settings.pod_ip?;
    Some(Place { address, ports })
}

async fn stand(context: &Context, place: &Place) {
    let (client, namespace) = (&context.client, &context.settings.system_namespace);
    loop {
        retried("be found by the API server and KEDA", async || {
            context.leadership.check()?;
            registration::stand(client, namespace, place).await
        })
        .await;
        sleep(LOOK).await;
    }
}

/// Tries until it succeeds, and says so only when the reason changes.
pub async fn retried<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
    what: &str,
    mut attempt: impl FnMut() -> F,
) -> T {
    let mut told = String::new();
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => {
                let reason = error.to_string();
                if reason != told {
                    tracing::warn!(reason, "failed to {what}; it is tried again and again");
                    told = reason;
                }
                sleep(RETRY).await;
            }
        }
    }
}
