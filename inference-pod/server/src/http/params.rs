//! The parameters that both completion endpoints share, in OpenAI's names and ranges.

use std::collections::BTreeMap;

use pagoda_engine_core::SamplingParams;
use serde::Deserialize;

use super::errors::ApiError;
use super::fields::Fields;
use super::format::{self, AnswerFormat};
use super::scheduling::Scheduling;

/// Choices of one request at most (`n`, times prompts): each is a sequence.
pub const MAX_CHOICES: usize = 32;

/// Stop strings of one request at most. OpenAI allows four.
const MAX_STOP_STRINGS: usize = 16;

/// Bytes of a stop string at most: that much text may be held back.
const MAX_STOP_BYTES: usize = 256;

/// Token ids in `stop_token_ids` and keys of `logit_bias` at most.
const MAX_STOP_TOKENS: usize = 64;
const MAX_BIASES: usize = 1024;

/// The most probable tokens reported beside each token at most, as OpenAI has it for conversations.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// One value or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    // Others pad chunks against traffic analysis; it is off unless asked for, and not offered here.
    include_obfuscation: Option<bool>,
}

/// How to generate and how to answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// The model's name, as asked for.
    pub model: String,
    /// Answer as a stream of events.
    pub stream: bool,
    /// End the stream with the usage.
    pub include_usage: bool,
    /// Answers per prompt.
    pub choices: usize,
    /// Answers generated per prompt, of which the most probable ones are given: at least as many as `choices`.
    pub best_of: usize,
    /// Tokens to generate at most.
    pub max_tokens: Option<usize>,
    /// How to choose tokens; the seed is the request's own or random.
    pub sampling: SamplingParams,
    /// Strings that end an answer.
    pub stop: Vec<String>,
    /// Tokens that end an answer, besides the model's own.
    pub stop_tokens: Vec<u32>,
    /// Go on where the model would end its turn.
    pub ignore_eos: bool,
    /// What the answer must look like.
    pub format: AnswerFormat,
    /// What the scheduler knows of it.
    pub scheduling: Scheduling,
}

impl Params {
    /// Takes the shared parameters out of `fields`. `random_seed` is used when the request has none.
    pub fn take(fields: &mut Fields, random_seed: u64) -> Result<Self, ApiError> {
        let stream = fields.take("stream")?.unwrap_or(false);
        let choices = choices(fields)?;
        Ok(Self {
            model: fields.require("model")?,
            stream,
            include_usage: include_usage(fields, stream)?,
            choices,
            best_of: best_of(fields, choices, stream)?,
            max_tokens: max_tokens(fields)?,
            sampling: sampling(fields, random_seed)?,
            stop: stop(fields)?,
            stop_tokens: stop_tokens(fields)?,
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
            format: format::take(fields)?,
            scheduling: Scheduling::take(fields)?,
        })
    }
}

/// The most probable of several answers. It is known at the end only, so it cannot be streamed.
fn best_of(fields: &mut Fields, choices: usize, stream: bool) -> Result<usize, ApiError> {
    let best_of = fields.take::<usize>("best_of")?.unwrap_or(choices);
    if !(choices..=MAX_CHOICES).contains(&best_of) {
        return Err(ApiError::bad_param(
            "best_of",
            format!("'best_of' must be between 'n' and {MAX_CHOICES}, got {best_of}"),
        ));
    }
    if stream && best_of > choices {
        return Err(ApiError::bad_param(
            "best_of",
            "the best of several answers is known at their end: 'best_of' greater than 'n' cannot be streamed",
        ));
    }
    Ok(best_of)
}

fn stop_tokens(fields: &mut Fields) -> Result<Vec<u32>, ApiError> {
    let tokens = fields
        .take::<Vec<u32>>("stop_token_ids")?
        .unwrap_or_default();
    if tokens.len() > MAX_STOP_TOKENS {
        return Err(ApiError::bad_param(
            "stop_token_ids",
            format!("'stop_token_ids' has more than {MAX_STOP_TOKENS} tokens"),
        ));
    }
    Ok(tokens)
}

/// How many of the most probable tokens to report, from a number that a client gave under `name`.
pub fn top_logprobs(name: &str, given: usize) -> Result<usize, ApiError> {
    if given > MAX_TOP_LOGPROBS {
        return Err(ApiError::bad_param(
            name,
            format!("'{name}' must be between 0 and {MAX_TOP_LOGPROBS}, got {given}"),
        ));
    }
    Ok(given)
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.take::<StreamOptions>("stream_options")? else {
        return Ok(false);
    };
    if !stream {
        return Err(ApiError::bad_param(
            "stream_options",
            "'stream_options' goes with 'stream': true only",
        ));
    }
    if options.include_obfuscation == Some(true) {
        return Err(ApiError::unsupported(
            "stream_options.include_obfuscation",
            "obfuscation of streams",
        ));
    }
    Ok(options.include_usage.unwrap_or(false))
}

fn choices(fields: &mut Fields) -> Result<usize, ApiError> {
    let choices = fields.take::<usize>("n")?.unwrap_or(1);
    if !(1..=MAX_CHOICES).contains(&choices) {
        return Err(ApiError::bad_param(
            "n",
            format!("'n' must be between 1 and {MAX_CHOICES}, got {choices}"),
        ));
    }
    Ok(choices)
}

/// `max_completion_tokens` is the newer name of `max_tokens`.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let (old, new) = (
        fields.take::<usize>("max_tokens")?,
        fields.take::<usize>("max_completion_tokens")?,
    );
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let message = format!(
                "'max_tokens' is {old} and 'max_completion_tokens' is {new}: give one of them"
            );
            Err(ApiError::bad_param("max_completion_tokens", message))
        }
        _ => Ok(new.or(old)),
    }
}

fn sampling(fields: &mut Fields, random_seed: u64) -> Result<SamplingParams, ApiError> {
    let default = SamplingParams::default();
    let params = SamplingParams {
        temperature: fields.take("temperature")?.unwrap_or(default.temperature),
        top_k: top_k(fields)?,
        top_p: fields.take("top_p")?.unwrap_or(default.top_p),
        min_p: fields.take("min_p")?.unwrap_or(default.min_p),
        presence_penalty: fields
            .take("presence_penalty")?
            .unwrap_or(default.presence_penalty),
        frequency_penalty: fields
            .take("frequency_penalty")?
            .unwrap_or(default.frequency_penalty),
        logit_bias: logit_bias(fields)?,
        // A negative seed is as good a name for a stream as any.
        seed: fields
            .take::<i64>("seed")?
            .map_or(random_seed, i64::cast_unsigned),
        logprobs: None,
    };
    params
        .check()
        .map_err(|error| ApiError::bad_param(error.name, error.to_string()))?;
    Ok(params)
}

/// 0 and, as in vLLM, -1 keep all tokens.
fn top_k(fields: &mut Fields) -> Result<u32, ApiError> {
    match fields.take::<i64>("top_k")?.unwrap_or(0) {
        -1 => Ok(0),
        value => u32::try_from(value).map_err(|_| {
            ApiError::bad_param(
                "top_k",
                format!("'top_k' must be -1, 0 or more, got {value}"),
            )
        }),
    }
}

fn logit_bias(fields: &mut Fields) -> Result<BTreeMap<u32, f32>, ApiError> {
    let given = fields
        .take::<BTreeMap<String, f32>>("logit_bias")?
        .unwrap_or_default();
    if given.len() > MAX_BIASES {
        return Err(ApiError::bad_param(
            "logit_bias",
            format!("'logit_bias' has more than {MAX_BIASES} tokens"),
        ));
    }
    let token = |(key, bias): (String, f32)| match key.parse() {
        Ok(token) => Ok((token, bias)),
        Err(_) => Err(ApiError::bad_param(
            "logit_bias",
            format!("'logit_bias' has the key '{key}', which is no token id"),
        )),
    };
    given.into_iter().map(token).collect()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stop = match fields.take::<OneOrMany>("stop")? {
        None => Vec::new(),
        Some(OneOrMany::One(text)) => vec![text],
        Some(OneOrMany::Many(texts)) => texts,
    };
    if stop.len() > MAX_STOP_STRINGS {
        return Err(ApiError::bad_param(
            "stop",
            format!(
                "'stop' has {} strings; at most {MAX_STOP_STRINGS} are allowed",
                stop.len()
            ),
        ));
    }
    match stop
        .iter()
        .find(|text| text.is_empty() || text.len() > MAX_STOP_BYTES)
    {
        Some(text) => Err(ApiError::bad_param(
            "stop",
            format!(
                "a stop string must have between 1 and {MAX_STOP_BYTES} bytes, one has {}",
                text.len()
            ),
        )),
        None => Ok(stop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn params(extra: &Value) -> Result<Params, ApiError> {
        let mut body = json!({"model": "m"});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        let params = Params::take(&mut fields, 7)?;
        fields.refuse_rest().map(|()| params)
    }

    #[test]
    fn defaults_are_openais() {
        let params = params(&json!({})).unwrap();
        assert_eq!(
            params.sampling,
            SamplingParams {
                seed: 7,
                ..SamplingParams::default()
            }
        );
        assert_eq!(
            (
                params.choices,
                params.max_tokens,
                params.stream,
                params.include_usage
            ),
            (1, None, false, false)
        );
    }

    #[test]
    fn both_names_of_max_tokens_work_and_contradictions_do_not() {
        assert_eq!(
            params(&json!({"max_tokens": 5})).unwrap().max_tokens,
            Some(5)
        );
        assert_eq!(
            params(&json!({"max_completion_tokens": 0}))
                .unwrap()
                .max_tokens,
            Some(0)
        );
        assert_eq!(
            params(&json!({"max_tokens": 3, "max_completion_tokens": 3}))
                .unwrap()
                .max_tokens,
            Some(3)
        );
        assert!(params(&json!({"max_tokens": 3, "max_completion_tokens": 4})).is_err());
    }

    #[test]
    fn values_out_of_range_name_their_parameter() {
        let cases = [
            (json!({"temperature": -0.1}), "temperature"),
            (json!({"temperature": 3}), "temperature"),
            (json!({"top_p": 0}), "top_p"),
            (json!({"min_p": 2}), "min_p"),
            (json!({"top_k": -2}), "top_k"),
            (json!({"n": 0}), "n"),
            (json!({"n": 1000}), "n"),
            (json!({"n": 3, "best_of": 2}), "best_of"),
            (json!({"best_of": 33}), "best_of"),
            (json!({"best_of": 2, "stream": true}), "best_of"),
            (json!({"stop_token_ids": vec![1; 65]}), "stop_token_ids"),
            (json!({"stop_token_ids": [-1]}), "stop_token_ids"),
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type",
            ),
            (json!({"max_tokens": -1}), "max_tokens"),
            (json!({"max_tokens": 1.5}), "max_tokens"),
            (json!({"presence_penalty": 9}), "presence_penalty"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias"),
            (json!({"logit_bias": {"1": 101}}), "logit_bias"),
            (json!({"stop": ""}), "stop"),
            (json!({"stop": vec!["x"; 17]}), "stop"),
            (json!({"seed": "x"}), "seed"),
            (
                json!({"stream_options": {"include_usage": true}}),
                "stream_options",
            ),
        ];
        for (body, param) in cases {
            let error = params(&body).map_err(|error| error.param).unwrap_err();
            assert_eq!(error.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn the_best_of_several_is_as_many_as_asked_for() {
        assert_eq!(params(&json!({"n": 2})).unwrap().best_of, 2);
        assert_eq!(params(&json!({"best_of": 4})).unwrap().best_of, 4);
    }

    #[test]
    fn seeds_may_be_negative() {
        assert_eq!(
            params(&json!({"seed": -1})).unwrap().sampling.seed,
            u64::MAX
        );
    }

    #[test]
    fn a_single_stop_string_and_a_list_are_the_same() {
        assert_eq!(
            params(&json!({"stop": "a"})).unwrap().stop,
            params(&json!({"stop": ["a"]})).unwrap().stop
        );
    }
}
