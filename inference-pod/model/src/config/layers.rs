//! Which layers see a window of tokens, and by which rotary embedding they turn.

use super::{Architecture, LayerPlan};

/// Plans of `layers` layers. `window` is the model's, `period` how many layers make a round whose last one sees everything (1: none
/// does). Layers with the window turn by the last of `ropes` embeddings, others by the first.
pub(super) fn windowed(
    layers: usize,
    window: Option<usize>,
    period: usize,
    ropes: usize,
) -> Vec<LayerPlan> {
    (0..layers)
        .map(|layer| {
            plan(
                period == 1 || !(layer + 1).is_multiple_of(period),
                window,
                ropes,
            )
        })
        .collect()
}

/// The plan of one layer.
pub(super) fn plan(local: bool, window: Option<usize>, ropes: usize) -> LayerPlan {
    LayerPlan {
        window: window.filter(|_| local),
        rope: if local { ropes - 1 } else { 0 },
    }
}

/// A window no smaller than the context limits nothing.
pub(super) fn effective_window(window: u64, context_tokens: usize) -> Option<usize> {
    usize::try_from(window)
        .ok()
        .filter(|&window| window > 0 && window < context_tokens)
}

/// The scale of attention scores of the largest Gemma models differs from the others', and their files do not say so.
pub(super) fn scaled_by_width(architecture: Architecture, layers: usize) -> bool {
    matches!(
        (architecture, layers),
        (Architecture::Gemma2, 46) | (Architecture::Gemma3, 62)
    )
}
