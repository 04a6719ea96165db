//! Which tensors a Llama model has, and their loading.

use std::collections::HashMap;

use pagoda_gguf::{Gguf, TensorInfo, TensorType};
use pagoda_kernels::{Format, PackedMatrix, ThreadPool, dequantise, first_non_finite};

use crate::config::LlamaConfig;
use crate::error::LoadError;
use crate::file::ModelFile;

/// Matrices of a layer by their names in the file.
const LAYER_MATRICES: [&str; 7] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
];
const LAYER_NORMS: [&str; 2] = ["attn_norm", "ffn_norm"];

/// A matrix of the file, checked: `n` outputs of `k` inputs.
#[derive(Clone, Debug)]
struct Matrix {
    info: TensorInfo,
    format: Format,
    n: usize,
    k: usize,
}

/// A vector of the file, checked.
#[derive(Clone, Debug)]
struct Vector {
    info: TensorInfo,
    format: Format,
}

/// The tensors of a model, all found and of the right shape and type.
#[derive(Debug)]
pub(crate) struct Tensors {
    table: Matrix,
    head: Option<Matrix>,
    layers: Vec<([Matrix; 7], [Vector; 2])>,
    output_norm: Vector,
    rope_factors: Option<Vector>,
}

impl Tensors {
    /// Finds every tensor the configuration asks for; any further tensor would be left out of the arithmetic, so it is refused.
    pub fn find(gguf: &Gguf, config: &LlamaConfig) -> Result<Self, LoadError> {
        let mut finder = Finder {
            rest: gguf.tensors().map(|t| (t.name.as_str(), t)).collect(),
        };
        let (width, inner) = (config.embedding, config.feed_forward);
        let (queries, keys) = (
            config.heads * config.head_dim,
            config.kv_heads * config.head_dim,
        );
        let shapes = [
            (queries, width),
            (keys, width),
            (keys, width),
            (width, queries),
            (inner, width),
            (inner, width),
            (width, inner),
        ];
        let table = finder.matrix("token_embd.weight", config.vocab_size, width)?;
        let head = if finder.rest.contains_key("output.weight") {
            Some(finder.matrix("output.weight", config.vocab_size, width)?)
        } else {
            None
        };
        let mut layers = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            let mut matrices = Vec::with_capacity(7);
            for (name, (n, k)) in LAYER_MATRICES.iter().zip(shapes) {
                matrices.push(finder.matrix(&format!("blk.{layer}.{name}.weight"), n, k)?);
            }
            let mut norms = Vec::with_capacity(2);
            for name in LAYER_NORMS {
                norms.push(finder.vector(&format!("blk.{layer}.{name}.weight"), width)?);
            }
            let (Ok(matrices), Ok(norms)) = (matrices.try_into(), norms.try_into()) else {
                unreachable!("seven matrices and two norms were pushed");
            };
            layers.push((matrices, norms));
        }
        let output_norm = finder.vector("output_norm.weight", width)?;
        let rope_factors = if finder.rest.contains_key("rope_freqs.weight") {
            Some(finder.vector("rope_freqs.weight", config.rope_dims / 2)?)
        } else {
            None
        };
        finder.finish()?;
        Ok(Self {
            table,
            head,
            layers,
            output_norm,
            rope_factors,
        })
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let layers = self.layers.iter().flat_map(|(matrices, _)| matrices);
        [Some(&self.table), self.head.as_ref()]
            .into_iter()
            .flatten()
            .chain(layers)
    }

    /// Bytes of all weights once packed. No sum here overflows: each is within a small factor of the file's length.
    pub fn packed_bytes(&self) -> u64 {
        self.matrices()
            .map(|m| PackedMatrix::packed_bytes(m.format, m.n, m.k).unwrap_or(usize::MAX) as u64)
            .sum()
    }
}

struct Finder<'a> {
    rest: HashMap<&'a str, &'a TensorInfo>,
}

impl Finder<'_> {
    fn take(&mut self, name: &str) -> Result<TensorInfo, LoadError> {
        let info = self
            .rest
            .remove(name)
            .ok_or_else(|| LoadError::Invalid(format!("no tensor {name}")))?;
        Ok(info.clone())
    }

    fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<Matrix, LoadError> {
        let info = self.take(name)?;
        check_dims(&info, &[k, n])?;
        let format = format_of(&info)?;
        if !k.is_multiple_of(format.block_elements()) {
            let (kind, block) = (info.kind, format.block_elements());
            return Err(LoadError::Invalid(format!(
                "{name}: rows of {k} are no whole number of {kind} blocks of {block}"
            )));
        }
        Ok(Matrix { info, format, n, k })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vector, LoadError> {
        let info = self.take(name)?;
        check_dims(&info, &[len])?;
        let format = format_of(&info)?;
        if format.is_quantised() {
            return Err(LoadError::UnsupportedModel(format!(
                "{name} is {}; vectors are floats",
                info.kind
            )));
        }
        Ok(Vector { info, format })
    }

    fn finish(self) -> Result<(), LoadError> {
        match self.rest.keys().min() {
            None => Ok(()),
            Some(name) => {
                let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
                Err(LoadError::UnsupportedModel(format!(
                    "tensor {shown} is no part of the Llama layout computed here"
                )))
            }
        }
    }
}

fn check_dims(info: &TensorInfo, expected: &[usize]) -> Result<(), LoadError> {
    if info
        .dims
        .iter()
        .map(|&d| usize::try_from(d).ok())
        .eq(expected.iter().map(|&d| Some(d)))
    {
        return Ok(());
    }
    Err(LoadError::Invalid(format!(
        "tensor {} has dimensions {:?}, not {expected:?}",
        info.name, info.dims
    )))
}

fn format_of(info: &TensorInfo) -> Result<Format, LoadError> {
    Ok(match info.kind {
        TensorType::F32 => Format::F32,
        TensorType::F16 => Format::F16,
        TensorType::Bf16 => Format::Bf16,
        TensorType::Q8_0 => Format::Q8_0,
        TensorType::Q4_0 => Format::Q4_0,
        TensorType::Q4_1 => Format::Q4_1,
        TensorType::Q4K => Format::Q4K,
        TensorType::Q6K => Format::Q6K,
        other => {
            let computed = Format::ALL.map(Format::name).join(", ");
            return Err(LoadError::UnsupportedModel(format!(
                "tensor {} is {other}; computed are {computed}",
                info.name
            )));
        }
    })
}

/// The tensor type that most bytes of the file have.
pub(crate) fn quantization(gguf: &Gguf) -> String {
    let mut bytes: HashMap<TensorType, usize> = HashMap::new();
    for tensor in gguf.tensors() {
        *bytes.entry(tensor.kind).or_default() += tensor.range.len();
    }
    bytes
        .into_iter()
        .max_by_key(|&(kind, bytes)| (bytes, kind))
        .map_or_else(String::new, |(kind, _)| kind.to_string())
}

/// One transformer layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub attn_norm: Vec<f32>,
    pub q: PackedMatrix,
    pub k: PackedMatrix,
    pub v: PackedMatrix,
    pub attn_output: PackedMatrix,
    pub ffn_norm: Vec<f32>,
    pub gate: PackedMatrix,
    pub up: PackedMatrix,
    pub down: PackedMatrix,
}

/// A model's weights in memory.
#[derive(Debug)]
pub(crate) struct Weights {
    pub table: PackedMatrix,
    /// The table where there is none.
    pub head: Option<PackedMatrix>,
    pub layers: Vec<Layer>,
    pub output_norm: Vec<f32>,
    pub rope_factors: Vec<f32>,
}

impl Weights {
    /// Reads and packs all tensors, telling `progress` bytes done and bytes in all.
    pub fn load(
        file: &ModelFile,
        pool: &ThreadPool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let tensors = file.tensors();
        let total = file.gguf().tensors().map(|t| t.range.len() as u64).sum();
        let mut loader = Loader {
            file,
            pool,
            buffer: Vec::new(),
            loaded: 0,
            total,
            progress,
        };
        let table = loader.matrix(&tensors.table)?;
        let mut layers = Vec::with_capacity(tensors.layers.len());
        for ([q, k, v, attn_output, gate, up, down], [attn_norm, ffn_norm]) in &tensors.layers {
            layers.push(Layer {
                attn_norm: loader.vector(attn_norm)?,
                q: loader.matrix(q)?,
                k: loader.matrix(k)?,
                v: loader.matrix(v)?,
                attn_output: loader.matrix(attn_output)?,
                ffn_norm: loader.vector(ffn_norm)?,
                gate: loader.matrix(gate)?,
                up: loader.matrix(up)?,
                down: loader.matrix(down)?,
            });
        }
        let output_norm = loader.vector(&tensors.output_norm)?;
        let head = tensors
            .head
            .as_ref()
            .map(|head| loader.matrix(head))
            .transpose()?;
        let rope_factors = match &tensors.rope_factors {
            Some(factors) => loader.rope_factors(factors)?,
            None => Vec::new(),
        };
        Ok(Self {
            table,
            head,
            layers,
            output_norm,
            rope_factors,
        })
    }

    /// The matrix that makes logits.
    pub fn head(&self) -> &PackedMatrix {
        self.head.as_ref().unwrap_or(&self.table)
    }
}

struct Loader<'a> {
    file: &'a ModelFile,
    pool: &'a ThreadPool,
    buffer: Vec<u8>,
    loaded: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

/// What one thread reads at a time.
const READ_BYTES: usize = 1 << 20;

impl Loader<'_> {
    fn read(&mut self, info: &TensorInfo) -> Result<(), LoadError> {
        let len = info.range.len();
        self.buffer.resize(len.next_multiple_of(READ_BYTES), 0);
        let error = std::sync::Mutex::new(None);
        self.pool
            .split_chunks(&mut self.buffer, READ_BYTES, 1, |index, chunk| {
                let offset = index * READ_BYTES;
                let chunk = &mut chunk[..READ_BYTES.min(len - offset)];
                if let Err(failed) = self.file.read(info, offset, chunk) {
                    *error
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(failed);
                }
            });
        self.buffer.truncate(len);
        match error
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
        {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn done(&mut self, info: &TensorInfo) {
        self.loaded += info.range.len() as u64;
        (self.progress)(self.loaded, self.total);
    }

    fn matrix(&mut self, matrix: &Matrix) -> Result<PackedMatrix, LoadError> {
        self.read(&matrix.info)?;
        let packed = PackedMatrix::pack(self.pool, matrix.format, matrix.n, matrix.k, &self.buffer)
            .map_err(|source| LoadError::Tensor {
                name: matrix.info.name.clone(),
                source,
            })?;
        self.done(&matrix.info);
        Ok(packed)
    }

    fn vector(&mut self, vector: &Vector) -> Result<Vec<f32>, LoadError> {
        self.read(&vector.info)?;
        if let Some(at) = first_non_finite(vector.format, &self.buffer) {
            let what = format!("tensor {}: value {at} is NaN or infinite", vector.info.name);
            return Err(LoadError::Invalid(what));
        }
        let mut out = vec![0.0; self.buffer.len() / vector.format.block_bytes()];
        dequantise(vector.format, &self.buffer, &mut out);
        self.done(&vector.info);
        Ok(out)
    }

    fn rope_factors(&mut self, vector: &Vector) -> Result<Vec<f32>, LoadError> {
        let factors = self.vector(vector)?;
        match factors.iter().find(|&&factor| factor <= 0.0) {
            Some(factor) => Err(LoadError::Invalid(format!(
                "rope_freqs.weight holds {factor}; factors are positive"
            ))),
            None => Ok(factors),
        }
    }
}
