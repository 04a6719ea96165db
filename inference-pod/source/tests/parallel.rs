//! Downloads over several connections from a scripted server on loopback.

mod server;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pagoda_source::{FetchError, FetchRequest, Fetched, Sha256Digest, fetch};
use server::{Head, Reply, Server};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// Five pieces and a bit.
const BYTES: usize = (41 << 20) + 12_345;
const PIECE: u64 = 8 << 20;

fn body(version: usize) -> Arc<Vec<u8>> {
    static VERSIONS: LazyLock<[Arc<Vec<u8>>; 2]> =
        LazyLock::new(|| [0, u32::MAX].map(|seed| Arc::new(made(seed))));
    VERSIONS[version].clone()
}

fn made(seed: u32) -> Vec<u8> {
    let words = BYTES.div_ceil(4) as u32;
    let mut body: Vec<u8> = (0..words)
        .flat_map(|word| (word.wrapping_mul(2_654_435_761) ^ seed).to_le_bytes())
        .collect();
    body.truncate(BYTES);
    body
}

fn request(server: &Server) -> (TempDir, FetchRequest) {
    let (directory, request) = server::request(&server.uri("/model.gguf"));
    let connections = 4;
    (
        directory,
        FetchRequest {
            connections,
            ..request
        },
    )
}

async fn run(request: &FetchRequest) -> Result<Fetched, FetchError> {
    fetch(request, |_| ()).await
}

fn assert_whole(request: &FetchRequest, fetched: &Fetched, body: &[u8]) {
    assert_eq!(fetched.sha256, Sha256Digest(Sha256::digest(body).into()));
    assert!(std::fs::read(&request.destination).unwrap() == body);
    let files = std::fs::read_dir(request.destination.parent().unwrap()).unwrap();
    assert_eq!(files.count(), 1, "nothing else is left");
}

/// A sound server, whose answers take a moment so that others can be asked meanwhile.
fn sound(body: Arc<Vec<u8>>) -> impl Fn(usize, &Head) -> Reply + Send + Sync {
    move |_, head| {
        Reply::range(head, &body)
            .header("ETag", "\"v1\"")
            .late(Duration::from_millis(50))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_come_over_several_connections_and_each_byte_is_asked_for_once() {
    let whole = body(0);
    let server = Server::start(sound(whole.clone())).await;
    let (_directory, request) = request(&server);
    let fetched = run(&request).await.unwrap();
    assert_whole(&request, &fetched, &whole);
    let most = server.most_unanswered();
    assert!((2..=4).contains(&most), "{most} at a time");
    let requests = server.requests();
    let mut starts: Vec<u64> = requests
        .iter()
        .map(|head| head.range.unwrap_or(0))
        .collect();
    starts.sort_unstable();
    starts.dedup();
    // The first stream may go on into pieces that nobody has taken yet.
    assert_eq!(starts.len(), requests.len());
    assert!((2..=6).contains(&requests.len()));
    assert!(starts.iter().all(|start| start % PIECE == 0), "{starts:?}");
    let later = requests.iter().filter(|head| head.range.is_some());
    for head in later {
        assert_eq!(head.if_range.as_deref(), Some("\"v1\""));
        assert!(head.end.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_is_one_request() {
    let whole = body(0);
    let server = Server::start(sound(whole.clone())).await;
    let (_directory, mut request) = request(&server);
    request.connections = 1;
    let fetched = run(&request).await.unwrap();
    assert_whole(&request, &fetched, &whole);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_version_and_hash_nothing_is_put_together_from_parts() {
    let whole = body(0);
    let sent = whole.clone();
    let server = Server::start(move |_, head| Reply::range(head, &sent)).await;
    let (_directory, request) = request(&server);
    let fetched = run(&request).await.unwrap();
    assert_whole(&request, &fetched, &whole);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_ranges_is_read_over_one_connection() {
    let whole = body(0);
    for (accepts, most) in [(None, 4), (Some("none"), 1)] {
        let sent = whole.clone();
        let server = Server::start(move |_, _| {
            let reply = Reply::ok(&sent).header("ETag", "\"v1\"");
            accepts.map_or_else(
                || Reply::ok(&sent).header("ETag", "\"v1\""),
                |accepts| reply.header("Accept-Ranges", accepts),
            )
        })
        .await;
        let (_directory, request) = request(&server);
        let fetched = run(&request).await.unwrap();
        assert_whole(&request, &fetched, &whole);
        let requests = server.requests();
        assert!(requests.len() <= most, "{} requests", requests.len());
        let wholes = requests.iter().filter(|head| head.range.is_none()).count();
        assert_eq!(wholes, 1, "the first stream is never given up");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_range_is_tried_again_on_its_own_from_where_it_broke() {
    let whole = body(0);
    let sent = whole.clone();
    let server = Server::start(move |nth, head| {
        let reply = Reply::range(head, &sent).header("ETag", "\"v1\"");
        match nth % 3 {
            1 => reply.cut(3 << 20),
            2 => Reply::status(if nth % 2 == 0 { 503 } else { 429 }).header("Retry-After", "0"),
            _ => reply,
        }
    })
    .await;
    let (_directory, mut request) = request(&server);
    request.retry.attempts = 8;
    let fetched = run(&request).await.unwrap();
    assert_whole(&request, &fetched, &whole);
    let resumed = server.requests();
    let resumed = resumed.iter().filter_map(|head| head.range);
    assert!(resumed.into_iter().any(|start| start % PIECE != 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_only_one_connection_is_left_to_it() {
    let whole = body(0);
    let sent = whole.clone();
    let open = Arc::new(AtomicUsize::new(0));
    let server = Server::start(move |_, head| {
        // The first asks for the start; whoever asks for other ranges is sent away until that one comes back.
        let nth = open.fetch_add(1, Ordering::SeqCst);
        if head.range.is_some() && nth < 14 {
            return Reply::status(429);
        }
        Reply::range(head, &sent).header("ETag", "\"v1\"")
    })
    .await;
    let (_directory, request) = request(&server);
    let fetched = run(&request).await.unwrap();
    assert_whole(&request, &fetched, &whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_between_two_ranges_is_never_mixed() {
    let (old, new) = (body(0), body(1));
    for heeds_if_range in [true, false] {
        let (first, second) = (old.clone(), new.clone());
        let server = Server::start(move |nth, head| {
            let (tag, whole) = if nth < 3 {
                ("\"v1\"", &first)
            } else {
                ("\"v2\"", &second)
            };
            let is_other = head.if_range.as_deref().is_some_and(|asked| asked != tag);
            let reply = if heeds_if_range && is_other {
                Reply::ok(whole)
            } else {
                Reply::range(head, whole)
            };
            reply.header("ETag", tag).late(Duration::from_millis(10))
        })
        .await;
        let (_directory, request) = request(&server);
        let fetched = run(&request).await.unwrap();
        assert_whole(&request, &fetched, &new);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lies_about_ranges_or_length_gives_no_file() {
    let whole = body(0);
    let lies: [fn(&Head, &[u8]) -> Reply; 3] = [
        // Other bytes than asked for.
        |_, whole| Reply::ok(&whole[..100]).header("Content-Range", "bytes 7-106/42995833"),
        // Another length than at first.
        |head, whole| {
            let mut head = head.clone();
            head.end = None;
            Reply::range(&head, &whole[..whole.len() - 1])
        },
        // No range at all.
        |_, _| Reply::status(206),
    ];
    for lie in lies {
        let sent = whole.clone();
        let server = Server::start(move |_, head| {
            if head.range.is_none() {
                return Reply::ok(&sent).header("ETag", "\"v1\"").cut(1 << 20);
            }
            lie(head, &sent).header("ETag", "\"v1\"")
        })
        .await;
        let (directory, request) = request(&server);
        let error = run(&request).await.unwrap_err();
        assert!(
            matches!(error, FetchError::DownloadFailed { .. }),
            "{error}"
        );
        assert!(!directory.path().join("model.gguf").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_bytes_than_announced_are_not_taken() {
    let whole = body(0);
    let sent = whole.clone();
    let server = Server::start(move |_, head| {
        // The range's end is ignored: each answer goes on to the end of the file.
        let mut open = head.clone();
        open.end = None;
        Reply::range(&open, &sent).header("ETag", "\"v1\"")
    })
    .await;
    let (_directory, request) = request(&server);
    let fetched = run(&request).await.unwrap();
    assert_whole(&request, &fetched, &whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_interrupted_download_noted_is_not_fetched_again() {
    let whole = body(0);
    let (sent, limit) = (whole.clone(), Arc::new(AtomicUsize::new(3)));
    let left = limit.clone();
    let server = Server::start(move |_, head| {
        let reply = Reply::range(head, &sent).header("ETag", "\"v1\"");
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        }) {
            Ok(_) => reply,
            Err(_) => reply.stall(100),
        }
    })
    .await;
    let (directory, request) = request(&server);
    let journal = directory.path().join("model.gguf.partial.json");
    tokio::select! {
        fetched = run(&request) => panic!("{fetched:?} from a server that hangs"),
        () = three_stretches_are_noted(&journal) => {}
    }
    let noted: u64 = stretches(&journal).iter().sum();
    limit.store(100, Ordering::SeqCst);
    let before = server.requests().len();
    let fetched = run(&request).await.unwrap();
    assert_whole(&request, &fetched, &whole);
    let requests = server.requests();
    let asked: u64 = requests[before..]
        .iter()
        .map(|head| head.end.expect("a range with an end") - head.range.unwrap_or(0))
        .sum();
    assert!(asked <= BYTES as u64 - noted, "{asked}, {noted} were noted");
}

async fn three_stretches_are_noted(journal: &Path) {
    while stretches(journal).len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Bytes of each stretch that a journal vouches for; its first line names the file.
fn stretches(journal: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    let lines = text.lines().skip(1);
    let stretches = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    stretches
        .filter_map(|stretch| stretch["bytes"].as_u64())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_fetches_to_one_place_do_not_disturb_each_other() {
    let whole = body(0);
    let server = Server::start(sound(whole.clone())).await;
    let (_directory, request) = request(&server);
    let (first, second) = tokio::join!(run(&request), run(&request));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(
        first.was_present != second.was_present,
        "one brings it, one finds it"
    );
    assert_whole(&request, &first, &whole);
    assert!(server.requests().len() <= 6);
}
