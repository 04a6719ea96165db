//! A pool of threads that waits by spinning for a moment and then by sleeping.
//!
//! One decode step forks about 120 times, so a fork must cost well under a microsecond while work is flowing, and nothing
//! once it stops. Threads take parts of the work from a counter, and the caller waits only for threads that took some: on
//! a machine busy with other things a thread that gets no processor delays nobody. Work is cut by position alone; no result
//! depends on who computes what.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::buffer::SharedMut;

/// How long a thread spins before it sleeps: longer than the gaps within a step, shorter than those between requests.
const SPIN: Duration = Duration::from_micros(100);

/// Parts that work is split into for each thread: more even out threads held up elsewhere, fewer cost less.
const PARTS_A_THREAD: usize = 4;

type Work = dyn Fn(usize) + Sync;

/// A counter on its own cache lines, so that spinning on it disturbs no neighbour.
#[repr(align(128))]
struct Alone<T>(T);

struct Shared {
    /// Bumped once a fork; idle workers wait for a change.
    epoch: Alone<AtomicU64>,
    /// Workers inside the current fork, plus `CLOSED` when none may join any more.
    gate: Alone<AtomicUsize>,
    /// The current fork's work: written while the gate is closed and empty, read by workers inside.
    work: UnsafeCell<Option<*const Work>>,
    stop: AtomicBool,
    panicked: AtomicBool,
    workers: Sleepers,
    caller: Sleepers,
}

const CLOSED: usize = 1 << (usize::BITS - 1);

// SAFETY: `work` is written only by the caller while the gate is closed and empty; opening it orders the write before the
// reads of workers that join. The pointee is `Sync` and outlives the fork, which ends with the gate closed and empty.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

#[derive(Default)]
struct Sleepers {
    count: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Sleepers {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once `ready`. Spins first, then sleeps until `wake_all` follows a change.
    fn wait_until(&self, ready: impl Fn() -> bool) {
        let mut deadline = None;
        loop {
            for _ in 0..64 {
                if ready() {
                    return;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now >= *deadline.get_or_insert(now + SPIN) {
                break;
            }
        }
        let mut guard = self.lock();
        // Counted before `ready` is asked again, both sequentially consistent: the waker either sees the sleeper or the
        // sleeper sees the change.
        self.count.fetch_add(1, Ordering::SeqCst);
        while !ready() {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_all(&self) {
        if self.count.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.wake.notify_all();
        }
    }
}

/// Persistent threads that run one fork at a time together with the caller.
pub struct ThreadPool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    one_fork: Mutex<()>,
}

impl ThreadPool {
    /// A pool of `threads` threads, the calling one included; at least 1.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: Alone(AtomicU64::new(0)),
            gate: Alone(AtomicUsize::new(CLOSED)),
            work: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            workers: Sleepers::default(),
            caller: Sleepers::default(),
        });
        let mut pool = Self {
            shared,
            handles: Vec::new(),
            one_fork: Mutex::new(()),
        };
        for index in 1..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("compute-{index}"));
            pool.handles
                .push(builder.spawn(move || work_until_stopped(&shared, index))?);
        }
        Ok(pool)
    }

    /// Threads that compute, the caller included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `work(thread)` on the caller (thread 0) and on whichever workers come while the caller is at it.
    fn fork(&self, work: impl Fn(usize) + Sync) {
        if self.handles.is_empty() {
            return work(0);
        }
        let one_fork = self.one_fork.lock().unwrap_or_else(PoisonError::into_inner);
        let gate = &self.shared.gate.0;
        self.open(&work);
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        gate.fetch_or(CLOSED, Ordering::SeqCst);
        self.shared
            .caller
            .wait_until(|| gate.load(Ordering::SeqCst) == CLOSED);
        let others_panicked = self.shared.panicked.swap(false, Ordering::Relaxed);
        drop(one_fork);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!others_panicked, "a compute thread panicked");
    }

    fn open(&self, work: &(impl Fn(usize) + Sync)) {
        let work: *const (dyn Fn(usize) + Sync + '_) = work;
        #[allow(clippy::transmute_ptr_to_ptr)] // A cast cannot lengthen a trait object's lifetime.
        // SAFETY: only the lifetime changes; `fork` does not return before the gate is closed and empty again.
        let work =
            unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Work>(work) };
        // SAFETY: the gate is closed and empty, so no worker reads `work` now.
        unsafe { *self.shared.work.get() = Some(work) };
        self.shared.gate.0.store(0, Ordering::SeqCst);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        self.shared.workers.wake_all();
    }

    /// Calls `work(thread, item)` once for every item of `0..items`; each thread takes the next when it has finished its
    /// last. `thread` is below [`ThreadPool::threads`], and no two calls with the same one overlap. Must not be called
    /// from within `work`.
    ///
    /// # Panics
    /// When `work` panics on any thread.
    pub fn share(&self, items: usize, work: impl Fn(usize, usize) + Sync) {
        if items <= 1 {
            return (0..items).for_each(|item| work(0, item));
        }
        let next = Alone(AtomicUsize::new(0));
        let next = &next.0;
        self.fork(|thread| {
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    return;
                }
                work(thread, item);
            }
        });
    }

    /// Calls `work` with contiguous ranges of at least `grain` items that cover `0..items`, a few a thread; on the caller
    /// alone when there are fewer than two `grain`s of items.
    pub fn split(&self, items: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) {
        let parts = (self.threads() * PARTS_A_THREAD)
            .min(items / grain.max(1))
            .max(1);
        if parts == 1 || self.threads() == 1 {
            return work(0..items);
        }
        self.share(parts, |_, part| {
            work(items * part / parts..items * (part + 1) / parts);
        });
    }

    /// Calls `work(index, chunk)` for every `chunk_len` elements of `data`, split as by [`ThreadPool::split`] with
    /// `grain` counted in chunks.
    ///
    /// # Panics
    /// When `data` is no whole number of chunks.
    pub fn split_chunks<T: Send>(
        &self,
        data: &mut [T],
        chunk_len: usize,
        grain: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(
            chunk_len > 0 && data.len().is_multiple_of(chunk_len),
            "data is a whole number of chunks"
        );
        let chunks = data.len() / chunk_len;
        let shared = SharedMut::new(data);
        self.split(chunks, grain, |range| {
            for index in range {
                // SAFETY: chunk `index` lies within `data`, and `split` gives it to one thread.
                work(index, unsafe {
                    std::slice::from_raw_parts_mut(shared.at(index * chunk_len), chunk_len)
                });
            }
        });
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        self.shared.workers.wake_all();
        for handle in self.handles.drain(..) {
            // A worker catches its panics, so joining cannot fail in a way anyone could act on.
            let _ = handle.join();
        }
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool")
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

fn work_until_stopped(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        shared
            .workers
            .wait_until(|| shared.epoch.0.load(Ordering::SeqCst) != seen);
        seen = shared.epoch.0.load(Ordering::SeqCst);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !join(&shared.gate.0) {
            continue;
        }
        // SAFETY: this thread is inside the gate, so `work` is the current fork's and its target lives until it leaves.
        let work = unsafe { (*shared.work.get()).map(|work| &*work) };
        if let Some(work) = work
            && catch_unwind(AssertUnwindSafe(|| work(index))).is_err()
        {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        if shared.gate.0.fetch_sub(1, Ordering::SeqCst) == CLOSED + 1 {
            shared.caller.wake_all();
        }
    }
}

/// Enters the gate unless it is closed.
fn join(gate: &AtomicUsize) -> bool {
    let enter = |inside: usize| (inside & CLOSED == 0).then_some(inside + 1);
    gate.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter)
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bump(count: &AtomicUsize) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn every_item_is_visited_once_whatever_the_thread_count() {
        for threads in 1..=4 {
            let pool = ThreadPool::new(threads).unwrap();
            for items in [0, 1, 2, 3, 7, 100] {
                let visits: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.split(items, 1, |range| range.for_each(|i| bump(&visits[i])));
                pool.share(items, |_, i| bump(&visits[i]));
                assert!(
                    visits.iter().all(|v| v.load(Ordering::Relaxed) == 2),
                    "{threads} threads, {items} items"
                );
            }
        }
    }

    #[test]
    fn forks_after_a_pause_wake_sleeping_threads() {
        let pool = ThreadPool::new(3).unwrap();
        let count = AtomicUsize::new(0);
        for _ in 0..5 {
            pool.share(3, |_, _| bump(&count));
            std::thread::sleep(SPIN * 3);
        }
        assert_eq!(count.into_inner(), 15);
    }

    #[test]
    fn a_panic_on_any_thread_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = ThreadPool::new(2).unwrap();
        // Both threads are inside before either goes on, so that each gets its turn to panic.
        for bad in 0..2 {
            let inside = std::sync::Barrier::new(2);
            let work = |thread, _| {
                inside.wait();
                assert_ne!(thread, bad);
            };
            assert!(catch_unwind(AssertUnwindSafe(|| pool.share(2, work))).is_err());
        }
        let count = AtomicUsize::new(0);
        pool.share(2, |_, _| bump(&count));
        assert_eq!(count.into_inner(), 2);
    }

    #[test]
    fn chunks_are_written_in_place() {
        let pool = ThreadPool::new(3).unwrap();
        let mut data = vec![0usize; 30];
        pool.split_chunks(&mut data, 3, 1, |index, chunk| chunk.fill(index));
        assert!(data.iter().enumerate().all(|(i, &x)| x == i / 3));
    }
}
