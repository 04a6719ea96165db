//! What can be said on the command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  What would this spec do with our traffic, and what would it cost?
    pagoda simulate --trace requests.jsonl --spec isvc.yaml --pod-speed 20000,15,0.2 --load-seconds 90 --cost-per-gpu-hour 2.5

  Is it better than an HPA, however that is tuned?
    pagoda simulate --trace requests.jsonl --spec isvc.yaml --scaler pagoda,hpa,hpa-tuned,kpa,saturation --plot compare.svg

  What if there were three times as many people?
    pagoda simulate --trace requests.jsonl --spec isvc.yaml --scale-load 3 --format json

Where the figures of a pod come from: a running service tells them in status.scaling.capacity
(prefillTokensPerSecond, decodeStepMicroseconds, decodeSequenceMicroseconds, startMilliseconds).";

/// Plays a trace of requests against an InferenceService, days in seconds
///
/// The decisions are the operator's own code and the routing is the gateway's; pods are modelled: they batch as Pagoda's engine does
/// (chunked prefill, decode first, KV blocks, kept prefixes), take the times that are given, load, and drain. The same arguments give
/// the same result, to the last digit.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Requests: a Mooncake trace (JSON lines with timestamp in ms, input_length, output_length, hash_ids) or an Azure one (CSV with
    /// TIMESTAMP,ContextTokens,GeneratedTokens)
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,

    /// Manifest of the InferenceService: scaling, engine limits, hold and drain are read from it
    #[arg(long, value_name = "FILE")]
    pub spec: PathBuf,

    /// Who decides; several give a column each. hpa, kpa and saturation are what others do (see the README), hpa-tuned the best of a grid of
    /// HPAs for this very trace
    #[arg(
        long = "scaler",
        value_name = "NAME,...",
        value_enum,
        value_delimiter = ',',
        default_value = "pagoda"
    )]
    pub scalers: Vec<ScalerName>,

    /// Plays the trace so many times as fast
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = factor, help_heading = "Trace")]
    pub speed_up: f64,

    /// Plays so many copies of each request, at about its time and with prefixes of their own; below 1 leaves requests out at random
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = factor, help_heading = "Trace")]
    pub scale_load: f64,

    /// Delays each request by up to this, at random; for traces whose times were rounded. Default: 0, and 3 with --scale-load
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Trace")]
    pub jitter: Option<f64>,

    /// Pods that are ready when the first request comes. Default: spec.replicas, or the fewest that scaling allows
    #[arg(long, value_name = "N", help_heading = "Pods")]
    pub pods: Option<u32>,

    /// Prompt tokens per second, milliseconds of a decode step, and milliseconds that each sequence adds to it. Default: those of
    /// engine.simulated
    #[arg(long, value_name = "TOKENS,MS[,MS]", help_heading = "Pods")]
    pub pod_speed: Option<PodSpeed>,

    /// Tokens that a pod's KV cache holds. Default: engine.kvMemory at 32 KiB a token, as the simulated engine has it
    #[arg(long, value_name = "N", help_heading = "Pods")]
    pub kv_tokens: Option<u64>,

    /// Pods keep no prompts: every one is computed whole, whatever the trace says of its prefix
    #[arg(long, help_heading = "Pods")]
    pub no_prefix_cache: bool,

    /// Hardware of pods by name, how fast it is against --pod-speed, and its weight among all, such as H100=1:3; may be given several times
    #[arg(long, value_name = "NAME=FACTOR[:WEIGHT]", help_heading = "Pods")]
    pub hardware: Vec<HardwareKind>,

    /// From a pod's creation until it is ready. Default: engine.simulated.loadSeconds, or 60
    #[arg(long, value_name = "N", value_parser = seconds, help_heading = "Pods")]
    pub load_seconds: Option<f64>,

    /// Each pod takes longer or shorter by up to this share of it, at random
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent, help_heading = "Pods")]
    pub load_jitter: f64,

    /// From what a scaler sees to the change of the number of pods: scrape, decision and write
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=60_000), help_heading = "Pods")]
    pub decision_delay_ms: u64,

    /// A request is well served when its first token comes within this, and ... Default: the spec's target for TimeToFirstToken, or 2000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400_000), help_heading = "Outcome")]
    pub slo_ttft_ms: Option<u64>,

    /// ... its further ones within this of each other on average. Default: the spec's target for InterTokenLatency, or 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400_000), help_heading = "Outcome")]
    pub slo_itl_ms: Option<u64>,

    /// Share of the requests that must be well served: hpa-tuned is the cheapest HPA that does
    #[arg(long, value_name = "PERCENT", default_value_t = 95.0, value_parser = percent, help_heading = "Outcome")]
    pub slo_percent: f64,

    /// Price of a GPU, in whatever currency
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = price, help_heading = "Outcome")]
    pub cost_per_gpu_hour: f64,

    /// Requests in flight that hpa and kpa give each pod. Default: the spec's target for InFlightRequests, or 8
    #[arg(long, value_name = "N", value_parser = factor, help_heading = "Outcome")]
    pub baseline_target: Option<f64>,

    /// Seconds since 1970 at which the first request comes, for schedules and what recurs. Default: a Monday at midnight, UTC
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1_767_571_200,
        help_heading = "Outcome"
    )]
    pub start: i64,

    /// Of all randomness: load times, routing, jitter
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Table, help_heading = "Output")]
    pub format: Format,

    /// Writes a plot: requests, share within the SLO, and each scaler's replicas over time
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    pub plot: Option<PathBuf>,

    /// Writes what was seen over time, a line a second (fewer on long traces)
    #[arg(long, value_name = "FILE.csv", help_heading = "Output")]
    pub timeline: Option<PathBuf>,

    /// Changes of the number of pods that the table lists
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub events: Option<usize>,
}

impl Arguments {
    /// Copies must not come at the same instant.
    pub fn jitter_seconds(&self) -> f64 {
        let scaled = (self.scale_load - 1.0).abs() > f64::EPSILON;
        self.jitter.unwrap_or(if scaled { 3.0 } else { 0.0 })
    }
}

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScalerName {
    /// The operator's own rule, by this spec
    Pagoda,
    /// A HorizontalPodAutoscaler on requests in flight, with a metric from Prometheus
    Hpa,
    /// The best of a grid of them for this trace
    HpaTuned,
    /// Knative's autoscaler
    Kpa,
    /// One that looks at full KV caches and queues, once a minute
    Saturation,
}

impl ScalerName {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pagoda => "pagoda",
            Self::Hpa => "hpa",
            Self::HpaTuned => "hpa-tuned",
            Self::Kpa => "kpa",
            Self::Saturation => "saturation",
        }
    }
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// A line a scaler
    Csv,
    /// One object, with changes and a time line
    Json,
}

/// Speed of a pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PodSpeed {
    /// Prompt tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Milliseconds of a decode step.
    pub step_ms: f64,
    /// Milliseconds that each sequence adds.
    pub sequence_ms: f64,
}

impl FromStr for PodSpeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || {
            format!(
                "{text:?} is no speed: write prompt tokens per second, milliseconds of a decode step, and milliseconds that each sequence adds, such as 20000,15,0.2"
            )
        };
        let parts = text.split(',').map(|part| part.trim().parse::<f64>());
        let parts: Vec<f64> = parts.collect::<Result<_, _>>().map_err(|_| wanted())?;
        let (prefill, step, sequence) = match parts[..] {
            [prefill, step] => (prefill, step, 0.0),
            [prefill, step, sequence] => (prefill, step, sequence),
            _ => return Err(wanted()),
        };
        let fits = (1.0..=1e9).contains(&prefill)
            && (0.0..=60_000.0).contains(&step)
            && (0.0..=60_000.0).contains(&sequence);
        fits.then_some(Self {
            prefill_tokens_per_second: prefill,
            step_ms: step,
            sequence_ms: sequence,
        })
        .ok_or_else(wanted)
    }
}

/// Hardware that pods may run on.
#[derive(Clone, Debug, PartialEq)]
pub struct HardwareKind {
    /// Its name.
    pub name: String,
    /// How fast it is.
    pub factor: f64,
    /// How many of the pods run on it.
    pub weight: u32,
}

impl FromStr for HardwareKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || {
            format!(
                "{text:?} is no hardware: write its name, how fast it is, and its weight among all pods, such as L40S=0.5:1"
            )
        };
        let (name, rest) = text.split_once('=').ok_or_else(wanted)?;
        let (factor, weight) = rest.split_once(':').unwrap_or((rest, "1"));
        let factor = factor.parse::<f64>().ok();
        let factor = factor.filter(|factor| (0.001..=1000.0).contains(factor));
        let weight = weight.parse::<u32>().ok();
        let weight = weight.filter(|weight| (1..=1_000_000).contains(weight));
        match (factor, weight) {
            (Some(factor), Some(weight)) if !name.is_empty() && name.len() <= 63 => Ok(Self {
                name: name.to_owned(),
                factor,
                weight,
            }),
            _ => Err(wanted()),
        }
    }
}

fn number(text: &str, least: f64, most: f64, what: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok();
    value
        .filter(|value| (least..=most).contains(value))
        .ok_or_else(|| format!("write {what} from {least} to {most}"))
}

fn factor(text: &str) -> Result<f64, String> {
    number(text, 0.001, 100_000.0, "a number")
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.0, 86_400.0, "seconds")
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, 0.0, 100.0, "percent")
}

fn price(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1e9, "a price")
}
