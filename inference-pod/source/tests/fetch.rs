//! Fetches from a scripted server on loopback, and from files.

mod server;

use std::path::Path;
use std::time::Duration;

use pagoda_source::{
    FetchError, FetchRequest, Fetched, ModelUri, Phase, PlainHttp, Progress, Sha256Digest, fetch,
};
use server::{Reply, Server, request};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn body() -> Vec<u8> {
    (0..300_000_u32).flat_map(u32::to_le_bytes).collect()
}

fn digest(bytes: &[u8]) -> Sha256Digest {
    Sha256Digest(Sha256::digest(bytes).into())
}

async fn run(request: &FetchRequest) -> Result<Fetched, FetchError> {
    fetch(request, |_| ()).await
}

fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn assert_in_place(directory: &TempDir, request: &FetchRequest, bytes: &[u8]) {
    assert_eq!(std::fs::read(&request.destination).unwrap(), bytes);
    assert_eq!(
        files(directory.path()),
        ["model.gguf"],
        "nothing else is left"
    );
}

#[tokio::test]
async fn a_whole_file_is_fetched_verified_and_put_in_place() {
    let server = Server::start(|_, _| Reply::ok(&body()).header("ETag", "\"v1\"")).await;
    let (directory, mut request) = request(&server.uri("/model.gguf?token=secret"));
    request.sha256 = Some(digest(&body()));
    let mut seen = Vec::new();
    let fetched = fetch(&request, |progress| seen.push(progress))
        .await
        .unwrap();
    assert_eq!(
        fetched,
        Fetched {
            bytes: body().len() as u64,
            sha256: digest(&body()),
            was_present: false
        }
    );
    assert_in_place(&directory, &request, &body());
    let total_bytes = Some(body().len() as u64);
    assert_eq!(
        seen.last(),
        Some(&Progress {
            phase: Phase::Fetching,
            bytes: fetched.bytes,
            total_bytes
        })
    );
    assert!(seen.windows(2).all(|pair| pair[0].bytes <= pair[1].bytes));
}

#[tokio::test]
async fn what_is_there_already_is_not_fetched_again() {
    let server = Server::start(|_, _| Reply::status(500)).await;
    let (directory, mut request) = request(&server.uri("/model.gguf"));
    std::fs::write(&request.destination, body()).unwrap();
    for sha256 in [None, Some(digest(&body()))] {
        request.sha256 = sha256;
        assert!(run(&request).await.unwrap().was_present);
    }
    assert_eq!(server.requests().len(), 0);
    assert_in_place(&directory, &request, &body());
}

#[tokio::test]
async fn a_file_of_another_hash_at_the_destination_is_replaced() {
    let server = Server::start(|_, _| Reply::ok(&body())).await;
    let (directory, mut request) = request(&server.uri("/model.gguf"));
    std::fs::write(&request.destination, "old").unwrap();
    request.sha256 = Some(digest(&body()));
    assert!(!run(&request).await.unwrap().was_present);
    assert_in_place(&directory, &request, &body());
}

#[tokio::test]
async fn a_broken_download_goes_on_where_it_broke() {
    let server = Server::start(|nth, head| match nth {
        0 => Reply::ok(&body()).header("ETag", "\"v1\"").cut(500_000),
        _ => Reply::range(head, &body()).header("ETag", "\"v1\""),
    })
    .await;
    let (directory, mut request) = request(&server.uri("/model.gguf"));
    request.sha256 = Some(digest(&body()));
    run(&request).await.unwrap();
    assert_in_place(&directory, &request, &body());
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[0].range.is_none());
    assert!(
        requests[1]
            .range
            .is_some_and(|start| start > 0 && start <= 500_000)
    );
    assert_eq!(requests[1].if_range.as_deref(), Some("\"v1\""));
}

#[tokio::test]
async fn a_later_process_takes_up_the_part_it_finds() {
    let server = Server::start(|nth, head| match nth {
        0 => Reply::ok(&body()).header("ETag", "\"v1\"").cut(400_000),
        _ => Reply::range(head, &body()).header("ETag", "\"v1\""),
    })
    .await;
    let (directory, mut request) = request(&server.uri("/model.gguf"));
    request.sha256 = Some(digest(&body()));
    request.retry.attempts = 1;
    let error = run(&request).await.unwrap_err();
    assert!(
        matches!(error, FetchError::DownloadFailed { .. }),
        "{error}"
    );
    assert_eq!(
        files(directory.path()),
        ["model.gguf.partial", "model.gguf.partial.json"]
    );
    request.retry.attempts = 6;
    let mut phases = Vec::new();
    fetch(&request, |progress| phases.push(progress.phase))
        .await
        .unwrap();
    assert_eq!(
        phases.first(),
        Some(&Phase::Hashing),
        "the part is hashed, not fetched"
    );
    assert!(server.requests()[1].range.is_some());
    assert_in_place(&directory, &request, &body());
}

#[tokio::test]
async fn a_part_of_another_source_is_not_taken_up() {
    let server = Server::start(|nth, head| match nth {
        0 => Reply::ok(&vec![7; 300_000]).cut(200_000),
        _ => Reply::range(head, &body()),
    })
    .await;
    let (directory, mut first) = request(&server.uri("/other.gguf"));
    first.sha256 = Some(digest(&vec![7; 300_000]));
    first.retry.attempts = 1;
    run(&first).await.unwrap_err();
    let uri = ModelUri::parse(&server.uri("/model.gguf"), PlainHttp::LoopbackOnly).unwrap();
    let second = FetchRequest {
        uri,
        sha256: Some(digest(&body())),
        ..first
    };
    run(&second).await.unwrap();
    assert!(server.requests()[1].range.is_none());
    assert_in_place(&directory, &second, &body());
}

#[tokio::test]
async fn a_server_that_ignores_ranges_is_read_from_the_start() {
    let server = Server::start(|nth, _| {
        let reply = Reply::ok(&body()).header("ETag", "\"v1\"");
        if nth == 0 { reply.cut(500_000) } else { reply }
    })
    .await;
    let (directory, request) = request(&server.uri("/model.gguf"));
    assert_eq!(run(&request).await.unwrap().sha256, digest(&body()));
    assert_in_place(&directory, &request, &body());
}

#[tokio::test]
async fn a_file_that_changes_midway_is_fetched_anew_and_never_mixed() {
    let new: Vec<u8> = body().iter().map(|byte| !byte).collect();
    let changed = new.clone();
    let server = Server::start(move |nth, head| match nth {
        0 => Reply::ok(&body()).header("ETag", "\"v1\"").cut(500_000),
        // A server that heeds the range and not If-Range.
        1 => Reply::range(head, &changed).header("ETag", "\"v2\""),
        _ => Reply::ok(&changed).header("ETag", "\"v2\""),
    })
    .await;
    let (directory, request) = request(&server.uri("/model.gguf"));
    assert_eq!(run(&request).await.unwrap().sha256, digest(&new));
    assert_in_place(&directory, &request, &new);
    assert!(server.requests()[2].range.is_none());
}

#[tokio::test]
async fn without_version_and_hash_a_broken_download_starts_anew() {
    let server = Server::start(|nth, _| {
        if nth == 0 {
            Reply::ok(&body()).cut(500_000)
        } else {
            Reply::ok(&body())
        }
    })
    .await;
    let (directory, request) = request(&server.uri("/model.gguf"));
    run(&request).await.unwrap();
    assert!(server.requests()[1].range.is_none());
    assert_in_place(&directory, &request, &body());
}

#[tokio::test]
async fn a_part_that_is_whole_needs_no_more_bytes() {
    let server = Server::start(|nth, head| match nth {
        0 => Reply::ok(&body())
            .header("ETag", "\"v1\"")
            .chunked_and_cut(),
        _ => Reply::range(head, &body()),
    })
    .await;
    let (directory, request) = request(&server.uri("/model.gguf"));
    run(&request).await.unwrap();
    assert_eq!(
        server.requests()[1].range,
        Some(body().len() as u64),
        "answered by 416"
    );
    assert_in_place(&directory, &request, &body());
}

#[tokio::test]
async fn a_wrong_hash_names_both_removes_the_file_and_the_next_try_fetches_anew() {
    let server = Server::start(|nth, _| {
        if nth == 0 {
            Reply::ok(b"tampered")
        } else {
            Reply::ok(&body())
        }
    })
    .await;
    let (directory, mut request) = request(&server.uri("/model.gguf"));
    request.sha256 = Some(digest(&body()));
    let error = run(&request).await.unwrap_err();
    let (expected, found) = (digest(&body()), digest(b"tampered"));
    assert_eq!(
        error,
        FetchError::HashMismatch {
            source_uri: server.uri("/model.gguf"),
            expected,
            found
        }
    );
    assert!(
        error.to_string().contains(&expected.to_string())
            && error.to_string().contains(&found.to_string())
    );
    assert!(files(directory.path()).is_empty());
    run(&request).await.unwrap();
    assert_in_place(&directory, &request, &body());
}

#[tokio::test]
async fn a_missing_model_is_told_apart_at_once() {
    for status in [404, 410] {
        let server = Server::start(move |_, _| Reply::status(status)).await;
        let (_directory, request) = request(&server.uri("/model.gguf?token=secret"));
        let error = run(&request).await.unwrap_err();
        assert!(matches!(error, FetchError::ModelNotFound { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("{status}"))
                && !error.to_string().contains("secret"),
            "{error}"
        );
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_refusal_is_not_retried_and_an_overload_is() {
    let server = Server::start(|_, _| Reply::status(403)).await;
    let (_directory, refused) = request(&server.uri("/model.gguf"));
    let error = run(&refused).await.unwrap_err();
    assert!(matches!(error, FetchError::Unauthorized { .. }), "{error}");
    assert!(error.to_string().contains("wants credentials"), "{error}");
    assert_eq!(server.requests().len(), 1);

    let server = Server::start(|nth, _| {
        if nth < 3 {
            Reply::status(503)
        } else {
            Reply::ok(&body())
        }
    })
    .await;
    let (directory, request) = request(&server.uri("/model.gguf"));
    let mut waits = 0;
    fetch(&request, |progress| {
        waits += u32::from(matches!(progress.phase, Phase::Waiting { .. }));
    })
    .await
    .unwrap();
    assert_eq!(waits, 3);
    assert_in_place(&directory, &request, &body());
}

#[tokio::test]
async fn patience_ends_and_says_after_what() {
    let server = Server::start(|_, _| Reply::status(500)).await;
    let (_directory, request) = request(&server.uri("/model.gguf"));
    let error = run(&request).await.unwrap_err();
    assert!(
        matches!(error, FetchError::DownloadFailed { .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("500") && error.to_string().contains("4 attempts"),
        "{error}"
    );
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn a_server_that_trickles_cannot_hold_us_for_ever() {
    let server = Server::start(|nth, head| {
        Reply::range(head, &body())
            .header("ETag", "\"v1\"")
            .cut(nth + 1)
    })
    .await;
    let (_directory, mut request) = request(&server.uri("/model.gguf"));
    request.retry.total_attempts = 7;
    let error = run(&request).await.unwrap_err();
    assert!(error.to_string().contains("7 attempts"), "{error}");
}

#[tokio::test]
async fn a_server_that_falls_silent_is_left_and_asked_again() {
    let server = Server::start(|nth, head| match nth {
        0 => Reply::ok(&body()).header("ETag", "\"v1\"").stall(500_000),
        1 => Reply::silence(),
        _ => Reply::range(head, &body()).header("ETag", "\"v1\""),
    })
    .await;
    let (directory, mut request) = request(&server.uri("/model.gguf"));
    request.retry.stall_timeout = Duration::from_millis(500);
    run(&request).await.unwrap();
    assert_in_place(&directory, &request, &body());
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_a_download_failure() {
    let server = Server::start(|_, _| Reply::status(500)).await;
    let uri = server.uri("/model.gguf");
    drop(server);
    let (_directory, request) = request(&uri);
    let error = run(&request).await.unwrap_err();
    assert!(
        matches!(error, FetchError::DownloadFailed { .. }),
        "{error}"
    );
}

#[tokio::test]
async fn redirects_are_followed_within_bounds() {
    let server = Server::start(|_, head| match head.path.as_str() {
        "/a" => Reply::redirect("/model.gguf"),
        "/loop" => Reply::redirect("/loop"),
        "/out" => Reply::redirect("http://198.18.0.1/model.gguf"),
        _ => Reply::ok(&body()),
    })
    .await;
    let (directory, followed) = request(&server.uri("/a"));
    run(&followed).await.unwrap();
    assert_in_place(&directory, &followed, &body());
    for (path, reason) in [("/loop", "redirects too often"), ("/out", "less secure")] {
        let (_directory, request) = request(&server.uri(path));
        let error = run(&request).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn a_model_over_the_limit_is_refused_whether_announced_or_not() {
    let server = Server::start(|_, head| {
        let reply = Reply::ok(&body());
        if head.path == "/announced" {
            reply
        } else {
            reply.chunked()
        }
    })
    .await;
    for path in ["/announced", "/chunked"] {
        let (_directory, mut request) = request(&server.uri(path));
        request.max_bytes = Some(1_000);
        let error = run(&request).await.unwrap_err();
        assert!(
            matches!(
                error,
                FetchError::TooLarge {
                    limit_bytes: 1_000,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_model_larger_than_the_disk_is_refused_before_it_comes() {
    let server = Server::start(|_, _| Reply::ok(&[0; 10]).total(1 << 60).cut(10)).await;
    let (_directory, request) = request(&server.uri("/model.gguf"));
    let error = run(&request).await.unwrap_err();
    assert!(matches!(error, FetchError::DiskFull { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("1152921504606846976 bytes are still needed"),
        "{error}"
    );
}

/// Mounting takes root; elsewhere the unit test on `/dev/full` stands alone.
#[tokio::test]
async fn a_disk_that_fills_up_on_the_way_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        let status = std::process::Command::new(arguments[0])
            .args(&arguments[1..])
            .arg(directory.path())
            .status();
        status.is_ok_and(|status| status.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=256k", "none"]) {
        return;
    }
    // Without a length nothing can be checked beforehand.
    let server = Server::start(|_, _| Reply::ok(&body()).chunked()).await;
    let uri = ModelUri::parse(&server.uri("/model.gguf"), PlainHttp::LoopbackOnly).unwrap();
    let outcome = run(&FetchRequest::new(uri, directory.path().join("model.gguf"))).await;
    assert!(mount(&["umount"]));
    assert!(
        matches!(outcome, Err(FetchError::DiskFull { .. })),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_file_is_copied_and_verified() {
    let source = tempfile::tempdir().unwrap();
    let path = source.path().join("from.gguf");
    std::fs::write(&path, body()).unwrap();
    let (directory, mut request) = request(&format!("file://{}", path.display()));
    request.sha256 = Some(digest(&body()));
    run(&request).await.unwrap();
    assert_in_place(&directory, &request, &body());
    std::fs::remove_file(&request.destination).unwrap();
    request.sha256 = Some(digest(b"other"));
    assert!(matches!(
        run(&request).await,
        Err(FetchError::HashMismatch { .. })
    ));
    assert!(files(directory.path()).is_empty());
}

#[tokio::test]
async fn a_file_that_is_missing_or_none_is_named() {
    let (_directory, missing) = request("file:///nonexistent/model.gguf");
    let error = run(&missing).await.unwrap_err();
    assert!(matches!(error, FetchError::ModelNotFound { .. }), "{error}");
    let (_directory, folder) = request("file:///tmp");
    let error = run(&folder).await.unwrap_err();
    assert!(error.to_string().contains("is not a file"), "{error}");
}

#[tokio::test]
async fn a_private_authority_is_trusted_only_where_it_is_named() {
    let server = Server::start_tls(|_, _| Reply::ok(&body())).await;
    let (directory, mut request) = request(&server.uri("/model.gguf"));
    let error = run(&request).await.unwrap_err();
    assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, server.certificate_pem()).unwrap();
    request.extra_ca_file = Some(file.clone());
    run(&request).await.unwrap();
    std::fs::remove_file(&request.destination).unwrap();
    std::fs::write(&file, "no certificate").unwrap();
    run(&request).await.unwrap_err();
}
