//! Compiling the forms of answers without harm to anybody else: on a thread with much stack, few at a time, and no
//! longer than a client may wait.

use std::sync::Arc;
use std::time::Duration;

use pagoda_text::structured::{Constraint, Form, GrammarError};
use tokio::sync::{Semaphore, oneshot};

use crate::language::Language;

/// Forms that are compiled at once. A schema that takes long keeps its place until it is done.
static PLACES: Semaphore = Semaphore::const_new(2);

/// How long a form may take, waiting included.
const PATIENCE: Duration = Duration::from_secs(10);

/// The compiler works recursively; only what it uses is taken.
const STACK_BYTES: usize = 128 << 20;

/// Why there is no constraint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The form cannot be kept to.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// It takes too long.
    #[error("it takes longer than {} s to compile: make it simpler", PATIENCE.as_secs())]
    TooSlow,
    /// Others take all places.
    #[error("other requests keep the compiler of schemas busy: try again later")]
    Busy,
    /// There is no thread to do it.
    #[error("it could not be compiled now: {0}")]
    NoThread(String),
}

/// The constraint of a form.
pub async fn compile(language: Arc<Language>, form: Form) -> Result<Constraint, CompileError> {
    let place = tokio::time::timeout(PATIENCE, PLACES.acquire());
    let Ok(Ok(place)) = place.await else {
        return Err(CompileError::Busy);
    };
    let (sender, receiver) = oneshot::channel();
    let work = move || {
        let made = language.compile(&form);
        drop(place);
        // The client may have left.
        let _ = sender.send(made);
    };
    std::thread::Builder::new()
        .name("grammar".into())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map_err(|error| CompileError::NoThread(error.to_string()))?;
    match tokio::time::timeout(PATIENCE, receiver).await {
        Ok(Ok(made)) => Ok(made?),
        Ok(Err(_)) => Err(CompileError::NoThread("its thread ended".into())),
        Err(_) => Err(CompileError::TooSlow),
    }
}
