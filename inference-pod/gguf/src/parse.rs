//! From bytes to a checked header.

use std::collections::HashMap;

use crate::error::{GgufError, shown};
use crate::metadata::{Array, Metadata, Optional, Value};
use crate::reader::Reader;
use crate::tensor::{TensorInfo, TensorType};

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Deepest nesting of arrays; models in the wild use one level.
const ARRAY_DEPTH_LIMIT: usize = 4;
/// The format's own bound on keys.
const KEY_LIMIT_BYTES: u64 = 65_535;
/// ggml's names are below 128 bytes; twice that leaves room.
const TENSOR_NAME_LIMIT_BYTES: u64 = 256;
const DIMENSION_LIMIT: u32 = 4;
/// Smallest entry of the metadata: an empty key (8), a type (4) and one byte.
const SMALLEST_ENTRY_BYTES: usize = 13;
/// Smallest entry of the tensor table: an empty name (8), a count (4), one dimension (8), type (4), offset (8).
const SMALLEST_TENSOR_BYTES: usize = 32;

/// A parsed header. The weights stay in the caller's bytes, where [`TensorInfo::range`] finds them.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Gguf {
    /// Reads and checks the header of `bytes`, which must be the whole file. Memory used is at most
    /// a small multiple of the header, whatever it states.
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        Self::parse_head(bytes, bytes.len() as u64)
    }

    /// The same of a file of `file_bytes` bytes of which `head` is the beginning, so that weights need not be in memory.
    /// [`GgufError::HeadTooShort`] says how much more the header has; `file_bytes` and a bound on headers limit that.
    pub fn parse_head(head: &[u8], file_bytes: u64) -> Result<Self, GgufError> {
        let head = &head[..head
            .len()
            .min(usize::try_from(file_bytes).unwrap_or(usize::MAX))];
        let mut reader = Reader::new(head, file_bytes);
        let version = read_version(&mut reader, head)?;
        let tensor_count = reader.count(SMALLEST_TENSOR_BYTES, &|| "tensors".into())?;
        let entry_count = reader.count(SMALLEST_ENTRY_BYTES, &|| "metadata entries".into())?;
        let metadata = read_metadata(&mut reader, entry_count)?;
        let alignment = read_alignment(&metadata)?;
        let mut raw = Vec::with_capacity(reader.reservable(tensor_count, SMALLEST_TENSOR_BYTES));
        for index in 0..tensor_count {
            raw.push(read_tensor(&mut reader, index)?);
        }
        let data_start = (reader.position() as u64).next_multiple_of(alignment);
        let placement = Placement {
            data_start,
            alignment,
            file_bytes,
        };
        let tensors = place(raw, &placement)?;
        let by_name = index_names(&tensors)?;
        Ok(Self {
            version,
            metadata,
            tensors,
            by_name,
        })
    }

    /// The container's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The file's key-value pairs.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Tensors in the file's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }
}

fn read_version(reader: &mut Reader<'_>, bytes: &[u8]) -> Result<u32, GgufError> {
    let head = &bytes[..bytes.len().min(4)];
    if head != MAGIC {
        let found = if head.is_empty() {
            "nothing (the file is empty)".into()
        } else {
            format!("\"{}\"", head.escape_ascii())
        };
        return Err(GgufError::NotGguf { found });
    }
    reader.take(4, &|| "the magic".into())?;
    let version = reader.u32(&|| "the version".into())?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 1..=3) => Err(GgufError::BigEndian),
        _ => Err(GgufError::UnknownVersion { version }),
    }
}

fn read_metadata(reader: &mut Reader<'_>, count: usize) -> Result<Metadata, GgufError> {
    let mut metadata = Metadata::default();
    for index in 0..count {
        let key = reader.name(KEY_LIMIT_BYTES, &|| format!("metadata key {index}"))?;
        let id = reader.u32(&|| format!("the type of metadata key {}", shown(&key)))?;
        let value = read_value(reader, id, &key)?;
        if !metadata.insert(key.clone(), value) {
            return Err(GgufError::DuplicateKey { key: shown(&key) });
        }
    }
    Ok(metadata)
}

fn read_value(reader: &mut Reader<'_>, id: u32, key: &str) -> Result<Value, GgufError> {
    let what = || format!("metadata key {}", shown(key));
    Ok(match id {
        0 => Value::U8(u8::from_le_bytes(reader.array(&what)?)),
        1 => Value::I8(i8::from_le_bytes(reader.array(&what)?)),
        2 => Value::U16(u16::from_le_bytes(reader.array(&what)?)),
        3 => Value::I16(i16::from_le_bytes(reader.array(&what)?)),
        4 => Value::U32(reader.u32(&what)?),
        5 => Value::I32(i32::from_le_bytes(reader.array(&what)?)),
        6 => Value::F32(f32::from_le_bytes(reader.array(&what)?)),
        7 => Value::Bool(as_bool(reader.array::<1>(&what)?[0], key)?),
        8 => Value::String(reader.string(&what)?),
        9 => Value::Array(read_array(reader, key, 1)?),
        10 => Value::U64(reader.u64(&what)?),
        11 => Value::I64(i64::from_le_bytes(reader.array(&what)?)),
        12 => Value::F64(f64::from_le_bytes(reader.array(&what)?)),
        _ => {
            return Err(GgufError::UnknownValueType {
                key: shown(key),
                id,
            });
        }
    })
}

fn as_bool(byte: u8, key: &str) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(GgufError::BadBool {
            key: shown(key),
            byte,
        }),
    }
}

fn read_array(reader: &mut Reader<'_>, key: &str, depth: usize) -> Result<Array, GgufError> {
    if depth > ARRAY_DEPTH_LIMIT {
        return Err(GgufError::TooDeep {
            key: shown(key),
            limit: ARRAY_DEPTH_LIMIT,
        });
    }
    let id = reader.u32(&|| format!("the element type of metadata key {}", shown(key)))?;
    Ok(match id {
        0 => Array::U8(read_numbers(reader, key, u8::from_le_bytes)?),
        1 => Array::I8(read_numbers(reader, key, i8::from_le_bytes)?),
        2 => Array::U16(read_numbers(reader, key, u16::from_le_bytes)?),
        3 => Array::I16(read_numbers(reader, key, i16::from_le_bytes)?),
        4 => Array::U32(read_numbers(reader, key, u32::from_le_bytes)?),
        5 => Array::I32(read_numbers(reader, key, i32::from_le_bytes)?),
        6 => Array::F32(read_numbers(reader, key, f32::from_le_bytes)?),
        7 => {
            let bytes = read_numbers(reader, key, u8::from_le_bytes)?;
            Array::Bool(
                bytes
                    .into_iter()
                    .map(|byte| as_bool(byte, key))
                    .collect::<Result<_, _>>()?,
            )
        }
        8 => Array::String(read_items(reader, key, 8, &mut |reader| {
            reader.string(&|| format!("a string of metadata key {}", shown(key)))
        })?),
        9 => Array::Array(read_items(reader, key, 12, &mut |reader| {
            read_array(reader, key, depth + 1)
        })?),
        10 => Array::U64(read_numbers(reader, key, u64::from_le_bytes)?),
        11 => Array::I64(read_numbers(reader, key, i64::from_le_bytes)?),
        12 => Array::F64(read_numbers(reader, key, f64::from_le_bytes)?),
        _ => {
            return Err(GgufError::UnknownValueType {
                key: shown(key),
                id,
            });
        }
    })
}

fn read_numbers<const N: usize, T>(
    reader: &mut Reader<'_>,
    key: &str,
    from_le_bytes: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufError> {
    let count = reader.count(N, &|| format!("elements in metadata key {}", shown(key)))?;
    let bytes = reader.take((count * N) as u64, &|| {
        format!("metadata key {}", shown(key))
    })?;
    let (chunks, _) = bytes.as_chunks::<N>();
    Ok(chunks.iter().map(|chunk| from_le_bytes(*chunk)).collect())
}

fn read_items<'a, T>(
    reader: &mut Reader<'a>,
    key: &str,
    item_bytes: usize,
    read: &mut dyn FnMut(&mut Reader<'a>) -> Result<T, GgufError>,
) -> Result<Vec<T>, GgufError> {
    let count = reader.count(item_bytes, &|| {
        format!("elements in metadata key {}", shown(key))
    })?;
    let mut items = Vec::with_capacity(reader.reservable(count, item_bytes));
    for _ in 0..count {
        items.push(read(reader)?);
    }
    Ok(items)
}

fn read_alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let alignment = metadata
        .get_u32("general.alignment")
        .optional()?
        .map_or(DEFAULT_ALIGNMENT, u64::from);
    if alignment < 8 || !alignment.is_power_of_two() {
        return Err(GgufError::BadAlignment { alignment });
    }
    Ok(alignment)
}

/// An entry of the tensor table before its place in the file is known.
struct RawTensor {
    name: String,
    dims: Vec<u64>,
    kind: TensorType,
    offset: u64,
}

fn read_tensor(reader: &mut Reader<'_>, index: usize) -> Result<RawTensor, GgufError> {
    let name = reader.name(TENSOR_NAME_LIMIT_BYTES, &|| {
        format!("the name of tensor {index}")
    })?;
    let what = || format!("the entry of tensor {}", shown(&name));
    let dimensions = reader.u32(&what)?;
    if !(1..=DIMENSION_LIMIT).contains(&dimensions) {
        let reason = format!("{dimensions} dimensions, expected 1 to {DIMENSION_LIMIT}");
        return Err(GgufError::BadShape {
            tensor: shown(&name),
            dims: Vec::new(),
            reason,
        });
    }
    let dims = (0..dimensions)
        .map(|_| reader.u64(&what))
        .collect::<Result<Vec<_>, _>>()?;
    let kind = TensorType::from_id(reader.u32(&what)?);
    let offset = reader.u64(&what)?;
    Ok(RawTensor {
        name,
        dims,
        kind,
        offset,
    })
}

/// What turns a tensor's offset into a place in the file.
struct Placement {
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
}

impl Placement {
    /// First byte of the tensor and, where the layout is known, the byte after its last.
    fn bounds(&self, raw: &RawTensor) -> Result<(u64, Option<u64>), GgufError> {
        if !raw.offset.is_multiple_of(self.alignment) {
            let (tensor, offset, alignment) = (shown(&raw.name), raw.offset, self.alignment);
            return Err(GgufError::Misaligned {
                tensor,
                offset,
                alignment,
            });
        }
        let overflow = || GgufError::SizeOverflow {
            tensor: shown(&raw.name),
            dims: raw.dims.clone(),
            offset: raw.offset,
        };
        let size = byte_size(raw)?;
        let start = self
            .data_start
            .checked_add(raw.offset)
            .ok_or_else(overflow)?;
        let end = start.checked_add(size.unwrap_or(0)).ok_or_else(overflow)?;
        if end > self.file_bytes {
            let (tensor, file_bytes) = (shown(&raw.name), self.file_bytes);
            return Err(GgufError::TruncatedTensor {
                tensor,
                file_bytes,
                needed_bytes: end,
            });
        }
        Ok((start, size.map(|_| end)))
    }
}

/// Bytes of the tensor's data; `None` where the type's layout is unknown.
fn byte_size(raw: &RawTensor) -> Result<Option<u64>, GgufError> {
    let bad_shape = |reason: String| GgufError::BadShape {
        tensor: shown(&raw.name),
        dims: raw.dims.clone(),
        reason,
    };
    let overflow = || GgufError::SizeOverflow {
        tensor: shown(&raw.name),
        dims: raw.dims.clone(),
        offset: raw.offset,
    };
    if raw.dims.contains(&0) {
        return Err(bad_shape("a dimension is zero".into()));
    }
    let elements = raw
        .dims
        .iter()
        .try_fold(1_u64, |product, &dim| product.checked_mul(dim))
        .ok_or_else(overflow)?;
    let (Some(block_elements), Some(block_bytes)) =
        (raw.kind.block_elements(), raw.kind.block_bytes())
    else {
        return Ok(None);
    };
    let block_elements = block_elements as u64;
    if !raw.dims[0].is_multiple_of(block_elements) {
        return Err(bad_shape(format!(
            "rows of {} are made of blocks of {block_elements} elements",
            raw.kind
        )));
    }
    (elements / block_elements)
        .checked_mul(block_bytes as u64)
        .ok_or_else(overflow)
        .map(Some)
}

/// Gives every tensor its bytes and shows that no two share one.
fn place(raw: Vec<RawTensor>, placement: &Placement) -> Result<Vec<TensorInfo>, GgufError> {
    let bounds = raw
        .iter()
        .map(|tensor| placement.bounds(tensor))
        .collect::<Result<Vec<_>, _>>()?;
    let mut order: Vec<usize> = (0..raw.len()).collect();
    order.sort_by_key(|&index| bounds[index]);
    let mut ends = vec![placement.file_bytes; raw.len()];
    for pair in order.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        let next_start = bounds[second].0;
        let (start, end) = bounds[first];
        // A tensor of unknown size still owns its first byte.
        if next_start < end.unwrap_or(start + 1) {
            return Err(GgufError::Overlap {
                first: shown(&raw[first].name),
                second: shown(&raw[second].name),
            });
        }
        ends[first] = next_start;
    }
    let tensors = raw.into_iter().enumerate().map(|(index, tensor)| {
        let (start, end) = bounds[index];
        // Both are at most the length of a file, which fits the 64 bits of a usize.
        let range = start as usize..end.unwrap_or(ends[index]) as usize;
        TensorInfo {
            name: tensor.name,
            dims: tensor.dims,
            kind: tensor.kind,
            range,
        }
    });
    Ok(tensors.collect())
}

fn index_names(tensors: &[TensorInfo]) -> Result<HashMap<String, usize>, GgufError> {
    let mut by_name = HashMap::with_capacity(tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        if by_name.insert(tensor.name.clone(), index).is_some() {
            return Err(GgufError::DuplicateTensor {
                tensor: shown(&tensor.name),
            });
        }
    }
    Ok(by_name)
}
