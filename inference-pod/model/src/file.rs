//! A model file whose header has been read and understood, and none of its weights yet.

use std::fs::File;
use std::path::{Path, PathBuf};

use pagoda_gguf::{Gguf, GgufError, TensorInfo};

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
        let gguf = parse_header(&file, bytes).map_err(|error| match error {
            HeaderError::Read(source) => read(source),
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
    Read(std::io::Error),
    Gguf(GgufError),
}

/// What is read of a file at first: the header of most.
const FIRST_READ_BYTES: u64 = 8 << 20;

/// Reads no more of the file than its header, in growing pieces. Nothing is mapped: a file that is cut off under a map kills
/// the process where a read gives an error, and weights are repacked into memory of our own anyway.
fn parse_header(file: &File, file_bytes: u64) -> Result<Gguf, HeaderError> {
    let (mut head, mut wanted) = (Vec::new(), FIRST_READ_BYTES);
    loop {
        let read = head.len();
        head.resize(wanted.min(file_bytes) as usize, 0);
        read_exact_at(file, &mut head[read..], read as u64).map_err(HeaderError::Read)?;
        match Gguf::parse_head(&head, file_bytes) {
            // More than there is now, at most what the file has and the parser's bound on headers.
            Err(GgufError::HeadTooShort { needed_bytes }) => {
                wanted = needed_bytes.max(head.len() as u64 * 2);
            }
            Err(error) => return Err(HeaderError::Gguf(error)),
            Ok(gguf) => return Ok(gguf),
        }
    }
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
