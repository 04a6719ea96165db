//! Sources of every scheme against servers on loopback that speak like them.

mod server;
#[path = "server/sigv4.rs"]
mod sigv4;

use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use pagoda_source::{
    FetchError, FetchRequest, Fetched, ModelUri, PlainHttp, RetryPolicy, Sha256Digest, fetch,
    parse_endpoint,
};
use serde_json::json;
use server::{Head, Reply, Server};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const TAG: &str = "\"v1\"";
const SECRET: &str = "secret-token-5150";

/// Three pieces.
fn body() -> &'static [u8] {
    static BODY: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..5_000_000_u32).flat_map(u32::to_le_bytes).collect());
    &BODY
}

fn digest(bytes: &[u8]) -> Sha256Digest {
    Sha256Digest(Sha256::digest(bytes).into())
}

/// A request for `uri` at `endpoint`, with these credentials if any.
fn request(uri: &str, endpoint: Option<&str>, secrets: &[(&str, &str)]) -> (TempDir, FetchRequest) {
    let directory = tempfile::tempdir().unwrap();
    let secrets_at = directory.path().join("credentials");
    std::fs::create_dir(&secrets_at).unwrap();
    for (name, value) in secrets {
        std::fs::write(secrets_at.join(name), value).unwrap();
    }
    let endpoint = endpoint.map(|text| parse_endpoint(text, PlainHttp::LoopbackOnly).unwrap());
    let request = FetchRequest {
        endpoint,
        credentials: Some(secrets_at),
        connections: 3,
        retry: RetryPolicy {
            attempts: 3,
            first_delay: Duration::from_millis(1),
            longest_delay: Duration::from_millis(4),
            ..RetryPolicy::default()
        },
        ..FetchRequest::new(
            ModelUri::parse(uri, PlainHttp::LoopbackOnly).unwrap(),
            directory.path().join("model.gguf"),
        )
    };
    (directory, request)
}

async fn run(request: &FetchRequest) -> Result<Fetched, FetchError> {
    fetch(request, |_| ()).await
}

fn assert_brought(path: &Path) {
    assert!(std::fs::read(path).unwrap() == body());
}

/// What every store answers: the range, the version, and when it was made.
fn stored(head: &Head) -> Reply {
    let asked = head.header("if-match").or(head.if_range.as_deref());
    if asked.is_some_and(|asked| asked != TAG) {
        return Reply::status(412);
    }
    Reply::range(head, body())
        .header("ETag", TAG)
        .header("Last-Modified", "Mon, 30 Nov 2026 10:00:00 GMT")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_is_asked_with_its_token_and_the_redirect_gets_none() {
    let cdn = Server::start(|_, head| stored(head)).await;
    // Another name of this machine is another host to a client.
    let target = format!("http://localhost:{}/blob?signature=abc", cdn.port());
    let hub = Server::start(move |_, head| {
        assert_eq!(head.path, "/owner/repo/resolve/main/sub/model.gguf");
        if head.header("authorization") == Some(&format!("Bearer {SECRET}")) {
            Reply::redirect(&target)
        } else {
            Reply::status(401).header("X-Error-Code", "GatedRepo")
        }
    })
    .await;
    for key in ["token", "HF_TOKEN"] {
        let (directory, request) = request(
            "hf://owner/repo/sub/model.gguf",
            Some(&hub.uri("")),
            &[(key, &format!("{SECRET}\n"))],
        );
        run(&request).await.unwrap();
        assert_brought(&directory.path().join("model.gguf"));
    }
    assert!(cdn.requests().len() >= 6, "several ranges each");
    for head in cdn.requests() {
        assert_eq!(head.header("authorization"), None);
        assert_eq!(head.header("referer"), None);
        assert!(!format!("{head:?}").contains(SECRET));
    }
    assert_eq!(
        hub.requests().len(),
        2,
        "ranges go straight to where the first was led"
    );
    let (_directory, refused) = request("hf://owner/repo/sub/model.gguf", Some(&hub.uri("")), &[]);
    let error = run(&refused).await.unwrap_err();
    assert!(matches!(error, FetchError::Unauthorized { .. }), "{error}");
    assert!(error.to_string().contains("GatedRepo"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_redirect_that_expires_midway_is_asked_for_again() {
    let cdn = Server::start(|nth, head| {
        // The first signature is good for two requests.
        if head.query == "signature=1" && nth >= 2 {
            return Reply::status(403);
        }
        stored(head)
    })
    .await;
    let port = cdn.port();
    let hub = Server::start(move |nth, _| {
        Reply::redirect(&format!(
            "http://localhost:{port}/blob?signature={}",
            nth + 1
        ))
    })
    .await;
    let (directory, request) = request("hf://owner/repo/m.gguf@v1.0", Some(&hub.uri("")), &[]);
    run(&request).await.unwrap();
    assert_brought(&directory.path().join("model.gguf"));
    assert!(hub.requests().len() >= 2);
}

#[tokio::test]
async fn no_failure_repeats_a_token() {
    for status in [401, 403, 404, 400, 500] {
        let server = Server::start(move |_, head| {
            // A server that repeats what it was sent.
            let sent = head.header("authorization").unwrap_or_default();
            Reply::page(status, &format!("<Error><Code>{sent}</Code></Error>"))
                .header("X-Error-Code", sent)
        })
        .await;
        let uri = server.uri("/m.gguf");
        let (_directory, request) = request(&uri, None, &[("token", SECRET)]);
        let error = run(&request).await.unwrap_err();
        assert!(!format!("{error:?} {error}").contains(SECRET), "{error}");
        assert_eq!(
            server.requests()[0].header("authorization"),
            Some(format!("Bearer {SECRET}").as_str())
        );
    }
}

const S3_SECRETS: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", sigv4::KEY_ID),
    ("AWS_SECRET_ACCESS_KEY", sigv4::SECRET),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_object_comes_in_ranges_each_soundly_signed() {
    let server = Server::start(|_, head| {
        if head.path == "/bucket/deep/a%20b%2Bc.gguf" && sigv4::is_signed(head, "eu-west-7") {
            stored(head)
        } else {
            Reply::status(403)
        }
    })
    .await;
    let uri = "s3://bucket/deep/a b+c.gguf";
    let (directory, mut request) = request(uri, Some(&server.uri("/")), &S3_SECRETS);
    request.region = Some("eu-west-7".into());
    run(&request).await.unwrap();
    assert_brought(&directory.path().join("model.gguf"));
    let ranges: Vec<Head> = server
        .requests()
        .into_iter()
        .filter(|head| head.range.is_some())
        .collect();
    assert!(ranges.len() >= 2);
    assert!(
        ranges
            .iter()
            .all(|head| head.header("if-match") == Some(TAG))
    );
    std::fs::remove_file(&request.destination).unwrap();
    request.region = None;
    let error = run(&request).await.unwrap_err();
    assert!(
        matches!(error, FetchError::Unauthorized { .. }),
        "another region is another signature: {error}"
    );
}

#[tokio::test]
async fn a_session_token_goes_with_the_signature() {
    let server = Server::start(|_, head| {
        let is_good = sigv4::is_signed(head, "us-east-1")
            && head.header("x-amz-security-token") == Some("session");
        if is_good {
            stored(head)
        } else {
            Reply::status(403)
        }
    })
    .await;
    let secrets = [
        S3_SECRETS[0],
        S3_SECRETS[1],
        ("AWS_SESSION_TOKEN", "session"),
    ];
    let (directory, request) = request("s3://bucket/m.gguf", Some(&server.uri("")), &secrets);
    run(&request).await.unwrap();
    assert_brought(&directory.path().join("model.gguf"));
}

#[tokio::test]
async fn stores_are_asked_anonymously_without_credentials() {
    for (uri, path) in [
        ("s3://bucket/m.gguf", "/bucket/m.gguf"),
        ("gs://bucket/m.gguf", "/bucket/m.gguf"),
        ("az://account/container/m.gguf", "/container/m.gguf"),
    ] {
        let server = Server::start(move |_, head| {
            let is_anonymous = head.header("authorization").is_none();
            // Escaping more than needed changes nothing.
            if head.path.replace("%2E", ".") == path && is_anonymous {
                stored(head)
            } else {
                Reply::status(400)
            }
        })
        .await;
        let (directory, request) = request(uri, Some(&server.uri("")), &[]);
        run(&request)
            .await
            .unwrap_or_else(|error| panic!("{error}, asked {:?}", server.requests()));
        assert_brought(&directory.path().join("model.gguf"));
    }
}

#[tokio::test]
async fn a_blob_is_asked_for_with_the_accounts_key_or_a_signed_query() {
    let server = Server::start(|_, head| {
        let by_key = head
            .header("authorization")
            .is_some_and(|value| value.starts_with("SharedKey account:"));
        let by_query = head.query.contains("sig=abc");
        if by_key || by_query {
            stored(head)
        } else {
            Reply::status(403)
        }
    })
    .await;
    for secret in [
        ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0LXRva2VuLTUxNTA="),
        ("AZURE_STORAGE_SAS_TOKEN", "?sv=2024-01-01&sig=abc"),
    ] {
        let (directory, request) = request(
            "az://account/container/m.gguf",
            Some(&server.uri("")),
            &[secret],
        );
        run(&request).await.unwrap();
        assert_brought(&directory.path().join("model.gguf"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_changes_midway_is_fetched_anew_and_never_mixed() {
    let new: Vec<u8> = body().iter().map(|byte| !byte).collect();
    let changed = new.clone();
    let server = Server::start(move |nth, head| {
        if nth == 0 {
            return stored(head).cut(9_000_000);
        }
        if head.header("if-match").is_some_and(|tag| tag != "\"v2\"") {
            return Reply::status(412);
        }
        Reply::range(head, &changed)
            .header("ETag", "\"v2\"")
            .header("Last-Modified", "Mon, 30 Nov 2026 10:00:01 GMT")
    })
    .await;
    for uri in ["s3://bucket/m.gguf", "gs://bucket/m.gguf"] {
        let (_directory, request) = request(uri, Some(&server.uri("")), &[]);
        assert_eq!(run(&request).await.unwrap().sha256, digest(&new));
    }
}

#[tokio::test]
async fn what_a_store_refuses_has_a_name_and_no_secret() {
    let cases = [
        (404, "<Error><Code>NoSuchKey</Code></Error>", "NoSuchKey"),
        (
            403,
            "<Error><Code>SignatureDoesNotMatch</Code><StringToSign>x</StringToSign></Error>",
            "SignatureDoesNotMatch",
        ),
        (
            301,
            "<Error><Code>PermanentRedirect</Code></Error>",
            "region and endpoint",
        ),
        (503, "<Error><Code>SlowDown</Code></Error>", "SlowDown"),
    ];
    for (status, page, word) in cases {
        let server = Server::start(move |_, _| Reply::page(status, page)).await;
        let (_directory, request) =
            request("s3://bucket/m.gguf", Some(&server.uri("")), &S3_SECRETS);
        let error = run(&request).await.unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert!(error.to_string().contains("s3://bucket/m.gguf"), "{error}");
        assert!(!format!("{error:?}").contains(sigv4::SECRET), "{error}");
        let is_named = match status {
            404 => matches!(error, FetchError::ModelNotFound { .. }),
            403 => matches!(error, FetchError::Unauthorized { .. }),
            _ => matches!(error, FetchError::DownloadFailed { .. }),
        };
        assert!(is_named, "{error:?}");
        let tries = if status == 503 { 3 } else { 1 };
        assert_eq!(server.requests().len(), tries, "{error}");
    }
    let half = [("AWS_ACCESS_KEY_ID", "x")];
    let (_directory, request) = request("s3://bucket/m.gguf", None, &half);
    let error = run(&request).await.unwrap_err();
    assert!(
        error.to_string().contains("AWS_SECRET_ACCESS_KEY"),
        "{error}"
    );
    let (_directory, request) = self::request(
        "gs://bucket/m.gguf",
        None,
        &[("GOOGLE_SERVICE_ACCOUNT_KEY", SECRET)],
    );
    let error = run(&request).await.unwrap_err();
    assert!(!error.to_string().contains(SECRET), "{error}");
}

/// A registry that wants a token for everything, and hands it out for `user:password`.
struct Registry {
    /// Requests that a token is good for.
    token_lasts: usize,
    layer: String,
}

impl Registry {
    fn answer(&self, port: u16, uses: &Mutex<(usize, usize)>, head: &Head) -> Reply {
        let mut uses = uses.lock().unwrap();
        if head.path == "/token" {
            assert!(
                head.query
                    .contains("scope=repository%3Ateam%2Fmodels%3Apull"),
                "{}",
                head.query
            );
            if head.header("authorization") != Some("Basic dXNlcjpwYXNzd29yZA==") {
                return Reply::status(401);
            }
            *uses = (uses.0 + 1, 0);
            return Reply::json(&json!({"token": format!("{SECRET}-{}", uses.0)}));
        }
        uses.1 += 1;
        let is_known = head.header("authorization") == Some(&format!("Bearer {SECRET}-{}", uses.0));
        if !is_known || uses.1 > self.token_lasts {
            let challenge = format!(
                "Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"registry\",scope=\"repository:team/models:pull\""
            );
            return Reply::status(401).header("WWW-Authenticate", &challenge);
        }
        if head.path == "/v2/team/models/manifests/v1" {
            return Reply::json(&json!({"schemaVersion": 2, "layers": [
                {"digest": format!("sha256:{}", "0".repeat(64)), "size": 1, "annotations": {"org.opencontainers.image.title": "README.md"}},
                {"digest": self.layer, "size": 20_000_000, "annotations": {"org.opencontainers.image.title": "model.gguf"}},
            ]}));
        }
        if head.path == format!("/v2/team/models/blobs/{}", self.layer) {
            return stored(head);
        }
        Reply::status(404)
    }

    async fn start(self) -> Server {
        let uses = Mutex::new((0, 0));
        let port = std::sync::OnceLock::new();
        let port = std::sync::Arc::new(port);
        let told = port.clone();
        let server =
            Server::start(move |_, head| self.answer(*told.get().unwrap(), &uses, head)).await;
        port.set(server.port()).unwrap();
        server
    }
}

fn docker_config(server: &Server) -> String {
    json!({"auths": {format!("127.0.0.1:{}", server.port()): {"username": "user", "password": "password"}}}).to_string()
}

fn layer() -> String {
    format!("sha256:{}", digest(body()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_is_found_by_its_title_with_a_token_and_is_what_its_digest_says() {
    for token_lasts in [usize::MAX, 3] {
        let server = Registry {
            token_lasts,
            layer: layer(),
        }
        .start()
        .await;
        let uri = format!(
            "oci://127.0.0.1:{}/team/models:v1//model.gguf",
            server.port()
        );
        let (directory, request) = request(
            &uri,
            None,
            &[(".dockerconfigjson", &docker_config(&server))],
        );
        assert_eq!(run(&request).await.unwrap().sha256, digest(body()));
        assert_brought(&directory.path().join("model.gguf"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_an_artifact_is_told() {
    let other = format!("sha256:{}", digest(b"other"));
    let server = Registry {
        token_lasts: usize::MAX,
        layer: other,
    }
    .start()
    .await;
    let config = docker_config(&server);
    let fetch_file = async |reference: &str, config: Option<&str>| {
        let uri = format!("oci://127.0.0.1:{}/team/models{reference}", server.port());
        let secrets: Vec<(&str, &str)> = config
            .map(|config| (".dockerconfigjson", config))
            .into_iter()
            .collect();
        let (_directory, request) = request(&uri, None, &secrets);
        run(&request).await.unwrap_err()
    };
    let error = fetch_file(":v1//model.gguf", Some(&config)).await;
    assert!(matches!(error, FetchError::HashMismatch { .. }), "{error}");
    let error = fetch_file(":v1//absent.gguf", Some(&config)).await;
    assert!(
        matches!(error, FetchError::ModelNotFound { .. })
            && error.to_string().contains("README.md"),
        "{error}"
    );
    let error = fetch_file(":v2//model.gguf", Some(&config)).await;
    assert!(matches!(error, FetchError::ModelNotFound { .. }), "{error}");
    let error = fetch_file(":v1//model.gguf", None).await;
    assert!(matches!(error, FetchError::Unauthorized { .. }), "{error}");
}

#[tokio::test]
async fn a_manifest_of_another_digest_than_asked_for_is_not_trusted() {
    let server = Server::start(|_, _| Reply::json(&json!({"layers": []}))).await;
    let uri = format!(
        "oci://127.0.0.1:{}/m@sha256:{}//f",
        server.port(),
        "0".repeat(64)
    );
    let (_directory, request) = request(&uri, None, &[]);
    let error = run(&request).await.unwrap_err();
    assert!(error.to_string().contains("do not trust it"), "{error}");
}
