//! Objects kept as little text: objects of one kind differ in few words, and only those are kept of each.
//!
//! Each text is compressed against a sample of its kind, which many share. A text that is little like the sample becomes
//! the sample of those that come after it, so that at worst each is kept whole, once.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use serde::{Serialize, de::DeserializeOwned};

/// A text that keeps more than one part in this many of its length needs a better sample.
const LIKENESS: usize = 3;

/// Packs objects of one kind.
#[derive(Debug)]
pub struct Packer(Mutex<Arc<[u8]>>);

impl Default for Packer {
    fn default() -> Self {
        Self(Mutex::new(Arc::new([])))
    }
}

impl Packer {
    /// Packs an object; `None` when it is none that JSON can hold.
    pub fn pack<T: Serialize>(&self, object: &T) -> Option<Packed> {
        let text = serde_json::to_vec(object).ok()?;
        let mut sample = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let packed = Packed::like(&sample, &text);
        if packed.difference.len() <= text.len() / LIKENESS {
            return Some(packed);
        }
        *sample = Arc::from(&text[..]);
        Some(Packed::like(&sample, &text))
    }
}

/// A packed object.
#[derive(Clone)]
pub struct Packed {
    sample: Arc<[u8]>,
    difference: Arc<[u8]>,
}

impl Packed {
    fn like(sample: &Arc<[u8]>, text: &[u8]) -> Self {
        Self {
            sample: sample.clone(),
            difference: compress_prepend_size_with_dict(text, sample).into(),
        }
    }

    /// The object; `None` when it does not fit the type.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let text = decompress_size_prepended_with_dict(&self.difference, &self.sample).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.difference.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn child(index: usize, word: &str) -> Value {
        json!({"kind": "ConfigMap", "metadata": {"name": format!("service-{index:05}"), "namespace": "team",
            "labels": {"app.kubernetes.io/managed-by": "pagoda-operator", "serving.pagoda.dev/service": format!("service-{index:05}")}},
            "data": {"engine.toml": word}})
    }

    #[test]
    fn of_objects_that_are_alike_little_is_kept() {
        let packer = Packer::default();
        let word = "executor = \"simulated\"\n".repeat(4);
        let all: Vec<Packed> = (0..100)
            .filter_map(|index| packer.pack(&child(index, &word)))
            .collect();
        for (index, packed) in all.iter().enumerate() {
            assert_eq!(packed.read(), Some(child(index, &word)));
            assert!(
                Arc::ptr_eq(&packed.sample, &all[0].sample),
                "{index} has a sample of its own"
            );
            assert!(packed.difference.len() < 80, "{index} keeps {packed:?}");
        }
    }

    proptest! {
        #[test]
        fn every_object_is_read_as_it_was_packed(objects in proptest::collection::vec((0_usize..9, ".{0,200}"), 1..20)) {
            let packer = Packer::default();
            let objects: Vec<Value> = objects.iter().map(|(index, word)| child(*index, word)).chain([json!({}), json!("")]).collect();
            let packed: Vec<Packed> = objects.iter().filter_map(|object| packer.pack(object)).collect();
            prop_assert_eq!(packed.len(), objects.len());
            for (packed, object) in packed.iter().zip(objects) {
                prop_assert_eq!(packed.read(), Some(object));
            }
        }
    }
}
