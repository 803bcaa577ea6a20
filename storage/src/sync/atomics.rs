//! The atomics and cells of the executor: the real ones, or loom's, which try every interleaving.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence},
};

/// Loom's flag, with its stores made swaps.
///
/// Loom does not know that a read-modify-write comes right behind the value it read: it lets a swap that read
/// an old value be newer than a plain store that replaced that value meanwhile, which no memory model allows.
/// Swaps among themselves it orders.
#[cfg(loom)]
pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

#[cfg(loom)]
impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> bool {
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: bool, order: Ordering) {
        self.0.swap(value, order);
    }

    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value, order)
    }
}

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};

/// `std`'s cell under loom's interface, so that one source serves both.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// The queue of held shards that any thread may take over.
///
/// A lock-free queue in the server; under loom a locked one, since only its contents are of interest there.
#[cfg(not(loom))]
pub(crate) type InjectorQueue<T> = crossbeam_queue::SegQueue<T>;

#[cfg(loom)]
pub(crate) struct InjectorQueue<T>(loom::sync::Mutex<std::collections::VecDeque<T>>);

#[cfg(loom)]
impl<T> InjectorQueue<T> {
    pub(crate) fn new() -> Self {
        Self(loom::sync::Mutex::new(std::collections::VecDeque::new()))
    }

    pub(crate) fn push(&self, value: T) {
        self.0.lock().unwrap().push_back(value);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.0.lock().unwrap().pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}
