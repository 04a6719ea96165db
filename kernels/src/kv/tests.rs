use proptest::prelude::*;

use super::*;
use crate::attention::AttentionShape;
use crate::cpu::Cpu;
use crate::pool::ThreadPool;
use crate::rope::{QkvAdjust, RopeStyle, RopeTable, rope_and_store};

impl KvCache {
    fn half_at(buffer: &[u8], at: usize) -> f32 {
        half::f16::from_le_bytes([buffer[at], buffer[at + 1]]).to_f32()
    }

    /// The number stored for depth `d` of the key in slot `slot`, by the module's drawing.
    pub(crate) fn key(
        &self,
        layer: usize,
        block: u32,
        kv_head: usize,
        slot: usize,
        d: usize,
    ) -> f32 {
        let shape = self.shape;
        let head = (layer * shape.blocks + block as usize) * shape.key_bytes()
            + kv_head * shape.key_head_bytes();
        match shape.element {
            KvElement::F16 => Self::half_at(&self.keys, head + 2 * (16 * d + slot)),
            KvElement::Int8Group32 => {
                let scale = Self::half_at(
                    &self.keys,
                    head + 16 * shape.head_dim + 2 * (16 * (d / 32) + slot),
                );
                f32::from(self.keys[head + 16 * d + slot] as i8) * scale
            }
        }
    }

    /// As [`KvCache::key`] for values.
    pub(crate) fn value(
        &self,
        layer: usize,
        block: u32,
        kv_head: usize,
        slot: usize,
        d: usize,
    ) -> f32 {
        let shape = self.shape;
        let head = (layer * shape.blocks + block as usize) * shape.value_bytes()
            + kv_head * shape.value_head_bytes();
        match shape.element {
            KvElement::F16 => {
                Self::half_at(&self.values, head + 2 * (shape.padded_dim() * slot + d))
            }
            KvElement::Int8Group32 => {
                let scales = head + 16 * shape.padded_dim();
                let scale =
                    Self::half_at(&self.values, scales + 2 * (shape.groups() * slot + d / 32));
                f32::from(self.values[head + shape.padded_dim() * slot + d] as i8) * scale
            }
        }
    }
}

fn shape(head_dim: usize, element: KvElement) -> KvShape {
    KvShape {
        layers: 2,
        blocks: 3,
        kv_heads: 2,
        head_dim,
        element,
    }
}

/// Stores one token's keys and values (two heads of each) unturned in slot 5 of block 1 of layer 1.
fn stored(cpu: Cpu, head_dim: usize, keys_and_values: &[f32]) -> KvCache {
    let mut cache = KvCache::new(shape(head_dim, KvElement::Int8Group32));
    let mut rope = RopeTable::new(RopeStyle::Halves, 0, 1e4, &[]);
    rope.fill([21].into_iter());
    let mut qkv = vec![0.0; 2 * head_dim];
    qkv.extend(keys_and_values);
    let segment = Segment::new(&[2, 1], 21, 1, 3).unwrap();
    let heads = AttentionShape::new(2, 2, head_dim);
    let pool = ThreadPool::new(1).unwrap();
    rope_and_store(
        cpu,
        &pool,
        &rope,
        QkvAdjust::default(),
        heads,
        &[segment],
        &mut qkv,
        &mut cache,
        1,
    );
    cache
}

proptest! {
    #[test]
    fn bytes_lie_within_half_their_scale_of_what_was_stored_on_every_path(
        head_dim in 1usize..100, exponent in -12i32..6, values in prop::collection::vec(-1f32..1.0, 400)
    ) {
        let values: Vec<f32> = values.iter().take(4 * head_dim).map(|x| x * 10f32.powi(exponent)).collect();
        let mut first: Option<(Vec<u8>, Vec<u8>)> = None;
        for cpu in Cpu::available() {
            let cache = stored(cpu, head_dim, &values);
            for (head, x) in values.chunks(head_dim).enumerate() {
                for (group, x) in x.chunks(KV_GROUP).enumerate() {
                    let largest = x.iter().fold(0f32, |a, b| a.max(b.abs()));
                    // Half precision has 11 bits, and steps of 6e-8 at least.
                    let scale = (largest / 127.0 * (1.0 + 1.0 / 1024.0)).max(largest / 127.0 + 6e-8);
                    for (i, x) in x.iter().enumerate() {
                        let d = group * KV_GROUP + i;
                        let got = if head < 2 { cache.key(1, 1, head, 5, d) } else { cache.value(1, 1, head - 2, 5, d) };
                        prop_assert!((got - x).abs() <= scale * 0.500_01, "{got} for {x}, scale {scale}");
                    }
                }
            }
            let bytes = (cache.keys.to_vec(), cache.values.to_vec());
            prop_assert_eq!(first.get_or_insert_with(|| bytes.clone()), &bytes, "{}", cpu.name());
        }
    }
}

#[test]
fn what_is_too_large_or_no_number_is_stored_as_the_largest() {
    for cpu in Cpu::available() {
        let mut values = [1.0f32; 128];
        (values[0], values[40], values[70]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
        let cache = stored(cpu, 32, &values);
        let largest = LARGEST_HALF * 127.0;
        assert_eq!(cache.key(1, 1, 0, 5, 0), largest);
        assert_eq!(cache.key(1, 1, 1, 5, 8), -largest);
        assert_eq!(cache.value(1, 1, 0, 5, 6), largest);
        assert!((cache.value(1, 1, 1, 5, 0) - 1.0).abs() <= 0.5 / 126.0);
    }
}

#[test]
fn bytes_take_seventeen_thirty_seconds_of_half_precision() {
    for head_dim in [32, 64, 128, 256] {
        let halves = shape(head_dim, KvElement::F16).block_bytes().unwrap();
        let bytes = shape(head_dim, KvElement::Int8Group32)
            .block_bytes()
            .unwrap();
        assert_eq!(bytes * 32, halves * 17);
        assert_eq!(halves, 2 * 2 * 2 * 16 * 2 * head_dim);
        for element in [KvElement::F16, KvElement::Int8Group32] {
            let shape = shape(head_dim, element);
            let cache = KvCache::new(shape);
            assert_eq!(
                cache.keys.len() + cache.values.len(),
                3 * shape.block_bytes().unwrap()
            );
        }
    }
    let endless = KvShape {
        layers: 1,
        blocks: 1,
        kv_heads: 1,
        head_dim: usize::MAX - 40,
        element: KvElement::Int8Group32,
    };
    assert_eq!(endless.block_bytes(), None);
}
