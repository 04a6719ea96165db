//! The safetensors container, read strictly: a length, a JSON header of that length, and tensors that fill the rest without gaps
//! or overlaps. And the index of models cut into several such files.

use std::collections::BTreeMap;
use std::fmt;

use pagoda_kernels::Format;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use crate::catalog::TensorEntry;
use crate::config::shown;

/// Longest header read: a hundred times that of the largest models, and little enough to be held several times over while it is parsed.
pub(crate) const LARGEST_HEADER_BYTES: u64 = 16 << 20;
/// Longest index file read.
pub(crate) const LARGEST_INDEX_BYTES: u64 = 16 << 20;
/// Most files of one model.
const LARGEST_FILES: usize = 4096;
const LARGEST_DIMENSIONS: usize = 8;
/// Bytes before the header: its length.
pub(crate) const LENGTH_BYTES: u64 = 8;

/// Why bytes are no safetensors file or index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SafetensorsError {
    /// The header reaches past the end of the file.
    #[error(
        "a header of {header} bytes in a file of {file} bytes (at most {LARGEST_HEADER_BYTES} are read)"
    )]
    HeaderLength {
        /// Length it states.
        header: u64,
        /// Length of the file.
        file: u64,
    },
    /// The header or index is not the JSON it has to be.
    #[error("{0}")]
    Json(String),
    /// A tensor's place and shape contradict each other or the file.
    #[error("tensor {name}: {what}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// Bytes that belong to no tensor.
    #[error("tensors end at byte {tensors} of {data} bytes of data")]
    Rest {
        /// Where the last tensor ends.
        tensors: u64,
        /// Bytes of data.
        data: u64,
    },
    /// The index names a file that is no plain name beside it, or too many.
    #[error("the index names {0}")]
    File(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A JSON object whose keys are all different: a second meaning of one name is how files lie.
struct Unique<T>(BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Visit<T> {
            type Value = Unique<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique<T>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, T>()? {
                    let text = shown(&name);
                    if entries.insert(name, value).is_some() {
                        return Err(de::Error::custom(format!("{text} is there twice")));
                    }
                }
                Ok(Unique(entries))
            }
        }
        deserializer.deserialize_map(Visit(std::marker::PhantomData))
    }
}

/// Either a tensor or the free text under `__metadata__`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Tensor(Entry),
    // Read to be checked: it means nothing here.
    Metadata(#[allow(dead_code)] BTreeMap<String, String>),
}

/// Length of the header of a file of `file_bytes` that starts with `first`.
pub(crate) fn header_bytes(first: [u8; 8], file_bytes: u64) -> Result<usize, SafetensorsError> {
    let header = u64::from_le_bytes(first);
    if header > LARGEST_HEADER_BYTES || header > file_bytes.saturating_sub(LENGTH_BYTES) {
        return Err(SafetensorsError::HeaderLength {
            header,
            file: file_bytes,
        });
    }
    Ok(header as usize)
}

/// The tensors of file number `file`, which has `file_bytes` bytes and this header.
pub(crate) fn parse_header(
    header: &[u8],
    file: usize,
    file_bytes: u64,
) -> Result<Vec<(String, TensorEntry)>, SafetensorsError> {
    let Unique(entries) = serde_json::from_slice::<Unique<Value>>(header)
        .map_err(|error| SafetensorsError::Json(format!("header: {error}")))?;
    let start = LENGTH_BYTES + header.len() as u64;
    let mut tensors = Vec::with_capacity(entries.len());
    let mut ranges = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        match value {
            Value::Metadata(_) if name == "__metadata__" => {}
            Value::Metadata(_) => return Err(wrong(&name, "no dtype, shape and data_offsets")),
            Value::Tensor(entry) => {
                let [from, to] = entry.data_offsets;
                let tensor = tensor(&name, &entry, file, start)?;
                ranges.push((from, to, tensors.len()));
                tensors.push((name, tensor));
            }
        }
    }
    ranges.sort_unstable();
    let mut end = 0;
    for (from, to, index) in ranges {
        if from != end {
            let what = format!("starts at {from}, the one before it ends at {end}");
            return Err(wrong(&tensors[index].0, &what));
        }
        end = to;
    }
    let data = file_bytes.saturating_sub(start);
    if end != data {
        return Err(SafetensorsError::Rest { tensors: end, data });
    }
    Ok(tensors)
}

fn tensor(
    name: &str,
    entry: &Entry,
    file: usize,
    start: u64,
) -> Result<TensorEntry, SafetensorsError> {
    let [from, to] = entry.data_offsets;
    if entry.shape.len() > LARGEST_DIMENSIONS {
        let dimensions = entry.shape.len();
        return Err(wrong(name, &format!("{dimensions} dimensions")));
    }
    let elements = entry
        .shape
        .iter()
        .try_fold(1u64, |product, &extent| product.checked_mul(extent));
    let bytes = to
        .checked_sub(from)
        .ok_or_else(|| wrong(name, &format!("runs from {from} to {to}")))?;
    let (format, size) = format_of(&entry.dtype);
    let fits = match (elements, size) {
        (None, _) => false,
        (Some(elements), Some(size)) => elements.checked_mul(size) == Some(bytes),
        (Some(_), None) => true,
    };
    let shape: Option<Vec<usize>> = entry
        .shape
        .iter()
        .map(|&extent| usize::try_from(extent).ok())
        .collect();
    let (Some(shape), true, Some(offset)) = (shape, fits, start.checked_add(from)) else {
        let what = format!(
            "{bytes} bytes for shape {:?} of {}",
            entry.shape,
            shown(&entry.dtype)
        );
        return Err(wrong(name, &what));
    };
    Ok(TensorEntry {
        shape,
        kind: shown(&entry.dtype),
        format,
        file,
        offset,
        bytes,
    })
}

/// The kernels' format of a type, and the bytes of one number where they are known.
fn format_of(dtype: &str) -> (Option<Format>, Option<u64>) {
    match dtype {
        "F32" => (Some(Format::F32), Some(4)),
        "F16" => (Some(Format::F16), Some(2)),
        "BF16" => (Some(Format::Bf16), Some(2)),
        "F64" | "I64" | "U64" => (None, Some(8)),
        "I32" | "U32" => (None, Some(4)),
        "I16" | "U16" => (None, Some(2)),
        "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" => (None, Some(1)),
        _ => (None, None),
    }
}

fn wrong(name: &str, what: &str) -> SafetensorsError {
    SafetensorsError::Tensor {
        name: shown(name),
        what: what.to_owned(),
    }
}

/// Which file holds each tensor, out of `model.safetensors.index.json`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Index {
    /// Names of files, in order.
    pub files: Vec<String>,
    /// Tensor to index in `files`.
    pub tensors: BTreeMap<String, usize>,
}

impl Index {
    pub fn parse(bytes: &[u8]) -> Result<Self, SafetensorsError> {
        #[derive(Deserialize)]
        struct File {
            weight_map: Unique<String>,
        }
        let File {
            weight_map: Unique(map),
        } = serde_json::from_slice(bytes)
            .map_err(|error| SafetensorsError::Json(format!("index: {error}")))?;
        let mut files: Vec<String> = map.values().cloned().collect();
        files.sort_unstable();
        files.dedup();
        if let Some(name) = files.iter().find(|name| !is_plain(name)) {
            let what = format!("{:?}, which is no file beside it", shown(name));
            return Err(SafetensorsError::File(what));
        }
        if files.is_empty() || files.len() > LARGEST_FILES {
            let what = format!("{} files; 1 to {LARGEST_FILES} make sense", files.len());
            return Err(SafetensorsError::File(what));
        }
        let place = |name: &String| files.binary_search(name).unwrap_or_default();
        let tensors = map
            .iter()
            .map(|(tensor, file)| (tensor.clone(), place(file)));
        Ok(Self {
            tensors: tensors.collect(),
            files,
        })
    }
}

/// A name that cannot lead out of the folder.
fn is_plain(name: &str) -> bool {
    !name.starts_with('.')
        && name.ends_with(".safetensors")
        && name.len() <= 255
        && !name.contains(['/', '\\', '\0', ':'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(header: &str, data: u64) -> Result<Vec<(String, TensorEntry)>, SafetensorsError> {
        let file_bytes = LENGTH_BYTES + header.len() as u64 + data;
        parse_header(header.as_bytes(), 3, file_bytes)
    }

    #[track_caller]
    fn refused(header: &str, data: u64, word: &str) {
        let error = parse(header, data).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }

    const A: &str = r#""a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}"#;

    #[test]
    fn tensors_lie_after_the_header_one_behind_another() {
        let header = format!(
            r#"{{"__metadata__":{{"format":"pt"}},"b":{{"dtype":"BF16","shape":[],"data_offsets":[24,26]}},{A}}}"#
        );
        let tensors = parse(&header, 26).unwrap();
        let start = LENGTH_BYTES + header.len() as u64;
        let (name, a) = &tensors[0];
        assert_eq!(
            (
                name.as_str(),
                &a.shape[..],
                a.format,
                a.file,
                a.offset,
                a.bytes
            ),
            ("a", &[2, 3][..], Some(Format::F32), 3, start, 24)
        );
        assert_eq!((tensors[1].1.offset, tensors[1].1.bytes), (start + 24, 2));
    }

    #[test]
    fn a_type_that_is_not_computed_is_kept_with_its_name_for_the_refusal() {
        let tensors = parse(
            r#"{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}"#,
            4,
        )
        .unwrap();
        assert_eq!(
            (tensors[0].1.kind.as_str(), tensors[0].1.format),
            ("F8_E4M3", None)
        );
    }

    #[test]
    fn gaps_overlaps_wrong_lengths_and_bytes_of_nobody_are_refused() {
        let with = |b: &str| format!("{{{A},{b}}}");
        refused(
            &with(r#""b":{"dtype":"F32","shape":[1],"data_offsets":[20,24]}"#),
            24,
            "starts at 20",
        );
        refused(
            &with(r#""b":{"dtype":"F32","shape":[1],"data_offsets":[28,32]}"#),
            32,
            "starts at 28",
        );
        refused(&format!("{{{A}}}"), 25, "25 bytes of data");
        refused(&format!("{{{A}}}"), 20, "end at byte 24");
        for shape in ["[2,2]", "[4294967296,4294967296,4294967296]"] {
            let entry =
                format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,24]}}}}"#);
            refused(&entry, 24, "24 bytes for shape");
        }
        refused(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#,
            8,
            "from 8 to 4",
        );
    }

    #[test]
    fn headers_that_are_no_header_are_refused() {
        refused(&format!("{{{A},{A}}}"), 24, "twice");
        refused(r#"{"a":{"x":"y"}}"#, 0, "no dtype");
        refused(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"z":1}}"#,
            4,
            "header",
        );
        refused("[]", 0, "header");
        refused("", 0, "header");
        refused(&"[".repeat(100_000), 0, "header");
        let length = |header: u64, file| header_bytes(header.to_le_bytes(), file);
        assert_eq!(length(10, 18), Ok(10));
        assert!(length(11, 18).is_err() && length(0, 7).is_ok());
        assert!(length(u64::MAX, u64::MAX).is_err());
        assert!(length(LARGEST_HEADER_BYTES + 1, u64::MAX).is_err());
    }

    #[test]
    fn an_index_names_files_beside_it_and_nothing_else() {
        let index = Index::parse(
            br#"{"metadata":{"total_size":1},"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#,
        )
        .unwrap();
        assert_eq!(index.files, ["m-1.safetensors", "m-2.safetensors"]);
        assert_eq!((index.tensors["a"], index.tensors["b"]), (1, 0));
        for file in [
            "../m.safetensors",
            "/etc/m.safetensors",
            ".m.safetensors",
            "m.bin",
            "a/b.safetensors",
        ] {
            let bytes = format!(r#"{{"weight_map":{{"a":"{file}"}}}}"#);
            let error = Index::parse(bytes.as_bytes()).unwrap_err();
            assert!(matches!(error, SafetensorsError::File(_)), "{file}");
        }
        assert!(Index::parse(br#"{"weight_map":{}}"#).is_err());
        assert!(
            Index::parse(br#"{"weight_map":{"a":"m.safetensors","a":"n.safetensors"}}"#).is_err()
        );
        assert!(Index::parse(br#"{"weight_map":[]}"#).is_err());
    }
}
