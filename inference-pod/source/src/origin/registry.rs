//! What registries and their credentials say, as values.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::credentials::Secret;
use crate::digest::Sha256Digest;

/// Annotation that names a layer's file.
const TITLE: &str = "org.opencontainers.image.title";
/// Annotation on a layer that is a packed directory.
const UNPACK: &str = "io.deis.oras.content.unpack";

/// A manifest, or an index of manifests.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    #[serde(default)]
    pub(super) layers: Vec<Descriptor>,
    #[serde(default)]
    pub(super) manifests: Vec<Descriptor>,
}

/// A blob by its digest.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Descriptor {
    pub(super) digest: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

/// The layer of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) sha256: Sha256Digest,
}

/// The digest, if it is a SHA-256 one.
pub(super) fn sha256(digest: &str) -> Option<Sha256Digest> {
    digest.strip_prefix("sha256:")?.parse().ok()
}

impl Manifest {
    /// The layer titled `file`; an error says what there is instead.
    pub(super) fn layer(&self, file: &str) -> Result<Layer, String> {
        let titled = |layer: &&Descriptor| layer.annotations.get(TITLE).is_some_and(|t| t == file);
        let Some(layer) = self.layers.iter().find(titled) else {
            let titles = self.layers.iter().filter_map(|l| l.annotations.get(TITLE));
            let titles: Vec<String> = titles
                .take(8)
                .map(|title| format!("{title:.80?}"))
                .collect();
            return Err(format!(
                "the artifact has no layer titled {file:?}, it has [{}]",
                titles.join(", ")
            ));
        };
        if layer
            .annotations
            .get(UNPACK)
            .is_some_and(|value| value == "true")
        {
            return Err(format!(
                "the layer {file:?} is a packed directory, not a file"
            ));
        }
        let sha256 = sha256(&layer.digest);
        let sha256 = sha256.ok_or_else(|| format!("the layer {file:?} has no SHA-256 digest"))?;
        Ok(Layer { sha256 })
    }
}

/// What a registry asks for in `WWW-Authenticate`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// Reads a challenge.
pub(super) fn challenge(header: &str) -> Option<Challenge> {
    let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let parameters = parameters(rest);
    let get = |name: &str| {
        let found = parameters
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    };
    Some(Challenge::Bearer {
        realm: get("realm")?,
        service: get("service"),
        scope: get("scope"),
    })
}

/// `a="x,y",b=z` as pairs.
fn parameters(mut text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    while let Some((name, rest)) = text.split_once('=') {
        let (value, rest) = if let Some(quoted) = rest.strip_prefix('"') {
            quoted.split_once('"').unwrap_or((quoted, ""))
        } else {
            rest.split_at(rest.find(',').unwrap_or(rest.len()))
        };
        pairs.push((name.trim_matches([',', ' ']).to_owned(), value.to_owned()));
        text = rest;
    }
    pairs
}

/// Where a token comes from.
#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

/// The token in a token server's answer.
pub(super) fn token(body: &[u8]) -> Option<Secret> {
    let answer: TokenAnswer = serde_json::from_slice(body).ok()?;
    answer.token.or(answer.access_token).map(Secret::new)
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: std::collections::BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

/// User and password for `registry` in a `.dockerconfigjson`, as `user:password` in base64.
pub(super) fn basic_auth(config: &Secret, registry: &str) -> Result<Option<Secret>, String> {
    // A parser's error may repeat a piece of the text.
    let config: DockerConfig = serde_json::from_str(config.reveal())
        .map_err(|_| "the credential .dockerconfigjson is no JSON of `docker login`".to_owned())?;
    let matching = config
        .auths
        .into_iter()
        .find(|(name, _)| host(name) == host(registry));
    let Some((_, entry)) = matching else {
        return Ok(None);
    };
    Ok(match (entry.auth, entry.username, entry.password) {
        (Some(auth), _, _) if !auth.is_empty() => Some(Secret::new(auth)),
        (_, Some(user), Some(password)) => {
            Some(Secret::new(STANDARD.encode(format!("{user}:{password}"))))
        }
        _ => None,
    })
}

/// The host in a name of `docker login`, which may be an address; Docker Hub has several names.
fn host(name: &str) -> &str {
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    match name.split('/').next().unwrap_or(name) {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Challenge, Manifest, basic_auth, challenge};
    use crate::credentials::Secret;

    #[test]
    fn the_layer_of_a_file_is_chosen_by_its_title() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let manifest: Manifest = serde_json::from_value(serde_json::json!({"layers": [
            {"digest": digest, "annotations": {"org.opencontainers.image.title": "m.gguf"}},
            {"digest": "sha512:00", "annotations": {"org.opencontainers.image.title": "odd"}},
            {"digest": digest, "annotations": {
                "org.opencontainers.image.title": "folder", "io.deis.oras.content.unpack": "true"}},
            {"digest": digest}
        ]}))
        .unwrap();
        assert_eq!(
            manifest.layer("m.gguf").unwrap().sha256.to_string(),
            "ab".repeat(32)
        );
        assert!(manifest.layer("n.gguf").unwrap_err().contains("m.gguf"));
        assert!(manifest.layer("odd").unwrap_err().contains("SHA-256"));
        assert!(manifest.layer("folder").unwrap_err().contains("packed"));
    }

    #[test]
    fn challenges_are_read_with_commas_inside_quotes() {
        let header =
            r#"Bearer realm="https://auth/token",service="r.io", scope="repository:m:pull,push""#;
        assert_eq!(
            challenge(header),
            Some(Challenge::Bearer {
                realm: "https://auth/token".into(),
                service: Some("r.io".into()),
                scope: Some("repository:m:pull,push".into()),
            })
        );
        assert_eq!(challenge("Basic realm=x"), Some(Challenge::Basic));
        assert_eq!(challenge("Negotiate"), None);
        assert_eq!(challenge("Bearer service=x"), None);
    }

    proptest! {
        #[test]
        fn no_challenge_breaks_the_reader(text in "\\PC{0,80}", tail in "[a-z=\", ]{0,60}") {
            challenge(&text);
            challenge(&format!("Bearer {tail}"));
        }
    }

    #[test]
    fn credentials_belong_to_their_registry() {
        let config = Secret::new(
            r#"{"auths":{"https://r.io/v1/":{"auth":"dTpw"},"s.io":{"username":"u","password":"q"}}}"#,
        );
        let auth = |registry| {
            basic_auth(&config, registry)
                .unwrap()
                .map(|auth| auth.reveal().to_owned())
        };
        assert_eq!(auth("r.io").as_deref(), Some("dTpw"));
        assert_eq!(auth("s.io").as_deref(), Some("dTpx"));
        assert_eq!(auth("other.io"), None);
        let broken = basic_auth(&Secret::new("{\"auths\": secret"), "r.io").unwrap_err();
        assert!(!broken.contains("secret"));
    }
}
