//! Fetches model files: over several connections, resumed where they broke off, checked against their hash, put in
//! place at once, with failures that say what to do.
//!
//! [`fetch`] writes `DESTINATION.partial` and renames it when it is whole, verified and on disk, so
//! that whatever stands at the destination is complete. What a failed or killed fetch leaves behind
//! is taken up by the next one. [`fetch_cached`] does the same in a directory that the containers of a node share.
//! The current time and randomness come in as arguments; URIs lose their credentials before they are shown.
//!
//! Names are resolved by the C library, also in a statically linked binary: glibc 2.34 and later
//! carry the resolver inside and need nothing but `/etc/resolv.conf` and `/etc/hosts`.

mod cache;
mod credentials;
mod digest;
mod disk;
mod download;
mod error;
mod extents;
mod fetch;
mod journal;
mod lock;
mod origin;
mod partial;
mod retry;
mod room;
mod tls;
mod uri;

pub use cache::{Cache, PROTECTED, fetch_cached, prepare};
pub use digest::Sha256Digest;
pub use error::FetchError;
pub use fetch::{DEFAULT_CONNECTIONS, FetchRequest, Fetched, Phase, Progress, fetch};
pub use lock::ModelLock;
pub use retry::RetryPolicy;
pub use uri::{
    Cloud, HuggingFaceFile, ModelUri, ObjectUri, OciFile, PlainHttp, UriError, parse_endpoint,
};
