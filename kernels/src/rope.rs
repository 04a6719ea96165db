//! Rotary position embedding over adjacent pairs, fused with the storing of keys and values.

use crate::attention::{AttentionShape, Segment};
use crate::buffer::SharedMut;
use crate::cpu::{Cpu, Kernel};
use crate::kv::{KvCache, KvWriter};
use crate::math::{load_partial, store_partial};
use crate::pool::ThreadPool;
use crate::simd::{LANES, Simd};

/// Cosines and sines for the tokens of a step. Angles are computed in double precision.
#[derive(Debug)]
pub struct RopeTable {
    frequencies: Vec<f64>,
    /// For each token `dims` cosines (each twice, as pairs share one), then `dims` sines, negative for the even lane.
    rows: Vec<f32>,
}

impl RopeTable {
    /// A table for `dims` rotated values a head (even): pair `i` turns by `base^(-2i / dims) / factors[i]` a position.
    /// Empty `factors` count as ones.
    ///
    /// # Panics
    /// When `dims` is odd or `factors` are neither empty nor `dims / 2`.
    pub fn new(dims: usize, base: f32, factors: &[f32]) -> Self {
        assert!(
            dims.is_multiple_of(2) && (factors.is_empty() || factors.len() == dims / 2),
            "a factor a pair"
        );
        let frequency = |i: usize| {
            let factor = factors.get(i).map_or(1.0, |&f| f64::from(f));
            f64::from(base).powf(-2.0 * i as f64 / dims as f64) / factor
        };
        Self {
            frequencies: (0..dims / 2).map(frequency).collect(),
            rows: Vec::new(),
        }
    }

    /// Rotated values of a head.
    pub fn dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Computes the rows of tokens at `positions`, in order.
    pub fn fill(&mut self, positions: impl Iterator<Item = usize>) {
        self.rows.clear();
        for position in positions {
            let angles = || {
                self.frequencies
                    .iter()
                    .map(|f| (position as f64 * f).sin_cos())
            };
            self.rows
                .extend(angles().flat_map(|(_, cos)| [cos as f32; 2]));
            self.rows
                .extend(angles().flat_map(|(sin, _)| [-sin as f32, sin as f32]));
        }
    }
}

struct Token<'a> {
    row: *mut f32,
    cos_sin: &'a [f32],
    shape: AttentionShape,
    writer: KvWriter<'a>,
    place: (u32, usize),
}

impl Token<'_> {
    /// Lanes `at..` of the head at `x`, turned where they are to be.
    #[inline(always)]
    unsafe fn turned<S: Simd>(&self, x: *const f32, at: usize) -> S::F {
        let (dims, head_dim) = (self.cos_sin.len() / 2, self.shape.head_dim);
        // SAFETY: `at` is below the head's length; partial loads stay within the head and the table's row.
        unsafe {
            let lanes = load_partial::<S>(x.add(at), head_dim - at);
            if at >= dims {
                return lanes;
            }
            let (mut cos, mut sin) = ([1.0; LANES], [0.0; LANES]);
            let turned = (dims - at).min(LANES);
            std::ptr::copy_nonoverlapping(self.cos_sin.as_ptr().add(at), cos.as_mut_ptr(), turned);
            std::ptr::copy_nonoverlapping(
                self.cos_sin.as_ptr().add(dims + at),
                sin.as_mut_ptr(),
                turned,
            );
            let (cos, sin) = if turned == LANES {
                (
                    S::load(self.cos_sin.as_ptr().add(at)),
                    S::load(self.cos_sin.as_ptr().add(dims + at)),
                )
            } else {
                (S::load(cos.as_ptr()), S::load(sin.as_ptr()))
            };
            S::fma(lanes, cos, S::mul(S::swap_pairs(lanes), sin))
        }
    }
}

impl Kernel for Token<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
        } = self.shape;
        // SAFETY: the row holds `heads + 2 * kv_heads` heads and belongs to this thread.
        unsafe {
            let scale = S::splat(1.0 / (head_dim as f32).sqrt());
            for head in 0..heads {
                let q = self.row.add(head * head_dim);
                for at in (0..head_dim).step_by(LANES) {
                    let turned = S::mul(self.turned::<S>(q, at), scale);
                    store_partial::<S>(q.add(at), turned, head_dim - at);
                }
            }
            for kv_head in 0..kv_heads {
                let k = self.row.add((heads + kv_head) * head_dim);
                let v = self.row.add((heads + kv_heads + kv_head) * head_dim);
                for at in (0..head_dim).step_by(LANES) {
                    let (key, value) = (
                        self.turned::<S>(k, at),
                        load_partial::<S>(v.add(at), head_dim - at),
                    );
                    self.writer.store::<S>(self.place, kv_head, at, key, value);
                }
            }
        }
    }
}

/// Turns the queries of every row of `qkv` in place, scaling them by `1 / sqrt(head_dim)`, and stores the turned keys and
/// the values of layer `layer` in `cache`. A row is queries, keys and values, head by head; rows are the tokens of
/// `segments` in order, and `table` was filled with their positions.
///
/// # Panics
/// When shapes do not fit.
pub fn rope_and_store(
    cpu: Cpu,
    pool: &ThreadPool,
    table: &RopeTable,
    shape: AttentionShape,
    segments: &[Segment<'_>],
    qkv: &mut [f32],
    cache: &mut KvCache,
    layer: usize,
) {
    cache.assert_holds(layer, segments);
    shape.assert_fits(cache.shape());
    let rows: usize = segments.iter().map(Segment::count).sum();
    let (width, table_width) = (shape.row_width(), 2 * table.dims());
    assert!(
        table.dims() <= shape.head_dim,
        "no more values are turned than a head has"
    );
    assert_eq!(
        (qkv.len(), table.rows.len()),
        (rows * width, rows * table_width),
        "a row a token"
    );
    let places: Vec<(u32, usize)> = segments.iter().flat_map(Segment::places).collect();
    let (qkv, writer) = (SharedMut::new(qkv), cache.writer(layer));
    pool.split(rows, 8, |range| {
        for row in range {
            // SAFETY: rows of this range belong to this thread.
            let qkv = unsafe { qkv.at(row * width) };
            let cos_sin = &table.rows[row * table_width..][..table_width];
            cpu.execute(Token {
                row: qkv,
                cos_sin,
                shape,
                writer,
                place: places[row],
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvShape;

    #[test]
    fn pairs_turn_by_position_times_frequency_and_factors_slow_them() {
        let mut table = RopeTable::new(4, 100.0, &[1.0, 8.0]);
        table.fill([3].into_iter());
        let angles = [3.0f64, 3.0 * 0.1 / 8.0];
        for (i, angle) in angles.iter().enumerate() {
            assert!((f64::from(table.rows[2 * i]) - angle.cos()).abs() < 1e-7);
            assert!((f64::from(table.rows[4 + 2 * i]) + angle.sin()).abs() < 1e-7);
            assert!((f64::from(table.rows[4 + 2 * i + 1]) - angle.sin()).abs() < 1e-7);
        }
    }

    #[test]
    fn queries_turn_in_place_and_keys_and_values_land_in_their_slot_on_every_path() {
        let shape = AttentionShape {
            heads: 2,
            kv_heads: 1,
            head_dim: 20,
        };
        let mut seen: Vec<Vec<u32>> = Vec::new();
        for cpu in Cpu::available() {
            let mut cache = KvCache::new(KvShape {
                layers: 2,
                blocks: 3,
                kv_heads: 1,
                head_dim: 20,
            });
            let segment = Segment::new(&[2, 1], 17, 1, 3).unwrap();
            let mut table = RopeTable::new(18, 1e4, &[]);
            table.fill([17].into_iter());
            let mut qkv: Vec<f32> = (0..80).map(|i| (i as f32).cos()).collect();
            let original = qkv.clone();
            let pool = ThreadPool::new(1).unwrap();
            rope_and_store(
                cpu,
                &pool,
                &table,
                shape,
                &[segment],
                &mut qkv,
                &mut cache,
                1,
            );
            let turned = |x: &[f32], i: usize| {
                let angle = 17.0 * 1e4f64.powf(-((i / 2 * 2) as f64) / 18.0);
                let (sin, cos) = if i < 18 { angle.sin_cos() } else { (0.0, 1.0) };
                let other = f64::from(x[i ^ 1]) * if i.is_multiple_of(2) { -sin } else { sin };
                f64::from(x[i]) * cos + other
            };
            for i in 0..20 {
                for head in 0..2 {
                    let truth = turned(&original[head * 20..], i) / 20f64.sqrt();
                    assert!((f64::from(qkv[head * 20 + i]) - truth).abs() < 1e-6);
                }
                // SAFETY: layer 1, block 1, head 0 exist; slot 1 of depth or row `i` lies within them.
                let (key, value) = unsafe {
                    (
                        *cache.keys(1, 1, 0).add(i * 16 + 1),
                        *cache.values(1, 1, 0).add(32 + i),
                    )
                };
                let (key, value) = (
                    half::f16::from_bits(key).to_f64(),
                    half::f16::from_bits(value).to_f32(),
                );
                assert!((key - turned(&original[40..], i)).abs() < 1e-3);
                assert_eq!(value, half::f16::from_f32(original[60 + i]).to_f32());
            }
            seen.push(qkv.iter().map(|x| x.to_bits()).collect());
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
