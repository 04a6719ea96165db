//! Between text and tokens for one model: its tokenizer, its chat template, and the tokens that end an answer.

use std::sync::Arc;

use pagoda_text::{ChatRequest, ChatTemplate, Message, SpecialTokens, TemplateError, Tokenizer};

/// The template of the simulated executor's byte vocabulary, which has no control tokens for turns.
const PLAIN_TEMPLATE: &str = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

/// What a model makes of text. Immutable; shared between threads.
#[derive(Debug)]
pub struct Language {
    tokenizer: Tokenizer,
    template: Result<ChatTemplate, TemplateError>,
    stop_tokens: Arc<[u32]>,
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

impl Language {
    /// The language of a loaded model.
    pub fn new(tokenizer: Tokenizer, template: Result<ChatTemplate, TemplateError>) -> Self {
        let stop_tokens = tokenizer.end_of_generation().into();
        Self {
            tokenizer,
            template,
            stop_tokens,
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
        let template = self
            .template
            .as_ref()
            .map_err(|error| LanguageError::NoTemplate(error.clone()))?;
        let request = ChatRequest::new(messages, now_unix_seconds);
        self.tokenizer
            .encode_chat(template, &request)
            .map_err(LanguageError::Template)
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
}
