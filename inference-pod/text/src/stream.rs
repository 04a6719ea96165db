//! Token ids to text while they arrive.

use crate::tokenizer::Tokenizer;

/// Turns a sequence's tokens into text, piece by piece. A character whose bytes are spread over
/// several tokens is held until it is whole, so that all pieces together are exactly what
/// [`Tokenizer::decode`] gives. Control tokens are not text and yield nothing.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    /// The start of a character, at most three bytes.
    held: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the start of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Text that is ready with this token; often empty within a character. An id the vocabulary
    /// does not have yields nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if tokenizer.is_control(id) {
            return String::new();
        }
        self.push_bytes(tokenizer.token_bytes(id).unwrap_or_default())
    }

    /// Text that is ready with these bytes. What can be part of no character becomes U+FFFD.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.held.extend(bytes);
        let mut text = String::new();
        let mut used = 0;
        while used < self.held.len() {
            let rest = &self.held[used..];
            let Err(error) = std::str::from_utf8(rest) else {
                text.push_str(&String::from_utf8_lossy(rest));
                used = self.held.len();
                break;
            };
            text.push_str(&String::from_utf8_lossy(&rest[..error.valid_up_to()]));
            used += error.valid_up_to();
            let Some(invalid) = error.error_len() else {
                break;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            used += invalid;
        }
        self.held.drain(..used);
        text
    }

    /// Whether the start of a character is held back.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// How many bytes of a character are held back.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// The end of the text: a character that never became whole, as U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::StreamDecoder;
    use crate::tokenizer::{SpecialTokens, Tokenizer};

    #[test]
    fn a_character_comes_whole_with_its_last_byte() {
        let tokenizer = Tokenizer::bytes();
        let mut decoder = StreamDecoder::new();
        let parts: Vec<String> = "a😀"
            .bytes()
            .map(|byte| decoder.push(&tokenizer, byte.into()))
            .collect();
        assert_eq!(parts, ["a", "", "", "", "😀"]);
        assert!(!decoder.is_holding());
        assert_eq!(decoder.finish(), "");
    }

    #[test]
    fn what_is_cut_off_at_the_end_is_flushed_as_a_replacement() {
        let tokenizer = Tokenizer::bytes();
        let mut decoder = StreamDecoder::new();
        assert_eq!(decoder.push(&tokenizer, 0xf0), "");
        assert!(decoder.is_holding());
        assert_eq!(decoder.finish(), "\u{fffd}");
    }

    #[test]
    fn control_and_unknown_tokens_yield_no_text() {
        let tokenizer = Tokenizer::bytes();
        let mut decoder = StreamDecoder::new();
        assert_eq!(
            decoder.push(&tokenizer, 257) + &decoder.push(&tokenizer, 9_999),
            ""
        );
        assert_eq!(tokenizer.decode(&[104, 257, 105]).unwrap(), "hi");
        assert_eq!(tokenizer.decode(&[300]).unwrap_err().id, 300);
    }

    proptest! {
        #[test]
        fn streamed_pieces_make_up_the_whole(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..20)) {
            let mut decoder = StreamDecoder::new();
            let mut streamed: String = chunks.iter().map(|chunk| decoder.push_bytes(chunk)).collect();
            streamed.push_str(&decoder.finish());
            prop_assert_eq!(streamed, String::from_utf8_lossy(&chunks.concat()).into_owned());
        }

        #[test]
        fn text_survives_any_cut(text in "\\PC{0,20}", cuts in prop::collection::vec(0_usize..80, 0..8)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let mut decoder = StreamDecoder::new();
            let streamed: String = cuts.windows(2).map(|cut| decoder.push_bytes(&bytes[cut[0]..cut[1]])).collect();
            prop_assert!(!decoder.is_holding());
            prop_assert_eq!(streamed, text);
        }

        #[test]
        fn the_byte_tokenizer_round_trips(text in "\\PC{0,40}") {
            let tokenizer = Tokenizer::bytes();
            let ids = tokenizer.encode(&text, SpecialTokens::AsText);
            prop_assert_eq!(ids.len(), text.len());
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        }
    }
}
