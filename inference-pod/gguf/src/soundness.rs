//! What tests hold every accepted file to.

use crate::parse::Gguf;

/// Fails unless `file`, read from `bytes`, is what every accepted file promises to be, whatever was done to the bytes: tensors lie
/// within them, share none, are found by their names and are as long as their shapes say.
///
/// # Panics
/// When it is not.
pub fn assert_sound(bytes: &[u8], file: &Gguf) {
    let mut ranges: Vec<_> = file.tensors().map(|tensor| tensor.range.clone()).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    assert!(
        ranges
            .iter()
            .all(|range| range.start <= range.end && range.end <= bytes.len())
    );
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    for tensor in file.tensors() {
        assert_eq!(file.tensor(&tensor.name), Some(tensor));
        if let (Some(elements), Some(bytes)) =
            (tensor.kind.block_elements(), tensor.kind.block_bytes())
        {
            assert_eq!(
                tensor.range.len() as u64,
                tensor.elements() / elements as u64 * bytes as u64
            );
        }
    }
}
