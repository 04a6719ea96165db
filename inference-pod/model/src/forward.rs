//! The forward pass over slabs of tokens, one for all architectures: what they differ in is in the configuration and in which
//! vectors a layer has.

use pagoda_kernels::{
    AttentionScratch, AttentionShape, Cpu, Input, KvCache, NormOutput, Output, PackedMatrix,
    QkNorm, QkvAdjust, QuantisedRows, RopeTable, Segment, ThreadPool, attend, gated, matmul,
    quantise_rows, rms_norm, rope_and_store, softcap_rows,
};

use crate::config::ModelConfig;
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
    /// `[tokens][embedding]`: what is normalised before it is added to the state.
    output: Vec<f32>,
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
    pub config: &'a ModelConfig,
    pub weights: &'a Weights,
    pub cache: &'a mut KvCache,
    /// One table a rotary embedding of the configuration.
    pub ropes: &'a mut [RopeTable],
    pub buffers: &'a mut Buffers,
}

impl Forward<'_> {
    fn shape(&self, index: usize) -> AttentionShape {
        self.config.attention(self.config.layers[index])
    }

    /// Runs the pieces through all layers, storing keys and values; states of wanted tokens are kept for [`Forward::head`].
    pub fn slab(&mut self, pieces: &[Piece<'_>]) {
        let segments: Vec<Segment<'_>> = pieces.iter().map(|piece| piece.segment).collect();
        for rope in &mut *self.ropes {
            rope.fill(
                segments
                    .iter()
                    .flat_map(|s| s.start()..s.start() + s.count()),
            );
        }
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
        let (width, scale) = (self.config.embedding, self.config.embedding_scale);
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
                #[allow(clippy::float_cmp)] // 1 is the value that says "as it is".
                if scale != 1.0 {
                    for x in out {
                        *x *= scale;
                    }
                }
            });
    }

    /// Normalises, makes queries, keys and values, turns them and stores the latter two.
    fn project(&mut self, layer: &Layer, segments: &[Segment<'_>], index: usize) {
        let shape = self.shape(index);
        let matrices: Vec<&PackedMatrix> = layer.qkv.iter().collect();
        self.normalise(&layer.attention_norm, &matrices);
        let rows = self.rows();
        self.buffers.qkv.resize(rows * shape.row_width(), 0.0);
        let source = input(&self.buffers.q8, &self.buffers.f32, rows, matrices[0].k());
        let out = Output::Store(&mut self.buffers.qkv);
        matmul(self.cpu, self.pool, &matrices, source, out);
        rope_and_store(
            self.cpu,
            self.pool,
            &self.ropes[self.config.layers[index].rope],
            adjust(layer, self.config.norm_eps),
            shape,
            segments,
            &mut self.buffers.qkv,
            self.cache,
            index,
        );
    }

    /// Attention and the feed-forward part, both added to the state.
    fn finish_layer(&mut self, layer: &Layer, segments: &[Segment<'_>], index: usize) {
        self.attend(segments, index);
        let rows = self.rows();
        let matrix = &layer.attention_output;
        let Buffers { q8, attended, .. } = &mut *self.buffers;
        if matrix.format().is_quantised() {
            quantise_rows(self.cpu, self.pool, attended, matrix.k(), q8);
        }
        self.add_product(
            matrix,
            Operand::Attended,
            &layer.attention_output_norm,
            rows,
        );

        self.normalise(&layer.feed_forward_norm, &[&layer.gate, &layer.up]);
        self.gate(layer, rows);
        let norm = &layer.feed_forward_output_norm;
        self.add_product(&layer.down, Operand::Hidden, norm, rows);
    }

    fn attend(&mut self, segments: &[Segment<'_>], index: usize) {
        let (rows, shape) = (self.rows(), self.shape(index));
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
    }

    /// The feed-forward part up to its last product, into the form that one takes.
    fn gate(&mut self, layer: &Layer, rows: usize) {
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
            hidden_f32.resize(rows * layer.down.k(), 0.0);
            Output::Store(hidden_f32)
        };
        let activation = self.config.activation;
        gated(
            self.cpu,
            self.pool,
            activation,
            &layer.gate,
            &layer.up,
            source,
            out,
        );
    }

    /// Adds the product of `operand` to the state, normalised where there are weights for that.
    fn add_product(&mut self, matrix: &PackedMatrix, operand: Operand, norm: &[f32], rows: usize) {
        let Buffers {
            state,
            q8,
            attended,
            hidden_q8,
            hidden_f32,
            output,
            ..
        } = &mut *self.buffers;
        let source = match operand {
            Operand::Attended => input(q8, attended, rows, matrix.k()),
            Operand::Hidden => input(hidden_q8, hidden_f32, rows, matrix.k()),
        };
        if norm.is_empty() {
            matmul(self.cpu, self.pool, &[matrix], source, Output::Add(state));
            return;
        }
        output.resize(state.len(), 0.0);
        matmul(
            self.cpu,
            self.pool,
            &[matrix],
            source,
            Output::Store(output),
        );
        let added = NormOutput {
            add: Some(state),
            ..NormOutput::default()
        };
        let eps = self.config.norm_eps;
        rms_norm(self.cpu, self.pool, output, norm, eps, added);
    }

    /// Normalises the state into the forms that `consumers` take.
    fn normalise(&mut self, weight: &[f32], consumers: &[&PackedMatrix]) {
        let Buffers { state, q8, f32, .. } = &mut *self.buffers;
        let eps = self.config.norm_eps;
        normalise(self.cpu, self.pool, state, weight, eps, consumers, q8, f32);
    }

    /// Reduces queries and state to the wanted tokens; returns these as segments.
    fn keep_wanted<'s>(&mut self, pieces: &[Piece<'s>]) -> Vec<Segment<'s>> {
        let (width, qkv_width) = (self.config.embedding, self.shape(0).row_width());
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
        let norm = &self.weights.output_norm;
        let Buffers { last, q8, f32, .. } = &mut *self.buffers;
        let rows = last.len() / self.config.embedding;
        let eps = self.config.norm_eps;
        normalise(self.cpu, self.pool, last, norm, eps, &[head], q8, f32);
        let source = input(q8, f32, rows, head.k());
        matmul(self.cpu, self.pool, &[head], source, Output::Store(logits));
        if let Some(cap) = self.config.logit_softcap {
            let vocabulary = self.config.vocab_size;
            self.pool.split_chunks(logits, vocabulary, 1, |_, row| {
                softcap_rows(self.cpu, cap, row);
            });
        }
    }

    /// Normalised states kept since [`Buffers::start_step`]: `embedding` values a wanted token, in order.
    pub fn states(&mut self) -> &[f32] {
        let Buffers { last, f32, .. } = &mut *self.buffers;
        f32.resize(last.len(), 0.0);
        let out = NormOutput {
            f32: Some(f32),
            ..NormOutput::default()
        };
        let (norm, eps) = (&self.weights.output_norm, self.config.norm_eps);
        rms_norm(self.cpu, self.pool, last, norm, eps, out);
        f32
    }
}

/// What a product takes that is added to the state.
#[derive(Clone, Copy)]
enum Operand {
    Attended,
    Hidden,
}

fn adjust(layer: &Layer, eps: f32) -> QkvAdjust<'_> {
    QkvAdjust {
        bias: (!layer.qkv_bias.is_empty()).then_some(&layer.qkv_bias),
        norm: (!layer.query_norm.is_empty()).then_some(QkNorm {
            query: &layer.query_norm,
            key: &layer.key_norm,
            eps,
        }),
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
