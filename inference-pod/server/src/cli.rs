//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use axum::http::Uri;
use clap::{Args, Parser, Subcommand, ValueEnum};
use pagoda_crds::wire::defaults;
use pagoda_engine_core::Speculation;
use pagoda_source::DEFAULT_CONNECTIONS;

use crate::memory::parse_bytes;

const EXAMPLES: &str = "\
Examples:
  pagoda-engine chat model.gguf                    talk to a model in this terminal
  pagoda-engine serve model.gguf                   OpenAI-compatible server on 127.0.0.1:8000
  pagoda-engine serve https://host/model.gguf      the same, downloaded first
  pagoda-engine serve hf://owner/repo/model.gguf   the same, from a repository
  pagoda-engine serve --executor simulated         no model: real scheduling, made-up text
  pagoda-engine bench --model model.gguf --json    prefill and decode speed on this machine

Exit codes: 0 success; 2 wrong command line; 65 invalid model; 66 model not found; 69 unsupported model; 70 internal
fault; 71 out of memory; 73 disk full; 75 download failed; 76 hash mismatch; 77 access refused; 78 invalid
configuration; 143 second SIGTERM, or SIGTERM while fetching.

Environment: RUST_LOG sets what is logged; PAGODA_CPU=portable|avx2|avxvnni|avx512vnni|neon|neondot forces kernels;
PAGODA_CACHE_DIR is where downloads go (default ~/.cache/pagoda); PAGODA_TERMINATION_LOG is where a failure's reason is
written.";

/// Pagoda's inference engine: serves a language model over an OpenAI-compatible API.
#[derive(Debug, Parser)]
#[command(name = "pagoda-engine", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over HTTP: /v1/chat/completions, /v1/completions, /v1/models, /health/*, /metrics
    Serve(ServeArgs),
    /// Talk to a model in this terminal
    Chat(ChatArgs),
    /// Fetch a model file: resumed where it broke off, checked against its hash
    Fetch(FetchArgs),
    /// Copy this program to a path, for containers that bring none of their own
    Install {
        /// Where to; parent folders must exist
        path: PathBuf,
    },
    /// Keep a cached model from being evicted until SIGTERM, for servers that do not do so themselves
    Hold {
        /// The model file; a read-only mount suffices
        file: PathBuf,
    },
    /// Make a node's cache directory, writable for the containers of any user
    CachePrepare {
        /// The directory; made if need be
        directory: PathBuf,
        /// Only look whether that was done, and wait for SIGTERM
        #[arg(long)]
        wait: bool,
    },
    /// Wait until another server has no open requests: its preStop hook
    WaitIdle(WaitIdleArgs),
    /// Measure prefill and decode speed of a model on this machine
    Bench(BenchArgs),
}

/// What computes, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExecutorArg {
    /// The best there is
    Auto,
    /// The CPU
    Cpu,
    /// No model: takes time and makes up text
    Simulated,
}

/// How keys and values are stored, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvType {
    /// Half precision
    F16,
    /// Bytes in groups of 32: about half the memory, answers a little less exact
    Int8,
}

/// Size of the engine.
#[derive(Args, Clone, Debug)]
pub struct SizeArgs {
    /// Longest prompt plus answer, in tokens; a model made for less lowers it
    #[arg(long, value_name = "TOKENS", default_value_t = defaults::MAX_CONTEXT_TOKENS)]
    pub context: u32,
    /// KV memory, such as 512Mi or 2Gi [default: 512Mi, less where little is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub kv_memory: Option<u64>,
    /// How keys and values are stored
    #[arg(long, value_name = "TYPE", value_enum, default_value = "f16")]
    pub kv_type: KvType,
    /// Threads that compute [default: what CPU quota and affinity allow]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// How the scheduler decides. None of it changes an answer.
#[derive(Args, Clone, Debug)]
pub struct PolicyArgs {
    /// Compute every prompt anew, also where another began alike
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Names the keys of kept blocks: pods that share stored blocks need the same
    #[arg(long, value_name = "NAME", default_value = "")]
    pub prefix_seed: String,
    /// Guess tokens ahead from the text itself: auto guesses where it pays, off never, N always so many
    #[arg(long, value_name = "auto|off|N", default_value = "auto")]
    pub speculative: Speculation,
    /// How much longer a step may take for prompts that are few beside those who decode: first tokens against even streams
    #[arg(long, value_name = "PERCENT", default_value_t = 25)]
    pub prompt_slowdown_percent: u32,
    /// Learn how long answers become, and let short ones go first
    #[arg(long)]
    pub predict_lengths: bool,
    /// Seconds by which a request must come earlier to go before one of the next more urgent class
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub class_seconds: u32,
}

#[derive(Args, Debug)]
pub struct ServeArgs {
    /// A GGUF file, or an address of one: https://, hf://, s3://, gs://, az://, oci://
    #[arg(value_name = "MODEL", conflicts_with = "config")]
    pub model: Option<String>,
    /// Read everything from the operator's engine.json instead
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A name that requests use for the model; repeatable [default: the file's name without .gguf]
    #[arg(long = "name", value_name = "NAME", conflicts_with = "config")]
    pub names: Vec<String>,
    /// Address to listen on; 0.0.0.0 lets other machines in
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "127.0.0.1:8000",
        conflicts_with = "config"
    )]
    pub listen: SocketAddr,
    /// What computes
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "config")]
    pub executor: ExecutorArg,
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub size: SizeArgs,
    /// Sequences that decode together
    #[arg(long, value_name = "N", default_value_t = defaults::MAX_SEQUENCES)]
    pub sequences: u32,
    /// Tokens computed in one step
    #[arg(long, value_name = "TOKENS", default_value_t = defaults::STEP_TOKENS)]
    pub step_tokens: u32,
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Seconds that open requests get after SIGTERM or Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_seconds: u32,
    /// Simulated executor: prompt tokens per second
    #[arg(long, value_name = "N", default_value_t = defaults::SIMULATED_PREFILL_TOKENS_PER_SECOND)]
    pub simulated_prefill_tokens_per_second: u32,
    /// Simulated executor: milliseconds of a decode step
    #[arg(long, value_name = "MS", default_value_t = defaults::SIMULATED_DECODE_STEP_MILLISECONDS)]
    pub simulated_decode_step_milliseconds: u32,
    /// Simulated executor: keep the KV blocks of prompts that begin alike, as others do
    #[arg(long)]
    pub simulated_prefix_cache: bool,
    /// Simulated executor: seconds to load
    #[arg(long, value_name = "SECONDS", default_value_t = defaults::SIMULATED_LOAD_SECONDS)]
    pub simulated_load_seconds: u32,
}

#[derive(Args, Debug)]
pub struct ChatArgs {
    /// A GGUF file, or an address of one: https://, hf://, s3://, gs://, az://, oci://
    pub model: String,
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub size: SizeArgs,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// 0 always gives the same answer; more is more varied, up to 2
    #[arg(long, default_value_t = 0.7)]
    pub temperature: f32,
    /// Tokens of one answer at most [default: what the context leaves]
    #[arg(long, value_name = "TOKENS")]
    pub max_tokens: Option<usize>,
    /// Repeats the same answers to the same questions
    #[arg(long)]
    pub seed: Option<u64>,
}

#[derive(Args, Debug)]
pub struct FetchArgs {
    /// https:// address, file:// path, or hf://OWNER/REPO/PATH[@REVISION], s3://BUCKET/KEY, gs://BUCKET/KEY,
    /// az://ACCOUNT/CONTAINER/PATH, oci://REGISTRY/REPOSITORY[:TAG|@DIGEST]//FILE
    pub uri: String,
    /// Where the file goes
    #[arg(
        long,
        value_name = "PATH",
        required_unless_present = "cache",
        conflicts_with = "cache"
    )]
    pub to: Option<PathBuf>,
    /// Share the file with the other containers of this node: it goes to DIR/KEY/model.gguf, and is there only once
    #[arg(long, value_name = "DIR", requires = "cache_bytes")]
    pub cache: Option<PathBuf>,
    /// What the cache may hold at most, such as 200Gi; models that nobody uses make room
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "cache")]
    pub cache_bytes: Option<u64>,
    /// Answer GET /progress there meanwhile
    #[arg(long, value_name = "IP:PORT")]
    pub progress_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub source: SourceArgs,
}

/// How a model is fetched, and what makes it trustworthy.
#[derive(Args, Clone, Debug)]
pub struct SourceArgs {
    /// The SHA-256 that the file must have, in hexadecimal
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<String>,
    /// A mirror of hf:// or oci://, or a service compatible with s3://, gs:// or az://
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Region of an s3:// source [default: us-east-1]
    #[arg(long, value_name = "REGION")]
    pub region: Option<String>,
    /// Directory with one file a credential: token or HF_TOKEN; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    /// AWS_SESSION_TOKEN; GOOGLE_SERVICE_ACCOUNT_KEY; AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN;
    /// .dockerconfigjson. Without one, access is anonymous
    #[arg(long, value_name = "DIR")]
    pub credentials: Option<PathBuf>,
    /// Connections that download at once
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CONNECTIONS)]
    pub connections: usize,
    /// Certificate authorities to trust beside the public ones, in PEM
    #[arg(long, value_name = "FILE", env = "SSL_CERT_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Take models over http:// too, which anybody on the way can change
    #[arg(long, env = "PAGODA_ALLOW_PLAIN_HTTP")]
    pub allow_plain_http: bool,
}

impl Default for SourceArgs {
    fn default() -> Self {
        Self {
            sha256: None,
            endpoint: None,
            region: None,
            credentials: None,
            connections: DEFAULT_CONNECTIONS,
            ca_file: None,
            allow_plain_http: false,
        }
    }
}

#[derive(Args, Debug)]
pub struct WaitIdleArgs {
    /// The server's metrics, as http://127.0.0.1:PORT/metrics
    #[arg(long, value_name = "URL")]
    pub url: Uri,
    /// Seconds to go on taking requests first: routers hear late that the pod is leaving
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    pub grace_seconds: u64,
    /// Seconds after which to stop waiting, the grace included
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub timeout_seconds: u64,
}

#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// A GGUF file
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// Threads that compute [default: what CPU quota and affinity allow]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Tokens of the prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub prefill: usize,
    /// Tokens to decode after it
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub decode: usize,
    /// Tokens of the prompt computed in one step
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub step_tokens: usize,
    /// Times to measure; the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub repetitions: usize,
    /// One line of JSON instead of a table
    #[arg(long)]
    pub json: bool,
}
