//! Weights repacked at load into panels of 16 output columns, in the order kernels read them and at the file's bits a weight.
//!
//! A panel holds, block after block of 32 deep, the quantised values in groups of four depths (the four bytes one
//! multiply-add instruction takes a lane) followed by the 16 scales; `README.md` draws it.

use crate::activation::BLOCK;
use crate::buffer::AlignedBuffer;
use crate::format::{
    Format, IQ4NL_LEVELS, first_non_finite, half_at, q3k_quant, q3k_scale, q4k_quant,
    q4k_scale_and_min, q5k_quant, q6k_quant, two_bits,
};
use crate::pool::ThreadPool;
use crate::simd::LANES;

/// Output columns of a panel.
pub const PANEL_COLUMNS: usize = LANES;

/// Blocks of 32 in a 256-weight block.
pub(crate) const GROUPS: usize = 8;
/// Bytes of 16 columns by 32 deep of one bit, of two, of nibbles, and of bytes.
pub(crate) const BIT_BYTES: usize = 64;
pub(crate) const TWO_BIT_BYTES: usize = 128;
pub(crate) const NIBBLE_BYTES: usize = 256;
pub(crate) const BYTE_BYTES: usize = 512;
/// Bytes of 16 half-precision numbers.
pub(crate) const HALVES: usize = 2 * LANES;
/// Bytes of a group's two scales a column, or of its scale and minimum.
pub(crate) const PAIR: usize = 2 * LANES;

/// Why a tensor cannot be packed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PackError {
    /// Rows are no whole number of blocks.
    #[error("rows of {k} weights are no whole number of {format} blocks of {block}")]
    Depth {
        /// Weights in a row.
        k: usize,
        /// The format's name.
        format: &'static str,
        /// Weights in a block.
        block: usize,
    },
    /// The bytes do not match the shape.
    #[error("{rows} rows of {k} {format} weights take {expected} bytes, not {found}")]
    Length {
        /// Output columns.
        rows: usize,
        /// Weights in a row.
        k: usize,
        /// The format's name.
        format: &'static str,
        /// Bytes the shape asks for.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A weight or a scale is NaN or infinite.
    #[error("row {row} holds a NaN or infinite weight or scale")]
    NonFinite {
        /// The output column.
        row: usize,
    },
}

/// A weight matrix of `n` outputs by `k` inputs, packed for the kernels.
#[derive(Debug)]
pub struct PackedMatrix {
    format: Format,
    n: usize,
    k: usize,
    panel_bytes: usize,
    data: AlignedBuffer<u8>,
}

impl PackedMatrix {
    /// Bytes [`PackedMatrix::pack`] takes for `n` by `k` weights; `None` where that overflows.
    pub fn packed_bytes(format: Format, n: usize, k: usize) -> Option<usize> {
        panel_bytes(format, k)?.checked_mul(n.div_ceil(PANEL_COLUMNS))
    }

    /// Packs `n` rows of `k` weights lying one after another in `bytes`, as GGUF stores a tensor of dimensions `[k, n]`.
    /// Columns beyond `n` in the last panel weigh zero.
    pub fn pack(
        pool: &ThreadPool,
        format: Format,
        n: usize,
        k: usize,
        bytes: &[u8],
    ) -> Result<Self, PackError> {
        let block = format.block_elements();
        if n == 0 || k == 0 || !k.is_multiple_of(block) {
            return Err(PackError::Depth {
                k,
                format: format.name(),
                block,
            });
        }
        let row_bytes = k / block * format.block_bytes();
        let expected = row_bytes.saturating_mul(n);
        let panel_bytes = panel_bytes(format, k).unwrap_or(usize::MAX);
        if bytes.len() != expected || panel_bytes == usize::MAX {
            return Err(PackError::Length {
                rows: n,
                k,
                format: format.name(),
                expected,
                found: bytes.len(),
            });
        }
        if let Some(block) = first_non_finite(format, bytes) {
            return Err(PackError::NonFinite {
                row: block * format.block_bytes() / row_bytes,
            });
        }
        let mut data = AlignedBuffer::zeroed(panel_bytes * n.div_ceil(PANEL_COLUMNS));
        pool.split_chunks(&mut data, panel_bytes, 1, |panel, out| {
            let first = panel * PANEL_COLUMNS;
            for column in 0..PANEL_COLUMNS.min(n - first) {
                pack_column(
                    format,
                    &bytes[(first + column) * row_bytes..][..row_bytes],
                    column,
                    out,
                );
            }
        });
        Ok(Self {
            format,
            n,
            k,
            panel_bytes,
            data,
        })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Output columns.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input depth.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(PANEL_COLUMNS)
    }

    #[inline(always)]
    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        self.data[panel * self.panel_bytes..].as_ptr()
    }

    /// Writes the `k` dequantised weights of output `row` to `out`: the embedding of a token, when the matrix is a table.
    ///
    /// # Panics
    /// When `row` or the length of `out` do not fit.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.n && out.len() == self.k,
            "row {row} of {} by {}",
            self.n,
            self.k
        );
        let panel = &self.data[row / PANEL_COLUMNS * self.panel_bytes..][..self.panel_bytes];
        unpack_column(self.format, panel, row % PANEL_COLUMNS, out);
    }
}

/// Bytes of a block of the file's format for 16 columns.
fn unit_bytes(format: Format) -> usize {
    match format {
        Format::F32 => 4 * LANES,
        Format::F16 | Format::Bf16 => HALVES,
        Format::Q8_0 => BYTE_BYTES + HALVES,
        Format::Q4_0 | Format::Iq4Nl => NIBBLE_BYTES + HALVES,
        Format::Q4_1 => NIBBLE_BYTES + 2 * HALVES,
        Format::Q5_0 => NIBBLE_BYTES + BIT_BYTES + HALVES,
        Format::Q5_1 => NIBBLE_BYTES + BIT_BYTES + 2 * HALVES,
        Format::Q2K | Format::Q4K | Format::Q5K => 2 * HALVES + GROUPS * group_bytes(format),
        Format::Q3K | Format::Q6K => HALVES + GROUPS * group_bytes(format),
    }
}

/// Bytes of a group of 32 deep within a block of 256.
fn group_bytes(format: Format) -> usize {
    PAIR + match format {
        Format::Q2K => TWO_BIT_BYTES,
        Format::Q3K => TWO_BIT_BYTES + BIT_BYTES,
        Format::Q4K => NIBBLE_BYTES,
        Format::Q5K => NIBBLE_BYTES + BIT_BYTES,
        _ => NIBBLE_BYTES + TWO_BIT_BYTES,
    }
}

fn panel_bytes(format: Format, k: usize) -> Option<usize> {
    (k / format.block_elements()).checked_mul(unit_bytes(format))
}

/// Copies 16-bit value at `from` of `block` to lane `column` of the 16 at `to`.
fn copy_half(block: &[u8], from: usize, out: &mut [u8], to: usize, column: usize) {
    out[to + 2 * column..][..2].copy_from_slice(&block[from..from + 2]);
}

/// Byte and shift of the nibble of `depth` (0..32) of lane `column` in 256 bytes of nibbles.
fn nibble_place(column: usize, depth: usize) -> (usize, u32) {
    (
        depth % 16 / 4 * 64 + column * 4 + depth % 4,
        if depth < 16 { 0 } else { 4 },
    )
}

/// Byte and shift of two bits, in 128 bytes.
fn two_bit_place(column: usize, depth: usize) -> (usize, u32) {
    let group = depth / 4;
    (
        group / 4 * 64 + column * 4 + depth % 4,
        2 * (group as u32 % 4),
    )
}

/// Byte and shift of one bit, in 64 bytes.
fn bit_place(column: usize, depth: usize) -> (usize, u32) {
    (column * 4 + depth % 4, depth as u32 / 4)
}

/// Where a value's parts lie in a group's bytes: how many low bits, in which kind of field, and where the rest is.
fn put(format: Format, out: &mut [u8], column: usize, depth: usize, quant: u8) {
    let (nibble, two, bit) = (
        nibble_place(column, depth),
        two_bit_place(column, depth),
        bit_place(column, depth),
    );
    match format {
        Format::Q2K | Format::Q3K => {
            out[two.0] |= (quant & 3) << two.1;
            if format == Format::Q3K {
                out[TWO_BIT_BYTES + bit.0] |= (quant >> 2) << bit.1;
            }
        }
        Format::Q6K => {
            out[nibble.0] |= (quant & 15) << nibble.1;
            out[NIBBLE_BYTES + two.0] |= (quant >> 4) << two.1;
        }
        Format::Q5_0 | Format::Q5_1 | Format::Q5K => {
            out[nibble.0] |= (quant & 15) << nibble.1;
            out[NIBBLE_BYTES + bit.0] |= (quant >> 4) << bit.1;
        }
        _ => out[nibble.0] |= quant << nibble.1,
    }
}

/// The inverse of [`put`].
fn take(format: Format, bytes: &[u8], column: usize, depth: usize) -> u8 {
    let field = |(at, shift): (usize, u32), mask: u8| bytes[at] >> shift & mask;
    let after = |first: usize, (at, shift): (usize, u32)| (first + at, shift);
    let (nibble, two, bit) = (
        nibble_place(column, depth),
        two_bit_place(column, depth),
        bit_place(column, depth),
    );
    match format {
        Format::Q2K => field(two, 3),
        Format::Q3K => field(two, 3) | field(after(TWO_BIT_BYTES, bit), 1) << 2,
        Format::Q6K => field(nibble, 15) | field(after(NIBBLE_BYTES, two), 3) << 4,
        Format::Q5_0 | Format::Q5_1 | Format::Q5K => {
            field(nibble, 15) | field(after(NIBBLE_BYTES, bit), 1) << 4
        }
        _ => field(nibble, 15),
    }
}

fn pack_column(format: Format, row: &[u8], column: usize, panel: &mut [u8]) {
    let blocks = row.chunks_exact(format.block_bytes());
    for (block, out) in blocks.zip(panel.chunks_exact_mut(unit_bytes(format))) {
        match format {
            Format::F32 => out[column * 4..][..4].copy_from_slice(block),
            Format::F16 | Format::Bf16 => out[column * 2..][..2].copy_from_slice(block),
            Format::Q8_0 => {
                copy_half(block, 0, out, BYTE_BYTES, column);
                for (group, quad) in block[2..].chunks_exact(4).enumerate() {
                    // Flipping the top bit adds 128: the instruction wants unsigned weights.
                    out[group * 64 + column * 4..][..4].copy_from_slice(&[
                        quad[0] ^ 0x80,
                        quad[1] ^ 0x80,
                        quad[2] ^ 0x80,
                        quad[3] ^ 0x80,
                    ]);
                }
            }
            Format::Q4_0 | Format::Q4_1 | Format::Iq4Nl | Format::Q5_0 | Format::Q5_1 => {
                pack_nibble_block(format, block, column, out);
            }
            _ => pack_super_block(format, block, column, out),
        }
    }
}

/// The file's bytes already pair depth `i` with depth `16 + i`, as the panel wants them.
fn pack_nibble_block(format: Format, block: &[u8], column: usize, out: &mut [u8]) {
    let (head, quants) = block.split_at(block.len() - 16);
    let (nibbles, rest) = out.split_at_mut(NIBBLE_BYTES);
    for (group, quad) in quants.chunks_exact(4).enumerate() {
        nibbles[group * 64 + column * 4..][..4].copy_from_slice(quad);
    }
    let halves = format.half_fields();
    let bits = &head[2 * halves.len()..];
    for depth in 0..8 * bits.len() {
        let (at, shift) = bit_place(column, depth);
        rest[at] |= (bits[depth / 8] >> (depth % 8) & 1) << shift;
    }
    let scales = if bits.is_empty() { 0 } else { BIT_BYTES };
    for (i, &from) in halves.iter().enumerate() {
        copy_half(block, from, rest, scales + i * HALVES, column);
    }
}

fn pack_super_block(format: Format, block: &[u8], column: usize, out: &mut [u8]) {
    let halves = format.half_fields();
    for (i, &from) in halves.iter().enumerate() {
        copy_half(block, from, out, i * HALVES, column);
    }
    let quant: fn(&[u8], usize) -> u8 = match format {
        Format::Q2K => |block, i| two_bits(&block[16..80], i),
        Format::Q3K => q3k_quant,
        Format::Q4K => q4k_quant,
        Format::Q5K => q5k_quant,
        _ => q6k_quant,
    };
    let groups = out[halves.len() * HALVES..].chunks_exact_mut(group_bytes(format));
    for (group, out) in groups.enumerate() {
        for depth in 0..BLOCK {
            put(
                format,
                out,
                column,
                depth,
                quant(block, group * BLOCK + depth),
            );
        }
        let [first, second] = group_pair(format, block, group);
        let pair = out.len() - PAIR;
        (out[pair + column], out[pair + LANES + column]) = (first, second);
    }
}

/// The two bytes a column that follow a group's values: scale and minimum, or the scales of its halves.
fn group_pair(format: Format, block: &[u8], group: usize) -> [u8; 2] {
    match format {
        Format::Q2K => [block[2 * group], block[2 * group + 1]],
        Format::Q3K => [2 * group, 2 * group + 1].map(|j| q3k_scale(block, j) as u8),
        Format::Q4K | Format::Q5K => q4k_scale_and_min(&block[4..16], group).into(),
        _ => [block[192 + 2 * group], block[192 + 2 * group + 1]],
    }
}

fn unpack_column(format: Format, panel: &[u8], column: usize, out: &mut [f32]) {
    let blocks = panel.chunks_exact(unit_bytes(format));
    for (block, out) in blocks.zip(out.chunks_exact_mut(format.block_elements())) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = unpack(format, block, column, i);
        }
    }
}

/// Element `i` of column `column` of a block for 16 columns.
fn unpack(format: Format, block: &[u8], column: usize, i: usize) -> f32 {
    let lane = |at: usize| half_at(block, at + 2 * column);
    // Simple blocks end in their scales, or their scales and minimums.
    let last = block.len() - HALVES;
    let halves = format.half_fields().len() * HALVES;
    match format {
        Format::F32 => f32::from_le_bytes(std::array::from_fn(|b| block[4 * column + b])),
        Format::F16 => lane(0),
        Format::Bf16 => {
            half::bf16::from_le_bytes([block[2 * column], block[2 * column + 1]]).to_f32()
        }
        Format::Q8_0 => {
            let quant = (block[i / 4 * 64 + column * 4 + i % 4] ^ 0x80) as i8;
            lane(last) * f32::from(quant)
        }
        Format::Q4_0 => lane(last) * (f32::from(take(format, block, column, i)) - 8.0),
        Format::Q5_0 => lane(last) * (f32::from(take(format, block, column, i)) - 16.0),
        Format::Q4_1 | Format::Q5_1 => {
            lane(last - HALVES) * f32::from(take(format, block, column, i)) + lane(last)
        }
        Format::Iq4Nl => {
            lane(last) * f32::from(IQ4NL_LEVELS[usize::from(take(format, block, column, i))])
        }
        _ => {
            let bytes = group_bytes(format);
            let group = &block[halves + i / BLOCK * bytes..][..bytes];
            let quant = f32::from(take(format, group, column, i % BLOCK));
            let pair = |at: usize| group[bytes - PAIR + at * LANES + column];
            let half = i % BLOCK / 16;
            match format {
                Format::Q2K => {
                    let (scale, min) = (pair(half) & 15, pair(half) >> 4);
                    lane(0) * f32::from(scale) * quant - lane(HALVES) * f32::from(min)
                }
                Format::Q4K | Format::Q5K => {
                    lane(0) * f32::from(pair(0)) * quant - lane(HALVES) * f32::from(pair(1))
                }
                Format::Q3K => lane(0) * f32::from(pair(half) as i8) * (quant - 4.0),
                _ => lane(0) * f32::from(pair(half) as i8) * (quant - 32.0),
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::format::dequantise;
    use proptest::prelude::*;

    /// Bytes of `blocks` blocks that mean moderate numbers, from a seed.
    pub(crate) fn random_blocks(format: Format, blocks: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u32
        };
        let mut unit = move || f32::from((next() & 0xffff) as u16) / 32768.0 - 1.0;
        let mut out = Vec::with_capacity(blocks * format.block_bytes());
        for _ in 0..blocks {
            let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
            let mut block: Vec<u8> = (0..format.block_bytes())
                .map(|_| (unit() * 128.0) as i32 as u8)
                .collect();
            match format {
                Format::F32 => block.copy_from_slice(&unit().to_le_bytes()),
                Format::F16 => block.copy_from_slice(&half(unit())),
                Format::Bf16 => block.copy_from_slice(&half::bf16::from_f32(unit()).to_le_bytes()),
                Format::Q8_0 | Format::Iq4Nl => {
                    block[..2].copy_from_slice(&half(unit() / 64.0));
                }
                Format::Q4_0 => block[..2].copy_from_slice(&half(unit() / 4.0)),
                Format::Q4_1 => {
                    block[..2].copy_from_slice(&half(unit() / 8.0));
                    block[2..4].copy_from_slice(&half(unit()));
                }
                Format::Q5_0 => block[..2].copy_from_slice(&half(unit() / 8.0)),
                Format::Q5_1 => {
                    block[..2].copy_from_slice(&half(unit() / 16.0));
                    block[2..4].copy_from_slice(&half(unit()));
                }
                Format::Q2K => {
                    block[80..82].copy_from_slice(&half(unit() / 16.0));
                    block[82..].copy_from_slice(&half(unit() / 16.0));
                }
                Format::Q3K => block[108..].copy_from_slice(&half(unit() / 64.0)),
                Format::Q4K | Format::Q5K => {
                    block[..2].copy_from_slice(&half(unit() / 256.0));
                    block[2..4].copy_from_slice(&half(unit() / 64.0));
                }
                Format::Q6K => block[208..].copy_from_slice(&half(unit() / 2048.0)),
            }
            out.extend(block);
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn packing_keeps_every_weight(
            format in prop::sample::select(Format::ALL.to_vec()), n in 1usize..40, units in 1usize..4, seed: u64
        ) {
            let k = units * format.block_elements();
            let bytes = random_blocks(format, n * units, seed);
            let packed = PackedMatrix::pack(&ThreadPool::new(2).unwrap(), format, n, k, &bytes).unwrap();
            prop_assert_eq!(Some(packed.bytes()), PackedMatrix::packed_bytes(format, n, k));
            let mut truth = vec![0.0; n * k];
            dequantise(format, &bytes, &mut truth);
            let mut row = vec![0.0; k];
            for (i, truth) in truth.chunks(k).enumerate() {
                packed.row(i, &mut row);
                prop_assert_eq!(&row, truth);
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_and_non_finite_weights_are_refused() {
        let pool = ThreadPool::new(1).unwrap();
        let pack =
            |n, k, bytes: &[u8]| PackedMatrix::pack(&pool, Format::Q8_0, n, k, bytes).map(|_| ());
        assert_eq!(
            pack(1, 33, &[0; 34]),
            Err(PackError::Depth {
                k: 33,
                format: "Q8_0",
                block: 32
            })
        );
        assert!(matches!(
            pack(2, 32, &[0; 34]),
            Err(PackError::Length {
                expected: 68,
                found: 34,
                ..
            })
        ));
        let mut bytes = [0; 68];
        bytes[35] = 0x7e;
        assert_eq!(pack(2, 32, &bytes), Err(PackError::NonFinite { row: 1 }));
        assert_eq!(
            PackedMatrix::packed_bytes(Format::F32, usize::MAX, usize::MAX / 2),
            None
        );
    }
}
