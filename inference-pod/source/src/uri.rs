//! Where a model comes from.

use std::fmt;
use std::path::PathBuf;

use reqwest::Url;

/// Whether a model may come over a connection that anyone on the way can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainHttp {
    /// Only from this machine itself.
    LoopbackOnly,
    /// From anywhere, because the user said so.
    Allowed,
}

/// A source this crate fetches from. Shown and logged without user, password and query.
#[derive(Clone, PartialEq, Eq)]
pub enum ModelUri {
    /// `https://`, or `http://` where that is allowed.
    Http(Url),
    /// `file://` with an absolute path.
    File(PathBuf),
    /// `hf://OWNER/REPO/PATH[@REVISION]`: a file of a repository on Hugging Face or a mirror.
    HuggingFace(HuggingFaceFile),
    /// `s3://BUCKET/KEY`, `gs://BUCKET/KEY` or `az://ACCOUNT/CONTAINER/PATH`.
    Object(ObjectUri),
    /// `oci://REGISTRY/REPOSITORY[:TAG|@DIGEST]//FILE`: a file of an artifact in a registry.
    Oci(OciFile),
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HuggingFaceFile {
    /// `OWNER/REPO`.
    pub repository: String,
    /// Path in the repository.
    pub path: String,
    /// Branch, tag or commit; `main` unless named.
    pub revision: String,
}

/// Whose object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cloud {
    /// Amazon S3 and what speaks like it.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure {
        /// The storage account.
        account: String,
    },
}

/// An object of a cloud store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectUri {
    /// Whose.
    pub cloud: Cloud,
    /// Bucket, or container.
    pub bucket: String,
    /// Key, as it is: nothing in it is escaped.
    pub key: String,
}

/// A file of an OCI artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciFile {
    /// `HOST[:PORT]`.
    pub registry: String,
    /// Repository in the registry.
    pub repository: String,
    /// A tag, or a digest `sha256:...`; `latest` unless named.
    pub reference: String,
    /// Title of the layer.
    pub file: String,
}

/// Why a text is no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Not a URI.
    #[error(
        "the model's source is not a URI: {reason}; write for example https://example.org/model.gguf"
    )]
    Malformed {
        /// What the parser said.
        reason: String,
    },
    /// A scheme that is fetched otherwise or not at all.
    #[error(
        "cannot fetch a {scheme}:// source; https://, file://, hf://, s3://, gs://, az:// and oci:// can be fetched"
    )]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// A plain connection to another machine.
    #[error(
        "refusing http://{host}: a model fetched without TLS can be replaced on the way; use https://, or allow plain HTTP explicitly"
    )]
    PlainHttp {
        /// The host.
        host: String,
    },
    /// A file on another machine, or a path that is not absolute.
    #[error(
        "a file:// source needs three slashes and an absolute path, as in file:///models/model.gguf"
    )]
    NotAbsolute,
    /// A known scheme, followed by something else than it asks for.
    #[error("a {scheme}:// source is written {form}")]
    Form {
        /// The scheme.
        scheme: &'static str,
        /// How it is written.
        form: &'static str,
    },
}

impl ModelUri {
    /// Parses a source.
    pub fn parse(text: &str, plain_http: PlainHttp) -> Result<Self, UriError> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        match scheme {
            "hf" => hugging_face(rest).map(Self::HuggingFace),
            "s3" | "gs" | "az" => object(scheme, rest).map(Self::Object),
            "oci" => oci(rest).map(Self::Oci),
            _ => Self::parse_url(text, plain_http),
        }
    }

    /// Name of the file that it leads to; `None` where an address ends in a slash.
    pub fn file_name(&self) -> Option<String> {
        let path = match self {
            Self::Http(url) => url.path(),
            Self::File(path) => return Some(path.file_name()?.to_string_lossy().into_owned()),
            Self::HuggingFace(file) => &file.path,
            Self::Object(object) => &object.key,
            Self::Oci(file) => &file.file,
        };
        let name = path.rsplit('/').next().unwrap_or_default();
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn parse_url(text: &str, plain_http: PlainHttp) -> Result<Self, UriError> {
        let url = Url::parse(text).map_err(|error| UriError::Malformed {
            reason: error.to_string(),
        })?;
        match url.scheme() {
            "https" => Ok(Self::Http(url)),
            "http" if plain_http == PlainHttp::Allowed || is_loopback(&url) => Ok(Self::Http(url)),
            "http" => Err(UriError::PlainHttp {
                host: url.host_str().unwrap_or_default().to_owned(),
            }),
            "file" => file_path(text, &url).map(Self::File),
            scheme => Err(UriError::Scheme {
                scheme: scheme.to_owned(),
            }),
        }
    }
}

/// An address of a mirror or of a compatible service, under the same rules as a source.
pub fn parse_endpoint(text: &str, plain_http: PlainHttp) -> Result<Url, UriError> {
    match ModelUri::parse_url(text, plain_http)? {
        ModelUri::Http(url) if url.query().is_none() && url.username().is_empty() => Ok(url),
        _ => Err(UriError::Form {
            scheme: "https",
            form: "https://HOST[:PORT][/PATH] where it names an endpoint",
        }),
    }
}

fn hugging_face(rest: &str) -> Result<HuggingFaceFile, UriError> {
    let wrong = UriError::Form {
        scheme: "hf",
        form: "hf://OWNER/REPO/PATH[@REVISION], with the path of one file in the repository",
    };
    let (rest, revision) = match rest.rsplit_once('@') {
        Some((rest, revision)) => (rest, revision),
        None => (rest, "main"),
    };
    let mut parts = rest.splitn(3, '/');
    let mut part = || parts.next().filter(|part| is_plain_path(part));
    let (Some(owner), Some(repository), Some(path)) = (part(), part(), part()) else {
        return Err(wrong);
    };
    // A revision may hold slashes, as in refs/pr/1.
    if !is_plain_path(revision) {
        return Err(wrong);
    }
    Ok(HuggingFaceFile {
        repository: format!("{owner}/{repository}"),
        path: path.to_owned(),
        revision: revision.to_owned(),
    })
}

fn object(scheme: &str, rest: &str) -> Result<ObjectUri, UriError> {
    let (cloud, rest) = match scheme {
        "s3" => (Cloud::S3, rest),
        "gs" => (Cloud::Google, rest),
        _ => {
            let (account, rest) = rest.split_once('/').unwrap_or_default();
            let account = account.to_owned();
            (Cloud::Azure { account }, rest)
        }
    };
    let (bucket, key) = rest.split_once('/').unwrap_or_default();
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    };
    let is_account = match &cloud {
        Cloud::Azure { account } => is_name(account),
        _ => true,
    };
    if !is_account || !is_name(bucket) || !is_plain_path(key) {
        return Err(object_form(&cloud));
    }
    let (bucket, key) = (bucket.to_owned(), key.to_owned());
    Ok(ObjectUri { cloud, bucket, key })
}

fn object_form(cloud: &Cloud) -> UriError {
    let (scheme, form) = match cloud {
        Cloud::S3 => ("s3", "s3://BUCKET/KEY, with the key of one object"),
        Cloud::Google => ("gs", "gs://BUCKET/KEY, with the key of one object"),
        Cloud::Azure { .. } => (
            "az",
            "az://ACCOUNT/CONTAINER/PATH, with the path of one blob",
        ),
    };
    UriError::Form { scheme, form }
}

fn oci(rest: &str) -> Result<OciFile, UriError> {
    let wrong = UriError::Form {
        scheme: "oci",
        form: "oci://REGISTRY/REPOSITORY[:TAG|@DIGEST]//FILE, with the title of one layer after //",
    };
    let parsed = rest.split_once("//").and_then(|(image, file)| {
        let (registry, image) = image.split_once('/')?;
        let (repository, reference) = match image.split_once('@') {
            Some((repository, digest)) => (untagged(repository), digest),
            None => image.rsplit_once(':').unwrap_or((image, "latest")),
        };
        let is_good = is_registry(registry)
            && is_repository(repository)
            && is_reference(reference)
            && is_plain_path(file);
        is_good.then(|| OciFile {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            reference: reference.to_owned(),
            file: file.to_owned(),
        })
    });
    parsed.ok_or(wrong)
}

/// Beside a digest a tag says nothing.
fn untagged(repository: &str) -> &str {
    repository.split(':').next().unwrap_or(repository)
}

fn is_registry(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}

fn is_repository(text: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-/".contains(&byte);
    is_plain_path(text) && text.bytes().all(is_allowed)
}

fn is_reference(text: &str) -> bool {
    match text.split_once(':') {
        Some((algorithm, digest)) => {
            algorithm == "sha256" && digest.parse::<crate::Sha256Digest>().is_ok()
        }
        None => {
            (1..=128).contains(&text.len())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
    }
}

/// A path of one file whose parts are names: none empty, none that climbs, no control characters.
fn is_plain_path(text: &str) -> bool {
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    text.len() <= 1024 && text.split('/').all(is_name) && !text.chars().any(char::is_control)
}

/// The parser mends `file:relative` to an absolute path, which is not what was meant.
fn file_path(text: &str, url: &Url) -> Result<PathBuf, UriError> {
    let is_absolute = text
        .get(..8)
        .is_some_and(|head| head.eq_ignore_ascii_case("file:///"));
    if is_absolute {
        url.to_file_path().map_err(|()| UriError::NotAbsolute)
    } else {
        Err(UriError::NotAbsolute)
    }
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The URL without user, password, query and fragment.
fn redacted(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let query = if url.query().is_some() { "?..." } else { "" };
    format!("{}://{host}{port}{}{query}", url.scheme(), url.path())
}

impl fmt::Display for ModelUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(url) => f.write_str(&redacted(url)),
            Self::File(path) => write!(f, "file://{}", path.display()),
            Self::HuggingFace(file) => write!(
                f,
                "hf://{}/{}@{}",
                file.repository, file.path, file.revision
            ),
            Self::Object(object) => match &object.cloud {
                Cloud::S3 => write!(f, "s3://{}/{}", object.bucket, object.key),
                Cloud::Google => write!(f, "gs://{}/{}", object.bucket, object.key),
                Cloud::Azure { account } => {
                    write!(f, "az://{account}/{}/{}", object.bucket, object.key)
                }
            },
            Self::Oci(file) => {
                let separator = if file.reference.contains(':') {
                    '@'
                } else {
                    ':'
                };
                write!(
                    f,
                    "oci://{}/{}{separator}{}//{}",
                    file.registry, file.repository, file.reference, file.file
                )
            }
        }
    }
}

impl fmt::Debug for ModelUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelUri({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::{ModelUri, PlainHttp, UriError};

    fn parse(text: &str) -> Result<ModelUri, UriError> {
        ModelUri::parse(text, PlainHttp::LoopbackOnly)
    }

    #[test]
    fn credentials_and_queries_are_never_shown() {
        let uri =
            parse("https://user:secret@example.org:8443/a/model.gguf?token=secret#secret").unwrap();
        assert_eq!(uri.to_string(), "https://example.org:8443/a/model.gguf?...");
        assert!(!format!("{uri:?}").contains("secret"));
    }

    #[test]
    fn plain_http_is_for_loopback_unless_allowed() {
        for here in [
            "http://localhost:1/x",
            "http://127.0.0.1/x",
            "http://[::1]:8/x",
        ] {
            assert!(matches!(parse(here), Ok(ModelUri::Http(_))), "{here}");
        }
        let there = "http://example.org/model.gguf";
        assert_eq!(
            parse(there),
            Err(UriError::PlainHttp {
                host: "example.org".into()
            })
        );
        assert!(ModelUri::parse(there, PlainHttp::Allowed).is_ok());
        assert!(parse("http://localhost.example.org/x").is_err());
    }

    #[test]
    fn files_need_an_absolute_path() {
        assert_eq!(
            parse("file:///models/a%20b.gguf"),
            Ok(ModelUri::File("/models/a b.gguf".into()))
        );
        for wrong in [
            "file://models/a.gguf",
            "file:models/a.gguf",
            "file:/models/a.gguf",
        ] {
            assert_eq!(parse(wrong), Err(UriError::NotAbsolute), "{wrong}");
        }
    }

    #[test]
    fn other_schemes_are_named() {
        assert_eq!(
            parse("ftp://host/x"),
            Err(UriError::Scheme {
                scheme: "ftp".into()
            })
        );
        assert_eq!(
            parse("pvc://claim/x"),
            Err(UriError::Scheme {
                scheme: "pvc".into()
            })
        );
        assert!(matches!(
            parse("model.gguf"),
            Err(UriError::Malformed { .. })
        ));
    }

    #[test]
    fn sources_of_every_scheme_are_shown_as_they_are_written() {
        for text in [
            "hf://owner/repo/sub/model.gguf@refs/pr/1",
            "s3://bucket/deep/a b+c%20\u{fc}.gguf",
            "gs://bucket/model.gguf",
            "az://account/container/model.gguf",
            "oci://registry.example:5000/team/models:v1//model.gguf",
            &format!("oci://ghcr.io/m@sha256:{}//sub/m.gguf", "0".repeat(64)),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            parse("hf://o/r/m.gguf").unwrap().to_string(),
            "hf://o/r/m.gguf@main"
        );
        assert_eq!(
            parse("oci://r.io/m//f").unwrap().to_string(),
            "oci://r.io/m:latest//f"
        );
    }

    #[test]
    fn what_a_scheme_does_not_ask_for_is_refused_with_its_form() {
        for wrong in [
            "hf://owner/repo",
            "hf://owner/repo/",
            "hf://owner/../m.gguf",
            "hf://owner/repo/m.gguf@",
            "s3://bucket",
            "s3://bucket/",
            "s3:///key",
            "s3://bucket/a//b",
            "s3://bucket/../b",
            "s3://user@bucket/b",
            "gs://bucket/",
            "az://account/container",
            "az://account//blob",
            "oci://registry/repo",
            "oci://registry//file",
            "oci://registry/Repo//file",
            "oci://registry/repo@sha256:12//file",
            "oci://registry/repo:t//",
            "oci://registry/repo:t//../f",
            "oci://user@registry/repo//f",
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.to_string().contains("is written"), "{wrong}: {error}");
        }
    }

    #[test]
    fn endpoints_obey_the_rules_of_sources() {
        let endpoint = |text| super::parse_endpoint(text, PlainHttp::LoopbackOnly);
        assert!(endpoint("https://mirror.example/hf").is_ok());
        assert!(endpoint("http://127.0.0.1:9000").is_ok());
        for wrong in [
            "http://mirror.example",
            "https://u:p@mirror.example",
            "https://m/?q",
            "file:///x",
            "mirror",
        ] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
