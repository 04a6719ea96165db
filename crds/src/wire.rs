//! What operator and pods say to each other: the engine's configuration on the way in, the reason
//! of a failure and the facts of the loaded model on the way out.

use serde::{Deserialize, Serialize};

/// Defaults of the API and of the command line, so that both start the same engine.
pub mod defaults {
    /// Longest prompt plus answer, in tokens.
    pub const MAX_CONTEXT_TOKENS: u32 = 4096;
    /// Sequences that decode together.
    pub const MAX_SEQUENCES: u32 = 32;
    /// Tokens that one forward pass takes in, prefill and decode together.
    pub const STEP_TOKENS: u32 = 256;
    /// Tokens in a KV block.
    pub const BLOCK_TOKENS: u32 = 16;
    /// Memory for KV blocks, in bytes (512 MiB).
    pub const KV_BYTES: u64 = 512 << 20;
    /// Time that a stopping pod gives its open requests.
    pub const DRAIN_SECONDS: u32 = 120;
    /// Prompt tokens per second of a simulated engine.
    pub const SIMULATED_PREFILL_TOKENS_PER_SECOND: u32 = 2000;
    /// Time of a simulated decode step.
    pub const SIMULATED_DECODE_STEP_MILLISECONDS: u32 = 20;
    /// Time that a simulated engine takes to load.
    pub const SIMULATED_LOAD_SECONDS: u32 = 0;
}

/// What computes the forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ExecutorKind {
    /// The best that the pod's hardware offers.
    #[default]
    Auto,
    /// The CPU, with as many threads as the pod's CPU limit allows.
    Cpu,
    /// No model at all: real scheduling, batching and metrics, but each step takes a configured time and
    /// yields deterministic text. For sizing and tests, and labelled as simulated wherever it shows.
    Simulated,
}

/// How the engine stores keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum KvType {
    /// In half precision.
    #[default]
    F16,
    /// In bytes with a scale for every 32 of them: nearly twice as many tokens in the same memory, less exactly.
    Int8,
}

/// Whether the engine guesses tokens ahead from the text itself. No answer depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Guesses {
    /// Where they pay.
    #[default]
    Auto,
    /// Never.
    Off,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref)] // The shape that serde asks for.
fn is_yes(value: &bool) -> bool {
    *value
}

/// Timings of a simulated engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SimulatedConfig {
    /// Prompt tokens that it takes in per second. Default 2000.
    #[serde(default = "simulated_prefill")]
    #[cfg_attr(feature = "api", schemars(range(min = 1, max = 100_000_000)))]
    pub prefill_tokens_per_second: u32,
    /// Milliseconds that a decode step takes, whatever its batch. Default 20.
    #[serde(default = "simulated_decode_step")]
    #[cfg_attr(feature = "api", schemars(range(min = 0, max = 60_000)))]
    pub decode_step_milliseconds: u32,
    /// Seconds from the start of the pod until it is ready. Default 0.
    #[serde(default = "simulated_load")]
    #[cfg_attr(feature = "api", schemars(range(min = 0, max = 3_600)))]
    pub load_seconds: u32,
}

fn simulated_prefill() -> u32 {
    defaults::SIMULATED_PREFILL_TOKENS_PER_SECOND
}

fn simulated_decode_step() -> u32 {
    defaults::SIMULATED_DECODE_STEP_MILLISECONDS
}

fn simulated_load() -> u32 {
    defaults::SIMULATED_LOAD_SECONDS
}

impl Default for SimulatedConfig {
    fn default() -> Self {
        Self {
            prefill_tokens_per_second: simulated_prefill(),
            decode_step_milliseconds: simulated_decode_step(),
            load_seconds: simulated_load(),
        }
    }
}

/// Configuration of one engine, written by the operator into the ConfigMap as `engine.json`.
///
/// Unknown fields are refused: an engine that silently ignores what it was told runs wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineConfig {
    /// Names that clients call the model by; at least one.
    pub names: Vec<String>,
    /// Namespace of the InferenceService, for logs and metrics.
    pub namespace: String,
    /// Name of the InferenceService.
    pub service: String,
    /// The GGUF file. Absent only when `executor` is simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,
    /// Address to listen on, `IP:PORT`.
    pub listen: String,
    /// What computes the forward pass.
    pub executor: ExecutorKind,
    /// Longest prompt plus answer, in tokens; a model trained for less lowers it.
    pub max_context_tokens: u32,
    /// Sequences that decode together.
    pub max_sequences: u32,
    /// Tokens that one forward pass takes in.
    pub step_tokens: u32,
    /// Tokens in a KV block.
    pub block_tokens: u32,
    /// Memory for KV blocks, in bytes.
    pub kv_bytes: u64,
    /// How keys and values are stored. Like what follows not written where it is the default, so that a field that is new
    /// changes no configuration that does not use it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kv_type: KvType,
    /// Keep the KV blocks of prompts for those that begin alike.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub prefix_cache: bool,
    /// Guess tokens ahead.
    #[serde(default, skip_serializing_if = "is_default")]
    pub guesses: Guesses,
    /// Seconds that open requests get after SIGTERM.
    pub drain_seconds: u32,
    /// Timings, when `executor` is simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedConfig>,
}

/// Why a container of ours ended, in a word that a condition can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureReason {
    /// Nothing lies at the source's address.
    ModelNotFound,
    /// The file came whole, and is not the one that `sha256` names.
    HashMismatch,
    /// No space is left for the model.
    DiskFull,
    /// The source could not be read to the end.
    DownloadFailed,
    /// The source asks for other credentials than there are.
    Unauthorized,
    /// The file is damaged, or not a GGUF file.
    InvalidModel,
    /// The file is sound, and this engine cannot run it.
    UnsupportedModel,
    /// Weights and KV blocks do not fit the memory there is.
    OutOfMemory,
    /// The engine refused its configuration.
    InvalidConfig,
    /// A fault of the engine itself; also what an older reader makes of a newer word.
    #[serde(other)]
    Internal,
}

impl FailureReason {
    /// The word itself, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ModelNotFound => "ModelNotFound",
            Self::HashMismatch => "HashMismatch",
            Self::DiskFull => "DiskFull",
            Self::DownloadFailed => "DownloadFailed",
            Self::Unauthorized => "Unauthorized",
            Self::InvalidModel => "InvalidModel",
            Self::UnsupportedModel => "UnsupportedModel",
            Self::OutOfMemory => "OutOfMemory",
            Self::InvalidConfig => "InvalidConfig",
            Self::Internal => "Internal",
        }
    }
}

/// The last words of a failed container, as JSON in its termination log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminationMessage {
    /// The kind of failure.
    pub reason: FailureReason,
    /// One sentence for a person: what failed, and what to change.
    pub message: String,
}

/// The kubelet cuts a termination message at 4096 bytes; JSON that was cut cannot be read.
/// Escaping can at most multiply by six.
const MESSAGE_BYTES: usize = 640;

impl TerminationMessage {
    /// A message cut to what the kubelet will carry whole.
    pub fn new(reason: FailureReason, message: &str) -> Self {
        let mut end = message.len().min(MESSAGE_BYTES);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        Self {
            reason,
            message: message[..end].to_owned(),
        }
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| self.reason.as_str().to_owned())
    }

    /// Reads what [`Self::to_json`] wrote; `None` when it is anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let parsed: Self = serde_json::from_str(text.trim()).ok()?;
        // A container may write anything here: bound it before it reaches a condition.
        Some(Self::new(parsed.reason, &parsed.message))
    }
}

/// Facts of the loaded model: the field `pagoda` of each entry in `/v1/models`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelInfo {
    /// Name of the executor that runs it: `cpu`, `simulated`.
    pub executor: String,
    /// True when no real model answers.
    pub simulated: bool,
    /// Architecture as the file names it, such as `llama`.
    pub architecture: String,
    /// Type of most weights, such as `Q4_1`.
    pub quantization: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Time from the start of loading until ready.
    pub load_milliseconds: u64,
    /// Longest prompt plus answer that it takes, in tokens.
    pub context_tokens: u32,
}

/// How far a model has come: what a container that fetches answers on `GET /progress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FetchProgress {
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes of the whole file, once the source told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Bytes that came in the last seconds, by second.
    pub bytes_per_second: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_termination_messages_stay_readable_json_below_the_kubelets_limit() {
        let worst = "\u{1}".repeat(10_000);
        let json = TerminationMessage::new(FailureReason::DiskFull, &worst).to_json();
        assert!(json.len() <= 4096, "{}", json.len());
        let read = TerminationMessage::parse(&json).expect("readable");
        assert_eq!(read.reason, FailureReason::DiskFull);
    }

    #[test]
    fn termination_messages_are_cut_between_characters() {
        let message = TerminationMessage::new(FailureReason::Internal, &"ü".repeat(500)).message;
        assert!(message.len() <= MESSAGE_BYTES && message.chars().all(|c| c == 'ü'));
    }

    #[test]
    fn a_reason_from_a_newer_engine_reads_as_internal() {
        let read =
            TerminationMessage::parse(r#"{"reason":"Brand-New","message":"m"}"#).expect("readable");
        assert_eq!(read.reason, FailureReason::Internal);
    }

    #[test]
    fn text_that_is_no_termination_message_is_none() {
        assert_eq!(TerminationMessage::parse("Killed"), None);
    }

    #[test]
    fn every_reason_reads_back_as_itself() {
        for reason in [
            FailureReason::ModelNotFound,
            FailureReason::HashMismatch,
            FailureReason::DiskFull,
            FailureReason::DownloadFailed,
            FailureReason::Unauthorized,
            FailureReason::InvalidModel,
            FailureReason::UnsupportedModel,
            FailureReason::OutOfMemory,
            FailureReason::InvalidConfig,
            FailureReason::Internal,
        ] {
            let json = serde_json::to_string(&reason).expect("plain enum");
            assert_eq!(json, format!("\"{}\"", reason.as_str()));
            assert_eq!(
                serde_json::from_str::<FailureReason>(&json).expect("own word"),
                reason
            );
        }
    }

    #[test]
    fn engine_configuration_with_an_unknown_field_is_refused() {
        let text = r#"{"names":["m"],"namespace":"n","service":"s","listen":"0.0.0.0:8000","executor":"cpu",
            "maxContextTokens":1,"maxSequences":1,"stepTokens":1,"blockTokens":16,"kvBytes":1,"drainSeconds":1}"#;
        assert!(serde_json::from_str::<EngineConfig>(text).is_ok());
        let extra = text.replacen('{', "{\"colour\":1,", 1);
        let error = serde_json::from_str::<EngineConfig>(&extra).expect_err("unknown field");
        assert!(error.to_string().contains("colour"), "{error}");
    }
}
