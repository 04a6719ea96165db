//! From a configuration to an engine that is ready to start: open, budget memory, load, report progress.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagoda_crds::wire::{FailureReason, ModelInfo, SimulatedConfig};
use pagoda_engine_core::{Limits, Policy, Speculation};
use pagoda_model::{BLOCK_TOKENS, CpuExecutor, CpuOptions, KvBudget, LoadError, ModelFile};
use pagoda_text::{ChatTemplate, HuggingFaceFiles, TemplateError, Tokenizer, TokenizerError};

use crate::config::{Backend, EngineSize, MAX_WAITING};
use crate::executor::{Executor, ExecutorInfo};
use crate::failure::Fatal;
use crate::language::Language;
use crate::memory::{self, Demand, MemoryLimit, OutOfMemory};
use crate::simulated::{KV_BYTES_PER_TOKEN, SimulatedExecutor, SimulatedSpeed};

/// Longest file read that says how a model reads and writes text; the largest vocabularies take some 30 MB.
const MOST_TEXT_BYTES: u64 = 128 << 20;

/// A loaded model.
pub struct Loaded {
    /// Computes.
    pub executor: Box<dyn Executor>,
    /// Text to tokens.
    pub language: Arc<Language>,
    /// What the scheduler may use.
    pub limits: Limits,
    /// How the scheduler decides.
    pub policy: Policy,
    /// Facts for `/v1/models`.
    pub info: ModelInfo,
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum LoadFailure {
    /// The model.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// Its tokenizer.
    #[error("invalid tokenizer: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// There is too little memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// KV blocks of another size than the executor's.
    #[error("blockTokens is {0}, but the CPU executor has blocks of {BLOCK_TOKENS} tokens")]
    BlockTokens(usize),
}

impl LoadFailure {
    /// The word for the operator's conditions.
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Model(LoadError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                FailureReason::ModelNotFound
            }
            Self::Model(LoadError::UnsupportedModel(_))
            | Self::Tokenizer(
                TokenizerError::UnsupportedModel { .. }
                | TokenizerError::UnsupportedPreTokenizer { .. },
            ) => FailureReason::UnsupportedModel,
            Self::Model(LoadError::InvalidOptions(_) | LoadError::Cpu(_))
            | Self::BlockTokens(_) => FailureReason::InvalidConfig,
            Self::Model(LoadError::Threads(_)) => FailureReason::Internal,
            Self::Model(_) | Self::Tokenizer(_) => FailureReason::InvalidModel,
            Self::Memory(_) => FailureReason::OutOfMemory,
        }
    }
}

impl From<LoadFailure> for Fatal {
    fn from(failure: LoadFailure) -> Self {
        Self::new(failure.reason(), failure.to_string())
    }
}

/// Loads what `backend` names. `progress` is told percents, up to 100.
pub fn load(
    backend: &Backend,
    size: &EngineSize,
    threads: usize,
    progress: &mut dyn FnMut(u8),
) -> Result<Loaded, LoadFailure> {
    let began = Instant::now();
    let mut loaded = match backend {
        Backend::Cpu(path) => load_cpu(path, size, threads, progress)?,
        Backend::Simulated(config) => load_simulated(config, size, progress)?,
    };
    loaded.info.load_milliseconds = began.elapsed().as_millis() as u64;
    Ok(loaded)
}

fn load_cpu(
    path: &Path,
    size: &EngineSize,
    threads: usize,
    progress: &mut dyn FnMut(u8),
) -> Result<Loaded, LoadFailure> {
    if size.block_tokens != BLOCK_TOKENS {
        return Err(LoadFailure::BlockTokens(size.block_tokens));
    }
    let file = ModelFile::open(path)?;
    // Cheap and likely to say no: before gigabytes of weights are read.
    let language = language(&file)?;
    let trained_for = file.config().context_tokens;
    let context_tokens = size
        .max_context_tokens
        .map_or(trained_for, |most| most.min(trained_for));
    let options = CpuOptions {
        threads,
        context_tokens: Some(context_tokens),
        kv: KvBudget::Blocks(1),
        kv_element: size.kv_element,
        ..CpuOptions::default()
    };
    let plan = file.memory_plan(&options)?;
    let demand = demand(
        size,
        context_tokens,
        plan.weight_bytes,
        plan.working_bytes,
        plan.block_bytes,
    );
    let blocks = plan_blocks(&demand, size)?;
    let options = CpuOptions {
        kv: KvBudget::Blocks(blocks as usize),
        ..options
    };
    let executor = CpuExecutor::from_file(&file, &options, |done, total| {
        progress(percent(done, total));
    })?;
    let info = model_info(executor.info(), file.bytes());
    Ok(loaded(Box::new(executor), language, size, info))
}

/// The tokenizer and the template: out of a GGUF file's header, or of the files beside the weights of a folder.
fn language(file: &ModelFile) -> Result<Language, LoadFailure> {
    let (tokenizer, template) = match file.gguf().map(pagoda_gguf::Gguf::metadata) {
        Some(metadata) => (
            Tokenizer::from_metadata(metadata)?,
            ChatTemplate::from_metadata(metadata),
        ),
        None => hugging_face_language(file)?,
    };
    if let Err(error) = &template {
        tracing::warn!(%error, "this model takes no conversations, only /v1/completions");
    }
    Ok(Language::new(tokenizer, template))
}

fn hugging_face_language(
    file: &ModelFile,
) -> Result<(Tokenizer, Result<ChatTemplate, TemplateError>), LoadFailure> {
    let read = |name: &str| file.read_beside(name, MOST_TEXT_BYTES);
    let tokenizer = read("tokenizer.json")?.ok_or_else(|| {
        LoadError::Invalid("the folder has no tokenizer.json beside the weights".into())
    })?;
    let (config, generation) = (
        read("tokenizer_config.json")?,
        read("generation_config.json")?,
    );
    let template = read("chat_template.jinja")?;
    let files = HuggingFaceFiles {
        tokenizer: &tokenizer,
        tokenizer_config: config.as_deref(),
        generation_config: generation.as_deref(),
        chat_template: template
            .as_deref()
            .and_then(|bytes| std::str::from_utf8(bytes).ok()),
    };
    let template = ChatTemplate::from_hugging_face(&files);
    Ok((Tokenizer::from_hugging_face(&files)?, template))
}

fn load_simulated(
    config: &SimulatedConfig,
    size: &EngineSize,
    progress: &mut dyn FnMut(u8),
) -> Result<Loaded, LoadFailure> {
    let seconds = Duration::from_secs(config.load_seconds.into());
    for percent in 1..=100 {
        // The load itself: the time that simulated weights take to arrive.
        std::thread::sleep(seconds / 100);
        progress(percent);
    }
    let language = Language::bytes();
    let context_tokens = size
        .max_context_tokens
        .unwrap_or(EngineSize::default().max_context_tokens.unwrap_or(4096));
    let demand = demand(
        size,
        context_tokens,
        0,
        0,
        KV_BYTES_PER_TOKEN * size.block_tokens as u64,
    );
    // Simulated KV memory is never taken, so no limit of this machine applies.
    let blocks = demand.plan_blocks(size.kv_bytes, None)?;
    let speed = SimulatedSpeed {
        prefill_tokens_per_second: f64::from(config.prefill_tokens_per_second),
        decode_step: Duration::from_millis(config.decode_step_milliseconds.into()),
    };
    let executor =
        SimulatedExecutor::new(&language, speed, context_tokens, size.block_tokens, blocks);
    let info = ModelInfo {
        simulated: true,
        ..model_info(executor.info(), 0)
    };
    Ok(Loaded {
        policy: simulated_policy(size),
        ..loaded(Box::new(executor), language, size, info)
    })
}

/// Simulated hardware takes the time that it is told to: nothing is kept from one prompt to the next and nothing guessed
/// unless that is asked for, and prompts are not held back.
fn simulated_policy(size: &EngineSize) -> Policy {
    let keeps = size.policy.prefix_cache;
    Policy {
        prefix_cache: keeps.filter(|_| size.simulated_prefix_cache),
        prompt_slowdown: None,
        speculation: match size.policy.speculation {
            Speculation::Auto => Speculation::Off,
            asked => asked,
        },
        ..size.policy
    }
}

fn demand(
    size: &EngineSize,
    context_tokens: usize,
    weight_bytes: u64,
    working_bytes: u64,
    block_bytes: u64,
) -> Demand {
    Demand {
        weight_bytes,
        working_bytes,
        block_bytes,
        context_tokens: context_tokens as u64,
        max_sequences: size.max_sequences as u64,
        block_tokens: size.block_tokens as u64,
    }
}

fn plan_blocks(demand: &Demand, size: &EngineSize) -> Result<u32, OutOfMemory> {
    let limit = memory::limit();
    let blocks = demand.plan_blocks(size.kv_bytes, limit)?;
    let limit_bytes = limit.map(|MemoryLimit { bytes, .. }| bytes);
    if let Some(less) = demand.shrunk(blocks, size.kv_bytes, limit) {
        tracing::warn!("{less}");
    }
    tracing::info!(
        weight_bytes = demand.weight_bytes,
        kv_bytes = u64::from(blocks) * demand.block_bytes,
        kv_blocks = blocks,
        limit_bytes,
        "memory planned"
    );
    Ok(blocks)
}

fn percent(done: u64, total: u64) -> u8 {
    (done.saturating_mul(100) / total.max(1)).min(100) as u8
}

fn model_info(info: &ExecutorInfo, bytes: u64) -> ModelInfo {
    ModelInfo {
        executor: info.name.to_owned(),
        simulated: false,
        architecture: info.architecture.clone(),
        quantization: info.quantization.clone(),
        bytes,
        load_milliseconds: 0,
        context_tokens: info.context_tokens as u32,
    }
}

fn loaded(
    executor: Box<dyn Executor>,
    language: Language,
    size: &EngineSize,
    info: ModelInfo,
) -> Loaded {
    let shape = executor.info();
    let limits = Limits {
        max_sequences: size.max_sequences,
        max_waiting: MAX_WAITING,
        step_tokens: size.step_tokens,
        block_tokens: shape.block_tokens,
        block_count: shape.block_count as u32,
        context_tokens: shape.context_tokens,
    };
    Loaded {
        executor,
        language: Arc::new(language),
        limits,
        policy: size.policy,
        info,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(bytes: Option<&[u8]>) -> Fatal {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        match load(&Backend::Cpu(path), &EngineSize::default(), 1, &mut |_| {}) {
            Ok(_) => panic!("this must not load"),
            Err(failure) => failure.into(),
        }
    }

    #[test]
    fn a_missing_file_and_one_that_is_no_gguf_have_different_reasons() {
        assert_eq!(failure(None).reason, FailureReason::ModelNotFound);
        assert_eq!(
            failure(Some(b"<html>not found</html>")).reason,
            FailureReason::InvalidModel
        );
        assert_eq!(failure(Some(b"")).reason, FailureReason::InvalidModel);
    }

    #[test]
    fn a_simulated_engine_loads_with_progress_up_to_the_end() {
        let mut percents = Vec::new();
        let loaded = load(
            &Backend::Simulated(SimulatedConfig::default()),
            &EngineSize::default(),
            1,
            &mut |p| percents.push(p),
        );
        let loaded = loaded.ok().unwrap();
        assert!(loaded.info.simulated);
        assert_eq!(percents.last(), Some(&100));
        // 512 MiB in blocks of 16 tokens of 32 KiB.
        assert_eq!(loaded.limits.block_count, 1024);
    }

    #[test]
    fn percents_never_exceed_100_or_divide_by_zero() {
        assert_eq!(
            (
                percent(0, 0),
                percent(5, 10),
                percent(11, 10),
                percent(u64::MAX, 1)
            ),
            (0, 50, 100, 100)
        );
    }
}
