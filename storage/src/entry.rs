//! Entries: a key, its value and their attributes, in one allocation.
//!
//! ```text
//! header 8 | deadline 8, if any | pointer 8, if the value is out of line | length 4, if the key is long | key | value, if inline
//! ```
//!
//! The header is one word: kind (4 bits), encoding (4), flags (8), length of a key below 256 bytes (8),
//! length of an inline value (16), access clock (24). A value is stored in one of three ways, whatever its
//! kind:
//! - *inline*: bytes after the key, up to [`INLINE_MAX`];
//! - *blob*: bytes in an allocation of their own with a reference count, which can be [pinned](Pinned);
//! - *object*: anything that implements [`Object`], boxed, with its drop and size found through the box.
//!
//! Allocations come in [classes](class_bytes), the size classes of mimalloc, so no capacity is stored: an
//! entry is changed in place exactly when its class stays the same. A key of 16 and a value of 32 bytes are
//! 56 bytes, in the class of 64, which also has room for the deadline.
//!
//! An entry is owned by an [`EntryBox`] and read through an [`EntryRef`]; both are thin pointers. They are no
//! Rust references, since an entry is longer than any sized type says.

mod blob;
mod classes;
pub mod db;
mod handle;
mod handover;
pub mod key;
pub mod lru;
mod object;
pub mod time;

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

pub use self::blob::Pinned;
pub(crate) use self::blob::{offer as offer_blobs, offered as offered_blob};
pub use self::classes::class_bytes;
pub(crate) use self::handle::{EntryHandle, SPARE_BITS};
pub use self::handover::Handover;
pub use self::object::Object;
use self::object::{Boxed, ObjectHeader};
use self::time::Deadline;
use crate::memory::teardown::Rubble;
use crate::types::packed::Splice;

/// The longest value, in bytes, that is stored after its key; longer ones are blobs.
pub const INLINE_MAX: usize = 1024;

/// Entries lie at multiples of this, so that tables can use the low bits of their addresses.
pub(crate) const ALIGN: usize = 16;

/// A cache line.
const LINE: usize = 64;

/// Entries lie below this address, so that tables can use the high bits of their addresses.
pub(crate) const ADDRESS_BITS: u32 = 48;

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A string.
    String = 0,
    /// A list.
    List = 1,
    /// A hash.
    Hash = 2,
    /// A set.
    Set = 3,
    /// A sorted set.
    SortedSet = 4,
    /// A stream.
    Stream = 5,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Kind; 6] =
        [Kind::String, Kind::List, Kind::Hash, Kind::Set, Kind::SortedSet, Kind::Stream];

    fn from_nibble(nibble: u64) -> Kind {
        match nibble {
            0 => Kind::String,
            1 => Kind::List,
            2 => Kind::Hash,
            3 => Kind::Set,
            4 => Kind::SortedSet,
            5 => Kind::Stream,
            _ => unreachable!("only Kinds are written to headers"),
        }
    }
}

/// The way in which a kind stores its value; 4 bits whose meaning belongs to the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Encoding(u8);

impl Encoding {
    /// The encoding with this number.
    ///
    /// # Panics
    /// If the number is above 15.
    pub const fn new(nibble: u8) -> Self {
        assert!(nibble < 16, "an encoding has 4 bits");
        Encoding(nibble)
    }

    /// The number of the encoding.
    pub const fn nibble(self) -> u8 {
        self.0
    }
}

/// The last use of an entry; 24 bits whose unit belongs to the eviction policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessClock(u32);

impl AccessClock {
    /// The clock with the low 24 bits of this value.
    pub const fn new(bits: u32) -> Self {
        AccessClock(bits & 0xff_ffff)
    }

    /// The 24 bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Whether a change gave an entry another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It was changed in place.
    No,
    /// It is in a new allocation.
    Yes,
}

/// The header word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Header(u64);

impl Header {
    const HAS_DEADLINE: u64 = 1 << 8;
    const IN_SNAPSHOT: u64 = 1 << 9;
    const BLOB: u64 = 1 << 10;
    const OBJECT: u64 = 1 << 11;
    const LONG_KEY: u64 = 1 << 12;
    const OUT_OF_LINE: u64 = Self::BLOB | Self::OBJECT;

    #[inline]
    fn has(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    #[inline]
    fn with(self, flags: u64, on: bool) -> Header {
        Header(if on { self.0 | flags } else { self.0 & !flags })
    }

    #[inline]
    fn field(self, shift: u32, bits: u32) -> u64 {
        (self.0 >> shift) & ((1 << bits) - 1)
    }

    #[inline]
    fn with_field(self, shift: u32, bits: u32, value: u64) -> Header {
        debug_assert!(value < 1 << bits);
        Header(self.0 & !(((1 << bits) - 1) << shift) | value << shift)
    }

    #[inline]
    fn inline_len(self) -> usize {
        self.field(24, 16) as usize
    }

    #[inline]
    fn with_inline_len(self, len: usize) -> Header {
        self.with_field(24, 16, len as u64)
    }

    /// The offset of the pointer to an out-of-line value, whether or not there is one.
    #[inline]
    fn pointer_offset(self) -> usize {
        8 + 8 * self.has(Self::HAS_DEADLINE) as usize
    }

    /// The offset of the key, with its length before it if it is long.
    #[inline]
    fn tail_offset(self) -> usize {
        self.pointer_offset() + 8 * self.has(Self::OUT_OF_LINE) as usize
    }

    #[inline]
    fn key_offset(self) -> usize {
        self.tail_offset() + 4 * self.has(Self::LONG_KEY) as usize
    }

    /// The size of the allocation, given the length of the key.
    #[inline]
    fn class_bytes(self, key_len: usize) -> usize {
        class_bytes(self.key_offset() + key_len + self.inline_len())
    }
}

/// A borrowed entry: a thin pointer to read through.
///
/// The access clock and the snapshot bit can be set through it too, because reading a key sets them.
#[derive(Clone, Copy)]
pub struct EntryRef<'a> {
    start: NonNull<u8>,
    borrow: PhantomData<&'a EntryBox>,
}

impl<'a> EntryRef<'a> {
    /// # Safety
    /// `start` is from [`EntryBox::into_raw`], and the entry is neither freed nor changed, but for its clock
    /// and its snapshot bit, during `'a`.
    #[inline]
    pub(crate) unsafe fn from_raw(start: NonNull<u8>) -> Self {
        EntryRef { start, borrow: PhantomData }
    }

    #[inline]
    fn header(self) -> Header {
        // SAFETY: every entry begins with an initialised header word, aligned to 16. A thread that writes it
        // holds the entry's shard, or owns the entry, so no other thread reads it meanwhile. Entries of a
        // value that threads share are not written. No reference to the word exists anywhere, so it may
        // change under an `EntryRef`.
        Header(unsafe { self.start.cast::<u64>().read() })
    }

    #[inline]
    fn key_len(self, header: Header) -> usize {
        if header.has(Header::LONG_KEY) {
            // SAFETY: the flag says that the key's length is at the start of the tail, where it is 4-aligned.
            unsafe { self.start.add(header.tail_offset()).cast::<u32>().read() as usize }
        } else {
            header.field(16, 8) as usize
        }
    }

    /// Lets the entry be read for longer than the borrow checker sees.
    ///
    /// # Safety
    /// Nothing changes or removes the entry during 'b.
    #[inline]
    pub(crate) unsafe fn unbound<'b>(self) -> EntryRef<'b> {
        // SAFETY: the entry is live, and the caller answers for 'b.
        unsafe { EntryRef::from_raw(self.start) }
    }

    /// The key.
    #[inline]
    pub fn key(self) -> &'a [u8] {
        let header = self.header();
        // SAFETY: the key is initialised, `key_len` bytes from `key_offset`, and unchanged during 'a.
        unsafe {
            let key = self.start.add(header.key_offset());
            std::slice::from_raw_parts(key.as_ptr(), self.key_len(header))
        }
    }

    /// The type of the value.
    #[inline]
    pub fn kind(self) -> Kind {
        Kind::from_nibble(self.header().field(0, 4))
    }

    /// The encoding of the value.
    #[inline]
    pub fn encoding(self) -> Encoding {
        Encoding(self.header().field(4, 4) as u8)
    }

    /// The value's bytes, unless it is an object.
    #[inline]
    pub fn bytes(self) -> Option<&'a [u8]> {
        let header = self.header();
        if !header.has(Header::OUT_OF_LINE) {
            // SAFETY: an inline value is initialised, `inline_len` bytes after the key, and unchanged during
            // 'a.
            return Some(unsafe {
                let value = self.start.add(header.key_offset() + self.key_len(header));
                std::slice::from_raw_parts(value.as_ptr(), header.inline_len())
            });
        }
        // SAFETY: the entry keeps its reference to the blob during 'a, and no blob of an unchanged entry
        // changes.
        header.has(Header::BLOB).then(|| unsafe { Pinned::bytes_of(self.pointer(header)) })
    }

    /// Whether the value is more than bytes.
    pub(crate) fn is_object(self) -> bool {
        self.header().has(Header::OBJECT)
    }

    /// Whether the value is bytes in an allocation of their own.
    pub fn is_blob(self) -> bool {
        self.header().has(Header::BLOB)
    }

    /// The value's bytes in an allocation that outlives the hold, if it is stored as a blob.
    pub fn pin(self) -> Option<Pinned> {
        let header = self.header();
        // SAFETY: the flag says that the pointer is a blob's, to which the entry keeps its own reference.
        header.has(Header::BLOB).then(|| unsafe { Pinned::another(self.pointer(header)) })
    }

    /// Whether another owner besides the entry reads its value.
    pub fn is_pinned(self) -> bool {
        let header = self.header();
        if header.has(Header::BLOB) {
            // SAFETY: the flag says that the pointer is a blob's, to which the entry keeps a reference.
            unsafe { Pinned::is_shared(self.pointer(header)) }
        } else {
            // SAFETY: the flag says that the pointer is an object's, to which the entry keeps a reference.
            header.has(Header::OBJECT) && unsafe { !ObjectHeader::is_unique(self.pointer(header).cast()) }
        }
    }

    /// Makes another entry of the same key and value, which can be read without a hold. A large value is not
    /// copied but pinned.
    ///
    /// As long as the new entry lives, the value must not be changed. A writer of a blob copies it first; for
    /// an object, see [`is_pinned`](Self::is_pinned).
    pub fn share(self) -> EntryBox {
        let header = self.header();
        if header.has(Header::OBJECT) {
            // SAFETY: the flag says that the pointer is an object's, to which the entry keeps a reference.
            unsafe { ObjectHeader::retain(self.pointer(header).cast()) };
            return EntryBox::with_pointer(self, self.key(), self.pointer(header));
        }
        self.duplicate(self.key())
    }

    /// Whether two entries have the same value: the same object or blob, or equal bytes.
    pub fn has_value_of(self, other: EntryRef<'_>) -> bool {
        let (ours, theirs) = (self.header(), other.header());
        if ours.has(Header::OBJECT) && theirs.has(Header::OBJECT) {
            return self.pointer(ours) == other.pointer(theirs);
        }
        self.kind() == other.kind() && self.bytes().is_some() && self.bytes() == other.bytes()
    }

    /// Makes an entry of another key with an equal value and the same deadline. An object is copied whole; a
    /// blob is copied when either is changed.
    pub fn duplicate(self, key: &[u8]) -> EntryBox {
        let header = self.header();
        if header.has(Header::OBJECT) {
            // SAFETY: the flag says that the pointer is an object's, which the entry keeps, unchanged
            // meanwhile.
            let copy = unsafe { ObjectHeader::duplicate(self.pointer(header).cast()) };
            return EntryBox::with_pointer(self, key, copy.cast());
        }
        if let Some(blob) = self.pin() {
            return EntryBox::with_pinned(self.kind(), self.encoding(), key, blob, self.deadline());
        }
        let bytes = self.bytes().expect("the value is no object");
        EntryBox::with_bytes(self.kind(), self.encoding(), key, bytes, self.deadline())
    }

    /// The value, if it is an object of type `T`.
    #[inline]
    pub fn object<T: Object>(self) -> Option<&'a T> {
        let header = self.header();
        if !header.has(Header::OBJECT) {
            return None;
        }
        // SAFETY: the flag says that the pointer is an object's, which the entry keeps, unchanged, during 'a.
        unsafe { ObjectHeader::downcast(self.pointer(header).cast()).map(|object| object.as_ref()) }
    }

    /// The deadline of the entry, if it has one.
    #[inline]
    pub fn deadline(self) -> Option<Deadline> {
        // SAFETY: the flag says that there is a deadline, in the second word.
        self.has_deadline().then(|| Deadline::at(unsafe { self.start.add(8).cast::<u64>().read() }))
    }

    /// Whether the entry has a deadline.
    #[inline]
    pub fn has_deadline(self) -> bool {
        self.header().has(Header::HAS_DEADLINE)
    }

    /// The last use of the entry.
    #[inline]
    pub fn access_clock(self) -> AccessClock {
        AccessClock(self.header().field(40, 24) as u32)
    }

    /// Sets the last use of the entry.
    #[inline]
    pub fn set_access_clock(self, clock: AccessClock) {
        self.set_header(self.header().with_field(40, 24, clock.0 as u64));
    }

    /// Whether the running snapshot has saved the entry.
    #[inline]
    pub fn in_snapshot(self) -> bool {
        self.header().has(Header::IN_SNAPSHOT)
    }

    /// Sets whether the running snapshot has saved the entry.
    #[inline]
    pub fn set_in_snapshot(self, saved: bool) {
        self.set_header(self.header().with(Header::IN_SNAPSHOT, saved));
    }

    /// Whether the entry itself, without its out-of-line value, extends into the next cache line.
    #[inline]
    pub(crate) fn spans_lines(self) -> bool {
        let header = self.header();
        self.start.addr().get() % LINE + header.class_bytes(self.key_len(header)) > LINE
    }

    /// The bytes of all that the entry owns.
    #[inline]
    pub fn allocated_bytes(self) -> usize {
        let header = self.header();
        let own = header.class_bytes(self.key_len(header));
        if header.has(Header::BLOB) {
            // SAFETY: the flag says that the pointer is a blob's, to which the entry keeps a reference.
            own + unsafe { Pinned::allocated_bytes_of(self.pointer(header)) }
        } else if header.has(Header::OBJECT) {
            // SAFETY: the flag says that the pointer is an object's, which the entry keeps.
            own + unsafe { ObjectHeader::allocated_bytes(self.pointer(header).cast()) }
        } else {
            own
        }
    }

    /// The pointer to an out-of-line value.
    #[inline]
    fn pointer(self, header: Header) -> NonNull<u8> {
        debug_assert!(header.has(Header::OUT_OF_LINE));
        // SAFETY: the callers have seen the flag that says that there is a pointer, and pointers are never
        // null.
        unsafe { self.start.add(header.pointer_offset()).cast::<NonNull<u8>>().read() }
    }

    #[inline]
    fn set_header(self, header: Header) {
        // SAFETY: as in `header`: no other thread reads the word meanwhile.
        unsafe { self.start.cast::<u64>().write(header.0) };
    }
}

impl std::fmt::Debug for EntryRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("kind", &self.kind())
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}

/// An owned entry; dropping it frees the entry and its value.
pub struct EntryBox {
    start: NonNull<u8>,
}

// SAFETY: an entry owns all that it points to: objects are Send, and blobs are shared by atomic reference
// counts only.
unsafe impl Send for EntryBox {}

impl EntryBox {
    /// Makes an entry whose value is bytes.
    ///
    /// # Panics
    /// If the key is longer than `u32::MAX` bytes, or the allocator hands out addresses above 2⁴⁸.
    pub fn with_bytes(
        kind: Kind,
        encoding: Encoding,
        key: &[u8],
        value: &[u8],
        deadline: Option<Deadline>,
    ) -> Self {
        if value.len() > INLINE_MAX {
            return Self::with_pinned(kind, encoding, key, Pinned::from_slice(value), deadline);
        }
        let header = Self::header_of(kind, encoding, deadline).with_inline_len(value.len());
        let mut entry = Self::allocate(header, key, deadline);
        entry.write_inline(value);
        entry
    }

    /// Makes a string, without a deadline.
    pub fn string(key: &[u8], value: &[u8]) -> Self {
        Self::with_bytes(Kind::String, Encoding::default(), key, value, None)
    }

    /// Makes an entry whose value is a blob, which is not copied.
    pub fn with_pinned(
        kind: Kind,
        encoding: Encoding,
        key: &[u8],
        value: Pinned,
        deadline: Option<Deadline>,
    ) -> Self {
        let header = Self::header_of(kind, encoding, deadline).with(Header::BLOB, true);
        let mut entry = Self::allocate(header, key, deadline);
        entry.write_pointer(value.into_raw());
        entry
    }

    /// Makes an entry whose value is an object.
    pub fn with_object<T: Object>(
        kind: Kind,
        encoding: Encoding,
        key: &[u8],
        value: T,
        deadline: Option<Deadline>,
    ) -> Self {
        let header = Self::header_of(kind, encoding, deadline).with(Header::OBJECT, true);
        let mut entry = Self::allocate(header, key, deadline);
        entry.write_pointer(Boxed::into_raw(value).cast());
        entry
    }

    /// Makes an entry like `model` under a key, with another pointer to a value.
    fn with_pointer(model: EntryRef<'_>, key: &[u8], pointer: NonNull<u8>) -> Self {
        let header =
            Self::header_of(model.kind(), model.encoding(), model.deadline()).with(Header::OBJECT, true);
        let mut entry = Self::allocate(header, key, model.deadline());
        entry.write_pointer(pointer);
        entry
    }

    /// Moves the value, with all its attributes, to another key.
    pub fn with_key(mut self, key: &[u8]) -> Self {
        let header = self.header();
        let mut renamed = Self::allocate(header, key, self.as_ref().deadline());
        if header.has(Header::OUT_OF_LINE) {
            renamed.write_pointer(self.as_ref().pointer(header));
            self.forget_value();
        } else {
            renamed.write_inline(self.inline_mut());
        }
        renamed
    }

    /// Borrows the entry to read it.
    #[inline]
    pub fn as_ref(&self) -> EntryRef<'_> {
        // SAFETY: the entry is live and, as `self` is borrowed, unchanged meanwhile.
        unsafe { EntryRef::from_raw(self.start) }
    }

    /// Converts the entry into its address: a multiple of 16 below 2⁴⁸.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<u8> {
        let start = self.start;
        std::mem::forget(self);
        start
    }

    /// Takes ownership of the entry at an address.
    ///
    /// # Safety
    /// `start` is from [`into_raw`](Self::into_raw), and no other owner or borrower is made of it.
    #[inline]
    pub(crate) unsafe fn from_raw(start: NonNull<u8>) -> Self {
        EntryBox { start }
    }

    /// Sets the type and the encoding of the value.
    #[inline]
    pub fn set_kind(&mut self, kind: Kind, encoding: Encoding) {
        let header = self.header().with_field(0, 4, kind as u64).with_field(4, 4, encoding.0 as u64);
        self.as_ref().set_header(header);
    }

    /// Sets the encoding of the value.
    #[inline]
    pub fn set_encoding(&mut self, encoding: Encoding) {
        self.set_kind(self.as_ref().kind(), encoding);
    }

    /// Sets or removes the deadline.
    pub fn set_deadline(&mut self, deadline: Option<Deadline>) -> Moved {
        let header = self.header();
        self.reshape(header, deadline, header.inline_len())
    }

    /// Replaces the value by these bytes. Does so in place if the class of the allocation stays the same and
    /// the value is not pinned.
    ///
    /// A big old value is freed here. Under a hold, take the entry out and make a new one instead.
    pub fn set_bytes(&mut self, value: &[u8]) -> Moved {
        if value.len() > INLINE_MAX {
            if let Some(blob) = self.blob_mut()
                && blob.try_overwrite(value)
            {
                return Moved::No;
            }
            return self.store_blob(Pinned::from_slice(value));
        }
        self.drop_value();
        let header = self.header().with(Header::OUT_OF_LINE, false).with_inline_len(value.len());
        let moved = self.reshape(header, self.as_ref().deadline(), 0);
        self.write_inline(value);
        moved
    }

    /// Writes an inline string over an inline string, if it fits in place; returns whether it did.
    ///
    /// This is the most frequent work of SET: nothing moves, and nothing is freed.
    #[inline]
    pub fn try_overwrite(&mut self, encoding: Encoding, value: &[u8]) -> bool {
        let old = self.header();
        if value.len() > INLINE_MAX || old.has(Header::OUT_OF_LINE) || old.field(0, 4) != Kind::String as u64
        {
            return false;
        }
        let header = old.with_field(4, 4, encoding.0 as u64).with_inline_len(value.len());
        let key_len = self.key_len();
        if header.class_bytes(key_len) != old.class_bytes(key_len) {
            return false;
        }
        self.as_ref().set_header(header);
        self.write_inline(value);
        true
    }

    /// Replaces the value by an object; see [`set_bytes`](Self::set_bytes) about the old value.
    pub fn set_object<T: Object>(&mut self, value: T) -> Moved {
        let value = Boxed::into_raw(value).cast();
        self.store_pointer(Header::OBJECT, value)
    }

    /// Replaces the value by a blob, which is not copied.
    pub fn set_pinned(&mut self, value: Pinned) -> Moved {
        self.store_blob(value)
    }

    /// Appends to the value; a blob reserves more room than it needs, see [`resize`](Self::resize).
    ///
    /// # Panics
    /// If the value is an object.
    pub fn append(&mut self, suffix: &[u8]) -> Moved {
        let old_len = self.bytes_len();
        let len = old_len + suffix.len();
        if let Some(blob) = self.blob_mut() {
            blob.extend_from_slice(suffix);
            Moved::No
        } else if len <= INLINE_MAX {
            let moved = self.resize(len);
            self.inline_mut()[old_len..].copy_from_slice(suffix);
            moved
        } else {
            let mut blob = Pinned::from_slice(self.inline_mut());
            blob.extend_from_slice(suffix);
            self.store_blob(blob)
        }
    }

    /// Overwrites the value from `offset` on, which may be past its end; the gap is filled with zeros.
    ///
    /// # Panics
    /// If the value is an object.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Moved {
        let old_len = self.bytes_len();
        let mut moved = Moved::No;
        if offset + bytes.len() > old_len {
            moved = self.resize(offset + bytes.len());
        }
        self.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        moved
    }

    /// Sets the length of the value: cuts it, or adds zeros.
    ///
    /// Room beyond [`INLINE_MAX`] grows as in Redis: to double the length up to 1 MiB, and by 1 MiB more than
    /// is needed above it.
    ///
    /// # Panics
    /// If the value is an object.
    pub fn resize(&mut self, len: usize) -> Moved {
        let header = self.header();
        let keep = self.bytes_len().min(len);
        if !header.has(Header::BLOB) && len <= INLINE_MAX {
            let moved = self.reshape(header.with_inline_len(len), self.as_ref().deadline(), keep);
            self.zero_inline_from(keep);
            moved
        } else if !header.has(Header::BLOB) {
            // A new blob has just the room it needs.
            let mut blob =
                if keep == 0 { Pinned::with_capacity(len) } else { Pinned::from_slice(self.inline_mut()) };
            blob.resize(len);
            self.store_blob(blob)
        } else if len > INLINE_MAX / 2 {
            self.blob_mut().expect("the flag has just been seen").resize(len);
            Moved::No
        } else {
            let blob = self.as_ref().pin().expect("the flag has just been seen");
            self.set_bytes(&blob[..keep]);
            self.resize(len);
            Moved::Yes
        }
    }

    /// The value's bytes, mutable; a pinned blob is copied first.
    ///
    /// # Panics
    /// If the value is an object.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let header = self.header();
        assert!(!header.has(Header::OBJECT), "the value is an object");
        if header.has(Header::BLOB) {
            return self.blob_mut().expect("the flag has just been seen").bytes_mut();
        }
        self.inline_mut()
    }

    /// Separates the entry from its object, if it has one. The object is taken apart, to be freed in steps,
    /// if it has no other owner.
    pub(crate) fn demolish(self) -> Result<(Shell, Option<Box<dyn Rubble>>), EntryBox> {
        let header = self.header();
        if !header.has(Header::OBJECT) {
            return Err(self);
        }
        let entry = ManuallyDrop::new(self);
        let shell = Shell { start: entry.start, bytes: header.class_bytes(entry.key_len()) };
        // SAFETY: the flag says that the pointer is an object's, to which the entry gives up its reference:
        // it is never dropped.
        let rubble = unsafe { ObjectHeader::demolish(entry.as_ref().pointer(header).cast()) };
        Ok((shell, rubble))
    }

    /// The value, mutable, if it is an object of type `T`. A pinned one is copied first, which may be much
    /// work: writers wait until [`Shard::unpin`](crate::keyspace::shard::Shard::unpin) instead.
    #[inline]
    pub fn object_mut<T: Object>(&mut self) -> Option<&mut T> {
        let header = self.header();
        if !header.has(Header::OBJECT) {
            return None;
        }
        self.unshare_object();
        // SAFETY: the flag says that the pointer is an object's, of which this entry has the only reference
        // since `unshare_object`; and `self` stays borrowed.
        unsafe {
            ObjectHeader::downcast(self.as_ref().pointer(header).cast()).map(|mut object| object.as_mut())
        }
    }

    /// Makes this entry the object's only owner.
    #[inline]
    fn unshare_object(&mut self) {
        let object = self.as_ref().pointer(self.header()).cast::<ObjectHeader>();
        // SAFETY: callers have seen the flag that says that the pointer is an object's; the copy takes its
        // place, and the entry's reference to it is not used afterwards.
        unsafe {
            if !ObjectHeader::is_unique(object) {
                self.write_pointer(ObjectHeader::duplicate(object).cast());
                ObjectHeader::release(object);
            }
        }
    }

    fn header_of(kind: Kind, encoding: Encoding, deadline: Option<Deadline>) -> Header {
        Header(0)
            .with_field(0, 4, kind as u64)
            .with_field(4, 4, encoding.0 as u64)
            .with(Header::HAS_DEADLINE, deadline.is_some())
    }

    /// An entry with a header, a deadline and a key; its value is not initialised.
    fn allocate(header: Header, key: &[u8], deadline: Option<Deadline>) -> Self {
        let key_len = u32::try_from(key.len()).expect("a key is at most u32::MAX bytes long");
        let is_long = key_len > 0xff;
        let header = header.with(Header::LONG_KEY, is_long).with_field(
            16,
            8,
            if is_long { 0 } else { key_len as u64 },
        );
        let start = allocate_bytes(header.class_bytes(key.len()));
        // SAFETY: the class has room for all up to the end of the key, and the allocation is new and ours
        // alone. The header is aligned to 16, the tail to 8.
        unsafe {
            start.cast::<u64>().write(header.0);
            if is_long {
                start.add(header.tail_offset()).cast::<u32>().write(key_len);
            }
            start.add(header.key_offset()).copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
        }
        let mut entry = EntryBox { start };
        entry.write_deadline(deadline);
        entry
    }

    #[inline]
    fn header(&self) -> Header {
        self.as_ref().header()
    }

    fn key_len(&self) -> usize {
        self.as_ref().key_len(self.header())
    }

    /// See [`Splice`]. Room grows as in [`resize`](Self::resize).
    fn splice_bytes(&mut self, range: Range<usize>, len: usize) {
        let old_len = self.bytes_len();
        let new_len = old_len - range.len() + len;
        if len > range.len() {
            self.resize(new_len);
        }
        self.bytes_mut().copy_within(range.end..old_len, range.start + len);
        if len < range.len() {
            self.resize(new_len);
        }
    }

    /// Replaces the header, which has the length of an inline value and says whether there is a pointer, and
    /// the deadline. The key stays, and the first `keep` bytes of an inline value. The caller must write the
    /// pointer or the rest of the value afterwards.
    fn reshape(&mut self, header: Header, deadline: Option<Deadline>, keep: usize) -> Moved {
        let old = self.header();
        let header = header.with(Header::HAS_DEADLINE, deadline.is_some());
        let key_len = self.key_len();
        let pointer = old.has(Header::OUT_OF_LINE).then(|| self.as_ref().pointer(old));
        let old_bytes = old.class_bytes(key_len);
        let new_bytes = header.class_bytes(key_len);
        let tail_len = old.key_offset() - old.tail_offset() + key_len + keep;
        let stays = new_bytes == old_bytes;
        let start = if stays { self.start } else { allocate_bytes(new_bytes) };
        // SAFETY: the tail (the length of a long key, the key and the kept part of the value) is initialised
        // in the old allocation. It has room in the new one, which may be the same: `copy_from` allows
        // overlap. The old one is freed with the class that it was allocated with.
        unsafe {
            start.add(header.tail_offset()).copy_from(self.start.add(old.tail_offset()), tail_len);
            if !stays {
                deallocate_bytes(self.start, old_bytes);
            }
            start.cast::<u64>().write(header.0);
        }
        self.start = start;
        self.write_deadline(deadline);
        if let Some(pointer) = pointer.filter(|_| header.has(Header::OUT_OF_LINE)) {
            self.write_pointer(pointer);
        }
        if stays { Moved::No } else { Moved::Yes }
    }

    fn store_blob(&mut self, blob: Pinned) -> Moved {
        self.store_pointer(Header::BLOB, blob.into_raw())
    }

    fn store_pointer(&mut self, flag: u64, pointer: NonNull<u8>) -> Moved {
        self.drop_value();
        let header = self.header().with(Header::OUT_OF_LINE, false).with(flag, true).with_inline_len(0);
        let moved = self.reshape(header, self.as_ref().deadline(), 0);
        self.write_pointer(pointer);
        moved
    }

    fn bytes_len(&self) -> usize {
        self.as_ref().bytes().expect("the value is bytes").len()
    }

    fn zero_inline_from(&mut self, from: usize) {
        let header = self.header();
        let value = header.key_offset() + self.key_len();
        // SAFETY: an inline value has room for `inline_len` bytes after the key, and `self` is borrowed
        // mutably.
        unsafe { self.start.add(value + from).write_bytes(0, header.inline_len() - from) };
    }

    /// Writes a new inline value, as long as the header says.
    #[inline]
    fn write_inline(&mut self, value: &[u8]) {
        let header = self.header();
        assert!(!header.has(Header::OUT_OF_LINE) && header.inline_len() == value.len());
        let room = header.key_offset() + self.key_len();
        // SAFETY: an inline value has room for `inline_len` bytes after the key, and no other thread has the
        // entry.
        unsafe { self.start.add(room).copy_from_nonoverlapping(NonNull::from(value).cast(), value.len()) };
    }

    /// An inline value.
    #[inline]
    fn inline_mut(&mut self) -> &mut [u8] {
        let header = self.header();
        debug_assert!(!header.has(Header::OUT_OF_LINE));
        // SAFETY: an inline value is initialised, `inline_len` bytes after the key, and `self` stays borrowed
        // mutably.
        unsafe {
            let value = self.start.add(header.key_offset() + self.key_len());
            std::slice::from_raw_parts_mut(value.as_ptr(), header.inline_len())
        }
    }

    /// The handle of the blob, mutable in place.
    fn blob_mut(&mut self) -> Option<&mut Pinned> {
        let header = self.header();
        // SAFETY: the flag says that there is a blob's pointer, aligned to 8, in an allocation that only
        // `self` can change; a `Pinned` is such a pointer, transparently.
        header
            .has(Header::BLOB)
            .then(|| unsafe { self.start.add(header.pointer_offset()).cast::<Pinned>().as_mut() })
    }

    fn write_deadline(&mut self, deadline: Option<Deadline>) {
        debug_assert_eq!(self.as_ref().has_deadline(), deadline.is_some());
        if let Some(Deadline(at)) = deadline {
            // SAFETY: the flag says that the second word is the deadline's.
            unsafe { self.start.add(8).cast::<u64>().write(at.0) };
        }
    }

    fn write_pointer(&mut self, pointer: NonNull<u8>) {
        let header = self.header();
        debug_assert!(header.has(Header::OUT_OF_LINE));
        // SAFETY: the flag says that there is room for a pointer, aligned to 8.
        unsafe { self.start.add(header.pointer_offset()).cast::<NonNull<u8>>().write(pointer) };
    }

    /// Drops an out-of-line value, and leaves an empty inline one.
    fn drop_value(&mut self) {
        let header = self.header();
        if !header.has(Header::OUT_OF_LINE) {
            return;
        }
        let pointer = self.as_ref().pointer(header);
        self.forget_value();
        // SAFETY: the flags give the type of the pointer, and the entry has just forgotten it.
        unsafe {
            if header.has(Header::BLOB) {
                drop(Pinned::from_raw(pointer));
            } else {
                ObjectHeader::release(pointer.cast());
            }
        }
    }

    /// Leaves an empty inline value in place of an out-of-line one, which has another owner now.
    fn forget_value(&mut self) {
        let header = self.header().with(Header::OUT_OF_LINE, false);
        self.reshape(header, self.as_ref().deadline(), 0);
    }
}

/// The value's bytes.
///
/// # Panics
/// If the value is an object.
impl Splice for EntryBox {
    fn bytes(&self) -> &[u8] {
        self.as_ref().bytes().expect("the value is bytes")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        EntryBox::bytes_mut(self)
    }

    fn splice(&mut self, range: Range<usize>, len: usize) {
        self.splice_bytes(range, len);
    }
}

impl Drop for EntryBox {
    fn drop(&mut self) {
        let header = self.header();
        let bytes = header.class_bytes(self.key_len());
        if header.has(Header::OUT_OF_LINE) {
            let pointer = self.as_ref().pointer(header);
            // SAFETY: the flags give the type of the pointer, and nothing reads the entry any more.
            unsafe {
                if header.has(Header::BLOB) {
                    drop(Pinned::from_raw(pointer));
                } else {
                    ObjectHeader::release(pointer.cast());
                }
            }
        }
        // SAFETY: the entry is in an allocation of its class, and is not used after its drop.
        unsafe { deallocate_bytes(self.start, bytes) };
    }
}

/// The allocation of an entry whose object is gone, with the entry's key.
pub(crate) struct Shell {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the allocation is the shell's alone.
unsafe impl Send for Shell {}

impl Shell {
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // SAFETY: the entry was in an allocation of its class, and was never dropped.
        unsafe { deallocate_bytes(self.start, self.bytes) };
    }
}

impl std::fmt::Debug for EntryBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_ref().fmt(f)
    }
}

#[inline]
fn allocate_bytes(class: usize) -> NonNull<u8> {
    let layout = layout(class);
    // SAFETY: no class is of size 0.
    let start = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
    assert!(start.addr().get() >> ADDRESS_BITS == 0, "the allocator hands out addresses below 2^48");
    start
}

/// Frees an allocation.
///
/// # Safety
/// `start` is from [`allocate_bytes`] with the same class, and is not used afterwards.
#[inline]
unsafe fn deallocate_bytes(start: NonNull<u8>, class: usize) {
    // SAFETY: the layout is that of the allocation, as the caller promises.
    unsafe { dealloc(start.as_ptr(), layout(class)) };
}

#[inline]
fn layout(class: usize) -> Layout {
    // A class that is a power of two starts on a cache line: then 64 bytes are one line to fetch and not two.
    // For other classes of whole lines, the allocator would take the next larger class to align them.
    let align = if class >= LINE && class.is_power_of_two() { LINE } else { ALIGN };
    Layout::from_size_align(class, align).expect("keys and inline values are far shorter than isize::MAX")
}

#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod tests;
