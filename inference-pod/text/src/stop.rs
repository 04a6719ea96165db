//! Stop strings in a stream of text.

/// What [`StopMatcher::push`] gives back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Text to pass on: no part of a stop string, nor of one that may be under way.
    pub text: String,
    /// Index of the stop string that ended the text, in the order given to the matcher.
    pub stop: Option<usize>,
}

/// Watches a text that arrives in pieces for stop strings, which may lie across pieces.
///
/// The text ends where a stop string first becomes complete, before that string; among several that
/// become complete at once the longest counts. How the text is cut into pieces makes no difference.
/// Text that may be the start of a stop string is held back, at most one string's length, and comes
/// out with the next piece or with [`Self::finish`].
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Pattern>,
    held: String,
    stopped: bool,
}

/// One stop string and how much of it the text's end matches (Knuth, Morris and Pratt).
#[derive(Debug, Clone)]
struct Pattern {
    index: usize,
    bytes: Vec<u8>,
    /// For each length of a matched prefix, the next shorter prefix that also matches.
    shorter: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(index: usize, text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut shorter = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = shorter[length];
            }
            length += usize::from(bytes[at] == bytes[length]);
            shorter[at + 1] = length;
        }
        Self {
            index,
            bytes,
            shorter,
            matched: 0,
        }
    }

    /// Takes the text's next byte; true when the string is complete with it.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.shorter[self.matched];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

impl StopMatcher {
    /// A matcher for these strings. Empty ones match nothing.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Self {
        let indexed = stops.into_iter().enumerate();
        let stops = indexed.filter(|(_, stop)| !stop.as_ref().is_empty());
        let stops = stops
            .map(|(index, stop)| Pattern::new(index, stop.as_ref()))
            .collect();
        Self {
            stops,
            held: String::new(),
            stopped: false,
        }
    }

    /// Takes the next piece and gives the text that is certain. After a stop everything is dropped.
    pub fn push(&mut self, piece: &str) -> Stopped {
        if self.stopped {
            return Stopped {
                text: String::new(),
                stop: None,
            };
        }
        let scanned = self.held.len();
        self.held.push_str(piece);
        for (at, byte) in piece.bytes().enumerate() {
            if let Some((stop, bytes)) = self.advance(byte) {
                self.stopped = true;
                let mut text = std::mem::take(&mut self.held);
                text.truncate(scanned + at + 1 - bytes);
                return Stopped {
                    text,
                    stop: Some(stop),
                };
            }
        }
        // A matched prefix starts with the first byte of a character, so this cuts between characters.
        let hold = self
            .stops
            .iter()
            .map(|pattern| pattern.matched)
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - hold);
        Stopped {
            text: std::mem::replace(&mut self.held, rest),
            stop: None,
        }
    }

    /// Index and length of the longest string that is complete with this byte.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut longest: Option<(usize, usize)> = None;
        for pattern in &mut self.stops {
            if pattern.advance(byte) && longest.is_none_or(|(_, bytes)| bytes < pattern.bytes.len())
            {
                longest = Some((pattern.index, pattern.bytes.len()));
            }
        }
        longest
    }

    /// Whether a stop string has ended the text.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The end of the text: what was held back and became no stop string.
    pub fn finish(&mut self) -> String {
        self.stops
            .iter_mut()
            .for_each(|pattern| pattern.matched = 0);
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::StopMatcher;

    /// Everything emitted for the pieces, and the stop.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops);
        let (mut text, mut stop) = (String::new(), None);
        for piece in pieces {
            let out = matcher.push(piece);
            text.push_str(&out.text);
            stop = stop.or(out.stop);
        }
        text.push_str(&matcher.finish());
        (text, stop)
    }

    #[test]
    fn a_stop_string_across_pieces_is_found_and_never_leaks() {
        let mut matcher = StopMatcher::new(["END"]);
        assert_eq!(matcher.push("abcE").text, "abc");
        assert_eq!(matcher.push("N").text, "");
        let out = matcher.push("Dxyz");
        assert_eq!((out.text.as_str(), out.stop), ("", Some(0)));
        assert!(matcher.is_stopped());
        assert_eq!(matcher.push("more").text, "");
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn what_was_held_in_vain_comes_out() {
        assert_eq!(run(&["END"], &["abcE", "N", "x"]), ("abcENx".into(), None));
        assert_eq!(run(&["END"], &["abcEN"]), ("abcEN".into(), None));
    }

    #[test]
    fn the_first_complete_string_wins_and_the_longest_among_equals() {
        assert_eq!(run(&["cd", "abc"], &["xabcd"]), ("x".into(), Some(1)));
        assert_eq!(run(&["c", "abc"], &["xabcd"]), ("x".into(), Some(1)));
        assert_eq!(run(&["abcd", "b"], &["xabcd"]), ("xa".into(), Some(1)));
    }

    #[test]
    fn a_repeated_start_does_not_hide_the_string() {
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), Some(0)));
        assert_eq!(
            run(&["\n\nQ:"], &["\n", "\n\n", "Q", ":"]),
            ("\n".into(), Some(0))
        );
    }

    #[test]
    fn no_or_empty_strings_pass_everything_at_once() {
        let mut matcher = StopMatcher::new(["", ""]);
        assert_eq!(matcher.push("abc").text, "abc");
        assert_eq!(
            StopMatcher::new(Vec::<String>::new()).push("abc").text,
            "abc"
        );
    }

    #[test]
    fn characters_are_held_whole() {
        let mut matcher = StopMatcher::new(["é!"]);
        assert_eq!(matcher.push("aé").text, "a");
        assert_eq!(matcher.push("é").text, "é");
        assert_eq!(matcher.finish(), "é");
    }

    /// The rule itself: cut before the stop string that is complete first.
    fn whole(stops: &[String], text: &str) -> (String, Option<usize>) {
        let ends = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty())
            .filter_map(|(index, stop)| {
                let start = text.find(stop.as_str())?;
                Some((start + stop.len(), start, index))
            });
        ends.min()
            .map_or((text.to_owned(), None), |(_, start, index)| {
                (text[..start].to_owned(), Some(index))
            })
    }

    proptest! {
        #[test]
        fn streamed_text_is_the_whole_text_cut_once(
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..12),
        ) {
            let refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let parts: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&refs, &parts), whole(&stops, &pieces.concat()));
        }

        #[test]
        fn held_text_is_shorter_than_the_longest_stop(
            stops in prop::collection::vec("[ab]{1,5}", 1..4),
            pieces in prop::collection::vec("[abc]{0,5}", 0..12),
        ) {
            let longest = stops.iter().map(String::len).max().unwrap_or(0);
            let mut matcher = StopMatcher::new(&stops);
            for piece in &pieces {
                matcher.push(piece);
                prop_assert!(matcher.held.len() < longest);
            }
        }
    }
}
