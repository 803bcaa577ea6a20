//! Values that are no bytes: boxed, with a thin pointer that finds its own drop, copy and size.
//!
//! Boxes are counted like blobs: an entry has a reference, and so has each [shared](super::EntryRef::share)
//! entry that somebody reads without a hold. Only an object with a single reference is ever changed.

use std::any::TypeId;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::memory::teardown::Rubble;

/// A value of an entry that is more than bytes: a large list, set, hash or sorted set, or a stream.
pub trait Object: Send + Sync + 'static {
    /// The bytes of all that the object owns beyond its own size; asked before and after each change, so
    /// constant in time.
    fn allocated_bytes(&self) -> usize;

    /// An equal object that shares nothing with this one.
    fn duplicate(&self) -> Self
    where
        Self: Sized;

    /// Takes the object apart, in constant time, so that it can be freed in steps.
    fn demolish(self) -> Box<dyn Rubble>
    where
        Self: Sized;
}

/// The header of every boxed object.
#[repr(C)]
pub(super) struct ObjectHeader {
    dispatch: &'static Dispatch,
    references: AtomicUsize,
}

/// An object in its box.
#[repr(C)]
pub(super) struct Boxed<T> {
    header: ObjectHeader,
    value: T,
}

struct Dispatch {
    type_id: TypeId,
    drop: unsafe fn(NonNull<ObjectHeader>),
    allocated_bytes: unsafe fn(NonNull<ObjectHeader>) -> usize,
    duplicate: unsafe fn(NonNull<ObjectHeader>) -> NonNull<ObjectHeader>,
    demolish: unsafe fn(NonNull<ObjectHeader>) -> Box<dyn Rubble>,
}

impl<T: Object> Boxed<T> {
    const DISPATCH: Dispatch = Dispatch {
        type_id: TypeId::of::<T>(),
        drop: Self::drop,
        allocated_bytes: Self::allocated_bytes,
        duplicate: Self::duplicate,
        demolish: Self::demolish,
    };

    /// Boxes a value; freed by [`ObjectHeader::release`].
    pub(super) fn into_raw(value: T) -> NonNull<ObjectHeader> {
        let header = ObjectHeader { dispatch: &Self::DISPATCH, references: AtomicUsize::new(1) };
        let boxed = Box::new(Boxed { header, value });
        NonNull::from(Box::leak(boxed)).cast()
    }

    /// # Safety
    /// `object` is from `Boxed::<T>::into_raw` and is not used afterwards.
    unsafe fn drop(object: NonNull<ObjectHeader>) {
        // SAFETY: the caller promises a leaked box of this very type, used no more.
        drop(unsafe { Box::from_raw(object.cast::<Boxed<T>>().as_ptr()) });
    }

    /// # Safety
    /// `object` is from `Boxed::<T>::into_raw`, live, and not being changed.
    unsafe fn allocated_bytes(object: NonNull<ObjectHeader>) -> usize {
        // SAFETY: the caller promises a leaked box of this very type, unchanged meanwhile.
        let boxed = unsafe { object.cast::<Boxed<T>>().as_ref() };
        size_of::<Boxed<T>>() + boxed.value.allocated_bytes()
    }

    /// # Safety
    /// `object` is from `Boxed::<T>::into_raw`, live, and not being changed.
    unsafe fn duplicate(object: NonNull<ObjectHeader>) -> NonNull<ObjectHeader> {
        // SAFETY: the caller promises a leaked box of this very type, unchanged meanwhile.
        let boxed = unsafe { object.cast::<Boxed<T>>().as_ref() };
        Self::into_raw(boxed.value.duplicate())
    }

    /// # Safety
    /// `object` is from `Boxed::<T>::into_raw` and is not used afterwards.
    unsafe fn demolish(object: NonNull<ObjectHeader>) -> Box<dyn Rubble> {
        // SAFETY: the caller promises a leaked box of this very type, used no more.
        let boxed = unsafe { Box::from_raw(object.cast::<Boxed<T>>().as_ptr()) };
        boxed.value.demolish()
    }
}

impl ObjectHeader {
    /// The object, if it is of type `T`.
    ///
    /// # Safety
    /// `object` is from `Boxed::into_raw`, and live.
    #[inline]
    pub(super) unsafe fn downcast<T: Object>(object: NonNull<ObjectHeader>) -> Option<NonNull<T>> {
        // SAFETY: the object is live, and its header is never changed.
        let dispatch = unsafe { (*object.as_ptr()).dispatch };
        if dispatch.type_id != TypeId::of::<T>() {
            return None;
        }
        // SAFETY: the dispatch of a box is that of its type, so this is a `Boxed<T>`.
        Some(unsafe { NonNull::new_unchecked(&raw mut (*object.cast::<Boxed<T>>().as_ptr()).value) })
    }

    /// Adds a reference.
    ///
    /// # Safety
    /// `object` is from `Boxed::into_raw`, and live.
    pub(super) unsafe fn retain(object: NonNull<ObjectHeader>) {
        // SAFETY: the object is live, and its count is only accessed as an atomic.
        let references = unsafe { &(*object.as_ptr()).references };
        // Relaxed: handing the new reference to another thread synchronises by itself.
        let before = references.fetch_add(1, Relaxed);
        assert!(before < usize::MAX / 2, "references are leaked");
    }

    /// Whether there is no other reference. Then the object may be changed.
    ///
    /// # Safety
    /// `object` is from `Boxed::into_raw`, and live.
    #[inline]
    pub(super) unsafe fn is_unique(object: NonNull<ObjectHeader>) -> bool {
        // SAFETY: the object is live, and its count is only accessed as an atomic.
        let references = unsafe { &(*object.as_ptr()).references };
        // Acquire pairs with the Release in `release`: the reads through the reference that went come before
        // our writes.
        references.load(Acquire) == 1
    }

    /// Drops a reference; the last one drops the object and frees its box.
    ///
    /// # Safety
    /// `object` is from `Boxed::into_raw`, and the reference is not used afterwards.
    pub(super) unsafe fn release(object: NonNull<ObjectHeader>) {
        // SAFETY: the object is live until the last reference goes, and the dispatch of a box is that of its
        // type.
        unsafe {
            if Self::is_last_given_up(object) {
                ((*object.as_ptr()).dispatch.drop)(object);
            }
        }
    }

    /// Drops a reference; the last one takes the object apart and frees its box.
    ///
    /// # Safety
    /// `object` is from `Boxed::into_raw`, and the reference is not used afterwards.
    pub(super) unsafe fn demolish(object: NonNull<ObjectHeader>) -> Option<Box<dyn Rubble>> {
        // SAFETY: the object is live until the last reference goes, and the dispatch of a box is that of its
        // type.
        unsafe { Self::is_last_given_up(object).then(|| ((*object.as_ptr()).dispatch.demolish)(object)) }
    }

    /// Drops a reference; returns whether it was the last, and the object is the caller's.
    ///
    /// # Safety
    /// `object` is from `Boxed::into_raw`, and the reference is not used afterwards.
    unsafe fn is_last_given_up(object: NonNull<ObjectHeader>) -> bool {
        // SAFETY: the object is live until the last reference goes, and its count is only accessed as an
        // atomic.
        let references = unsafe { &(*object.as_ptr()).references };
        // Release pairs with the Acquire below and in `is_unique`: our reads come before the object is
        // changed or dropped.
        if references.fetch_sub(1, Release) != 1 {
            return false;
        }
        // Acquire pairs with the Release of the references that went before.
        references.load(Acquire);
        true
    }

    /// An equal object in a box of its own.
    ///
    /// # Safety
    /// `object` is from `Boxed::into_raw`, live, and not being changed.
    pub(super) unsafe fn duplicate(object: NonNull<ObjectHeader>) -> NonNull<ObjectHeader> {
        // SAFETY: the object is live, and the dispatch of a box is that of its type.
        unsafe { ((*object.as_ptr()).dispatch.duplicate)(object) }
    }

    /// The bytes of the box and of all that the object owns.
    ///
    /// # Safety
    /// `object` is from `Boxed::into_raw`, live, and not being changed.
    pub(super) unsafe fn allocated_bytes(object: NonNull<ObjectHeader>) -> usize {
        // SAFETY: the object is live, and the dispatch of a box is that of its type.
        unsafe { ((*object.as_ptr()).dispatch.allocated_bytes)(object) }
    }
}
