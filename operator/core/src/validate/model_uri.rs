//! Where a model lies.

/// Why an address cannot be one of a model. Each message says how it is written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UriError {
    /// No scheme that is known.
    #[error("must start with https://, file://, pvc:// or image://")]
    Scheme,
    /// Not an https address of a file.
    #[error("an https source is written https://HOST/PATH, without user or password")]
    Https,
    /// Not an absolute path.
    #[error(
        "a file source is written file:///PATH, with the absolute path of one file in a directory of the node"
    )]
    File,
    /// Not a claim and a path.
    #[error("a pvc source is written pvc://CLAIM/PATH, with the path of one file in the volume")]
    Pvc,
    /// Not a reference and a path.
    #[error(
        "an image source is written image://REFERENCE//PATH, with the path of one file in the image after //"
    )]
    Image,
    /// A path that leaves where it starts.
    #[error("may not climb with .. in its path")]
    Climbs,
}

/// A checked address of a model's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelUri {
    /// To download.
    Https {
        /// The whole address.
        url: String,
    },
    /// On the node.
    File {
        /// Directory, absolute, not `/`.
        directory: String,
        /// Name of the file in it.
        file: String,
    },
    /// In a PersistentVolumeClaim of the same namespace.
    Pvc {
        /// Name of the claim.
        claim: String,
        /// Path below the root of the volume, without a leading slash.
        path: String,
    },
    /// In a container image.
    Image {
        /// Reference of the image.
        reference: String,
        /// Absolute path in it.
        path: String,
    },
}

impl ModelUri {
    /// Reads an address.
    pub fn parse(uri: &str) -> Result<Self, UriError> {
        let (scheme, rest) = uri.split_once("://").ok_or(UriError::Scheme)?;
        let known = match scheme {
            "https" => Self::parse_https(uri, rest),
            "file" => Self::parse_file(rest),
            "pvc" => Self::parse_pvc(rest),
            "image" => Self::parse_image(rest),
            _ => return Err(UriError::Scheme),
        }?;
        if rest.split('/').any(|segment| segment == "..") {
            return Err(UriError::Climbs);
        }
        Ok(known)
    }

    fn parse_https(uri: &str, rest: &str) -> Result<Self, UriError> {
        let (host, path) = rest.split_once('/').ok_or(UriError::Https)?;
        let host_is_plain = host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b));
        if host.is_empty() || !host_is_plain || !is_path(path) {
            return Err(UriError::Https);
        }
        Ok(Self::Https {
            url: uri.to_owned(),
        })
    }

    fn parse_file(rest: &str) -> Result<Self, UriError> {
        let (directory, file) = rest.rsplit_once('/').ok_or(UriError::File)?;
        // A file in the root would mount the whole node.
        let directory_is_plain = directory.starts_with('/')
            && !directory.trim_matches('/').is_empty()
            && is_path(directory);
        if !directory_is_plain || !is_path(file) {
            return Err(UriError::File);
        }
        Ok(Self::File {
            directory: directory.to_owned(),
            file: file.to_owned(),
        })
    }

    fn parse_pvc(rest: &str) -> Result<Self, UriError> {
        let (claim, path) = rest.split_once('/').ok_or(UriError::Pvc)?;
        let path = path.trim_start_matches('/');
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let claim_is_name = claim.bytes().all(|b| plain(b) || b"-.".contains(&b))
            && claim.bytes().next().is_some_and(plain)
            && claim.bytes().last().is_some_and(plain);
        if !claim_is_name || claim.len() > 253 || !is_path(path) || path.ends_with('/') {
            return Err(UriError::Pvc);
        }
        Ok(Self::Pvc {
            claim: claim.to_owned(),
            path: path.to_owned(),
        })
    }

    fn parse_image(rest: &str) -> Result<Self, UriError> {
        let (reference, path) = rest.split_once("//").ok_or(UriError::Image)?;
        let reference_is_plain = reference
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._:/@-".contains(&b))
            && reference
                .bytes()
                .next()
                .is_some_and(|b| b.is_ascii_alphanumeric())
            && reference
                .bytes()
                .last()
                .is_some_and(|b| b.is_ascii_alphanumeric());
        let path = path.trim_start_matches('/');
        if !reference_is_plain || !is_path(path) || path.ends_with('/') {
            return Err(UriError::Image);
        }
        Ok(Self::Image {
            reference: reference.to_owned(),
            path: format!("/{path}"),
        })
    }
}

fn is_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 2048
        && !path.contains(|c: char| c.is_whitespace() || c.is_control())
}
