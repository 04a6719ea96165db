//! Credentials as a mounted Secret has them: one file a key, named as in the environment of the usual SDKs.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// No credential is longer.
const LONGEST_BYTES: u64 = 64 << 10;

/// A value that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The value, for the one place that sends it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A directory of credentials, or none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Credentials {
    directory: Option<PathBuf>,
}

impl Credentials {
    pub(crate) fn new(directory: Option<&Path>) -> Self {
        Self {
            directory: directory.map(Path::to_owned),
        }
    }

    /// The first of `keys` that there is a file for, without the white space that editors leave at the end. An error is
    /// a sentence without the value.
    pub(crate) fn first(&self, keys: &[&str]) -> Result<Option<Secret>, String> {
        let Some(directory) = &self.directory else {
            return Ok(None);
        };
        for key in keys {
            let path = directory.join(key);
            match read(&path) {
                Ok(text) => return Ok(Some(Secret::new(text))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(format!(
                        "cannot read the credential {}: {error}",
                        path.display()
                    ));
                }
            }
        }
        Ok(None)
    }

    /// As [`Self::first`] for a single key.
    pub(crate) fn get(&self, key: &str) -> Result<Option<Secret>, String> {
        self.first(&[key])
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(LONGEST_BYTES + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST_BYTES {
        return Err(io::Error::other("it is longer than 64 KiB"));
    }
    let trimmed = text.trim();
    if trimmed.is_empty() || trimmed.contains('\0') {
        return Err(io::Error::other("it is empty or not text"));
    }
    Ok(trimmed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Credentials, Secret};

    #[test]
    fn credentials_are_read_trimmed_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("HF_TOKEN"), "hf_secret\n").unwrap();
        std::fs::write(folder.path().join("empty"), "\n").unwrap();
        std::fs::write(folder.path().join("huge"), "x".repeat(70_000)).unwrap();
        let credentials = Credentials::new(Some(folder.path()));
        let found = credentials.first(&["token", "HF_TOKEN"]).unwrap();
        assert_eq!(found, Some(Secret::new("hf_secret")));
        assert!(!format!("{found:?}").contains("hf_"));
        assert_eq!(credentials.get("absent").unwrap(), None);
        assert!(credentials.get("empty").unwrap_err().contains("empty"));
        assert!(credentials.get("huge").unwrap_err().contains("64 KiB"));
        assert_eq!(Credentials::new(None).get("token").unwrap(), None);
    }
}
