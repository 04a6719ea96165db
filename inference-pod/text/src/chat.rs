//! Conversations as templates see them.

/// A JSON value that keeps the order of its keys: `serde_json::from_str::<Json>(..)` reads one.
pub type Json = minijinja::Value;

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Content {
    /// Nothing, as in a message that only calls tools.
    #[default]
    Absent,
    /// One text.
    Text(String),
    /// Several texts. A template that takes strings gets them joined by line breaks.
    Parts(Vec<String>),
}

/// One message of a conversation.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool` or what else the template knows.
    pub role: String,
    /// What it says.
    pub content: Content,
    /// The thoughts before the answer, for templates that keep them.
    pub reasoning_content: Option<String>,
    /// Name of the speaker or tool.
    pub name: Option<String>,
    /// The call a tool's message answers.
    pub tool_call_id: Option<String>,
    /// Calls in OpenAI's shape. Arguments given as JSON text reach the template parsed.
    pub tool_calls: Option<Json>,
}

impl Message {
    /// A message of one text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Content::Text(text.into()),
            ..Self::default()
        }
    }
}

/// What a template is given.
#[derive(Debug, Clone, Copy)]
pub struct ChatRequest<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Tools in OpenAI's shape.
    pub tools: Option<&'a Json>,
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Seconds since 1970 UTC, for templates that state the date.
    pub now_unix_seconds: i64,
    /// Further variables, such as `enable_thinking`; they do not replace the ones above.
    pub variables: Option<&'a Json>,
}

impl<'a> ChatRequest<'a> {
    /// A request for the assistant's answer to `messages`.
    pub fn new(messages: &'a [Message], now_unix_seconds: i64) -> Self {
        Self {
            messages,
            tools: None,
            add_generation_prompt: true,
            now_unix_seconds,
            variables: None,
        }
    }
}
