//! The fetch of the program itself: processes that are killed, processes that share a cache.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use pagoda_crds::names::cache_key;
use pagoda_crds::wire::FetchProgress;
use serde_json::Value;

/// Three pieces of a download.
const BYTES: usize = 20 << 20;

/// Serves one body under every path, with ranges and a version, no faster than told by connection.
struct Origin {
    port: u16,
    sent: Arc<AtomicU64>,
    starts: Arc<Mutex<Vec<usize>>>,
    pause_micros: Arc<AtomicU64>,
}

/// Bytes between two pauses.
const STEP: usize = 64 << 10;

impl Origin {
    fn start(bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = Self {
            port: listener.local_addr().unwrap().port(),
            sent: Arc::default(),
            starts: Arc::default(),
            pause_micros: Arc::default(),
        };
        let body: Arc<Vec<u8>> = Arc::new((0..bytes).map(|at| (at / 1000) as u8).collect());
        let (sent, starts, pause) = (
            origin.sent.clone(),
            origin.starts.clone(),
            origin.pause_micros.clone(),
        );
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (body, sent, starts, pause) =
                    (body.clone(), sent.clone(), starts.clone(), pause.clone());
                // A client that leaves in the middle is the point of some tests.
                std::thread::spawn(move || answer(&stream.unwrap(), &body, &sent, &starts, &pause));
            }
        });
        origin
    }

    /// Bytes per second and connection.
    fn throttle(&self, bytes_per_second: u64) {
        let micros = STEP as u64 * 1_000_000 / bytes_per_second;
        self.pause_micros.store(micros, Ordering::SeqCst);
    }

    fn unthrottle(&self) {
        self.pause_micros.store(0, Ordering::SeqCst);
    }

    fn uri(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/{name}", self.port)
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }
}

fn answer(
    mut stream: &TcpStream,
    body: &[u8],
    sent: &AtomicU64,
    starts: &Mutex<Vec<usize>>,
    pause: &AtomicU64,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut range, mut lines) = (None, 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            lines += 1;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                let (start, end) = value.trim().split_once('-')?;
                let end = end.parse().map_or(body.len(), |end: usize| end + 1);
                range = Some((start.parse::<usize>().ok()?, end));
            }
            if line == "\r\n" && lines > 1 {
                break;
            }
        }
        let (start, end) = range.unwrap_or((0, body.len()));
        starts.lock().unwrap().push(start);
        let (status, total, length) = (
            if range.is_some() { 206 } else { 200 },
            body.len(),
            end - start,
        );
        let content_range = match range {
            Some(_) => format!("Content-Range: bytes {start}-{}/{total}\r\n", end - 1),
            None => String::new(),
        };
        let head = format!(
            "HTTP/1.1 {status} OK\r\nETag: \"v1\"\r\nContent-Length: {length}\r\n{content_range}\r\n"
        );
        stream.write_all(head.as_bytes()).ok()?;
        for step in body[start..end].chunks(STEP) {
            stream.write_all(step).ok()?;
            sent.fetch_add(step.len() as u64, Ordering::SeqCst);
            let micros = pause.load(Ordering::SeqCst);
            if micros > 0 {
                std::thread::sleep(Duration::from_micros(micros));
            }
        }
    }
}

fn engine(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda-engine"));
    command
        .env_remove("RUST_LOG")
        .env_remove("PAGODA_TERMINATION_LOG")
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A process that does not outlive its test.
struct Process(Child);

impl Process {
    fn start(arguments: &[&str]) -> Self {
        Self(engine(arguments).spawn().expect("the program starts"))
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.0.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    fn output(mut self) -> Output {
        let mut output = Output {
            status: self.0.wait().unwrap(),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        self.0
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut output.stdout)
            .unwrap();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_end(&mut output.stderr)
            .unwrap();
        output
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already gone in tests that pass.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fetched(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {text}", output.status);
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}

/// Waits for what must come; a test that waits in vain is ended by its runner.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct CacheDirectory(tempfile::TempDir);

impl CacheDirectory {
    fn new() -> Self {
        let directory = Self(tempfile::tempdir().unwrap());
        let prepared = engine(&["cache-prepare", directory.path()]).status();
        assert!(prepared.unwrap().success());
        directory
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn folder(&self, uri: &str) -> PathBuf {
        self.0.path().join(cache_key(uri, None, None))
    }

    fn fetch(&self, uri: &str, cap: usize) -> Process {
        Process::start(&[
            "fetch",
            uri,
            "--cache",
            self.path(),
            "--cache-bytes",
            &cap.to_string(),
        ])
    }
}

/// Bytes that a journal vouches for.
fn noted(partial: &Path) -> u64 {
    let text = std::fs::read_to_string(partial).unwrap_or_default();
    let stretches = text.lines().skip(1);
    stretches
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["bytes"].as_u64())
        .sum()
}

#[test]
fn a_download_that_is_killed_is_taken_up_where_its_journal_ends() {
    let origin = Origin::start(BYTES);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let journal = folder.path().join("model.gguf.partial.json");
    let arguments = [
        "fetch",
        &origin.uri("m"),
        "--to",
        path.to_str().unwrap(),
        "--connections",
        "2",
    ];
    origin.throttle(20 << 20);
    let first = Process::start(&arguments);
    until(|| noted(&journal) >= 8 << 20);
    first.signal("-KILL");
    drop(first);
    let (kept, before) = (noted(&journal), origin.sent());
    origin.unthrottle();
    let told = fetched(&Process::start(&arguments).output());
    assert_eq!(told["bytes"], BYTES);
    let again = origin.sent() - before;
    // A step of either connection may be counted only after the process is gone.
    assert!(
        again <= BYTES as u64 - kept + 2 * STEP as u64,
        "{again} bytes again, {kept} were kept"
    );
    let body: Vec<u8> = (0..BYTES).map(|at| (at / 1000) as u8).collect();
    assert!(std::fs::read(&path).unwrap() == body);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn many_processes_bring_a_model_once() {
    let origin = Origin::start(BYTES);
    origin.throttle(40 << 20);
    let cache = CacheDirectory::new();
    let uri = origin.uri("m");
    let processes: Vec<Process> = (0..6).map(|_| cache.fetch(&uri, 2 * BYTES)).collect();
    let told: Vec<Value> = processes
        .into_iter()
        .map(|process| fetched(&process.output()))
        .collect();
    let new = told
        .iter()
        .filter(|told| told["was_present"] == false)
        .count();
    assert_eq!(new, 1, "{told:?}");
    let mut starts = origin.starts.lock().unwrap().clone();
    starts.sort_unstable();
    let asked = starts.len();
    starts.dedup();
    assert!(asked <= 3 && starts.len() == asked, "{starts:?}");
    let path = cache.folder(&uri).join("model.gguf");
    assert!(
        told.iter()
            .all(|told| told["path"] == path.to_str().unwrap())
    );
}

#[test]
fn whoever_waits_takes_over_from_a_holder_that_dies() {
    let origin = Origin::start(BYTES);
    origin.throttle(10 << 20);
    let cache = CacheDirectory::new();
    let uri = origin.uri("m");
    let holder = cache.fetch(&uri, 2 * BYTES);
    let journal = cache.folder(&uri).join("model.gguf.partial.json");
    until(|| noted(&journal) >= 8 << 20);
    let waiting = cache.fetch(&uri, 2 * BYTES);
    let before = origin.sent();
    holder.signal("-KILL");
    drop(holder);
    origin.unthrottle();
    assert_eq!(fetched(&waiting.output())["was_present"], false);
    assert!(
        origin.sent() - before < BYTES as u64,
        "the rest, not the whole"
    );
}

#[test]
fn a_model_in_use_stays_and_an_old_one_goes() {
    let origin = Origin::start(1 << 20);
    let cache = CacheDirectory::new();
    let (a, b, c) = (origin.uri("a"), origin.uri("b"), origin.uri("c"));
    for uri in [&a, &b] {
        fetched(&cache.fetch(uri, 2 << 20).output());
        let marker = std::fs::File::options()
            .write(true)
            .open(cache.folder(uri).join("used"))
            .unwrap();
        marker
            .set_modified(SystemTime::now() - Duration::from_hours(1))
            .unwrap();
    }
    let model = cache.folder(&a).join("model.gguf");
    let mut holder = Process::start(&["hold", model.to_str().unwrap()]);
    let mut line = String::new();
    BufReader::new(holder.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("holding"), "{line}");
    fetched(&cache.fetch(&c, 2 << 20).output());
    assert!(model.exists() && !cache.folder(&b).exists());
    // Now one is held and the other is fresh.
    let full = cache.fetch(&b, 2 << 20).output();
    assert_eq!(
        full.status.code(),
        Some(73),
        "{}",
        String::from_utf8_lossy(&full.stderr)
    );
    holder.signal("-TERM");
    assert!(holder.0.wait().unwrap().success());
    fetched(&cache.fetch(&b, 2 << 20).output());
    assert!(!model.exists());
}

#[test]
fn several_models_at_once_share_the_cap() {
    let origin = Origin::start(4 << 20);
    origin.throttle(16 << 20);
    let cache = CacheDirectory::new();
    let uris: Vec<String> = (0..5).map(|index| origin.uri(&index.to_string())).collect();
    let processes: Vec<Process> = uris.iter().map(|uri| cache.fetch(uri, 9 << 20)).collect();
    let codes: Vec<_> = processes
        .into_iter()
        .map(|process| process.output().status.code())
        .collect();
    // What is fresh or under way does not go: two fit, the others are told so.
    let count = |code| codes.iter().filter(|ended| **ended == Some(code)).count();
    assert_eq!((count(0), count(73)), (2, 3), "{codes:?}");
}

#[test]
fn progress_is_told_meanwhile_also_by_whoever_waits_for_another() {
    let origin = Origin::start(BYTES);
    origin.throttle(1 << 20);
    let cache = CacheDirectory::new();
    let uri = origin.uri("m");
    let ports = AtomicUsize::new(0);
    let listen = || {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        ports.fetch_add(1, Ordering::SeqCst);
        taken.local_addr().unwrap().to_string()
    };
    let addresses = [listen(), listen()];
    let start = |address: &str| {
        let cap = (2 * BYTES).to_string();
        let words = [
            "fetch",
            &uri,
            "--cache",
            cache.path(),
            "--cache-bytes",
            &cap,
            "--progress-listen",
            address,
        ];
        Process::start(&words)
    };
    let processes = addresses.each_ref().map(|address| start(address));
    for address in &addresses {
        until(|| {
            progress(address).is_some_and(|progress| {
                progress.bytes > 0
                    && progress.total_bytes == Some(BYTES as u64)
                    && progress.bytes_per_second > 0
            })
        });
    }
    origin.unthrottle();
    for process in processes {
        fetched(&process.output());
    }
}

fn progress(address: &str) -> Option<FetchProgress> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .write_all(b"GET /progress HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

#[test]
fn sigterm_ends_a_fetch_at_once() {
    let origin = Origin::start(BYTES);
    origin.throttle(1 << 20);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let process = Process::start(&["fetch", &origin.uri("m"), "--to", path.to_str().unwrap()]);
    until(|| origin.sent() > 0);
    process.signal("-TERM");
    assert_eq!(process.output().status.code(), Some(143));
}

/// A page of metrics that changes.
fn metrics(pages: &'static [&'static str]) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 1024];
            let _ = stream.read(&mut head);
            let page = pages[counted.fetch_add(1, Ordering::SeqCst).min(pages.len() - 1)];
            let reply = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}",
                page.len()
            );
            let _ = stream.write_all(reply.as_bytes());
        }
    });
    (port, asked)
}

fn wait_idle(port: u16, timeout: &str) -> Output {
    let url = format!("http://127.0.0.1:{port}/metrics");
    Process::start(&[
        "wait-idle",
        "--url",
        &url,
        "--grace-seconds",
        "0",
        "--timeout-seconds",
        timeout,
    ])
    .output()
}

#[test]
fn the_wait_ends_when_another_server_is_idle_twice_or_the_time_is_over() {
    let (port, asked) = metrics(&["vllm:num_requests_running 2", "vllm:num_requests_running 0"]);
    let idle = wait_idle(port, "60");
    assert!(idle.status.success() && idle.stderr.is_empty());
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    let (port, _) = metrics(&["nothing known"]);
    let late = wait_idle(port, "2");
    assert!(late.status.success());
    let said = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(
        said.contains("2 seconds are over") && said.contains("none of the names"),
        "{said}"
    );
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let gone = wait_idle(free, "60");
    assert!(gone.status.success());
    assert!(String::from_utf8_lossy(&gone.stderr).contains("nothing listens"));
}
