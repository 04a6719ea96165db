//! Between text and tokens for one model: its tokenizer, its chat template, and the tokens that end an answer.

use std::sync::{Arc, OnceLock};

use pagoda_text::structured::{Constraint, Form, GrammarCompiler, GrammarError};
use pagoda_text::tools::{ToolFormat, instruct, needs_words};
use pagoda_text::{
    ChatRequest, ChatTemplate, Json, Message, SpecialTokens, TemplateError, Tokenizer,
};

/// The template of the simulated executor's byte vocabulary, which has no control tokens for turns.
const PLAIN_TEMPLATE: &str = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

/// What a model makes of text. Immutable; shared between threads.
#[derive(Debug)]
pub struct Language {
    tokenizer: Tokenizer,
    template: Result<ChatTemplate, TemplateError>,
    stop_tokens: Arc<[u32]>,
    /// Made when the first request asks for a form: it costs memory that most pods never need.
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
}

/// A conversation that cannot become tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LanguageError {
    /// The file's template is broken, so no conversation can.
    #[error("this model takes no conversations, only /v1/completions: {0}")]
    NoTemplate(TemplateError),
    /// This one cannot.
    #[error(transparent)]
    Template(TemplateError),
}

/// A conversation with all that its template may want.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// What was said.
    pub messages: Vec<Message>,
    /// Tools in OpenAI's shape, a list.
    pub tools: Option<Json>,
    /// Further variables of the template.
    pub variables: Option<Json>,
    /// Leave out the opening of the assistant's turn.
    pub without_generation_prompt: bool,
    /// Seconds since 1970 UTC.
    pub now_unix_seconds: i64,
}

impl Language {
    /// The language of a loaded model.
    pub fn new(tokenizer: Tokenizer, template: Result<ChatTemplate, TemplateError>) -> Self {
        let stop_tokens = tokenizer.end_of_generation().into();
        Self {
            tokenizer,
            template,
            stop_tokens,
            grammars: OnceLock::new(),
        }
    }

    /// One token a byte, for executors that have no model.
    pub fn bytes() -> Self {
        Self::new(Tokenizer::bytes(), ChatTemplate::parse(PLAIN_TEMPLATE))
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens that end an answer and are not part of it.
    pub fn stop_tokens(&self) -> Arc<[u32]> {
        Arc::clone(&self.stop_tokens)
    }

    /// Tokens of a prompt. Its author may write control tokens.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_prompt(text, SpecialTokens::Parse)
    }

    /// Tokens of a conversation, up to where the assistant's answer begins.
    pub fn encode_chat(
        &self,
        messages: &[Message],
        now_unix_seconds: i64,
    ) -> Result<Vec<u32>, LanguageError> {
        self.encode_request(&ChatRequest::new(messages, now_unix_seconds))
    }

    /// Tokens of a conversation with tools. Where the template knows of none, the model is told in words.
    pub fn encode_conversation(
        &self,
        conversation: &Conversation,
    ) -> Result<Vec<u32>, LanguageError> {
        let (messages, tools) = (&conversation.messages, conversation.tools.as_ref());
        let in_words = needs_words(messages, tools) && !self.template()?.takes_tools();
        let told = in_words.then(|| instruct(messages, tools));
        let messages = told.as_deref().unwrap_or(messages);
        self.encode_request(&ChatRequest {
            tools: tools.filter(|_| told.is_none()),
            variables: conversation.variables.as_ref(),
            add_generation_prompt: !conversation.without_generation_prompt,
            ..ChatRequest::new(messages, conversation.now_unix_seconds)
        })
    }

    fn encode_request(&self, request: &ChatRequest<'_>) -> Result<Vec<u32>, LanguageError> {
        self.tokenizer
            .encode_chat(self.template()?, request)
            .map_err(LanguageError::Template)
    }

    fn template(&self) -> Result<&ChatTemplate, LanguageError> {
        self.template
            .as_ref()
            .map_err(|error| LanguageError::NoTemplate(error.clone()))
    }

    /// How this model writes calls of tools.
    pub fn tool_format(&self) -> ToolFormat {
        self.template
            .as_ref()
            .map_or(ToolFormat::Hermes, ToolFormat::of)
    }

    /// The constraint of a form. Takes tenths of a second the first time, and much stack: see [`crate::structured`].
    pub fn compile(&self, form: &Form) -> Result<Constraint, GrammarError> {
        self.grammars
            .get_or_init(|| GrammarCompiler::new(&self.tokenizer))
            .as_ref()
            .map_err(Clone::clone)?
            .compile(form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_template_names_the_speakers() {
        let language = Language::bytes();
        let tokens = language
            .encode_chat(&[Message::new("user", "hi")], 0)
            .unwrap();
        assert_eq!(
            language.tokenizer().decode(&tokens).unwrap(),
            "user: hi\nassistant: "
        );
    }

    #[test]
    fn a_broken_template_refuses_conversations_and_nothing_else() {
        let language = Language::new(Tokenizer::bytes(), ChatTemplate::parse("{% if %}"));
        assert!(matches!(
            language.encode_chat(&[Message::new("user", "hi")], 0),
            Err(LanguageError::NoTemplate(_))
        ));
        assert_eq!(language.encode_text("hi"), [104, 105]);
    }

    #[test]
    fn tools_go_to_a_template_that_takes_them_and_into_words_for_one_that_does_not() {
        let tools: Json =
            serde_json::from_str(r#"[{"type":"function","function":{"name":"f"}}]"#).expect("JSON");
        let conversation = Conversation {
            messages: vec![Message::new("user", "hi")],
            tools: Some(tools),
            ..Conversation::default()
        };
        let text = |template: &str| {
            let language = Language::new(Tokenizer::bytes(), ChatTemplate::parse(template));
            let tokens = language.encode_conversation(&conversation).unwrap();
            language.tokenizer().decode(&tokens).unwrap()
        };
        assert_eq!(
            text("{{ tools[0].function.name }}/{{ messages | length }}"),
            "f/1"
        );
        let told = text("{{ messages[0].content }}/{{ messages | length }}");
        assert!(
            told.contains(r#"{"type":"function","function":{"name":"f"}}"#) && told.ends_with("/2"),
            "{told}"
        );
    }
}
