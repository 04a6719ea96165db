//! A model whose headers have been read and understood, and none of its weights yet.

use std::fs::File;
use std::path::{Path, PathBuf};

use pagoda_gguf::{Gguf, GgufError};

use crate::catalog::Catalog;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::memory::{self, CpuOptions, MemoryPlan};
use crate::safetensors::{self, Index, SafetensorsError};
use crate::tensors::{Naming, Source, Tensors};

/// Longest configuration read.
const LARGEST_CONFIG_BYTES: u64 = 16 << 20;

const INDEX: &str = "model.safetensors.index.json";

/// An open model: a GGUF file, or a folder as Hugging Face lays models out. What it says can be checked and refused before memory
/// is spent.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    /// The files that hold tensors.
    files: Vec<OpenFile>,
    gguf: Option<Gguf>,
    quantization: String,
    largest_tensor_bytes: u64,
    config: ModelConfig,
    tensors: Tensors,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl OpenFile {
    fn open(path: PathBuf) -> Result<Self, LoadError> {
        let opened = File::open(&path).and_then(|file| {
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        });
        match opened {
            Ok((file, bytes)) => Ok(Self { path, file, bytes }),
            Err(source) => Err(LoadError::Read { path, source }),
        }
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        read_exact_at(&self.file, out, at).map_err(|source| LoadError::Read {
            path: self.path.clone(),
            source,
        })
    }
}

impl ModelFile {
    /// Opens and checks a model: container, architecture, every tensor's shape and type. `path` is a GGUF file, or a folder with
    /// `config.json` and `model.safetensors`, in one piece or in several with an index.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        if path.is_dir() {
            Self::open_hugging_face(path)
        } else {
            Self::open_gguf(path)
        }
    }

    fn open_gguf(path: &Path) -> Result<Self, LoadError> {
        let file = OpenFile::open(path.to_owned())?;
        let gguf = read_gguf(&file)?;
        let config = ModelConfig::from_gguf(&gguf)?;
        let catalog = Catalog::of_gguf(&gguf);
        Ok(Self {
            path: path.to_owned(),
            files: vec![file],
            quantization: catalog.quantization(),
            largest_tensor_bytes: catalog.largest_bytes(),
            tensors: Tensors::find(catalog, &config, Naming::Gguf, false)?,
            gguf: Some(gguf),
            config,
        })
    }

    fn open_hugging_face(folder: &Path) -> Result<Self, LoadError> {
        let read = |name: &str| read_small(&folder.join(name), LARGEST_CONFIG_BYTES);
        let config_json = read("config.json")?.ok_or_else(|| LoadError::Read {
            path: folder.join("config.json"),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let pooling = read("1_Pooling/config.json")?;
        let config = ModelConfig::from_hugging_face(&config_json, pooling.as_deref())?;
        let (files, catalog) = open_safetensors(folder)?;
        let bare = catalog.tensors.contains_key("embed_tokens.weight");
        let naming = Naming::HuggingFace {
            prefix: if bare { "" } else { "model." },
            output_norms: config.architecture.parts().norms.outputs,
        };
        Ok(Self {
            path: folder.to_owned(),
            files,
            quantization: catalog.quantization(),
            largest_tensor_bytes: catalog.largest_bytes(),
            tensors: Tensors::find(catalog, &config, naming, is_tied(&config_json))?,
            gguf: None,
            config,
        })
    }

    /// The header of a GGUF file: metadata for tokenizers and templates, and the tensor table.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.gguf.as_ref()
    }

    /// A file beside the weights of a model that is a folder, such as `tokenizer.json`: `None` where there is none. One of more than
    /// `most_bytes` is refused.
    pub fn read_beside(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>, LoadError> {
        read_small(&self.path.join(name), most_bytes)
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes of the files that hold weights.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Weight format of most of the weights' bytes.
    pub fn quantization(&self) -> String {
        self.quantization.clone()
    }

    /// What the model takes with these options.
    pub fn memory_plan(&self, options: &CpuOptions) -> Result<MemoryPlan, LoadError> {
        memory::plan(
            &self.config,
            self.tensors.packed_bytes(),
            self.largest_tensor_bytes,
            options,
        )
    }

    pub(crate) fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Reads part of a tensor, from `offset` within it. A file cut off meanwhile is an error.
    pub(crate) fn read(
        &self,
        tensor: &Source,
        offset: usize,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        self.files[tensor.file].read_at(tensor.offset + offset as u64, out)
    }
}

/// Whether the head is the table, whatever else the files hold.
fn is_tied(config_json: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(config_json)
        .ok()
        .and_then(|config| config.get("tie_word_embeddings")?.as_bool())
        .unwrap_or(false)
}

/// The files of a folder's model and all their tensors. With an index, each tensor is in the file it names, and no other is there.
fn open_safetensors(folder: &Path) -> Result<(Vec<OpenFile>, Catalog), LoadError> {
    let index = read_small(&folder.join(INDEX), safetensors::LARGEST_INDEX_BYTES)?
        .map(|bytes| Index::parse(&bytes))
        .transpose()?;
    let names = index.as_ref().map_or_else(
        || vec!["model.safetensors".to_owned()],
        |index| index.files.clone(),
    );
    let (mut files, mut catalog) = (Vec::new(), Catalog::default());
    for (number, name) in names.iter().enumerate() {
        let file = OpenFile::open(folder.join(name))?;
        for (tensor, entry) in read_header(&file, number)? {
            let expected = index.as_ref().map(|index| index.tensors.get(&tensor));
            if expected.is_some_and(|at| at != Some(&number)) {
                return Err(misplaced(
                    &tensor,
                    format!("{name} holds it, the index says otherwise"),
                ));
            }
            if catalog.tensors.insert(tensor.clone(), entry).is_some() {
                return Err(misplaced(&tensor, "two files hold it".into()));
            }
        }
        files.push(file);
    }
    let missing = index.iter().flat_map(|index| index.tensors.keys());
    match missing
        .into_iter()
        .find(|name| !catalog.tensors.contains_key(*name))
    {
        Some(name) => Err(misplaced(
            name,
            "the index names it, its file does not".into(),
        )),
        None => Ok((files, catalog)),
    }
}

fn misplaced(name: &str, what: String) -> LoadError {
    SafetensorsError::Tensor {
        name: crate::config::shown(name),
        what,
    }
    .into()
}

fn read_header(
    file: &OpenFile,
    number: usize,
) -> Result<Vec<(String, crate::catalog::TensorEntry)>, LoadError> {
    let mut first = [0; 8];
    if file.bytes < safetensors::LENGTH_BYTES {
        let (header, file) = (0, file.bytes);
        return Err(SafetensorsError::HeaderLength { header, file }.into());
    }
    file.read_at(0, &mut first)?;
    let mut header = vec![0; safetensors::header_bytes(first, file.bytes)?];
    file.read_at(safetensors::LENGTH_BYTES, &mut header)?;
    Ok(safetensors::parse_header(&header, number, file.bytes)?)
}

/// A whole file, which is small or refused; `None` where there is none.
fn read_small(path: &Path, most_bytes: u64) -> Result<Option<Vec<u8>>, LoadError> {
    use std::io::Read;
    let read = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read(error)),
    };
    let mut bytes = Vec::new();
    file.take(most_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(read)?;
    if bytes.len() as u64 > most_bytes {
        return Err(LoadError::Invalid(format!(
            "{} has more than {most_bytes} bytes",
            path.display()
        )));
    }
    Ok(Some(bytes))
}

/// Bytes of a GGUF file read at first; headers with a large vocabulary take some more.
const FIRST_HEAD_BYTES: u64 = 4 << 20;

/// Reads no more of the file than its header. Weights are read too, not mapped: they are repacked into memory of our own anyway, and
/// a file that is cut off under a map kills the process where a read gives an error.
fn read_gguf(file: &OpenFile) -> Result<Gguf, LoadError> {
    let mut head = Vec::new();
    let mut wanted = FIRST_HEAD_BYTES.min(file.bytes);
    loop {
        let read = head.len();
        head.resize(wanted as usize, 0);
        file.read_at(read as u64, &mut head[read..])?;
        match Gguf::parse_head(&head, file.bytes) {
            Err(GgufError::HeadTooShort { needed_bytes }) if needed_bytes > wanted => {
                wanted = needed_bytes.max(2 * wanted).min(file.bytes);
            }
            parsed => return Ok(parsed?),
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
