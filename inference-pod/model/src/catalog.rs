//! Which tensors a model's files hold, whatever the container.

use std::collections::BTreeMap;

use pagoda_gguf::{Gguf, TensorType};
use pagoda_kernels::Format;

use crate::config::shown;
use crate::error::LoadError;

/// A tensor as its container describes it.
#[derive(Clone, Debug)]
pub(crate) struct TensorEntry {
    /// Outer dimension first.
    pub shape: Vec<usize>,
    /// The container's name of its type.
    pub kind: String,
    /// The type, where kernels compute with it.
    pub format: Option<Format>,
    /// Index of the file that holds it.
    pub file: usize,
    /// Where it starts in that file.
    pub offset: u64,
    /// Its length there.
    pub bytes: u64,
}

/// All tensors by name.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    pub tensors: BTreeMap<String, TensorEntry>,
}

impl Catalog {
    pub fn of_gguf(gguf: &Gguf) -> Self {
        let tensors = gguf.tensors().map(|tensor| {
            let dimension = |&d: &u64| usize::try_from(d).unwrap_or(usize::MAX);
            let entry = TensorEntry {
                shape: tensor.dims.iter().rev().map(dimension).collect(),
                kind: tensor.kind.to_string(),
                format: format_of(tensor.kind),
                file: 0,
                offset: tensor.range.start as u64,
                bytes: tensor.range.len() as u64,
            };
            (tensor.name.clone(), entry)
        });
        Self {
            tensors: tensors.collect(),
        }
    }

    /// The type that most bytes of the model have.
    pub fn quantization(&self) -> String {
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for tensor in self.tensors.values() {
            *bytes.entry(&tensor.kind).or_default() += tensor.bytes;
        }
        bytes
            .into_iter()
            .max_by_key(|&(_, bytes)| bytes)
            .map_or_else(String::new, |(kind, _)| kind.to_owned())
    }

    /// Bytes of the largest tensor.
    pub fn largest_bytes(&self) -> u64 {
        self.tensors.values().map(|t| t.bytes).max().unwrap_or(0)
    }

    pub fn take(&mut self, name: &str) -> Result<TensorEntry, LoadError> {
        self.tensors
            .remove(name)
            .ok_or_else(|| LoadError::Invalid(format!("no tensor {}", shown(name))))
    }
}

/// The kernels' format of a GGUF type.
fn format_of(kind: TensorType) -> Option<Format> {
    let name = kind.to_string();
    Format::ALL.into_iter().find(|format| format.name() == name)
}
