//! One tile of queries of a head group over its chunks.

use super::{AttentionShape, CHUNK, Context, Unit, fold};
use crate::cpu::Kernel;
use crate::kv::BLOCK_TOKENS;
use crate::math::{exp, store_partial};
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
        unsafe { work.run::<S>() }
    }
}

impl Work<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(&self) {
        // SAFETY: see the callees; all pointers are `Tile::run`'s.
        unsafe {
            self.gather_queries();
            for chunk in self.unit.chunk..self.unit.chunk + self.unit.chunks {
                self.chunk::<S>(chunk * CHUNK);
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

    /// Tokens of the chunk from `first` on that row `row` sees.
    #[inline(always)]
    fn seen(&self, row: usize, first: usize) -> usize {
        (self.position + row / self.group + 1)
            .saturating_sub(first)
            .min(CHUNK)
    }

    /// Folds the chunk of tokens from `first` on into the running results (or leaves it, when it is a partial result).
    #[inline(always)]
    unsafe fn chunk<S: Simd>(&self, first: usize) {
        let tokens = self.seen(self.rows - 1, first);
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        // SAFETY: the last row's tokens all have blocks in the table, and memory parts hold `rows` rows.
        unsafe {
            self.scores::<S>(first, blocks);
            for row in 0..self.rows {
                self.softmax::<S>(row, self.seen(row, first), blocks);
            }
            self.values::<S>(first, tokens);
            if self.unit.partial.is_some() {
                return;
            }
            if first == 0 {
                // Every row sees token 0: the first chunk is the running result.
                std::ptr::copy_nonoverlapping(
                    self.chunk,
                    self.running,
                    self.rows * row_len(self.padded),
                );
            } else {
                for row in (0..self.rows).filter(|&row| self.seen(row, first) > 0) {
                    let at = row * row_len(self.padded);
                    fold::<S>(self.running.add(at), self.chunk.add(at), self.padded);
                }
            }
        }
    }

    #[inline(always)]
    fn block(&self, first: usize, block: usize) -> u32 {
        self.table[first / BLOCK_TOKENS + block]
    }

    /// Scores of all rows against `blocks` blocks of keys.
    #[inline(always)]
    unsafe fn scores<S: Simd>(&self, first: usize, blocks: usize) {
        let keys = |block: usize| {
            self.context.cache.keys(
                self.context.layer,
                self.block(first, block),
                self.unit.kv_head,
            )
        };
        let mut block = 0;
        // SAFETY: blocks below `blocks` exist in the table, rows below `rows` in the memory.
        unsafe {
            while block < blocks {
                let pair = if S::WIDE && block + 1 < blocks { 2 } else { 1 };
                let (one, other) = (keys(block), keys(block + pair - 1));
                let mut row = 0;
                while row < self.rows {
                    row += match (pair, self.rows - row) {
                        (2, 6..) => self.score_tile::<S, 6, 2>([one, other], row, block),
                        (2, 3..) => self.score_tile::<S, 3, 2>([one, other], row, block),
                        (2, _) => self.score_tile::<S, 1, 2>([one, other], row, block),
                        (_, 4..) => self.score_tile::<S, 4, 1>([one], row, block),
                        (_, 3) => self.score_tile::<S, 3, 1>([one], row, block),
                        _ => self.score_tile::<S, 1, 1>([one], row, block),
                    };
                }
                block += pair;
            }
        }
    }

    /// `R` rows against `B` blocks; returns `R`.
    #[inline(always)]
    unsafe fn score_tile<S: Simd, const R: usize, const B: usize>(
        &self,
        keys: [*const u16; B],
        row: usize,
        block: usize,
    ) -> usize {
        // SAFETY: as in `scores`.
        unsafe {
            let queries = self.queries.add(row * self.dim);
            let mut acc = [[S::splat(0.0); B]; R];
            for d in 0..self.dim {
                let mut k = [S::splat(0.0); B];
                for b in 0..B {
                    k[b] = S::load_f16(keys[b].add(d * BLOCK_TOKENS));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let q = S::splat(*queries.add(r * self.dim + d));
                    for b in 0..B {
                        acc[b] = S::fma(q, k[b], acc[b]);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (b, &acc) in acc.iter().enumerate() {
                    S::store(
                        self.scores.add((row + r) * CHUNK + (block + b) * LANES),
                        acc,
                    );
                }
            }
            R
        }
    }

    /// Turns a row's first `seen` scores into exponentials and the rest of its `blocks` blocks into zeros; notes the
    /// largest score and the sum.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(&self, row: usize, seen: usize, blocks: usize) {
        // SAFETY: the row's scores hold `blocks` vectors, and `seen` lies within them.
        unsafe {
            let scores = self.scores.add(row * CHUNK);
            let full = seen.div_ceil(LANES);
            for i in seen..full * LANES {
                *scores.add(i) = f32::NEG_INFINITY;
            }
            let mut largest = S::splat(f32::NEG_INFINITY);
            for i in 0..full {
                largest = S::max(S::load(scores.add(i * LANES)), largest);
            }
            let largest = S::largest(largest);
            let mut sums = S::splat(0.0);
            for i in 0..full {
                let at = scores.add(i * LANES);
                let e = exp::<S>(S::sub(S::load(at), S::splat(largest)));
                S::store(at, e);
                sums = S::add(sums, e);
            }
            for i in full..blocks {
                S::store(scores.add(i * LANES), S::splat(0.0));
            }
            let chunk = self.chunk.add(row * row_len(self.padded));
            *chunk = largest;
            *chunk.add(1) = S::sum(sums);
        }
    }

    /// Values of `tokens` tokens weighted by all rows' exponentials.
    #[inline(always)]
    unsafe fn values<S: Simd>(&self, first: usize, tokens: usize) {
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
                            (true, 6, 4..) => self.value_tile::<S, 6, 4>(first, tokens, row, d),
                            (true, 6, _) => self.value_tile::<S, 6, 1>(first, tokens, row, d),
                            (true, 3, 4..) => self.value_tile::<S, 3, 4>(first, tokens, row, d),
                            (true, 3, _) => self.value_tile::<S, 3, 1>(first, tokens, row, d),
                            (false, 2, 2..) => self.value_tile::<S, 2, 2>(first, tokens, row, d),
                            (false, 2, _) => self.value_tile::<S, 2, 1>(first, tokens, row, d),
                            (_, _, 4..) => self.value_tile::<S, 1, 4>(first, tokens, row, d),
                            _ => self.value_tile::<S, 1, 1>(first, tokens, row, d),
                        };
                }
                row += rows;
            }
        }
    }

    /// `R` rows, `V` vectors of the head from value `d` on; returns `V`.
    #[inline(always)]
    unsafe fn value_tile<S: Simd, const R: usize, const V: usize>(
        &self,
        first: usize,
        tokens: usize,
        row: usize,
        d: usize,
    ) -> usize {
        // SAFETY: as in `values`; tokens below `tokens` have blocks in the table.
        unsafe {
            let mut acc = [[S::splat(0.0); V]; R];
            for block in 0..tokens.div_ceil(BLOCK_TOKENS) {
                let id = self.block(first, block);
                let values = self
                    .context
                    .cache
                    .values(self.context.layer, id, self.unit.kv_head)
                    .add(d);
                let weights = self.scores.add(row * CHUNK + block * BLOCK_TOKENS);
                for token in 0..(tokens - block * BLOCK_TOKENS).min(BLOCK_TOKENS) {
                    let mut v = [S::splat(0.0); V];
                    for (i, v) in v.iter_mut().enumerate() {
                        *v = S::load_f16(values.add(token * self.padded + i * LANES));
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
