//! One tile of queries of a head group over its chunks.

use std::ops::Range;

use super::element::{Bytes, Element, Halves};
use super::{AttentionShape, CHUNK, Context, Unit, fold};
use crate::cpu::Kernel;
use crate::kv::{BLOCK_TOKENS, KV_GROUP, KvElement};
use crate::math::{exp, softcap, store_partial};
use crate::simd::{LANES, Simd};

/// Values before the weighted values of a partial result: largest score, sum, and padding to a vector.
pub(super) const HEADER: usize = LANES;

/// Length of one query row's partial result.
pub(super) fn row_len(padded: usize) -> usize {
    HEADER + padded
}

/// Length of a unit's partial result: one row for each head of a group.
pub(super) fn partial_len(shape: AttentionShape) -> usize {
    shape.group() * row_len(shape.head_dim.next_multiple_of(LANES))
}

/// A unit with the memory to compute it in.
pub(super) struct Tile<'a> {
    pub context: &'a Context<'a>,
    pub unit: Unit,
    pub memory: &'a mut Vec<f32>,
}

/// Where a tile's numbers lie, and its extents.
struct Work<'a> {
    context: &'a Context<'a>,
    unit: Unit,
    /// Position of the tile's first token.
    position: usize,
    rows: usize,
    group: usize,
    dim: usize,
    padded: usize,
    table: &'a [u32],
    /// `[rows][dim]`.
    queries: *mut f32,
    /// `[rows][CHUNK]`.
    scores: *mut f32,
    /// `[rows][row_len]`: the chunk at hand, and the chunks before it.
    chunk: *mut f32,
    running: *mut f32,
}

/// Tokens of the chunk from `first` on: those of blocks `blocks` below `end`, both counted within the chunk.
struct Tokens {
    first: usize,
    blocks: Range<usize>,
    end: usize,
}

impl Kernel for Tile<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (context, unit) = (self.context, self.unit);
        let (group, dim) = (context.shape.group(), context.shape.head_dim);
        let (rows, padded) = (unit.tokens * group, dim.next_multiple_of(LANES));
        let lens = [
            rows * dim,
            rows * CHUNK,
            rows * row_len(padded),
            rows * row_len(padded),
        ];
        let needed = lens.iter().sum();
        if self.memory.len() < needed {
            self.memory.resize(needed, 0.0);
        }
        let start = self.memory.as_mut_ptr();
        let at = |part: usize| start.wrapping_add(lens[..part].iter().sum());
        let segment = &context.segments[unit.segment];
        let work = Work {
            context,
            unit,
            position: segment.start + unit.token,
            rows,
            group,
            dim,
            padded,
            table: segment.table,
            queries: at(0),
            scores: at(1),
            chunk: at(2),
            running: at(3),
        };
        // SAFETY: the four parts lie in `memory` one after another; shapes were checked by `attend`.
        unsafe {
            match context.cache.shape().element {
                KvElement::F16 => work.run::<S, Halves>(),
                KvElement::Int8Group32 => work.run::<S, Bytes>(),
            }
        }
    }
}

impl Work<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd, E: Element>(&self) {
        // SAFETY: see the callees; all pointers are `Tile::run`'s.
        unsafe {
            self.gather_queries();
            for chunk in self.unit.chunk..self.unit.chunk + self.unit.chunks {
                self.chunk::<S, E>(chunk * CHUNK);
            }
            match self.unit.partial {
                Some(slot) => {
                    let len = partial_len(self.context.shape);
                    std::ptr::copy_nonoverlapping(
                        self.chunk,
                        self.context.partials.at(slot * len),
                        len,
                    );
                }
                None => {
                    for row in 0..self.rows {
                        let (token, head) = (
                            row / self.group,
                            self.unit.kv_head * self.group + row % self.group,
                        );
                        let running = self.running.add(row * row_len(self.padded));
                        write_out::<S>(self.context, self.unit.row + token, head, running);
                    }
                }
            }
        }
    }

    unsafe fn gather_queries(&self) {
        let shape = &self.context.shape;
        for token in 0..self.unit.tokens {
            let at = (self.unit.row + token) * shape.row_width()
                + self.unit.kv_head * self.group * self.dim;
            let queries = &self.context.qkv[at..][..self.group * self.dim];
            // SAFETY: `queries` memory holds `group * dim` values for each token.
            unsafe {
                let to = self.queries.add(token * queries.len());
                std::ptr::copy_nonoverlapping(queries.as_ptr(), to, queries.len());
            }
        }
    }

    /// Tokens of the chunk from `first` on that row `row` sees: none, when the chunk lies behind it or before its window.
    #[inline(always)]
    fn seen(&self, row: usize, first: usize) -> Range<usize> {
        let position = self.position + row / self.group;
        let end = (position + 1).saturating_sub(first).min(CHUNK);
        let start = self.context.shape.first_seen(position);
        start.saturating_sub(first).min(end)..end
    }

    /// Folds the chunk of tokens from `first` on into the running results (or leaves it, when it is a partial result).
    #[inline(always)]
    unsafe fn chunk<S: Simd, E: Element>(&self, first: usize) {
        // The first row's window reaches back furthest, the last row sees furthest.
        let tokens = self.seen(0, first).start..self.seen(self.rows - 1, first).end;
        let blocks = tokens.start / BLOCK_TOKENS..tokens.end.div_ceil(BLOCK_TOKENS);
        // SAFETY: the last row's tokens all have blocks in the table, and memory parts hold `rows` rows.
        unsafe {
            self.scores::<S, E>(first, &blocks);
            for row in 0..self.rows {
                self.softmax::<S>(row, &self.seen(row, first), &blocks);
            }
            self.values::<S, E>(first, blocks, tokens.end);
            if self.unit.partial.is_some() {
                return;
            }
            for row in 0..self.rows {
                let seen = self.seen(row, first);
                if seen.is_empty() {
                    continue;
                }
                let at = row * row_len(self.padded);
                let (running, chunk) = (self.running.add(at), self.chunk.add(at));
                let position = self.position + row / self.group;
                if self.context.shape.first_seen(position) >= first {
                    // The first chunk a row sees becomes its running result.
                    std::ptr::copy_nonoverlapping(chunk, running, row_len(self.padded));
                } else {
                    fold::<S>(running, chunk, self.padded);
                }
            }
        }
    }

    #[inline(always)]
    fn block(&self, first: usize, block: usize) -> u32 {
        self.table[first / BLOCK_TOKENS + block]
    }

    /// Scores of all rows against blocks `blocks` of keys.
    #[inline(always)]
    unsafe fn scores<S: Simd, E: Element>(&self, first: usize, blocks: &Range<usize>) {
        let keys = |block: usize| {
            self.context.cache.keys(
                self.context.layer,
                self.block(first, block),
                self.unit.kv_head,
            )
        };
        let mut block = blocks.start;
        // SAFETY: these blocks exist in the table, rows below `rows` in the memory.
        unsafe {
            while block < blocks.end {
                let pair = if S::WIDE && block + 1 < blocks.end {
                    2
                } else {
                    1
                };
                let (one, other) = (keys(block), keys(block + pair - 1));
                if E::AHEAD && self.unit.tokens == 1 {
                    for next in (block + pair..blocks.end).take(pair) {
                        prefetch::<S>(keys(next), self.context.cache.shape().key_head_bytes());
                    }
                }
                let mut row = 0;
                while row < self.rows {
                    row += match (pair, self.rows - row) {
                        (2, 6..) => self.score_tile::<S, E, 6, 2>([one, other], row, block),
                        (2, 3..) => self.score_tile::<S, E, 3, 2>([one, other], row, block),
                        (2, _) => self.score_tile::<S, E, 1, 2>([one, other], row, block),
                        (_, 4..) => self.score_tile::<S, E, 4, 1>([one], row, block),
                        (_, 3) => self.score_tile::<S, E, 3, 1>([one], row, block),
                        _ => self.score_tile::<S, E, 1, 1>([one], row, block),
                    };
                }
                block += pair;
            }
        }
    }

    /// `R` rows against `B` blocks; returns `R`.
    #[inline(always)]
    unsafe fn score_tile<S: Simd, E: Element, const R: usize, const B: usize>(
        &self,
        keys: [*const u8; B],
        row: usize,
        block: usize,
    ) -> usize {
        // SAFETY: as in `scores`.
        unsafe {
            let queries = self.queries.add(row * self.dim);
            let mut acc = [[S::splat(0.0); B]; R];
            for group in (0..self.dim).step_by(KV_GROUP) {
                let mut scales = [S::splat(0.0); B];
                for b in 0..B {
                    scales[b] = E::key_scales::<S>(keys[b], self.dim, group);
                }
                for d in group..(group + KV_GROUP).min(self.dim) {
                    let mut k = [S::splat(0.0); B];
                    for b in 0..B {
                        k[b] = E::key::<S>(keys[b], d, scales[b]);
                    }
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let q = S::splat(*queries.add(r * self.dim + d));
                        for b in 0..B {
                            acc[b] = S::fma(q, k[b], acc[b]);
                        }
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (b, &acc) in acc.iter().enumerate() {
                    let score = match self.context.shape.softcap {
                        Some(cap) => softcap::<S>(acc, cap),
                        None => acc,
                    };
                    S::store(
                        self.scores.add((row + r) * CHUNK + (block + b) * LANES),
                        score,
                    );
                }
            }
            R
        }
    }

    /// Turns a row's scores of tokens `seen` into exponentials and the rest of blocks `blocks` into zeros; notes the largest
    /// score and the sum.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(&self, row: usize, seen: &Range<usize>, blocks: &Range<usize>) {
        // SAFETY: the row's scores hold these blocks' vectors, and `seen` lies within them or is empty.
        unsafe {
            let scores = self.scores.add(row * CHUNK);
            let full = if seen.is_empty() {
                blocks.start..blocks.start
            } else {
                seen.start / LANES..seen.end.div_ceil(LANES)
            };
            for i in (full.start * LANES..seen.start).chain(seen.end..full.end * LANES) {
                *scores.add(i) = f32::NEG_INFINITY;
            }
            let mut largest = S::splat(f32::NEG_INFINITY);
            for i in full.clone() {
                largest = S::max(S::load(scores.add(i * LANES)), largest);
            }
            let largest = S::largest(largest);
            let mut sums = S::splat(0.0);
            for i in full.clone() {
                let at = scores.add(i * LANES);
                let e = exp::<S>(S::sub(S::load(at), S::splat(largest)));
                S::store(at, e);
                sums = S::add(sums, e);
            }
            for i in (blocks.start..full.start).chain(full.end..blocks.end) {
                S::store(scores.add(i * LANES), S::splat(0.0));
            }
            let chunk = self.chunk.add(row * row_len(self.padded));
            *chunk = largest;
            *chunk.add(1) = S::sum(sums);
        }
    }

    /// Values of blocks `blocks`, up to token `end` of the chunk, weighted by all rows' exponentials.
    #[inline(always)]
    unsafe fn values<S: Simd, E: Element>(&self, first: usize, blocks: Range<usize>, end: usize) {
        let tokens = Tokens { first, blocks, end };
        let tokens = &tokens;
        let mut row = 0;
        // SAFETY: rows below `rows` exist; slabs stay within the padded head.
        unsafe {
            while row < self.rows {
                let rest = self.rows - row;
                let mut d = 0;
                let rows = if S::WIDE { [6, 3, 1] } else { [2, 2, 1] }
                    .into_iter()
                    .find(|&r| r <= rest)
                    .unwrap_or(1);
                while d < self.padded {
                    let vectors = (self.padded - d) / LANES;
                    d += LANES
                        * match (S::WIDE, rows, vectors) {
                            (true, 6, 4..) => self.value_tile::<S, E, 6, 4>(tokens, row, d),
                            (true, 6, _) => self.value_tile::<S, E, 6, 1>(tokens, row, d),
                            (true, 3, 4..) => self.value_tile::<S, E, 3, 4>(tokens, row, d),
                            (true, 3, _) => self.value_tile::<S, E, 3, 1>(tokens, row, d),
                            (false, 2, 2..) => self.value_tile::<S, E, 2, 2>(tokens, row, d),
                            (false, 2, _) => self.value_tile::<S, E, 2, 1>(tokens, row, d),
                            (_, _, 4..) => self.value_tile::<S, E, 1, 4>(tokens, row, d),
                            _ => self.value_tile::<S, E, 1, 1>(tokens, row, d),
                        };
                }
                row += rows;
            }
        }
    }

    /// `R` rows, `V` vectors of the head from value `d` on; returns `V`.
    #[inline(always)]
    unsafe fn value_tile<S: Simd, E: Element, const R: usize, const V: usize>(
        &self,
        tokens: &Tokens,
        row: usize,
        d: usize,
    ) -> usize {
        // SAFETY: as in `values`; the tokens have blocks in the table.
        unsafe {
            let mut acc = [[S::splat(0.0); V]; R];
            for block in tokens.blocks.clone() {
                let id = self.block(tokens.first, block);
                let values = self
                    .context
                    .cache
                    .values(self.context.layer, id, self.unit.kv_head);
                if E::AHEAD && self.unit.tokens == 1 && d == 0 && block + 1 < tokens.blocks.end {
                    let next = self.block(tokens.first, block + 1);
                    let (cache, layer) = (self.context.cache, self.context.layer);
                    let values = cache.values(layer, next, self.unit.kv_head);
                    prefetch::<S>(values, cache.shape().value_head_bytes());
                }
                let weights = self.scores.add(row * CHUNK + block * BLOCK_TOKENS);
                for token in 0..(tokens.end - block * BLOCK_TOKENS).min(BLOCK_TOKENS) {
                    let mut v = [S::splat(0.0); V];
                    for (i, v) in v.iter_mut().enumerate() {
                        *v = E::value::<S>(values, self.padded, token, d + i * LANES);
                    }
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let weight = S::splat(*weights.add(r * CHUNK + token));
                        for i in 0..V {
                            acc[i] = S::fma(weight, v[i], acc[i]);
                        }
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                let out = self
                    .chunk
                    .add((row + r) * row_len(self.padded) + HEADER + d);
                for (i, &acc) in acc.iter().enumerate() {
                    S::store(out.add(i * LANES), acc);
                }
            }
            V
        }
    }
}

/// Asks memory for what comes next. A decoding token meets every key and value once, in pieces too short for the processor's
/// own prefetching; a prompt's tiles find them in a cache.
#[inline(always)]
unsafe fn prefetch<S: Simd>(p: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { S::prefetch(p.wrapping_add(line)) };
    }
}

/// Divides a row's weighted values by its sum into the output.
#[inline(always)]
unsafe fn write_out<S: Simd>(context: &Context<'_>, row: usize, head: usize, running: *const f32) {
    let (heads, dim) = (context.shape.heads, context.shape.head_dim);
    // SAFETY: row and head exist, and this unit is the only one that writes them.
    unsafe {
        let inverse = S::splat(1.0 / *running.add(1));
        for d in (0..dim).step_by(LANES) {
            let value = S::mul(S::load(running.add(HEADER + d)), inverse);
            store_partial::<S>(
                context.out.at((row * heads + head) * dim + d),
                value,
                dim - d,
            );
        }
    }
}

/// Merges `count` chunks' partial results of one token and head group, from `slot` on, and writes them out.
#[inline(always)]
pub(super) unsafe fn merge_partials<S: Simd>(
    context: &Context<'_>,
    unit: &Unit,
    slot: usize,
    count: usize,
) {
    let (group, padded) = (
        context.shape.group(),
        context.shape.head_dim.next_multiple_of(LANES),
    );
    let (len, row_len) = (partial_len(context.shape), row_len(padded));
    // SAFETY: `count` slots of `len` values from `slot` on were written and are no longer shared.
    unsafe {
        for head in 0..group {
            // The first slot becomes the running result.
            let running = context.partials.at(slot * len + head * row_len);
            for chunk in 1..count {
                fold::<S>(
                    running,
                    context.partials.at((slot + chunk) * len + head * row_len),
                    padded,
                );
            }
            write_out::<S>(context, unit.row, unit.kv_head * group + head, running);
        }
    }
}
