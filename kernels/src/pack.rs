//! Weights repacked at load into panels of 16 output columns, in the order kernels read them and at the file's bits a weight.
//!
//! A panel holds, block after block of 32 deep, the quantised values in groups of four depths (the four bytes one
//! multiply-add instruction takes a lane) followed by the 16 scales; `README.md` draws it.

use crate::activation::BLOCK;
use crate::buffer::AlignedBuffer;
use crate::format::{Format, first_non_finite, half_at, q4k_quant, q4k_scale_and_min, q6k_quant};
use crate::pool::ThreadPool;
use crate::simd::LANES;

/// Output columns of a panel.
pub const PANEL_COLUMNS: usize = LANES;

/// Blocks of 32 in a 256-weight block.
pub(crate) const GROUPS: usize = 8;
/// Bytes of 16 columns by 32 deep of nibbles, and of bytes.
pub(crate) const NIBBLE_BYTES: usize = 256;
pub(crate) const BYTE_BYTES: usize = 512;
/// Bytes of 16 half-precision numbers.
pub(crate) const HALVES: usize = 2 * LANES;
/// Bytes of one group of a Q4_K panel (nibbles, scales, minimums) and of a Q6_K panel (nibbles, high bits, two scales).
pub(crate) const Q4K_GROUP: usize = NIBBLE_BYTES + 2 * LANES;
pub(crate) const Q6K_GROUP: usize = NIBBLE_BYTES + 128 + 2 * LANES;

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

fn panel_bytes(format: Format, k: usize) -> Option<usize> {
    let bytes_a_unit = match format {
        Format::F32 => 4 * LANES,
        Format::F16 | Format::Bf16 => HALVES,
        Format::Q8_0 => BYTE_BYTES + HALVES,
        Format::Q4_0 => NIBBLE_BYTES + HALVES,
        Format::Q4_1 => NIBBLE_BYTES + 2 * HALVES,
        Format::Q4K => 2 * HALVES + GROUPS * Q4K_GROUP,
        Format::Q6K => HALVES + GROUPS * Q6K_GROUP,
    };
    (k / format.block_elements()).checked_mul(bytes_a_unit)
}

/// Copies 16-bit value at `from` of `block` to lane `column` of the 16 at `to`.
fn copy_half(block: &[u8], from: usize, out: &mut [u8], to: usize, column: usize) {
    out[to + 2 * column..][..2].copy_from_slice(&block[from..from + 2]);
}

/// Byte of depth group `group` (0..8), lane `column`, and the shift of its nibble, in a block of nibbles.
fn nibble_place(column: usize, depth: usize) -> (usize, u32) {
    (
        depth % 16 / 4 * 64 + column * 4 + depth % 4,
        if depth < 16 { 0 } else { 4 },
    )
}

fn pack_column(format: Format, row: &[u8], column: usize, panel: &mut [u8]) {
    for (b, block) in row.chunks_exact(format.block_bytes()).enumerate() {
        match format {
            Format::F32 => panel[(b * LANES + column) * 4..][..4].copy_from_slice(block),
            Format::F16 | Format::Bf16 => {
                panel[(b * LANES + column) * 2..][..2].copy_from_slice(block);
            }
            Format::Q8_0 => {
                let out = &mut panel[b * (BYTE_BYTES + HALVES)..][..BYTE_BYTES + HALVES];
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
            Format::Q4_0 | Format::Q4_1 => pack_nibble_block(format, block, column, panel, b),
            Format::Q4K => pack_q4k(
                block,
                column,
                &mut panel[b * (2 * HALVES + GROUPS * Q4K_GROUP)..],
            ),
            Format::Q6K => pack_q6k(
                block,
                column,
                &mut panel[b * (HALVES + GROUPS * Q6K_GROUP)..],
            ),
        }
    }
}

/// The file's bytes already pair depth `i` with depth `16 + i`, as the panel wants them.
fn pack_nibble_block(format: Format, block: &[u8], column: usize, panel: &mut [u8], b: usize) {
    let halves = block.len() - 16;
    let out = &mut panel[b * (NIBBLE_BYTES + halves * LANES)..];
    for half in (0..halves).step_by(2) {
        copy_half(block, half, out, NIBBLE_BYTES + half * LANES, column);
    }
    debug_assert_eq!(halves, if format == Format::Q4_1 { 4 } else { 2 });
    for (group, quad) in block[halves..].chunks_exact(4).enumerate() {
        out[group * 64 + column * 4..][..4].copy_from_slice(quad);
    }
}

fn pack_q4k(block: &[u8], column: usize, out: &mut [u8]) {
    copy_half(block, 0, out, 0, column);
    copy_half(block, 2, out, HALVES, column);
    for group in 0..GROUPS {
        let out = &mut out[2 * HALVES + group * Q4K_GROUP..][..Q4K_GROUP];
        for depth in 0..BLOCK {
            let (at, shift) = nibble_place(column, depth);
            out[at] |= q4k_quant(block, group * BLOCK + depth) << shift;
        }
        let (scale, min) = q4k_scale_and_min(&block[4..16], group);
        out[NIBBLE_BYTES + column] = scale;
        out[NIBBLE_BYTES + LANES + column] = min;
    }
}

fn pack_q6k(block: &[u8], column: usize, out: &mut [u8]) {
    copy_half(block, 208, out, 0, column);
    for group in 0..GROUPS {
        let out = &mut out[HALVES + group * Q6K_GROUP..][..Q6K_GROUP];
        for depth in 0..BLOCK {
            let quant = q6k_quant(block, group * BLOCK + depth);
            let (at, shift) = nibble_place(column, depth);
            out[at] |= (quant & 15) << shift;
            let (at, shift) = high_place(column, depth);
            out[at] |= (quant >> 4) << shift;
        }
        for half in 0..2 {
            out[NIBBLE_BYTES + 128 + half * LANES + column] = block[192 + group * 2 + half];
        }
    }
}

/// Byte and shift of the two high bits of `depth` in a group of a Q6_K panel.
fn high_place(column: usize, depth: usize) -> (usize, u32) {
    let group = depth / 4;
    (
        NIBBLE_BYTES + group / 4 * 64 + column * 4 + depth % 4,
        2 * (group as u32 % 4),
    )
}

fn unpack_column(format: Format, panel: &[u8], column: usize, out: &mut [f32]) {
    let lane = |bytes: &[u8], at: usize| half_at(bytes, at + 2 * column);
    let nibble = |bytes: &[u8], depth: usize| {
        let (at, shift) = nibble_place(column, depth);
        bytes[at] >> shift & 15
    };
    let unit = panel.len() / (out.len() / format.block_elements());
    for (block, out) in panel
        .chunks_exact(unit)
        .zip(out.chunks_exact_mut(format.block_elements()))
    {
        for (i, out) in out.iter_mut().enumerate() {
            *out = match format {
                Format::F32 => f32::from_le_bytes(std::array::from_fn(|b| block[4 * column + b])),
                Format::F16 => lane(block, 0),
                Format::Bf16 => {
                    half::bf16::from_le_bytes([block[2 * column], block[2 * column + 1]]).to_f32()
                }
                Format::Q8_0 => {
                    let quant = (block[i / 4 * 64 + column * 4 + i % 4] ^ 0x80) as i8;
                    lane(block, BYTE_BYTES) * f32::from(quant)
                }
                Format::Q4_0 => lane(block, NIBBLE_BYTES) * (f32::from(nibble(block, i)) - 8.0),
                Format::Q4_1 => {
                    lane(block, NIBBLE_BYTES) * f32::from(nibble(block, i))
                        + lane(block, NIBBLE_BYTES + HALVES)
                }
                Format::Q4K => {
                    let group = &block[2 * HALVES + i / BLOCK * Q4K_GROUP..];
                    let (scale, min) = (
                        group[NIBBLE_BYTES + column],
                        group[NIBBLE_BYTES + LANES + column],
                    );
                    lane(block, 0) * f32::from(scale) * f32::from(nibble(group, i % BLOCK))
                        - lane(block, HALVES) * f32::from(min)
                }
                Format::Q6K => {
                    let group = &block[HALVES + i / BLOCK * Q6K_GROUP..];
                    let scale = group[NIBBLE_BYTES + 128 + i % BLOCK / 16 * LANES + column] as i8;
                    let (at, shift) = high_place(column, i % BLOCK);
                    let quant = nibble(group, i % BLOCK) | (group[at] >> shift & 3) << 4;
                    lane(block, 0) * f32::from(scale) * (f32::from(quant) - 32.0)
                }
            };
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
                Format::Q8_0 => block[..2].copy_from_slice(&half(unit() / 64.0)),
                Format::Q4_0 => block[..2].copy_from_slice(&half(unit() / 4.0)),
                Format::Q4_1 => {
                    block[..2].copy_from_slice(&half(unit() / 8.0));
                    block[2..4].copy_from_slice(&half(unit()));
                }
                Format::Q4K => {
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
