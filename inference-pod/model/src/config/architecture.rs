//! The families of models: what their layers consist of.

use pagoda_kernels::{Activation, RopeStyle};

use crate::error::LoadError;

use super::shown;

/// A family of models that the forward pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM2, Mistral.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3.
    Qwen3,
    /// Gemma 1.
    Gemma,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3, text.
    Gemma3,
    /// Phi-3, Phi-3.5 and Phi-4-mini.
    Phi3,
}

/// Which norms a layer has besides those before attention and before the feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Norms {
    /// Of each head of queries and keys.
    pub heads: bool,
    /// Of what attention and the feed-forward part yield, before they are added.
    pub outputs: bool,
    /// Added to every norm's weights in Hugging Face's files; GGUF files hold the sum.
    pub hugging_face_offset: f32,
}

/// What a layer consists of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Parts {
    /// Queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Queries, keys and values are one tensor, and so are gate and up.
    pub fused: bool,
    pub norms: Norms,
}

impl Architecture {
    const ALL: [Self; 7] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Gemma,
        Self::Gemma2,
        Self::Gemma3,
        Self::Phi3,
    ];

    /// The name in GGUF files, and of metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma => "gemma",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::Phi3 => "phi3",
        }
    }

    pub(super) fn of_gguf(name: &str) -> Result<Self, LoadError> {
        Self::ALL
            .into_iter()
            .find(|architecture| architecture.name() == name)
            .ok_or_else(|| unsupported(name))
    }

    /// By `model_type` of a `config.json`.
    pub(super) fn of_hugging_face(model_type: &str) -> Result<Self, LoadError> {
        match model_type {
            "mistral" => Ok(Self::Llama),
            "gemma3_text" => Ok(Self::Gemma3),
            // Beside its text part this one has a vision part.
            "gemma3" => Err(unsupported(model_type)),
            other => Self::of_gguf(other),
        }
    }

    pub(crate) fn parts(self) -> Parts {
        let plain = Norms {
            heads: false,
            outputs: false,
            hugging_face_offset: 0.0,
        };
        let gemma = Norms {
            hugging_face_offset: 1.0,
            ..plain
        };
        let (norms, qkv_bias, fused) = match self {
            Self::Llama => (plain, false, false),
            Self::Qwen2 => (plain, true, false),
            Self::Qwen3 => (
                Norms {
                    heads: true,
                    ..plain
                },
                false,
                false,
            ),
            Self::Phi3 => (plain, false, true),
            Self::Gemma => (gemma, false, false),
            Self::Gemma2 => (
                Norms {
                    outputs: true,
                    ..gemma
                },
                false,
                false,
            ),
            Self::Gemma3 => (
                Norms {
                    heads: true,
                    outputs: true,
                    ..gemma
                },
                false,
                false,
            ),
        };
        Parts {
            qkv_bias,
            fused,
            norms,
        }
    }

    fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3)
    }

    pub(super) fn activation(self) -> Activation {
        if self.is_gemma() {
            Activation::GeluTanh
        } else {
            Activation::Silu
        }
    }

    /// What embeddings of `width` values are multiplied by.
    pub(super) fn embedding_scale(self, width: usize) -> f32 {
        if self.is_gemma() {
            (width as f32).sqrt()
        } else {
            1.0
        }
    }

    /// GGUF files of the Llama family hold queries and keys with pairs side by side, all others as they were trained.
    pub(super) fn gguf_rope_style(self) -> RopeStyle {
        match self {
            Self::Llama => RopeStyle::Adjacent,
            _ => RopeStyle::Halves,
        }
    }

    /// Of each so many layers all but the last have the window; 1 says that every layer has it.
    pub(super) fn window_period(self) -> usize {
        match self {
            Self::Gemma2 => 2,
            Self::Gemma3 => 6,
            _ => 1,
        }
    }
}

fn unsupported(name: &str) -> LoadError {
    let computed = Architecture::ALL.map(Architecture::name).join(", ");
    LoadError::UnsupportedModel(format!(
        "architecture {:?}; this engine computes {computed}",
        shown(name)
    ))
}
