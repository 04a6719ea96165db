//! Keeps a stream of server-sent events whole: what has been passed on always ends between two events.
//!
//! An event that has not ended is of no use to a client, so it waits here (it is almost always empty:
//! servers write event by event), and a stream that breaks off can be closed with an error event that
//! no torn line precedes.

use bytes::{Bytes, BytesMut};

/// The most of an unfinished event that waits; a longer one is passed on torn.
const MAX_WAITING_BYTES: usize = 256 * 1024;

/// Splits a stream of bytes at event ends. See the module's documentation.
#[derive(Debug, Default)]
pub struct WholeEvents {
    waiting: BytesMut,
    torn: bool,
}

impl WholeEvents {
    /// Takes the next bytes and returns what may be passed on now, possibly nothing.
    pub fn push(&mut self, bytes: Bytes) -> Bytes {
        if !self.waiting.is_empty() {
            return self.push_after_waiting(&bytes);
        }
        let end = last_event_end(&bytes, 0);
        self.torn &= end == 0;
        if end == bytes.len() {
            return bytes;
        }
        self.waiting.extend_from_slice(&bytes[end..]);
        if self.waiting.len() > MAX_WAITING_BYTES {
            self.tear(bytes)
        } else {
            bytes.slice(..end)
        }
    }

    /// What waits, when the stream has ended as it should.
    pub fn finish(&mut self) -> Bytes {
        self.waiting.split().freeze()
    }

    /// Drops what waits, since its end will never come, and returns what must precede an event of one's own.
    pub fn abandon(&mut self) -> &'static [u8] {
        self.waiting.clear();
        if self.torn { b"\n\n" } else { b"" }
    }

    fn push_after_waiting(&mut self, bytes: &[u8]) -> Bytes {
        let searched = self.waiting.len().saturating_sub(3);
        self.waiting.extend_from_slice(bytes);
        let end = last_event_end(&self.waiting, searched);
        self.torn &= end == 0;
        if self.waiting.len() - end > MAX_WAITING_BYTES {
            self.torn = true;
            return self.waiting.split().freeze();
        }
        self.waiting.split_to(end).freeze()
    }

    fn tear(&mut self, bytes: Bytes) -> Bytes {
        self.torn = true;
        self.waiting.clear();
        bytes
    }
}

/// One past the last blank line's end in `bytes`, looking no further back than `from`; 0 if there is none.
fn last_event_end(bytes: &[u8], from: usize) -> usize {
    let mut end = bytes.len();
    while let Some(at) = memchr::memrchr2(b'\n', b'\r', &bytes[from..end]).map(|at| at + from) {
        if ends_event(&bytes[..=at]) {
            return at + 1;
        }
        end = at;
    }
    0
}

/// Whether a line of `events` carries data.
pub fn has_event_data(events: &[u8]) -> bool {
    events
        .split(|byte| matches!(byte, b'\n' | b'\r'))
        .any(|line| line.starts_with(b"data:"))
}

fn ends_event(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\n\r\n") || bytes.ends_with(b"\r\r")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn push(events: &mut WholeEvents, text: &str) -> String {
        String::from_utf8(
            events
                .push(Bytes::copy_from_slice(text.as_bytes()))
                .to_vec(),
        )
        .expect("text")
    }

    #[test]
    fn whole_events_pass_untouched_and_at_once() {
        let mut events = WholeEvents::default();
        for text in [
            "data: a\n\n",
            "data: b\r\n\r\n",
            "data: c\r\r",
            ": ping\n\ndata: d\n\n",
        ] {
            assert_eq!(push(&mut events, text), text);
        }
        assert_eq!(events.abandon(), b"");
    }

    #[test]
    fn comments_and_other_fields_are_no_data() {
        assert!(
            has_event_data(b"data: x\n\n")
                && has_event_data(b": ping\n\nevent: a\r\ndata:x\r\n\r\n")
        );
        assert!(!has_event_data(b": data: x\n\n") && !has_event_data(b"event: data:\n\n"));
    }

    #[test]
    fn an_unfinished_event_waits_for_its_end() {
        let mut events = WholeEvents::default();
        assert_eq!(push(&mut events, "data: a\n\ndata: b"), "data: a\n\n");
        assert_eq!(push(&mut events, "\n"), "");
        assert_eq!(push(&mut events, "\ndata: c\n"), "data: b\n\n");
        assert_eq!(&events.finish()[..], b"data: c\n");
    }

    #[test]
    fn an_event_that_never_ended_is_dropped_when_the_stream_breaks() {
        let mut events = WholeEvents::default();
        push(&mut events, "data: a\n\ndata: {\"half\":");
        assert_eq!(events.abandon(), b"");
        assert_eq!(&events.finish()[..], b"");
    }

    #[test]
    fn a_huge_event_is_not_kept_and_a_break_inside_it_begins_a_new_line() {
        let huge = "x".repeat(MAX_WAITING_BYTES);
        let mut events = WholeEvents::default();
        assert_eq!(push(&mut events, "data: a"), "");
        assert_eq!(push(&mut events, &huge).len(), huge.len() + 7);
        assert_eq!(events.abandon(), b"\n\n");
        assert_eq!(push(&mut events, "\n\n"), "\n\n");
        assert_eq!(events.abandon(), b"");
        assert_eq!(
            push(&mut events, &format!("{huge}xx")).len(),
            huge.len() + 2
        );
        assert_eq!(events.abandon(), b"\n\n");
    }

    proptest! {
        #[test]
        fn any_splitting_gives_the_same_bytes_and_every_part_ends_an_event(
            parts in proptest::collection::vec("[a\n\r]{0,6}", 0..30)
        ) {
            let mut events = WholeEvents::default();
            let mut passed = String::new();
            for part in &parts {
                let out = push(&mut events, part);
                passed.push_str(&out);
                prop_assert!(out.is_empty() || ends_event(passed.as_bytes()));
            }
            passed.push_str(std::str::from_utf8(&events.finish()).expect("text"));
            prop_assert_eq!(passed, parts.concat());
        }
    }
}
