//! Keeping clients from writing control tokens: see the crate's documentation.

use std::borrow::Cow;

use minijinja::value::ValueKind;

use crate::chat::{ChatRequest, Content, Json, Message};
use crate::json::{self, with_parsed_arguments};
use crate::special::SpecialFinder;

/// Characters that Unicode sets aside for a program's own use and that no text should carry.
const CANDIDATES: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// A request's texts, guarded.
pub(crate) struct Guarded {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Option<Json>,
    pub(crate) variables: Option<Json>,
}

/// A character that breaks the texts of control tokens while a template is rendered. It goes after
/// such a text's first character; a control token of a single character cannot be guarded this way.
pub(crate) struct Guard {
    mark: char,
    /// Every candidate occurs in the conversation, so the mark's own occurrences are given up.
    is_crowded: bool,
}

impl Guard {
    /// Chooses a mark that neither the conversation nor a special token contains.
    pub(crate) fn for_request(special: &SpecialFinder, request: &ChatRequest<'_>) -> Self {
        let mut used: std::collections::BTreeSet<char> =
            CANDIDATES.filter(|&c| special.uses(c)).collect();
        let mut visit = |text: &str| used.extend(text.chars().filter(|c| CANDIDATES.contains(c)));
        for message in request.messages {
            visit_message(message, &mut visit);
        }
        for value in [request.tools, request.variables].into_iter().flatten() {
            visit_json(value, &mut visit);
        }
        match CANDIDATES.into_iter().find(|c| !used.contains(c)) {
            Some(mark) => Self {
                mark,
                is_crowded: false,
            },
            None => Self {
                mark: *CANDIDATES.start(),
                is_crowded: true,
            },
        }
    }

    /// The request's texts with every control token in them broken.
    pub(crate) fn guarded(&self, special: &SpecialFinder, request: &ChatRequest<'_>) -> Guarded {
        let json = |value: Option<&Json>| value.map(|value| self.broken_json(special, value));
        Guarded {
            messages: request
                .messages
                .iter()
                .map(|message| self.guarded_message(special, message))
                .collect(),
            tools: json(request.tools),
            variables: json(request.variables),
        }
    }

    fn guarded_message(&self, special: &SpecialFinder, message: &Message) -> Message {
        let text = |text: &String| self.broken(special, text).into_owned();
        Message {
            role: text(&message.role),
            content: match &message.content {
                Content::Absent => Content::Absent,
                Content::Text(content) => Content::Text(text(content)),
                // One text, or a token could be spelled across two parts.
                Content::Parts(parts) => Content::Text(text(&parts.join("\n"))),
            },
            reasoning_content: message.reasoning_content.as_ref().map(text),
            name: message.name.as_ref().map(text),
            tool_call_id: message.tool_call_id.as_ref().map(text),
            // Parsed first, or JSON's escapes would hide a token until the template parses them.
            tool_calls: message
                .tool_calls
                .as_ref()
                .map(|calls| self.broken_json(special, &with_parsed_arguments(calls))),
        }
    }

    fn broken<'a>(&self, special: &SpecialFinder, text: &'a str) -> Cow<'a, str> {
        let text = if self.is_crowded {
            self.removed(text)
        } else {
            Cow::Borrowed(text)
        };
        let starts = special.control_starts(&text);
        if starts.is_empty() {
            return text;
        }
        let mut out = String::with_capacity(text.len() + starts.len() * self.mark.len_utf8());
        let mut from = 0;
        for start in starts {
            let after = start + text[start..].chars().next().map_or(0, char::len_utf8);
            out.push_str(&text[from..after]);
            out.push(self.mark);
            from = after;
        }
        out.push_str(&text[from..]);
        Cow::Owned(out)
    }

    fn broken_json(&self, special: &SpecialFinder, value: &Json) -> Json {
        if let Some(text) = value.as_str() {
            return Json::from(self.broken(special, text).into_owned());
        }
        match value.kind() {
            ValueKind::Seq => {
                let items = value.try_iter().into_iter().flatten();
                Json::from(
                    items
                        .map(|item| self.broken_json(special, &item))
                        .collect::<Vec<_>>(),
                )
            }
            ValueKind::Map => {
                let broken = |item: &Json| self.broken_json(special, item);
                json::object(json::entries(value).map(|(key, item)| (broken(&key), broken(&item))))
            }
            _ => value.clone(),
        }
    }

    /// The text without marks.
    pub(crate) fn removed<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if text.contains(self.mark) {
            Cow::Owned(text.replace(self.mark, ""))
        } else {
            Cow::Borrowed(text)
        }
    }
}

fn visit_message(message: &Message, visit: &mut dyn FnMut(&str)) {
    visit(&message.role);
    match &message.content {
        Content::Absent => {}
        Content::Text(text) => visit(text),
        Content::Parts(parts) => parts.iter().for_each(|part| visit(part)),
    }
    let optional = [
        &message.reasoning_content,
        &message.name,
        &message.tool_call_id,
    ];
    optional.into_iter().flatten().for_each(|text| visit(text));
    if let Some(calls) = &message.tool_calls {
        visit_json(&with_parsed_arguments(calls), visit);
    }
}

fn visit_json(value: &Json, visit: &mut dyn FnMut(&str)) {
    if let Some(text) = value.as_str() {
        return visit(text);
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        return;
    }
    if value.kind() == ValueKind::Map {
        for (key, item) in json::entries(value) {
            visit_json(&key, visit);
            visit_json(&item, visit);
        }
        return;
    }
    for item in value.try_iter().into_iter().flatten() {
        visit_json(&item, visit);
    }
}
