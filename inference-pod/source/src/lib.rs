//! Fetches model files: resumed where they broke off, checked against their hash, put in place at
//! once, with failures that say what to do.
//!
//! [`fetch`] writes `DESTINATION.partial` and renames it when it is whole, verified and on disk, so
//! that whatever stands at the destination is complete. What a failed or killed fetch leaves behind
//! is taken up by the next one. The current time and randomness come in as arguments; URIs lose
//! their credentials before they are shown.
//!
//! Names are resolved by the C library, also in a statically linked binary: glibc 2.34 and later
//! carry the resolver inside and need nothing but `/etc/resolv.conf` and `/etc/hosts`.

mod digest;
mod disk;
mod error;
mod fetch;
mod http;
mod partial;
mod retry;
mod tls;
mod uri;

pub use digest::Sha256Digest;
pub use error::FetchError;
pub use fetch::{FetchRequest, Fetched, Phase, Progress, fetch};
pub use retry::RetryPolicy;
pub use uri::{ModelUri, PlainHttp, UriError};
