//! Zeroed memory aligned to cache lines, in huge pages where it is large.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const CACHE_LINE_BYTES: usize = 64;
/// What every allocator gives without asking.
const SMALL_ALIGN_BYTES: usize = 16;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Plain numbers for which all bits zero is a value.
pub trait Zeroable: Copy + Send + Sync + 'static {}
impl Zeroable for u8 {}
impl Zeroable for u16 {}
impl Zeroable for f32 {}

/// A fixed-length array of zeros at first, aligned to 64 bytes; from 2 MiB on it is aligned to 2 MiB and asks for huge
/// pages. Pages are taken from the system when first written.
pub struct AlignedBuffer<T: Zeroable> {
    start: NonNull<T>,
    len: usize,
    /// What the allocator gave: `start` lies within it.
    allocation: NonNull<u8>,
    layout: Layout,
    _owns: PhantomData<T>,
}

// SAFETY: the buffer owns its memory as a `Vec` does, and `T` is `Send + Sync`.
unsafe impl<T: Zeroable> Send for AlignedBuffer<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Zeroable> Sync for AlignedBuffer<T> {}

impl<T: Zeroable> AlignedBuffer<T> {
    /// `len` zeros.
    ///
    /// # Panics
    /// When `len` elements do not fit the address space. Callers bound sizes that come from files before.
    pub fn zeroed(len: usize) -> Self {
        let bytes = len
            .checked_mul(size_of::<T>())
            .expect("buffer size fits the address space")
            .max(1);
        let align = if bytes >= HUGE_PAGE_BYTES {
            HUGE_PAGE_BYTES
        } else {
            CACHE_LINE_BYTES
        };
        // Zeroed memory of a large alignment is written with zeros; of a small one it is fresh pages from the system, taken
        // when first written. So align by hand: a KV store costs what is used of it.
        let layout = bytes
            .checked_add(align)
            .and_then(|size| Layout::from_size_align(size, SMALL_ALIGN_BYTES).ok())
            .expect("buffer size fits the address space");
        // SAFETY: the layout's size is at least 1.
        let Some(allocation) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        let offset = allocation.as_ptr().align_offset(align);
        // SAFETY: `offset` is below `align`, which the allocation holds beyond `bytes`.
        let start = unsafe { allocation.add(offset) }.cast::<T>();
        if align == HUGE_PAGE_BYTES {
            advise_huge_pages(start.as_ptr().cast(), bytes);
        }
        Self {
            start,
            len,
            allocation,
            layout,
            _owns: PhantomData,
        }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn advise_huge_pages(start: *mut u8, bytes: usize) {
    // SAFETY: the range was just allocated, starts on a huge page and holds no data; the advice changes no content. That it
    // fails (a kernel without huge pages) costs speed alone.
    unsafe {
        libc::madvise(
            start.cast(),
            bytes & !(HUGE_PAGE_BYTES - 1),
            libc::MADV_HUGEPAGE,
        )
    };
}

#[cfg(any(not(target_os = "linux"), miri))]
fn advise_huge_pages(_: *mut u8, _: usize) {}

impl<T: Zeroable> Drop for AlignedBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: `allocation` came from the allocator with this layout and is freed once.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

impl<T: Zeroable> Deref for AlignedBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements (zeros are values of `T`) owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> DerefMut for AlignedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> std::fmt::Debug for AlignedBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlignedBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A pointer to an array that several threads write in disjoint parts.
pub(crate) struct SharedMut<T>(*mut T);

// SAFETY: sending the pointer is harmless; `at` carries the obligation.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> Clone for SharedMut<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// Pointer to element `index`.
    ///
    /// # Safety
    /// `index` lies within the slice, whose borrow outlives the use, and no other thread touches what the caller writes.
    #[inline(always)]
    pub unsafe fn at(self, index: usize) -> *mut T {
        // SAFETY: within the slice, as the caller promises.
        unsafe { self.0.add(index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of this process that are in memory.
    #[cfg(target_os = "linux")]
    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_is_taken_when_it_is_written_not_before() {
        let len = 1 << 30;
        let before = resident_bytes();
        let mut buffer = AlignedBuffer::<u8>::zeroed(len);
        buffer[len / 2] = 1;
        // Other tests run beside this one; a quarter of the buffer is far above what they take.
        assert!(resident_bytes().saturating_sub(before) < len / 4);
        assert_eq!((buffer[0], buffer[len / 2], buffer[len - 1]), (0, 1, 0));
    }

    #[test]
    fn buffers_start_aligned_and_zero_whatever_their_size() {
        for len in [0, 1, 100, 1 << 20] {
            let buffer = AlignedBuffer::<f32>::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % 64, 0);
            assert!(buffer.iter().all(|&x| x == 0.0));
        }
    }
}
