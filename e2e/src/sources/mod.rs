//! Stand-ins for whom the autoscaler asks: thousands of pods and any number of gateways, each at an address of its own, whose
//! figures a benchmark or a test sets and whose faults it chooses.
//!
//! They live where every address of a cluster is local (see [`crate::sandbox`]), so one listener answers for all pods and one
//! for all gateways. Pods speak the text of the real engine, taken from one that runs; what a service's load is, and who of
//! its pods answers how, is state of this process.

mod engine_text;
mod exposition;
mod fault;
mod follow;
mod http;
mod load;

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use engine_text::EngineTexts;
pub use fault::Fault;
pub use http::{Answer, serve};
pub use load::ServiceLoad;

/// The engine's port, and the gateway's for its metrics.
const POD_PORT: u16 = 8000;
const GATEWAY_PORT: u16 = 8081;
const BIND_PATIENCE: Duration = Duration::from_secs(5);
/// Gaps longer than this count as this long, in microseconds.
const LONGEST_GAP_MICROS: u64 = 120_000_000;

/// Namespace and name of a service.
pub type Key = (String, String);

/// Answers until dropped.
pub struct Sources {
    state: Arc<State>,
    tasks: Vec<JoinHandle<()>>,
}

struct State {
    texts: EngineTexts,
    services: Mutex<BTreeMap<Key, Arc<ServiceLoad>>>,
    /// Whose pod has an address.
    pods: RwLock<HashMap<Ipv4Addr, Arc<ServiceLoad>>>,
    /// Gateways that tell of one namespace alone. Every other address tells of all.
    gateways: Mutex<HashMap<Ipv4Addr, GatewayState>>,
    asked: Mutex<Asked>,
}

#[derive(Clone)]
struct GatewayState {
    namespace: String,
    fault: Fault,
}

/// When pods were asked.
struct Asked {
    last: HashMap<Ipv4Addr, Instant>,
    gaps_micros: Histogram<u64>,
}

impl Sources {
    /// Takes the text of the engine `program` and begins to answer. Ports that an earlier value of this process held are
    /// waited for.
    pub async fn start(program: &Path) -> Result<Self> {
        let state = Arc::new(State {
            texts: EngineTexts::of(program).await?,
            services: Mutex::default(),
            pods: RwLock::default(),
            gateways: Mutex::default(),
            asked: Mutex::new(Asked {
                last: HashMap::new(),
                gaps_micros: Histogram::new_with_max(LONGEST_GAP_MICROS, 3)?,
            }),
        });
        let (of_pods, of_gateways) = (state.clone(), state.clone());
        let tasks = vec![
            serve(listen(POD_PORT).await?, move |address, path| {
                of_pods.answer_of_pod(address, path)
            }),
            serve(listen(GATEWAY_PORT).await?, move |address, path| {
                of_gateways.answer_of_gateway(address, path)
            }),
        ];
        Ok(Self { state, tasks })
    }

    /// From now on each ready pod of an InferenceService carries its share of that service's load.
    pub fn follow(&mut self, client: kube::Client) {
        self.tasks
            .push(tokio::spawn(follow::pods(client, self.state.clone())));
    }

    /// The load of a service; none as long as nobody sets one.
    pub fn service(&self, namespace: &str, name: &str) -> Arc<ServiceLoad> {
        self.state.service(namespace, name)
    }

    /// From now on the gateway at `address` tells of the services of `namespace` and of no others.
    pub fn add_gateway(&self, address: Ipv4Addr, namespace: &str) {
        let gateway = GatewayState {
            namespace: namespace.to_owned(),
            fault: Fault::None,
        };
        lock(&self.state.gateways).insert(address, gateway);
    }

    /// What is wrong with a gateway that was added.
    pub fn set_gateway_fault(&self, address: Ipv4Addr, fault: Fault) {
        if let Some(gateway) = lock(&self.state.gateways).get_mut(&address) {
            gateway.fault = fault;
        }
    }

    /// Microseconds between two questions to the same pod since the last call, over all pods.
    pub fn take_gaps(&self) -> Histogram<u64> {
        let mut asked = lock(&self.state.asked);
        let empty = Histogram::new_from(&asked.gaps_micros);
        std::mem::replace(&mut asked.gaps_micros, empty)
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl State {
    fn service(&self, namespace: &str, name: &str) -> Arc<ServiceLoad> {
        let key = (namespace.to_owned(), name.to_owned());
        lock(&self.services).entry(key).or_default().clone()
    }

    fn answer_of_pod(&self, address: Ipv4Addr, path: &str) -> Answer {
        if path == "/v1/models" {
            return Answer::json(self.texts.models());
        }
        let Some(text) = self.texts.metrics(path) else {
            return Answer::not_found();
        };
        self.note_asked(address);
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        let service = pods.get(&address).cloned();
        drop(pods);
        let (counts, fault) = service
            .map(|service| service.pod(address, Instant::now()))
            .unwrap_or_default();
        fault.answer(|counted| text.render(&counts, counted))
    }

    fn answer_of_gateway(&self, address: Ipv4Addr, path: &str) -> Answer {
        if !path.starts_with("/metrics") {
            return Answer::not_found();
        }
        let gateway = lock(&self.gateways).get(&address).cloned();
        let (namespace, fault) = gateway.map_or((None, Fault::None), |gateway| {
            (Some(gateway.namespace), gateway.fault)
        });
        let services: Vec<(Key, Arc<ServiceLoad>)> = lock(&self.services)
            .iter()
            .filter(|((of, _), _)| namespace.as_ref().is_none_or(|wanted| wanted == of))
            .map(|(key, load)| (key.clone(), load.clone()))
            .collect();
        fault.answer(|counted| exposition::of_gateway(&services, Instant::now(), counted))
    }

    fn note_asked(&self, address: Ipv4Addr) {
        let now = Instant::now();
        let mut asked = lock(&self.asked);
        if let Some(before) = asked.last.insert(address, now) {
            let micros = u64::try_from((now - before).as_micros()).unwrap_or(u64::MAX);
            asked.gaps_micros.saturating_record(micros.max(1));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens on all addresses. The listener of an earlier value of this process ends a moment after it, and is waited for.
pub async fn listen(port: u16) -> Result<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let began = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse
                    && began.elapsed() < BIND_PATIENCE =>
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            bound => {
                return bound.with_context(|| {
                    format!("cannot stand in for pods and gateways at {address}")
                });
            }
        }
    }
}
