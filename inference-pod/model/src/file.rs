//! A model file whose header has been read and understood, and none of its weights yet.
#![allow(unsafe_code)] // The map of the header.

use std::fs::File;
use std::path::{Path, PathBuf};

use pagoda_gguf::{Gguf, TensorInfo};

use crate::config::LlamaConfig;
use crate::error::LoadError;
use crate::memory::{self, CpuOptions, MemoryPlan};
use crate::weights::{self, Tensors};

/// An open model. What it says can be checked and refused before memory is spent.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    gguf: Gguf,
    config: LlamaConfig,
    tensors: Tensors,
}

impl ModelFile {
    /// Opens and checks a GGUF file: container, architecture, every tensor's shape and type.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let read = |source| LoadError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        let gguf = parse_header(&file).map_err(|error| match error {
            HeaderError::Map(source) => read(source),
            HeaderError::Gguf(error) => LoadError::Gguf(error),
        })?;
        let config = LlamaConfig::from_gguf(&gguf)?;
        let tensors = Tensors::find(&gguf, &config)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
            gguf,
            config,
            tensors,
        })
    }

    /// The header: metadata for tokenizers and templates, and the tensor table.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The model's configuration.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Weight format of most of the weights' bytes.
    pub fn quantization(&self) -> String {
        weights::quantization(&self.gguf)
    }

    /// What the model takes with these options.
    pub fn memory_plan(&self, options: &CpuOptions) -> Result<MemoryPlan, LoadError> {
        let largest = self
            .gguf
            .tensors()
            .map(|t| t.range.len() as u64)
            .max()
            .unwrap_or(0);
        memory::plan(&self.config, self.tensors.packed_bytes(), largest, options)
    }

    pub(crate) fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Reads part of a tensor, from `offset` within it. A file cut off meanwhile is an error.
    pub(crate) fn read(
        &self,
        tensor: &TensorInfo,
        offset: usize,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let at = (tensor.range.start + offset) as u64;
        read_exact_at(&self.file, out, at).map_err(|source| LoadError::Read {
            path: self.path.clone(),
            source,
        })
    }
}

enum HeaderError {
    Map(std::io::Error),
    Gguf(pagoda_gguf::GgufError),
}

/// Parses the header through a map of the file that ends with this call. Weights are read, not mapped: they are repacked
/// into memory of our own anyway, and a file that is cut off under a map kills the process where a read gives an error.
fn parse_header(file: &File) -> Result<Gguf, HeaderError> {
    // SAFETY: the bytes are only read, and every offset is checked against the length. That another process changes the
    // file within these milliseconds cannot be excluded by any means; the parser then sees other bytes, which it treats as
    // hostile anyway.
    let map = unsafe { memmap2::Mmap::map(file) }.map_err(HeaderError::Map)?;
    Gguf::parse(&map).map_err(HeaderError::Gguf)
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(not(unix))]
fn read_exact_at(mut file: &File, out: &mut [u8], at: u64) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(out)
}
