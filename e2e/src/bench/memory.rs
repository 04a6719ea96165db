//! How fast this machine reads memory: the ceiling of decoding, which reads every weight once a token.

use std::hint::black_box;
use std::thread::scope;
use std::time::Instant;

/// Larger than any cache this is likely to run beside.
const BUFFER_BYTES: usize = 512 << 20;
const PASSES: usize = 4;

/// Gigabytes (10^9) a second that `threads` threads read together, best of a few passes over a large buffer.
pub fn read_gigabytes_per_second(threads: usize) -> f64 {
    let words = vec![1_u64; BUFFER_BYTES / size_of::<u64>()];
    let share = words.len().div_ceil(threads.max(1));
    let seconds = (0..PASSES).map(|_| {
        let began = Instant::now();
        scope(|threads| {
            for part in words.chunks(share) {
                threads.spawn(move || black_box(sum(part)));
            }
        });
        began.elapsed().as_secs_f64()
    });
    BUFFER_BYTES as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9
}

/// Eight sums at a time, so that loads and not one chain of additions set the pace.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0_u64; 8];
    for chunk in words.chunks_exact(8) {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes
        .iter()
        .fold(0, |total, lane| total.wrapping_add(*lane))
}
