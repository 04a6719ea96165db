//! From a request that is understood to the sequences to generate.

use std::sync::Arc;

use pagoda_engine_core::{SamplingParams, derive_seed};

use super::errors::ApiError;
use super::generate::{Prompt, Request};
use super::params::MAX_CHOICES;
use crate::app::Served;
use crate::engine::NewChoice;

/// Log probabilities of prompts at most, over all prompts and rivals: they are kept until the answer begins.
const MAX_PROMPT_LOGPROBS: usize = 1 << 18;

/// The sequences to generate: every prompt as often as asked for, each with a seed of its own.
pub fn choices(request: &Request, served: &Served) -> Result<Vec<NewChoice>, ApiError> {
    let params = &request.params;
    let count = request.prompts.len() * params.best_of;
    if count > MAX_CHOICES {
        let message = format!(
            "{} prompts times {} answers are {count} answers; at most {MAX_CHOICES} are allowed",
            request.prompts.len(),
            params.best_of
        );
        return Err(ApiError::bad_param("n", message));
    }
    check_tokens(request, served)?;
    let template = NewChoice {
        stop: params.stop.clone(),
        stop_tokens: stop_tokens(request, served),
        shown_tokens: shown_tokens(request, served),
        constraint: request.constraint.clone(),
        prompt_logprobs: request.prompt_logprobs,
        prompt_only: params.max_tokens == Some(0),
        class: params.scheduling.class,
        scope: params.scheduling.scope,
        timeout: params.scheduling.timeout,
        ..NewChoice::default()
    };
    let mut choices = Vec::with_capacity(count);
    for prompt in &request.prompts {
        served.limits.check_prompt(prompt.tokens.len())?;
        for index in 0..params.best_of {
            choices.push(NewChoice {
                prompt: prompt.tokens.clone(),
                max_new_tokens: room(request, served, prompt),
                sampling: SamplingParams {
                    seed: derive_seed(params.sampling.seed, index as u32),
                    ..params.sampling.clone()
                },
                ..template.clone()
            });
        }
    }
    Ok(choices)
}

/// Tokens to generate at most: as asked for, and no more than fit.
fn room(request: &Request, served: &Served, prompt: &Prompt) -> usize {
    let room = served.limits.longest_sequence() - prompt.tokens.len();
    let wanted = request.params.max_tokens.or(request.default_max_tokens);
    wanted.unwrap_or(room).clamp(1, room)
}

/// Ids outside the vocabulary would do nothing, or spoil a step.
fn check_tokens(request: &Request, served: &Served) -> Result<(), ApiError> {
    let tokens = served.language.tokenizer().vocab_size();
    let given = [
        (
            "logit_bias",
            request.params.sampling.logit_bias.keys().max(),
        ),
        ("stop_token_ids", request.params.stop_tokens.iter().max()),
    ];
    for (name, greatest) in given {
        if let Some(&id) = greatest
            && id as usize >= tokens
        {
            let message =
                format!("'{name}' has the token {id}, and the vocabulary has {tokens} tokens");
            return Err(ApiError::bad_param(name, message));
        }
    }
    let kept: usize = request
        .prompts
        .iter()
        .map(|prompt| prompt.tokens.len())
        .sum();
    let rivals = request.prompt_logprobs.map_or(0, |top| top + 1);
    if kept * rivals * request.params.best_of > MAX_PROMPT_LOGPROBS {
        let message = format!(
            "an echo of {kept} tokens with that many log probabilities is more than {MAX_PROMPT_LOGPROBS} of them"
        );
        return Err(ApiError::bad_param("logprobs", message));
    }
    Ok(())
}

fn stop_tokens(request: &Request, served: &Served) -> Arc<[u32]> {
    let own = request.params.stop_tokens.iter().copied();
    if request.params.ignore_eos {
        own.collect()
    } else {
        let of_model = served.language.stop_tokens();
        own.chain(of_model.iter().copied()).collect()
    }
}

fn shown_tokens(request: &Request, served: &Served) -> Arc<[u32]> {
    match request.reading.format {
        Some(format) => format.shown_tokens(served.language.tokenizer()).into(),
        None => Arc::from([]),
    }
}
