//! A writer of GGUF files for tests. It writes what it is told, right or wrong.

use crate::metadata::{Array, Value};
use crate::tensor::TensorType;

/// Builds the bytes of a GGUF file.
///
/// ```
/// use pagoda_gguf::{Gguf, GgufBuilder, TensorType, Value};
/// let bytes = GgufBuilder::new()
///     .value("general.architecture", "llama")
///     .value("llama.block_count", 1_u32)
///     .tensor("output_norm.weight", &[4], TensorType::F32, &[0; 16])
///     .build();
/// let file = Gguf::parse(&bytes).unwrap();
/// assert_eq!(file.metadata().get_str("general.architecture"), Ok("llama"));
/// ```
#[derive(Debug, Clone)]
pub struct GgufBuilder {
    version: u32,
    alignment: usize,
    entries: Vec<(String, Value)>,
    tensors: Vec<Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    name: String,
    dims: Vec<u64>,
    kind: TensorType,
    data: Vec<u8>,
    offset: Option<u64>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            entries: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl GgufBuilder {
    /// An empty file of version 3.
    pub fn new() -> Self {
        Self::default()
    }

    /// States another version.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Pads tensors to `alignment` and states it as `general.alignment`.
    #[must_use]
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.value("general.alignment", alignment)
    }

    /// Adds a metadata entry.
    #[must_use]
    pub fn value(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.entries.push((key.to_owned(), value.into()));
        self
    }

    /// Adds a tensor whose data follow the previous one's.
    #[must_use]
    pub fn tensor(mut self, name: &str, dims: &[u64], kind: TensorType, data: &[u8]) -> Self {
        let (name, dims, data) = (name.to_owned(), dims.to_vec(), data.to_vec());
        self.tensors.push(Entry {
            name,
            dims,
            kind,
            data,
            offset: None,
        });
        self
    }

    /// Adds a tensor of f32.
    #[must_use]
    pub fn tensor_f32(self, name: &str, dims: &[u64], data: &[f32]) -> Self {
        let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, dims, TensorType::F32, &bytes)
    }

    /// Adds a tensor that states `offset`, whatever lies there.
    #[must_use]
    pub fn tensor_at(mut self, name: &str, dims: &[u64], kind: TensorType, offset: u64) -> Self {
        let (name, dims) = (name.to_owned(), dims.to_vec());
        self.tensors.push(Entry {
            name,
            dims,
            kind,
            data: Vec::new(),
            offset: Some(offset),
        });
        self
    }

    /// The file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor
                .dims
                .iter()
                .for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.kind.id().to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let id: u32 = match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    };
    out.extend(id.to_le_bytes());
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_string(out, v),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let mut head = |id: u32| {
        out.extend(id.to_le_bytes());
        out.extend((array.len() as u64).to_le_bytes());
    };
    match array {
        Array::U8(_) => head(0),
        Array::I8(_) => head(1),
        Array::U16(_) => head(2),
        Array::I16(_) => head(3),
        Array::U32(_) => head(4),
        Array::I32(_) => head(5),
        Array::F32(_) => head(6),
        Array::Bool(_) => head(7),
        Array::String(_) => head(8),
        Array::Array(_) => head(9),
        Array::U64(_) => head(10),
        Array::I64(_) => head(11),
        Array::F64(_) => head(12),
    }
    match array {
        Array::U8(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I8(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::Bool(v) => v.iter().for_each(|v| out.push(u8::from(*v))),
        Array::String(v) => v.iter().for_each(|v| put_string(out, v)),
        Array::Array(v) => v.iter().for_each(|v| put_array(out, v)),
        Array::U64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
    }
}

macro_rules! into_value {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}

into_value! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32,
    bool => Bool, String => String, Array => Array, u64 => U64, i64 => I64, f64 => F64,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<Vec<String>> for Value {
    fn from(items: Vec<String>) -> Self {
        Self::Array(Array::String(items))
    }
}

impl From<&[&str]> for Value {
    fn from(items: &[&str]) -> Self {
        Self::Array(Array::String(
            items.iter().map(|&item| item.to_owned()).collect(),
        ))
    }
}

impl From<Vec<f32>> for Value {
    fn from(items: Vec<f32>) -> Self {
        Self::Array(Array::F32(items))
    }
}

impl From<Vec<i32>> for Value {
    fn from(items: Vec<i32>) -> Self {
        Self::Array(Array::I32(items))
    }
}

impl From<Vec<u32>> for Value {
    fn from(items: Vec<u32>) -> Self {
        Self::Array(Array::U32(items))
    }
}
