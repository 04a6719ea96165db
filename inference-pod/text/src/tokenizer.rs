//! The tokenizer: text to ids and ids to text.

use std::borrow::Cow;

use crate::bpe::Bpe;
use crate::chat::ChatRequest;
use crate::guard::Guard;
use crate::special::{Fragment, SpecialFinder};
use crate::spm::Spm;
use crate::stream::StreamDecoder;
use crate::template::{ChatTemplate, TemplateError};
use crate::vocab::{TokenKind, Vocab};

/// What the texts of control tokens mean in text to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are the tokens: for templates and for prompts whose author may write them.
    Parse,
    /// They are text like any other. Tokens a file calls user-defined are still found.
    AsText,
}

/// A token id that the vocabulary does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("token {id} does not exist: the vocabulary has {tokens} tokens")]
pub struct UnknownToken {
    /// The id.
    pub id: u32,
    /// Length of the vocabulary.
    pub tokens: usize,
}

#[derive(Debug)]
pub(crate) enum Model {
    Bpe(Box<Bpe>),
    Spm(Spm),
    Bytes,
}

/// Encodes and decodes as one model does. Immutable; share it between threads.
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) vocab: Vocab,
    pub(crate) model: Model,
    pub(crate) special: SpecialFinder,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) add_bos: bool,
    /// Tokens after which nothing more is generated, ascending.
    pub(crate) ends: Vec<u32>,
}

impl Tokenizer {
    /// One token a byte, then `<|bos|>` (256) and `<|eos|>` (257): a vocabulary for executors that
    /// have no model. No BOS is added.
    pub fn bytes() -> Self {
        const BOS: u32 = 256;
        const EOS: u32 = 257;
        let texts = (0..=255).map(|byte: u8| format!("<0x{byte:02X}>"));
        let texts = texts
            .chain(["<|bos|>".to_owned(), "<|eos|>".to_owned()])
            .collect();
        let kinds = [vec![TokenKind::Byte; 256], vec![TokenKind::Control; 2]].concat();
        let vocab = Vocab::new(texts, kinds, crate::spm::piece_of).expect("258 different texts");
        let special = SpecialFinder::new(&vocab).expect("two short special tokens");
        let (bos, eos) = (Some(BOS), Some(EOS));
        Self {
            vocab,
            model: Model::Bytes,
            special,
            bos,
            eos,
            add_bos: false,
            ends: vec![EOS],
        }
    }

    /// Number of tokens; ids are below it. A model's head may have more rows than this.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether a prompt of this model starts with BOS.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether generation ends with this token: end of sequence, of turn or of message.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Every token that ends generation, ascending.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.ends
    }

    /// Whether the token is an instruction to the model and no part of its text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id).is_some_and(TokenKind::is_control)
    }

    /// The id of a token's text as the vocabulary writes it.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocab.id(text)
    }

    /// A token's text as the vocabulary writes it, before any decoding.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.text(id)
    }

    /// The bytes a token stands for, possibly a part of a character; control tokens by their name.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocab.piece(id)
    }

    /// Tokens of `text` alone: no BOS is added. Time is O(n log n) and memory O(n) in its length.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Vec<u32> {
        self.encode_guarded(text, special, None)
    }

    /// Tokens of a whole prompt: BOS first where the model wants it and the text does not start
    /// with it already.
    pub fn encode_prompt(&self, text: &str, special: SpecialTokens) -> Vec<u32> {
        self.with_bos(self.encode(text, special))
    }

    /// Renders a conversation and encodes it. Control tokens that a message spells out are text.
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        request: &ChatRequest<'_>,
    ) -> Result<Vec<u32>, TemplateError> {
        let guard = Guard::for_request(&self.special, request);
        let texts = guard.guarded(&self.special, request);
        let (tools, variables) = (texts.tools.as_ref(), texts.variables.as_ref());
        let guarded = ChatRequest {
            messages: &texts.messages,
            tools,
            variables,
            ..*request
        };
        let text = template.render(
            &guarded,
            self.control_text(self.bos),
            self.control_text(self.eos),
        )?;
        Ok(self.with_bos(self.encode_guarded(&text, SpecialTokens::Parse, Some(&guard))))
    }

    /// Renders a conversation as the text [`Self::encode_chat`] encodes.
    pub fn render_chat(
        &self,
        template: &ChatTemplate,
        request: &ChatRequest<'_>,
    ) -> Result<String, TemplateError> {
        template.render(
            request,
            self.control_text(self.bos),
            self.control_text(self.eos),
        )
    }

    fn control_text(&self, id: Option<u32>) -> &str {
        id.and_then(|id| self.vocab.text(id)).unwrap_or_default()
    }

    fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.bos
            && self.add_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    fn encode_guarded(
        &self,
        text: &str,
        special: SpecialTokens,
        guard: Option<&Guard>,
    ) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut after_token = true;
        for fragment in self.special.split(text, special == SpecialTokens::Parse) {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    after_token = true;
                }
                Fragment::Text(text) => {
                    let text = guard.map_or(Cow::Borrowed(text), |guard| guard.removed(text));
                    self.encode_plain(&text, after_token, &mut ids);
                    after_token = false;
                }
            }
        }
        ids
    }

    fn encode_plain(&self, text: &str, after_token: bool, ids: &mut Vec<u32>) {
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(&self.vocab, text, ids),
            Model::Spm(spm) => spm.encode(&self.vocab, text, after_token, ids),
            Model::Bytes => ids.extend(text.bytes().map(u32::from)),
        }
    }

    /// Text of tokens, without control tokens. Bytes that are no UTF-8 become U+FFFD. The space
    /// that SentencePiece puts before a text is kept.
    pub fn decode(&self, ids: &[u32]) -> Result<String, UnknownToken> {
        let mut decoder = StreamDecoder::new();
        let mut text = String::new();
        for &id in ids {
            if self.vocab.piece(id).is_none() {
                return Err(UnknownToken {
                    id,
                    tokens: self.vocab.len(),
                });
            }
            text.push_str(&decoder.push(self, id));
        }
        text.push_str(&decoder.finish());
        Ok(text)
    }
}
