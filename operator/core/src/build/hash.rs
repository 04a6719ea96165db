//! Short hashes of what is built.

use sha2::{Digest, Sha256};
use std::fmt::Write;

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
