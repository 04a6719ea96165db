//! `decide` against the cluster's own HorizontalPodAutoscaler, step by step.
//!
//! A kube-controller-manager scales targets that this test serves, on metrics that this test serves: both through the
//! aggregation layer, so that every number which an HPA reads, and when, is known. The same series then goes through
//! `pagoda_operator_core::autoscale::decide`, with the same `behavior`, at the same moments; after each step both must want the
//! same number of pods.
//!
//! Everything runs in a sandbox on a control plane of its own. Moments are two seconds apart, by a clock that the targets keep, and
//! every window is an odd number of seconds long: on which side of its end a moment falls is never a matter of less than a second. A
//! run in which the machine was too slow even for that proves nothing, and is made again.

mod judge;
mod plane;
mod scenarios;
mod script;
mod server;

use std::process::ExitCode;

use anyhow::{Result, bail};
use libtest_mimic::{Arguments, Trial};
use pagoda_e2e::{cache::Cache, cluster::ControlPlane, progress::Progress, sandbox};

/// Runs that the machine may spoil.
const ATTEMPTS: usize = 3;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let trial = Trial::test(
        "the_clusters_own_hpa_and_decide_want_the_same_at_every_step",
        || Ok(the_clusters_own_hpa_and_decide_want_the_same_at_every_step()?),
    );
    if arguments.list || arguments.is_filtered_out(&trial) || sandbox::is_inside() {
        return libtest_mimic::run(&arguments, vec![trial]).exit_code();
    }
    match prepare().and_then(|()| sandbox::enter()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

/// What needs the network.
fn prepare() -> Result<()> {
    ControlPlane::prepare(&Cache::from_env()?, &Progress::start())
}

fn the_clusters_own_hpa_and_decide_want_the_same_at_every_step() -> Result<()> {
    let seed = script::seed();
    println!("seed {seed} (PAGODA_TEST_SEED={seed} repeats it)");
    for attempt in 1..=ATTEMPTS {
        let scenarios = scenarios::all(seed);
        let runs = plane::run(&scenarios)?;
        if let Some(slow) = judge::too_slow(&runs) {
            println!("attempt {attempt} proves nothing: {slow}");
            continue;
        }
        return judge::compare(&scenarios, &runs);
    }
    bail!("the machine was too slow in {ATTEMPTS} runs: run this alone")
}
