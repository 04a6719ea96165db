//! `/tokenize` and `/detokenize`, in vLLM's shapes: what a text or a conversation is for this model.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use pagoda_text::SpecialTokens;
use serde_json::{Value, json};

use super::body;
use super::chat;
use super::errors::ApiError;
use super::fields::Fields;
use super::generate;
use super::tools;
use crate::app::{App, Served};
use crate::language::{Conversation, Language};

/// Tokens of `prompt`, or of `messages` under the chat template.
pub async fn tokenize(State(app): State<Arc<App>>, body: Body) -> Result<Json<Value>, ApiError> {
    let body = body::read(body, app.body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let served = served(&app, &mut fields)?;
    let language = Arc::clone(&served.language);
    let with_texts = fields.take("return_token_strs")?.unwrap_or(false);
    let with_special = fields.take("add_special_tokens")?;
    let tokens = if let Some(prompt) = fields.take::<String>("prompt")? {
        fields.refuse_rest()?;
        text_tokens(&language, &prompt, with_special.unwrap_or(true))
    } else {
        let conversation = conversation(&mut fields)?;
        fields.refuse_rest()?;
        chat::encode(Arc::clone(&language), conversation).await?
    };
    let mut answer = json!({
        "count": tokens.len(), "max_model_len": served.info.context_tokens, "tokens": tokens, "token_strs": null,
    });
    if with_texts {
        let text = |id: &u32| language.tokenizer().token_text(*id).unwrap_or_default();
        answer["token_strs"] = tokens.iter().map(text).collect();
    }
    Ok(Json(answer))
}

fn conversation(fields: &mut Fields) -> Result<Conversation, ApiError> {
    let generation = fields.take("add_generation_prompt")?.unwrap_or(true);
    let tools = tools::take(fields)?;
    Ok(Conversation {
        tools: tools.map(|tools| tools.given),
        without_generation_prompt: !generation,
        ..chat::conversation(fields)?
    })
}

fn text_tokens(language: &Language, text: &str, with_special: bool) -> Vec<u32> {
    if with_special {
        language.encode_text(text)
    } else {
        language.tokenizer().encode(text, SpecialTokens::Parse)
    }
}

/// Text of `tokens`.
pub async fn detokenize(State(app): State<Arc<App>>, body: Body) -> Result<Json<Value>, ApiError> {
    let body = body::read(body, app.body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let served = served(&app, &mut fields)?;
    let tokens: Vec<u32> = fields.require("tokens")?;
    fields.refuse_rest()?;
    let text = served
        .language
        .tokenizer()
        .decode(&tokens)
        .map_err(|error| ApiError::bad_param("tokens", error.to_string()))?;
    Ok(Json(json!({"prompt": text})))
}

/// As in vLLM, the model need not be named.
fn served<'a>(app: &'a App, fields: &mut Fields) -> Result<&'a Served, ApiError> {
    match fields.take::<String>("model")? {
        Some(name) => generate::served(app, &name),
        None => app.served().map_err(ApiError::loading),
    }
}
