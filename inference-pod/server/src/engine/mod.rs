//! The engine behind the API: a thread that schedules, computes, samples and turns tokens into text, and the handle by
//! which everybody else talks to it.

mod answer;
mod engine_loop;
mod handle;
mod heartbeat;
mod labels;
mod live;
mod request;
#[cfg(test)]
mod tests;

pub use engine_loop::{EngineEnd, EngineSetup};
pub use handle::{EmbedError, Embedded, EngineHandle, Generation, SubmitError};
pub use heartbeat::Heartbeat;
pub use request::{ChoiceEvent, Event, Failure, NewChoice, Piece};
