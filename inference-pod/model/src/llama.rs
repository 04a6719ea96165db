//! The Llama forward pass over slabs of tokens.

use pagoda_kernels::{
    Activation, AttentionScratch, AttentionShape, Cpu, Input, KvCache, NormOutput, Output,
    PackedMatrix, QkvAdjust, QuantisedRows, RopeTable, Segment, ThreadPool, attend, gated, matmul,
    quantise_rows, rms_norm, rope_and_store,
};

use crate::config::LlamaConfig;
use crate::weights::{Layer, Weights};

/// Tokens computed together: enough to be bound by arithmetic, few enough to stay in a cache.
pub(crate) const SLAB_TOKENS: usize = 512;

/// Part of one step row within a slab.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub segment: Segment<'a>,
    /// This many tokens, as many as the segment counts.
    pub tokens: &'a [u32],
    /// The states of this many last tokens go on to the head.
    pub wanted: usize,
}

impl Piece<'_> {
    /// How many of the `count` tokens after the first `skip` are wanted; they are the last ones there too.
    pub fn wanted_within(&self, skip: usize, count: usize) -> usize {
        let first = self.tokens.len() - self.wanted;
        (skip + count).saturating_sub(first.max(skip))
    }
}

/// Intermediate results, kept from step to step.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// `[tokens][embedding]`: the residual stream.
    state: Vec<f32>,
    /// A normalised or attended input of a product, in one of the two forms.
    q8: QuantisedRows,
    f32: Vec<f32>,
    /// `[tokens][feed_forward]`, in one of the two forms.
    hidden_q8: QuantisedRows,
    hidden_f32: Vec<f32>,
    /// `[tokens][queries, keys, values]`.
    qkv: Vec<f32>,
    /// `[tokens][heads * head_dim]`.
    attended: Vec<f32>,
    attention: AttentionScratch,
    /// `[wanted rows][embedding]`: wanted tokens' states after the last layer.
    last: Vec<f32>,
}

impl Buffers {
    pub fn start_step(&mut self) {
        self.last.clear();
    }
}

/// A model's parts during a step.
pub(crate) struct Forward<'a> {
    pub cpu: Cpu,
    pub pool: &'a ThreadPool,
    pub config: &'a LlamaConfig,
    pub weights: &'a Weights,
    pub cache: &'a mut KvCache,
    pub rope: &'a mut RopeTable,
    pub buffers: &'a mut Buffers,
}

impl Forward<'_> {
    fn shape(&self) -> AttentionShape {
        let LlamaConfig {
            heads,
            kv_heads,
            head_dim,
            ..
        } = *self.config;
        AttentionShape::new(heads, kv_heads, head_dim)
    }

    /// Runs the pieces through all layers, storing keys and values; states of wanted tokens are kept for [`Forward::head`].
    pub fn slab(&mut self, pieces: &[Piece<'_>]) {
        let segments: Vec<Segment<'_>> = pieces.iter().map(|piece| piece.segment).collect();
        self.rope.fill(
            segments
                .iter()
                .flat_map(|s| s.start()..s.start() + s.count()),
        );
        self.embed(pieces);
        let (weights, last) = (self.weights, self.weights.layers.len() - 1);
        for (index, layer) in weights.layers.iter().enumerate() {
            self.project(layer, &segments, index);
            if index < last {
                self.finish_layer(layer, &segments, index);
                continue;
            }
            // Past its keys and values, the last layer matters to wanted tokens alone.
            let wanted = self.keep_wanted(pieces);
            if !wanted.is_empty() {
                self.finish_layer(layer, &wanted, index);
                self.buffers.last.extend_from_slice(&self.buffers.state);
            }
        }
    }

    fn embed(&mut self, pieces: &[Piece<'_>]) {
        let width = self.config.embedding;
        let tokens: Vec<u32> = pieces
            .iter()
            .flat_map(|piece| piece.tokens)
            .copied()
            .collect();
        self.buffers.state.resize(tokens.len() * width, 0.0);
        let table = &self.weights.table;
        self.pool
            .split_chunks(&mut self.buffers.state, width, 8, |row, out| {
                table.row(tokens[row] as usize, out);
            });
    }

    /// Normalises, makes queries, keys and values, turns them and stores the latter two.
    fn project(&mut self, layer: &Layer, segments: &[Segment<'_>], index: usize) {
        let shape = self.shape();
        let matrices = [&layer.q, &layer.k, &layer.v];
        self.normalise(&layer.attn_norm, &matrices);
        let rows = self.rows();
        self.buffers.qkv.resize(rows * shape.row_width(), 0.0);
        let out = Output::Store(&mut self.buffers.qkv);
        matmul(
            self.cpu,
            self.pool,
            &matrices,
            input(&self.buffers.q8, &self.buffers.f32, rows, layer.q.k()),
            out,
        );
        let qkv = &mut self.buffers.qkv;
        rope_and_store(
            self.cpu,
            self.pool,
            self.rope,
            QkvAdjust::default(),
            shape,
            segments,
            qkv,
            self.cache,
            index,
        );
    }

    /// Attention and the feed-forward part, both added to the state.
    fn finish_layer(&mut self, layer: &Layer, segments: &[Segment<'_>], index: usize) {
        let (rows, shape) = (self.rows(), self.shape());
        let Buffers {
            qkv,
            attended,
            attention,
            ..
        } = &mut *self.buffers;
        attended.resize(rows * shape.heads * shape.head_dim, 0.0);
        attend(
            self.cpu, self.pool, shape, segments, qkv, self.cache, index, attention, attended,
        );
        self.add_attention(&layer.attn_output, rows);

        self.normalise(&layer.ffn_norm, &[&layer.gate, &layer.up]);
        let width = layer.down.k();
        let Buffers {
            q8,
            f32,
            hidden_q8,
            hidden_f32,
            ..
        } = &mut *self.buffers;
        let source = input(q8, f32, rows, layer.gate.k());
        let out = if layer.down.format().is_quantised() {
            hidden_f32.clear();
            Output::Quantise(hidden_q8)
        } else {
            hidden_q8.clear();
            hidden_f32.resize(rows * width, 0.0);
            Output::Store(hidden_f32)
        };
        gated(
            self.cpu,
            self.pool,
            Activation::Silu,
            &layer.gate,
            &layer.up,
            source,
            out,
        );
        let Buffers {
            state,
            hidden_q8,
            hidden_f32,
            ..
        } = &mut *self.buffers;
        let hidden = input(hidden_q8, hidden_f32, rows, width);
        matmul(
            self.cpu,
            self.pool,
            &[&layer.down],
            hidden,
            Output::Add(state),
        );
    }

    /// Adds the product of what attention yielded to the state.
    fn add_attention(&mut self, matrix: &PackedMatrix, rows: usize) {
        let Buffers {
            state,
            q8,
            attended,
            ..
        } = &mut *self.buffers;
        if matrix.format().is_quantised() {
            quantise_rows(self.cpu, self.pool, attended, matrix.k(), q8);
        }
        matmul(
            self.cpu,
            self.pool,
            &[matrix],
            input(q8, attended, rows, matrix.k()),
            Output::Add(state),
        );
    }

    /// Normalises the state into the forms that `consumers` take.
    fn normalise(&mut self, weight: &[f32], consumers: &[&PackedMatrix]) {
        let Buffers { state, q8, f32, .. } = &mut *self.buffers;
        normalise(
            self.cpu,
            self.pool,
            state,
            weight,
            self.config.norm_eps,
            consumers,
            q8,
            f32,
        );
    }

    /// Reduces queries and state to the wanted tokens; returns these as segments.
    fn keep_wanted<'s>(&mut self, pieces: &[Piece<'s>]) -> Vec<Segment<'s>> {
        let (width, qkv_width) = (self.config.embedding, self.shape().row_width());
        let (mut wanted, mut end, mut kept) = (Vec::new(), 0, 0);
        for piece in pieces {
            let count = piece.segment.count();
            end += count;
            if piece.wanted > 0 {
                let from = end - piece.wanted;
                let Buffers { state, qkv, .. } = &mut *self.buffers;
                state.copy_within(from * width..end * width, kept * width);
                qkv.copy_within(from * qkv_width..end * qkv_width, kept * qkv_width);
                kept += piece.wanted;
                wanted.push(piece.segment.part(count - piece.wanted, piece.wanted));
            }
        }
        self.buffers.state.truncate(kept * width);
        self.buffers.qkv.truncate(kept * qkv_width);
        wanted
    }

    fn rows(&self) -> usize {
        self.buffers.state.len() / self.config.embedding
    }

    /// Logits of all states kept since [`Buffers::start_step`], in order.
    pub fn head(&mut self, logits: &mut [f32]) {
        let head = self.weights.head();
        let Buffers { last, q8, f32, .. } = &mut *self.buffers;
        let rows = last.len() / self.config.embedding;
        normalise(
            self.cpu,
            self.pool,
            last,
            &self.weights.output_norm,
            self.config.norm_eps,
            &[head],
            q8,
            f32,
        );
        matmul(
            self.cpu,
            self.pool,
            &[head],
            input(q8, f32, rows, head.k()),
            Output::Store(logits),
        );
    }
}

fn input<'a>(q8: &'a QuantisedRows, f32: &'a [f32], rows: usize, k: usize) -> Input<'a> {
    Input {
        rows,
        k,
        f32,
        q8: Some(q8),
    }
}

/// Normalises rows of `x` into bytes if any of `consumers` is quantised, and into floats if any is not.
#[allow(clippy::too_many_arguments)] // A kernel's operands.
fn normalise(
    cpu: Cpu,
    pool: &ThreadPool,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    consumers: &[&PackedMatrix],
    q8: &mut QuantisedRows,
    f32: &mut Vec<f32>,
) {
    let quantised = consumers.iter().any(|m| m.format().is_quantised());
    let float = consumers.iter().any(|m| !m.format().is_quantised());
    f32.resize(if float { x.len() } else { 0 }, 0.0);
    let out = NormOutput {
        f32: float.then_some(&mut f32[..]),
        q8: quantised.then_some(q8),
        add: None,
    };
    rms_norm(cpu, pool, x, weight, eps, out);
}
