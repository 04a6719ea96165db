//! The ways in which models write calls.

use std::fmt::Write as _;

use crate::structured::{CheckedSchema, Form, embedded_json};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Calls in one forced answer at most.
const MAX_FORCED_CALLS: usize = 16;

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What its arguments must be.
    pub parameters: CheckedSchema,
}

/// How many calls a forced answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPolicy {
    /// Exactly one.
    One,
    /// One or more.
    Many,
}

/// How a model writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, each call in its own pair: Hermes, Qwen and many others.
    Hermes,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`: Mistral.
    Mistral,
    /// An answer that is nothing but `{"name": .., "parameters": {..}}`: Llama 3.
    Llama,
}

impl ToolFormat {
    /// The format that a template speaks of; [`Self::Hermes`] where it speaks of none.
    pub fn of(template: &ChatTemplate) -> Self {
        let source = template.source();
        if source.contains("<tool_call>") {
            Self::Hermes
        } else if source.contains("[TOOL_CALLS]") {
            Self::Mistral
        } else if source.contains("\"parameters\": dictionary") || source.contains("<|python_tag|>")
        {
            Self::Llama
        } else {
            Self::Hermes
        }
    }

    /// What begins a call, or a list of them.
    pub(super) fn begin(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("<tool_call>"),
            Self::Mistral => Some("[TOOL_CALLS]"),
            Self::Llama => None,
        }
    }

    /// What ends a call.
    pub(super) fn end(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("</tool_call>"),
            Self::Mistral | Self::Llama => None,
        }
    }

    /// Texts that are marks between calls and never content.
    fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>", "</tool_call>"],
            Self::Mistral => &["[TOOL_CALLS]"],
            Self::Llama => &[],
        }
    }

    /// Control tokens that the parser must see as text.
    pub fn shown_tokens(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let tokens = self
            .marks()
            .iter()
            .filter_map(|mark| tokenizer.token_id(mark));
        tokens.filter(|&id| tokenizer.is_control(id)).collect()
    }

    /// The form of an answer that is calls of `tools` and nothing else, or JSON of a schema where there is one. There
    /// must be a tool.
    pub fn forced(
        self,
        tools: &[Tool],
        policy: CallPolicy,
        or_json: Option<&CheckedSchema>,
        tokenizer: &Tokenizer,
    ) -> Form {
        let (start, call) = self.rules(policy, tokenizer);
        let mut text = match or_json {
            Some(schema) => format!(
                "start: calls | json\ncalls: {start}\njson: {}\n",
                embedded_json(schema)
            ),
            None => format!("start: {start}\n"),
        };
        let names: Vec<String> = (0..tools.len()).map(|n| format!("object_{n}")).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "call: {call}\nobject: {}", names.join(" | "));
        for (n, tool) in tools.iter().enumerate() {
            let key = self.arguments_key();
            let opening = quoted(&format!("{{\"name\": {}, \"{key}\": ", quoted(&tool.name)));
            let schema = embedded_json(&tool.parameters);
            let _ = writeln!(
                text,
                "object_{n}: {opening} arguments_{n} \"}}\"\narguments_{n}: {schema}"
            );
        }
        Form::Lark(text)
    }

    /// What an answer is made of, and what a call is, as rules of the grammar.
    fn rules(self, policy: CallPolicy, tokenizer: &Tokenizer) -> (String, String) {
        let mark = |text: &str| mark(text, tokenizer);
        let more = |separator: &str| match policy {
            CallPolicy::One => String::new(),
            CallPolicy::Many => format!(" ({separator} call){{0,{}}}", MAX_FORCED_CALLS - 1),
        };
        match self {
            Self::Hermes => (
                format!("call{}", more("\"\\n\"")),
                format!(
                    "{} \"\\n\" object \"\\n\" {}",
                    mark("<tool_call>"),
                    mark("</tool_call>")
                ),
            ),
            Self::Mistral => (
                format!(
                    "{} \"[\" call{} \"]\"",
                    mark("[TOOL_CALLS]"),
                    more("\", \"")
                ),
                "object".into(),
            ),
            Self::Llama => ("call".into(), "object".into()),
        }
    }

    /// The key of a call's arguments.
    fn arguments_key(self) -> &'static str {
        match self {
            Self::Hermes | Self::Mistral => "arguments",
            Self::Llama => "parameters",
        }
    }
}

/// A mark as a token of its own where the vocabulary keeps it from being text.
fn mark(text: &str, tokenizer: &Tokenizer) -> String {
    match tokenizer.token_id(text) {
        Some(id) if tokenizer.is_control(id) => format!("<[{id}]>"),
        _ => quoted(text),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_tells_the_format() {
        let of = |source: &str| ToolFormat::of(&ChatTemplate::parse(source).unwrap());
        assert_eq!(of("{{ messages[0].content }}"), ToolFormat::Hermes);
        assert_eq!(of("{{ '<tool_call>' }}"), ToolFormat::Hermes);
        assert_eq!(of("{{ '[TOOL_CALLS]' }}"), ToolFormat::Mistral);
        assert_eq!(of("{{ '<|python_tag|>' }}"), ToolFormat::Llama);
    }

    #[test]
    fn a_forced_answer_is_spelled_as_the_format_has_it() {
        let tool = |name: &str| Tool {
            name: name.into(),
            parameters: CheckedSchema::object(),
        };
        let Form::Lark(text) = ToolFormat::Hermes.forced(
            &[tool("a"), tool("b")],
            CallPolicy::Many,
            None,
            &Tokenizer::bytes(),
        ) else {
            panic!("calls are a grammar")
        };
        assert!(
            text.starts_with("start: call (\"\\n\" call){0,15}\n"),
            "{text}"
        );
        assert!(text.contains("object: object_0 | object_1\n"), "{text}");
        assert!(
            text.contains(r#"object_1: "{\"name\": \"b\", \"arguments\": " arguments_1 "}""#),
            "{text}"
        );
    }
}
