//! Words for ends, refusals and crashes.

use pagoda_engine_core::{FinishReason, Refusal};

pub(super) fn reason_label(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

pub(super) fn refusal_label(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::EmptyPrompt => "empty_prompt",
        Refusal::TooLong { .. } => "too_long",
        Refusal::QueueFull { .. } => "queue_full",
    }
}

pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".into())
}
