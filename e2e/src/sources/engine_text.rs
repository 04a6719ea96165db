//! The real engine's words: its texts, with places where each pod's figures go.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::fault::Counted;
use super::load::{Counts, GENERATED_TOKENS, PROMPT_TOKENS};

/// Paths of metrics, the one that every engine has first.
const PATHS: [&str; 2] = ["/metrics", "/metrics/load"];
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Means of the latencies that the histograms tell, each of an exponential distribution.
const FIRST_TOKEN_SECONDS: f64 = 0.2;
const BETWEEN_TOKENS_SECONDS: f64 = 0.02;

/// What an engine with the simulated executor says of itself.
#[derive(Debug)]
pub(super) struct EngineTexts {
    models: String,
    metrics: Vec<(&'static str, Template)>,
}

impl EngineTexts {
    /// Starts the engine, asks it once, and ends it.
    pub(super) async fn of(program: &Path) -> Result<Self> {
        // One crypto provider a process; a second call finds the first one's, which is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let engine = Engine::start(program)?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        let models = engine.models(&http).await?;
        engine.answer_one(&http, &models).await?;
        let mut metrics = Vec::new();
        for path in PATHS {
            let response = http.get(engine.url(path)).send().await?;
            if response.status() == 200 {
                metrics.push((path, Template::parse(&response.text().await?)));
            }
        }
        if metrics.is_empty() {
            bail!("the engine tells no metrics");
        }
        Ok(Self { models, metrics })
    }

    pub(super) fn models(&self) -> &str {
        &self.models
    }

    pub(super) fn metrics(&self, path: &str) -> Option<&Template> {
        let mut all = self.metrics.iter();
        all.find_map(|(known, template)| (*known == path).then_some(template))
    }
}

/// Ends with the value.
struct Engine {
    child: Child,
    address: SocketAddr,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Engine {
    fn start(program: &Path) -> Result<Self> {
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let child = Command::new(program)
            .args(["serve", "--executor", "simulated"])
            .arg(format!("--listen={address}"))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child, address })
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn models(&self, http: &reqwest::Client) -> Result<String> {
        let began = Instant::now();
        loop {
            let asked = http.get(self.url("/v1/models")).send().await;
            if let Ok(response) = asked
                && response.status() == 200
            {
                return Ok(response.text().await?);
            }
            if began.elapsed() > START_PATIENCE {
                bail!("the engine does not answer at {}", self.address);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Some series begin with the first request.
    async fn answer_one(&self, http: &reqwest::Client, models: &str) -> Result<()> {
        let models: Value = serde_json::from_str(models)?;
        let body = json!({
            "model": models["data"][0]["id"], "max_tokens": 2,
            "messages": [{"role": "user", "content": "hello"}],
        });
        let request = http.post(self.url("/v1/chat/completions")).json(&body);
        let response = request.send().await?;
        if response.status() != 200 {
            bail!("the engine answered {}", response.status());
        }
        Ok(())
    }
}

/// A text with places for figures.
#[derive(Debug, Default)]
pub(super) struct Template {
    /// What precedes each figure.
    pieces: Vec<(String, Figure)>,
    rest: String,
}

/// What stands in a place.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    Running,
    Waiting,
    Usage,
    PromptTokens,
    GeneratedTokens,
    Finished,
    /// First tokens that took at most some time, as a share of all.
    FirstTokens(f64),
    FirstTokenSeconds,
    /// Later tokens likewise.
    LaterTokens(f64),
    LaterTokenSeconds,
    Zero,
}

impl Template {
    fn parse(text: &str) -> Self {
        let mut template = Self::default();
        let mut literal = String::new();
        let mut seen_finished = Vec::new();
        for line in text.lines() {
            match figure_of(line) {
                Some((before, name, figure)) => {
                    literal.push_str(before);
                    // Several series of what finished, one for each reason: the first has all of it.
                    let again = figure == Figure::Finished && seen_finished.contains(&name);
                    seen_finished.push(name);
                    let figure = if again { Figure::Zero } else { figure };
                    template.pieces.push((std::mem::take(&mut literal), figure));
                }
                None => literal.push_str(line),
            }
            literal.push('\n');
        }
        template.rest = literal;
        template
    }

    /// The text of a pod that counted `counts`.
    pub(super) fn render(&self, counts: &Counts, counted: Counted) -> Vec<u8> {
        let mut out = Vec::with_capacity(24 << 10);
        for (before, figure) in &self.pieces {
            out.extend_from_slice(before.as_bytes());
            figure.write(counts, counted, &mut out);
        }
        out.extend_from_slice(self.rest.as_bytes());
        out
    }
}

impl Figure {
    fn write(self, counts: &Counts, counted: Counted, out: &mut Vec<u8>) {
        let (finished, generated) = (
            counts.finished.floor(),
            (counts.finished * GENERATED_TOKENS).floor(),
        );
        let later = generated - finished;
        // Writing to a Vec cannot fail.
        let _ = match (self, counted) {
            (Self::Running | Self::Waiting, Counted::As(words)) => write!(out, "{words}"),
            (Self::Running, Counted::Plain) => write!(out, "{}", counts.running),
            (Self::Waiting, Counted::Plain) => write!(out, "{}", counts.waiting),
            (Self::Usage, _) => write!(out, "{:.4}", counts.running as f64 / 64.0),
            (Self::PromptTokens, _) => {
                write!(out, "{:.0}", (counts.finished * PROMPT_TOKENS).floor())
            }
            (Self::GeneratedTokens, _) => write!(out, "{generated:.0}"),
            (Self::Finished, _) => write!(out, "{finished:.0}"),
            (Self::FirstTokens(share), _) => write!(out, "{:.0}", (finished * share).floor()),
            (Self::FirstTokenSeconds, _) => write!(out, "{:.3}", finished * FIRST_TOKEN_SECONDS),
            (Self::LaterTokens(share), _) => write!(out, "{:.0}", (later * share).floor()),
            (Self::LaterTokenSeconds, _) => write!(out, "{:.3}", later * BETWEEN_TOKENS_SECONDS),
            (Self::Zero, _) => write!(out, "0"),
        };
    }
}

/// What precedes the figure of a line, its series and the figure; nothing for a line that stays as it is.
fn figure_of(line: &str) -> Option<(&str, &str, Figure)> {
    let end = line.rfind(' ')? + 1;
    let name = &line[..line.find(['{', ' '])?];
    let bare = name
        .strip_prefix("vllm:")
        .or_else(|| name.strip_prefix("pagoda_"))?;
    let share = |mean: f64| Some(1.0 - (-bound_of(line)? / mean).exp());
    let figure = match bare {
        "num_requests_running" => Figure::Running,
        "num_requests_waiting" => Figure::Waiting,
        "kv_cache_usage_perc" => Figure::Usage,
        "prompt_tokens_total" => Figure::PromptTokens,
        "generation_tokens_total" => Figure::GeneratedTokens,
        "request_success_total" => Figure::Finished,
        "time_to_first_token_seconds_bucket" => Figure::FirstTokens(share(FIRST_TOKEN_SECONDS)?),
        "time_to_first_token_seconds_count" => Figure::FirstTokens(1.0),
        "time_to_first_token_seconds_sum" => Figure::FirstTokenSeconds,
        "inter_token_latency_seconds_bucket" => Figure::LaterTokens(share(BETWEEN_TOKENS_SECONDS)?),
        "inter_token_latency_seconds_count" => Figure::LaterTokens(1.0),
        "inter_token_latency_seconds_sum" => Figure::LaterTokenSeconds,
        _ => return None,
    };
    Some((&line[..end], name, figure))
}

/// The upper bound of a bucket.
fn bound_of(line: &str) -> Option<f64> {
    let text = line.split("le=\"").nth(1)?.split('"').next()?;
    if text == "+Inf" {
        Some(f64::INFINITY)
    } else {
        text.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP vllm:num_requests_running Sequences.\n# TYPE vllm:num_requests_running gauge\n\
        vllm:num_requests_running{model_name=\"m\"} 0\nvllm:num_requests_waiting{model_name=\"m\"} 0\n\
        vllm:request_success_total{model_name=\"m\",finished_reason=\"length\"} 1\n\
        vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 0\n\
        vllm:time_to_first_token_seconds_bucket{le=\"0.2\",model_name=\"m\"} 1\n\
        vllm:time_to_first_token_seconds_bucket{le=\"+Inf\",model_name=\"m\"} 1\n\
        vllm:time_to_first_token_seconds_count{model_name=\"m\"} 1\npagoda_engine_steps_total{model_name=\"m\"} 3\n";

    fn rendered(counted: Counted) -> String {
        let counts = Counts {
            running: 7,
            waiting: 2,
            finished: 1000.5,
        };
        String::from_utf8(Template::parse(TEXT).render(&counts, counted)).unwrap()
    }

    #[test]
    fn a_text_keeps_its_words_and_tells_the_pods_figures() {
        let text = rendered(Counted::Plain);
        assert_eq!(text.lines().count(), TEXT.lines().count());
        for line in [
            "# TYPE vllm:num_requests_running gauge",
            "vllm:num_requests_running{model_name=\"m\"} 7",
            "vllm:num_requests_waiting{model_name=\"m\"} 2",
            "vllm:request_success_total{model_name=\"m\",finished_reason=\"length\"} 1000",
            "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 0",
            "vllm:time_to_first_token_seconds_bucket{le=\"0.2\",model_name=\"m\"} 632",
            "vllm:time_to_first_token_seconds_bucket{le=\"+Inf\",model_name=\"m\"} 1000",
            "vllm:time_to_first_token_seconds_count{model_name=\"m\"} 1000",
            "pagoda_engine_steps_total{model_name=\"m\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn what_counts_requests_can_be_no_number_and_nothing_else_changes() {
        let text = rendered(Counted::As("NaN"));
        assert!(text.contains("vllm:num_requests_running{model_name=\"m\"} NaN\n"));
        assert_eq!(text.matches("NaN").count(), 2);
    }
}
