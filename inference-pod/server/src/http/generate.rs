//! What both completion endpoints share: from tokens and parameters to a whole answer or a stream of events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::http::HeaderValue;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use pagoda_engine_core::{SamplingParams, derive_seed};
use serde_json::Value;

use super::errors::ApiError;
use super::params::{MAX_CHOICES, Params};
use super::shape::{Endpoint, FinishedChoice, Shape, Usage};
use crate::app::{App, Served};
use crate::drain::OpenRequest;
use crate::engine::{ChoiceEvent, Event, Generation, NewChoice};

/// Marks answers that no model gave.
const SIMULATED_HEADER: &str = "x-pagoda-simulated";

/// How often a silent stream shows that it lives, so that proxies keep it and a client that left is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Text that goes before the answer: the prompt itself, where the client asked for its echo.
    pub echo: String,
}

/// A request that is understood.
pub struct Request {
    /// Which endpoint.
    pub endpoint: Endpoint,
    /// How to generate.
    pub params: Params,
    /// What to continue; at least one.
    pub prompts: Vec<Prompt>,
    /// Tokens to generate where the client did not say: `None` for as many as fit.
    pub default_max_tokens: Option<usize>,
}

/// The model, if it is loaded and goes by `name`.
pub fn served<'a>(app: &'a App, name: &str) -> Result<&'a Served, ApiError> {
    let served = app.served().map_err(ApiError::loading)?;
    if app.names.iter().any(|other| other == name) {
        Ok(served)
    } else {
        Err(ApiError::model_not_found(name, &app.names))
    }
}

/// Opens a request, or refuses it because the pod is leaving or not there yet.
pub fn open(app: &App) -> Result<OpenRequest, ApiError> {
    app.served().map_err(ApiError::loading)?;
    app.drain.open().ok_or_else(|| {
        app.metrics.refused("draining");
        ApiError::draining()
    })
}

/// Runs a request and answers it.
pub async fn answer(
    app: &Arc<App>,
    request: Request,
    open: OpenRequest,
) -> Result<Response, ApiError> {
    let served = served(app, &request.params.model)?;
    let choices = choices(&request, served)?;
    let usage = Usage {
        prompt_tokens: request
            .prompts
            .iter()
            .map(|prompt| prompt.tokens.len())
            .sum(),
        completion_tokens: 0,
    };
    let echoes = request
        .prompts
        .iter()
        .flat_map(|prompt| std::iter::repeat_n(prompt.echo.clone(), request.params.choices));
    let echoes: Vec<String> = echoes.collect();
    let shape = shape(&request);
    let generation = if request.params.max_tokens == Some(0) {
        Generation::of_nothing(choices.len())
    } else {
        served.engine.submit(choices).await?
    };
    let mut response = if request.params.stream {
        stream(shape, &echoes, generation, usage, open).into_response()
    } else {
        whole(&shape, echoes, generation, usage, open).await?
    };
    if served.info.simulated {
        response
            .headers_mut()
            .insert(SIMULATED_HEADER, HeaderValue::from_static("true"));
    }
    Ok(response)
}

fn shape(request: &Request) -> Shape {
    Shape {
        endpoint: request.endpoint,
        id: format!("{:032x}", rand::random::<u128>()),
        created: unix_seconds(),
        model: request.params.model.clone(),
        include_usage: request.params.include_usage,
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The sequences to generate: every prompt `n` times, each with a seed of its own.
fn choices(request: &Request, served: &Served) -> Result<Vec<NewChoice>, ApiError> {
    let params = &request.params;
    let count = request.prompts.len() * params.choices;
    if count > MAX_CHOICES {
        let message = format!(
            "{} prompts times n = {} are {count} answers; at most {MAX_CHOICES} are allowed",
            request.prompts.len(),
            params.choices
        );
        return Err(ApiError::bad_param("n", message));
    }
    let stop_tokens = if params.ignore_eos {
        Arc::from([])
    } else {
        served.language.stop_tokens()
    };
    let mut choices = Vec::with_capacity(count);
    for prompt in &request.prompts {
        served.limits.check_prompt(prompt.tokens.len())?;
        let room = served.limits.longest_sequence() - prompt.tokens.len();
        let wanted = params
            .max_tokens
            .or(request.default_max_tokens)
            .unwrap_or(room);
        for choice in 0..params.choices {
            let seed = derive_seed(params.sampling.seed, choice as u32);
            choices.push(NewChoice {
                prompt: prompt.tokens.clone(),
                max_new_tokens: wanted.min(room),
                sampling: SamplingParams {
                    seed,
                    ..params.sampling.clone()
                },
                stop: params.stop.clone(),
                stop_tokens: Arc::clone(&stop_tokens),
                ..NewChoice::default()
            });
        }
    }
    Ok(choices)
}

async fn whole(
    shape: &Shape,
    echoes: Vec<String>,
    mut generation: Generation,
    mut usage: Usage,
    _open: OpenRequest,
) -> Result<Response, ApiError> {
    let start = |text| FinishedChoice { text, reason: None };
    let mut choices: Vec<FinishedChoice> = echoes.into_iter().map(start).collect();
    while let Some(ChoiceEvent { choice, event }) = generation.next().await {
        let Some(finished) = choices.get_mut(choice) else {
            continue;
        };
        match event {
            Event::Piece(piece) => finished.text.push_str(&piece.text),
            Event::Finished {
                reason,
                completion_tokens,
                ..
            } => {
                finished.reason = Some(reason);
                usage.completion_tokens += completion_tokens;
            }
            Event::Failed(failure) => return Err(failure.into()),
            Event::Accepted | Event::Refused(_) => {}
        }
    }
    Ok(Json(shape.whole(&choices, usage)).into_response())
}

/// A stream under way. Dropping it, which the server does when the client leaves, cancels the generation.
struct Streaming {
    shape: Shape,
    generation: Generation,
    usage: Usage,
    ready: VecDeque<SseEvent>,
    over: bool,
    _open: OpenRequest,
}

fn stream(
    shape: Shape,
    echoes: &[String],
    generation: Generation,
    usage: Usage,
    open: OpenRequest,
) -> impl IntoResponse {
    let mut ready = VecDeque::new();
    for (choice, echo) in echoes.iter().enumerate() {
        ready.extend(shape.opening_chunk(choice).map(|chunk| data(&chunk)));
        if !echo.is_empty() {
            ready.push_back(data(&shape.text_chunk(choice, echo)));
        }
    }
    let streaming = Streaming {
        shape,
        generation,
        usage,
        ready,
        over: false,
        _open: open,
    };
    Sse::new(streaming.into_events()).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

fn data(chunk: &Value) -> SseEvent {
    SseEvent::default().data(chunk.to_string())
}

impl Streaming {
    fn into_events(self) -> impl Stream<Item = Result<SseEvent, Infallible>> {
        futures::stream::unfold(self, |mut streaming| async {
            let event = streaming.next().await?;
            Some((Ok(event), streaming))
        })
    }

    async fn next(&mut self) -> Option<SseEvent> {
        while self.ready.is_empty() && !self.over {
            let event = self.generation.next().await;
            self.take(event);
        }
        self.ready.pop_front()
    }

    fn take(&mut self, event: Option<ChoiceEvent>) {
        let Some(ChoiceEvent { choice, event }) = event else {
            self.end();
            return;
        };
        match event {
            Event::Piece(piece) => self
                .ready
                .push_back(data(&self.shape.text_chunk(choice, &piece.text))),
            Event::Finished {
                reason,
                completion_tokens,
                ..
            } => {
                self.usage.completion_tokens += completion_tokens;
                self.ready
                    .push_back(data(&self.shape.closing_chunk(choice, reason)));
            }
            Event::Failed(failure) => {
                self.ready
                    .push_back(data(&ApiError::from(failure).to_json()));
                self.over = true;
            }
            Event::Accepted | Event::Refused(_) => {}
        }
    }

    fn end(&mut self) {
        self.over = true;
        if self.shape.include_usage {
            self.ready
                .push_back(data(&self.shape.usage_chunk(self.usage)));
        }
        self.ready.push_back(SseEvent::default().data("[DONE]"));
    }
}
