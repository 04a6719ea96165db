//! Telling calls of tools from content in an answer that arrives in pieces.

use super::format::ToolFormat;
use super::scanner::{CallScanner, Found, Scan};

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text for the user.
    Content(String),
    /// A call begins.
    Call {
        /// Its place among the calls.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments: all pieces together are JSON text, if the model wrote JSON.
    Arguments {
        /// Whose.
        index: usize,
        /// The text.
        text: String,
    },
}

#[derive(Debug)]
enum State {
    /// Content, until a mark.
    Content,
    /// Between a mark and a call, or between calls of a list.
    BeforeCall,
    /// Within a call; its text so far, in case it is none.
    Call(Box<CallScanner>, String),
    /// After a call, until its end mark.
    AfterCall,
}

/// Reads an answer. How it is cut into pieces makes no difference to the content, the calls and their arguments.
#[derive(Debug)]
pub struct ToolCallParser {
    format: ToolFormat,
    /// For formats without marks: only these are calls.
    names: Vec<String>,
    state: State,
    /// Text that may be part of a mark, or white space that may be before one.
    held: String,
    calls: usize,
    has_content: bool,
}

impl ToolCallParser {
    /// A parser at the start of an answer.
    pub fn new(format: ToolFormat, names: impl IntoIterator<Item = String>) -> Self {
        Self {
            format,
            names: names.into_iter().collect(),
            state: State::Content,
            held: String::new(),
            calls: 0,
            has_content: false,
        }
    }

    /// Calls begun so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) -> Vec<ToolEvent> {
        let mut out = Events::default();
        for c in piece.chars() {
            self.step(c, &mut out);
        }
        out.0
    }

    /// The answer is over: what was held.
    pub fn finish(&mut self) -> Vec<ToolEvent> {
        let mut out = Events::default();
        match std::mem::replace(&mut self.state, State::Content) {
            State::Call(scanner, text) if !scanner.is_announced() => {
                self.give_back(&text, &mut out);
            }
            State::BeforeCall if self.calls == 0 => self.give_back("", &mut out),
            State::Content if self.calls == 0 || !self.held.trim().is_empty() => {
                let held = std::mem::take(&mut self.held);
                self.content(&held, &mut out);
            }
            State::AfterCall if !self.is_end_under_way() => {
                let held = std::mem::take(&mut self.held);
                self.content(held.trim(), &mut out);
            }
            _ => {}
        }
        out.0
    }

    fn is_end_under_way(&self) -> bool {
        let end = self.format.end().unwrap_or_default();
        end.starts_with(self.held.trim())
    }

    fn step(&mut self, c: char, out: &mut Events) {
        match &mut self.state {
            State::Content => self.content_step(c, out),
            State::BeforeCall => self.before_call(c, out),
            State::Call(..) => self.call_step(c, out),
            State::AfterCall => self.after_call(c),
        }
    }

    fn content_step(&mut self, c: char, out: &mut Events) {
        self.held.push(c);
        let Some(mark) = self.format.begin() else {
            return self.bare_step(c, out);
        };
        if self.held.ends_with(mark) {
            let before = self.held.len() - mark.len();
            let text = self.held[..before].trim_end().to_owned();
            self.held.clear();
            self.content(&text, out);
            self.state = State::BeforeCall;
            return;
        }
        self.release(mark, out);
    }

    /// Passes on what is neither white space nor the beginning of a mark.
    fn release(&mut self, mark: &str, out: &mut Events) {
        let under_way = (1..mark.len())
            .rev()
            .find(|&length| self.held.ends_with(&mark[..length]))
            .unwrap_or(0);
        let certain = self.held.len() - under_way;
        let certain = self.held[..certain].trim_end().len();
        let rest = self.held.split_off(certain);
        let text = std::mem::replace(&mut self.held, rest);
        self.content(&text, out);
    }

    /// A format without marks: an answer that begins with an object may be a call, any other is content.
    fn bare_step(&mut self, c: char, out: &mut Events) {
        if !self.has_content && c == '{' && self.held.trim() == "{" {
            self.held.pop();
            self.begin_call(c, out);
        } else if !self.held.trim().is_empty() {
            let text = std::mem::take(&mut self.held);
            self.content(&text, out);
        }
    }

    fn before_call(&mut self, c: char, out: &mut Events) {
        match (self.format, c) {
            (_, '{') => self.begin_call(c, out),
            (_, c) if c.is_ascii_whitespace() => self.held.push(c),
            (ToolFormat::Mistral, '[' | ',') => self.held.push(c),
            (ToolFormat::Mistral, ']') => self.state = State::AfterCall,
            _ => {
                self.held.push(c);
                self.give_back("", out);
            }
        }
    }

    fn begin_call(&mut self, c: char, out: &mut Events) {
        let before = std::mem::take(&mut self.held);
        self.state = State::Call(Box::new(CallScanner::new()), before);
        self.call_step(c, out);
    }

    fn call_step(&mut self, c: char, out: &mut Events) {
        let State::Call(scanner, text) = &mut self.state else {
            return;
        };
        let mut found = Found::default();
        let scan = scanner.push(c, &mut found);
        let was_announced = scanner.is_announced() && found.name.is_none();
        if !was_announced {
            text.push(c);
        }
        let unknown = |name: &String| self.format.begin().is_none() && !self.names.contains(name);
        let is_unknown = found.name.as_ref().is_some_and(unknown);
        let (broken, text) = (scan == Scan::Broken, text.clone());
        if is_unknown || broken && !was_announced {
            return self.give_back(&text, out);
        }
        if let Some(name) = found.name {
            out.push(ToolEvent::Call {
                index: self.calls,
                name,
            });
            self.calls += 1;
        }
        if !found.arguments.is_empty() {
            out.arguments(self.calls - 1, &found.arguments);
        }
        if scan != Scan::More {
            self.state = State::AfterCall;
        }
    }

    /// What comes after a call is another one or the end; a mark that is missing is not missed.
    fn after_call(&mut self, c: char) {
        match (self.format, c) {
            (ToolFormat::Mistral, ',') | (ToolFormat::Llama, ';') => self.state = State::BeforeCall,
            (ToolFormat::Mistral, ']') => {}
            _ => {
                self.held.push(c);
                let ended = self
                    .format
                    .end()
                    .is_some_and(|end| self.held.ends_with(end));
                let begun = self
                    .format
                    .begin()
                    .is_some_and(|begin| self.held.ends_with(begin));
                if ended || begun {
                    self.held.clear();
                    self.state = if begun {
                        State::BeforeCall
                    } else {
                        State::Content
                    };
                }
            }
        }
    }

    /// What looked like a call is none: its text, with the mark before it, is content.
    fn give_back(&mut self, text: &str, out: &mut Events) {
        let mark = self.format.begin().unwrap_or_default();
        let all = format!("{mark}{}{text}", std::mem::take(&mut self.held));
        self.state = State::Content;
        self.content(&all, out);
    }

    fn content(&mut self, text: &str, out: &mut Events) {
        if !text.is_empty() {
            self.has_content = true;
            out.content(text);
        }
    }
}

/// Events with neighbours of one kind joined.
#[derive(Default)]
struct Events(Vec<ToolEvent>);

impl Events {
    fn push(&mut self, event: ToolEvent) {
        self.0.push(event);
    }

    fn content(&mut self, more: &str) {
        match self.0.last_mut() {
            Some(ToolEvent::Content(text)) => text.push_str(more),
            _ => self.push(ToolEvent::Content(more.to_owned())),
        }
    }

    fn arguments(&mut self, of: usize, more: &str) {
        match self.0.last_mut() {
            Some(ToolEvent::Arguments { index, text }) if *index == of => text.push_str(more),
            _ => self.push(ToolEvent::Arguments {
                index: of,
                text: more.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
