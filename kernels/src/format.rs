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
    /// 256 nibbles in 8 groups with 6-bit scales and minimums.
    Q4K,
    /// 256 weights of 6 bits in 16 groups with 8-bit scales.
    Q6K,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 8] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q4K,
        Self::Q6K,
    ];

    /// Weights in one block of the file.
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => 32,
            Self::Q4K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block of the file.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q4K => 144,
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
            Self::Q4K => "Q4_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Byte offsets in a block of its half-precision scales and minimums.
    fn half_fields(self) -> &'static [usize] {
        match self {
            Self::Q8_0 | Self::Q4_0 => &[0],
            Self::Q4_1 | Self::Q4K => &[0, 2],
            Self::Q6K => &[208],
            Self::F32 | Self::F16 | Self::Bf16 => &[],
        }
    }
}

#[inline]
pub(crate) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Scale and minimum (0..64 each) of group `j` (0..8) from the 12 packed bytes of a Q4_K block.
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
mod tests {
    use super::*;

    #[test]
    fn q4_1_block_means_scale_times_nibble_plus_minimum() {
        let mut block = vec![0u8; 20];
        block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        block[2..4].copy_from_slice(&f16::from_f32(-2.0).to_le_bytes());
        block[4] = 0xf3; // element 0 is 3, element 16 is 15
        let mut out = [0.0; 32];
        dequantise(Format::Q4_1, &block, &mut out);
        assert_eq!((out[0], out[16], out[1]), (-0.5, 5.5, -2.0));
    }

    #[test]
    fn q4_k_scales_unpack_to_six_bits() {
        let mut packed = [0u8; 12];
        packed[0] = 0b1100_0001; // group 0 scale 1, top bits of group 4's scale 3
        packed[8] = 0x5f; // group 4: scale low 15, min low 5
        packed[4] = 0b0100_0010; // group 0 min 2, top bits of group 4's min 1
        assert_eq!(q4k_scale_and_min(&packed, 0), (1, 2));
        assert_eq!(q4k_scale_and_min(&packed, 4), (15 | 3 << 4, 5 | 1 << 4));
    }

    #[test]
    fn non_finite_values_and_scales_are_found() {
        for format in Format::ALL {
            let mut bytes = vec![0u8; format.block_bytes() * 3];
            assert_eq!(first_non_finite(format, &bytes), None, "{format:?}");
            let at = format.block_bytes() * 2 + format.half_fields().last().copied().unwrap_or(0);
            match format {
                Format::F32 => bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes()),
                Format::Bf16 => bytes[at..at + 2].copy_from_slice(&bf16::INFINITY.to_le_bytes()),
                _ => bytes[at..at + 2].copy_from_slice(&f16::NEG_INFINITY.to_le_bytes()),
            }
            assert_eq!(first_non_finite(format, &bytes), Some(2), "{format:?}");
        }
    }
}
