//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use pagoda_text::structured::{CheckedSchema, Constraint, Form};
use serde_json::{Map, Value};

use super::body;
use super::errors::ApiError;
use super::fields::Fields;
use super::format::{AnswerFormat, SCHEMA_PARAM};
use super::generate::{self, Prompt, Request};
use super::messages::messages;
use super::params::{Params, top_logprobs};
use super::reader::Reading;
use super::shape::Endpoint;
use super::tools::{self, ToolChoice, ToolUse};
use crate::app::App;
use crate::language::{Conversation, Language};
use crate::structured;

/// Answers a conversation.
pub async fn chat_completions(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response, ApiError> {
    let open = generate::open(&app)?;
    let body = body::read(body, app.body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let mut params = Params::take(&mut fields, rand::random())?;
    params.sampling.logprobs = logprobs(&mut fields)?;
    let tools = tools::take(&mut fields)?;
    let conversation = Conversation {
        tools: tools.as_ref().map(|tools| tools.given.clone()),
        ..conversation(&mut fields)?
    };
    fields.refuse_rest()?;
    let language = Arc::clone(&generate::served(&app, &params.model)?.language);
    let constraint = constraint(&language, tools.as_ref(), &params.format).await?;
    let reading = Reading::new(tools.as_ref(), language.tool_format());
    let request = Request {
        endpoint: Endpoint::Chat,
        logprobs: params.sampling.logprobs.is_some(),
        params: with_scores(params),
        prompts: vec![Prompt {
            tokens: encode(language, conversation).await?,
            echo: String::new(),
        }],
        default_max_tokens: None,
        prompt_logprobs: None,
        constraint,
        reading,
    };
    generate::answer(&app, request, open).await
}

/// Takes what a template needs.
pub fn conversation(fields: &mut Fields) -> Result<Conversation, ApiError> {
    let variables = fields.take::<Map<String, Value>>("chat_template_kwargs")?;
    Ok(Conversation {
        messages: messages(fields.require("messages")?)?,
        tools: None,
        variables: variables
            .map(|map| generate::json(Value::Object(map)))
            .transpose()?,
        without_generation_prompt: false,
        now_unix_seconds: i64::try_from(generate::unix_seconds()).unwrap_or(i64::MAX),
    })
}

/// Templates and long texts take a while: not on a thread that serves others.
pub async fn encode(
    language: Arc<Language>,
    conversation: Conversation,
) -> Result<Vec<u32>, ApiError> {
    let work = move || language.encode_conversation(&conversation);
    Ok(generate::tokenised(work).await??)
}

/// The best of several answers is told by log probabilities, wanted or not.
pub fn with_scores(mut params: Params) -> Params {
    if params.best_of > params.choices {
        params.sampling.logprobs.get_or_insert(0);
    }
    params
}

/// `logprobs` says whether, `top_logprobs` how many.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.take::<bool>("logprobs")?.unwrap_or(false);
    let top = fields.take::<usize>("top_logprobs")?;
    match (wanted, top) {
        (true, top) => top_logprobs("top_logprobs", top.unwrap_or(0)).map(Some),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::bad_param(
            "top_logprobs",
            "'top_logprobs' goes with 'logprobs': true only",
        )),
    }
}

/// What keeps an answer to its form: calls that must be, JSON that must be, or either.
async fn constraint(
    language: &Arc<Language>,
    tools: Option<&ToolUse>,
    format: &AnswerFormat,
) -> Result<Option<Constraint>, ApiError> {
    let schema = match format {
        AnswerFormat::Text => None,
        AnswerFormat::Json(schema) => Some(schema),
    };
    let (form, param) = match (tools, schema) {
        (Some(tools), schema) if tools.choice != ToolChoice::Auto || schema.is_some() => {
            // A call that must be is no JSON of the client's schema.
            let or_json = schema.filter(|_| tools.choice == ToolChoice::Auto);
            (calls(language, tools, or_json), "tools")
        }
        (None, Some(schema)) => (Form::Json(schema.clone()), SCHEMA_PARAM),
        _ => return Ok(None),
    };
    compiled(language, form, param).await.map(Some)
}

fn calls(language: &Language, tools: &ToolUse, or_json: Option<&CheckedSchema>) -> Form {
    let format = language.tool_format();
    let policy = tools.policy();
    format.forced(&tools.tools, policy, or_json, language.tokenizer())
}

/// The constraint of a form; `param` is at fault when there is none.
pub async fn compiled(
    language: &Arc<Language>,
    form: Form,
    param: &str,
) -> Result<Constraint, ApiError> {
    structured::compile(Arc::clone(language), form)
        .await
        .map_err(|error| ApiError::not_compiled(param, &error))
}
