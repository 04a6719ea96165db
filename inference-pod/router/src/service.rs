//! A service as it runs in this process: its pods with their loads, and the requests that wait.
//!
//! Every count is kept by a guard whose drop takes it back ([`Placed`], [`Held`], [`Wave`]), so that no path,
//! a client's leaving included, can forget one.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::uri::Authority;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::attempt::Attempt;
use crate::core::choose::{PodView, RequestView};
use crate::core::hold::{HoldQueue, Limits, Refusal, Ticket, releasable};
use crate::core::routes::{Endpoint, ServiceKey, Settings};
use crate::core::traffic::{self, Share, Traffic};
use crate::metrics::{Metrics, RevisionMetrics, ServiceMetrics};

/// One pod and its load.
#[derive(Debug)]
pub struct Pod {
    /// Where and what it is.
    pub endpoint: Endpoint,
    /// Its address as the authority of a URI.
    pub authority: Authority,
    /// Its name, or its address if it has none.
    pub label: Arc<str>,
    in_flight: AtomicUsize,
    chosen: Counter,
}

impl Pod {
    fn new(endpoint: Endpoint, metrics: &ServiceMetrics) -> Self {
        let address = endpoint.address.to_string();
        let label: Arc<str> = if endpoint.pod_name.is_empty() {
            address.as_str().into()
        } else {
            endpoint.pod_name.as_str().into()
        };
        // A socket address is always a valid authority: digits, dots, colons and, for IPv6, brackets.
        let authority =
            Authority::try_from(address).unwrap_or_else(|_| Authority::from_static("0.0.0.0:0"));
        let chosen = metrics.chosen(&label);
        let in_flight = AtomicUsize::new(0);
        Self {
            endpoint,
            authority,
            label,
            in_flight,
            chosen,
        }
    }
}

impl PodView for Pod {
    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct State {
    settings: Settings,
    pods: Vec<Arc<Pod>>,
    /// Of each pod the share of the traffic that it belongs to.
    groups: Vec<Option<usize>>,
    /// Of each share its metrics.
    revisions: Vec<Arc<RevisionMetrics>>,
}

impl State {
    fn new(settings: Settings, pods: Vec<Arc<Pod>>, revisions: Vec<Arc<RevisionMetrics>>) -> Self {
        let traffic = &settings.traffic;
        let groups = pods
            .iter()
            .map(|pod| traffic.share_of(&pod.endpoint.pod_name));
        Self {
            groups: groups.collect(),
            settings,
            pods,
            revisions,
        }
    }

    fn choose(&self, tried: &[usize], point: u32, now: Duration) -> Option<usize> {
        let (policy, rng) = (self.settings.policy, &mut rand::rng());
        let traffic = &self.settings.traffic;
        if traffic.shares().is_empty() {
            return policy.choose(RequestView { tried }, &self.pods, now, rng);
        }
        let candidates = traffic::candidates(&self.groups, traffic.drawn(point), tried);
        let pods: Vec<_> = candidates.iter().map(|index| &self.pods[*index]).collect();
        let chosen = policy.choose(RequestView::default(), &pods, now, rng)?;
        Some(candidates[chosen])
    }
}

/// Why a service takes no more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Closed {
    /// The gateway ends.
    ShuttingDown = 1,
    /// Its InferenceService has been deleted.
    Deleted = 2,
}

/// How holding a request ended without a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldEnd {
    /// It could not wait at all.
    Refused(Refusal),
    /// Its deadline passed.
    Deadline,
    /// The service takes no more requests.
    Closed(Closed),
}

/// One service. See the module's documentation.
#[derive(Debug)]
pub struct Service {
    /// Which one.
    pub key: ServiceKey,
    /// Its metrics.
    pub metrics: ServiceMetrics,
    state: ArcSwap<State>,
    pods_changed: watch::Sender<()>,
    queue: Mutex<HoldQueue<oneshot::Sender<Wave>>>,
    queued: AtomicUsize,
    let_go: AtomicUsize,
    closed: AtomicU8,
    hold_max_bytes: usize,
    started: Instant,
}

impl Service {
    /// A service without pods.
    pub fn new(
        key: ServiceKey,
        mut settings: Settings,
        hold_max_bytes: usize,
        metrics: &Arc<Metrics>,
    ) -> Arc<Self> {
        // The first update brings pods, and with them revisions that share the traffic.
        settings.traffic = Traffic::default();
        Arc::new(Self {
            metrics: metrics.service(&key),
            key,
            state: ArcSwap::from_pointee(State::new(settings, Vec::new(), Vec::new())),
            pods_changed: watch::Sender::new(()),
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            let_go: AtomicUsize::new(0),
            closed: AtomicU8::new(0),
            hold_max_bytes,
            started: Instant::now(),
        })
    }

    /// Takes over new settings and endpoints; pods that stay keep their loads. Held requests go if they can.
    ///
    /// Callers take turns (the directory's lock), so no update is lost.
    pub fn update(self: &Arc<Self>, settings: Settings, endpoints: Vec<Endpoint>) {
        let before = self.state.load_full();
        let known: HashMap<&Endpoint, &Arc<Pod>> =
            before.pods.iter().map(|pod| (&pod.endpoint, pod)).collect();
        let pod = |endpoint: Endpoint| match known.get(&endpoint) {
            Some(pod) => Arc::clone(pod),
            None => Arc::new(Pod::new(endpoint, &self.metrics)),
        };
        let pods: Vec<_> = endpoints.into_iter().map(pod).collect();
        self.metrics.ready_pods.set(pods.len() as i64);
        self.forget_pods_that_left(&before.pods, &pods);
        let revisions = self.revisions_of(&settings.traffic, &before);
        self.state
            .store(Arc::new(State::new(settings, pods, revisions)));
        self.pods_changed.send_replace(());
        self.pump();
    }

    /// The metrics of the revisions that share the traffic: those that stay count on, those that do not end.
    fn revisions_of(&self, traffic: &Traffic, before: &State) -> Vec<Arc<RevisionMetrics>> {
        let shares = traffic.shares();
        let known = before
            .settings
            .traffic
            .shares()
            .iter()
            .zip(&before.revisions);
        let stays = |revision: &str| shares.iter().any(|share| &*share.revision == revision);
        for (_, gone) in known.clone().filter(|(share, _)| !stays(&share.revision)) {
            gone.forget();
        }
        let metrics = |share: &Share| {
            let same = |known: &(&Share, &Arc<RevisionMetrics>)| known.0.revision == share.revision;
            match known.clone().find(same) {
                Some((_, metrics)) => Arc::clone(metrics),
                None => Arc::new(self.metrics.revision(&share.revision)),
            }
        };
        shares.iter().map(metrics).collect()
    }

    fn forget_pods_that_left(&self, before: &[Arc<Pod>], now: &[Arc<Pod>]) {
        let staying: HashSet<&str> = now.iter().map(|pod| &*pod.label).collect();
        let left = before.iter().filter(|pod| !staying.contains(&*pod.label));
        left.for_each(|pod| self.metrics.forget_pod(&pod.label));
    }

    /// Lets nobody wait from now on; whoever waits learns why.
    pub fn close(&self, why: Closed) {
        self.closed.store(why as u8, Ordering::Release);
        let waiting = self.lock_queue(HoldQueue::close);
        drop(waiting);
    }

    /// Pods that may be given requests.
    pub fn ready_pods(&self) -> usize {
        self.state.load().pods.len()
    }

    /// Ready pods that are not among `tried`.
    pub fn untried(&self, tried: &[Arc<Pod>]) -> usize {
        let state = self.state.load();
        state
            .pods
            .iter()
            .filter(|pod| !tried.iter().any(|tried| Arc::ptr_eq(tried, pod)))
            .count()
    }

    /// How long a request may be held.
    pub fn hold_timeout(&self) -> Duration {
        self.state.load().settings.hold_timeout
    }

    /// After what time a held request for a stream is answered early; never without it.
    pub fn early_stream(&self) -> Option<Duration> {
        self.state.load().settings.early_stream
    }

    /// A client has seen the first of its answer, `after` its request came, if it asked for a stream.
    pub fn saw_first_token(&self, after: Duration) {
        if self.state.load().settings.tells_ttft {
            self.metrics.ttft.observe(after.as_secs_f64());
        }
    }

    /// Chooses a pod that is not among `tried` and counts the request there. `point`, of
    /// [`traffic::POINTS`], is the request's own and decides which revision it goes to during a canary.
    pub fn place(self: &Arc<Self>, tried: &[Arc<Pod>], point: u32) -> Option<Placed> {
        let state = self.state.load();
        let tried = tried_indices(&state.pods, tried);
        let chosen = state.choose(&tried, point, self.started.elapsed())?;
        let revision = state.groups[chosen].and_then(|share| state.revisions.get(share));
        Some(Placed::new(self, &state.pods[chosen], revision.cloned()))
    }

    /// Waits until a pod can take a request of `bytes`: at once when there is one and nobody waits already.
    ///
    /// The wave returned is dropped once the request is placed; it keeps its share of the pods'
    /// capacity meanwhile. A request whose deadline passes while pods are ready goes to them all the same.
    pub async fn admit(
        self: &Arc<Self>,
        bytes: usize,
        deadline: Instant,
    ) -> Result<Option<Wave>, HoldEnd> {
        if self.ready_pods() > 0 && self.queued.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let mut held = self.enter_hold(bytes)?;
        let woken = held.enqueue();
        // A pod may have become ready between the look above and now.
        self.pump();
        match timeout_at(deadline, woken).await {
            Ok(Ok(wave)) => Ok(Some(wave)),
            Ok(Err(_)) => Err(HoldEnd::Closed(self.closed_because())),
            Err(_) if self.ready_pods() > 0 => Ok(None),
            Err(_) => Err(HoldEnd::Deadline),
        }
    }

    /// Waits for `wait`, or until there is a pod that is not among `tried`; counted as held meanwhile.
    pub async fn wait_for_other_pod(
        self: &Arc<Self>,
        bytes: usize,
        wait: Duration,
        tried: &[Arc<Pod>],
    ) -> Result<(), HoldEnd> {
        let _held = self.enter_hold(bytes)?;
        let mut changes = self.pods_changed.subscribe();
        let other = async { while self.untried(tried) == 0 && changes.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(wait, other).await;
        Ok(())
    }

    fn enter_hold(self: &Arc<Self>, bytes: usize) -> Result<Held, HoldEnd> {
        let max_requests = self.state.load().settings.hold_max_requests;
        let limits = Limits {
            max_requests,
            max_bytes: self.hold_max_bytes,
        };
        self.lock_queue(|queue| queue.admit(bytes, limits))
            .map_err(|refusal| match refusal {
                Refusal::Closed => HoldEnd::Closed(self.closed_because()),
                bound => HoldEnd::Refused(bound),
            })?;
        self.metrics.held.inc();
        Ok(Held {
            service: Arc::clone(self),
            ticket: None,
            bytes,
            since: Instant::now(),
        })
    }

    fn closed_because(&self) -> Closed {
        if self.closed.load(Ordering::Acquire) == Closed::Deleted as u8 {
            Closed::Deleted
        } else {
            Closed::ShuttingDown
        }
    }

    /// Lets go of as many waiting requests as the pods have room for.
    fn pump(self: &Arc<Self>) {
        while self.queued.load(Ordering::Relaxed) > 0 {
            let woken = self.next_wave();
            if woken.is_empty() {
                return;
            }
            for wake in woken {
                let wave = Wave::new(self);
                if let Err(unwanted) = wake.send(wave) {
                    // Its client has just left: the next round of this loop gives its place to another.
                    unwanted.give_back();
                }
            }
        }
    }

    fn next_wave(&self) -> Vec<oneshot::Sender<Wave>> {
        let state = self.state.load();
        let (ready, capacity) = (state.pods.len(), state.settings.pod_capacity);
        self.lock_queue(|queue| {
            let in_flight = usize::try_from(self.metrics.in_flight.get()).unwrap_or(0)
                + self.let_go.load(Ordering::Acquire);
            let wave = releasable(queue.waiting(), ready, in_flight, capacity);
            let woken: Vec<_> = std::iter::from_fn(|| queue.release()).take(wave).collect();
            // Counted inside the lock, or two pumps at once would each fill the same room.
            self.let_go.fetch_add(woken.len(), Ordering::AcqRel);
            woken
        })
    }

    fn lock_queue<T>(&self, act: impl FnOnce(&mut HoldQueue<oneshot::Sender<Wave>>) -> T) -> T {
        let mut queue: MutexGuard<'_, _> =
            self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut queue);
        self.queued.store(queue.waiting(), Ordering::Relaxed);
        result
    }
}

fn tried_indices(pods: &[Arc<Pod>], tried: &[Arc<Pod>]) -> Vec<usize> {
    let index = |tried: &Arc<Pod>| pods.iter().position(|pod| Arc::ptr_eq(pod, tried));
    tried.iter().filter_map(index).collect()
}

/// A request counted at a pod, until dropped.
#[derive(Debug)]
pub struct Placed {
    service: Arc<Service>,
    /// The pod.
    pub pod: Arc<Pod>,
    /// What this attempt says about the pod's revision.
    pub attempt: Attempt,
}

impl Placed {
    fn new(service: &Arc<Service>, pod: &Arc<Pod>, revision: Option<Arc<RevisionMetrics>>) -> Self {
        pod.in_flight.fetch_add(1, Ordering::Relaxed);
        pod.chosen.inc();
        service.metrics.in_flight.inc();
        Self {
            service: Arc::clone(service),
            pod: Arc::clone(pod),
            attempt: Attempt::begin(revision),
        }
    }

    /// The service the pod belongs to.
    pub fn service_key(&self) -> &ServiceKey {
        &self.service.key
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.pod.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.service.metrics.in_flight.dec();
        self.service.pump();
    }
}

/// A held request let go and not yet at a pod; keeps its share of the pods' capacity until dropped.
#[derive(Debug)]
pub struct Wave {
    service: Option<Arc<Service>>,
}

impl Wave {
    /// Takes over one of the places that `next_wave` has counted.
    fn new(service: &Arc<Service>) -> Self {
        Self {
            service: Some(Arc::clone(service)),
        }
    }

    fn give_back(mut self) {
        if let Some(service) = self.service.take() {
            service.let_go.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Wave {
    fn drop(&mut self) {
        if let Some(service) = self.service.take() {
            service.let_go.fetch_sub(1, Ordering::AcqRel);
            service.pump();
        }
    }
}

/// A request's place among the held ones, until dropped.
#[derive(Debug)]
struct Held {
    service: Arc<Service>,
    ticket: Option<Ticket>,
    bytes: usize,
    since: Instant,
}

impl Held {
    fn enqueue(&mut self) -> oneshot::Receiver<Wave> {
        let (wake, woken) = oneshot::channel();
        self.ticket = Some(self.service.lock_queue(|queue| queue.enqueue(wake)));
        woken
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.service
            .lock_queue(|queue| queue.leave(self.ticket, self.bytes));
        self.service.metrics.held.dec();
        self.service
            .metrics
            .hold
            .observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
