//! What both completion endpoints share: from tokens and parameters to a whole answer or a stream of events.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use pagoda_text::structured::Constraint;

use super::choices::choices;
use super::errors::ApiError;
use super::logprobs::LogprobsShape;
use super::params::Params;
use super::reader::{ChoiceReader, Finish, FinishedChoice, Reading};
use super::shape::{Echo, Endpoint, Shape, Usage};
use super::streaming::stream;
use crate::app::{App, Served};
use crate::drain::OpenRequest;
use crate::engine::{ChoiceEvent, Event, Generation};

/// Marks answers that no model gave.
const SIMULATED_HEADER: &str = "x-pagoda-simulated";

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
    /// Log probabilities were asked for.
    pub logprobs: bool,
    /// Those of the prompt too, with so many rivals.
    pub prompt_logprobs: Option<usize>,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// How to read the answer.
    pub reading: Reading,
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

/// Runs what turns a client's text into tokens on a thread where it holds up no other request.
pub async fn tokenised<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("tokenising failed: {error}")))
}

/// An answer under way.
pub struct Running {
    /// How it is written.
    pub shape: Shape,
    /// How each choice is read.
    pub readers: Vec<ChoiceReader>,
    /// What goes before each choice.
    pub echoes: Vec<Echo>,
    /// Where the tokens come from.
    pub generation: Generation,
    /// What was counted so far.
    pub usage: Usage,
    /// Sequences of one prompt.
    pub best_of: usize,
    /// No tokens were asked for, so that is why the answer ends.
    pub is_prompt_only: bool,
    _open: OpenRequest,
}

impl Running {
    /// Counts what a choice used; the prompt once.
    pub fn count(&mut self, choice: usize, completion_tokens: usize, cached_tokens: usize) {
        self.usage.completion_tokens += completion_tokens;
        if choice.is_multiple_of(self.best_of) {
            self.usage.cached_tokens += cached_tokens;
        }
    }
}

/// Runs a request and answers it.
pub async fn answer(
    app: &Arc<App>,
    request: Request,
    open: OpenRequest,
) -> Result<Response, ApiError> {
    let served = served(app, &request.params.model)?;
    let running = start(&request, served, open).await?;
    let mut response = if request.params.stream {
        stream(running).into_response()
    } else {
        whole(running, request.params.choices).await?
    };
    if served.info.simulated {
        response
            .headers_mut()
            .insert(SIMULATED_HEADER, HeaderValue::from_static("true"));
    }
    Ok(response)
}

async fn start(request: &Request, served: &Served, open: OpenRequest) -> Result<Running, ApiError> {
    let choices = choices(request, served)?;
    let is_prompt_only = request.params.max_tokens == Some(0);
    let shape = shape(request, served);
    let readers = (0..choices.len()).map(|n| ChoiceReader::new(&request.reading, &shape.id, n));
    let readers = readers.collect();
    let count = choices.len();
    let generation = if is_prompt_only && request.prompt_logprobs.is_none() {
        Generation::of_nothing(count)
    } else {
        served.engine.submit(choices).await?
    };
    let prompts = request.prompts.iter();
    Ok(Running {
        shape,
        readers,
        echoes: prompts
            .clone()
            .flat_map(|prompt| std::iter::repeat_n(echo(request, prompt), request.params.best_of))
            .collect(),
        generation,
        usage: Usage {
            prompt_tokens: prompts.map(|prompt| prompt.tokens.len()).sum(),
            ..Usage::default()
        },
        best_of: request.params.best_of,
        is_prompt_only,
        _open: open,
    })
}

fn echo(request: &Request, prompt: &Prompt) -> Echo {
    Echo {
        text: prompt.echo.clone(),
        first: request
            .prompt_logprobs
            .and_then(|_| prompt.tokens.first().copied()),
    }
}

fn shape(request: &Request, served: &Served) -> Shape {
    Shape {
        endpoint: request.endpoint,
        id: format!("{:032x}", rand::random::<u128>()),
        created: unix_seconds(),
        model: request.params.model.clone(),
        include_usage: request.params.include_usage,
        logprobs: LogprobsShape::new(Arc::clone(&served.language), request.logprobs),
    }
}

/// A client's JSON as templates take it.
pub fn json(value: serde_json::Value) -> Result<pagoda_text::Json, ApiError> {
    serde_json::from_value(value).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

async fn whole(mut running: Running, wanted: usize) -> Result<Response, ApiError> {
    let mut choices = vec![FinishedChoice::default(); running.readers.len()];
    while let Some(ChoiceEvent { choice, event }) = running.generation.next().await {
        let (Some(finished), Some(reader)) =
            (choices.get_mut(choice), running.readers.get_mut(choice))
        else {
            continue;
        };
        match event {
            Event::Piece(mut piece) => {
                finished.prompt.append(&mut piece.prompt);
                let deltas = reader.push(piece);
                for delta in deltas {
                    finished.add(delta);
                }
                finished.logprobs.extend(reader.take_logprobs());
            }
            Event::Finished {
                reason,
                completion_tokens,
                cached_tokens,
            } => {
                let (rest, finish) = reader.finish(reason);
                for delta in rest {
                    finished.add(delta);
                }
                finished.finish = Some(reason_of(finish, running.is_prompt_only));
                running.count(choice, completion_tokens, cached_tokens);
            }
            Event::Failed(failure) => return Err(failure.into()),
            Event::Accepted | Event::Refused(_) | Event::Embedding(_) => {}
        }
    }
    let (choices, echoes) = best(choices, &running, wanted);
    let answer = running.shape.whole(&choices, &echoes, running.usage);
    Ok(Json(answer).into_response())
}

/// Whoever asks for no tokens gets none, whatever the model would have said.
pub fn reason_of(finish: Finish, is_prompt_only: bool) -> Finish {
    if is_prompt_only {
        Finish::Length
    } else {
        finish
    }
}

/// The `wanted` most probable choices of each prompt, in order of their probability where there is a choice.
fn best(
    choices: Vec<FinishedChoice>,
    running: &Running,
    wanted: usize,
) -> (Vec<FinishedChoice>, Vec<Echo>) {
    let mut kept = (Vec::new(), Vec::new());
    let mut all: Vec<_> = choices.into_iter().zip(&running.echoes).collect();
    for of_prompt in all.chunks_mut(running.best_of) {
        if wanted < running.best_of {
            of_prompt.sort_by(|a, b| b.0.score().total_cmp(&a.0.score()));
        }
        for (choice, echo) in of_prompt.iter_mut().take(wanted) {
            kept.0.push(std::mem::take(choice));
            kept.1.push(echo.clone());
        }
    }
    kept
}
