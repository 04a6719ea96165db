//! Keys and values of past tokens, in blocks of 16 tokens behind block tables.
//!
//! Within a block and head keys lie depth by depth (16 tokens side by side: one vector), values token by token. Numbers are half
//! precision, or bytes in groups of 32 with a scale each, which takes 17 bits for every 32: 53 % of half precision where heads
//! are whole groups. What is too large is stored as the largest number.
//!
//! ```text
//! keys of a head    F16  [head_dim][16 tokens] f16
//!                   Int8 [head_dim][16 tokens] i8, then [groups][16 tokens] scales f16
//! values of a head  F16  [16 tokens][padded_dim] f16
//!                   Int8 [16 tokens][padded_dim] i8, then [16 tokens][groups] scales f16
//! ```

use std::sync::atomic::{AtomicI8, AtomicU16, Ordering};

use crate::attention::Segment;
use crate::buffer::AlignedBuffer;
use crate::math::load_partial;
use crate::simd::{LANES, Simd};

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = LANES;
/// Values of a head that share a scale.
pub(crate) const KV_GROUP: usize = 32;

const LARGEST_HALF: f32 = 65504.0;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// Half precision.
    #[default]
    F16,
    /// Signed bytes; 32 of a head's values share a half-precision scale, their largest magnitude over 127 rounded up. Each
    /// is stored within half its scale.
    Int8Group32,
}

impl KvElement {
    /// The name of options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Int8Group32 => "int8",
        }
    }
}

/// Extents of a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers, each with its own keys and values in every block.
    pub layers: usize,
    /// Blocks in the pool.
    pub blocks: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values of one head's key.
    pub head_dim: usize,
    /// How they are stored.
    pub element: KvElement,
}

impl KvShape {
    /// Values of a stored head, a whole number of vectors.
    pub(crate) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    fn groups(&self) -> usize {
        self.head_dim.div_ceil(KV_GROUP)
    }

    /// Bytes of a block's `values` numbers a token and head, with their scales.
    fn head_bytes(&self, values: usize) -> usize {
        match self.element {
            KvElement::F16 => values * BLOCK_TOKENS * 2,
            KvElement::Int8Group32 => (values + 2 * self.groups()) * BLOCK_TOKENS,
        }
    }

    /// Bytes of one head's keys in a block.
    pub(crate) fn key_head_bytes(&self) -> usize {
        self.head_bytes(self.head_dim)
    }

    /// Bytes of one head's values in a block.
    pub(crate) fn value_head_bytes(&self) -> usize {
        self.head_bytes(self.padded_dim())
    }

    fn key_bytes(&self) -> usize {
        self.kv_heads * self.key_head_bytes()
    }

    fn value_bytes(&self) -> usize {
        self.kv_heads * self.value_head_bytes()
    }

    /// Bytes one block takes over all layers; `None` where that overflows.
    pub fn block_bytes(&self) -> Option<usize> {
        let padded = self.head_dim.checked_next_multiple_of(LANES)?;
        let values = self.head_dim.checked_add(padded)?;
        let bytes_a_token = match self.element {
            KvElement::F16 => values.checked_mul(2)?,
            KvElement::Int8Group32 => values.checked_add(4 * self.groups())?,
        };
        bytes_a_token
            .checked_mul(self.kv_heads)?
            .checked_mul(BLOCK_TOKENS)?
            .checked_mul(self.layers)
    }
}

/// The store. Memory is taken from the system as blocks are first written.
#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    keys: AlignedBuffer<u8>,
    values: AlignedBuffer<u8>,
}

impl KvCache {
    /// A store of zeros.
    ///
    /// # Panics
    /// When the shape's bytes overflow or an extent is zero; see [`KvShape::block_bytes`].
    pub fn new(shape: KvShape) -> Self {
        let bytes = shape
            .block_bytes()
            .and_then(|bytes| bytes.checked_mul(shape.blocks));
        assert!(
            bytes.is_some_and(|bytes| bytes > 0),
            "a key and value store has a size"
        );
        let all = shape.layers * shape.blocks;
        let keys = AlignedBuffer::zeroed(all * shape.key_bytes());
        Self {
            shape,
            keys,
            values: AlignedBuffer::zeroed(all * shape.value_bytes()),
        }
    }

    /// The extents.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Fills the store with NaN: what no test may ever see in a result.
    pub fn poison(&mut self) {
        // 0x7e7e is a NaN in half precision, and so a scale.
        self.keys.fill(0x7e);
        self.values.fill(0x7e);
    }

    /// Copies block `from` over block `to` in every layer.
    ///
    /// # Panics
    /// When either lies outside the pool.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize, to as usize);
        assert!(
            from < self.shape.blocks && to < self.shape.blocks,
            "blocks {from} and {to} lie within the pool"
        );
        for layer in 0..self.shape.layers {
            let first = layer * self.shape.blocks;
            let keys = self.shape.key_bytes();
            self.keys.copy_within(
                (first + from) * keys..(first + from + 1) * keys,
                (first + to) * keys,
            );
            let values = self.shape.value_bytes();
            self.values.copy_within(
                (first + from) * values..(first + from + 1) * values,
                (first + to) * values,
            );
        }
    }

    pub(crate) fn assert_holds(&self, layer: usize, segments: &[Segment<'_>]) {
        assert!(
            layer < self.shape.layers,
            "layer {layer} of {}",
            self.shape.layers
        );
        let fits = segments
            .iter()
            .all(|s| s.pool_blocks() <= self.shape.blocks);
        assert!(
            fits,
            "segments were checked against a pool no larger than this"
        );
    }

    /// Keys of one head in a block, in the layout of the module's head.
    #[inline(always)]
    pub(crate) fn keys(&self, layer: usize, block: u32, kv_head: usize) -> *const u8 {
        let at = (layer * self.shape.blocks + block as usize) * self.shape.key_bytes();
        self.keys[at + kv_head * self.shape.key_head_bytes()..].as_ptr()
    }

    /// Values of one head in a block, likewise.
    #[inline(always)]
    pub(crate) fn values(&self, layer: usize, block: u32, kv_head: usize) -> *const u8 {
        let at = (layer * self.shape.blocks + block as usize) * self.shape.value_bytes();
        self.values[at + kv_head * self.shape.value_head_bytes()..].as_ptr()
    }

    /// A handle through which threads write tokens at once.
    pub(crate) fn writer(&mut self, layer: usize) -> KvWriter<'_> {
        let shape = self.shape;
        let first = layer * shape.blocks;
        let (key_bytes, value_bytes) = (shape.key_bytes(), shape.value_bytes());
        KvWriter {
            shape,
            keys: Shared::new(&mut self.keys[first * key_bytes..][..shape.blocks * key_bytes]),
            values: Shared::new(
                &mut self.values[first * value_bytes..][..shape.blocks * value_bytes],
            ),
        }
    }
}

/// Bytes that several threads write. Elements are relaxed atomics (plain stores in machine code), so that two rows naming the
/// same slot are a wrong result and not undefined behaviour; any one place is always written in the same width.
#[derive(Clone, Copy)]
struct Shared<'a>(&'a [AtomicI8]);

impl<'a> Shared<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        // SAFETY: `AtomicI8` has the layout of `u8`, and the exclusive borrow becomes the only way to the memory.
        Self(unsafe { &*(std::ptr::from_mut(bytes) as *const [AtomicI8]) })
    }

    #[inline(always)]
    fn byte(self, at: usize, value: i8) {
        self.0[at].store(value, Ordering::Relaxed);
    }

    /// The half at byte `at`, an even number.
    #[inline(always)]
    fn half(self, at: usize, value: u16) {
        let bytes = &self.0[at..at + 2];
        // SAFETY: two bytes within the slice, which starts on an even address (a buffer's start plus whole layers, all even).
        let half = unsafe { AtomicU16::from_ptr(bytes.as_ptr().cast::<u16>().cast_mut()) };
        half.store(value, Ordering::Relaxed);
    }
}

/// One layer of the store, writable by several threads.
#[derive(Clone, Copy)]
pub(crate) struct KvWriter<'a> {
    shape: KvShape,
    keys: Shared<'a>,
    values: Shared<'a>,
}

impl KvWriter<'_> {
    /// Stores one token's key and value of one head.
    ///
    /// # Safety
    /// `key` and `value` point at `head_dim` values each, and the instruction set is there.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd>(
        self,
        (block, slot): (u32, usize),
        kv_head: usize,
        key: *const f32,
        value: *const f32,
    ) {
        let shape = self.shape;
        let keys = block as usize * shape.key_bytes() + kv_head * shape.key_head_bytes();
        let values = block as usize * shape.value_bytes() + kv_head * shape.value_head_bytes();
        // SAFETY: as the caller promises.
        unsafe {
            match shape.element {
                KvElement::F16 => self.store_halves::<S>(keys, values, slot, key, value),
                KvElement::Int8Group32 => self.store_bytes::<S>(keys, values, slot, key, value),
            }
        }
    }

    #[inline(always)]
    unsafe fn store_halves<S: Simd>(
        self,
        keys: usize,
        values: usize,
        slot: usize,
        key: *const f32,
        value: *const f32,
    ) {
        let (dim, padded) = (self.shape.head_dim, self.shape.padded_dim());
        let mut lanes = [0u16; LANES];
        for first in (0..dim).step_by(LANES) {
            let count = (dim - first).min(LANES);
            // SAFETY: partial loads stay within the head; `lanes` holds a vector.
            unsafe {
                let key = load_partial::<S>(key.add(first), count);
                S::store_f16(lanes.as_mut_ptr(), bounded::<S>(key, LARGEST_HALF));
            }
            for (d, &lane) in lanes[..count].iter().enumerate() {
                self.keys
                    .half(keys + ((first + d) * BLOCK_TOKENS + slot) * 2, lane);
            }
            // SAFETY: as above.
            unsafe {
                let value = load_partial::<S>(value.add(first), count);
                S::store_f16(lanes.as_mut_ptr(), bounded::<S>(value, LARGEST_HALF));
            }
            for (d, &lane) in lanes.iter().enumerate() {
                self.values
                    .half(values + (slot * padded + first + d) * 2, lane);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_bytes<S: Simd>(
        self,
        keys: usize,
        values: usize,
        slot: usize,
        key: *const f32,
        value: *const f32,
    ) {
        let (dim, padded, groups) = (
            self.shape.head_dim,
            self.shape.padded_dim(),
            self.shape.groups(),
        );
        let (key_scales, value_scales) =
            (keys + dim * BLOCK_TOKENS, values + padded * BLOCK_TOKENS);
        for group in 0..groups {
            let first = group * KV_GROUP;
            let count = (dim - first).min(KV_GROUP);
            // SAFETY: `count` values from `first` on lie within the head.
            let (bytes, scale) = unsafe { quantise_group::<S>(key.add(first), count) };
            for (d, &byte) in bytes[..count].iter().enumerate() {
                self.keys
                    .byte(keys + (first + d) * BLOCK_TOKENS + slot, byte);
            }
            self.keys
                .half(key_scales + (group * BLOCK_TOKENS + slot) * 2, scale);
            // SAFETY: as above.
            let (bytes, scale) = unsafe { quantise_group::<S>(value.add(first), count) };
            for (d, &byte) in bytes[..(padded - first).min(KV_GROUP)].iter().enumerate() {
                self.values.byte(values + slot * padded + first + d, byte);
            }
            self.values
                .half(value_scales + (slot * groups + group) * 2, scale);
        }
    }
}

/// `count` (at most 32) values as bytes and the bits of their half-precision scale, zeros after.
#[inline(always)]
unsafe fn quantise_group<S: Simd>(x: *const f32, count: usize) -> ([i8; KV_GROUP], u16) {
    const LARGEST: f32 = LARGEST_HALF * 127.0;
    let (mut bytes, mut halves) = ([0i8; KV_GROUP], [0u16; LANES]);
    // SAFETY: partial loads stay within the values; arrays hold vectors.
    unsafe {
        let first = bounded::<S>(load_partial::<S>(x, count), LARGEST);
        let second = if count > LANES {
            bounded::<S>(load_partial::<S>(x.add(LANES), count - LANES), LARGEST)
        } else {
            S::splat(0.0)
        };
        let exact = S::largest(S::max(S::abs(first), S::abs(second))) / 127.0;
        S::store_f16(halves.as_mut_ptr(), S::splat(exact));
        let mut bits = halves[0];
        // Rounded up, so that no value is more than 127 scales.
        if S::largest(S::load_f16(halves.as_ptr())) < exact {
            bits += 1;
        }
        if bits > 0 {
            let scale = S::load_f16([bits; LANES].as_ptr());
            S::store_i8(bytes.as_mut_ptr(), S::round(S::div(first, scale)));
            S::store_i8(
                bytes.as_mut_ptr().add(LANES),
                S::round(S::div(second, scale)),
            );
        }
        (bytes, bits)
    }
}

/// Within `largest`; NaN becomes it.
#[inline(always)]
unsafe fn bounded<S: Simd>(x: S::F, largest: f32) -> S::F {
    // SAFETY: arithmetic only; the caller has the instruction set.
    unsafe { S::max(S::min(x, S::splat(largest)), S::splat(-largest)) }
}

#[cfg(test)]
#[path = "kv/tests.rs"]
mod tests;
