//! `pagoda-engine chat`: a conversation in the terminal, on the very engine that serves.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use pagoda_engine_core::{Limits, SamplingParams, derive_seed};
use pagoda_text::Message;

use super::model;
use crate::cli::ChatArgs;
use crate::config::{Backend, EngineSize};
use crate::engine::{ChoiceEvent, EngineHandle, EngineSetup, Event, NewChoice};
use crate::failure::Fatal;
use crate::http::unix_seconds;
use crate::language::Language;
use crate::load::{Loaded, load};
use crate::metrics::Metrics;
use crate::terminal::Colours;
use crate::{terminal, threads};

/// Talks until `/exit` or the end of input.
pub fn run(args: &ChatArgs) -> Result<ExitCode, Fatal> {
    let sampling = SamplingParams {
        temperature: args.temperature,
        ..SamplingParams::default()
    };
    sampling
        .check()
        .map_err(|error| Fatal::invalid_config(error.to_string()))?;
    let mut conversation = Conversation::start(args, sampling)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Fatal::internal(format!("cannot start the runtime: {error}")))?;
    let interactive = std::io::stdin().is_terminal();
    if interactive {
        conversation.greet();
    }
    while let Some(line) = conversation.read_line(interactive)? {
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => break,
            "/clear" => conversation.clear(),
            question => runtime.block_on(conversation.ask(question))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

struct Conversation {
    engine: EngineHandle,
    language: Arc<Language>,
    limits: Limits,
    system: Option<Message>,
    messages: Vec<Message>,
    sampling: SamplingParams,
    max_tokens: Option<usize>,
    answers: u32,
    colours: Colours,
}

impl Conversation {
    fn start(args: &ChatArgs, sampling: SamplingParams) -> Result<Self, Fatal> {
        let path = model::resolve(&args.model, &args.source)?;
        let size = EngineSize {
            max_sequences: 1,
            ..model::size(&args.size)
        };
        let threads = args.size.threads.unwrap_or_else(threads::available);
        let bar = terminal::percent_bar("loading");
        let loaded = load(&Backend::Cpu(path), &size, threads, &mut |percent| {
            bar.set_position(percent.into());
        })?;
        bar.finish_and_clear();
        let Loaded {
            executor,
            language,
            limits,
            policy,
            ..
        } = loaded;
        let metrics = Arc::new(Metrics::new("chat"));
        let setup = EngineSetup {
            executor,
            language: Arc::clone(&language),
            limits,
            policy,
            metrics,
        };
        let (engine, _end) = setup
            .start()
            .map_err(|error| Fatal::invalid_config(error.to_string()))?;
        let seed = args.seed.unwrap_or_else(rand::random);
        let mut conversation = Self {
            engine,
            language,
            limits,
            system: args
                .system
                .as_ref()
                .map(|text| Message::new("system", text)),
            messages: Vec::new(),
            sampling: SamplingParams { seed, ..sampling },
            max_tokens: args.max_tokens,
            answers: 0,
            colours: Colours::detect(),
        };
        conversation.clear();
        Ok(conversation)
    }

    fn greet(&self) {
        let Colours { dim, reset, .. } = self.colours;
        println!("{dim}/exit leaves, /clear starts over, Ctrl-C stops an answer{reset}");
    }

    fn clear(&mut self) {
        self.messages = self.system.iter().cloned().collect();
    }

    fn read_line(&self, interactive: bool) -> Result<Option<String>, Fatal> {
        if interactive {
            let Colours { prompt, reset, .. } = self.colours;
            print!("{prompt}> {reset}");
            flush();
        }
        let mut line = String::new();
        match std::io::stdin().lock().read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(line)),
            Err(error) => Err(Fatal::internal(format!(
                "cannot read your question: {error}"
            ))),
        }
    }

    /// Asks and prints the answer as it comes. What is wrong with one question does not end the conversation.
    async fn ask(&mut self, question: &str) -> Result<(), Fatal> {
        self.messages.push(Message::new("user", question));
        let choice = match self.choice() {
            Ok(choice) => choice,
            Err(message) => {
                self.messages.pop();
                eprintln!("{message}");
                return Ok(());
            }
        };
        let answer = self.stream(choice).await?;
        self.messages.push(Message::new("assistant", answer));
        self.answers += 1;
        Ok(())
    }

    fn choice(&self) -> Result<NewChoice, String> {
        let now = i64::try_from(unix_seconds()).unwrap_or(i64::MAX);
        let prompt = self
            .language
            .encode_chat(&self.messages, now)
            .map_err(|error| error.to_string())?;
        self.limits
            .check_prompt(prompt.len())
            .map_err(|refusal| format!("{refusal}: /clear starts over"))?;
        let room = self.limits.longest_sequence() - prompt.len();
        Ok(NewChoice {
            prompt,
            max_new_tokens: self.max_tokens.unwrap_or(room).clamp(1, room),
            sampling: SamplingParams {
                seed: derive_seed(self.sampling.seed, self.answers),
                ..self.sampling.clone()
            },
            stop_tokens: self.language.stop_tokens(),
            ..NewChoice::default()
        })
    }

    async fn stream(&self, choice: NewChoice) -> Result<String, Fatal> {
        let began = Instant::now();
        let failed = |error: &dyn std::fmt::Display| Fatal::internal(error.to_string());
        let mut generation = self
            .engine
            .submit(vec![choice])
            .await
            .map_err(|error| failed(&error))?;
        let mut answer = String::new();
        loop {
            let event = tokio::select! {
                event = generation.next() => event,
                // Dropping the generation cancels it; what was said stays said.
                _ = tokio::signal::ctrl_c() => None,
            };
            match event.map(|ChoiceEvent { event, .. }| event) {
                Some(Event::Piece(piece)) => {
                    print!("{}", piece.text);
                    flush();
                    answer.push_str(&piece.text);
                }
                Some(Event::Finished {
                    completion_tokens, ..
                }) => {
                    self.print_speed(completion_tokens, began);
                    return Ok(answer);
                }
                Some(Event::Failed(failure)) => return Err(failed(&failure)),
                Some(Event::Accepted | Event::Refused(_) | Event::Embedding(_)) => {}
                None => {
                    println!();
                    return Ok(answer);
                }
            }
        }
    }

    fn print_speed(&self, tokens: usize, began: Instant) {
        let Colours { dim, reset, .. } = self.colours;
        let seconds = began.elapsed().as_secs_f64();
        println!();
        if !dim.is_empty() {
            println!("{dim}{tokens} tokens in {seconds:.1} s{reset}");
        }
    }
}

/// A terminal that went away is noticed at the next read.
fn flush() {
    let _ = std::io::stdout().flush();
}
