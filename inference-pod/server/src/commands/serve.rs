//! `pagoda-engine serve`.

use std::process::ExitCode;
use std::time::Duration;

use pagoda_crds::wire::SimulatedConfig;
use pagoda_engine_core::{KeySeed, Policy};

use super::model;
use crate::cli::{ExecutorArg, PolicyArgs, ServeArgs};
use crate::config::{Backend, EngineSize, ServeConfig};
use crate::failure::Fatal;
use crate::serve::serve;

/// What a simulated model is called unless it is given a name.
const SIMULATED_NAME: &str = "simulated";

/// Serves until told to leave.
pub fn run(args: ServeArgs) -> Result<ExitCode, Fatal> {
    let threads = args.size.threads;
    let config = match &args.config {
        Some(path) => ServeConfig::read(path)?,
        None => from_flags(args)?,
    };
    serve(config, threads)
}

fn from_flags(args: ServeArgs) -> Result<ServeConfig, Fatal> {
    let (backend, default_name) = backend(&args)?;
    let size = EngineSize {
        max_sequences: args.sequences as usize,
        step_tokens: args.step_tokens as usize,
        policy: policy(&args.policy),
        simulated_prefix_cache: args.simulated_prefix_cache,
        ..model::size(&args.size)
    };
    let names = if args.names.is_empty() {
        vec![default_name]
    } else {
        args.names
    };
    let drain = Duration::from_secs(args.drain_seconds.into());
    ServeConfig {
        names,
        listen: args.listen,
        backend,
        size,
        drain,
    }
    .checked()
}

fn policy(args: &PolicyArgs) -> Policy {
    let seed = KeySeed::of_name(&args.prefix_seed);
    Policy {
        prefix_cache: (!args.no_prefix_cache).then_some(seed),
        ageing: Duration::from_secs(args.class_seconds.into()),
        prompt_slowdown: Some(f64::from(args.prompt_slowdown_percent) / 100.0),
        speculation: args.speculative,
        predict_lengths: args.predict_lengths,
    }
}

fn backend(args: &ServeArgs) -> Result<(Backend, String), Fatal> {
    match (args.executor, &args.model) {
        (ExecutorArg::Simulated, _) => {
            let timings = SimulatedConfig {
                prefill_tokens_per_second: args.simulated_prefill_tokens_per_second,
                decode_step_milliseconds: args.simulated_decode_step_milliseconds,
                load_seconds: args.simulated_load_seconds,
            };
            Ok((Backend::Simulated(timings), SIMULATED_NAME.to_owned()))
        }
        (_, Some(model)) => {
            let path = model::resolve(model, &args.source)?;
            let name = model::name_of(&path);
            Ok((Backend::Cpu(path), name))
        }
        (_, None) => Err(Fatal::invalid_config(
            "no model: give a GGUF file, an https:// address of one, --config FILE, or --executor simulated",
        )),
    }
}
