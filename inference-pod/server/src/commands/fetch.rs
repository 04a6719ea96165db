//! `pagoda-engine fetch`: a bar for people, a line of JSON now and then for logs.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pagoda_crds::wire::FailureReason;
use pagoda_source::{
    FetchError, FetchRequest, Fetched, ModelUri, Phase, PlainHttp, Progress, Sha256Digest,
};
use serde_json::json;

use crate::cli::{FetchArgs, TrustArgs};
use crate::failure::Fatal;
use crate::terminal;

/// How often progress is logged where there is no terminal.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Fetches and says so.
pub fn run(args: &FetchArgs) -> Result<ExitCode, Fatal> {
    let fetched = fetch(&args.uri, &args.to, &args.trust)?;
    let line = json!({
        "event": "fetched", "path": args.to, "bytes": fetched.bytes, "sha256": fetched.sha256.to_string(),
        "was_present": fetched.was_present,
    });
    println!("{line}");
    Ok(ExitCode::SUCCESS)
}

/// Puts the model at `uri` to `destination`, whose folder is made if need be.
pub fn fetch(uri: &str, destination: &Path, trust: &TrustArgs) -> Result<Fetched, Fatal> {
    let request = request(uri, destination, trust)?;
    if let Some(folder) = destination
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        let failed = |error| {
            Fatal::internal(format!(
                "cannot make the folder {}: {error}",
                folder.display()
            ))
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Fatal::internal(format!("cannot start the runtime: {error}")))?;
    let mut report = Report::new(destination);
    let outcome = runtime.block_on(pagoda_source::fetch(&request, |progress| {
        report.show(&progress);
    }));
    report.bar.finish_and_clear();
    outcome.map_err(|error| Fatal::new(reason(&error), error.to_string()))
}

fn request(uri: &str, destination: &Path, trust: &TrustArgs) -> Result<FetchRequest, Fatal> {
    let invalid = |error: &dyn std::fmt::Display| Fatal::invalid_config(error.to_string());
    let plain_http = if trust.allow_plain_http {
        PlainHttp::Allowed
    } else {
        PlainHttp::LoopbackOnly
    };
    let uri = ModelUri::parse(uri, plain_http).map_err(|error| invalid(&error))?;
    let digest = trust
        .sha256
        .as_deref()
        .map(str::parse::<Sha256Digest>)
        .transpose();
    Ok(FetchRequest {
        sha256: digest.map_err(|error| invalid(&error))?,
        extra_ca_file: trust.ca_file.clone(),
        jitter_seed: rand::random(),
        ..FetchRequest::new(uri, destination)
    })
}

fn reason(error: &FetchError) -> FailureReason {
    match error {
        FetchError::ModelNotFound { .. } => FailureReason::ModelNotFound,
        FetchError::HashMismatch { .. } => FailureReason::HashMismatch,
        FetchError::DiskFull { .. } => FailureReason::DiskFull,
        FetchError::TooLarge { .. } => FailureReason::InvalidModel,
        FetchError::DownloadFailed { .. } => FailureReason::DownloadFailed,
    }
}

/// Shows progress: a bar where a person looks, lines otherwise.
struct Report {
    bar: ProgressBar,
    logs: bool,
    logged: Option<Instant>,
}

impl Report {
    fn new(destination: &Path) -> Self {
        let name = destination.file_name().map_or_else(
            || "model".into(),
            |name| name.to_string_lossy().into_owned(),
        );
        Self {
            bar: terminal::byte_bar(&name),
            logs: !std::io::stderr().is_terminal(),
            logged: None,
        }
    }

    fn show(&mut self, progress: &Progress) {
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
            fetch(&uri, &destination, &TrustArgs::default())
                .unwrap()
                .bytes,
            7
        );
        let other = TrustArgs {
            sha256: Some("0".repeat(64)),
            ..TrustArgs::default()
        };
        let wrong = fetch(&uri, &folder.path().join("c"), &other).unwrap_err();
        assert_eq!(wrong.reason, FailureReason::HashMismatch);
        let missing = fetch(
            "file:///no/such/file",
            &folder.path().join("d"),
            &TrustArgs::default(),
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
        ] {
            assert_eq!(
                fetch(uri, &folder.path().join("m"), &TrustArgs::default())
                    .unwrap_err()
                    .reason,
                FailureReason::InvalidConfig,
                "{uri}"
            );
        }
    }
}
