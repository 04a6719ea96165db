//! Lines of a file, numbered and bounded.

use std::io::{BufRead, Read};

use super::TraceError;

/// No row of a trace is as long; a file without line ends must not be read into memory whole.
const LONGEST_LINE: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    line: u64,
    rows: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            line: 0,
            rows: 0,
            buffer: Vec::new(),
        }
    }

    /// Rows that [`Self::count_row`] counted.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn count_row(&mut self) {
        self.rows += 1;
    }

    /// The next line that is not empty, without white space around it, and its number.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &str)>, TraceError> {
        loop {
            self.line += 1;
            self.buffer.clear();
            let line = self.line;
            let read = (&mut self.source)
                .take(LONGEST_LINE + 1)
                .read_until(b'\n', &mut self.buffer)
                .map_err(|source| TraceError::Read { line, source })?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 > LONGEST_LINE {
                return Err(TraceError::Row {
                    line,
                    what: format!(
                        "longer than {LONGEST_LINE} bytes: no row of a trace is; is this another file?"
                    ),
                });
            }
            if !self.buffer.trim_ascii().is_empty() {
                break;
            }
        }
        let line = self.line;
        // A byte-order mark is what spreadsheets put before a CSV's header.
        let bytes = self
            .buffer
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(&self.buffer);
        let text = std::str::from_utf8(bytes).map_err(|_| TraceError::Row {
            line,
            what: "not UTF-8: is this another file, or a compressed one? Unpack it first"
                .to_owned(),
        })?;
        Ok(Some((line, text.trim())))
    }
}
