//! Tensor types and the entries of the tensor table.

use std::fmt;
use std::ops::Range;

/// How a tensor's numbers are stored. Quantised types store blocks of a fixed number of elements
/// in a fixed number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // The variants are the field's names for them.
pub enum TensorType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    /// A type this crate knows no layout of, by its number in the file.
    Other(u32),
}

impl TensorType {
    /// The type of a number in the file.
    pub fn from_id(id: u32) -> Self {
        match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::Iq4Nl,
            30 => Self::Bf16,
            other => Self::Other(other),
        }
    }

    /// The number that stands for the type in a file.
    pub fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq4Nl => 20,
            Self::Bf16 => 30,
            Self::Other(id) => id,
        }
    }

    /// Elements and bytes of a block; `None` for a type of unknown layout.
    fn block(self) -> Option<(usize, usize)> {
        Some(match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 | Self::Iq4Nl => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Other(_) => return None,
        })
    }

    /// Elements of a block (1 for plain floats); `None` for a type of unknown layout.
    pub fn block_elements(self) -> Option<usize> {
        self.block().map(|(elements, _)| elements)
    }

    /// Bytes of a block; `None` for a type of unknown layout.
    pub fn block_bytes(self) -> Option<usize> {
        self.block().map(|(_, bytes)| bytes)
    }
}

/// Names of the types that have no variant here, so that a refusal can say which it is.
fn other_name(id: u32) -> Option<&'static str> {
    Some(match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return None,
    })
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Other(id) => match other_name(*id) {
                Some(name) => name,
                None => return write!(f, "unknown type {id}"),
            },
        };
        f.write_str(name)
    }
}

/// One entry of the tensor table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// One to four lengths, none zero, in ggml's order: `dims[0]` is contiguous.
    pub dims: Vec<u64>,
    /// How the numbers are stored.
    pub kind: TensorType,
    /// The data's bytes in the file, absolute and inside it. For [`TensorType::Other`], whose size
    /// is unknown, it reaches to the next tensor or the end of the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Number of elements: the product of the dimensions, which parsing showed not to overflow.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}
