//! Files of this machine.

use std::io::SeekFrom;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::{Answer, Body, Failure, Opened, Terms, Wanted, fatal, unreadable};
use crate::journal::Validator;

const CHUNK_BYTES: usize = 1 << 20;

/// One file.
pub(crate) struct FileOrigin {
    path: PathBuf,
}

impl FileOrigin {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) async fn open(&self, wanted: Wanted<'_>) -> Result<Opened, Failure> {
        let unreadable = |error: std::io::Error| Failure::Fatal(unreadable(&self.path, &error));
        let mut file = File::open(&self.path).await.map_err(unreadable)?;
        let metadata = file.metadata().await.map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(fatal(format!(
                "{} is not a file; name the model file itself",
                self.path.display()
            )));
        }
        let total = metadata.len();
        if wanted.start > total {
            return Ok(Opened::Ended { total: Some(total) });
        }
        file.seek(SeekFrom::Start(wanted.start))
            .await
            .map_err(unreadable)?;
        let version = format!(
            "\"{}-{total}-{}.{}\"",
            metadata.ino(),
            metadata.mtime(),
            metadata.mtime_nsec()
        );
        Ok(Opened::Bytes(Answer {
            terms: Terms {
                start: wanted.start,
                total: Some(total),
                validator: Some(Validator::ETag(version)),
                is_ranged: wanted.is_range(),
                refuses_ranges: false,
            },
            body: Body::File(file),
        }))
    }
}

/// The next bytes of an open file.
pub(super) async fn chunk(file: &mut File) -> Result<Option<Bytes>, Failure> {
    let mut buffer = BytesMut::with_capacity(CHUNK_BYTES);
    let read = file.read_buf(&mut buffer).await;
    let read =
        read.map_err(|error| fatal(format!("the file cannot be read to its end: {error}")))?;
    Ok((read > 0).then(|| buffer.freeze()))
}
