//! A cursor over the header which knows where the file ends and what it is reading.

use crate::error::GgufError;

/// Metadata and tensor table of the largest models are some tens of MiB; past this a file is not
/// a model, and reading on would only spend memory.
pub(crate) const HEADER_LIMIT_BYTES: usize = 256 << 20;

/// Reads the beginning of a file, of which more may lie behind what is in memory.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    file_bytes: u64,
    position: usize,
}

impl<'a> Reader<'a> {
    /// Of a file of `file_bytes` that begins with `bytes`.
    pub(crate) fn new(bytes: &'a [u8], file_bytes: u64) -> Self {
        Self {
            bytes,
            file_bytes,
            position: 0,
        }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    fn left(&self) -> u64 {
        self.file_bytes - self.position as u64
    }

    /// How many of `count` items, of at least `item_bytes` each, the bytes in memory can hold: what may be reserved for them.
    pub(crate) fn reservable(&self, count: usize, item_bytes: usize) -> usize {
        count.min((self.bytes.len() - self.position) / item_bytes)
    }

    /// The next `count` bytes; `what` names them in the error.
    pub(crate) fn take(
        &mut self,
        count: u64,
        what: &dyn Fn() -> String,
    ) -> Result<&'a [u8], GgufError> {
        let needed_bytes = (self.position as u64).saturating_add(count);
        let file_bytes = self.file_bytes;
        if needed_bytes > file_bytes {
            return Err(GgufError::TruncatedHeader {
                what: what(),
                file_bytes,
                needed_bytes,
            });
        }
        if needed_bytes > HEADER_LIMIT_BYTES as u64 {
            let limit_bytes = HEADER_LIMIT_BYTES as u64;
            return Err(GgufError::HeaderTooLarge {
                what: what(),
                limit_bytes,
            });
        }
        if needed_bytes > self.bytes.len() as u64 {
            return Err(GgufError::HeadTooShort { needed_bytes });
        }
        let start = self.position;
        self.position = needed_bytes as usize;
        Ok(&self.bytes[start..self.position])
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &dyn Fn() -> String,
    ) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: &dyn Fn() -> String) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &dyn Fn() -> String) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of items of at least `item_bytes` each, refused when the file cannot hold them, so
    /// that reserving memory for them costs no more than a small multiple of the file.
    pub(crate) fn count(
        &mut self,
        item_bytes: usize,
        what: &dyn Fn() -> String,
    ) -> Result<usize, GgufError> {
        let count = self.u64(what)?;
        let left = self.left().min(HEADER_LIMIT_BYTES as u64);
        if count > left / item_bytes as u64 {
            let left_bytes = self.left();
            return Err(GgufError::AbsurdCount {
                what: what(),
                count,
                left_bytes,
            });
        }
        Ok(count as usize)
    }

    pub(crate) fn string(&mut self, what: &dyn Fn() -> String) -> Result<String, GgufError> {
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { what: what() })?;
        Ok(text.to_owned())
    }

    /// A string with a bound of its own, for keys and tensor names.
    pub(crate) fn name(
        &mut self,
        limit_bytes: u64,
        what: &dyn Fn() -> String,
    ) -> Result<String, GgufError> {
        let start = self.position;
        let name_bytes = self.u64(what)?;
        if name_bytes > limit_bytes {
            return Err(GgufError::NameTooLong {
                what: what(),
                name_bytes,
                limit_bytes,
            });
        }
        self.position = start;
        self.string(what)
    }
}
