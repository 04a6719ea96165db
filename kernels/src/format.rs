//! How weights lie in a file, and the plain arithmetic that says which numbers they mean.

use half::{bf16, f16};

/// A weight format that kernels compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// 16-bit brain floats.
    Bf16,
    /// 32 signed bytes and a scale.
    Q8_0,
    /// 32 nibbles centred on 8, and a scale.
    Q4_0,
    /// 32 nibbles, a scale and a minimum.
    Q4_1,
    /// 32 weights of 5 bits centred on 16, and a scale.
    Q5_0,
    /// 32 weights of 5 bits, a scale and a minimum.
    Q5_1,
    /// 256 weights of 2 bits in 16 groups with 4-bit scales and minimums.
    Q2K,
    /// 256 weights of 3 bits centred on 4 in 16 groups with 6-bit scales.
    Q3K,
    /// 256 nibbles in 8 groups with 6-bit scales and minimums.
    Q4K,
    /// 256 weights of 5 bits in 8 groups with 6-bit scales and minimums.
    Q5K,
    /// 256 weights of 6 bits in 16 groups with 8-bit scales.
    Q6K,
    /// 32 nibbles that name one of 16 uneven levels, and a scale.
    Iq4Nl,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 14] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
    ];

    /// Weights in one block of the file.
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block of the file.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// True when products use activations quantised to 8 bits; else they use `f32` activations.
    pub fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// The name GGUF files give it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
        }
    }

    /// Byte offsets in a block of its half-precision scales and minimums.
    pub(crate) fn half_fields(self) -> &'static [usize] {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q5_0 | Self::Iq4Nl => &[0],
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => &[0, 2],
            Self::Q2K => &[80, 82],
            Self::Q3K => &[108],
            Self::Q6K => &[208],
            Self::F32 | Self::F16 | Self::Bf16 => &[],
        }
    }
}

#[inline]
pub(crate) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// What a nibble of [`Format::Iq4Nl`] stands for.
pub(crate) const IQ4NL_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// 5-bit value of element `i` (0..32), from 4 bytes of fifth bits and 16 of nibbles.
pub(crate) fn q5_quant(high: &[u8], low: &[u8], i: usize) -> u8 {
    low_then_high(low, i) | (high[i / 8] >> (i % 8) & 1) << 4
}

/// 2-bit value of element `i` (0..256) from 64 bytes.
pub(crate) fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// 3-bit value (the weight plus 4) of element `i` (0..256) of a Q3_K block.
pub(crate) fn q3k_quant(block: &[u8], i: usize) -> u8 {
    two_bits(&block[32..96], i) | (block[i % 32] >> (i / 32) & 1) << 2
}

/// Scale (-32..32) of group `j` (0..16) of a Q3_K block.
pub(crate) fn q3k_scale(block: &[u8], j: usize) -> i8 {
    let packed = &block[96..108];
    let low = packed[j % 8] >> (j / 8 * 4) & 15;
    let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
    (low | high << 4) as i8 - 32
}

/// 5-bit value of element `i` (0..256) of a Q5_K block.
pub(crate) fn q5k_quant(block: &[u8], i: usize) -> u8 {
    let byte = block[48 + i / 64 * 32 + i % 32];
    let low = if i % 64 < 32 { byte & 15 } else { byte >> 4 };
    low | (block[16 + i % 32] >> (i / 32) & 1) << 4
}

/// Scale and minimum (0..64 each) of group `j` (0..8) from the 12 packed bytes of a Q4_K or Q5_K block.
pub(crate) fn q4k_scale_and_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4),
            (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4),
        )
    }
}

/// Nibble of element `i` (0..256) of a Q4_K block.
pub(crate) fn q4k_quant(block: &[u8], i: usize) -> u8 {
    let byte = block[16 + i / 64 * 32 + i % 32];
    if i % 64 < 32 { byte & 15 } else { byte >> 4 }
}

/// Unsigned 6-bit value (the weight plus 32) of element `i` (0..256) of a Q6_K block.
pub(crate) fn q6k_quant(block: &[u8], i: usize) -> u8 {
    let (part, within) = (i / 128, i % 128);
    let (quarter, l) = (within / 32, within % 32);
    let low = block[64 * part + 32 * (quarter % 2) + l];
    let low = if quarter < 2 { low & 15 } else { low >> 4 };
    let high = block[128 + 32 * part + l] >> (2 * quarter) & 3;
    low | high << 4
}

/// The number behind every weight of `bytes`, in order: the truth that kernels are measured against.
///
/// # Panics
/// When `bytes` is not a whole number of blocks, or `out` not as long as their elements.
pub fn dequantise(format: Format, bytes: &[u8], out: &mut [f32]) {
    let (block_bytes, block_elements) = (format.block_bytes(), format.block_elements());
    assert!(
        bytes.len().is_multiple_of(block_bytes),
        "whole blocks of {}",
        format.name()
    );
    assert_eq!(
        bytes.len() / block_bytes * block_elements,
        out.len(),
        "one output a weight"
    );
    for (block, out) in bytes
        .chunks_exact(block_bytes)
        .zip(out.chunks_exact_mut(block_elements))
    {
        dequantise_block(format, block, out);
    }
}

fn dequantise_block(format: Format, block: &[u8], out: &mut [f32]) {
    match format {
        Format::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        Format::F16 => out[0] = half_at(block, 0),
        Format::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        Format::Q8_0 => {
            let d = half_at(block, 0);
            fill(out, |i| d * f32::from(block[2 + i] as i8));
        }
        Format::Q4_0 => {
            let d = half_at(block, 0);
            fill(out, |i| {
                d * (f32::from(low_then_high(&block[2..], i)) - 8.0)
            });
        }
        Format::Q4_1 => {
            let (d, m) = (half_at(block, 0), half_at(block, 2));
            fill(out, |i| d * f32::from(low_then_high(&block[4..], i)) + m);
        }
        Format::Q4K => {
            let (d, dmin) = (half_at(block, 0), half_at(block, 2));
            fill(out, |i| {
                let (scale, min) = q4k_scale_and_min(&block[4..16], i / 32);
                d * f32::from(scale) * f32::from(q4k_quant(block, i)) - dmin * f32::from(min)
            });
        }
        Format::Q5_0 => {
            let d = half_at(block, 0);
            fill(out, |i| {
                d * (f32::from(q5_quant(&block[2..6], &block[6..], i)) - 16.0)
            });
        }
        Format::Q5_1 => {
            let (d, m) = (half_at(block, 0), half_at(block, 2));
            fill(out, |i| {
                d * f32::from(q5_quant(&block[4..8], &block[8..], i)) + m
            });
        }
        Format::Q2K => {
            let (d, dmin) = (half_at(block, 80), half_at(block, 82));
            fill(out, |i| {
                let (scale, min) = (block[i / 16] & 15, block[i / 16] >> 4);
                d * f32::from(scale) * f32::from(two_bits(&block[16..80], i))
                    - dmin * f32::from(min)
            });
        }
        Format::Q3K => {
            let d = half_at(block, 108);
            fill(out, |i| {
                d * f32::from(q3k_scale(block, i / 16)) * (f32::from(q3k_quant(block, i)) - 4.0)
            });
        }
        Format::Q5K => {
            let (d, dmin) = (half_at(block, 0), half_at(block, 2));
            fill(out, |i| {
                let (scale, min) = q4k_scale_and_min(&block[4..16], i / 32);
                d * f32::from(scale) * f32::from(q5k_quant(block, i)) - dmin * f32::from(min)
            });
        }
        Format::Iq4Nl => {
            let d = half_at(block, 0);
            fill(out, |i| {
                d * f32::from(IQ4NL_LEVELS[usize::from(low_then_high(&block[2..], i))])
            });
        }
        Format::Q6K => {
            let d = half_at(block, 208);
            fill(out, |i| {
                let scale = f32::from(block[192 + i / 16] as i8);
                d * scale * (f32::from(q6k_quant(block, i)) - 32.0)
            });
        }
    }
}

fn fill(out: &mut [f32], value: impl Fn(usize) -> f32) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = value(i);
    }
}

/// Nibble `i` of 16 bytes whose low nibbles come first.
fn low_then_high(bytes: &[u8], i: usize) -> u8 {
    if i < 16 {
        bytes[i] & 15
    } else {
        bytes[i - 16] >> 4
    }
}

/// Index of the first block of `bytes` that means a NaN or an infinity, if any.
pub fn first_non_finite(format: Format, bytes: &[u8]) -> Option<usize> {
    let blocks = || bytes.chunks_exact(format.block_bytes());
    match format {
        Format::F32 => {
            blocks().position(|b| !f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite())
        }
        Format::F16 => blocks().position(|b| b[1] & 0x7c == 0x7c),
        Format::Bf16 => blocks().position(|b| b[1] & 0x7f == 0x7f && b[0] & 0x80 != 0),
        _ => blocks().position(|b| {
            format
                .half_fields()
                .iter()
                .any(|&at| b[at + 1] & 0x7c == 0x7c)
        }),
    }
}

#[cfg(test)]
#[path = "format/tests.rs"]
mod tests;
