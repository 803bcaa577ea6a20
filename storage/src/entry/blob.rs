//! Blobs: bytes in an allocation with a reference count, so that they can be read after the hold.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hint::cold_path;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::classes::class_bytes;

/// Lengths to which a growing blob doubles; beyond, it gets this much more than it needs.
const GREEDY_MAX: usize = 1 << 20;

/// Fewer bytes are copied rather than handed over: that is soon done.
pub(super) const LONG_BYTES: usize = 1 << 20;

thread_local! {
    /// The blobs, by the address of their bytes, that entries made on this thread take if they are made of
    /// the very same bytes.
    static OFFERED: RefCell<BTreeMap<usize, Pinned>> = const { RefCell::new(BTreeMap::new()) };
}

/// Runs something that may make entries of the blobs' bytes: they get the blobs and no copies.
pub(crate) fn offer<'b, T>(blobs: impl IntoIterator<Item = &'b Pinned>, run: impl FnOnce() -> T) -> T {
    struct Withdraw;
    impl Drop for Withdraw {
        fn drop(&mut self) {
            drop(OFFERED.take());
        }
    }
    OFFERED.set(blobs.into_iter().map(|blob| (blob.as_ptr().addr(), blob.clone())).collect());
    let _withdraw = Withdraw;
    run()
}

/// The blob of these very bytes, if it is offered.
#[inline]
pub(crate) fn offered(bytes: &[u8]) -> Option<Pinned> {
    if bytes.len() < LONG_BYTES {
        return None;
    }
    cold_path();
    OFFERED.with_borrow(|offered| {
        offered.get(&bytes.as_ptr().addr()).filter(|blob| blob.len() == bytes.len()).cloned()
    })
}

#[repr(C)]
struct BlobHeader {
    references: AtomicUsize,
    len: usize,
    /// Bytes of room after the header; and [`OF_BUFFER`], if the allocation was a `Vec<u8>`.
    room: usize,
}

/// The mark of a blob whose allocation was a `Vec<u8>`, so that it is freed as one: with another alignment.
const OF_BUFFER: usize = 1 << (usize::BITS - 1);

/// The bytes of a blob's header.
pub(super) const HEADER_BYTES: usize = size_of::<BlobHeader>();

impl BlobHeader {
    fn capacity(&self) -> usize {
        self.room & !OF_BUFFER
    }

    fn is_of_buffer(&self) -> bool {
        self.room & OF_BUFFER != 0
    }

    /// How the allocation was made.
    fn layout(&self) -> Layout {
        let bytes = HEADER_BYTES + self.capacity();
        if self.is_of_buffer() {
            Layout::array::<u8>(bytes).expect("a buffer is no longer than isize::MAX")
        } else {
            Pinned::layout(bytes)
        }
    }
}

/// Bytes that stay readable and unchanged as long as the handle lives.
///
/// An entry whose value is long has one, and a thread that reads the value without a hold has another. Only a
/// blob with a single handle is ever changed. A change of any other blob is made to a copy.
#[repr(transparent)]
pub struct Pinned {
    blob: NonNull<BlobHeader>,
}

// SAFETY: the bytes are only changed through a `&mut` to the one handle that exists, and the count is atomic.
unsafe impl Send for Pinned {}
// SAFETY: as above; a shared handle only reads the bytes and clones itself.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// A blob of these bytes: a copy, unless they are a long word that a request [hands
    /// over](super::Handover).
    pub fn from_slice(bytes: &[u8]) -> Self {
        if let Some(blob) = offered(bytes) {
            return blob;
        }
        let mut blob = Self::with_capacity(bytes.len());
        // SAFETY: the blob is new, so it is ours alone, and has room for the bytes.
        unsafe { blob.data().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        blob.set_len(bytes.len());
        blob
    }

    /// Makes an empty blob with room for at least `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let bytes = class_bytes(HEADER_BYTES + capacity);
        let layout = Self::layout(bytes);
        // SAFETY: the layout has the size of the header at least.
        let start = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let blob = start.cast::<BlobHeader>();
        let capacity = bytes - HEADER_BYTES;
        // SAFETY: the allocation is ours alone, aligned for the header, and large enough.
        unsafe { blob.write(BlobHeader { references: AtomicUsize::new(1), len: 0, room: capacity }) };
        Pinned { blob }
    }

    /// Makes a blob in the place of a buffer. Its bytes are the `len` bytes that begin [`HEADER_BYTES`] after
    /// the buffer's start. Returns the buffer if a header cannot lie there.
    pub(super) fn in_buffer(buffer: Vec<u8>, len: usize) -> Result<Self, Vec<u8>> {
        let start = buffer.as_ptr().cast::<BlobHeader>();
        if !start.is_aligned() || HEADER_BYTES + len > buffer.len() {
            return Err(buffer);
        }
        let mut buffer = ManuallyDrop::new(buffer);
        let room = (buffer.capacity() - HEADER_BYTES) | OF_BUFFER;
        // Not of a slice: a pointer to that may not reach the room behind the bytes.
        let blob = NonNull::new(buffer.as_mut_ptr()).expect("a buffer has an address").cast::<BlobHeader>();
        // SAFETY: the allocation is ours alone, since the buffer is forgotten; it is aligned for the header,
        // and long enough.
        unsafe { blob.write(BlobHeader { references: AtomicUsize::new(1), len, room }) };
        Ok(Pinned { blob })
    }

    /// The buffer in whose place the blob is, empty, if it is in one and nobody else has the blob.
    pub(super) fn into_buffer(self) -> Option<Vec<u8>> {
        if !self.header().is_of_buffer() || !self.is_unique() {
            return None;
        }
        let capacity = HEADER_BYTES + self.header().capacity();
        let start = self.into_raw();
        // SAFETY: the blob was ours alone, and its allocation is that of a `Vec<u8>` of this capacity.
        Some(unsafe { Vec::from_raw_parts(start.as_ptr(), 0, capacity) })
    }

    /// The first `n` bytes of the allocation after the header, which may be more than the blob has.
    ///
    /// # Safety
    /// They have been written to, and those beyond the blob's own are changed by nobody.
    pub(super) unsafe fn first_bytes(&self, n: usize) -> &[u8] {
        debug_assert!(n <= self.header().capacity());
        // SAFETY: the handle keeps the blob, which nobody changes as long as there is another handle; the
        // rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.data().as_ptr(), n) }
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
        HEADER_BYTES + self.header().capacity()
    }

    /// Sets the length: cuts the bytes, or adds zeros.
    pub fn resize(&mut self, len: usize) {
        let keep = self.len().min(len);
        self.make_room(keep, len);
        // SAFETY: `make_room` made the blob ours alone, with room for `len` bytes.
        unsafe { self.data().add(keep).write_bytes(0, len - keep) };
        self.set_len(len);
    }

    /// The bytes, mutable; a blob that is shared is copied first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len();
        self.make_room(len, len);
        // SAFETY: `make_room` made the blob ours alone, `len` bytes are initialised, and `self` stays
        // borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.data().as_ptr(), len) }
    }

    /// Makes the blob ours alone, with room for `len` bytes, of which the first `keep` stay.
    pub(super) fn make_room(&mut self, keep: usize, len: usize) {
        debug_assert!(keep <= self.len());
        let capacity = self.header().capacity();
        let wanted = if len <= capacity {
            len
        } else if len < GREEDY_MAX {
            len * 2
        } else {
            len + GREEDY_MAX
        };
        if !self.is_unique() || self.header().is_of_buffer() && len > capacity {
            let mut copy = Self::with_capacity(wanted);
            // SAFETY: the copy is new, so it is ours alone, and `keep` is within both lengths.
            unsafe { copy.data().copy_from_nonoverlapping(self.data(), keep) };
            copy.set_len(keep);
            *self = copy;
        } else if len > capacity {
            let old = Self::layout(HEADER_BYTES + capacity);
            let bytes = class_bytes(HEADER_BYTES + wanted);
            let layout = Self::layout(bytes);
            // SAFETY: the blob is ours alone, so nobody else has its address, and was allocated with this
            // layout.
            let moved = unsafe { realloc(self.blob.as_ptr().cast(), old, layout.size()) };
            self.blob = NonNull::new(moved).unwrap_or_else(|| handle_alloc_error(layout)).cast();
            self.header_mut().room = bytes - HEADER_BYTES;
        }
    }

    /// Overwrites all bytes, if the blob is ours alone and has room, but less than four times the need.
    pub(super) fn try_overwrite(&mut self, bytes: &[u8]) -> bool {
        let capacity = self.header().capacity();
        if bytes.len() > capacity || bytes.len() < capacity / 4 || !self.is_unique() {
            return false;
        }
        // SAFETY: the blob is ours alone and has room.
        unsafe { self.data().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.set_len(bytes.len());
        true
    }

    /// Sets the length of a blob that is ours alone. A caller that makes it longer writes the new bytes at
    /// once.
    pub(super) fn set_len(&mut self, len: usize) {
        debug_assert!(self.is_unique() && len <= self.header().capacity());
        self.header_mut().len = len;
    }

    #[inline]
    pub(super) fn data(&self) -> NonNull<u8> {
        // SAFETY: the bytes begin right behind the header, in the same allocation.
        unsafe { self.blob.add(1).cast() }
    }

    /// Whether there is no other handle. Then the bytes may be changed.
    fn is_unique(&self) -> bool {
        // Acquire pairs with the Release in `drop`: the reads of the handle that went come before our writes.
        self.header().references.load(Acquire) == 1
    }

    #[inline]
    fn header(&self) -> &BlobHeader {
        // SAFETY: the handle keeps the blob, whose header only changes through `header_mut`, but for the
        // atomic count.
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

    /// Converts the handle into an address.
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
        let handle = unsafe { ManuallyDrop::new(Self::from_raw(raw)) };
        Pinned::clone(&handle)
    }

    /// # Safety
    /// `raw` is from [`into_raw`](Self::into_raw), and that handle still counts.
    pub(super) unsafe fn is_shared(raw: NonNull<u8>) -> bool {
        // SAFETY: the handle that counts is borrowed, not dropped.
        let handle = unsafe { ManuallyDrop::new(Self::from_raw(raw)) };
        !handle.is_unique()
    }

    /// # Safety
    /// `raw` is from [`into_raw`](Self::into_raw), and that handle still counts and changes nothing during
    /// `'a`.
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
        let handle = unsafe { ManuallyDrop::new(Self::from_raw(raw)) };
        handle.allocated_bytes()
    }
}

impl Deref for Pinned {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the handle keeps the blob, unchanged while `self` is borrowed, and `len` bytes are
        // initialised.
        unsafe { std::slice::from_raw_parts(self.data().as_ptr(), self.header().len) }
    }
}

impl PartialEq for Pinned {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Pinned {}

impl Clone for Pinned {
    fn clone(&self) -> Self {
        // Relaxed: handing the new handle to another thread synchronises by itself.
        let before = self.header().references.fetch_add(1, Relaxed);
        assert!(before < usize::MAX / 2, "handles are leaked");
        Pinned { blob: self.blob }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let header = self.header();
        // Release pairs with the Acquire below and in `is_unique`: our reads come before the bytes are freed
        // or changed.
        if header.references.fetch_sub(1, Release) != 1 {
            return;
        }
        // Acquire pairs with the Release of the handles that went before. A load, since ThreadSanitizer knows
        // no fences.
        header.references.load(Acquire);
        let layout = header.layout();
        // SAFETY: this was the last handle, and the blob was allocated with this layout.
        unsafe { dealloc(self.blob.as_ptr().cast(), layout) };
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("len", &self.len()).finish_non_exhaustive()
    }
}
