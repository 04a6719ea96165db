//! What to serve and how, from the operator's `engine.json` or from the command line, checked once.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagoda_crds::wire::{EngineConfig, ExecutorKind, Guesses, KvType, SimulatedConfig, defaults};
use pagoda_engine_core::{KeySeed, Policy, Speculation};
use pagoda_model::KvElement;

use crate::failure::Fatal;

/// Sequences that may wait. Their prompts lie in memory: at 4,096 tokens each that is 16 MiB.
pub const MAX_WAITING: usize = 1024;

/// Which executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The CPU, with this model file.
    Cpu(PathBuf),
    /// None: timings only.
    Simulated(SimulatedConfig),
}

/// How large the engine is.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSize {
    /// Longest sequence; the model may lower it. `None` for the model's own.
    pub max_context_tokens: Option<usize>,
    /// Sequences at once.
    pub max_sequences: usize,
    /// Tokens of a step.
    pub step_tokens: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// KV memory; `None` for a share of what is free.
    pub kv_bytes: Option<u64>,
    /// How keys and values are stored.
    pub kv_element: KvElement,
    /// How the scheduler decides.
    pub policy: Policy,
    /// Whether a simulated executor keeps the KV blocks of prompts that begin alike, as others do.
    pub simulated_prefix_cache: bool,
}

impl Default for EngineSize {
    fn default() -> Self {
        Self {
            max_context_tokens: Some(defaults::MAX_CONTEXT_TOKENS as usize),
            max_sequences: defaults::MAX_SEQUENCES as usize,
            step_tokens: defaults::STEP_TOKENS as usize,
            block_tokens: defaults::BLOCK_TOKENS as usize,
            kv_bytes: None,
            kv_element: KvElement::default(),
            policy: Policy::default(),
            simulated_prefix_cache: false,
        }
    }
}

impl EngineSize {
    fn check(&self) -> Result<(), Fatal> {
        let sizes = [
            ("maxContextTokens", self.max_context_tokens.unwrap_or(1)),
            ("maxSequences", self.max_sequences),
            ("stepTokens", self.step_tokens),
            ("blockTokens", self.block_tokens),
        ];
        if let Some((name, _)) = sizes.into_iter().find(|(_, value)| *value == 0) {
            return Err(Fatal::invalid_config(format!("{name} must be at least 1")));
        }
        if self.step_tokens < self.max_sequences {
            return Err(Fatal::invalid_config(format!(
                "stepTokens is {}, but {} sequences (maxSequences) need a token each: raise stepTokens or lower maxSequences",
                self.step_tokens, self.max_sequences
            )));
        }
        Ok(())
    }
}

/// As configured, with the same keys of blocks in all pods of a service.
fn policy_of(config: &EngineConfig) -> Policy {
    let seed = KeySeed::of_name(&format!("{}/{}", config.namespace, config.service));
    Policy {
        prefix_cache: config.prefix_cache.then_some(seed),
        speculation: match config.guesses {
            Guesses::Auto => Speculation::Auto,
            Guesses::Off => Speculation::Off,
        },
        ..Policy::default()
    }
}

/// Everything `serve` needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeConfig {
    /// Names that requests may use; the first labels metrics.
    pub names: Vec<String>,
    /// Where to listen.
    pub listen: SocketAddr,
    /// What computes.
    pub backend: Backend,
    /// How large.
    pub size: EngineSize,
    /// Time for open requests after SIGTERM.
    pub drain: Duration,
}

impl ServeConfig {
    /// Reads and checks the operator's file.
    pub fn read(path: &Path) -> Result<Self, Fatal> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Fatal::invalid_config(format!("cannot read {}: {error}", path.display()))
        })?;
        let config: EngineConfig = serde_json::from_str(&text).map_err(|error| {
            Fatal::invalid_config(format!(
                "{} is not a valid configuration: {error}",
                path.display()
            ))
        })?;
        Self::from_engine_config(config)
    }

    /// Checks what the operator wrote.
    pub fn from_engine_config(config: EngineConfig) -> Result<Self, Fatal> {
        let policy = policy_of(&config);
        let backend = match (config.executor, config.model_path) {
            (ExecutorKind::Simulated, _) => {
                Backend::Simulated(config.simulated.unwrap_or_default())
            }
            (ExecutorKind::Auto | ExecutorKind::Cpu, Some(path)) => Backend::Cpu(path.into()),
            (ExecutorKind::Auto | ExecutorKind::Cpu, None) => {
                return Err(Fatal::invalid_config(
                    "modelPath is missing: only the simulated executor needs no model",
                ));
            }
        };
        let listen = config.listen.parse();
        let listen = listen.map_err(|_| {
            Fatal::invalid_config(format!(
                "listen is {:?}, which is not IP:PORT",
                config.listen
            ))
        })?;
        let size = EngineSize {
            max_context_tokens: Some(config.max_context_tokens as usize),
            max_sequences: config.max_sequences as usize,
            step_tokens: config.step_tokens as usize,
            block_tokens: config.block_tokens as usize,
            kv_bytes: Some(config.kv_bytes),
            kv_element: match config.kv_type {
                KvType::F16 => KvElement::F16,
                KvType::Int8 => KvElement::Int8Group32,
            },
            policy,
            simulated_prefix_cache: false,
        };
        let drain = Duration::from_secs(config.drain_seconds.into());
        // A gateway passes a request on as it came, and `namespace/service` is how a client names one service among many.
        let full_name = format!("{}/{}", config.namespace, config.service);
        let mut names = config.names;
        let is_one_of_many = !config.namespace.is_empty() && !config.service.is_empty();
        if !names.is_empty() && is_one_of_many && !names.contains(&full_name) {
            names.push(full_name);
        }
        Self {
            names,
            listen,
            backend,
            size,
            drain,
        }
        .checked()
    }

    /// Itself, if it can work.
    pub fn checked(self) -> Result<Self, Fatal> {
        self.size.check()?;
        if self.names.first().is_none_or(String::is_empty) {
            return Err(Fatal::invalid_config(
                "names is empty: the model needs a name that clients ask for",
            ));
        }
        if let Backend::Simulated(simulated) = &self.backend
            && simulated.prefill_tokens_per_second == 0
        {
            return Err(Fatal::invalid_config(
                "simulated.prefillTokensPerSecond must be at least 1",
            ));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parse(change: &Value) -> Result<ServeConfig, Fatal> {
        let mut config = json!({
            "names": ["m"], "namespace": "ns", "service": "svc", "modelPath": "/model/model.gguf", "listen": "0.0.0.0:8000",
            "executor": "auto", "maxContextTokens": 4096, "maxSequences": 8, "stepTokens": 256, "blockTokens": 16,
            "kvBytes": 1_048_576, "drainSeconds": 60,
        });
        for (key, value) in change.as_object().unwrap() {
            config[key] = value.clone();
        }
        ServeConfig::from_engine_config(serde_json::from_value(config).unwrap())
    }

    #[test]
    fn a_service_also_goes_by_its_full_name() {
        let config = parse(&json!({})).unwrap();
        assert_eq!(config.names, ["m", "ns/svc"]);
        assert_eq!(config.backend, Backend::Cpu("/model/model.gguf".into()));
        assert_eq!(config.drain, Duration::from_mins(1));
    }

    #[test]
    fn configurations_that_cannot_work_say_what_to_change() {
        let cases = [
            (json!({"modelPath": null}), "modelPath is missing"),
            (json!({"listen": "localhost"}), "not IP:PORT"),
            (json!({"names": []}), "names is empty"),
            (json!({"stepTokens": 4}), "raise stepTokens"),
            (
                json!({"maxSequences": 0}),
                "maxSequences must be at least 1",
            ),
        ];
        for (change, expected) in cases {
            let error = parse(&change).unwrap_err();
            assert!(error.message.contains(expected), "{}", error.message);
        }
    }

    #[test]
    fn keys_values_and_guesses_are_as_the_service_says() {
        let size = parse(&json!({})).unwrap().size;
        assert_eq!(size.kv_element, KvElement::F16);
        assert!(size.policy.prefix_cache.is_some());
        assert_eq!(size.policy.speculation, Speculation::Auto);
        let change = json!({"kvType": "int8", "prefixCache": false, "guesses": "off"});
        let size = parse(&change).unwrap().size;
        assert_eq!(size.kv_element, KvElement::Int8Group32);
        assert_eq!(size.policy.prefix_cache, None);
        assert_eq!(size.policy.speculation, Speculation::Off);
    }

    #[test]
    fn a_simulated_engine_needs_no_model_and_has_default_timings() {
        let config = parse(&json!({"executor": "simulated", "modelPath": null})).unwrap();
        assert_eq!(
            config.backend,
            Backend::Simulated(SimulatedConfig::default())
        );
    }
}
