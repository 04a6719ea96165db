//! What happens to queries, keys and values between their product and attention, in one pass over a row: biases,
//! normalisation of heads, rotary position embedding, and the storing of keys and values.

use crate::attention::{AttentionShape, Segment};
use crate::buffer::SharedMut;
use crate::cpu::{Cpu, Kernel};
use crate::kv::{KvCache, KvWriter};
use crate::math::{load_partial, store_partial};
use crate::pool::ThreadPool;
use crate::simd::{LANES, Simd};

/// Which values of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Values `2i` and `2i + 1`: the order of Llama's weights in GGUF files.
    Adjacent,
    /// Values `i` and `dims / 2 + i`: GPT-NeoX, Qwen, Gemma, Phi-3, and every Hugging Face file.
    Halves,
}

/// Cosines and sines for the tokens of a step. Angles are computed in double precision.
#[derive(Debug)]
pub struct RopeTable {
    style: RopeStyle,
    frequencies: Vec<f64>,
    magnitude: f64,
    /// A row a token. [`RopeStyle::Adjacent`]: `dims` cosines (each twice, as pairs share one), then `dims` sines, negative
    /// for the even lane. [`RopeStyle::Halves`]: `dims / 2` cosines, then `dims / 2` sines.
    rows: Vec<f32>,
}

impl RopeTable {
    /// A table for `dims` rotated values a head (even): pair `i` turns by `base^(-2i / dims) / factors[i]` a position.
    /// Empty `factors` count as ones.
    ///
    /// # Panics
    /// When `dims` is odd or `factors` are neither empty nor `dims / 2`.
    pub fn new(style: RopeStyle, dims: usize, base: f32, factors: &[f32]) -> Self {
        assert!(
            dims.is_multiple_of(2) && (factors.is_empty() || factors.len() == dims / 2),
            "a factor a pair"
        );
        let frequency = |i: usize| {
            let factor = factors.get(i).map_or(1.0, |&f| f64::from(f));
            f64::from(base).powf(-2.0 * i as f64 / dims as f64) / factor
        };
        Self::from_frequencies(style, (0..dims / 2).map(frequency).collect(), 1.0)
    }

    /// A table whose pair `i` turns by `frequencies[i]` radians a position; cosines and sines are multiplied by `magnitude`
    /// (1 but for YaRN's attention factor).
    pub fn from_frequencies(style: RopeStyle, frequencies: Vec<f64>, magnitude: f64) -> Self {
        Self {
            style,
            frequencies,
            magnitude,
            rows: Vec::new(),
        }
    }

    /// Rotated values of a head.
    pub fn dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    fn row_width(&self) -> usize {
        match self.style {
            RopeStyle::Adjacent => 2 * self.dims(),
            RopeStyle::Halves => self.dims(),
        }
    }

    /// Computes the rows of tokens at `positions`, in order.
    pub fn fill(&mut self, positions: impl Iterator<Item = usize>) {
        self.rows.clear();
        for position in positions {
            let angles = || {
                self.frequencies.iter().map(|f| {
                    let (sin, cos) = (position as f64 * f).sin_cos();
                    ((sin * self.magnitude) as f32, (cos * self.magnitude) as f32)
                })
            };
            match self.style {
                RopeStyle::Adjacent => {
                    self.rows.extend(angles().flat_map(|(_, cos)| [cos; 2]));
                    self.rows.extend(angles().flat_map(|(sin, _)| [-sin, sin]));
                }
                RopeStyle::Halves => {
                    self.rows.extend(angles().map(|(_, cos)| cos));
                    self.rows.extend(angles().map(|(sin, _)| sin));
                }
            }
        }
    }
}

/// Weights that normalise each head of queries and of keys by its root mean square, before it is turned.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm<'a> {
    /// `head_dim` weights for queries.
    pub query: &'a [f32],
    /// `head_dim` weights for keys.
    pub key: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

/// What happens to a row of queries, keys and values before it is turned and stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct QkvAdjust<'a> {
    /// Added first: a row of queries', keys' and values' biases.
    pub bias: Option<&'a [f32]>,
    /// Then applied to queries and keys.
    pub norm: Option<QkNorm<'a>>,
}

impl QkvAdjust<'_> {
    fn assert_fits(&self, shape: AttentionShape) {
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), shape.row_width(), "a bias a value of a row");
        }
        if let Some(norm) = self.norm {
            assert_eq!(
                (norm.query.len(), norm.key.len()),
                (shape.head_dim, shape.head_dim),
                "a weight a value of a head"
            );
        }
    }
}

struct Token<'a> {
    row: *mut f32,
    cos_sin: &'a [f32],
    style: RopeStyle,
    shape: AttentionShape,
    adjust: QkvAdjust<'a>,
    writer: KvWriter<'a>,
    place: (u32, usize),
}

impl Token<'_> {
    #[inline(always)]
    unsafe fn add_bias<S: Simd>(&self, bias: &[f32]) {
        // SAFETY: the row and its biases are as long.
        unsafe {
            for at in (0..bias.len()).step_by(LANES) {
                let count = bias.len() - at;
                let x = self.row.add(at);
                let bias = load_partial::<S>(bias.as_ptr().add(at), count);
                store_partial::<S>(x, S::add(load_partial::<S>(x, count), bias), count);
            }
        }
    }

    /// Normalises the head at `x`.
    #[inline(always)]
    unsafe fn normalise<S: Simd>(x: *mut f32, weight: &[f32], eps: f32) {
        let dim = weight.len();
        // SAFETY: the head holds `dim` values; partial loads and stores stay inside.
        unsafe {
            let mut squares = S::splat(0.0);
            for at in (0..dim).step_by(LANES) {
                let lanes = load_partial::<S>(x.add(at), dim - at);
                squares = S::fma(lanes, lanes, squares);
            }
            let scale = S::splat(1.0 / (S::sum(squares) / dim as f32 + eps).sqrt());
            for at in (0..dim).step_by(LANES) {
                let lanes = load_partial::<S>(x.add(at), dim - at);
                let weights = load_partial::<S>(weight.as_ptr().add(at), dim - at);
                store_partial::<S>(x.add(at), S::mul(S::mul(lanes, scale), weights), dim - at);
            }
        }
    }

    /// Turns the head at `x`.
    #[inline(always)]
    unsafe fn turn<S: Simd>(&self, x: *mut f32) {
        // SAFETY: the head holds at least as many values as are turned, and the table's row is as the style says.
        unsafe {
            match self.style {
                RopeStyle::Adjacent => self.turn_adjacent::<S>(x),
                RopeStyle::Halves => self.turn_halves::<S>(x),
            }
        }
    }

    #[inline(always)]
    unsafe fn turn_adjacent<S: Simd>(&self, x: *mut f32) {
        let dims = self.cos_sin.len() / 2;
        let table = self.cos_sin.as_ptr();
        // SAFETY: as in `turn`; partial loads and stores stay within `dims`.
        unsafe {
            for at in (0..dims).step_by(LANES) {
                let count = dims - at;
                let lanes = load_partial::<S>(x.add(at), count);
                let cos = load_partial::<S>(table.add(at), count);
                let sin = load_partial::<S>(table.add(dims + at), count);
                let turned = S::fma(lanes, cos, S::mul(S::swap_pairs(lanes), sin));
                store_partial::<S>(x.add(at), turned, count);
            }
        }
    }

    #[inline(always)]
    unsafe fn turn_halves<S: Simd>(&self, x: *mut f32) {
        let half = self.cos_sin.len() / 2;
        let table = self.cos_sin.as_ptr();
        // SAFETY: as in `turn`; partial loads and stores stay within each half.
        unsafe {
            for at in (0..half).step_by(LANES) {
                let count = half - at;
                let (first, second) = (x.add(at), x.add(half + at));
                let (a, b) = (
                    load_partial::<S>(first, count),
                    load_partial::<S>(second, count),
                );
                let cos = load_partial::<S>(table.add(at), count);
                let sin = load_partial::<S>(table.add(half + at), count);
                let minus = S::sub(S::splat(0.0), sin);
                store_partial::<S>(first, S::fma(a, cos, S::mul(b, minus)), count);
                store_partial::<S>(second, S::fma(b, cos, S::mul(a, sin)), count);
            }
        }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(&self, x: *mut f32) {
        let dim = self.shape.head_dim;
        // SAFETY: partial loads and stores stay within the head.
        unsafe {
            let scale = S::splat(self.shape.scale);
            for at in (0..dim).step_by(LANES) {
                let lanes = load_partial::<S>(x.add(at), dim - at);
                store_partial::<S>(x.add(at), S::mul(lanes, scale), dim - at);
            }
        }
    }
}

impl Kernel for Token<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        // SAFETY: the row holds `heads + 2 * kv_heads` heads and belongs to this thread.
        unsafe {
            if let Some(bias) = self.adjust.bias {
                self.add_bias::<S>(bias);
            }
            for head in 0..heads + kv_heads {
                let x = self.row.add(head * head_dim);
                if let Some(QkNorm { query, key, eps }) = self.adjust.norm {
                    let weight = if head < heads { query } else { key };
                    Self::normalise::<S>(x, weight, eps);
                }
                self.turn::<S>(x);
                if head < heads {
                    self.scale::<S>(x);
                }
            }
            for kv_head in 0..kv_heads {
                let key = self.row.add((heads + kv_head) * head_dim);
                let value = self.row.add((heads + kv_heads + kv_head) * head_dim);
                self.writer.store::<S>(self.place, kv_head, key, value);
            }
        }
    }
}

/// Adjusts every row of `qkv` in place, turns its queries and keys, scales its queries by the shape's scale, and stores its keys and
/// values of layer `layer` in `cache`. A row is queries, keys and values, head by head; rows are the tokens of `segments` in
/// order, and `table` was filled with their positions.
///
/// # Panics
/// When shapes do not fit.
pub fn rope_and_store(
    cpu: Cpu,
    pool: &ThreadPool,
    table: &RopeTable,
    adjust: QkvAdjust<'_>,
    shape: AttentionShape,
    segments: &[Segment<'_>],
    qkv: &mut [f32],
    cache: &mut KvCache,
    layer: usize,
) {
    cache.assert_holds(layer, segments);
    shape.assert_fits(cache.shape());
    adjust.assert_fits(shape);
    let rows: usize = segments.iter().map(Segment::count).sum();
    let (width, table_width) = (shape.row_width(), table.row_width());
    assert!(
        table.dims() <= shape.head_dim,
        "no more values are turned than a head has"
    );
    assert_eq!(
        (qkv.len(), table.rows.len()),
        (rows * width, rows * table_width),
        "a row a token"
    );
    let places: Vec<(u32, usize)> = segments.iter().flat_map(Segment::places).collect();
    let (qkv, writer) = (SharedMut::new(qkv), cache.writer(layer));
    pool.split(rows, 8, |range| {
        for row in range {
            // SAFETY: rows of this range belong to this thread.
            let qkv = unsafe { qkv.at(row * width) };
            let cos_sin = &table.rows[row * table_width..][..table_width];
            cpu.execute(Token {
                row: qkv,
                cos_sin,
                style: table.style,
                shape,
                adjust,
                writer,
                place: places[row],
            });
        }
    });
}

#[cfg(test)]
#[path = "rope/tests.rs"]
mod tests;
