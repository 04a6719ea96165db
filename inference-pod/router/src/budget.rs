//! One bound on the memory that clients' request bodies may take in the whole process.
//!
//! A connection limit alone does not bound it: ten thousand connections may each send a body of the
//! largest size. Whoever keeps a body keeps a [`Reservation`] of as many bytes beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

/// The budget has no room.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the request bodies held by this gateway would exceed {max_bytes} bytes")]
pub struct Exhausted {
    /// The budget's size.
    pub max_bytes: usize,
}

/// A number of bytes shared by everyone who holds a reservation.
#[derive(Debug)]
pub struct ByteBudget {
    used_bytes: AtomicUsize,
    max_bytes: usize,
}

impl ByteBudget {
    /// A budget of `max_bytes`.
    pub fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            used_bytes: AtomicUsize::new(0),
            max_bytes,
        })
    }

    /// A reservation of nothing yet.
    pub fn reservation(self: &Arc<Self>) -> Reservation {
        Reservation {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }

    /// Bytes reserved now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }
}

/// Bytes taken from a [`ByteBudget`]; given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl Reservation {
    /// Takes `bytes` more, or nothing.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let max_bytes = self.budget.max_bytes;
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max_bytes);
        self.budget
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|_| Exhausted { max_bytes })?;
        self.bytes += bytes;
        Ok(())
    }

    /// Bytes taken so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget
            .used_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_does_not_fit_and_gives_everything_back() {
        let budget = ByteBudget::new(10);
        let mut one = budget.reservation();
        let mut two = budget.reservation();
        one.grow(6).expect("fits");
        assert_eq!(two.grow(5), Err(Exhausted { max_bytes: 10 }));
        assert_eq!(two.bytes(), 0);
        two.grow(4).expect("fits");
        assert_eq!(two.grow(usize::MAX), Err(Exhausted { max_bytes: 10 }));
        drop(one);
        assert_eq!(budget.used_bytes(), 4);
        drop(two);
        assert_eq!(budget.used_bytes(), 0);
    }
}
