mod head;

use proptest::prelude::*;

use crate::{
    Array, Gguf, GgufBuilder, GgufError, MetadataError, Optional, TensorType, Value, assert_sound,
};

fn sample() -> GgufBuilder {
    GgufBuilder::new()
        .value("general.architecture", "llama")
        .value("llama.block_count", 2_u32)
        .value("llama.rope.freq_base", 10_000.0_f32)
        .value("tokenizer.ggml.add_bos_token", true)
        .value("tokenizer.ggml.tokens", ["<s>", "a", "ab"].as_slice())
        .value("tokenizer.ggml.scores", vec![0.0_f32, -1.0, -2.0])
        .value("tokenizer.ggml.token_type", vec![3_i32, 1, 1])
        .value(
            "nested",
            Array::Array(vec![Array::U16(vec![1, 2]), Array::Bool(vec![true])]),
        )
        .tensor("embed", &[32, 2], TensorType::Q4_1, &[7; 40])
        .tensor_f32("norm", &[3], &[1.0, 2.0, 3.0])
        .tensor("exotic", &[10], TensorType::Other(19), &[1; 5])
        .tensor("last", &[256], TensorType::Q6K, &[9; 210])
}

fn error_of(builder: &GgufBuilder) -> GgufError {
    Gguf::parse(&builder.build()).unwrap_err()
}

#[test]
fn reads_metadata_and_tensor_ranges_of_a_valid_file() {
    let bytes = sample().build();
    let file = Gguf::parse(&bytes).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.get_str("general.architecture"), Ok("llama"));
    assert_eq!(metadata.get_u64("llama.block_count"), Ok(2));
    assert_eq!(metadata.get_f32("llama.rope.freq_base"), Ok(10_000.0));
    assert_eq!(metadata.get_bool("tokenizer.ggml.add_bos_token"), Ok(true));
    assert_eq!(
        metadata.get_strings("tokenizer.ggml.tokens").unwrap(),
        ["<s>", "a", "ab"]
    );
    assert_eq!(
        metadata.get_f32s("tokenizer.ggml.scores").unwrap(),
        [0.0, -1.0, -2.0]
    );
    assert_eq!(
        metadata.get_u32s("tokenizer.ggml.token_type").unwrap(),
        [3, 1, 1].as_slice()
    );
    let norm = file.tensor("norm").unwrap();
    assert_eq!(
        (norm.dims.as_slice(), norm.kind, norm.elements()),
        ([3].as_slice(), TensorType::F32, 3)
    );
    assert_eq!(
        bytes[norm.range.clone()],
        [1.0_f32, 2.0, 3.0].map(f32::to_le_bytes).concat()
    );
    assert_eq!(bytes[file.tensor("embed").unwrap().range.clone()], [7; 40]);
    assert_eq!(bytes[file.tensor("last").unwrap().range.clone()], [9; 210]);
    assert_eq!(
        file.tensors().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        ["embed", "norm", "exotic", "last"]
    );
    assert!(file.tensor("absent").is_none());
}

#[test]
fn accepts_versions_2_and_3_and_names_any_other() {
    assert_eq!(
        Gguf::parse(&sample().version(2).build()).unwrap().version(),
        2
    );
    assert_eq!(
        Gguf::parse(&sample().version(3).build()).unwrap().version(),
        3
    );
    for version in [0, 1, 4, u32::MAX] {
        assert_eq!(
            error_of(&sample().version(version)),
            GgufError::UnknownVersion { version }
        );
    }
    assert_eq!(
        error_of(&sample().version(3_u32.swap_bytes())),
        GgufError::BigEndian
    );
}

#[test]
fn says_what_a_file_that_is_not_gguf_starts_with() {
    let message = Gguf::parse(b"<!DOCTYPE html>").unwrap_err().to_string();
    assert!(
        message.starts_with("not a GGUF file: it starts with \"<!DO\""),
        "{message}"
    );
    assert!(
        Gguf::parse(b"")
            .unwrap_err()
            .to_string()
            .contains("the file is empty")
    );
    assert!(matches!(Gguf::parse(b"GG"), Err(GgufError::NotGguf { .. })));
}

#[test]
fn every_truncation_is_an_error_that_says_where_the_file_ends() {
    let bytes = sample().build();
    for length in 4..bytes.len() {
        let error = Gguf::parse(&bytes[..length]).unwrap_err();
        match &error {
            GgufError::TruncatedHeader {
                file_bytes,
                needed_bytes,
                ..
            }
            | GgufError::TruncatedTensor {
                file_bytes,
                needed_bytes,
                ..
            } => {
                assert_eq!(*file_bytes, length as u64);
                assert!(needed_bytes > file_bytes, "{error}");
            }
            GgufError::AbsurdCount { .. } => {}
            other => panic!("at {length}: {other}"),
        }
    }
    let message = Gguf::parse(&bytes[..bytes.len() - 1])
        .unwrap_err()
        .to_string();
    let (ends, needs) = (bytes.len() - 1, bytes.len());
    assert!(
        message.contains(&format!(
            "file ends at byte {ends} but tensor \"last\" needs {needs}"
        )),
        "{message}"
    );
}

#[test]
fn absurd_counts_are_refused_before_memory_is_reserved_for_them() {
    for (field, what) in [(8, "tensors"), (16, "metadata entries")] {
        for count in [u64::MAX, 1 << 62, 1 << 40, 100_000] {
            let mut bytes = sample().build();
            bytes[field..field + 8].copy_from_slice(&count.to_le_bytes());
            let error = Gguf::parse(&bytes).unwrap_err();
            assert!(
                matches!(&error, GgufError::AbsurdCount { what: w, count: c, .. } if w == what && *c == count)
            );
        }
    }
}

#[test]
fn an_array_count_past_the_end_is_refused_and_names_the_key() {
    let mut bytes = GgufBuilder::new().value("k", vec![1_u32, 2]).build();
    let count_at = 24 + 8 + 1 + 4 + 4;
    bytes[count_at..count_at + 8].copy_from_slice(&(u64::MAX / 4 + 2).to_le_bytes());
    let message = Gguf::parse(&bytes).unwrap_err().to_string();
    assert!(
        message.contains("elements in metadata key \"k\""),
        "{message}"
    );
}

#[test]
fn a_string_past_the_end_is_refused() {
    let mut bytes = GgufBuilder::new().value("k", "text").build();
    let length_at = 24 + 8 + 1 + 4;
    bytes[length_at..length_at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let error = Gguf::parse(&bytes).unwrap_err();
    assert!(matches!(error, GgufError::TruncatedHeader { ref what, .. } if what.contains("\"k\"")));
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let mut bytes = GgufBuilder::new().value("key", "text").build();
    let last = bytes.len() - 1;
    bytes[last] = 0xff;
    assert_eq!(
        Gguf::parse(&bytes),
        Err(GgufError::NotUtf8 {
            what: "metadata key \"key\"".into()
        })
    );
}

#[test]
fn arrays_nest_to_a_bound() {
    let nest = |depth: usize| {
        let innermost = Array::U8(vec![1]);
        let array = (1..depth).fold(innermost, |inner, _| Array::Array(vec![inner]));
        Gguf::parse(&GgufBuilder::new().value("k", array).build())
    };
    assert!(nest(4).is_ok());
    assert_eq!(
        nest(5),
        Err(GgufError::TooDeep {
            key: "\"k\"".into(),
            limit: 4
        })
    );
    assert!(matches!(nest(10_000), Err(GgufError::TooDeep { .. })));
}

#[test]
fn duplicates_are_refused() {
    let keys = GgufBuilder::new().value("k", 1_u32).value("k", 2_u32);
    assert_eq!(
        error_of(&keys),
        GgufError::DuplicateKey {
            key: "\"k\"".into()
        }
    );
    let tensors = GgufBuilder::new()
        .tensor_f32("t", &[1], &[0.0])
        .tensor_f32("t", &[1], &[0.0]);
    assert_eq!(
        error_of(&tensors),
        GgufError::DuplicateTensor {
            tensor: "\"t\"".into()
        }
    );
}

#[test]
fn overlapping_tensors_are_refused() {
    let overlap = |offset| {
        let builder = GgufBuilder::new().tensor_f32("a", &[16], &[0.0; 16]);
        Gguf::parse(
            &builder
                .tensor_at("b", &[8], TensorType::F32, offset)
                .tensor_f32("pad", &[16], &[0.0; 16])
                .build(),
        )
    };
    let expected = GgufError::Overlap {
        first: "\"a\"".into(),
        second: "\"b\"".into(),
    };
    assert_eq!(overlap(32), Err(expected));
    assert!(matches!(overlap(0), Err(GgufError::Overlap { .. })));
}

#[test]
fn tensors_of_unknown_layout_reach_to_the_next_and_may_not_share_a_start() {
    let bytes = sample().build();
    let file = Gguf::parse(&bytes).unwrap();
    let exotic = file.tensor("exotic").unwrap();
    assert_eq!(exotic.range.end, file.tensor("last").unwrap().range.start);
    assert_eq!(exotic.kind.to_string(), "IQ1_S");
    assert_eq!(TensorType::Other(99).to_string(), "unknown type 99");
    let shared = GgufBuilder::new()
        .tensor_at("a", &[4], TensorType::Other(19), 0)
        .tensor("b", &[4], TensorType::F32, &[0; 16]);
    assert!(matches!(error_of(&shared), GgufError::Overlap { .. }));
}

#[test]
fn misaligned_tensors_and_bad_alignments_are_refused() {
    let tensor = GgufBuilder::new().tensor_at("t", &[1], TensorType::F32, 4);
    assert_eq!(
        error_of(&tensor),
        GgufError::Misaligned {
            tensor: "\"t\"".into(),
            offset: 4,
            alignment: 32
        }
    );
    for alignment in [0_u32, 4, 24, 33] {
        let builder = GgufBuilder::new().value("general.alignment", alignment);
        assert_eq!(
            error_of(&builder),
            GgufError::BadAlignment {
                alignment: alignment.into()
            }
        );
    }
    let text = GgufBuilder::new().value("general.alignment", "32");
    assert!(matches!(
        error_of(&text),
        GgufError::Metadata(MetadataError::WrongType { .. })
    ));
    let wide = GgufBuilder::new()
        .alignment(4096)
        .tensor_f32("a", &[1], &[1.0])
        .tensor_f32("b", &[1], &[2.0])
        .build();
    let file = Gguf::parse(&wide).unwrap();
    assert!(file.tensors().all(|tensor| tensor.range.start % 4096 == 0));
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let shape =
        |dims: &[u64], kind| error_of(&GgufBuilder::new().tensor("t", dims, kind, &[0; 64]));
    for dims in [&[][..], &[0], &[4, 0], &[1, 1, 1, 1, 1]] {
        assert!(
            matches!(shape(dims, TensorType::F32), GgufError::BadShape { .. }),
            "{dims:?}"
        );
    }
    assert!(
        shape(&[33], TensorType::Q8_0)
            .to_string()
            .contains("rows of Q8_0 are made of blocks of 32")
    );
    for dims in [&[u64::MAX, 2][..], &[1 << 62, 1, 1, 4], &[u64::MAX]] {
        assert!(
            matches!(shape(dims, TensorType::F32), GgufError::SizeOverflow { .. }),
            "{dims:?}"
        );
    }
    let far = GgufBuilder::new().tensor_at("t", &[1], TensorType::F32, u64::MAX - 31);
    assert!(matches!(error_of(&far), GgufError::SizeOverflow { .. }));
    let past = GgufBuilder::new().tensor_at("t", &[1], TensorType::F32, 1 << 40);
    assert!(matches!(error_of(&past), GgufError::TruncatedTensor { .. }));
}

#[test]
fn unknown_value_types_and_odd_booleans_are_refused() {
    let mut bytes = GgufBuilder::new().value("k", true).build();
    let last = bytes.len() - 1;
    bytes[last] = 2;
    assert_eq!(
        Gguf::parse(&bytes),
        Err(GgufError::BadBool {
            key: "\"k\"".into(),
            byte: 2
        })
    );
    bytes[33] = 77;
    assert_eq!(
        Gguf::parse(&bytes),
        Err(GgufError::UnknownValueType {
            key: "\"k\"".into(),
            id: 77
        })
    );
}

#[test]
fn long_names_are_refused_and_shortened_in_messages() {
    let long = "x".repeat(300);
    let error = error_of(&GgufBuilder::new().tensor_f32(&long, &[1], &[0.0]));
    assert!(matches!(
        error,
        GgufError::NameTooLong {
            name_bytes: 300,
            ..
        }
    ));
    let key = "k".repeat(60_000);
    let message = error_of(&GgufBuilder::new().value(&key, 1_u32).value(&key, 1_u32)).to_string();
    assert!(message.len() < 200, "{}", message.len());
    assert!(matches!(
        error_of(&GgufBuilder::new().value(&"k".repeat(65_536), 1_u32)),
        GgufError::NameTooLong { .. }
    ));
}

#[test]
fn typed_getters_name_the_key_and_what_they_found() {
    let bytes = GgufBuilder::new()
        .value("neg", -1_i32)
        .value("big", u64::MAX)
        .value("text", "x")
        .value("f64", 0.5_f64)
        .value("ints", vec![1_i32, -1])
        .build();
    let file = Gguf::parse(&bytes).unwrap();
    let metadata = file.metadata();
    let message = |error: MetadataError| error.to_string();
    assert_eq!(
        message(metadata.get_str("none").unwrap_err()),
        "metadata key \"none\" is missing"
    );
    assert_eq!(
        message(metadata.get_u64("text").unwrap_err()),
        "metadata key \"text\" is a string, expected an unsigned integer"
    );
    assert_eq!(
        message(metadata.get_u64("neg").unwrap_err()),
        "metadata key \"neg\" holds -1, which is out of range for an unsigned integer"
    );
    assert_eq!(
        message(metadata.get_u32("big").unwrap_err()),
        "metadata key \"big\" holds 18446744073709551615, which is out of range for u32"
    );
    assert_eq!(
        message(metadata.get_u32s("ints").unwrap_err()),
        "metadata key \"ints\" holds -1, which is out of range for u32"
    );
    assert_eq!(
        message(metadata.get_strings("ints").unwrap_err()),
        "metadata key \"ints\" is an array of i32, expected an array of strings"
    );
    assert_eq!(metadata.get_f32("f64"), Ok(0.5));
    assert_eq!(metadata.get_i32s("ints").unwrap(), [1, -1].as_slice());
    assert_eq!(metadata.get_u64("none").optional(), Ok(None));
    assert!(metadata.get_bool("text").optional().is_err());
    assert_eq!(metadata.get("text"), Some(&Value::String("x".into())));
}

/// A small generator, so that the same inputs are tried everywhere.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Xorshift) {
    const EXTREMES: [u64; 8] = [
        0,
        1,
        0xff,
        0xffff_ffff,
        1 << 31,
        1 << 63,
        u64::MAX,
        u64::MAX - 31,
    ];
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.below(256) as u8,
        2 => {
            let extreme = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
            bytes
                .iter_mut()
                .skip(at)
                .zip(extreme)
                .for_each(|(byte, new)| *byte = new);
        }
        3 => bytes.truncate(at.max(1)),
        4 => {
            let span = bytes[at..]
                .iter()
                .take(random.below(40))
                .copied()
                .collect::<Vec<_>>();
            let to = random.below(bytes.len());
            bytes.splice(to..to, span);
        }
        _ => {
            let end = (at + random.below(20)).min(bytes.len());
            if end - at < bytes.len() {
                bytes.drain(at..end);
            }
        }
    }
}

#[test]
fn no_mutation_of_a_valid_file_panics_and_what_is_accepted_is_sound() {
    let valid = sample().build();
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for _ in 0..60_000 {
        let mut bytes = valid.clone();
        for _ in 0..=random.below(4) {
            mutate(&mut bytes, &mut random);
        }
        if let Ok(file) = Gguf::parse(&bytes) {
            assert_sound(&bytes, &file);
            accepted += 1;
        }
    }
    assert!(
        accepted > 1_000,
        "mutations that spare the header must pass: {accepted}"
    );
}

#[test]
fn every_single_byte_change_of_the_header_is_survived() {
    let valid = sample().build();
    let header = Gguf::parse(&valid)
        .unwrap()
        .tensor("embed")
        .unwrap()
        .range
        .start;
    for at in 0..header {
        for value in [0, 1, 7, 9, 0x7f, 0x80, 0xff] {
            let mut bytes = valid.clone();
            bytes[at] = value;
            if let Ok(file) = Gguf::parse(&bytes) {
                assert_sound(&bytes, &file);
            }
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        any::<bool>().prop_map(Value::Bool),
        (-1e30_f32..1e30).prop_map(Value::F32),
        ".*".prop_map(Value::String),
        proptest::collection::vec(".*", 0..5).prop_map(|v| Value::Array(Array::String(v))),
        proptest::collection::vec(any::<i32>(), 0..9).prop_map(|v| Value::Array(Array::I32(v))),
        proptest::collection::vec(any::<bool>(), 0..9).prop_map(|v| Value::Array(Array::Bool(v))),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        entries in proptest::collection::btree_map("[a-z.]{1,20}", any_value(), 0..12),
        tensors in proptest::collection::btree_map("[a-z0-9._]{1,30}", proptest::collection::vec(-1e9_f32..1e9, 1..50), 0..8),
    ) {
        let mut builder = GgufBuilder::new();
        for (key, value) in &entries {
            builder = builder.value(key, value.clone());
        }
        for (name, data) in &tensors {
            builder = builder.tensor_f32(name, &[data.len() as u64], data);
        }
        let bytes = builder.build();
        let file = Gguf::parse(&bytes).unwrap();
        assert_sound(&bytes, &file);
        prop_assert_eq!(file.metadata().iter().map(|(k, v)| (k.to_owned(), v.clone())).collect::<std::collections::BTreeMap<_, _>>(), entries);
        for (name, data) in &tensors {
            let range = file.tensor(name).unwrap().range.clone();
            prop_assert_eq!(&bytes[range], data.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn random_bytes_after_the_magic_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tail);
        if let Ok(file) = Gguf::parse(&bytes) {
            assert_sound(&bytes, &file);
        }
    }
}
