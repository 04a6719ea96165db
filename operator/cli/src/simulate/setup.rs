//! What is simulated, out of the command line and the spec.

use anyhow::{Context, Result};
use pagoda_crds::api::Metric;
use pagoda_operator_core::validate::{Service, TargetValue};
use pagoda_simulate::{Hardware, MILLISECOND, PodProfile, SECOND, Setup, from_seconds};

use super::arguments::{Arguments, PodSpeed};
use super::spec::Spec;

/// KV bytes of a token in the simulated engine, as `inference-pod/server/src/simulated.rs` has it.
const KV_BYTES_PER_TOKEN: u64 = 32 << 10;
/// Requests that wait in a pod of Pagoda's engine at most, as `inference-pod/server/src/load.rs` has it.
const MAX_WAITING: u32 = 1024;
const LOAD_SECONDS: f64 = 60.0;
const SLO_TTFT_MS: u64 = 2000;
const SLO_ITL_MS: u64 = 100;

/// What is simulated.
pub fn setup(arguments: &Arguments, spec: &Spec) -> Result<Setup> {
    let service = &spec.service;
    let profile = profile(arguments, service)?;
    let scaling = &service.scaling;
    let simulated = service.engine.simulated.as_ref();
    let load = simulated.map(|simulated| f64::from(simulated.load_seconds));
    let hold = &spec.object.spec.routing.hold;
    let asked = spec.object.spec.replicas;
    let asked = asked.and_then(|replicas| u32::try_from(replicas).ok());
    let setup = Setup {
        hardware: hardware(arguments, profile),
        initial_replicas: arguments.pods.or(asked).unwrap_or(scaling.min_replicas),
        min_replicas: scaling.min_replicas,
        max_replicas: scaling.max_replicas,
        load: from_seconds(arguments.load_seconds.or(load).unwrap_or(LOAD_SECONDS)),
        load_jitter: arguments.load_jitter / 100.0,
        drain: u64::from(service.drain_seconds) * SECOND,
        hold_requests: hold.max_requests as usize,
        hold_timeout: u64::from(hold.timeout_seconds) * SECOND,
        decision_delay: arguments.decision_delay_ms * MILLISECOND,
        slo_first_token: MILLISECOND
            * arguments
                .slo_ttft_ms
                .or_else(|| latency(service, Metric::TimeToFirstToken))
                .unwrap_or(SLO_TTFT_MS),
        slo_inter_token: MILLISECOND
            * arguments
                .slo_itl_ms
                .or_else(|| latency(service, Metric::InterTokenLatency))
                .unwrap_or(SLO_ITL_MS),
        gpus_per_pod: service.gpu.as_ref().map_or(1, |gpu| gpu.count),
        cost_per_gpu_hour: arguments.cost_per_gpu_hour,
        start_unix_seconds: arguments.start,
        seed: arguments.seed,
    };
    setup.check()?;
    Ok(setup)
}

fn latency(service: &Service, metric: Metric) -> Option<u64> {
    let mut targets = service.scaling.targets.iter();
    targets.find_map(|target| match target.value {
        TargetValue::Latency { milliseconds, .. } if target.metric == metric => {
            Some(u64::from(milliseconds))
        }
        _ => None,
    })
}

fn profile(arguments: &Arguments, service: &Service) -> Result<PodProfile> {
    let engine = &service.engine;
    let simulated = engine.simulated.as_ref().map(|simulated| PodSpeed {
        prefill_tokens_per_second: f64::from(simulated.prefill_tokens_per_second),
        step_ms: f64::from(simulated.decode_step_milliseconds),
        sequence_ms: 0.0,
    });
    let speed = arguments.pod_speed.or(simulated).context(
        "the spec's engine is not the simulated one, so say how fast a pod is: --pod-speed TOKENS,MS,MS (a running service tells it in status.scaling.capacity)",
    )?;
    let kv_tokens = arguments
        .kv_tokens
        .unwrap_or(engine.kv_bytes / KV_BYTES_PER_TOKEN);
    Ok(PodProfile {
        prefill_tokens_per_second: speed.prefill_tokens_per_second,
        step_nanos: from_seconds(speed.step_ms / 1000.0),
        sequence_nanos: from_seconds(speed.sequence_ms / 1000.0),
        // As the engine does: a step has room for a token of each sequence.
        step_tokens: engine.step_tokens.max(engine.max_sequences),
        max_sequences: engine.max_sequences,
        max_waiting: MAX_WAITING,
        block_tokens: engine.block_tokens,
        kv_blocks: u32::try_from(kv_tokens / u64::from(engine.block_tokens.max(1)))
            .unwrap_or(u32::MAX),
        context_tokens: engine.max_context_tokens,
        prefix_cache: !arguments.no_prefix_cache,
    })
}

fn hardware(arguments: &Arguments, profile: PodProfile) -> Vec<Hardware> {
    if arguments.hardware.is_empty() {
        return vec![Hardware {
            name: "simulated".into(),
            weight: 1,
            profile,
        }];
    }
    let kinds = arguments.hardware.iter().map(|kind| Hardware {
        name: kind.name.as_str().into(),
        weight: kind.weight,
        profile: profile.faster(kind.factor),
    });
    kinds.collect()
}
