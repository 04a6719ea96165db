//! As little of an HTTP server as answers questions without a body, for thousands of connections that are kept.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const LONGEST_HEAD: usize = 16 << 10;
/// Pause after a connection that could not be taken, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(20);

/// What is answered, and how.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
    delay: Duration,
    fate: Fate,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is answered and kept.
    #[default]
    Whole,
    /// It ends without an answer.
    Close,
    /// It is never answered.
    Silence,
}

impl Answer {
    /// 200 with metrics.
    pub fn metrics(body: Vec<u8>) -> Self {
        Self {
            status: 200,
            kind: "text/plain; version=0.0.4",
            body,
            ..Self::default()
        }
    }

    /// 200 with JSON.
    pub fn json(text: &str) -> Self {
        Self {
            status: 200,
            kind: "application/json",
            body: text.as_bytes().to_vec(),
            ..Self::default()
        }
    }

    /// 404.
    pub fn not_found() -> Self {
        Self::of_status(404)
    }

    /// A status without a word.
    pub fn of_status(status: u16) -> Self {
        Self {
            status,
            kind: "text/plain",
            ..Self::default()
        }
    }

    /// No answer at all.
    pub(super) fn none(fate: Fate) -> Self {
        Self {
            fate,
            ..Self::default()
        }
    }

    /// The same, later.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    fn write_to(&self, out: &mut Vec<u8>) {
        let reason = if self.status == 200 { "OK" } else { "Not OK" };
        let head = format!(
            "HTTP/1.1 {} {reason}\r\ncontent-type: {}\r\ncontent-length: {}\r\n\r\n",
            self.status,
            self.kind,
            self.body.len()
        );
        out.clear();
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&self.body);
    }
}

/// Answers each request at `listener` by what `answer` says for the address that was asked and the path, until the returned
/// task is aborted.
pub fn serve<F>(listener: TcpListener, answer: F) -> JoinHandle<()>
where
    F: Fn(Ipv4Addr, &str) -> Answer + Send + Sync + 'static,
{
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => {
                    tokio::spawn(converse(connection, answer.clone()));
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    })
}

/// Requests without a body, one after the other on one connection.
async fn converse<F>(mut connection: TcpStream, answer: Arc<F>)
where
    F: Fn(Ipv4Addr, &str) -> Answer + Send + Sync,
{
    let Ok(IpAddr::V4(address)) = connection.local_addr().map(|local| local.ip()) else {
        return;
    };
    // Head and answer are two segments of one write; what follows must not wait for the peer's acknowledgement.
    connection.set_nodelay(true).ok();
    let (mut head, mut out) = (Vec::new(), Vec::new());
    let mut chunk = [0_u8; 1024];
    while let Ok(read @ 1..) = connection.read(&mut chunk).await {
        head.extend_from_slice(&chunk[..read]);
        if head.len() > LONGEST_HEAD {
            return;
        }
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let said = answer(address, path_of(&head));
        head.clear();
        if !said.delay.is_zero() {
            tokio::time::sleep(said.delay).await;
        }
        match said.fate {
            Fate::Whole => said.write_to(&mut out),
            Fate::Close => return,
            Fate::Silence => continue,
        }
        if connection.write_all(&out).await.is_err() {
            return;
        }
    }
}

fn path_of(head: &[u8]) -> &str {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default();
    line.split(' ').nth(1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_connection_is_answered_again_and_again_by_the_path_that_it_names() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = serve(listener, |asked, path| {
            Answer::metrics(format!("{asked}{path}").into_bytes())
        });
        let mut connection = TcpStream::connect(address).await.unwrap();
        for path in ["/a", "/b?c"] {
            let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
            connection.write_all(head.as_bytes()).await.unwrap();
            let mut answer = vec![0; 4096];
            let read = connection.read(&mut answer).await.unwrap();
            let text = String::from_utf8(answer[..read].to_vec()).unwrap();
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
            assert!(
                text.ends_with(&format!("\r\n\r\n127.0.0.1{path}")),
                "{text}"
            );
        }
        serving.abort();
    }
}
