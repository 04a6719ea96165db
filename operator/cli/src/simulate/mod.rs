//! `pagoda simulate`: a trace against a spec.

mod arguments;
mod progress;
mod setup;
mod spec;

pub use arguments::Arguments;

use std::fs::File;
use std::io::{BufReader, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use pagoda_operator_core::validate::{Service, TargetValue};
use pagoda_simulate::scaler::{
    Hpa, HpaMetric, HpaSettings, Kpa, KpaSettings, Pagoda, Saturation, SaturationSettings, Scaler,
};
use pagoda_simulate::trace::{Reader, Shape, Shaped};
use pagoda_simulate::{Report, SECOND, Setup, SimulateError, from_seconds, report, simulate, tune};

use arguments::{Format, ScalerName};
use progress::Ticker;

/// Baselines carry so many requests a pod where the spec has no target for requests in flight: the API's own default.
const DEFAULT_IN_FLIGHT: f64 = 8.0;
/// Changes that a table tells.
const EVENTS: usize = 12;

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let spec = spec::read(&arguments.spec)
        .with_context(|| format!("the spec {}", arguments.spec.display()))?;
    let setup = setup::setup(arguments, &spec)?;
    let mut reports = Vec::new();
    for name in &arguments.scalers {
        let report = run_one(*name, arguments, &setup, &spec.service)
            .with_context(|| format!("the trace {}", arguments.trace.display()))?;
        reports.push(report);
    }
    write_files(arguments, &reports)?;
    let text = match arguments.format {
        Format::Table => table(arguments, &setup, &reports),
        Format::Csv => report::summary_csv(&reports),
        Format::Json => format!("{}\n", report::to_json(&reports)),
    };
    // A reader that has seen enough, such as head, is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

type Trace = Shaped<Reader<BufReader<File>>>;

/// Opened anew for every run, and read as it goes: a trace may be larger than memory.
fn open(arguments: &Arguments) -> Result<Trace> {
    let file = File::open(&arguments.trace)?;
    let shape = Shape {
        speed_up: arguments.speed_up,
        scale_load: arguments.scale_load,
        jitter: from_seconds(arguments.jitter_seconds()),
        seed: arguments.seed,
    };
    Ok(Shaped::new(Reader::new(BufReader::new(file)), shape))
}

fn run_one(
    name: ScalerName,
    arguments: &Arguments,
    setup: &Setup,
    service: &Service,
) -> Result<Report> {
    let ticker = Ticker::new(name.as_str());
    if name == ScalerName::HpaTuned {
        let enough = arguments.slo_percent / 100.0;
        let told = |done, of| ticker.grid(done, of);
        let open = || open(arguments);
        let (settings, mut report) = tune::hpa(setup, enough, open, told)?;
        report.note = format!(
            "hpa-tuned: {} {:.2} a pod, down after {} s",
            match settings.metric {
                HpaMetric::InFlight => "requests in flight",
                HpaMetric::QueriesPerSecond => "requests per second",
            },
            settings.average_value,
            settings.down_window / SECOND
        );
        return Ok(report);
    }
    let mut scaler = scaler(name, arguments, service);
    let mut told = |progress| ticker.progress(progress);
    let report = simulate(setup, open(arguments)?, scaler.as_mut(), &mut told);
    report.map_err(|error| match error {
        SimulateError::Trace(error) => error.into(),
        error @ SimulateError::Setup(_) => error.into(),
    })
}

fn scaler(name: ScalerName, arguments: &Arguments, service: &Service) -> Box<dyn Scaler> {
    let own = service.scaling.targets.iter().find_map(|target| {
        let in_flight = target.metric == pagoda_crds::api::Metric::InFlightRequests;
        match target.value {
            TargetValue::Each { milli } if in_flight => Some(milli as f64 / 1000.0),
            _ => None,
        }
    });
    let target = arguments.baseline_target.or(own);
    let target = target.unwrap_or(DEFAULT_IN_FLIGHT);
    match name {
        ScalerName::Pagoda => Box::new(Pagoda::new(service.scaling.clone())),
        ScalerName::Kpa => Box::new(Kpa::new(KpaSettings::new(target))),
        ScalerName::Saturation => Box::new(Saturation::new(SaturationSettings::default())),
        ScalerName::Hpa | ScalerName::HpaTuned => {
            let settings = HpaSettings::new(HpaMetric::InFlight, target);
            Box::new(Hpa::new("hpa", settings))
        }
    }
}

fn write_files(arguments: &Arguments, reports: &[Report]) -> Result<()> {
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    };
    if let Some(path) = &arguments.plot {
        let name = arguments.trace.file_name().unwrap_or_default();
        let title = format!("{}, {}", name.to_string_lossy(), arguments.spec.display());
        write(path, report::plot(&title, reports))?;
    }
    if let Some(path) = &arguments.timeline {
        write(path, report::moments_csv(reports))?;
    }
    Ok(())
}

fn table(arguments: &Arguments, setup: &Setup, reports: &[Report]) -> String {
    let mut text = format!(
        "{} over {} s; SLO: first token within {} ms, then a token every {} ms on average\n\n",
        arguments.trace.display(),
        reports.first().map_or(0, |report| report.seconds as u64),
        setup.slo_first_token / 1_000_000,
        setup.slo_inter_token / 1_000_000,
    );
    text.push_str(&report::comparison(reports));
    for report in reports {
        let line = report::replicas_line(report, 80);
        text.extend(["\n", &report.scaler, ": ", &line, "\n"]);
        if !report.note.is_empty() {
            text.extend([&report.note, "\n"]);
        }
    }
    if let [report] = reports {
        text.push('\n');
        text.push_str(&report::events_table(
            report,
            arguments.events.unwrap_or(EVENTS),
        ));
    }
    if std::io::stdout().is_terminal() && arguments.plot.is_none() {
        text.push_str("\nA plot: --plot FILE.svg; the same over time: --timeline FILE.csv\n");
    }
    text
}
