//! Attention of query rows over keys and values in blocks.
//!
//! The tokens a query sees are cut into chunks of 128 counted from position 0. A chunk yields its largest score, the sum
//! of its exponentials and their weighted values; chunks are merged in order. A prompt's tile of queries walks its chunks
//! one after another, a decoding token's chunks may be spread over threads and are merged afterwards: the operations are the
//! same, so results depend neither on how a prompt was cut nor on threads. A window leaves out whole chunks and blocks before
//! it and gives the tokens left in its first block weight zero, which changes no sum.

use std::sync::Mutex;

use crate::buffer::SharedMut;
use crate::cpu::{Cpu, Kernel};
use crate::kv::{BLOCK_TOKENS, KvCache, KvShape};
use crate::math::{exp, store_partial};
use crate::pool::ThreadPool;
use crate::simd::{LANES, Simd};

mod element;
mod tile;

use tile::{Tile, merge_partials};

/// Tokens of a chunk.
pub(crate) const CHUNK: usize = 128;
/// Query rows (tokens times heads of a group) a tile aims at: they share every key and value loaded.
const TILE_ROWS: usize = 24;
/// Scores below which waking threads costs more than it saves.
const SERIAL_SCORES: usize = 512;

/// Heads of one attention layer, and how its scores come about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Tokens a token sees, itself the last of them; all before it when `None`. At least 1.
    pub window: Option<usize>,
    /// Scores `s` become `softcap * tanh(s / softcap)`, after scaling. Above 0.
    pub softcap: Option<f32>,
    /// What dot products of queries and keys are multiplied by.
    pub scale: f32,
}

impl AttentionShape {
    /// Heads that see all tokens before them, with the usual scale of `1 / sqrt(head_dim)` and no cap.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            window: None,
            softcap: None,
            scale: 1.0 / (head_dim as f32).sqrt(),
        }
    }

    /// First position that the token at `position` sees.
    #[inline(always)]
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        match self.window {
            Some(window) => (position + 1).saturating_sub(window),
            None => 0,
        }
    }

    /// Values of a row of queries, keys and values.
    pub fn row_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    pub(crate) fn assert_fits(&self, cache: KvShape) {
        assert!(
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads),
            "whole groups of heads"
        );
        assert_eq!(
            (self.kv_heads, self.head_dim),
            (cache.kv_heads, cache.head_dim),
            "the store has these heads"
        );
        assert!(self.window != Some(0), "a token sees itself");
        assert!(
            self.softcap.is_none_or(|cap| cap > 0.0),
            "a cap of scores is above 0"
        );
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Consecutive tokens of one sequence in a step: `count` from position `start` on, stored in the blocks of a table.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    table: &'a [u32],
    start: usize,
    count: usize,
    pool_blocks: usize,
}

impl<'a> Segment<'a> {
    /// A segment whose tokens all have a block of a pool of `pool_blocks`; `None` when the table is too short, an id lies
    /// outside the pool, or there is no token.
    pub fn new(table: &'a [u32], start: usize, count: usize, pool_blocks: usize) -> Option<Self> {
        let used = start.checked_add(count)?.div_ceil(BLOCK_TOKENS);
        let table = table.get(..used)?;
        let valid = count > 0 && table.iter().all(|&block| (block as usize) < pool_blocks);
        valid.then_some(Self {
            table,
            start,
            count,
            pool_blocks,
        })
    }

    /// Tokens.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Position of the first token.
    pub fn start(&self) -> usize {
        self.start
    }

    /// The part of `count` tokens from token `skip` on.
    ///
    /// # Panics
    /// When the part is empty or reaches past the segment.
    #[must_use]
    pub fn part(&self, skip: usize, count: usize) -> Self {
        assert!(
            count > 0 && skip + count <= self.count,
            "a part lies within its segment"
        );
        let end = (self.start + skip + count).div_ceil(BLOCK_TOKENS);
        Self {
            table: &self.table[..end],
            start: self.start + skip,
            count,
            ..*self
        }
    }

    pub(crate) fn pool_blocks(&self) -> usize {
        self.pool_blocks
    }

    /// Block and slot of each token.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u32, usize)> + use<'a> {
        let table = self.table;
        (self.start..self.start + self.count)
            .map(move |at| (table[at / BLOCK_TOKENS], at % BLOCK_TOKENS))
    }
}

/// Memory that [`attend`] reuses from call to call: about 60 KiB a thread, and the partial results of decoding tokens.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    threads: Vec<Mutex<Vec<f32>>>,
    partials: Vec<f32>,
}

/// Some chunks of some queries of one head group.
#[derive(Clone, Copy)]
struct Unit {
    segment: usize,
    /// First token of the tile within its segment, its tokens, and its row in the step.
    token: usize,
    tokens: usize,
    row: usize,
    kv_head: usize,
    /// First chunk and the number of them; all that the tile sees unless `partial`.
    chunk: usize,
    chunks: usize,
    /// Where among the partial results this unit's go.
    partial: Option<usize>,
}

/// Softmax-weighted values for every query row of `qkv` (as [`crate::rope_and_store`] left it) over the tokens up to its
/// own, into rows of `heads * head_dim` of `out`. Keys and values of the segments' own tokens are stored already.
///
/// # Panics
/// When shapes do not fit.
pub fn attend(
    cpu: Cpu,
    pool: &ThreadPool,
    shape: AttentionShape,
    segments: &[Segment<'_>],
    qkv: &[f32],
    cache: &KvCache,
    layer: usize,
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) {
    cache.assert_holds(layer, segments);
    shape.assert_fits(cache.shape());
    let rows: usize = segments.iter().map(Segment::count).sum();
    assert_eq!(
        qkv.len(),
        rows * shape.row_width(),
        "a row of queries, keys and values a token"
    );
    assert_eq!(
        out.len(),
        rows * shape.heads * shape.head_dim,
        "a row of heads a token"
    );

    let (units, partials) = plan(shape, segments);
    let partial_len = tile::partial_len(shape);
    scratch
        .partials
        .resize(scratch.partials.len().max(partials * partial_len), 0.0);
    scratch
        .threads
        .resize_with(scratch.threads.len().max(pool.threads()), Mutex::default);
    let context = Context {
        shape,
        segments,
        qkv,
        cache,
        layer,
        out: SharedMut::new(out),
        partials: SharedMut::new(&mut scratch.partials),
    };
    let compute = |thread: usize, item: usize| {
        let mut memory = scratch.threads[thread]
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        cpu.execute(Tile {
            context: &context,
            unit: units[item],
            memory: &mut memory,
        });
    };
    let seen = |s: &Segment<'_>| (s.start + s.count).min(shape.window.unwrap_or(usize::MAX));
    let scores: usize = segments.iter().map(|s| s.count * seen(s)).sum();
    if scores * shape.heads < SERIAL_SCORES {
        (0..units.len()).for_each(|item| compute(0, item));
    } else {
        pool.share(units.len(), compute);
    }
    cpu.execute(Merge {
        context: &context,
        units: &units,
    });
}

struct Context<'a> {
    shape: AttentionShape,
    segments: &'a [Segment<'a>],
    qkv: &'a [f32],
    cache: &'a KvCache,
    layer: usize,
    out: SharedMut<f32>,
    partials: SharedMut<f32>,
}

/// The units of a step, the longest first where lengths differ, and how many of them write partial results.
fn plan(shape: AttentionShape, segments: &[Segment<'_>]) -> (Vec<Unit>, usize) {
    let tile_tokens = (TILE_ROWS / shape.group()).max(1);
    let (mut units, mut partials, mut first_row) = (Vec::new(), 0, 0);
    for (index, segment) in segments.iter().enumerate() {
        for token in (0..segment.count).step_by(tile_tokens).rev() {
            let tokens = tile_tokens.min(segment.count - token);
            let position = segment.start + token;
            let chunk = shape.first_seen(position) / CHUNK;
            let chunks = (position + tokens).div_ceil(CHUNK) - chunk;
            for kv_head in 0..shape.kv_heads {
                let unit = Unit {
                    segment: index,
                    token,
                    tokens,
                    row: first_row + token,
                    kv_head,
                    chunk,
                    chunks,
                    partial: None,
                };
                if segment.count > 1 || chunks == 1 {
                    units.push(unit);
                    continue;
                }
                units.extend((0..chunks).map(|index| Unit {
                    chunk: chunk + index,
                    chunks: 1,
                    partial: Some(partials + index),
                    ..unit
                }));
                partials += chunks;
            }
        }
        first_row += segment.count;
    }
    (units, partials)
}

/// Merges the partial results of decoding tokens, in order.
struct Merge<'a> {
    context: &'a Context<'a>,
    units: &'a [Unit],
}

impl Kernel for Merge<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut rest = self.units;
        while let Some(first) = rest.first() {
            let same = rest
                .iter()
                .take_while(|u| u.row == first.row && u.kv_head == first.kv_head)
                .count();
            if let Some(slot) = first.partial {
                // SAFETY: all units have ended; `same` consecutive slots from `slot` on belong to this row and head.
                unsafe { merge_partials::<S>(self.context, first, slot, same) };
            }
            rest = &rest[same..];
        }
    }
}

/// Folds chunk results `(largest, sum, values)` into running ones.
#[inline(always)]
unsafe fn fold<S: Simd>(running: *mut f32, chunk: *const f32, padded: usize) {
    // SAFETY: both point at a largest score, a sum and `padded` values, the layout of `tile::partial_len`.
    unsafe {
        let (old, new) = (*running, *chunk);
        let one = S::splat(1.0);
        // The larger keeps its weight: `exp(0)` is exactly 1.
        let (largest, keep, take) = if old > new {
            (old, one, exp::<S>(S::splat(new - old)))
        } else {
            (new, exp::<S>(S::splat(old - new)), one)
        };
        *running = largest;
        let sums = S::fma(
            S::splat(*running.add(1)),
            keep,
            S::mul(S::splat(*chunk.add(1)), take),
        );
        store_partial::<S>(running.add(1), sums, 1);
        for at in (tile::HEADER..tile::HEADER + padded).step_by(LANES) {
            let taken = S::mul(S::load(chunk.add(at)), take);
            S::store(
                running.add(at),
                S::fma(S::load(running.add(at)), keep, taken),
            );
        }
    }
}

#[cfg(test)]
#[path = "attention/tests.rs"]
mod tests;
