//! `pagoda-engine fetch`: a bar for people, a line of JSON now and then for logs, an endpoint for the operator.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pagoda_crds::names::cache_key;
use pagoda_crds::wire::FailureReason;
use pagoda_source::{
    Cache, FetchError, FetchRequest, Fetched, ModelUri, PROTECTED, Phase, PlainHttp, Progress,
    Sha256Digest, parse_endpoint,
};
use serde_json::json;

use super::signals::Signals;
use crate::cli::{FetchArgs, SourceArgs};
use crate::failure::Fatal;
use crate::progress::{Gauge, serve_progress};
use crate::terminal;

/// How often progress is logged where there is no terminal.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// What a first SIGTERM exits with: 128 and the signal's number, as shells have it.
const STOPPED: u8 = 143;

/// Fetches and says so.
pub fn run(args: &FetchArgs) -> Result<ExitCode, Fatal> {
    let Some((path, fetched)) = runtime()?.block_on(bring(args))? else {
        return Ok(ExitCode::from(STOPPED));
    };
    let line = json!({
        "event": "fetched", "path": path, "bytes": fetched.bytes, "sha256": fetched.sha256.to_string(),
        "was_present": fetched.was_present,
    });
    println!("{line}");
    Ok(ExitCode::SUCCESS)
}

/// Puts the model at `uri` to `destination`, whose folder is made if need be.
pub fn fetch(uri: &str, destination: &Path, source: &SourceArgs) -> Result<Fetched, Fatal> {
    let request = request(uri, destination, source)?;
    make_folder(destination)?;
    let mut report = Report::new(&request, Arc::default());
    let fetching = pagoda_source::fetch(&request, |progress| report.show(&progress));
    let outcome = runtime()?.block_on(fetching);
    report.bar.finish_and_clear();
    outcome.map_err(|error| fatal(&error))
}

/// As the command line says; `None` when a signal came first.
async fn bring(args: &FetchArgs) -> Result<Option<(PathBuf, Fetched)>, Fatal> {
    // A container's first process that does not listen for SIGTERM does not get it.
    let mut signals = Signals::new()?;
    let gauge = Arc::new(Gauge::default());
    if let Some(address) = args.progress_listen {
        serve_progress(address, Arc::clone(&gauge)).await;
    }
    let destination = args.to.clone().unwrap_or_default();
    let request = request(&args.uri, &destination, &args.source)?;
    let mut report = Report::new(&request, gauge);
    let show = |progress| report.show(&progress);
    let outcome = tokio::select! {
        () = signals.next() => None,
        outcome = bring_to(args, &request, show) => Some(outcome),
    };
    report.bar.finish_and_clear();
    outcome.transpose()
}

async fn bring_to(
    args: &FetchArgs,
    request: &FetchRequest,
    show: impl FnMut(Progress) + Send,
) -> Result<(PathBuf, Fetched), Fatal> {
    let Some(directory) = &args.cache else {
        make_folder(&request.destination)?;
        let fetched = pagoda_source::fetch(request, show).await;
        let fetched = fetched.map_err(|error| fatal(&error))?;
        return Ok((request.destination.clone(), fetched));
    };
    let cache = Cache {
        directory: directory.clone(),
        cap_bytes: args.cache_bytes.unwrap_or(u64::MAX),
        protect: PROTECTED,
    };
    let source = &args.source;
    let key = cache_key(
        &args.uri,
        source.endpoint.as_deref(),
        source.sha256.as_deref(),
    );
    let brought = pagoda_source::fetch_cached(request, &cache, &key, show).await;
    brought.map_err(|error| fatal(&error))
}

/// Several threads, so that encrypted bytes of several connections are read at once.
fn runtime() -> Result<tokio::runtime::Runtime, Fatal> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(crate::threads::available().clamp(1, 4))
        .enable_all()
        .build()
        .map_err(|error| Fatal::internal(format!("cannot start the runtime: {error}")))
}

fn make_folder(destination: &Path) -> Result<(), Fatal> {
    let folder = destination
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let made = folder.map_or(Ok(()), std::fs::create_dir_all);
    made.map_err(|error| {
        Fatal::internal(format!(
            "cannot make the folder of {}: {error}",
            destination.display()
        ))
    })
}

/// Whether plain HTTP is taken from other machines.
pub fn plain_http(source: &SourceArgs) -> PlainHttp {
    if source.allow_plain_http {
        PlainHttp::Allowed
    } else {
        PlainHttp::LoopbackOnly
    }
}

fn request(uri: &str, destination: &Path, source: &SourceArgs) -> Result<FetchRequest, Fatal> {
    let invalid = |error: &dyn std::fmt::Display| Fatal::invalid_config(error.to_string());
    let plain_http = plain_http(source);
    let uri = ModelUri::parse(uri, plain_http).map_err(|error| invalid(&error))?;
    let endpoint = source.endpoint.as_deref();
    let endpoint = endpoint.map(|endpoint| parse_endpoint(endpoint, plain_http));
    let digest = source
        .sha256
        .as_deref()
        .map(str::parse::<Sha256Digest>)
        .transpose();
    Ok(FetchRequest {
        sha256: digest.map_err(|error| invalid(&error))?,
        endpoint: endpoint.transpose().map_err(|error| invalid(&error))?,
        region: source.region.clone(),
        credentials: source.credentials.clone(),
        connections: source.connections,
        extra_ca_file: source.ca_file.clone(),
        jitter_seed: rand::random(),
        ..FetchRequest::new(uri, destination)
    })
}

fn fatal(error: &FetchError) -> Fatal {
    Fatal::new(reason(error), error.to_string())
}

fn reason(error: &FetchError) -> FailureReason {
    match error {
        FetchError::ModelNotFound { .. } => FailureReason::ModelNotFound,
        FetchError::Unauthorized { .. } => FailureReason::Unauthorized,
        FetchError::HashMismatch { .. } => FailureReason::HashMismatch,
        FetchError::DiskFull { .. } => FailureReason::DiskFull,
        FetchError::TooLarge { .. } => FailureReason::InvalidModel,
        FetchError::DownloadFailed { .. } => FailureReason::DownloadFailed,
    }
}

/// Shows progress: a bar where a person looks, lines otherwise, and a number for whoever asks.
struct Report {
    bar: ProgressBar,
    gauge: Arc<Gauge>,
    logs: bool,
    began: Instant,
    logged: Option<Instant>,
}

impl Report {
    fn new(request: &FetchRequest, gauge: Arc<Gauge>) -> Self {
        let name = request.uri.file_name().unwrap_or_else(|| "model".into());
        Self {
            bar: terminal::byte_bar(&name),
            gauge,
            logs: !std::io::stderr().is_terminal(),
            began: Instant::now(),
            logged: None,
        }
    }

    fn show(&mut self, progress: &Progress) {
        self.gauge.set(self.began.elapsed(), progress);
        if let Phase::Waiting { delay, reason } = &progress.phase {
            self.bar
                .println(format!("{reason}; trying again in {} s", delay.as_secs()));
        }
        if let Some(total) = progress.total_bytes {
            self.bar.set_length(total);
        }
        self.bar.set_position(progress.bytes);
        let waits = matches!(progress.phase, Phase::Waiting { .. });
        let due = self
            .logged
            .is_none_or(|logged| logged.elapsed() >= LOG_EVERY);
        if self.logs && (waits || due) {
            self.logged = Some(Instant::now());
            eprintln!("{}", line(progress));
        }
    }
}

fn line(progress: &Progress) -> serde_json::Value {
    let (event, reason) = match &progress.phase {
        Phase::Hashing => ("hashing", None),
        Phase::Fetching => ("fetching", None),
        Phase::Sharing => ("waiting for another process that fetches it", None),
        Phase::Waiting { reason, .. } => ("waiting", Some(reason)),
    };
    json!({"event": event, "bytes": progress.bytes, "total_bytes": progress.total_bytes, "reason": reason})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_copied_and_a_wrong_hash_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (source, destination) = (folder.path().join("a"), folder.path().join("deep/b"));
        std::fs::write(&source, "weights").unwrap();
        let uri = format!("file://{}", source.display());
        assert_eq!(
            fetch(&uri, &destination, &SourceArgs::default())
                .unwrap()
                .bytes,
            7
        );
        let other = SourceArgs {
            sha256: Some("0".repeat(64)),
            ..SourceArgs::default()
        };
        let wrong = fetch(&uri, &folder.path().join("c"), &other).unwrap_err();
        assert_eq!(wrong.reason, FailureReason::HashMismatch);
        let missing = fetch(
            "file:///no/such/file",
            &folder.path().join("d"),
            &SourceArgs::default(),
        )
        .unwrap_err();
        assert_eq!(missing.reason, FailureReason::ModelNotFound);
    }

    #[test]
    fn what_cannot_be_fetched_from_is_a_wrong_configuration() {
        let folder = tempfile::tempdir().unwrap();
        for uri in [
            "ftp://host/m.gguf",
            "nonsense",
            "https://",
            "http://198.18.0.1/m.gguf",
            "s3://bucket",
            "hf://owner/m.gguf",
        ] {
            assert_eq!(
                fetch(uri, &folder.path().join("m"), &SourceArgs::default())
                    .unwrap_err()
                    .reason,
                FailureReason::InvalidConfig,
                "{uri}"
            );
        }
        let insecure = SourceArgs {
            endpoint: Some("http://198.18.0.1:9000".into()),
            ..SourceArgs::default()
        };
        let refused = fetch("s3://bucket/m.gguf", &folder.path().join("m"), &insecure).unwrap_err();
        assert_eq!(refused.reason, FailureReason::InvalidConfig);
    }
}
