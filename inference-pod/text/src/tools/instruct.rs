//! Telling a model of tools in words, where its template knows of none.

use crate::chat::{Content, Json, Message};
use crate::json::entries;

/// Whether a conversation says what a template that knows of no tools cannot.
pub fn needs_words(messages: &[Message], tools: Option<&Json>) -> bool {
    let calls = |message: &Message| message.tool_calls.is_some() || message.role == "tool";
    tools.is_some() || messages.iter().any(calls)
}

/// The conversation with the tools in its system message, if there are any, and with earlier calls and results as text.
///
/// `tools` is OpenAI's list. What the assistant called is written as the model is told to write it, and what a tool gave
/// becomes a message of the user's, so that templates with three roles take it.
pub fn instruct(messages: &[Message], tools: Option<&Json>) -> Vec<Message> {
    let mut told: Vec<Message> = messages.iter().map(spelled_out).collect();
    let Some(words) = tools.map(instructions) else {
        return told;
    };
    match told.first_mut() {
        Some(first) if first.role == "system" => {
            first.content = Content::Text(format!("{}\n\n{words}", text_of(&first.content)));
        }
        _ => told.insert(0, Message::new("system", words)),
    }
    told
}

fn instructions(tools: &Json) -> String {
    let lines: Vec<String> = tools
        .try_iter()
        .into_iter()
        .flatten()
        .map(|tool| serde_json::to_string(&tool).unwrap_or_default())
        .collect();
    format!(
        "You can call these functions, given as JSON, one a line:\n<tools>\n{}\n</tools>\n\nTo call one, answer with \
         its name and arguments as JSON between these tags, and nothing else:\n<tool_call>\n\
         {{\"name\": \"FUNCTION\", \"arguments\": {{}}}}\n</tool_call>",
        lines.join("\n")
    )
}

fn spelled_out(message: &Message) -> Message {
    match (&message.tool_calls, message.role.as_str()) {
        (Some(calls), _) => Message::new(message.role.clone(), with_calls(message, calls)),
        (None, "tool") => Message::new(
            "user",
            format!(
                "<tool_response>\n{}\n</tool_response>",
                text_of(&message.content)
            ),
        ),
        _ => message.clone(),
    }
}

fn with_calls(message: &Message, calls: &Json) -> String {
    let mut parts = Vec::new();
    let text = text_of(&message.content);
    if !text.is_empty() {
        parts.push(text);
    }
    for call in calls.try_iter().into_iter().flatten() {
        let function = call.get_attr("function").unwrap_or_default();
        let field = |name: &str| {
            let found = entries(&function).find(|(key, _)| key.as_str() == Some(name));
            found.map(|(_, value)| value).unwrap_or_default()
        };
        let (name, arguments) = (field("name"), field("arguments"));
        let arguments = arguments
            .as_str()
            .map_or_else(|| arguments.to_string(), ToOwned::to_owned);
        let name = serde_json::to_string(&name).unwrap_or_default();
        parts.push(format!(
            "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
        ));
    }
    parts.join("\n")
}

fn text_of(content: &Content) -> String {
    match content {
        Content::Absent => String::new(),
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => parts.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_calls_and_results_become_text_that_three_roles_can_say() {
        let tools: Json = serde_json::from_str(
            r#"[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]"#,
        )
        .unwrap();
        let calls: Json = serde_json::from_str(
            r#"[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]"#,
        )
        .unwrap();
        let messages = [
            Message::new("system", "Be brief."),
            Message::new("user", "x"),
            Message {
                role: "assistant".into(),
                tool_calls: Some(calls),
                ..Message::default()
            },
            Message {
                tool_call_id: Some("1".into()),
                ..Message::new("tool", "42")
            },
        ];
        assert!(needs_words(&messages, None) && !needs_words(&messages[..2], None));
        assert_eq!(instruct(&messages[1..], None).len(), 3);
        let told = instruct(&messages, Some(&tools));
        let said: Vec<(&str, String)> = told
            .iter()
            .map(|message| (message.role.as_str(), text_of(&message.content)))
            .collect();
        assert!(
            said[0].1.starts_with("Be brief.\n\nYou can call"),
            "{}",
            said[0].1
        );
        assert!(
            said[0]
                .1
                .contains(r#"{"type":"function","function":{"name":"f""#),
            "{}",
            said[0].1
        );
        assert_eq!(
            said[2],
            (
                "assistant",
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>".into()
            )
        );
        assert_eq!(
            said[3],
            ("user", "<tool_response>\n42\n</tool_response>".into())
        );
        assert_eq!(instruct(&messages[1..2], Some(&tools))[0].role, "system");
    }
}
