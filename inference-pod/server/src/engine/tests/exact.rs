//! An answer depends on its request alone, bit for bit, over a real model: neither on who runs beside it, nor on how its prompt is
//! cut, on what is kept, on preemption, or on guesses. And each of these checks fails where that is broken on purpose.

use std::sync::OnceLock;

use pagoda_engine_core::{KeySeed, Speculation, TokenLogprobs, uniform};
use pagoda_gguf::GgufBuilder;
use pagoda_model::{CpuExecutor, CpuOptions, KvBudget, Pooling};

use super::*;

const WIDTH: usize = 64;
const INNER: usize = 96;
const HEAD: usize = 16;
const VOCABULARY: usize = 258;
const LAYERS: usize = 2;
const CONTEXT: usize = 512;
const BLOCK: usize = 16;

/// A tiny random model over bytes, as a file.
fn model() -> Vec<u8> {
    let mut drawn = 0;
    let mut values = |count: usize, spread: f32, mean: f32| -> Vec<f32> {
        let next = |_| {
            drawn += 1;
            mean + spread * (uniform(11, drawn) as f32 * 2.0 - 1.0)
        };
        (0..count).map(next).collect()
    };
    let builder = GgufBuilder::new()
        .value("general.architecture", "llama")
        .value("llama.block_count", LAYERS as u32)
        .value("llama.context_length", CONTEXT as u32)
        .value("llama.embedding_length", WIDTH as u32)
        .value("llama.feed_forward_length", INNER as u32)
        .value("llama.attention.head_count", 4u32)
        .value("llama.attention.head_count_kv", 2u32)
        .value("llama.attention.key_length", HEAD as u32)
        .value("llama.attention.value_length", HEAD as u32)
        .value("llama.rope.dimension_count", HEAD as u32)
        .value("llama.rope.freq_base", 1000.0f32)
        .value("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut builder = builder.tensor_f32(
        "token_embd.weight",
        &[WIDTH as u64, VOCABULARY as u64],
        &values(WIDTH * VOCABULARY, 1.0, 0.0),
    );
    for layer in 0..LAYERS {
        for (name, inputs, outputs) in [
            ("attn_q", WIDTH, 4 * HEAD),
            ("attn_k", WIDTH, 2 * HEAD),
            ("attn_v", WIDTH, 2 * HEAD),
            ("attn_output", 4 * HEAD, WIDTH),
            ("ffn_gate", WIDTH, INNER),
            ("ffn_up", WIDTH, INNER),
            ("ffn_down", INNER, WIDTH),
        ] {
            let spread = 2.0 / (inputs as f32).sqrt();
            let weights = values(inputs * outputs, spread, 0.0);
            let name = format!("blk.{layer}.{name}.weight");
            builder = builder.tensor_f32(&name, &[inputs as u64, outputs as u64], &weights);
        }
        for name in ["attn_norm", "ffn_norm"] {
            let name = format!("blk.{layer}.{name}.weight");
            builder = builder.tensor_f32(&name, &[WIDTH as u64], &values(WIDTH, 0.3, 1.0));
        }
    }
    builder
        .tensor_f32(
            "output_norm.weight",
            &[WIDTH as u64],
            &values(WIDTH, 0.3, 1.0),
        )
        .build()
}

fn executor(threads: usize, blocks: u32) -> CpuExecutor {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, model()).unwrap();
    let options = CpuOptions {
        threads,
        kv: KvBudget::Blocks(blocks as usize),
        context_tokens: Some(CONTEXT),
        ..CpuOptions::default()
    };
    CpuExecutor::load(&path, &options, |_, _| {}).unwrap()
}

/// What an executor must not do.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Nothing,
    /// Results depend on how many rows a step has.
    Batch,
    /// Results depend on how many tokens a row has.
    Chunk,
    /// What was computed in an earlier step is read from a wrong block.
    Kept,
    /// The logits after a guess are those before it.
    Guess,
}

struct Altered {
    inner: CpuExecutor,
    broken: Broken,
}

impl Executor for Altered {
    fn info(&self) -> &ExecutorInfo {
        self.inner.info()
    }

    fn forward(&mut self, rows: &[StepRow<'_>], logits: &mut Logits) -> Result<(), ExecutorError> {
        let tables: Vec<Vec<u32>> = rows.iter().map(|row| self.table(row)).collect();
        let rows = over(rows, &tables);
        self.inner.forward(&rows, logits)?;
        let mut first = 0;
        for row in &rows {
            match self.broken {
                Broken::Batch if row.logits > 0 => {
                    logits.row_mut(first)[0] += rows.len() as f32 * 1e-3;
                }
                Broken::Chunk if row.logits > 0 => {
                    logits.row_mut(first)[0] += row.tokens.len() as f32 * 1e-3;
                }
                Broken::Guess if row.logits > 1 => {
                    let before = logits.row(first).to_vec();
                    logits.row_mut(first + 1).copy_from_slice(&before);
                }
                _ => {}
            }
            first += row.logits;
        }
        Ok(())
    }

    fn states(&mut self, rows: &[StepRow<'_>], states: &mut Vec<f32>) -> Result<(), ExecutorError> {
        let tables: Vec<Vec<u32>> = rows.iter().map(|row| self.table(row)).collect();
        self.inner.states(&over(rows, &tables), states)
    }
}

/// The rows over other blocks.
fn over<'a>(rows: &[StepRow<'a>], tables: &'a [Vec<u32>]) -> Vec<StepRow<'a>> {
    let of = |(row, table): (&StepRow<'a>, &'a Vec<u32>)| StepRow {
        block_table: table,
        ..*row
    };
    rows.iter().zip(tables).map(of).collect()
}

impl Altered {
    /// The row's blocks; where it is broken so, a prompt that begins behind computed tokens finds its first two in each other's place.
    fn table(&self, row: &StepRow<'_>) -> Vec<u32> {
        let mut table = row.block_table.to_vec();
        if self.broken == Broken::Kept && row.tokens.len() > 1 && row.start >= 2 * BLOCK {
            table.swap(0, 1);
        }
        table
    }
}

#[derive(Clone, Copy)]
struct Setup {
    limits: Limits,
    policy: Policy,
    threads: usize,
    broken: Broken,
    /// All requests at once, or one after the other.
    together: bool,
    /// Of every second request the prompt is embedded.
    embedding: Option<Pooling>,
}

/// One request at a time, nothing kept, nothing guessed, whole prompts.
const ALONE: Limits = Limits {
    max_sequences: 32,
    max_waiting: 64,
    step_tokens: 512,
    block_tokens: BLOCK,
    block_count: 600,
    context_tokens: CONTEXT,
};

fn alone() -> Setup {
    Setup {
        limits: ALONE,
        policy: Policy::plain(),
        threads: 1,
        broken: Broken::Nothing,
        together: false,
        embedding: None,
    }
}

fn together() -> Setup {
    Setup {
        together: true,
        ..alone()
    }
}

fn keeping() -> Setup {
    let policy = Policy {
        prefix_cache: Some(KeySeed::default()),
        ..Policy::plain()
    };
    Setup {
        policy,
        ..together()
    }
}

fn guessing() -> Setup {
    let policy = Policy {
        speculation: Speculation::Fixed(7),
        ..Policy::plain()
    };
    Setup { policy, ..alone() }
}

/// Of 32 requests half begin alike, half are greedy, and some repeat themselves.
fn requests(embedding: Option<Pooling>) -> Vec<NewChoice> {
    let request = |index: usize| {
        let (beginning, own) = (
            if index.is_multiple_of(2) { 70 } else { 0 },
            3 + index * 5 % 60,
        );
        let mut prompt: Vec<u32> = (0..beginning)
            .map(|place| (uniform(5, place) * 256.0) as u32)
            .collect();
        let period = 3 + index % 7;
        let own_token =
            |place: usize| (uniform(index as u64, (place % period) as u64) * 256.0) as u32;
        prompt.extend((0..own).map(own_token));
        NewChoice {
            prompt,
            max_new_tokens: 40,
            sampling: SamplingParams {
                temperature: if index % 4 < 2 { 0.0 } else { 0.7 },
                seed: index as u64,
                logprobs: Some(3),
                ..SamplingParams::default()
            },
            embedding: embedding.filter(|_| index % 4 > 1),
            ..NewChoice::default()
        }
    };
    (0..32).map(request).collect()
}

/// The tokens of an answer with their probabilities, or a vector.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    tokens: Vec<TokenLogprobs>,
    vector: Vec<f32>,
}

type Answers = Vec<Told>;

async fn collect(engine: &EngineHandle, choices: Vec<NewChoice>) -> Answers {
    let mut answers = vec![Told::default(); choices.len()];
    let mut generation = engine.submit(choices).await.unwrap();
    while let Some(ChoiceEvent { choice, event }) = generation.next().await {
        match event {
            Event::Piece(piece) => answers[choice].tokens.extend(piece.logprobs),
            Event::Embedding(vector) => answers[choice].vector = vector,
            Event::Finished { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    answers
}

/// Answers of all requests, and how often something of this name happened.
async fn answers(setup: Setup, counter: &str) -> (Answers, u64) {
    let metrics = Arc::new(Metrics::new("m"));
    let executor = Altered {
        inner: executor(setup.threads, setup.limits.block_count),
        broken: setup.broken,
    };
    let engine = EngineSetup {
        executor: Box::new(executor),
        language: Arc::new(Language::bytes()),
        limits: setup.limits,
        policy: setup.policy,
        metrics: Arc::clone(&metrics),
    };
    let (engine, end) = engine.start().unwrap();
    let mut answers = Vec::new();
    if setup.together {
        answers = collect(&engine, requests(setup.embedding)).await;
    } else {
        for request in requests(setup.embedding) {
            answers.extend(collect(&engine, vec![request]).await);
        }
    }
    // What the engine counts is whole when its thread has ended.
    engine.stop();
    end.await.unwrap().unwrap();
    let text = metrics.prometheus_text().unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{counter}{{")));
    let count = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    (
        answers,
        count.unwrap_or_else(|| panic!("no {counter} in\n{text}")),
    )
}

/// Computed once: each request alone.
fn expected() -> &'static Answers {
    static EXPECTED: OnceLock<Answers> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime
                .block_on(answers(alone(), "pagoda_engine_steps_total"))
                .0
        };
        // A runtime cannot wait within another.
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    })
}

/// The answers are those of each request alone, and what is named happened meanwhile.
async fn agrees(setup: Setup, counter: &str) {
    let (answers, count) = answers(setup, counter).await;
    assert!(count > 0, "{counter} is 0: nothing was tested");
    assert!(answers.iter().all(|answer| !answer.tokens.is_empty()));
    for (index, (answer, expected)) in answers.iter().zip(expected()).enumerate() {
        assert_eq!(answer, expected, "request {index}");
    }
}

/// With a fault the answers are not those that the same fault gives each request alone: these checks would see it.
async fn differs(setup: Setup, broken: Broken) {
    let counter = "pagoda_engine_steps_total";
    let (faulty, _) = answers(Setup { broken, ..setup }, counter).await;
    let (alone, _) = answers(Setup { broken, ..alone() }, counter).await;
    assert!(faulty != alone, "the fault was not seen");
}

#[tokio::test]
async fn an_answer_among_32_is_the_answer_alone() {
    agrees(together(), "pagoda_engine_decode_steps_total").await;
    differs(together(), Broken::Batch).await;
}

#[tokio::test]
async fn an_answer_does_not_depend_on_how_its_prompt_is_cut_nor_on_threads() {
    let cut = Limits {
        step_tokens: 37,
        ..ALONE
    };
    for threads in [1, 2, 3] {
        agrees(
            Setup {
                limits: cut,
                threads,
                ..together()
            },
            "pagoda_engine_prefill_tokens_total",
        )
        .await;
    }
    differs(
        Setup {
            limits: cut,
            ..together()
        },
        Broken::Chunk,
    )
    .await;
}

#[tokio::test]
async fn an_answer_over_kept_blocks_is_the_answer_without() {
    agrees(keeping(), "vllm:prefix_cache_hits_total").await;
    agrees(
        Setup {
            together: false,
            ..keeping()
        },
        "vllm:prefix_cache_hits_total",
    )
    .await;
    differs(keeping(), Broken::Kept).await;
}

#[tokio::test]
async fn an_answer_that_was_preempted_is_the_answer_that_was_not() {
    let tight = Limits {
        block_count: 40,
        ..ALONE
    };
    agrees(
        Setup {
            limits: tight,
            ..together()
        },
        "vllm:num_preemptions_total",
    )
    .await;
    agrees(
        Setup {
            limits: tight,
            ..keeping()
        },
        "vllm:num_preemptions_total",
    )
    .await;
    differs(
        Setup {
            limits: tight,
            ..together()
        },
        Broken::Chunk,
    )
    .await;
}

#[tokio::test]
async fn an_answer_with_guesses_is_the_answer_without_greedy_or_drawn() {
    agrees(guessing(), "pagoda_draft_accepted_tokens_total").await;
    differs(guessing(), Broken::Guess).await;
}

#[tokio::test]
async fn all_of_it_at_once_changes_no_bit() {
    let setup = Setup {
        limits: Limits {
            block_count: 48,
            step_tokens: 61,
            max_sequences: 20,
            ..ALONE
        },
        policy: Policy {
            speculation: Speculation::Fixed(3),
            predict_lengths: true,
            ..Policy::default()
        },
        threads: 2,
        ..together()
    };
    agrees(setup, "vllm:num_preemptions_total").await;
    agrees(setup, "vllm:prefix_cache_hits_total").await;
    agrees(setup, "pagoda_draft_accepted_tokens_total").await;
}

#[tokio::test]
async fn an_embedding_depends_on_its_text_alone() {
    let tight = Limits {
        block_count: 24,
        step_tokens: 37,
        ..ALONE
    };
    for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
        let embedding = Some(pooling);
        let of = |setup: Setup| Setup { embedding, ..setup };
        let (expected, _) = answers(of(alone()), "pagoda_engine_steps_total").await;
        let vectors = expected.iter().filter(|told| told.vector.len() == WIDTH);
        assert_eq!(vectors.count(), 16);
        let preempted = Setup {
            limits: tight,
            threads: 2,
            ..keeping()
        };
        for (setup, counter) in [
            (together(), "pagoda_engine_steps_total"),
            (keeping(), "vllm:prefix_cache_hits_total"),
            (preempted, "vllm:num_preemptions_total"),
        ] {
            let (told, count) = answers(of(setup), counter).await;
            assert!(count > 0, "{pooling:?}: {counter} is 0: nothing was tested");
            assert_eq!(told, expected, "{pooling:?} {counter}");
        }
    }
    let (alone, together) = (alone(), together());
    let broken = |setup: Setup| Setup {
        broken: Broken::Kept,
        embedding: Some(Pooling::Mean),
        limits: tight,
        ..setup
    };
    let counter = "pagoda_engine_steps_total";
    let faulty = answers(broken(together), counter).await;
    assert!(
        faulty.0
            != answers(
                Setup {
                    broken: Broken::Nothing,
                    ..broken(alone)
                },
                counter
            )
            .await
            .0
    );
}
