//! Short hashes of what is built.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The text of an object with its keys in order. In the order in which they were set, which is what another crate of the
/// same build can choose for all, a hash would differ from build to build, and every service would roll.
pub(super) fn canonical(object: &Value) -> String {
    let mut sorted = object.clone();
    sorted.sort_all_objects();
    sorted.to_string()
}

/// The first 64 bits of a SHA-256 in hexadecimal digits: enough to tell revisions of one service apart.
pub fn short_hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest[..8]
        .iter()
        .fold(String::with_capacity(16), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}
