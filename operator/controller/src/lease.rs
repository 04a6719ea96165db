//! Leadership: one operator writes, others wait.
//!
//! # Guarantees
//! A Lease is taken over only by a replace with the `resourceVersion` that was read, so of two who try one fails. It is
//! taken over only after its record has stood unchanged for its whole duration *on the clock of the one who waits*, so clocks
//! need not agree. Whoever writes asks [`Leadership::check`] first; it fails once the Lease could have expired, measured
//! from before the last renewal was sent. A process that was stopped and wakes therefore writes nothing more, and ends.
//!
//! # Caveats
//! A request that was sent before the pause may still arrive after it. Server-side apply of what another leader applies as
//! well makes that harmless.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep, timeout};

use crate::settings::Settings;

const LEASE_DURATION: Duration = Duration::from_secs(15);
const RENEW_EVERY: Duration = Duration::from_secs(4);
const RETRY_EVERY: Duration = Duration::from_secs(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// Writes stop this long before another may begin.
const SAFETY: Duration = Duration::from_secs(3);

/// Why this process may not write.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another took it, or it could not be renewed in time.
    #[error("the lease {0} is lost")]
    Lost(String),
    /// The API server refuses leases.
    #[error("failed to use the lease {name}: {reason}")]
    Refused {
        /// The Lease.
        name: String,
        /// The API server's words.
        reason: String,
    },
}

/// Proof of leadership that runs out by itself.
#[derive(Clone)]
pub struct Leadership {
    name: String,
    identity: String,
    state: Arc<Mutex<State>>,
    stopping: Arc<AtomicBool>,
}

struct State {
    lease: Lease,
    /// From before the last renewal was sent.
    renewed_at: Instant,
}

impl Leadership {
    /// Fails once another may lead.
    pub fn check(&self) -> Result<(), LeaseError> {
        let renewed_at = self.lock().renewed_at;
        if !self.stopping.load(Ordering::Relaxed) && renewed_at.elapsed() + SAFETY < LEASE_DURATION
        {
            Ok(())
        } else {
            Err(LeaseError::Lost(self.name.clone()))
        }
    }

    /// From now on [`Self::check`] fails: the process is ending.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn api(client: &Client, settings: &Settings) -> Api<Lease> {
    Api::namespaced(client.clone(), &settings.system_namespace)
}

/// Waits until this process leads, and tells who does meanwhile.
pub async fn acquire(
    client: &Client,
    settings: &Settings,
    other_leads: impl Fn(&str),
) -> Result<Leadership, LeaseError> {
    let api = api(client, settings);
    let identity = identity(settings);
    let name = settings.lease_name.clone();
    let mut rival: Option<(Option<String>, Instant)> = None;
    tracing::info!(lease = name, identity, "waiting to lead");
    loop {
        let sent_at = Instant::now();
        match timeout(
            REQUEST_TIMEOUT,
            try_acquire(&api, &name, &identity, &mut rival, &other_leads),
        )
        .await
        {
            Ok(Ok(Some(lease))) => {
                tracing::info!(lease = name, identity, "leading");
                let state = Arc::new(Mutex::new(State {
                    lease,
                    renewed_at: sent_at,
                }));
                return Ok(Leadership {
                    name,
                    identity,
                    state,
                    stopping: Arc::default(),
                });
            }
            Ok(Ok(None)) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                return Err(LeaseError::Refused {
                    name,
                    reason: status.message,
                });
            }
            Ok(Err(error)) => tracing::warn!(%error, "failed to read or take the lease"),
            Err(_) => tracing::warn!("the API server does not answer about the lease"),
        }
        sleep(RETRY_EVERY).await;
    }
}

/// One try: creates the Lease, takes over a free or expired one, or remembers since when a rival's record stands.
async fn try_acquire(
    api: &Api<Lease>,
    name: &str,
    identity: &str,
    rival: &mut Option<(Option<String>, Instant)>,
    other_leads: impl Fn(&str),
) -> Result<Option<Lease>, kube::Error> {
    let Some(found) = api.get_opt(name).await? else {
        let fresh = Lease {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(held_by(identity, None)),
        };
        return unless_conflict(api.create(&PostParams::default(), &fresh).await);
    };
    let version = found.metadata.resource_version.clone();
    let duration = duration_of(&found);
    let holder = found
        .spec
        .as_ref()
        .and_then(|s| s.holder_identity.as_deref())
        .unwrap_or_default();
    if !holder.is_empty() && holder != identity {
        let since = match rival {
            Some((seen, since)) if *seen == version => *since,
            _ => rival.insert((version, Instant::now())).1,
        };
        if since.elapsed() < duration {
            other_leads(holder);
            return Ok(None);
        }
    }
    let taken = Lease {
        spec: Some(held_by(identity, found.spec.as_ref())),
        ..found
    };
    unless_conflict(api.replace(name, &PostParams::default(), &taken).await)
}

fn unless_conflict(result: Result<Lease, kube::Error>) -> Result<Option<Lease>, kube::Error> {
    match result {
        Ok(lease) => Ok(Some(lease)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error),
    }
}

fn duration_of(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|s| s.lease_duration_seconds);
    seconds
        .and_then(|s| u64::try_from(s).ok())
        .map_or(LEASE_DURATION, Duration::from_secs)
}

fn held_by(identity: &str, before: Option<&LeaseSpec>) -> LeaseSpec {
    let now = Some(MicroTime(Timestamp::now()));
    let same_holder = before.is_some_and(|b| b.holder_identity.as_deref() == Some(identity));
    let earlier = |pick: fn(&LeaseSpec) -> Option<i32>| before.and_then(pick).unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(LEASE_DURATION.as_secs() as i32),
        acquire_time: if same_holder {
            before.and_then(|b| b.acquire_time.clone())
        } else {
            now.clone()
        },
        renew_time: now,
        lease_transitions: Some(
            earlier(|b| b.lease_transitions) + i32::from(!same_holder && before.is_some()),
        ),
        ..LeaseSpec::default()
    }
}

/// Renews until leadership is lost, and says so.
pub async fn keep(client: &Client, settings: &Settings, leadership: &Leadership) -> LeaseError {
    let api = api(client, settings);
    loop {
        sleep(RENEW_EVERY).await;
        while let Err(error) = renew(&api, leadership).await {
            if leadership.check().is_err() {
                return LeaseError::Lost(leadership.name.clone());
            }
            if matches!(&error, Some(kube::Error::Api(status)) if status.code == 409 || status.code == 404)
            {
                return LeaseError::Lost(leadership.name.clone());
            }
            tracing::warn!(
                error = error.map(tracing::field::display),
                "failed to renew the lease"
            );
            sleep(RETRY_EVERY).await;
        }
    }
}

/// `Err(None)` when the API server does not answer.
async fn renew(api: &Api<Lease>, leadership: &Leadership) -> Result<(), Option<kube::Error>> {
    // A process that woke after its lease ran out must not renew what another may hold.
    if leadership.check().is_err() {
        return Err(None);
    }
    let sent_at = Instant::now();
    let current = leadership.lock().lease.clone();
    let next = Lease {
        spec: Some(held_by(&leadership.identity, current.spec.as_ref())),
        ..current
    };
    let replaced = timeout(
        REQUEST_TIMEOUT,
        api.replace(&leadership.name, &PostParams::default(), &next),
    )
    .await;
    let lease = match replaced {
        Ok(Ok(lease)) => lease,
        Ok(Err(error)) => return Err(Some(error)),
        Err(_) => {
            // The renewal may have arrived; go on from what the API server has, if it still names us.
            if let Ok(Ok(found)) = timeout(REQUEST_TIMEOUT, api.get(&leadership.name)).await
                && found.spec.as_ref().and_then(|s| s.holder_identity.as_ref())
                    == Some(&leadership.identity)
            {
                leadership.lock().lease = found;
            }
            return Err(None);
        }
    };
    *leadership.lock() = State {
        lease,
        renewed_at: sent_at,
    };
    Ok(())
}

/// Hands the Lease back, so that the next one need not wait for it to expire.
pub async fn release(client: &Client, settings: &Settings, leadership: &Leadership) {
    let mut lease = leadership.lock().lease.clone();
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(String::new());
    }
    let api = api(client, settings);
    let parameters = PostParams::default();
    let request = api.replace(&leadership.name, &parameters, &lease);
    if let Ok(Err(error)) = timeout(REQUEST_TIMEOUT, request).await {
        tracing::warn!(%error, "failed to release the lease; it expires by itself");
    }
}

fn identity(settings: &Settings) -> String {
    let host = || {
        std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map(|h| h.trim().to_owned())
            .unwrap_or_default()
    };
    let base = settings.identity.clone().unwrap_or_else(host);
    // Two processes on one host are two. In a container the number is always the same, and a restarted container
    // rightly goes on with the lease of the one that ended.
    format!("{base}_{}", std::process::id())
}
