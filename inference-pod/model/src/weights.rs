//! A model's weights in memory, and their loading.

use pagoda_kernels::{PackedMatrix, ThreadPool, dequantise, first_non_finite};

use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::file::ModelFile;
use crate::rope::RopeScaling;
use crate::tensors::{LayerTensors, Matrix, RopeFactors, Source, Tensors, Vector};

/// One transformer layer. A vector that its architecture does not have is empty.
#[derive(Debug)]
pub(crate) struct Layer {
    pub attention_norm: Vec<f32>,
    /// Queries, keys and values: one matrix or three.
    pub qkv: Vec<PackedMatrix>,
    pub qkv_bias: Vec<f32>,
    pub query_norm: Vec<f32>,
    pub key_norm: Vec<f32>,
    pub attention_output: PackedMatrix,
    pub attention_output_norm: Vec<f32>,
    pub feed_forward_norm: Vec<f32>,
    pub gate: PackedMatrix,
    pub up: PackedMatrix,
    pub down: PackedMatrix,
    pub feed_forward_output_norm: Vec<f32>,
}

/// A model's weights in memory.
#[derive(Debug)]
pub(crate) struct Weights {
    pub table: PackedMatrix,
    /// The table where there is none.
    pub head: Option<PackedMatrix>,
    pub layers: Vec<Layer>,
    pub output_norm: Vec<f32>,
    /// Factors of the first rotary embedding, where a tensor holds them.
    pub rope_factors: Vec<f32>,
}

impl Weights {
    /// Reads and packs all tensors, telling `progress` bytes done and bytes in all. `context_tokens` is the longest context to serve.
    pub fn load(
        file: &ModelFile,
        pool: &ThreadPool,
        context_tokens: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let (tensors, config) = (file.tensors(), file.config());
        let from_gguf = file.gguf().is_some();
        let mut loader = Loader {
            file,
            pool,
            norm_offset: if from_gguf {
                0.0
            } else {
                config.architecture.parts().norms.hugging_face_offset
            },
            buffer: Vec::new(),
            loaded: 0,
            total: tensors.file_bytes(),
            progress,
        };
        Ok(Self {
            table: loader.matrix(&tensors.table)?,
            layers: tensors
                .layers
                .iter()
                .map(|layer| loader.layer(layer))
                .collect::<Result<_, _>>()?,
            output_norm: loader.norm(&tensors.output_norm)?,
            head: tensors
                .head
                .as_ref()
                .map(|head| loader.matrix(head))
                .transpose()?,
            rope_factors: loader.rope_factors(tensors, config, context_tokens)?,
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
    /// Added to norms' weights.
    norm_offset: f32,
    buffer: Vec<u8>,
    loaded: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

/// What one thread reads at a time.
const READ_BYTES: usize = 1 << 20;

impl Loader<'_> {
    fn layer(&mut self, tensors: &LayerTensors) -> Result<Layer, LoadError> {
        let [query_norm, key_norm] = match &tensors.head_norms {
            Some([query, key]) => [self.norm(query)?, self.norm(key)?],
            None => [Vec::new(), Vec::new()],
        };
        let mut qkv_bias = Vec::new();
        for bias in &tensors.qkv_bias {
            qkv_bias.extend(self.vector(bias)?);
        }
        Ok(Layer {
            attention_norm: self.norm(&tensors.attention_norm)?,
            qkv: tensors
                .qkv
                .iter()
                .map(|matrix| self.matrix(matrix))
                .collect::<Result<_, _>>()?,
            qkv_bias,
            query_norm,
            key_norm,
            attention_output: self.matrix(&tensors.attention_output)?,
            attention_output_norm: self.optional_norm(tensors.attention_output_norm.as_ref())?,
            feed_forward_norm: self.norm(&tensors.feed_forward_norm)?,
            gate: self.matrix(&tensors.gate)?,
            up: self.matrix(&tensors.up)?,
            down: self.matrix(&tensors.down)?,
            feed_forward_output_norm: self
                .optional_norm(tensors.feed_forward_output_norm.as_ref())?,
        })
    }

    fn read(&mut self, source: &Source) -> Result<(), LoadError> {
        let len = source.bytes as usize;
        self.buffer.resize(len.next_multiple_of(READ_BYTES), 0);
        let error = std::sync::Mutex::new(None);
        self.pool
            .split_chunks(&mut self.buffer, READ_BYTES, 1, |index, chunk| {
                let offset = index * READ_BYTES;
                let chunk = &mut chunk[..READ_BYTES.min(len - offset)];
                if let Err(failed) = self.file.read(source, offset, chunk) {
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

    fn matrix(&mut self, matrix: &Matrix) -> Result<PackedMatrix, LoadError> {
        let source = &matrix.source;
        self.read(source)?;
        let packed = PackedMatrix::pack(self.pool, source.format, matrix.n, matrix.k, &self.buffer)
            .map_err(|error| LoadError::Tensor {
                name: source.name.clone(),
                source: error,
            })?;
        self.loaded += source.bytes;
        (self.progress)(self.loaded, self.total);
        Ok(packed)
    }

    fn vector(&mut self, Vector { source }: &Vector) -> Result<Vec<f32>, LoadError> {
        self.read(source)?;
        if let Some(at) = first_non_finite(source.format, &self.buffer) {
            let what = format!("tensor {}: value {at} is NaN or infinite", source.name);
            return Err(LoadError::Invalid(what));
        }
        let mut out = vec![0.0; self.buffer.len() / source.format.block_bytes()];
        dequantise(source.format, &self.buffer, &mut out);
        Ok(out)
    }

    fn norm(&mut self, vector: &Vector) -> Result<Vec<f32>, LoadError> {
        let mut weights = self.vector(vector)?;
        for weight in &mut weights {
            *weight += self.norm_offset;
        }
        Ok(weights)
    }

    fn optional_norm(&mut self, vector: Option<&Vector>) -> Result<Vec<f32>, LoadError> {
        vector.map_or_else(|| Ok(Vec::new()), |vector| self.norm(vector))
    }

    fn rope_factors(
        &mut self,
        tensors: &Tensors,
        config: &ModelConfig,
        context_tokens: usize,
    ) -> Result<Vec<f32>, LoadError> {
        let is_long = match &config.ropes[0].scaling {
            RopeScaling::Long(long) => long.is_long(context_tokens),
            _ => false,
        };
        let vector = match &tensors.rope_factors {
            None => return Ok(Vec::new()),
            Some(RopeFactors::Always(factors)) => factors,
            Some(RopeFactors::ByContext { long, .. }) if is_long => long,
            Some(RopeFactors::ByContext { short, .. }) => short,
        };
        let factors = self.vector(vector)?;
        match factors.iter().find(|&&factor| factor <= 0.0) {
            Some(factor) => Err(LoadError::Invalid(format!(
                "{} holds {factor}; factors are positive",
                vector.source.name
            ))),
            None => Ok(factors),
        }
    }
}
