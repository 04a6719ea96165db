//! Measures prefill and decode: `cargo run --release -p pagoda-model --example speed -- MODEL [THREADS] [PREFILL] [DECODE] [SEQUENCES]`.
//!
//! Prints medians over repetitions in tokens a second by the clock, the rate at which decode read weights, and the same by
//! the calling thread's processor time, which other programs on the machine disturb less (with one thread it is all there is).

use std::time::Instant;

use pagoda_model::{CpuExecutor, CpuOptions, Executor, KvBudget, Logits, StepRow};

const REPETITIONS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args
        .next()
        .ok_or("usage: speed MODEL [THREADS] [PREFILL] [DECODE] [SEQUENCES]")?;
    let mut number = |default: usize| args.next().map_or(Ok(default), |text| text.parse());
    let (threads, prefill, decode, sequences) = (number(2)?, number(512)?, number(64)?, number(1)?);

    let blocks = (prefill + decode).div_ceil(16);
    let options = CpuOptions {
        threads,
        kv: KvBudget::Blocks(blocks * sequences),
        ..CpuOptions::default()
    };
    let started = Instant::now();
    let mut executor = CpuExecutor::load(path.as_ref(), &options, |_, _| {})?;
    println!(
        "loaded in {:.0} ms, {:?}",
        started.elapsed().as_secs_f64() * 1e3,
        executor.info()
    );

    let prompt: Vec<u32> = (0..prefill as u32).map(|i| 1000 + i * 37 % 20000).collect();
    let tables: Vec<Vec<u32>> = (0..sequences)
        .map(|s| (0..blocks).map(|b| (b * sequences + s) as u32).collect())
        .collect();
    let mut logits = Logits::default();
    let (mut prefill_rates, mut decode_rates) = (Rates::default(), Rates::default());
    for _ in 0..REPETITIONS {
        let started = Start::now();
        for table in &tables {
            executor.forward(
                &[StepRow {
                    tokens: &prompt,
                    start: 0,
                    block_table: table,
                    logits: 1,
                }],
                &mut logits,
            )?;
        }
        prefill_rates.push(prefill * sequences, &started);
        let started = Start::now();
        for position in prefill..prefill + decode {
            let token = [1000 + position as u32];
            let row = |table| StepRow {
                tokens: &token,
                start: position,
                block_table: table,
                logits: 1,
            };
            let rows: Vec<StepRow<'_>> = tables.iter().map(|table| row(table)).collect();
            executor.forward(&rows, &mut logits)?;
        }
        decode_rates.push(decode * sequences, &started);
    }
    for (by, prefill_rates, decode_rates) in [
        ("clock", prefill_rates.clock, decode_rates.clock),
        (
            "processor time",
            prefill_rates.processor,
            decode_rates.processor,
        ),
    ] {
        let (prefill_rate, decode_rate) = (median(prefill_rates), median(decode_rates));
        let weight_rate =
            decode_rate / sequences as f64 * executor.info().weight_bytes as f64 / 1e9;
        println!(
            "by {by}: prefill {prefill}: {prefill_rate:.0} tok/s; decode {decode} x {sequences}: {decode_rate:.1} tok/s, {weight_rate:.1} GB/s of weights"
        );
    }
    Ok(())
}

struct Start {
    clock: Instant,
    processor: f64,
}

impl Start {
    fn now() -> Self {
        Self {
            clock: Instant::now(),
            processor: processor_seconds(),
        }
    }
}

#[derive(Default)]
struct Rates {
    clock: Vec<f64>,
    processor: Vec<f64>,
}

impl Rates {
    fn push(&mut self, tokens: usize, start: &Start) {
        self.clock
            .push(tokens as f64 / start.clock.elapsed().as_secs_f64());
        self.processor
            .push(tokens as f64 / (processor_seconds() - start.processor));
    }
}

/// Seconds the calling thread has run; NaN where the system does not say.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .map_or(f64::NAN, |nanoseconds: f64| nanoseconds / 1e9)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
