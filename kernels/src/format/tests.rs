use proptest::prelude::*;

use super::*;
use crate::pack::tests::random_blocks;

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

/// A second reading of the layouts, block by block as a decoder walks a file: cursors and running masks, where
/// [`dequantise`] finds each element by arithmetic.
mod walk {
    pub fn f16(bytes: &[u8]) -> f64 {
        let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let size = match exponent {
            0 => fraction * 2f64.powi(-24),
            31 => f64::INFINITY,
            _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
        };
        if bits >> 15 == 1 { -size } else { size }
    }

    /// Low nibbles of `bytes`, then high ones.
    fn nibbles(bytes: &[u8]) -> Vec<u8> {
        let low = bytes.iter().map(|b| b % 16);
        low.chain(bytes.iter().map(|b| b / 16)).collect()
    }

    pub fn five_bits(high: &[u8], low: &[u8]) -> Vec<f64> {
        let mut mask = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
        let mut out = Vec::new();
        for nibble in nibbles(low) {
            out.push(f64::from(nibble) + if mask & 1 == 1 { 16.0 } else { 0.0 });
            mask >>= 1;
        }
        out
    }

    pub fn nibble_block(bytes: &[u8]) -> Vec<f64> {
        nibbles(bytes).into_iter().map(f64::from).collect()
    }

    /// The eight scales and eight minimums of 12 bytes: the first four of each lie in the low six bits of bytes 0 to 7, the last
    /// four are split over nibbles of bytes 8 to 11 and the top bits of bytes 0 to 7.
    pub fn scales_and_mins(packed: &[u8]) -> (Vec<f64>, Vec<f64>) {
        let (mut scales, mut mins) = (Vec::new(), Vec::new());
        for j in 0..4 {
            scales.push(packed[j] % 64);
            mins.push(packed[4 + j] % 64);
        }
        for j in 0..4 {
            scales.push(packed[8 + j] % 16 + 16 * (packed[j] / 64));
            mins.push(packed[8 + j] / 16 + 16 * (packed[4 + j] / 64));
        }
        let floats = |x: Vec<u8>| x.into_iter().map(f64::from).collect();
        (floats(scales), floats(mins))
    }

    /// Sixty-four bytes of two bits: per half of 128, four passes over 32 bytes, each taking the next two bits.
    pub fn two_bit_block(mut bytes: &[u8]) -> Vec<f64> {
        let mut out = Vec::new();
        for _ in 0..2 {
            for pass in 0..4u32 {
                out.extend(bytes[..32].iter().map(|b| f64::from(b / 4u8.pow(pass) % 4)));
            }
            bytes = &bytes[32..];
        }
        out
    }

    pub fn q3k(block: &[u8]) -> Vec<f64> {
        let words: Vec<u32> = block[96..108]
            .chunks(4)
            .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
            .collect();
        // Nibbles of two words hold low bits, the third word two high bits each.
        let mut scales = Vec::new();
        for (shift, high_shift) in [(0, 0), (0, 2), (4, 4), (4, 6)] {
            let word = words[usize::from(high_shift % 4 == 2)] >> shift & 0x0f0f_0f0f;
            let joined = word | (words[2] >> high_shift & 0x0303_0303) << 4;
            scales.extend(joined.to_le_bytes().map(|b| f64::from(b) - 32.0));
        }
        let d = f16(&block[108..]);
        let mut mask = 1u8;
        let mut out = two_bit_block(&block[32..96]);
        for (pass, values) in out.chunks_mut(32).enumerate() {
            for (l, value) in values.iter_mut().enumerate() {
                *value -= if block[l] & mask == 0 { 4.0 } else { 0.0 };
                *value *= d * scales[2 * pass + l / 16];
            }
            mask = mask.rotate_left(1);
        }
        out
    }

    pub fn q5k(block: &[u8]) -> Vec<f64> {
        let (scales, mins) = scales_and_mins(&block[4..16]);
        let (d, dmin) = (f16(block), f16(&block[2..]));
        let mut out = Vec::new();
        for (pair, bytes) in block[48..].chunks(32).enumerate() {
            for (i, nibble) in nibbles(bytes).into_iter().enumerate() {
                let group = 2 * pair + i / 32;
                let fifth = block[16 + i % 32] >> group & 1;
                out.push(d * scales[group] * f64::from(nibble + 16 * fifth) - dmin * mins[group]);
            }
        }
        out
    }

    pub fn q4k(block: &[u8]) -> Vec<f64> {
        let (scales, mins) = scales_and_mins(&block[4..16]);
        let (d, dmin) = (f16(block), f16(&block[2..]));
        let all: Vec<u8> = block[16..].chunks(32).flat_map(nibbles).collect();
        let mut out = Vec::new();
        for (group, values) in all.chunks(32).enumerate() {
            out.extend(
                values
                    .iter()
                    .map(|&v| d * scales[group] * f64::from(v) - dmin * mins[group]),
            );
        }
        out
    }

    pub fn q6k(block: &[u8]) -> Vec<f64> {
        let (mut low, mut high, mut scales) = (&block[..128], &block[128..192], &block[192..208]);
        let d = f16(&block[208..]);
        let mut out = Vec::new();
        for _ in 0..2 {
            // Four runs of 32: low nibbles of the first and second 32 bytes, then their high nibbles.
            let runs = [(0, 1), (32, 1), (0, 16), (32, 16)];
            for (run, (at, divisor)) in runs.into_iter().enumerate() {
                for l in 0..32 {
                    let quant = low[at + l] / divisor % 16 + 16 * (high[l] >> (2 * run) & 3);
                    let scale = f64::from(scales[2 * run + l / 16] as i8);
                    out.push(d * scale * (f64::from(quant) - 32.0));
                }
            }
            (low, high, scales) = (&low[64..], &high[32..], &scales[8..]);
        }
        out
    }
}

/// What the block means by the second reading.
fn walked(format: Format, block: &[u8]) -> Vec<f64> {
    let scaled = |d: f64, m: f64, x: Vec<f64>| x.into_iter().map(|x| d * x + m).collect();
    let d = || walk::f16(block);
    match format {
        Format::F32 => vec![f64::from(f32::from_le_bytes(block.try_into().unwrap()))],
        Format::F16 => vec![d()],
        Format::Bf16 => vec![f64::from(f32::from_bits(
            u32::from(block[0]) << 16 | u32::from(block[1]) << 24,
        ))],
        Format::Q8_0 => scaled(
            d(),
            0.0,
            block[2..].iter().map(|&b| f64::from(b as i8)).collect(),
        ),
        Format::Q4_0 => scaled(d(), -8.0 * d(), walk::nibble_block(&block[2..])),
        Format::Q4_1 => scaled(d(), walk::f16(&block[2..]), walk::nibble_block(&block[4..])),
        Format::Q5_0 => scaled(d(), -16.0 * d(), walk::five_bits(&block[2..6], &block[6..])),
        Format::Q5_1 => scaled(
            d(),
            walk::f16(&block[2..]),
            walk::five_bits(&block[4..8], &block[8..]),
        ),
        Format::Q2K => {
            let (d, dmin) = (walk::f16(&block[80..]), walk::f16(&block[82..]));
            let quants = walk::two_bit_block(&block[16..80]);
            let groups = quants.chunks(16).zip(&block[..16]);
            groups
                .flat_map(|(quants, &sm)| {
                    quants
                        .iter()
                        .map(move |q| d * f64::from(sm % 16) * q - dmin * f64::from(sm / 16))
                })
                .collect()
        }
        Format::Q3K => walk::q3k(block),
        Format::Q4K => walk::q4k(block),
        Format::Q5K => walk::q5k(block),
        Format::Q6K => walk::q6k(block),
        Format::Iq4Nl => {
            let levels = [
                -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
            ];
            let level = |x: f64| f64::from(levels[x as usize]);
            scaled(
                d(),
                0.0,
                walk::nibble_block(&block[2..])
                    .into_iter()
                    .map(level)
                    .collect(),
            )
        }
    }
}

proptest! {
    #[test]
    fn blocks_mean_what_a_second_reading_of_their_layout_says(
        format in prop::sample::select(Format::ALL.to_vec()), seed: u64
    ) {
        let block = random_blocks(format, 1, seed);
        let mut got = vec![f32::NAN; format.block_elements()];
        dequantise(format, &block, &mut got);
        let expected = walked(format, &block);
        prop_assert_eq!(got.len(), expected.len());
        let largest = expected.iter().fold(0f64, |a, b| a.max(b.abs()));
        for (g, e) in got.iter().zip(&expected) {
            // Two roundings of a difference whose parts may be four times the largest value.
            prop_assert!((f64::from(*g) - e).abs() <= 4.0 * largest * f64::from(f32::EPSILON), "{} {}", g, e);
        }
    }
}

/// Bytes of a hexadecimal number.
fn hexadecimal(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

/// `vectors.txt` was written by `e2e/reference/block_vectors.py`: blocks of random bytes, and what the `gguf` package reads in them.
#[test]
fn blocks_mean_what_the_gguf_package_reads_in_them() {
    let mut seen = Vec::new();
    for line in include_str!("vectors.txt").lines() {
        let mut parts = line.split(' ');
        let (name, block, weights) = (
            parts.next().unwrap(),
            parts.next().unwrap(),
            parts.next().unwrap(),
        );
        let format = Format::ALL.into_iter().find(|f| f.name() == name).unwrap();
        let mut got = vec![f32::NAN; format.block_elements()];
        dequantise(format, &hexadecimal(block), &mut got);
        let expected: Vec<f32> = hexadecimal(weights)
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let largest = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
        for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
            assert!(
                (g - e).abs() <= 4.0 * f32::EPSILON * largest,
                "{name} {i}: {g} {e}"
            );
        }
        assert_eq!(got.len(), expected.len());
        seen.push(format);
    }
    assert_eq!(
        seen.len(),
        Format::ALL.into_iter().filter(|f| f.is_quantised()).count()
    );
}
