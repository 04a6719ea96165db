//! Our server as a process of its own, on loopback.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use pagoda_e2e::process::ProcessIdentity;
use serde_json::Value;

/// What a server is started with.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions<'a> {
    pub engine: &'a Path,
    pub model: &'a Path,
    pub threads: usize,
    /// Further words of `pagoda-engine serve`.
    pub arguments: &'a [&'a str],
}

/// A server that is ready. It ends with this value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    base: String,
}

impl Server {
    /// Starts it on a free port and waits until its model is loaded.
    pub fn start(options: ServerOptions<'_>) -> Result<Self> {
        let mut child = Command::new(options.engine)
            .arg("serve")
            .arg(options.model)
            .args(["--listen", "127.0.0.1:0", "--name", MODEL_NAME, "--threads"])
            .arg(options.threads.to_string())
            .args(options.arguments)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", options.engine.display()))?;
        let log = child.stderr.take().context("stderr is piped")?;
        match address(log) {
            Ok(address) => Ok(Self {
                child,
                base: format!("http://{address}"),
            }),
            Err(error) => {
                child.kill().ok();
                child.wait().ok();
                Err(error)
            }
        }
    }

    /// `http://ADDRESS`.
    pub fn base(&self) -> &str {
        &self.base
    }

    pub fn resident_bytes(&self) -> Result<u64> {
        let process = ProcessIdentity::observe(self.child.id().cast_signed())
            .context("the server has ended")?;
        Ok(process.resident_bytes())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What the model is asked for as.
pub const MODEL_NAME: &str = "m";

/// Reads the log until the server is ready, and goes on reading it, so that the pipe never fills.
fn address(log: impl std::io::Read + Send + 'static) -> Result<String> {
    let mut log = BufReader::new(log);
    let (mut address, mut said) = (None, String::new());
    loop {
        let mut line = String::new();
        if log
            .read_line(&mut line)
            .context("cannot read the server's log")?
            == 0
        {
            bail!("the server ended before it was ready: {}", said.trim());
        }
        let entry: Value = serde_json::from_str(&line).unwrap_or_default();
        match entry["message"].as_str() {
            Some("listening") => address = entry["address"].as_str().map(str::to_owned),
            Some("ready") => break,
            _ => said.push_str(&line),
        }
    }
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    address.context("the server did not say where it listens")
}

/// The program that goes into the image, which `./bench` built beside this one.
pub fn engine_program() -> Result<PathBuf> {
    let beside = std::env::current_exe()
        .context("cannot tell where this program lies")?
        .with_file_name("pagoda-engine");
    anyhow::ensure!(
        beside.is_file(),
        "there is no {}: run this through ./bench, which builds it",
        beside.display()
    );
    Ok(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_what_the_log_tells_before_it_is_ready() {
        let log = "{\"message\":\"listening\",\"address\":\"127.0.0.1:7\"}\nno json\n{\"message\":\"ready\"}\n";
        assert_eq!(address(log.as_bytes()).unwrap(), "127.0.0.1:7");
    }

    #[test]
    fn a_server_that_ends_early_is_quoted() {
        let error = address("error: unexpected argument '--x'\n".as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains("unexpected argument '--x'"), "{error}");
    }
}
