//! Tiny random models, written as GGUF, and a forward pass over them so plain that it is its own proof.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use pagoda_gguf::{GgufBuilder, TensorType};
use pagoda_kernels::{Format, dequantise};
use pagoda_model::{CpuExecutor, CpuOptions, Executor, KvBudget, Logits, StepRow};

/// Extents of a model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: usize,
    pub embedding: usize,
    pub feed_forward: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope_dims: usize,
    pub vocab: usize,
    pub context: usize,
    pub tied: bool,
    pub linear_scale: Option<f32>,
    pub rope_factors: bool,
}

impl Shape {
    /// Wide enough for formats with blocks of 256.
    pub fn wide() -> Self {
        Self {
            layers: 2,
            embedding: 256,
            feed_forward: 512,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            rope_dims: 64,
            vocab: 300,
            context: 1024,
            tied: true,
            linear_scale: None,
            rope_factors: false,
        }
    }

    /// No length a multiple of a vector's.
    pub fn odd() -> Self {
        Self {
            layers: 3,
            embedding: 37,
            feed_forward: 51,
            heads: 6,
            kv_heads: 2,
            head_dim: 14,
            rope_dims: 10,
            vocab: 23,
            context: 200,
            tied: false,
            linear_scale: Some(2.0),
            rope_factors: true,
        }
    }
}

struct Tensor {
    dims: Vec<u64>,
    format: Format,
    bytes: Vec<u8>,
    values: Vec<f64>,
}

/// A model with random weights.
pub struct Tiny {
    pub shape: Shape,
    tensors: BTreeMap<String, Tensor>,
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) as u32
    }

    /// -1 to 1.
    fn unit(&mut self) -> f32 {
        (self.next() & 0xff_ffff) as f32 / 8_388_608.0 - 1.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    pub fn tokens(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab) as u32).collect()
    }
}

/// A block of random weights with a standard deviation of about `spread`.
fn block(format: Format, spread: f32, random: &mut Random) -> Vec<u8> {
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    let mut bytes: Vec<u8> = (0..format.block_bytes())
        .map(|_| random.next() as u8)
        .collect();
    let float = random.unit() * spread * 1.7;
    match format {
        Format::F32 => bytes.copy_from_slice(&float.to_le_bytes()),
        Format::F16 => bytes.copy_from_slice(&half(float)),
        Format::Bf16 => bytes.copy_from_slice(&bf16::from_f32(float).to_le_bytes()),
        quantised => {
            for (at, scale) in scales(quantised.name(), spread) {
                bytes[at..at + 2].copy_from_slice(&half(scale));
            }
        }
    }
    bytes
}

/// Where a block's half-precision scales and minimums lie, and values that spread random quants about zero.
fn scales(format: &str, spread: f32) -> Vec<(usize, f32)> {
    let (nibble, five_bits) = (spread / 4.6, spread / 9.2);
    match format {
        "Q8_0" => vec![(0, spread / 73.0)],
        "Q4_0" => vec![(0, nibble)],
        "Q4_1" => vec![(0, nibble), (2, -7.5 * nibble)],
        "Q5_0" => vec![(0, five_bits)],
        "Q5_1" => vec![(0, five_bits), (2, -15.5 * five_bits)],
        "Q2_K" => vec![(80, spread / 1.1 / 7.5), (82, 1.5 * spread / 1.1 / 7.5)],
        "Q3_K" => vec![(108, spread / 2.3 / 18.0)],
        "Q4_K" => vec![(0, nibble / 32.0), (2, 7.5 * nibble / 32.0)],
        "Q5_K" => vec![(0, five_bits / 32.0), (2, 15.5 * five_bits / 32.0)],
        "Q6_K" => vec![(208, spread / 73.0 / 18.0)],
        "IQ4_NL" => vec![(0, spread / 70.0)],
        other => panic!("no scales for {other}"),
    }
}

pub fn tensor_type(format: Format) -> TensorType {
    (0..40)
        .map(TensorType::from_id)
        .find(|kind| kind.to_string() == format.name())
        .expect("files have every format that is computed")
}

impl Tiny {
    /// Matrices get the format that `format_of` gives their name; vectors are floats.
    pub fn new(shape: Shape, seed: u64, format_of: impl Fn(&str) -> Format) -> Self {
        let mut tiny = Self {
            shape,
            tensors: BTreeMap::new(),
        };
        let mut random = Random::new(seed);
        let (width, inner) = (shape.embedding, shape.feed_forward);
        let (queries, keys) = (
            shape.heads * shape.head_dim,
            shape.kv_heads * shape.head_dim,
        );
        tiny.matrix(
            "token_embd.weight",
            shape.vocab,
            width,
            &format_of,
            &mut random,
        );
        if !shape.tied {
            tiny.matrix("output.weight", shape.vocab, width, &format_of, &mut random);
        }
        for layer in 0..shape.layers {
            for (name, n, k) in [
                ("attn_q", queries, width),
                ("attn_k", keys, width),
                ("attn_v", keys, width),
                ("attn_output", width, queries),
                ("ffn_gate", inner, width),
                ("ffn_up", inner, width),
                ("ffn_down", width, inner),
            ] {
                tiny.matrix(
                    &format!("blk.{layer}.{name}.weight"),
                    n,
                    k,
                    &format_of,
                    &mut random,
                );
            }
            for name in ["attn_norm", "ffn_norm"] {
                tiny.vector(
                    &format!("blk.{layer}.{name}.weight"),
                    width,
                    |r| 1.0 + 0.3 * r.unit(),
                    &mut random,
                );
            }
        }
        tiny.vector(
            "output_norm.weight",
            width,
            |r| 1.0 + 0.3 * r.unit(),
            &mut random,
        );
        if shape.rope_factors {
            tiny.vector(
                "rope_freqs.weight",
                shape.rope_dims / 2,
                |r| 2.0 + r.unit(),
                &mut random,
            );
        }
        tiny
    }

    fn matrix(
        &mut self,
        name: &str,
        n: usize,
        k: usize,
        format_of: &impl Fn(&str) -> Format,
        random: &mut Random,
    ) {
        let format = format_of(name);
        let spread = if name.starts_with("token") {
            1.0
        } else {
            1.0 / (k as f32).sqrt()
        };
        let bytes = (0..n * k / format.block_elements())
            .flat_map(|_| block(format, spread, random))
            .collect();
        self.insert(name, vec![k as u64, n as u64], format, bytes);
    }

    fn vector(
        &mut self,
        name: &str,
        len: usize,
        value: impl Fn(&mut Random) -> f32,
        random: &mut Random,
    ) {
        let bytes = (0..len).flat_map(|_| value(random).to_le_bytes()).collect();
        self.insert(name, vec![len as u64], Format::F32, bytes);
    }

    fn insert(&mut self, name: &str, dims: Vec<u64>, format: Format, bytes: Vec<u8>) {
        let mut values = vec![0.0; dims.iter().product::<u64>() as usize];
        dequantise(format, &bytes, &mut values);
        let values = values.into_iter().map(f64::from).collect();
        self.tensors.insert(
            name.to_owned(),
            Tensor {
                dims,
                format,
                bytes,
                values,
            },
        );
    }

    /// Metadata alone.
    pub fn header(&self) -> GgufBuilder {
        let s = &self.shape;
        let mut builder = GgufBuilder::new()
            .value("general.architecture", "llama")
            .value("llama.block_count", s.layers as u32)
            .value("llama.context_length", s.context as u32)
            .value("llama.embedding_length", s.embedding as u32)
            .value("llama.feed_forward_length", s.feed_forward as u32)
            .value("llama.attention.head_count", s.heads as u32)
            .value("llama.attention.head_count_kv", s.kv_heads as u32)
            .value("llama.attention.key_length", s.head_dim as u32)
            .value("llama.attention.value_length", s.head_dim as u32)
            .value("llama.rope.dimension_count", s.rope_dims as u32)
            .value("llama.rope.freq_base", 1000.0f32)
            .value("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
        if let Some(scale) = s.linear_scale {
            builder = builder
                .value("llama.rope.scaling.type", "linear")
                .value("llama.rope.scaling.factor", scale);
        }
        builder
    }

    /// The file, with each tensor as `change` leaves it (`None` leaves it out).
    pub fn gguf_with(
        &self,
        change: impl Fn(&str, &mut Vec<u64>, &mut Vec<u8>) -> Option<TensorType>,
    ) -> Vec<u8> {
        let mut builder = self.header();
        for (name, tensor) in &self.tensors {
            let (mut dims, mut bytes) = (tensor.dims.clone(), tensor.bytes.clone());
            if let Some(kind) = change(name, &mut dims, &mut bytes) {
                builder = builder.tensor(name, &dims, kind, &bytes);
            }
        }
        builder.build()
    }

    pub fn format(&self, name: &str) -> Format {
        self.tensors[name].format
    }

    pub fn gguf(&self) -> Vec<u8> {
        self.gguf_with(|name, _, _| Some(tensor_type(self.format(name))))
    }

    pub fn executor(&self, threads: usize, blocks: usize) -> CpuExecutor {
        let file = write(&self.gguf());
        load(file.path(), threads, blocks)
    }

    fn values(&self, name: &str) -> &[f64] {
        &self.tensors[name].values
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.values(name)
            .chunks(x.len())
            .map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum())
            .collect()
    }

    fn normalised(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter()
            .zip(self.values(name))
            .map(|(x, w)| x / (mean + f64::from(1e-5f32)).sqrt() * w)
            .collect()
    }

    fn turned(&self, head: &[f64], position: usize) -> Vec<f64> {
        let (dims, scale) = (
            self.shape.rope_dims,
            f64::from(self.shape.linear_scale.unwrap_or(1.0)),
        );
        let mut out = head.to_vec();
        for pair in 0..dims / 2 {
            let factor = if self.shape.rope_factors {
                self.values("rope_freqs.weight")[pair]
            } else {
                1.0
            };
            let angle =
                position as f64 * 1000f64.powf(-2.0 * pair as f64 / dims as f64) / factor / scale;
            let (x, y) = (head[2 * pair], head[2 * pair + 1]);
            out[2 * pair] = x * angle.cos() - y * angle.sin();
            out[2 * pair + 1] = x * angle.sin() + y * angle.cos();
        }
        out
    }

    /// Logits after every token, in double precision, with keys and values passed through `store`.
    pub fn truth(&self, tokens: &[u32], store: impl Fn(f64) -> f64) -> Vec<Vec<f64>> {
        let s = &self.shape;
        let mut states: Vec<Vec<f64>> = tokens
            .iter()
            .map(|&t| {
                self.values("token_embd.weight")[t as usize * s.embedding..][..s.embedding].to_vec()
            })
            .collect();
        for layer in 0..s.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let (mut keys, mut values): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
            for (position, state) in states.iter_mut().enumerate() {
                let x = self.normalised(&name("attn_norm"), state);
                let turn = |x: Vec<f64>| -> Vec<f64> {
                    x.chunks(s.head_dim)
                        .flat_map(|head| self.turned(head, position))
                        .collect()
                };
                let queries = turn(self.product(&name("attn_q"), &x));
                keys.push(
                    turn(self.product(&name("attn_k"), &x))
                        .into_iter()
                        .map(&store)
                        .collect(),
                );
                values.push(
                    self.product(&name("attn_v"), &x)
                        .into_iter()
                        .map(&store)
                        .collect(),
                );
                let mut attended = Vec::new();
                for (head, q) in queries.chunks(s.head_dim).enumerate() {
                    let at = head / (s.heads / s.kv_heads) * s.head_dim;
                    let score = |k: &Vec<f64>| {
                        let dot: f64 = q.iter().zip(&k[at..]).map(|(q, k)| q * k).sum();
                        (dot / (s.head_dim as f64).sqrt()).exp()
                    };
                    let weights: Vec<f64> = keys.iter().map(score).collect();
                    let sum: f64 = weights.iter().sum();
                    let mean = |d: usize| {
                        weights
                            .iter()
                            .zip(&values)
                            .map(|(w, v)| w * v[at + d])
                            .sum::<f64>()
                            / sum
                    };
                    attended.extend((0..s.head_dim).map(mean));
                }
                add(state, &self.product(&name("attn_output"), &attended));
                let x = self.normalised(&name("ffn_norm"), state);
                let gate = self.product(&name("ffn_gate"), &x);
                let up = self.product(&name("ffn_up"), &x);
                let hidden: Vec<f64> = gate
                    .iter()
                    .zip(&up)
                    .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                    .collect();
                add(state, &self.product(&name("ffn_down"), &hidden));
            }
        }
        let head = if s.tied {
            "token_embd.weight"
        } else {
            "output.weight"
        };
        states
            .iter()
            .map(|state| self.product(head, &self.normalised("output_norm.weight", state)))
            .collect()
    }
}

fn add(state: &mut [f64], more: &[f64]) {
    state.iter_mut().zip(more).for_each(|(s, m)| *s += m);
}

pub fn write(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

pub fn load(path: &Path, threads: usize, blocks: usize) -> CpuExecutor {
    let options = CpuOptions {
        threads,
        kv: KvBudget::Blocks(blocks),
        ..CpuOptions::default()
    };
    CpuExecutor::load(path, &options, |_, _| {}).unwrap()
}

/// Feeds `tokens` in steps of the given lengths and returns the logits after the last token of each.
pub fn feed(
    executor: &mut CpuExecutor,
    tokens: &[u32],
    lens: &[usize],
    table: &[u32],
) -> Vec<Vec<f32>> {
    let (mut out, mut logits, mut start) = (Vec::new(), Logits::default(), 0);
    for &len in lens {
        let row = StepRow {
            tokens: &tokens[start..start + len],
            start,
            block_table: table,
            logits: 1,
        };
        executor.forward(&[row], &mut logits).unwrap();
        out.push(logits.row(0).to_vec());
        start += len;
    }
    out
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
