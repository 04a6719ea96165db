//! Gives back memory that is free.
//!
//! Reading a large cluster, and thousands of services that change at once, need memory for a moment. The allocator keeps what
//! was freed in the middle of its heap for ever, and a pod is measured by what it keeps.

use std::{io, thread, time::Duration};

/// Walking the heap takes milliseconds; twice a minute that is nothing.
const EVERY: Duration = Duration::from_secs(30);

/// Gives back free memory twice a minute, on a thread of its own, until the process ends.
pub fn keep_trimmed() -> io::Result<()> {
    let trimming = || {
        loop {
            thread::sleep(EVERY);
            trim();
        }
    };
    thread::Builder::new()
        .name("heap".into())
        .spawn(trimming)
        .map(drop)
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: takes no pointer, and takes the allocator's own locks.
    #[expect(unsafe_code, reason = "the C library's allocator has no other way")]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}
