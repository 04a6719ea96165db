//! Server-sent events out of a stream of bytes, and what each means to a chat.

use serde::Deserialize;

/// An event longer than this is no chat's.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatEvent {
    /// Text came.
    Text,
    /// The server counted the tokens.
    Usage {
        /// Of the prompt.
        prompt_tokens: u64,
        /// Of the answer.
        completion_tokens: u64,
    },
    /// The answer failed in its middle: the error's code, or its message.
    Error(String),
    /// The answer is whole.
    Done,
    /// Nothing that counts.
    Other,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<ErrorBody>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    text: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    message: String,
    code: Option<serde_json::Value>,
}

/// Cuts a stream into events; what has not ended waits.
#[derive(Debug, Default)]
pub struct Events {
    waiting: Vec<u8>,
}

impl Events {
    /// Takes the next bytes and returns the events that ended in them.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<ChatEvent> {
        self.waiting.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.waiting.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.waiting.drain(..=end).collect();
            // Each of a chat's events is one line of data, so lines are enough; comments and fields are passed over.
            if let Some(data) = line.strip_prefix(b"data:") {
                events.push(meaning(data.trim_ascii()));
            }
        }
        if self.waiting.len() > MAX_EVENT_BYTES {
            self.waiting.clear();
            events.push(ChatEvent::Error("an event without end".into()));
        }
        events
    }
}

fn meaning(data: &[u8]) -> ChatEvent {
    if data == b"[DONE]" {
        return ChatEvent::Done;
    }
    let Ok(chunk) = serde_json::from_slice::<Chunk>(data) else {
        return ChatEvent::Error("an event that is no JSON".into());
    };
    if let Some(error) = chunk.error {
        let code = error
            .code
            .as_ref()
            .and_then(|code| code.as_str())
            .map(str::to_owned);
        return ChatEvent::Error(code.unwrap_or(error.message));
    }
    let has_text = |choice: &Choice| {
        let text = choice
            .delta
            .as_ref()
            .and_then(|delta| delta.content.as_deref())
            .or(choice.text.as_deref());
        text.is_some_and(|text| !text.is_empty())
    };
    match chunk.usage {
        _ if chunk.choices.iter().any(has_text) => ChatEvent::Text,
        Some(usage) => ChatEvent::Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
        },
        None => ChatEvent::Other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = concat!(
        ": hello\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n",
        "event: x\ndata:{\"choices\":[{\"text\":\"b\"}],\"usage\":null}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n",
        "data: {\"error\":{\"message\":\"gone\",\"code\":\"pod_failed\"}}\n\n",
        "data: [DONE]\n\n",
    );

    fn expected() -> Vec<ChatEvent> {
        let usage = ChatEvent::Usage {
            prompt_tokens: 3,
            completion_tokens: 2,
        };
        vec![
            ChatEvent::Other,
            ChatEvent::Text,
            ChatEvent::Text,
            usage,
            ChatEvent::Error("pod_failed".into()),
            ChatEvent::Done,
        ]
    }

    proptest! {
        #[test]
        fn events_are_the_same_however_the_stream_is_cut(cuts in proptest::collection::vec(0..STREAM.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            cuts.push(STREAM.len());
            let (mut events, mut all, mut from) = (Events::default(), Vec::new(), 0);
            for cut in cuts {
                all.extend(events.push(&STREAM.as_bytes()[from..cut]));
                from = cut;
            }
            prop_assert_eq!(all, expected());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            Events::default().push(&bytes);
        }
    }

    #[test]
    fn what_is_no_json_or_never_ends_is_an_error() {
        assert_eq!(
            Events::default().push(b"data: {torn\n"),
            [ChatEvent::Error("an event that is no JSON".into())]
        );
        let endless = vec![b'x'; MAX_EVENT_BYTES + 1];
        assert_eq!(Events::default().push(&endless).len(), 1);
    }
}
