//! Of a file whose beginning alone is in memory.

use super::sample;
use crate::{Array, Gguf, GgufBuilder, GgufError};

#[test]
fn the_beginning_of_a_file_is_enough_once_the_header_is_in_it() {
    let bytes = sample().build();
    let whole = Gguf::parse(&bytes).unwrap();
    let file_bytes = bytes.len() as u64;
    let mut enough = None;
    for length in 0..=bytes.len() {
        match Gguf::parse_head(&bytes[..length], file_bytes) {
            Ok(file) => {
                assert_eq!(file, whole);
                enough.get_or_insert(length);
            }
            Err(GgufError::HeadTooShort { needed_bytes }) => {
                assert!(needed_bytes > length as u64 && needed_bytes <= file_bytes);
                assert_eq!(enough, None, "{length} bytes, after fewer were enough");
            }
            // Not even the magic is there.
            Err(GgufError::NotGguf { .. }) => assert!(length < 4),
            Err(other) => panic!("at {length}: {other}"),
        }
    }
    let data_start = whole.tensor("embed").unwrap().range.start;
    assert!(enough.unwrap() <= data_start, "weights were asked for");
}

#[test]
fn what_is_asked_for_leads_to_the_whole_header_in_few_steps() {
    let names: Vec<String> = (0..20_000).map(|n| format!("token {n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let bytes = GgufBuilder::new().value("tokens", names.as_slice()).build();
    let (mut length, mut steps) = (64, 0);
    loop {
        steps += 1;
        match Gguf::parse_head(&bytes[..length], bytes.len() as u64) {
            Err(GgufError::HeadTooShort { needed_bytes }) => {
                length = (length * 2).max(needed_bytes as usize).min(bytes.len());
            }
            found => break assert!(found.is_ok()),
        }
    }
    assert!(steps < 20, "{steps} steps for {} bytes", bytes.len());
}

#[test]
fn a_header_is_never_asked_for_beyond_the_file_or_the_bound_on_headers() {
    let mut bytes = GgufBuilder::new().value("k", Array::U8(vec![1, 2])).build();
    let count_at = 24 + 8 + 1 + 4 + 4;
    for (count, file_bytes) in [
        (1_u64 << 20, 1 << 10),
        (1 << 29, 1 << 40),
        (u64::MAX, 1 << 40),
    ] {
        bytes[count_at..count_at + 8].copy_from_slice(&count.to_le_bytes());
        let error = Gguf::parse_head(&bytes, file_bytes).unwrap_err();
        assert!(
            matches!(
                error,
                GgufError::AbsurdCount { .. } | GgufError::HeaderTooLarge { .. }
            ),
            "{error}"
        );
    }
    // A file that shrank since its length was taken.
    let error = Gguf::parse_head(&bytes, 10).unwrap_err();
    assert!(
        matches!(error, GgufError::TruncatedHeader { .. }),
        "{error}"
    );
}
