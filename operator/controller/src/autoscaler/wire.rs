//! HTTP/1.1 to pods: one question at a time on a connection that is kept, its answer read into memory that is used again.
//!
//! A scraper asks thousands of servers the same short question every second; what a general client spends on each (tasks,
//! channels, a body in pieces) is most of what that costs. Heads are read by `httparse`; bodies may come by length, in
//! chunks, or until the connection ends.
//!
//! # Guarantees
//! Whatever a server answers, no more than [`MOST_BYTES`] of it are held, and an answer that breaks the protocol ends its
//! connection.

use std::{
    io,
    mem::MaybeUninit,
    net::SocketAddr,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// More than any honest answer; a larger one is refused, not read.
const MOST_BYTES: usize = 16 << 20;
/// A head that has not ended by then never will.
const MOST_HEAD_BYTES: usize = 64 << 10;
const MOST_HEADERS: usize = 64;
/// A chunk's size in digits, with what some servers write behind it.
const MOST_CHUNK_LINE: usize = 1 << 10;
/// Room for a read.
const READ_BYTES: usize = 16 << 10;
/// Buffers that have grown beyond this are not kept, nor are more of them than that.
const MOST_KEPT_BYTES: usize = 256 << 10;
const MOST_KEPT: usize = 64;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection ended before the first byte of an answer; on one that was kept, the server had closed it meanwhile.
    #[error("the connection was closed before an answer")]
    Closed,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Failed(#[from] io::Error),
    /// Not HTTP/1, or cut off.
    #[error("the answer is malformed: {0}")]
    Malformed(&'static str),
    /// Longer than any honest answer.
    #[error("the answer is longer than {MOST_BYTES} bytes")]
    TooLong,
}

/// Memory for answers, used again.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

/// An answer, in borrowed memory.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Whether the connection may be used again.
    pub keeps: bool,
    bytes: Vec<u8>,
    body: Range<usize>,
    home: Arc<Buffers>,
}

impl Answer {
    /// Its body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.body.clone()]
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.bytes));
    }
}

impl Buffers {
    fn take(&self) -> Vec<u8> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.pop().unwrap_or_default()
    }

    fn give_back(&self, mut bytes: Vec<u8>) {
        if bytes.capacity() > MOST_KEPT_BYTES {
            return;
        }
        bytes.clear();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MOST_KEPT {
            kept.push(bytes);
        }
    }
}

/// The text of a `GET`.
pub fn question(path: &str, host: SocketAddr, keeps: bool) -> Box<[u8]> {
    let connection = if keeps { "keep-alive" } else { "close" };
    let text = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: pagoda-operator\r\nConnection: {connection}\r\n\r\n"
    );
    text.into_bytes().into_boxed_slice()
}

/// Asks, and reads the whole answer. The memory for it is taken once its first bytes are there.
pub async fn exchange(
    stream: &mut TcpStream,
    question: &[u8],
    home: &Arc<Buffers>,
) -> Result<Answer, WireError> {
    stream.write_all(question).await.map_err(closed)?;
    stream.readable().await?;
    let mut answer = Answer {
        status: 0,
        keeps: false,
        bytes: home.take(),
        body: 0..0,
        home: home.clone(),
    };
    if read_more(stream, &mut answer.bytes)
        .await
        .map_err(before_first)?
        == 0
    {
        return Err(WireError::Closed);
    }
    let head = loop {
        if let Some(head) = Head::parse(&answer.bytes)? {
            break head;
        }
        if answer.bytes.len() > MOST_HEAD_BYTES {
            return Err(WireError::Malformed("its head does not end"));
        }
        expect_more(stream, &mut answer.bytes).await?;
    };
    let (end, keeps) = read_body(stream, &mut answer.bytes, &head).await?;
    (answer.status, answer.keeps, answer.body) = (head.status, keeps, head.bytes..end);
    Ok(answer)
}

/// A server that closed a kept connection answers a further question with a reset.
fn closed(error: io::Error) -> WireError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => WireError::Closed,
        _ => WireError::Failed(error),
    }
}

fn before_first(error: WireError) -> WireError {
    match error {
        WireError::Failed(error) => closed(error),
        other => other,
    }
}

/// Bytes read; 0 at the end.
async fn read_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<usize, WireError> {
    if bytes.len() >= MOST_BYTES {
        return Err(WireError::TooLong);
    }
    if bytes.capacity() - bytes.len() < READ_BYTES / 2 {
        bytes.reserve(READ_BYTES);
    }
    Ok(stream.read_buf(bytes).await?)
}

async fn expect_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<(), WireError> {
    match read_more(stream, bytes).await? {
        0 => Err(WireError::Malformed("it is cut off")),
        _ => Ok(()),
    }
}

/// Where the body ends, and whether the connection may be used again.
async fn read_body(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    head: &Head,
) -> Result<(usize, bool), WireError> {
    match head.framing {
        Framing::Length(length) => {
            let end = head.bytes.checked_add(length).ok_or(WireError::TooLong)?;
            if end > MOST_BYTES {
                return Err(WireError::TooLong);
            }
            bytes.reserve(end.saturating_sub(bytes.len()));
            while bytes.len() < end {
                expect_more(stream, bytes).await?;
            }
            // More than was promised is the start of something that nobody asked for.
            Ok((end, head.keeps && bytes.len() == end))
        }
        Framing::Chunked => {
            let mut chunks = Chunks::from(head.bytes);
            while !chunks.join(bytes)? {
                expect_more(stream, bytes).await?;
            }
            Ok((chunks.written, head.keeps && chunks.read == bytes.len()))
        }
        Framing::UntilEnd => {
            while read_more(stream, bytes).await? > 0 {}
            Ok((bytes.len(), false))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilEnd,
}

/// What counts of an answer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Its length.
    bytes: usize,
    framing: Framing,
    keeps: bool,
}

impl Head {
    /// `None` while it is not whole.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        let mut headers = [const { MaybeUninit::uninit() }; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut response,
            bytes,
            &mut headers,
        );
        let end = match parsed.map_err(|_| WireError::Malformed("its head is not HTTP/1"))? {
            httparse::Status::Partial => return Ok(None),
            httparse::Status::Complete(end) => end,
        };
        let mut head = Self {
            status: response.code.unwrap_or(0),
            bytes: end,
            framing: Framing::UntilEnd,
            keeps: response.version == Some(1),
        };
        for header in response.headers.iter() {
            head.note(header)?;
        }
        if head.status < 200 {
            return Err(WireError::Malformed("it is no final answer"));
        }
        if matches!(head.status, 204 | 304) {
            head.framing = Framing::Length(0);
        }
        Ok(Some(head))
    }

    fn note(&mut self, header: &httparse::Header<'_>) -> Result<(), WireError> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let has = |word: &[u8]| {
            let mut parts = header.value.split(|b| *b == b',');
            parts.any(|part| part.trim_ascii().eq_ignore_ascii_case(word))
        };
        if is("content-length") {
            let digits = std::str::from_utf8(header.value).ok();
            let length = digits.and_then(|d| d.trim().parse().ok());
            let length = length.ok_or(WireError::Malformed("its length is no number"))?;
            match self.framing {
                Framing::Length(earlier) if earlier != length => {
                    return Err(WireError::Malformed("it has two lengths"));
                }
                Framing::Chunked => self.keeps = false,
                _ => self.framing = Framing::Length(length),
            }
        } else if is("transfer-encoding") {
            if !has(b"chunked") {
                return Err(WireError::Malformed("its encoding is unknown"));
            }
            if self.framing != Framing::UntilEnd {
                self.keeps = false;
            }
            self.framing = Framing::Chunked;
        } else if is("connection") {
            self.keeps = !has(b"close") && (self.keeps || has(b"keep-alive"));
        }
        Ok(())
    }
}

/// Joins the chunks of a body where they lie.
struct Chunks {
    /// Up to where chunks were read.
    read: usize,
    /// Up to where the body was written.
    written: usize,
}

impl Chunks {
    fn from(start: usize) -> Self {
        Self {
            read: start,
            written: start,
        }
    }

    /// Joins what is whole; true once the last chunk was.
    fn join(&mut self, bytes: &mut [u8]) -> Result<bool, WireError> {
        loop {
            let Some((line, start)) = line(bytes, self.read)? else {
                return Ok(false);
            };
            let size = chunk_size(&bytes[line])?;
            if size == 0 {
                return self.trailers(bytes, start);
            }
            let end = start.checked_add(size).ok_or(WireError::TooLong)?;
            if end > MOST_BYTES {
                return Err(WireError::TooLong);
            }
            let Some(after) = bytes.get(end..end + 2) else {
                return Ok(false);
            };
            if after != b"\r\n" {
                return Err(WireError::Malformed("a chunk is longer than it says"));
            }
            bytes.copy_within(start..end, self.written);
            self.written += size;
            self.read = end + 2;
        }
    }

    /// An empty line ends what may follow the last chunk.
    fn trailers(&mut self, bytes: &[u8], mut at: usize) -> Result<bool, WireError> {
        while let Some((line, next)) = line(bytes, at)? {
            at = next;
            if line.is_empty() {
                self.read = at;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A line and where the next one starts; `None` while it is not whole.
fn line(bytes: &[u8], from: usize) -> Result<Option<(Range<usize>, usize)>, WireError> {
    let rest = bytes.get(from..).unwrap_or_default();
    match rest.windows(2).position(|pair| pair == b"\r\n") {
        Some(at) => Ok(Some((from..from + at, from + at + 2))),
        None if rest.len() > MOST_CHUNK_LINE => {
            Err(WireError::Malformed("a chunk's size does not end"))
        }
        None => Ok(None),
    }
}

fn chunk_size(line: &[u8]) -> Result<usize, WireError> {
    let digits = line.split(|b| *b == b';').next().unwrap_or_default();
    let digits = std::str::from_utf8(digits.trim_ascii()).unwrap_or_default();
    // `from_str_radix` takes a sign as well.
    let honest = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    honest
        .then(|| usize::from_str_radix(digits, 16).ok())
        .flatten()
        .ok_or(WireError::Malformed("a chunk's size is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::net::TcpListener;

    /// What a client makes of bytes that arrive in such pieces, after which the server closes.
    async fn answered(pieces: Vec<Vec<u8>>) -> Result<(u16, Vec<u8>, bool), WireError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut asked = vec![0; 1024];
            let _ = stream.read(&mut asked).await;
            for piece in pieces {
                if stream.write_all(&piece).await.is_err() {
                    break;
                }
                let _ = stream.flush().await;
                tokio::task::yield_now().await;
            }
        });
        let mut stream = TcpStream::connect(address).await.expect("the server");
        let buffers = Arc::default();
        let text = question("/metrics", address, true);
        let answer = exchange(&mut stream, &text, &buffers).await;
        server.abort();
        answer.map(|a| (a.status, a.body().to_vec(), a.keeps))
    }

    async fn whole(text: &str) -> Result<(u16, Vec<u8>, bool), WireError> {
        answered(vec![text.as_bytes().to_vec()]).await
    }

    #[tokio::test]
    async fn a_body_comes_by_length_in_chunks_or_until_the_end() {
        let by_length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(
            whole(by_length).await.expect("whole"),
            (200, b"hello".to_vec(), true)
        );
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n02\r\nlo\r\n0\r\nTrailer: a\r\n\r\n";
        assert_eq!(
            whole(chunked).await.expect("whole"),
            (200, b"hello".to_vec(), true)
        );
        let until_end = "HTTP/1.0 200 OK\r\n\r\nhello";
        assert_eq!(
            whole(until_end).await.expect("whole"),
            (200, b"hello".to_vec(), false)
        );
        let empty = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        assert_eq!(whole(empty).await.expect("whole"), (204, Vec::new(), false));
    }

    #[tokio::test]
    async fn what_breaks_the_protocol_is_no_answer() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
            "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: 17000000\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nhel\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nhello",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        ] {
            assert!(whole(text).await.is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn one_that_closes_without_a_word_may_be_asked_anew() {
        assert!(matches!(answered(vec![]).await, Err(WireError::Closed)));
    }

    #[tokio::test]
    async fn a_head_or_a_body_without_end_is_given_up() {
        let head = std::iter::repeat_n(b"x-filler: 0123456789\r\n".to_vec(), 8000);
        let head = std::iter::once(b"HTTP/1.1 200 OK\r\n".to_vec()).chain(head);
        assert!(answered(head.collect()).await.is_err());
        let body = std::iter::repeat_n(vec![b'x'; 1 << 20], 18);
        let body = std::iter::once(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()).chain(body);
        assert!(matches!(
            answered(body.collect()).await,
            Err(WireError::TooLong)
        ));
    }

    #[tokio::test]
    async fn more_than_was_promised_ends_the_connection() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n";
        assert_eq!(
            whole(text).await.expect("whole"),
            (200, b"hello".to_vec(), false)
        );
    }

    proptest! {
        #[test]
        fn chunks_join_to_the_body_wherever_reads_cut_them(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..12), cut in 0_usize..400
        ) {
            let mut text = Vec::new();
            for piece in &pieces {
                text.extend(format!("{:x}\r\n", piece.len()).bytes());
                text.extend(piece);
                text.extend(b"\r\n");
            }
            text.extend(b"0\r\n\r\n");
            let cut = cut.min(text.len());
            let mut chunks = Chunks::from(0);
            let mut seen = text[..cut].to_vec();
            let done = chunks.join(&mut seen).expect("honest");
            prop_assert_eq!(done, cut == text.len());
            seen.extend(&text[cut..]);
            prop_assert!(done || chunks.join(&mut seen).expect("honest"));
            prop_assert_eq!(&seen[..chunks.written], &pieces.concat()[..]);
            prop_assert_eq!(chunks.read, text.len());
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Head::parse(&bytes);
            let mut chunks = Chunks::from(0);
            let _ = chunks.join(&mut bytes.clone());
        }
    }
}
