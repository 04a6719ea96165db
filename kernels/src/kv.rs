//! Keys and values of past tokens, in blocks of 16 tokens behind block tables.
//!
//! Numbers are half precision. Within a block and head keys lie depth by depth (16 tokens side by side: one vector), values
//! token by token. What is too large for half precision is stored as its largest number.

use std::sync::atomic::{AtomicU16, Ordering};

use crate::attention::Segment;
use crate::buffer::AlignedBuffer;
use crate::simd::{LANES, Simd};

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = LANES;

const LARGEST_HALF: f32 = 65504.0;

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
}

impl KvShape {
    /// Values of a stored head, a whole number of vectors.
    pub(crate) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    fn key_elements(&self) -> usize {
        self.kv_heads * self.head_dim * BLOCK_TOKENS
    }

    fn value_elements(&self) -> usize {
        self.kv_heads * self.padded_dim() * BLOCK_TOKENS
    }

    /// Bytes one block takes over all layers; `None` where that overflows.
    pub fn block_bytes(&self) -> Option<usize> {
        let dim = self
            .head_dim
            .checked_add(self.head_dim.checked_next_multiple_of(LANES)?)?;
        dim.checked_mul(self.kv_heads)?
            .checked_mul(BLOCK_TOKENS * 2)?
            .checked_mul(self.layers)
    }
}

/// The store. Memory is taken from the system as blocks are first written.
#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    keys: AlignedBuffer<u16>,
    values: AlignedBuffer<u16>,
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
        let keys = AlignedBuffer::zeroed(all * shape.key_elements());
        Self {
            shape,
            keys,
            values: AlignedBuffer::zeroed(all * shape.value_elements()),
        }
    }

    /// The extents.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Fills the store with NaN: what no test may ever see in a result.
    pub fn poison(&mut self) {
        self.keys.fill(0x7e00);
        self.values.fill(0x7e00);
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
            let keys = self.shape.key_elements();
            self.keys.copy_within(
                (first + from) * keys..(first + from + 1) * keys,
                (first + to) * keys,
            );
            let values = self.shape.value_elements();
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

    /// Keys of one head in a block: `[head_dim][16 tokens]`.
    #[inline(always)]
    pub(crate) fn keys(&self, layer: usize, block: u32, kv_head: usize) -> *const u16 {
        let at = (layer * self.shape.blocks + block as usize) * self.shape.key_elements();
        self.keys[at + kv_head * self.shape.head_dim * BLOCK_TOKENS..].as_ptr()
    }

    /// Values of one head in a block: `[16 tokens][padded_dim]`.
    #[inline(always)]
    pub(crate) fn values(&self, layer: usize, block: u32, kv_head: usize) -> *const u16 {
        let at = (layer * self.shape.blocks + block as usize) * self.shape.value_elements();
        self.values[at + kv_head * self.shape.padded_dim() * BLOCK_TOKENS..].as_ptr()
    }

    /// A handle through which threads write tokens at once.
    pub(crate) fn writer(&mut self, layer: usize) -> KvWriter<'_> {
        let shape = self.shape;
        let first = layer * shape.blocks;
        let keys =
            &mut self.keys[first * shape.key_elements()..][..shape.blocks * shape.key_elements()];
        let values = &mut self.values[first * shape.value_elements()..]
            [..shape.blocks * shape.value_elements()];
        KvWriter {
            shape,
            keys: as_atomic(keys),
            values: as_atomic(values),
        }
    }
}

fn as_atomic(slice: &mut [u16]) -> &[AtomicU16] {
    // SAFETY: `AtomicU16` has the layout of `u16`, and the exclusive borrow becomes the only way to the memory.
    unsafe { &*(std::ptr::from_mut(slice) as *const [AtomicU16]) }
}

/// One layer of the store, writable by several threads. Elements are relaxed atomics (plain stores in machine code), so
/// that two rows naming the same slot are a wrong result and not undefined behaviour.
#[derive(Clone, Copy)]
pub(crate) struct KvWriter<'a> {
    shape: KvShape,
    keys: &'a [AtomicU16],
    values: &'a [AtomicU16],
}

impl KvWriter<'_> {
    /// Stores lanes `first..` of one token's key and value of one head; `first` is below `head_dim`. Lanes past it are stored
    /// for values, which are padded to whole vectors, and left out for keys.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd>(
        self,
        (block, slot): (u32, usize),
        kv_head: usize,
        first: usize,
        key: S::F,
        value: S::F,
    ) {
        let (dim, padded) = (self.shape.head_dim, self.shape.padded_dim());
        let key_at = block as usize * self.shape.key_elements()
            + (kv_head * dim + first) * BLOCK_TOKENS
            + slot;
        let value_at = block as usize * self.shape.value_elements()
            + (kv_head * BLOCK_TOKENS + slot) * padded
            + first;
        let mut lanes = [0u16; LANES];
        // SAFETY: `lanes` holds a vector; the caller has the instruction set.
        unsafe { S::store_f16(lanes.as_mut_ptr(), bounded::<S>(key)) };
        for (lane, slot) in lanes
            .iter()
            .zip(self.keys[key_at..].iter().step_by(BLOCK_TOKENS))
            .take(dim - first)
        {
            slot.store(*lane, Ordering::Relaxed);
        }
        // SAFETY: as above.
        unsafe { S::store_f16(lanes.as_mut_ptr(), bounded::<S>(value)) };
        for (lane, slot) in lanes.iter().zip(&self.values[value_at..]) {
            slot.store(*lane, Ordering::Relaxed);
        }
    }
}

/// Within half precision; NaN becomes its largest number.
#[inline(always)]
unsafe fn bounded<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller has the instruction set.
    unsafe { S::max(S::min(x, S::splat(LARGEST_HALF)), S::splat(-LARGEST_HALF)) }
}
