//! Load on one of the samples, watched.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser as _};

use super::place::Place;
use super::{NAMESPACE, SERVICE, SIMULATED};
use crate::loadgen::{self, LoadgenArgs};

const SIMULATED_SAMPLE: &str = include_str!("../../samples/simulated.yaml");
/// More than one pod of the small model answers on two cores, so that it grows.
const RATE: f64 = 2.0;
/// A simulated pass costs no processor: as much as five pods take.
const SIMULATED_RATE: f64 = 20.0;

/// What to send, and to whom.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Load the simulated sample instead of smollm2: it begins at zero pods and needs no processor for its model
    #[arg(long)]
    simulated: bool,
    /// Requests a second
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    rate: Option<f64>,
    /// How long, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    duration: f64,
    /// Play a recorded trace instead of a rate: Mooncake's JSON lines or Azure's CSV
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Further options of the load generator; `-- --help` lists them
    #[arg(last = true, value_name = "OPTION")]
    further: Vec<String>,
}

/// Applies the sample if it is not there, sends the load, shows pods, times and tokens while it runs, then a table.
pub fn load(place: &Place, args: &LoadArgs) -> Result<()> {
    if args.simulated {
        place.kubectl().run_with_input(
            &["apply", "--namespace", NAMESPACE, "--filename", "-"],
            SIMULATED_SAMPLE,
        )?;
    }
    let gateway = place.gateway()?;
    let words = generator_words(args, gateway.url(), place.kubeconfig_words());
    let generator = LoadgenArgs::try_parse_from(words).unwrap_or_else(|error| error.exit());
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(loadgen::main(generator))
}

/// The load generator's command line.
fn generator_words(args: &LoadArgs, gateway: &str, kubeconfig: Vec<String>) -> Vec<String> {
    let (service, usual_rate) = if args.simulated {
        (SIMULATED, SIMULATED_RATE)
    } else {
        (SERVICE, RATE)
    };
    let name = format!("{NAMESPACE}/{service}");
    let mut words = vec![
        "./demo load --".to_owned(),
        format!("--url={gateway}"),
        format!("--model={name}"),
        format!("--watch-service={name}"),
    ];
    words.extend(kubeconfig);
    words.push(format!("--duration={}", args.duration));
    words.push(match &args.trace {
        Some(trace) => format!("--trace={}", trace.display()),
        None => format!("--rate={}", args.rate.unwrap_or(usual_rate)),
    });
    words.extend(args.further.iter().cloned());
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn words(given: &[&str]) -> Vec<String> {
        let args = Cli::parse_from([&["load"], given].concat()).load;
        generator_words(
            &args,
            "http://198.19.0.9:80",
            vec!["--kubeconfig=/k".to_owned()],
        )
    }

    #[test]
    fn every_way_to_load_is_one_the_generator_takes() {
        for given in [
            &[][..],
            &["--simulated"],
            &["--rate", "5"],
            &["--trace", "t.csv", "--", "--speedup", "10"],
        ] {
            LoadgenArgs::try_parse_from(words(given))
                .unwrap_or_else(|error| panic!("{given:?}: {error}"));
        }
    }

    #[test]
    fn the_sample_that_is_loaded_is_the_one_that_is_watched() {
        let simulated = words(&["--simulated"]);
        assert!(
            simulated.contains(&"--model=default/simulated".to_owned())
                && simulated.contains(&"--watch-service=default/simulated".to_owned())
        );
        assert!(words(&[]).contains(&"--model=default/smollm2".to_owned()));
    }
}
