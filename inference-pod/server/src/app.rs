//! What every HTTP handler sees: the phase the pod is in, its names, its metrics and its way out.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pagoda_crds::wire::ModelInfo;
use pagoda_engine_core::{Limits, LimitsError};
use pagoda_model::Pooling;

use crate::drain::Drain;
use crate::engine::{EngineEnd, EngineHandle, EngineSetup};
use crate::language::Language;
use crate::load::Loaded;
use crate::metrics::Metrics;

/// Bytes of a request's body at most, unless configured otherwise.
pub const DEFAULT_BODY_BYTES: usize = 4 << 20;

/// A turn of the engine's loop that takes longer than this is taken for a wedged engine. A step on a slow CPU may
/// take many seconds; killing a pod that works is worse than noticing late that one does not.
pub const WEDGED_AFTER: Duration = Duration::from_mins(2);

/// A loaded model and the engine that runs it.
#[derive(Debug)]
pub struct Served {
    /// The engine.
    pub engine: EngineHandle,
    /// Text to tokens.
    pub language: Arc<Language>,
    /// What fits.
    pub limits: Limits,
    /// Facts for `/v1/models`.
    pub info: ModelInfo,
    /// How it makes embeddings; `None` for a model that was not made for that.
    pub pooling: Option<Pooling>,
    /// Seconds since 1970 at which it became ready.
    pub created: u64,
}

/// State of the pod.
#[derive(Debug)]
pub struct App {
    /// Names that requests may use.
    pub names: Vec<String>,
    /// What is measured.
    pub metrics: Arc<Metrics>,
    /// The way out.
    pub drain: Drain,
    /// Bytes of a body at most.
    pub body_bytes: usize,
    /// Age of the engine's heartbeat at which it counts as wedged.
    pub wedged_after: Duration,
    served: OnceLock<Served>,
    loaded_percent: AtomicU8,
}

impl App {
    /// A pod that has not loaded its model. `names` must not be empty; the first one labels the metrics.
    pub fn loading(names: Vec<String>) -> Self {
        let metrics = Arc::new(Metrics::new(names.first().map_or("", String::as_str)));
        Self {
            names,
            metrics,
            drain: Drain::default(),
            body_bytes: DEFAULT_BODY_BYTES,
            wedged_after: WEDGED_AFTER,
            served: OnceLock::new(),
            loaded_percent: AtomicU8::new(0),
        }
    }

    /// How much of the model is loaded, in percent.
    pub fn set_loaded_percent(&self, percent: u8) {
        self.loaded_percent
            .store(percent.min(100), Ordering::Relaxed);
    }

    /// Starts the engine of a loaded model and serves it from now on. Resolves when the engine's thread ends.
    pub fn start(&self, loaded: Loaded, created: u64) -> Result<EngineEnd, LimitsError> {
        let Loaded {
            executor,
            language,
            limits,
            policy,
            info,
        } = loaded;
        let took = Duration::from_millis(info.load_milliseconds);
        self.metrics.set_engine(
            &info.executor,
            info.simulated,
            limits.block_tokens,
            limits.block_count,
            took,
        );
        let pooling = executor.info().pooling;
        let setup = EngineSetup {
            executor,
            language: Arc::clone(&language),
            limits,
            policy,
            metrics: Arc::clone(&self.metrics),
        };
        let (engine, end) = setup.start()?;
        // A pod loads one model in its life; a second start would leave the first in place.
        let _ = self.served.set(Served {
            engine,
            language,
            limits,
            info,
            pooling,
            created,
        });
        Ok(end)
    }

    /// The model, or how much of it is loaded in percent.
    pub fn served(&self) -> Result<&Served, u8> {
        self.served
            .get()
            .ok_or_else(|| self.loaded_percent.load(Ordering::Relaxed))
    }
}
