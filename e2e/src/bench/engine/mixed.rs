//! A long prompt that arrives among decoding streams: what they notice of it.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::{join_all, select};
use std::pin::pin;

use super::server::{Server, ServerOptions};
use super::streams::{Ask, Asker, Wish, runtime};
use super::table::{Figure, Table};
use super::{Bench, rounded};
use crate::quiet::busy_cores;
use crate::statistics::{median, percentile};

const STREAMS: usize = 8;
const PROMPT_TOKENS: usize = 64;
const LONG_TOKENS: usize = 4096;
/// More than a stream gets to while the long prompt is computed.
const ANSWER_TOKENS: usize = 3000;
/// Gaps between tokens of all streams before the long prompt arrives; a hundredth of them is enough for a 99th percentile.
const UNDISTURBED_GAPS: usize = 2000;
const MOST_ROUNDS: usize = 3;

/// The 99th percentile of the time between tokens, from the long prompt's arrival to its first token, over that before.
pub fn measure(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let rounds = bench.rounds.min(MOST_ROUNDS);
    let mut found = Vec::new();
    for number in 1..=rounds {
        bench.progress.step(format!(
            "a long prompt among streams: round {number} of {rounds}"
        ));
        table.busy([busy_cores()?]);
        found.push(one_round(bench)?);
    }
    let of = |figure: fn(&Mixed) -> f64| {
        let values: Vec<f64> = found.iter().map(figure).collect();
        median(&values).context("no round was measured")
    };
    let (before, during) = (
        of(|mixed| mixed.itl_p99_alone)?,
        of(|mixed| mixed.itl_p99_beside)?,
    );
    let first = of(|mixed| mixed.long_ttft)?;
    table.figure(
        Figure::new(
            "mixed_itl_p99_ratio",
            "ITL p99 of 8 streams while a prompt of 4,096 is computed",
            of(|mixed| mixed.itl_p99_beside / mixed.itl_p99_alone)?,
        )
        .unit("x")
        .at_most(1.5)
        .note(format!(
            "{during:.1} ms beside {before:.1} ms undisturbed; the long prompt had its first token after {first:.0} ms"
        )),
    );
    table.fact("mixed_itl_p99_undisturbed_ms", rounded(before));
    table.fact("mixed_long_ttft_ms", rounded(first));
    Ok(())
}

/// Milliseconds of one round: gaps at the 99th percentile without and beside the long prompt, and its first token.
struct Mixed {
    itl_p99_alone: f64,
    itl_p99_beside: f64,
    long_ttft: f64,
}

fn one_round(bench: &Bench<'_>) -> Result<Mixed> {
    let server = Server::start(ServerOptions {
        engine: &bench.engine,
        model: &bench.model,
        threads: bench.threads,
        arguments: &["--context", "8192", "--kv-memory", "1Gi"],
    })?;
    let asker = Asker::new(server.base())?;
    let watch = Watch::default();
    runtime()?.block_on(async {
        let streams = pin!(async {
            join_all((1..=STREAMS).map(|stream| watch.follow(&asker, stream))).await
        });
        let long = pin!(async {
            watch.until_gaps(UNDISTURBED_GAPS).await;
            let arrived = Instant::now();
            let ask = Ask::of_stream(STREAMS + 1, LONG_TOKENS, 1);
            let answer = asker.ask(&ask).await?;
            watch.over.set(true);
            Ok::<_, anyhow::Error>((arrived, answer.first_token()?))
        });
        match select(long, streams).await {
            futures::future::Either::Left((long, streams)) => {
                let (arrived, first) = long?;
                streams.await.into_iter().collect::<Result<Vec<()>>>()?;
                watch.judge(arrived, first)
            }
            futures::future::Either::Right((streams, _)) => {
                streams.into_iter().collect::<Result<Vec<()>>>()?;
                anyhow::bail!("the streams ended before the long prompt had its first token")
            }
        }
    })
}

/// When each text of the streams came.
#[derive(Default)]
struct Watch {
    /// Stream by stream.
    texts: RefCell<Vec<Vec<Instant>>>,
    /// Gaps seen since all streams had begun.
    gaps: Cell<usize>,
    over: Cell<bool>,
}

impl Watch {
    async fn follow(&self, asker: &Asker, stream: usize) -> Result<()> {
        let place = {
            let mut texts = self.texts.borrow_mut();
            texts.push(Vec::new());
            texts.len() - 1
        };
        let ask = Ask::of_stream(stream, PROMPT_TOKENS, ANSWER_TOKENS);
        let note = |_| {
            self.texts.borrow_mut()[place].push(Instant::now());
            if self.all_began() {
                self.gaps.set(self.gaps.get() + 1);
            }
            if self.over.get() {
                Wish::Leave
            } else {
                Wish::More
            }
        };
        asker.read(&ask, note).await.map(|_| ())
    }

    fn all_began(&self) -> bool {
        let texts = self.texts.borrow();
        texts.len() == STREAMS && texts.iter().all(|times| !times.is_empty())
    }

    async fn until_gaps(&self, count: usize) {
        while self.gaps.get() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn judge(&self, arrived: Instant, first: Duration) -> Result<Mixed> {
        let texts = self.texts.borrow();
        let began = texts.iter().filter_map(|times| times.first()).max();
        let began = *began.context("no stream brought anything")?;
        let (before, during) = gaps(&texts, began, arrived, arrived + first);
        let nothing = "no gap was measured";
        Ok(Mixed {
            itl_p99_alone: percentile(&before, 99.0).context(nothing)?,
            itl_p99_beside: percentile(&during, 99.0).context(nothing)?,
            long_ttft: first.as_secs_f64() * 1000.0,
        })
    }
}

/// Gaps in milliseconds: those that lie between `began` and `arrived`, and those that touch `arrived` to `left`.
fn gaps(
    streams: &[Vec<Instant>],
    began: Instant,
    arrived: Instant,
    left: Instant,
) -> (Vec<f64>, Vec<f64>) {
    let (mut before, mut during) = (Vec::new(), Vec::new());
    for pair in streams.iter().flat_map(|times| times.windows(2)) {
        let gap = (pair[1] - pair[0]).as_secs_f64() * 1000.0;
        if pair[0] >= began && pair[1] <= arrived {
            before.push(gap);
        } else if pair[1] > arrived && pair[0] < left {
            during.push(gap);
        }
    }
    (before, during)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_that_the_long_prompt_fell_into_counts_as_disturbed() {
        let zero = Instant::now();
        let at = |milliseconds| zero + Duration::from_millis(milliseconds);
        let streams = [vec![at(0), at(10), at(30), at(90), at(95), at(200)]];
        let (before, during) = gaps(&streams, at(5), at(40), at(92));
        assert_eq!((before, during), (vec![20.0], vec![60.0, 5.0]));
    }
}
