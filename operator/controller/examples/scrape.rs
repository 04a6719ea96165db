//! What asking pods for their load costs: a server that answers as pods do, and the operator's own scraper against it.
//!
//! ```sh
//! cargo build --release -p pagoda-operator --example scrape
//! target/release/examples/scrape serve 9999 metrics.txt &     # a text as the engine writes it at /metrics
//! target/release/examples/scrape ask 9999 5000 10             # pods, rounds of a second
//! ```
//! Each pod has an address of its own in 127.0.0.0/8, and so a connection of its own. The server is another process, so that the
//! seconds of CPU that are printed are the scraper's alone, its share of the kernel's work included.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use pagoda_operator::autoscaler::pod_scraper::{PodScraper, Question};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::{MissedTickBehavior, interval},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", port, text] => {
            let text = std::fs::read(text).context("failed to read the text")?;
            serve(port.parse()?, text).await
        }
        ["ask", port, pods, rounds] => ask(port.parse()?, pods.parse()?, rounds.parse()?).await,
        _ => bail!("say serve PORT FILE or ask PORT PODS ROUNDS"),
    }
}

async fn serve(port: u16, text: Vec<u8>) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
        text.len()
    )
    .into_bytes();
    answer.extend(text);
    let answer: Arc<[u8]> = answer.into();
    loop {
        let (mut stream, _) = listener.accept().await?;
        let answer = answer.clone();
        tokio::spawn(async move {
            let mut asked = [0; 1024];
            // Each question comes in one piece, for its client waits for the answer.
            while stream.read(&mut asked).await.is_ok_and(|bytes| bytes > 0) {
                if stream.write_all(&answer).await.is_err() {
                    break;
                }
            }
        });
    }
}

async fn ask(port: u16, pods: u32, rounds: u32) -> anyhow::Result<()> {
    let scraper = PodScraper::default();
    let first = u32::from(Ipv4Addr::new(127, 1, 0, 1));
    let questions: Vec<Question> = (0..pods)
        .map(|pod| Question {
            address: SocketAddr::from((Ipv4Addr::from(first + pod), port)),
            often: true,
            is_ours: true,
        })
        .collect();
    let mut every = interval(Duration::from_secs(1));
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut cpu = cpu_seconds()?;
    for round in 0..rounds {
        every.tick().await;
        let started = Instant::now();
        let answers = scraper.ask(&questions).await;
        let took = started.elapsed();
        let told = answers.iter().flatten().count();
        drop(answers);
        let now = cpu_seconds()?;
        println!(
            "round {round}: {told} of {pods} pods in {:.3} s, {:.3} s of CPU",
            took.as_secs_f64(),
            now - cpu
        );
        cpu = now;
    }
    Ok(())
}

/// Seconds that this process has computed, in user mode and in the kernel.
fn cpu_seconds() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: f64 = text
        .split_whitespace()
        .next()
        .context("no times")?
        .parse()?;
    Ok(nanoseconds / 1e9)
}
