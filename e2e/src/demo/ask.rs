//! A question and its answer, printed as it comes.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::phases::Style;
use crate::openai::{Chat, OpenAi};

/// What was measured of an answer.
pub struct Answered {
    /// When the first text came.
    pub first_token_at: Instant,
    /// From sending to the first text.
    pub first_token: Duration,
}

/// Asks and prints each piece of the answer the moment it arrives. Anything but a whole answer is an error.
pub fn ask_and_print(gateway: &str, model: &str, question: &str) -> Result<Answered> {
    let style = Style::of_stdout();
    println!("{}you{}      {question}", style.bold, style.plain);
    print!("{}{model}{}  ", style.bold, style.plain);
    std::io::stdout().flush()?;
    let chat = Chat {
        model: model.to_owned(),
        prompt: question.to_owned(),
        max_tokens: 128,
        ignore_eos: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let sent = Instant::now();
    let reply =
        runtime.block_on(async { OpenAi::new(gateway)?.stream(&chat, print_piece).await })?;
    println!();
    if !reply.is_whole() {
        bail!(
            "the answer broke off: status {}, {}",
            reply.status,
            reply.error.as_deref().unwrap_or("the stream ended early")
        );
    }
    let first_token = reply.first_token.context("the answer was empty")?;
    Ok(Answered {
        first_token_at: sent + first_token,
        first_token,
    })
}

fn print_piece(piece: &str) {
    print!("{piece}");
    // Nobody reads along any more if this fails; the answer itself is checked by the caller.
    let _ = std::io::stdout().flush();
}
