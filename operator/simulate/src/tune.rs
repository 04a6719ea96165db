//! The best HPA for a trace: every setting of a small grid is simulated, and the best by [`better`] kept.

use crate::report::Report;
use crate::scaler::{Hpa, HpaMetric, HpaSettings};
use crate::setup::Setup;
use crate::simulation::{SimulateError, simulate};
use crate::time::SECOND;
use crate::trace::{Arrival, TraceError};

/// Shares of a pod's sequences that a target of requests in flight may be.
const SHARES: [f64; 8] = [0.06, 0.12, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0];
/// Shares of what a pod can serve per second that a target of requests per second may be.
const RATES: [f64; 6] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.85];
/// Windows on the way down: Kubernetes' own, and a quick one.
const WINDOWS: [u64; 2] = [60, 300];

/// Whether `a` is the better outcome: enough requests within the SLO come first, then fewer GPU-hours; where neither has
/// enough, more requests within the SLO.
pub fn better(a: &Report, b: &Report, enough: f64) -> bool {
    match (a.attainment() >= enough, b.attainment() >= enough) {
        (true, true) => a.gpu_hours < b.gpu_hours,
        (false, false) => a.attainment() > b.attainment(),
        (a, _) => a,
    }
}

/// The grid, for pods of this setup and requests that cost a pod so many seconds each when it is busy.
pub fn grid(setup: &Setup, busy_seconds: f64) -> Vec<HpaSettings> {
    let profiles = setup.hardware.iter().map(|hardware| hardware.profile);
    let sequences = profiles.map(|profile| profile.max_sequences).max();
    let in_flight = SHARES
        .iter()
        .map(|share| (share * f64::from(sequences.unwrap_or(1))).max(1.0))
        .map(|value| (HpaMetric::InFlight, value));
    let rate = RATES
        .iter()
        .map(|share| (HpaMetric::QueriesPerSecond, share / busy_seconds.max(1e-6)));
    let targets = in_flight.chain(rate);
    targets
        .flat_map(|(metric, value)| {
            WINDOWS.map(|window| HpaSettings {
                down_window: window * SECOND,
                ..HpaSettings::new(metric, value)
            })
        })
        .collect()
}

/// Seconds that a request of the trace keeps a busy pod of the first hardware, with half its sequences decoding: what bounds
/// the requests per second that a pod can serve.
pub fn busy_seconds(
    setup: &Setup,
    trace: impl Iterator<Item = Result<Arrival, TraceError>>,
) -> Result<f64, TraceError> {
    let Some(profile) = setup.hardware.first().map(|hardware| hardware.profile) else {
        return Ok(1.0);
    };
    let batch = f64::from((profile.max_sequences / 2).max(1));
    let step = (profile.step_nanos as f64 + profile.sequence_nanos as f64 * batch) / 1e9;
    let (mut seconds, mut requests) = (0.0, 0_u64);
    for arrival in trace {
        let arrival = arrival?;
        seconds += f64::from(arrival.prompt_tokens) / profile.prefill_tokens_per_second
            + f64::from(arrival.output_tokens) * step / batch;
        requests += 1;
    }
    Ok(seconds / (requests.max(1) as f64))
}

/// Simulates the grid and returns the best setting with what came of it. `open` opens the trace anew; `told` hears of how many
/// settings are done, of how many.
pub fn hpa<T, E>(
    setup: &Setup,
    enough: f64,
    mut open: impl FnMut() -> Result<T, E>,
    mut told: impl FnMut(usize, usize),
) -> Result<(HpaSettings, Report), E>
where
    T: Iterator<Item = Result<Arrival, TraceError>>,
    E: From<SimulateError>,
{
    let busy = busy_seconds(setup, open()?).map_err(SimulateError::from)?;
    let grid = grid(setup, busy);
    let mut best: Option<(HpaSettings, Report)> = None;
    for (done, settings) in grid.iter().enumerate() {
        told(done, grid.len());
        let mut scaler = Hpa::new("hpa-tuned", *settings);
        let report = simulate(setup, open()?, &mut scaler, &mut |_| ())?;
        if best
            .as_ref()
            .is_none_or(|(_, present)| better(&report, present, enough))
        {
            best = Some((*settings, report));
        }
    }
    Ok(best.unwrap_or_else(|| unreachable!("the grid has settings")))
}
