//! Everything up, and one question asked.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::ask::{Answered, ask_and_print};
use super::phases::Phases;
use super::place::{Gateway, Place};
use super::watch::Follower;
use super::{NAMESPACE, SERVICE};

const SAMPLE: &str = include_str!("../../samples/smollm2.yaml");
const QUESTION: &str = "What is a pagoda?";
/// A pod starts in seconds; only a cluster that has to pull our images over a slow line needs more.
const READY_LIMIT: Duration = Duration::from_mins(5);

/// Cluster, images, charts, service, question: each shown, each timed.
pub fn up(place: &Place) -> Result<()> {
    let mut phases = Phases::start();
    phases.run("cluster", || place.cluster_up())?;
    let images = phases.run("images", || place.load_images())?;
    phases.run("charts", || place.install_charts(&images))?;
    let applied = Instant::now();
    phases.run(
        "kubectl apply -f e2e/samples/smollm2.yaml, until Ready",
        || apply_and_follow(place),
    )?;
    let gateway = place.gateway()?;
    let answered = phases.run("a question through the gateway", || {
        ask_and_print(gateway.url(), SERVICE, QUESTION)
    })?;
    let to_first_token = answered.first_token_at.duration_since(applied);
    println!("\n{}", phases.summary());
    print_measured(&answered, to_first_token);
    print_what_next(place, &gateway);
    Ok(())
}

fn apply_and_follow(place: &Place) -> Result<()> {
    let kubectl = place.kubectl();
    kubectl.run_with_input(
        &["apply", "--namespace", NAMESPACE, "--filename", "-"],
        &place.localised(SAMPLE),
    )?;
    let applied = Instant::now();
    let mut follower = Follower::start(kubectl, NAMESPACE, SERVICE)?;
    follower.until_ready(READY_LIMIT, |line| {
        println!("    +{:4.1} s  {line}", applied.elapsed().as_secs_f64());
    })
}

fn print_measured(answered: &Answered, to_first_token: Duration) {
    println!(
        "\nkubectl apply to the first streamed token: {:.1} s",
        to_first_token.as_secs_f64()
    );
    println!(
        "time to first token of this answer: {:.0} ms",
        answered.first_token.as_secs_f64() * 1000.0
    );
}

fn print_what_next(place: &Place, gateway: &Gateway) {
    println!("\nAsk it yourself:");
    let (first, url) = place.gateway_words(gateway);
    if let Some(line) = first {
        println!("  {line}");
    }
    println!("  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\");
    println!(
        "    -d '{{\"model\": \"{SERVICE}\", \"stream\": true, \"messages\": [{{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}}]}}'"
    );
    println!("\nWatch it scale, in two terminals:");
    for line in place.shell_setup().lines() {
        println!("  {line}");
    }
    println!("  {} get isvc --watch", place.kubectl_words());
    println!("  ./demo load{}", place.demo_words());
    println!("\nTake it all away:\n  ./demo down{}", place.demo_words());
}
