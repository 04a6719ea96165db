//! What can be wrong with a GGUF file.

use crate::metadata::MetadataError;

/// Why a file is not a GGUF this parser accepts. Names out of the file are shortened, so that a
/// hostile file cannot fill a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// The first four bytes are not `GGUF`.
    #[error(
        "not a GGUF file: it starts with {found} instead of \"GGUF\"; check that the source names a .gguf file and not a page or a checkpoint of another format"
    )]
    NotGguf {
        /// The leading bytes, printable.
        found: String,
    },
    /// The version is neither 2 nor 3.
    #[error("GGUF version {version} is not supported: convert the model to version 3")]
    UnknownVersion {
        /// As the header states it.
        version: u32,
    },
    /// A big-endian file.
    #[error("big-endian GGUF files are not supported: convert the model to little-endian")]
    BigEndian,
    /// The header goes on past the end of the file.
    #[error(
        "truncated GGUF: file ends at byte {file_bytes} but {what} needs {needed_bytes}; download it again"
    )]
    TruncatedHeader {
        /// Which part of the header.
        what: String,
        /// Length of the file.
        file_bytes: u64,
        /// Where that part would end.
        needed_bytes: u64,
    },
    /// The header goes on past the bytes that were given of the file, which has them: [`crate::Gguf::parse_head`] wants more.
    #[error("the header needs {needed_bytes} bytes of the file, more than were read")]
    HeadTooShort {
        /// At least so many bytes from the file's beginning are needed.
        needed_bytes: u64,
    },
    /// A tensor's data go on past the end of the file.
    #[error(
        "truncated GGUF: file ends at byte {file_bytes} but tensor {tensor} needs {needed_bytes}; download it again"
    )]
    TruncatedTensor {
        /// The tensor's name.
        tensor: String,
        /// Length of the file.
        file_bytes: u64,
        /// Where the tensor's data would end.
        needed_bytes: u64,
    },
    /// Metadata and tensor table are larger than any real model's.
    #[error("GGUF header is larger than {limit_bytes} bytes at {what}")]
    HeaderTooLarge {
        /// Which part passed the limit.
        what: String,
        /// The limit.
        limit_bytes: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error(
        "GGUF states {count} {what}, more than the {left_bytes} bytes left in the file can hold"
    )]
    AbsurdCount {
        /// What is counted.
        what: String,
        /// As stated.
        count: u64,
        /// Bytes after the count.
        left_bytes: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    NotUtf8 {
        /// Which text.
        what: String,
    },
    /// A key or tensor name longer than the format allows.
    #[error("{what} is {name_bytes} bytes long, the limit is {limit_bytes}")]
    NameTooLong {
        /// Which name.
        what: String,
        /// Its length.
        name_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A metadata value of an unknown type.
    #[error("metadata key {key} has unknown value type {id}")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type as stated.
        id: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key {key} holds {byte} where a boolean (0 or 1) belongs")]
    BadBool {
        /// The key.
        key: String,
        /// The byte found.
        byte: u8,
    },
    /// Arrays nested deeper than the limit.
    #[error("metadata key {key} nests arrays deeper than {limit}")]
    TooDeep {
        /// The key.
        key: String,
        /// The limit.
        limit: usize,
    },
    /// A key that occurs twice.
    #[error("metadata key {key} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// Two tensors of one name.
    #[error("tensor {tensor} occurs twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// `general.alignment` is unusable.
    #[error("general.alignment is {alignment}: it must be a power of two of at least 8")]
    BadAlignment {
        /// As stated.
        alignment: u64,
    },
    /// A tensor whose data start off the alignment.
    #[error(
        "tensor {tensor} starts at offset {offset}, which is not a multiple of the alignment {alignment}"
    )]
    Misaligned {
        /// The tensor's name.
        tensor: String,
        /// Offset from the start of the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor with no or too many dimensions, one of length zero, or rows that are not whole blocks.
    #[error("tensor {tensor} has shape {dims:?}: {reason}")]
    BadShape {
        /// The tensor's name.
        tensor: String,
        /// Dimensions as stated, innermost first.
        dims: Vec<u64>,
        /// What is wrong with them.
        reason: String,
    },
    /// A tensor whose size or position does not fit into 64 bits.
    #[error("tensor {tensor} has shape {dims:?} at offset {offset}: its size overflows")]
    SizeOverflow {
        /// The tensor's name.
        tensor: String,
        /// Dimensions as stated.
        dims: Vec<u64>,
        /// Offset as stated.
        offset: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
    /// A metadata value that the container itself needs is unusable.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// A name out of the file, quoted and short enough for a message.
pub(crate) fn shown(name: &str) -> String {
    const MOST_CHARS: usize = 80;
    if name.chars().nth(MOST_CHARS).is_none() {
        return format!("{name:?}");
    }
    let head: String = name.chars().take(MOST_CHARS).collect();
    format!("{head:?}...")
}
