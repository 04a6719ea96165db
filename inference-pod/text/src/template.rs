//! Chat templates: the model's own Jinja, rendered within a budget and without reach.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, context};
use pagoda_gguf::{Metadata, MetadataError, Optional};
use serde::Serialize;

use crate::chat::{ChatRequest, Content, Json, Message};
use crate::json::with_parsed_arguments;

const NAME: &str = "chat_template";
const KEY: &str = "tokenizer.chat_template";
/// Steps a rendering may take; a step also pays for 64 bytes of text made. That is a quarter of a
/// gigabyte of text, or some tenths of a second, and far from what any real conversation needs.
const FUEL: u64 = 4_000_000;
/// Longest JSON text one `tojson` may make, as the engine cannot stop it half way.
const JSON_LIMIT_BYTES: usize = 16 << 20;

/// The template for files without one: ChatML, which most models understand in some measure.
pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
     '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Why a conversation was not rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The file's template is of another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The template does not parse: no request can be rendered.
    #[error("chat template does not parse: {message}")]
    Syntax {
        /// What the parser said, with the line.
        message: String,
    },
    /// The template itself refuses the conversation, as some do roles or their order. The client's
    /// to mend.
    #[error("the model's chat template refuses this conversation: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// The template does not cope with the conversation.
    #[error("the model's chat template cannot render this conversation: {message}")]
    Failed {
        /// What the template engine said.
        message: String,
    },
    /// The template takes more steps than it may: it loops, or the conversation is vast.
    #[error("the model's chat template took more than {steps} steps")]
    OutOfBudget {
        /// The budget.
        steps: u64,
    },
}

/// What `raise_exception` was given, to tell a refusal from a fault.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// How a template wants contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentShape {
    Text,
    Parts,
}

/// A parsed template. Immutable; share it between threads.
///
/// It sees `messages`, `tools`, `add_generation_prompt`, `bos_token`, `eos_token`, `strftime_now`,
/// `raise_exception` and the request's variables, and nothing else: no files, no other templates.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    shape: ContentShape,
    source: String,
}

impl ChatTemplate {
    /// The template of a file, or [`CHATML`] where it has none.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TemplateError> {
        Self::parse(metadata.get_str(KEY).optional()?.unwrap_or(CHATML))
    }

    /// Parses a template as Hugging Face writes them.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        let mut environment = environment()?;
        environment
            .add_template_owned(NAME, without_generation_blocks(source))
            .map_err(|error| syntax(&error))?;
        let mut template = Self {
            environment,
            shape: ContentShape::Text,
            source: source.to_owned(),
        };
        template.shape = template.probed_shape();
        Ok(template)
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it looks at the tools it is given.
    pub fn takes_tools(&self) -> bool {
        let template = self.environment.get_template(NAME);
        template.is_ok_and(|template| template.undeclared_variables(false).contains("tools"))
    }

    /// The prompt's text. `bos` and `eos` are the texts of those tokens, empty where there is none.
    pub fn render(
        &self,
        request: &ChatRequest<'_>,
        bos: &str,
        eos: &str,
    ) -> Result<String, TemplateError> {
        let messages: Vec<Json> = request
            .messages
            .iter()
            .map(|message| self.message_value(message))
            .collect();
        let now = request.now_unix_seconds;
        let variables = request
            .variables
            .filter(|value| value.kind() == ValueKind::Map)
            .cloned();
        let values = context! {
            messages => messages,
            tools => request.tools.cloned().unwrap_or_default(),
            add_generation_prompt => request.add_generation_prompt,
            bos_token => bos,
            eos_token => eos,
            strftime_now => Json::from_function(move |format: String| strftime(now, &format)),
            ..variables.unwrap_or_else(|| context! {})
        };
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| failure(&error))?;
        template.render(values).map_err(|error| failure(&error))
    }

    fn message_value(&self, message: &Message) -> Json {
        let mut fields: BTreeMap<&str, Json> = BTreeMap::new();
        fields.insert("role", Json::from(&message.role));
        fields.insert("content", self.content_value(&message.content));
        let optional = [
            ("reasoning_content", &message.reasoning_content),
            ("name", &message.name),
            ("tool_call_id", &message.tool_call_id),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                fields.insert(key, Json::from(value));
            }
        }
        if let Some(calls) = &message.tool_calls {
            fields.insert("tool_calls", with_parsed_arguments(calls));
        }
        Json::from(fields)
    }

    fn content_value(&self, content: &Content) -> Json {
        let part = |text: &String| context! { type => "text", text => text };
        match (content, self.shape) {
            (Content::Absent, _) => Json::from(()),
            (Content::Text(text), ContentShape::Text) => Json::from(text),
            (Content::Parts(parts), ContentShape::Text) => Json::from(parts.join("\n")),
            (Content::Text(text), ContentShape::Parts) => Json::from(vec![part(text)]),
            (Content::Parts(parts), ContentShape::Parts) => {
                Json::from(parts.iter().map(part).collect::<Vec<_>>())
            }
        }
    }

    /// Few templates take nothing but lists of parts; trying tells which.
    fn probed_shape(&self) -> ContentShape {
        const WORD: &str = "pagoda-probe";
        let messages = [Message::new("user", WORD)];
        let shows_word = |shape| {
            let template = Self {
                shape,
                source: String::new(),
                environment: self.environment.clone(),
            };
            template
                .render(&ChatRequest::new(&messages, 0), "", "")
                .is_ok_and(|text| text.contains(WORD))
        };
        if !shows_word(ContentShape::Text) && shows_word(ContentShape::Parts) {
            ContentShape::Parts
        } else {
            ContentShape::Text
        }
    }
}

fn environment() -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    let config = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| syntax(&error))?;
    environment.set_syntax(config);
    environment.set_debug(false);
    environment.set_fuel(Some(FUEL));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function(
        "raise_exception",
        |message: Json| -> Result<Json, minijinja::Error> {
            let raised = Raised(message.to_string());
            Err(
                minijinja::Error::new(ErrorKind::InvalidOperation, raised.0.clone())
                    .with_source(raised),
            )
        },
    );
    environment.add_filter("tojson", to_json);
    Ok(environment)
}

/// Hugging Face marks what an assistant said with blocks that matter in training only.
fn without_generation_blocks(source: &str) -> String {
    let mut out = source.to_owned();
    for lead in ["{%", "{%-", "{%+"] {
        for trail in ["%}", "-%}", "+%}"] {
            out = out.replace(
                &format!("{lead} generation {trail}"),
                &format!("{lead} if true {trail}"),
            );
            out = out.replace(
                &format!("{lead} endgeneration {trail}"),
                &format!("{lead} endif {trail}"),
            );
        }
    }
    out
}

fn strftime(unix_seconds: i64, format: &str) -> Result<String, minijinja::Error> {
    let failed =
        |error: jiff::Error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string());
    let now = jiff::Timestamp::from_second(unix_seconds)
        .map_err(failed)?
        .to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now).map_err(failed)
}

/// JSON as Python's `json.dumps(.., ensure_ascii=False)` writes it; Jinja's own escapes HTML.
#[allow(clippy::needless_pass_by_value)] // The engine calls filters with owned options.
fn to_json(value: &Json, indent: Option<Json>, options: Kwargs) -> Result<Json, minijinja::Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Json>>("indent")?,
    };
    let indent = indent
        .filter(|indent| !indent.is_none())
        .map(usize::try_from)
        .transpose()?;
    // Python's other options change nothing a model would notice, so they are taken and left.
    let failed = |error: serde_json::Error| {
        minijinja::Error::new(ErrorKind::BadSerialization, error.to_string())
    };
    let mut out = Bounded(Vec::new());
    match indent {
        Some(width) => {
            let spaces = " ".repeat(width.min(16));
            let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value
                .serialize(&mut serde_json::Serializer::with_formatter(
                    &mut out, pretty,
                ))
                .map_err(failed)?;
        }
        None => {
            value
                .serialize(&mut serde_json::Serializer::with_formatter(
                    &mut out, Spaced,
                ))
                .map_err(failed)?;
        }
    }
    Ok(Json::from(String::from_utf8_lossy(&out.0).into_owned()))
}

/// A buffer that takes no more than the limit.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > JSON_LIMIT_BYTES {
            return Err(std::io::Error::other("the JSON text is too long"));
        }
        self.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Python's separators: a space after comma and colon.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

fn syntax(error: &minijinja::Error) -> TemplateError {
    TemplateError::Syntax {
        message: error.to_string(),
    }
}

fn failure(error: &minijinja::Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Refused {
                message: message.clone(),
            };
        }
        let engine = current.downcast_ref::<minijinja::Error>();
        if engine.is_some_and(|engine| engine.kind() == ErrorKind::OutOfFuel) {
            return TemplateError::OutOfBudget { steps: FUEL };
        }
        cause = current.source();
    }
    TemplateError::Failed {
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
