//! Where a model lies.

/// Why an address cannot be one of a model. Each message says how it is written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UriError {
    /// No scheme that is known.
    #[error(
        "must start with https://, hf://, s3://, gs://, az://, oci://, file://, pvc:// or image://"
    )]
    Scheme,
    /// Not an https address of a file.
    #[error("an https source is written https://HOST/PATH, without user or password")]
    Https,
    /// Not a file of a repository.
    #[error(
        "an hf source is written hf://OWNER/REPOSITORY/PATH or hf://OWNER/REPOSITORY/PATH@REVISION, with the path of one file in the repository"
    )]
    Hf,
    /// Not a bucket and a key.
    #[error(
        "an s3 or gs source is written s3://BUCKET/KEY or gs://BUCKET/KEY, with the key of one file"
    )]
    Bucket,
    /// Not an account, a container and a path.
    #[error(
        "an az source is written az://ACCOUNT/CONTAINER/PATH, with the path of one file in the container"
    )]
    Az,
    /// Not a registry, a repository and a file.
    #[error(
        "an oci source is written oci://REGISTRY/REPOSITORY:TAG//FILE or oci://REGISTRY/REPOSITORY@sha256:DIGEST//FILE, with the title of one file in the artifact"
    )]
    Oci,
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

/// How a model is downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteScheme {
    /// From a web server.
    Https,
    /// From Hugging Face or a mirror.
    Hf,
    /// From S3 or a store that is compatible.
    S3,
    /// From Google Cloud Storage.
    Gs,
    /// From Azure Blob Storage.
    Az,
    /// From a registry of OCI artifacts.
    Oci,
}

impl RemoteScheme {
    /// Whether another endpoint than the usual one can be asked.
    pub fn takes_endpoint(self) -> bool {
        matches!(self, Self::Hf | Self::S3 | Self::Gs | Self::Az)
    }
}

/// A checked address of a model's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelUri {
    /// To download.
    Remote {
        /// How.
        scheme: RemoteScheme,
        /// The whole address.
        uri: String,
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
        let remote = |scheme, well_formed: bool, error| {
            let uri = uri.to_owned();
            well_formed
                .then_some(Self::Remote { scheme, uri })
                .ok_or(error)
        };
        let known = match scheme {
            "https" => remote(RemoteScheme::Https, is_https(rest), UriError::Https),
            "hf" => remote(RemoteScheme::Hf, is_hf(rest), UriError::Hf),
            "s3" => remote(RemoteScheme::S3, is_bucket(rest), UriError::Bucket),
            "gs" => remote(RemoteScheme::Gs, is_bucket(rest), UriError::Bucket),
            "az" => remote(RemoteScheme::Az, is_az(rest), UriError::Az),
            "oci" => remote(RemoteScheme::Oci, is_oci(rest), UriError::Oci),
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

    /// How it is downloaded; `None` when it lies on the node, in a claim or in an image.
    pub fn remote(&self) -> Option<(RemoteScheme, &str)> {
        match self {
            Self::Remote { scheme, uri } => Some((*scheme, uri)),
            _ => None,
        }
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

/// A path of one file: it does not end with a slash.
fn is_file(path: &str) -> bool {
    is_path(path) && !path.ends_with('/')
}

/// Whether a word starts with such a byte and goes on with such.
fn is_name(word: &str, first: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    let mut bytes = word.bytes();
    bytes.next().is_some_and(first) && bytes.all(inner)
}

fn is_lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"._-".contains(&b)
}

fn is_https(rest: &str) -> bool {
    rest.split_once('/').is_some_and(|(host, path)| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b".-:[]".contains(&b);
        !host.is_empty() && host.bytes().all(plain) && is_path(path)
    })
}

/// `OWNER/REPOSITORY/PATH[@REVISION]`; the path holds no `@`.
fn is_hf(rest: &str) -> bool {
    let mut parts = rest.splitn(3, '/');
    let (owner, repository, path) = (parts.next(), parts.next(), parts.next());
    let named = |part: Option<&str>| {
        part.is_some_and(|p| is_name(p, |b| b.is_ascii_alphanumeric(), is_word))
    };
    let (file, revision) = match path.unwrap_or_default().split_once('@') {
        Some((file, revision)) => (file, Some(revision)),
        None => (path.unwrap_or_default(), None),
    };
    let revision_is_plain = revision.is_none_or(|r| {
        is_name(
            r,
            |b| b.is_ascii_alphanumeric(),
            |b| is_word(b) || b == b'/',
        )
    });
    named(owner) && named(repository) && is_file(file) && revision_is_plain
}

fn is_bucket(rest: &str) -> bool {
    rest.split_once('/').is_some_and(|(bucket, key)| {
        let inner = |b: u8| is_lower(b) || b"._-".contains(&b);
        bucket.len() >= 3
            && is_name(bucket, is_lower, inner)
            && bucket.bytes().last().is_some_and(is_lower)
            && is_file(key)
    })
}

fn is_az(rest: &str) -> bool {
    let mut parts = rest.splitn(3, '/');
    let (account, container, path) = (parts.next(), parts.next(), parts.next());
    account.is_some_and(|a| (3..=24).contains(&a.len()) && a.bytes().all(is_lower))
        && container.is_some_and(|c| {
            is_name(
                c,
                |b| is_lower(b) || b == b'$',
                |b| is_lower(b) || b == b'-',
            )
        })
        && path.is_some_and(is_file)
}

/// `REGISTRY/REPOSITORY[:TAG|@sha256:DIGEST]//FILE`.
fn is_oci(rest: &str) -> bool {
    let Some((registry, rest)) = rest.split_once('/') else {
        return false;
    };
    let Some((reference, file)) = rest.split_once("//") else {
        return false;
    };
    is_registry(registry) && is_reference(reference) && is_file(file)
}

fn is_registry(registry: &str) -> bool {
    let (host, port) = match registry.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (registry, None),
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b".-".contains(&b);
    !host.is_empty()
        && host.bytes().all(plain)
        && port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
}

fn is_reference(reference: &str) -> bool {
    let digest_is_one = |d: &str| {
        d.strip_prefix("sha256:")
            .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_lower_hex))
    };
    let tag_is_one = |t: &str| is_name(t, |b| b.is_ascii_alphanumeric() || b == b'_', is_word);
    let (repository, version_is_one) = if let Some((name, digest)) = reference.split_once('@') {
        (name, digest_is_one(digest))
    } else if let Some((name, tag)) = reference.split_once(':') {
        (name, tag_is_one(tag))
    } else {
        (reference, true)
    };
    let inner = |b: u8| is_lower(b) || b"._/-".contains(&b);
    version_is_one
        && repository.len() >= 2
        && is_name(repository, is_lower, inner)
        && repository.bytes().last().is_some_and(is_lower)
}

fn is_lower_hex(b: u8) -> bool {
    b.is_ascii_digit() || (b'a'..=b'f').contains(&b)
}
