//! Streams of completions from a server on loopback, with the time of every piece of text.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use futures::future::join_all;
use pagoda_e2e::loadgen::{ChatEvent, Events};
use reqwest::Client;
use serde_json::json;

use super::server::MODEL_NAME;
use crate::statistics::percentile;

/// A prompt of tokens, and how many are wanted after it, whatever the model would rather.
#[derive(Clone, Debug)]
pub struct Ask {
    pub prompt: Vec<u32>,
    pub answer_tokens: usize,
}

impl Ask {
    /// The prompt of stream `stream`, as the peers' scripts make it.
    pub fn of_stream(stream: usize, prompt_tokens: usize, answer_tokens: usize) -> Self {
        Self {
            prompt: prompt(stream, prompt_tokens),
            answer_tokens,
        }
    }
}

/// Ids that every vocabulary has; no two streams begin alike.
pub fn prompt(stream: usize, tokens: usize) -> Vec<u32> {
    (0..tokens as u64)
        .map(|at| 1000 + ((7919 * at + 104_729 * stream as u64) % 30_000) as u32)
        .collect()
}

/// A stream that ended as it should.
#[derive(Clone, Debug)]
pub struct Stream {
    began: Instant,
    /// When each piece of text came.
    pub texts: Vec<Instant>,
    /// Tokens of the answer, as the server counted them.
    pub tokens: u64,
}

impl Stream {
    /// From asking to the first text.
    pub fn first_token(&self) -> Result<Duration> {
        let first = self.texts.first().context("an answer without text")?;
        Ok(*first - self.began)
    }
}

/// Asks a server.
#[derive(Clone, Debug)]
pub struct Asker {
    client: Client,
    url: String,
}

/// What the reader of a stream wants after a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    More,
    /// To leave, as a client that lost interest does.
    Leave,
}

impl Asker {
    /// Of the server at `base`. Only ever one that this program started, on loopback.
    pub fn new(base: &str) -> Result<Self> {
        ensure!(
            base.starts_with("http://127.0.0.1:"),
            "{base} is not on loopback"
        );
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(64)
            .build()?;
        Ok(Self {
            client,
            url: format!("{base}/v1/completions"),
        })
    }

    /// Asks and reads to the end.
    pub async fn ask(&self, ask: &Ask) -> Result<Stream> {
        let stream = self.read(ask, |_| Wish::More).await?;
        stream.context("a stream left that should have been read")
    }

    /// Asks and reads for as long as `wish` says, which is told how many pieces of text have come. `None` where it left.
    pub async fn read(
        &self,
        ask: &Ask,
        mut wish: impl FnMut(usize) -> Wish,
    ) -> Result<Option<Stream>> {
        let body = json!({
            "model": MODEL_NAME, "prompt": ask.prompt, "max_tokens": ask.answer_tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let began = Instant::now();
        let response = self.client.post(&self.url).json(&body).send().await?;
        if response.status() != 200 {
            let status = response.status();
            bail!("the server answered {status}: {}", response.text().await?);
        }
        let (mut events, mut bytes) = (Events::default(), response.bytes_stream());
        let (mut texts, mut tokens, mut done) = (Vec::new(), 0, false);
        while let Some(part) = bytes.next().await {
            for event in events.push(&part?) {
                match event {
                    ChatEvent::Text => {
                        texts.push(Instant::now());
                        if wish(texts.len()) == Wish::Leave {
                            return Ok(None);
                        }
                    }
                    ChatEvent::Usage {
                        completion_tokens, ..
                    } => tokens = completion_tokens,
                    ChatEvent::Error(code) => bail!("a stream failed: {code}"),
                    ChatEvent::Done => done = true,
                    ChatEvent::Other => {}
                }
            }
        }
        ensure!(done, "a stream was cut off");
        Ok(Some(Stream {
            began,
            texts,
            tokens,
        }))
    }

    /// The text of a whole answer.
    pub async fn text(&self, ask: &Ask) -> Result<String> {
        let body = json!({
            "model": MODEL_NAME, "prompt": ask.prompt, "max_tokens": ask.answer_tokens, "temperature": 0, "ignore_eos": true,
        });
        let response = self.client.post(&self.url).json(&body).send().await?;
        let answer: serde_json::Value = response.error_for_status()?.json().await?;
        let text = answer["choices"][0]["text"].as_str();
        Ok(text.context("an answer without text")?.to_owned())
    }

    /// Asks all in the same moment.
    pub async fn ask_together(&self, asks: &[Ask]) -> Result<Vec<Stream>> {
        let all = join_all(asks.iter().map(|ask| self.ask(ask))).await;
        all.into_iter().collect()
    }
}

/// What users of a server notice.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    pub tokens_per_second: f64,
    pub ttft_p95_ms: f64,
    pub itl_p95_ms: f64,
}

impl Served {
    /// From the times, in milliseconds since all began, of each stream's tokens. `tokens` are all of all answers.
    pub fn of(streams: &[Vec<f64>], tokens: u64) -> Result<Self> {
        let firsts: Vec<f64> = streams
            .iter()
            .filter_map(|times| times.first().copied())
            .collect();
        ensure!(firsts.len() == streams.len(), "a stream brought nothing");
        let between: Vec<f64> = streams
            .iter()
            .flat_map(|times| times.windows(2).map(|pair| pair[1] - pair[0]))
            .collect();
        let last = streams.iter().flatten().copied().fold(0.0, f64::max);
        let nothing = "no stream was measured";
        Ok(Self {
            tokens_per_second: tokens as f64 * 1000.0 / last,
            ttft_p95_ms: percentile(&firsts, 95.0).context(nothing)?,
            itl_p95_ms: percentile(&between, 95.0).context(nothing)?,
        })
    }
}

/// Milliseconds from `began` of each stream's pieces of text.
pub fn milliseconds_since(began: Instant, streams: &[Stream]) -> Vec<Vec<f64>> {
    let of = |stream: &Stream| {
        let since = |at: &Instant| at.saturating_duration_since(began).as_secs_f64() * 1000.0;
        stream.texts.iter().map(since).collect()
    };
    streams.iter().map(of).collect()
}

/// One thread for all streams: the engine computes on the others.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_begin_differently_and_with_ids_of_every_vocabulary() {
        let firsts: std::collections::HashSet<u32> =
            (1..=32).map(|stream| prompt(stream, 1)[0]).collect();
        assert_eq!(firsts.len(), 32);
        assert!((0..33).all(|stream| {
            prompt(stream, 300)
                .iter()
                .all(|id| (1000..31_000).contains(id))
        }));
    }

    #[test]
    fn what_users_notice_is_taken_from_the_times_of_their_tokens() {
        let served = Served::of(&[vec![100.0, 110.0, 130.0], vec![300.0, 310.0]], 6).unwrap();
        assert!((served.tokens_per_second - 6.0 / 0.310).abs() < 1e-9);
        assert!((served.ttft_p95_ms - 300.0).abs() < 1e-9);
        assert!((served.itl_p95_ms - 20.0).abs() < 1e-9);
        assert!(Served::of(&[vec![]], 0).is_err());
    }
}
