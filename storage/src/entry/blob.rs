//! Blobs: bytes in an allocation with a reference count, so that they can be read after the hold.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::class_bytes;

/// Lengths to which a growing blob doubles; beyond, it gets this much more than it needs.
const GREEDY_MAX: usize = 1 << 20;

#[repr(C)]
struct BlobHeader {
    references: AtomicUsize,
    len: usize,
    /// Bytes that have room behind the header.
    capacity: usize,
}

/// Bytes that stay readable and unchanged as long as the handle lives.
///
/// An entry whose value is long has one, and whoever reads the value without a hold has another. Only a blob
/// with a single handle is ever changed; who wants to change another copies it.
#[repr(transparent)]
pub struct Pinned {
    blob: NonNull<BlobHeader>,
}

// SAFETY: the bytes are only changed through a `&mut` to the one handle that exists, and the count is atomic.
unsafe impl Send for Pinned {}
// SAFETY: as above; a shared handle only reads the bytes and clones itself.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// A blob with a copy of these bytes.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut blob = Self::with_capacity(bytes.len());
        // SAFETY: the blob is new, so it is ours alone, and has room for the bytes.
        unsafe { blob.data().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        blob.set_len(bytes.len());
        blob
    }

    /// An empty blob with room for at least so many bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let bytes = class_bytes(size_of::<BlobHeader>() + capacity);
        let layout = Self::layout(bytes);
        // SAFETY: the layout has the size of the header at least.
        let start = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let blob = start.cast::<BlobHeader>();
        let capacity = bytes - size_of::<BlobHeader>();
        // SAFETY: the allocation is ours alone, aligned for the header, and large enough.
        unsafe { blob.write(BlobHeader { references: AtomicUsize::new(1), len: 0, capacity }) };
        Pinned { blob }
    }

    /// Appends to a blob that nobody else reads, and copies it first otherwise; how long arguments are read
    /// into their place.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let len = self.len();
        self.make_room(len, len + bytes.len());
        // SAFETY: `make_room` made the blob ours alone, with room for so many bytes behind the first `len`.
        unsafe { self.data().add(len).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.set_len(len + bytes.len());
    }

    /// The bytes that the blob has allocated.
    pub fn allocated_bytes(&self) -> usize {
        size_of::<BlobHeader>() + self.header().capacity
    }

    /// Sets the length: cuts the bytes, or adds zeros.
    pub fn resize(&mut self, len: usize) {
        let keep = self.len().min(len);
        self.make_room(keep, len);
        // SAFETY: `make_room` made the blob ours alone, with room for `len` bytes.
        unsafe { self.data().add(keep).write_bytes(0, len - keep) };
        self.set_len(len);
    }

    /// The bytes, to be changed; a blob that somebody else reads is copied first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len();
        self.make_room(len, len);
        // SAFETY: `make_room` made the blob ours alone, `len` bytes are initialised, and `self` stays borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.data().as_ptr(), len) }
    }

    /// Makes the blob ours alone, with room for `len` bytes, of which the first `keep` stay.
    pub(super) fn make_room(&mut self, keep: usize, len: usize) {
        debug_assert!(keep <= self.len());
        let capacity = self.header().capacity;
        let wanted = if len <= capacity {
            len
        } else if len < GREEDY_MAX {
            len * 2
        } else {
            len + GREEDY_MAX
        };
        if !self.is_unique() {
            let mut copy = Self::with_capacity(wanted);
            // SAFETY: the copy is new, so it is ours alone, and `keep` is within both lengths.
            unsafe { copy.data().copy_from_nonoverlapping(self.data(), keep) };
            copy.set_len(keep);
            *self = copy;
        } else if len > capacity {
            let old = Self::layout(size_of::<BlobHeader>() + capacity);
            let bytes = class_bytes(size_of::<BlobHeader>() + wanted);
            let layout = Self::layout(bytes);
            // SAFETY: the blob is ours alone, so nobody else has its address, and was allocated with this layout.
            let moved = unsafe { realloc(self.blob.as_ptr().cast(), old, layout.size()) };
            self.blob = NonNull::new(moved).unwrap_or_else(|| handle_alloc_error(layout)).cast();
            self.header_mut().capacity = bytes - size_of::<BlobHeader>();
        }
    }

    /// Overwrites all bytes, if the blob is ours alone and has room, though not four times what is needed.
    pub(super) fn try_overwrite(&mut self, bytes: &[u8]) -> bool {
        let capacity = self.header().capacity;
        if bytes.len() > capacity || bytes.len() < capacity / 4 || !self.is_unique() {
            return false;
        }
        // SAFETY: the blob is ours alone and has room.
        unsafe { self.data().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.set_len(bytes.len());
        true
    }

    /// Sets the length of a blob that is ours alone; who makes it longer writes the new bytes at once.
    pub(super) fn set_len(&mut self, len: usize) {
        debug_assert!(self.is_unique() && len <= self.header().capacity);
        self.header_mut().len = len;
    }

    #[inline]
    pub(super) fn data(&self) -> NonNull<u8> {
        // SAFETY: the bytes begin right behind the header, in the same allocation.
        unsafe { self.blob.add(1).cast() }
    }

    /// Says whether there is no other handle. Who sees that there is none may change the bytes.
    fn is_unique(&self) -> bool {
        // Acquire pairs with the Release in `drop`: the reads of the handle that went come before our writes.
        self.header().references.load(Acquire) == 1
    }

    #[inline]
    fn header(&self) -> &BlobHeader {
        // SAFETY: the handle keeps the blob, whose header only changes through `header_mut`, but for the atomic
        // count.
        unsafe { self.blob.as_ref() }
    }

    fn header_mut(&mut self) -> &mut BlobHeader {
        debug_assert!(self.is_unique());
        // SAFETY: callers have made the blob theirs alone, and no reference to the header outlives a method.
        unsafe { self.blob.as_mut() }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, align_of::<BlobHeader>())
            .expect("values are far shorter than isize::MAX")
    }

    /// Gives the handle up for an address.
    pub(super) fn into_raw(self) -> NonNull<u8> {
        let blob = self.blob;
        std::mem::forget(self);
        blob.cast()
    }

    /// # Safety
    /// `raw` is from [`into_raw`](Self::into_raw), and no other handle is made of it.
    pub(super) unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Pinned { blob: raw.cast() }
    }

    /// # Safety
    /// `raw` is from [`into_raw`](Self::into_raw), and that handle still counts.
    pub(super) unsafe fn another(raw: NonNull<u8>) -> Self {
        // SAFETY: the handle that counts is borrowed, not dropped.
        let handle = unsafe { std::mem::ManuallyDrop::new(Self::from_raw(raw)) };
        Pinned::clone(&handle)
    }

    /// # Safety
    /// `raw` is from [`into_raw`](Self::into_raw), and that handle still counts.
    pub(super) unsafe fn is_shared(raw: NonNull<u8>) -> bool {
        // SAFETY: the handle that counts is borrowed, not dropped.
        let handle = unsafe { std::mem::ManuallyDrop::new(Self::from_raw(raw)) };
        !handle.is_unique()
    }

    /// # Safety
    /// `raw` is from [`into_raw`](Self::into_raw), and that handle still counts and changes nothing during `'a`.
    #[inline]
    pub(super) unsafe fn bytes_of<'a>(raw: NonNull<u8>) -> &'a [u8] {
        let blob = raw.cast::<BlobHeader>();
        // SAFETY: the caller keeps the blob unchanged during 'a, and its first `len` bytes are initialised.
        unsafe { std::slice::from_raw_parts(blob.add(1).cast().as_ptr(), (*blob.as_ptr()).len) }
    }

    /// # Safety
    /// `raw` is from [`into_raw`](Self::into_raw), and that handle still counts.
    pub(super) unsafe fn allocated_bytes_of(raw: NonNull<u8>) -> usize {
        // SAFETY: the handle that counts is borrowed, not dropped.
        let handle = unsafe { std::mem::ManuallyDrop::new(Self::from_raw(raw)) };
        handle.allocated_bytes()
    }
}

impl Deref for Pinned {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the handle keeps the blob, unchanged while `self` is borrowed, and `len` bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.data().as_ptr(), self.header().len) }
    }
}

impl Clone for Pinned {
    fn clone(&self) -> Self {
        // Relaxed: the new handle is handed over by whoever hands it over.
        let before = self.header().references.fetch_add(1, Relaxed);
        assert!(before < usize::MAX / 2, "handles are leaked");
        Pinned { blob: self.blob }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let header = self.header();
        // Release pairs with the Acquire below and in `is_unique`: our reads come before the bytes are freed or
        // changed.
        if header.references.fetch_sub(1, Release) != 1 {
            return;
        }
        // Acquire pairs with the Release of the handles that went before. A load, since ThreadSanitizer knows
        // no fences.
        header.references.load(Acquire);
        let layout = Self::layout(size_of::<BlobHeader>() + header.capacity);
        // SAFETY: this was the last handle, and the blob was allocated with this layout.
        unsafe { dealloc(self.blob.as_ptr().cast(), layout) };
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("len", &self.len()).finish_non_exhaustive()
    }
}
