//! What is left behind by many requests, of which many are given up at a random moment.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures::StreamExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::server::{Server, ServerOptions};
use super::streams::{Ask, Asker, Wish, prompt, runtime};
use super::table::{Figure, Table};
use super::{Bench, rounded};

const AT_ONCE: usize = 32;
/// A tenth of the requests go first: allocators, connections and blocks fill up.
const WARM_UP_SHARE: usize = 10;
const MIB: f64 = (1_u64 << 20) as f64;

/// When a client gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// Never.
    Endless,
    /// So long after asking, answered or not.
    Until(Duration),
    /// After so many pieces of text.
    Texts(usize),
}

#[derive(Clone, Debug)]
struct Request {
    ask: Ask,
    patience: Patience,
}

/// Half of the clients are patient; the others leave within 40 ms, or after the first few texts.
fn requests(seed: u64, count: usize) -> impl Iterator<Item = Request> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..count).map(move |number| Request {
        ask: Ask {
            prompt: prompt(number, random.random_range(1..24)),
            answer_tokens: random.random_range(1..12),
        },
        patience: match random.random_range(0..4) {
            0 => Patience::Until(Duration::from_micros(random.random_range(0..40_000))),
            1 => Patience::Texts(random.random_range(1..6)),
            _ => Patience::Endless,
        },
    })
}

/// Resident memory and blocks after all requests, beside what they were after a tenth of them.
pub fn measure(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let count = bench.arguments.requests as usize;
    let server = Server::start(ServerOptions {
        engine: &bench.engine,
        model: &bench.model,
        threads: bench.threads,
        arguments: &["--context", "512", "--kv-memory", "32Mi"],
    })?;
    let asker = Asker::new(server.base())?;
    let rest = Rest::of(server.base())?;
    let (before, after, given_up) = runtime()?.block_on(async {
        bench
            .progress
            .step(format!("{} requests to warm up", count / WARM_UP_SHARE));
        send(
            &asker,
            requests(bench.arguments.seed.wrapping_add(1), count / WARM_UP_SHARE),
        )
        .await?;
        rest.wait().await?;
        let before = server.resident_bytes()? as f64;
        bench
            .progress
            .step(format!("{count} requests with random cancels"));
        let given_up = send(&asker, requests(bench.arguments.seed, count)).await?;
        rest.wait().await?;
        Ok::<_, anyhow::Error>((before, server.resident_bytes()? as f64, given_up))
    })?;
    table.figure(
        Figure::new("leak_rss_percent", format!("resident memory gained in {count} requests, many cancelled"), (after - before) * 100.0 / before)
            .unit("%")
            .at_most(5.0)
            .note(format!(
                "{:.1} MiB, then {:.1}; {given_up} of {count} given up; all blocks and places free again",
                before / MIB,
                after / MIB
            )),
    );
    table.fact("leak_requests", count);
    table.fact("leak_cancelled", given_up);
    table.fact("leak_rss_mib", rounded(after / MIB));
    Ok(())
}

/// Sends them, some at once, and returns how many were given up.
async fn send(asker: &Asker, requests: impl Iterator<Item = Request>) -> Result<usize> {
    let mut ended = futures::stream::iter(requests)
        .map(|request| one(asker, request))
        .buffer_unordered(AT_ONCE);
    let mut given_up = 0;
    while let Some(left) = ended.next().await {
        given_up += usize::from(left?);
    }
    Ok(given_up)
}

/// Whether it was given up.
async fn one(asker: &Asker, request: Request) -> Result<bool> {
    let stop_after = match request.patience {
        Patience::Texts(texts) => texts,
        _ => usize::MAX,
    };
    let wish = |texts| {
        if texts >= stop_after {
            Wish::Leave
        } else {
            Wish::More
        }
    };
    let reading = asker.read(&request.ask, wish);
    match request.patience {
        Patience::Until(patience) => match tokio::time::timeout(patience, reading).await {
            Ok(stream) => Ok(stream?.is_none()),
            Err(_) => Ok(true),
        },
        _ => Ok(reading.await?.is_none()),
    }
}

/// Waits for a server to have nothing left to do.
struct Rest {
    client: reqwest::Client,
    url: String,
}

/// What must be 0 at rest.
const AT_REST: [&str; 3] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "pagoda_kv_blocks_used",
];
const LOOKS: usize = 500;

impl Rest {
    fn of(base: &str) -> Result<Self> {
        Ok(Self {
            client: reqwest::Client::builder().no_proxy().build()?,
            url: format!("{base}/metrics"),
        })
    }

    async fn wait(&self) -> Result<()> {
        let mut last = String::new();
        for _ in 0..LOOKS {
            let text = self.client.get(&self.url).send().await?.text().await?;
            let values = AT_REST.map(|name| gauge(&text, name));
            ensure!(
                values.iter().all(Option::is_some),
                "the metrics lack one of {AT_REST:?}"
            );
            if values.iter().all(|value| *value == Some(0.0)) {
                return Ok(());
            }
            last = format!("{values:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("{AT_REST:?} stay at {last} with nobody asking: something leaks")
    }
}

fn gauge(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_requests_with_every_kind_of_patience() {
        let make = |seed| {
            let all = requests(seed, 200).map(|request| (request.ask.prompt, request.patience));
            all.collect::<Vec<_>>()
        };
        let one = make(7);
        assert_eq!(one, make(7));
        assert_ne!(one, make(8));
        let count = |wanted: fn(&Patience) -> bool| {
            one.iter().filter(|(_, patience)| wanted(patience)).count()
        };
        assert!(count(|patience| matches!(patience, Patience::Endless)) > 50);
        assert!(count(|patience| matches!(patience, Patience::Until(_))) > 20);
        assert!(count(|patience| matches!(patience, Patience::Texts(_))) > 20);
    }

    #[test]
    fn a_gauge_is_read_by_its_whole_name() {
        let text = "# TYPE a gauge\na_b{m=\"x y\"} 3\na{m=\"x\"} 2.5\n";
        assert_eq!((gauge(text, "a"), gauge(text, "c")), (Some(2.5), None));
    }
}
