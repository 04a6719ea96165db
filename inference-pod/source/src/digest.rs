//! SHA-256 digests as users write them.

use std::fmt;
use std::str::FromStr;

/// A SHA-256 digest; 64 hexadecimal digits as text, lower case when shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256Digest(pub [u8; 32]);

/// The text is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 hash is 64 hexadecimal digits, this has {characters} characters or other ones")]
pub struct BadDigest {
    characters: usize,
}

impl FromStr for Sha256Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let bad = BadDigest {
            characters: text.chars().count(),
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(bad);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(bad);
            *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256Digest({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::Sha256Digest;

    #[test]
    fn digests_are_read_in_either_case_and_shown_in_lower_case() {
        let text = "E3B0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852B855";
        assert_eq!(
            text.parse::<Sha256Digest>().unwrap().to_string(),
            text.to_lowercase()
        );
        for wrong in [
            "",
            "abc",
            &text[1..],
            &format!("{text}0"),
            &text.replace('E', "+"),
            &"é".repeat(32),
        ] {
            assert!(wrong.parse::<Sha256Digest>().is_err(), "{wrong}");
        }
    }
}
