//! Room in the cache: under its cap, whoever else downloads, and on its disk.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use super::folder::{CacheFolder, ModelFolder, Seen};
use super::victims::{Shortfall, Tenant, victims};
use crate::disk;
use crate::error::FetchError;
use crate::room::Room;

/// Bytes taken ahead for a source that does not tell its length.
const STEP_BYTES: u64 = 64 << 20;

/// Makes room for one model.
pub(crate) struct CacheRoom {
    pub(crate) cache: CacheFolder,
    pub(crate) own: ModelFolder,
    pub(crate) key: String,
    pub(crate) cap_bytes: u64,
    pub(crate) protect: Duration,
    /// What was granted last.
    pub(crate) granted: Mutex<u64>,
}

impl Room for CacheRoom {
    fn reserve(&self, total_bytes: u64, _: u64) -> Result<(), FetchError> {
        let mut granted = self
            .granted
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if total_bytes <= *granted {
            return Ok(());
        }
        let made = self.make_room(total_bytes);
        made.map_err(|error| FetchError::local("", self.cache.path(), &error))??;
        *granted = total_bytes;
        Ok(())
    }

    fn grow(&self, at_least_bytes: u64) -> Result<(), FetchError> {
        let ahead = self.reserve(
            at_least_bytes
                .saturating_add(STEP_BYTES)
                .min(self.cap_bytes),
            0,
        );
        match ahead {
            Ok(()) if at_least_bytes <= self.cap_bytes => Ok(()),
            _ => self.reserve(at_least_bytes, 0),
        }
    }
}

impl CacheRoom {
    fn make_room(&self, wanted: u64) -> std::io::Result<Result<(), FetchError>> {
        let _accounts = self.cache.accounts()?;
        if wanted > self.cap_bytes {
            let detail = format!(
                "the model has {wanted} bytes, the node's cache for this namespace may hold {} in all; raise the \
                 operator's --model-cache-bytes",
                self.cap_bytes
            );
            return Ok(Err(self.full(detail)));
        }
        let seen = self.cache.survey(&self.key, SystemTime::now())?;
        let tenants: Vec<Tenant> = seen.iter().map(|seen| seen.tenant.clone()).collect();
        let must_free = self
            .over_cap(&seen, wanted)
            .max(self.over_disk(&seen, wanted));
        let chosen = match victims(&tenants, must_free, self.protect) {
            Ok(chosen) => chosen,
            Err(shortfall) => return Ok(Err(self.full(self.arithmetic(wanted, shortfall)))),
        };
        for index in chosen {
            let folder = &seen[index].folder;
            tracing::info!(model = %folder.model_path().display(), bytes = tenants[index].bytes, "evicted from the cache");
            folder.evict()?;
        }
        // Only now, and still under the lock: whoever counts next counts this too.
        self.own.reserve(wanted)?;
        Ok(Ok(()))
    }

    fn over_cap(&self, seen: &[Seen], wanted: u64) -> u64 {
        let others = seen.iter().map(|seen| seen.tenant.bytes);
        others
            .fold(wanted, u64::saturating_add)
            .saturating_sub(self.cap_bytes)
    }

    fn over_disk(&self, seen: &[Seen], wanted: u64) -> u64 {
        let Some(free) = disk::free_bytes(self.cache.path()) else {
            return 0;
        };
        let promised = seen.iter().map(|seen| seen.outstanding);
        let own = wanted.saturating_sub(self.own.bytes_on_disk());
        promised.fold(own, u64::saturating_add).saturating_sub(free)
    }

    fn arithmetic(&self, wanted: u64, shortfall: Shortfall) -> String {
        let free = disk::free_bytes(self.cache.path()).unwrap_or_default();
        format!(
            "{} bytes are missing for a model of {wanted}: the node's cache may hold {} in all and its disk has {free} free, \
             {} are of models being served, {} of downloads under way, {} were fetched in the last {} minutes by pods \
             that may be about to load them; raise the operator's --model-cache-bytes, or run fewer models by node",
            shortfall.missing,
            self.cap_bytes,
            shortfall.serving,
            shortfall.downloading,
            shortfall.fresh,
            self.protect.as_secs() / 60,
        )
    }

    fn full(&self, detail: String) -> FetchError {
        FetchError::DiskFull {
            path: self.cache.path().display().to_string(),
            detail,
        }
    }
}
