//! Keeping clients from writing control tokens: see the crate's documentation.

use std::borrow::Cow;

use minijinja::value::ValueKind;
use serde::Deserialize as _;
use serde::de::value::MapDeserializer;

use crate::chat::{ChatRequest, Content, Json, Message};
use crate::special::SpecialFinder;

/// Characters that Unicode sets aside for a program's own use and that no text should carry.
const CANDIDATES: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

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
        let mut used: std::collections::BTreeSet<char> = CANDIDATES.filter(|&c| special.uses(c)).collect();
        let mut visit = |text: &str| used.extend(text.chars().filter(|c| CANDIDATES.contains(c)));
        for message in request.messages {
            visit_message(message, &mut visit);
        }
        if let Some(tools) = request.tools {
            visit_json(tools, &mut visit);
        }
        match CANDIDATES.into_iter().find(|c| !used.contains(c)) {
            Some(mark) => Self { mark, is_crowded: false },
            None => Self { mark: *CANDIDATES.start(), is_crowded: true },
        }
    }

    /// Messages and tools with every control token's text broken.
    pub(crate) fn guarded(&self, special: &SpecialFinder, request: &ChatRequest<'_>) -> (Vec<Message>, Option<Json>) {
        let text = |text: &String| self.broken(special, text).into_owned();
        let messages = request.messages.iter().map(|message| Message {
            role: text(&message.role),
            content: match &message.content {
                Content::Absent => Content::Absent,
                Content::Text(content) => Content::Text(text(content)),
                // Joined first, or a token could be spelled across two parts.
                Content::Parts(parts) => Content::Parts(parts.iter().map(text).collect()),
            },
            reasoning_content: message.reasoning_content.as_ref().map(text),
            name: message.name.as_ref().map(text),
            tool_call_id: message.tool_call_id.as_ref().map(text),
            tool_calls: message.tool_calls.as_ref().map(|calls| self.broken_json(special, calls)),
        });
        (messages.collect(), request.tools.map(|tools| self.broken_json(special, tools)))
    }

    fn broken<'a>(&self, special: &SpecialFinder, text: &'a str) -> Cow<'a, str> {
        let text = if self.is_crowded { self.removed(text) } else { Cow::Borrowed(text) };
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
                Json::from(items.map(|item| self.broken_json(special, &item)).collect::<Vec<_>>())
            }
            ValueKind::Map => {
                let keys = value.try_iter().into_iter().flatten();
                let entries = keys.map(|key| {
                    let item = value.get_item(&key).unwrap_or_default();
                    (self.broken_json(special, &key), self.broken_json(special, &item))
                });
                // The only way to a map that keeps its order.
                let entries = MapDeserializer::new(entries);
                Json::deserialize(entries).unwrap_or_else(|_: minijinja::Error| Json::from(()))
            }
            _ => value.clone(),
        }
    }

    /// The text without marks.
    pub(crate) fn removed<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if text.contains(self.mark) { Cow::Owned(text.replace(self.mark, "")) } else { Cow::Borrowed(text) }
    }
}

fn visit_message(message: &Message, visit: &mut dyn FnMut(&str)) {
    visit(&message.role);
    match &message.content {
        Content::Absent => {}
        Content::Text(text) => visit(text),
        Content::Parts(parts) => parts.iter().for_each(|part| visit(part)),
    }
    let optional = [&message.reasoning_content, &message.name, &message.tool_call_id];
    optional.into_iter().flatten().for_each(|text| visit(text));
    if let Some(calls) = &message.tool_calls {
        visit_json(calls, visit);
    }
}

fn visit_json(value: &Json, visit: &mut dyn FnMut(&str)) {
    if let Some(text) = value.as_str() {
        return visit(text);
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        return;
    }
    for item in value.try_iter().into_iter().flatten() {
        visit_json(&item, visit);
        if value.kind() == ValueKind::Map {
            visit_json(&value.get_item(&item).unwrap_or_default(), visit);
        }
    }
}
