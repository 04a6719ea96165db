//! Measures the kernels: `cargo run --release -p pagoda-kernels --example speed -- [stream|products|attention] [THREADS]`.
//!
//! `stream`: how fast memory is read. `products`: for every format and number of rows, how fast weights are read and
//! multiply-adds done. `attention`: decoding tokens over contexts, for both kinds of stored keys and values. Medians by the
//! processor time of the calling thread, which other programs disturb less than the clock; with more threads by the clock.

use std::hint::black_box;
use std::time::Instant;

use pagoda_kernels::{
    AlignedBuffer, AttentionScratch, AttentionShape, BLOCK_TOKENS, Cpu, Format, Input, KvCache,
    KvElement, KvShape, Output, PackedMatrix, QkvAdjust, QuantisedRows, RopeStyle, RopeTable,
    Segment, ThreadPool, attend, matmul, quantise_rows, rope_and_store,
};

const REPETITIONS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "products".to_owned());
    let threads = args.next().map_or(Ok(1), |text| text.parse())?;
    let (cpu, pool) = (Cpu::from_env()?, ThreadPool::new(threads)?);
    println!("{} with {threads} threads", cpu.name());
    match what.as_str() {
        "stream" => stream(&pool),
        "products" => products(cpu, &pool),
        "attention" => attention(cpu, &pool),
        other => return Err(format!("{other}: stream, products or attention").into()),
    }
    Ok(())
}

/// Seconds the calling thread has run, or with several threads seconds that passed.
fn seconds(pool: &ThreadPool, started: Instant) -> f64 {
    if pool.threads() > 1 {
        return started.elapsed().as_secs_f64();
    }
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .map_or_else(
            || started.elapsed().as_secs_f64(),
            |nanoseconds: f64| nanoseconds / 1e9,
        )
}

/// Seconds of one `work`, the median of repetitions that each take long enough for the system's clock of processor time.
fn median(pool: &ThreadPool, mut work: impl FnMut()) -> f64 {
    let started = Instant::now();
    work();
    let times_each = (0.05 / started.elapsed().as_secs_f64())
        .ceil()
        .clamp(1.0, 1e6) as usize;
    let mut times: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            let started = Instant::now();
            let before = seconds(pool, started);
            (0..times_each).for_each(|_| work());
            (seconds(pool, started) - before) / times_each as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[REPETITIONS / 2]
}

fn stream(pool: &ThreadPool) {
    let mut memory = AlignedBuffer::<u8>::zeroed(256 << 20);
    memory.fill(1);
    let time = median(pool, || {
        pool.split(memory.len() / 64, 1, |range| {
            let mut sums = [0u64; 8];
            for line in memory[range.start * 64..range.end * 64].chunks_exact(64) {
                for (sum, word) in sums.iter_mut().zip(line.chunks_exact(8)) {
                    *sum ^= u64::from_ne_bytes(word.try_into().unwrap_or_default());
                }
            }
            black_box(sums);
        });
    });
    println!("reads {:.1} GB/s", memory.len() as f64 / time / 1e9);
}

/// A file's bytes of `n * k` small finite weights.
fn weights(format: Format, n: usize, k: usize) -> Vec<u8> {
    let (block, count) = (format.block_bytes(), n * k / format.block_elements());
    let mut bytes: Vec<u8> = (0..block * count)
        .map(|i| ((i * 2_654_435_761) >> 13) as u8 & 0x3b)
        .collect();
    if !format.is_quantised() {
        bytes.fill(0x2b);
    }
    bytes
}

fn products(cpu: Cpu, pool: &ThreadPool) {
    // More than any cache holds, so that weights come from memory as a model's do.
    let (n, k) = (64 << 10, 1024);
    for format in Format::ALL {
        let n = if format.is_quantised() { n } else { n / 4 };
        let packed = match PackedMatrix::pack(pool, format, n, k, &weights(format, n, k)) {
            Ok(packed) => packed,
            Err(error) => {
                println!("{}: {error}", format.name());
                continue;
            }
        };
        print!("{:7}", format.name());
        for rows in [1, 2, 4, 8, 16, 32, 128] {
            // One block in four is larger than the others, as in models: it gets a second byte.
            let size = |i: usize| {
                if ((i / 32 * 2_654_435_761) >> 7).is_multiple_of(4) {
                    5.0
                } else {
                    1.0
                }
            };
            let x: Vec<f32> = (0..rows * k)
                .map(|i| (i as f32 * 0.7).sin() * size(i))
                .collect();
            let (mut q8, mut out) = (QuantisedRows::default(), vec![0.0; rows * n]);
            quantise_rows(cpu, pool, &x, k, &mut q8);
            let input = Input {
                rows,
                k,
                f32: &x,
                q8: Some(&q8),
            };
            let time = median(pool, || {
                matmul(cpu, pool, &[&packed], input, Output::Store(&mut out));
            });
            let read = packed.bytes() as f64 / time / 1e9;
            print!(
                "  {rows}: {read:.1} GB/s {:.0} G/s",
                (rows * n * k) as f64 / time / 1e9
            );
        }
        println!();
    }
}

fn attention(cpu: Cpu, pool: &ThreadPool) {
    let shape = AttentionShape::new(9, 3, 64);
    for element in [KvElement::F16, KvElement::Int8Group32] {
        for (sequences, context) in [(1, 4096), (32, 384), (32, 2048)] {
            let blocks_each = context / BLOCK_TOKENS;
            let blocks = sequences * blocks_each;
            let kv = KvShape {
                layers: 1,
                blocks,
                kv_heads: 3,
                head_dim: 64,
                element,
            };
            let mut cache = KvCache::new(kv);
            let mut rope = RopeTable::new(RopeStyle::Adjacent, 64, 1e4, &[]);
            let tables: Vec<Vec<u32>> = (0..sequences)
                .map(|s| {
                    (0..blocks_each)
                        .map(|b| (b * sequences + s) as u32)
                        .collect()
                })
                .collect();
            let row = |i: usize| (i as f32 * 0.37).sin();
            for table in &tables {
                let Some(segment) = Segment::new(table, 0, context, blocks) else {
                    continue;
                };
                let mut qkv: Vec<f32> = (0..context * shape.row_width()).map(row).collect();
                rope.fill(0..context);
                rope_and_store(
                    cpu,
                    pool,
                    &rope,
                    QkvAdjust::default(),
                    shape,
                    &[segment],
                    &mut qkv,
                    &mut cache,
                    0,
                );
            }
            let segments: Vec<Segment<'_>> = tables
                .iter()
                .filter_map(|table| Segment::new(table, context - 1, 1, blocks))
                .collect();
            let qkv: Vec<f32> = (0..sequences * shape.row_width()).map(row).collect();
            let (mut scratch, mut out) =
                (AttentionScratch::default(), vec![0.0; sequences * 9 * 64]);
            let time = median(pool, || {
                attend(
                    cpu,
                    pool,
                    shape,
                    &segments,
                    &qkv,
                    &cache,
                    0,
                    &mut scratch,
                    &mut out,
                );
            });
            let bytes = kv.block_bytes().unwrap_or(0) * blocks;
            println!(
                "{} {sequences} x {context}: {:.1} us, {:.1} GB/s, {:.1} G multiply-adds/s",
                element.name(),
                time * 1e6,
                bytes as f64 / time / 1e9,
                (sequences * context * 9 * 64 * 2) as f64 / time / 1e9
            );
        }
    }
}
