//! Values that are no bytes: boxed behind a thin pointer that finds its own drop and size.

use std::any::TypeId;
use std::ptr::NonNull;

/// A value of an entry that is more than bytes: a large list, set, hash or sorted set, or a stream.
pub trait Object: Send + 'static {
    /// The bytes of all that the object owns beyond its own size; asked before and after each change, so
    /// constant in time.
    fn allocated_bytes(&self) -> usize;
}

/// What every boxed object begins with.
#[repr(C)]
pub(super) struct ObjectHeader {
    dispatch: &'static Dispatch,
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
}

impl<T: Object> Boxed<T> {
    const DISPATCH: Dispatch =
        Dispatch { type_id: TypeId::of::<T>(), drop: Self::drop, allocated_bytes: Self::allocated_bytes };

    /// Boxes a value; freed by [`ObjectHeader::drop`].
    pub(super) fn into_raw(value: T) -> NonNull<ObjectHeader> {
        let boxed = Box::new(Boxed { header: ObjectHeader { dispatch: &Self::DISPATCH }, value });
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

    /// Drops the object and frees its box.
    ///
    /// # Safety
    /// `object` is from `Boxed::into_raw` and is not used afterwards.
    pub(super) unsafe fn drop(object: NonNull<ObjectHeader>) {
        // SAFETY: the object is live, and the dispatch of a box is that of its type.
        unsafe { ((*object.as_ptr()).dispatch.drop)(object) };
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
