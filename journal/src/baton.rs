//! A lock or a delegation: the thread that has the lock does all announced work.
//!
//! ```text
//! thread A   announce, fence, try the lock: A has it. Work. Unlock, fence.
//!            Is there another announcement? Then once more.
//! thread B   announce, fence, try the lock: A has it. Continue: A finds the announcement.
//! ```
//!
//! The two fences decide the case in which A unlocks while B tries the lock. Either B's attempt comes after
//! A's unlock, and B works. Or A reads the announcements after B's, and works once more. Without the fences
//! both could miss each other, and B's work would wait for the next announcement. The loom tests below try
//! every interleaving.

use std::ops::ControlFlow;

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};

use crossbeam_utils::CachePadded;

/// The baton, as long as a thread has it.
pub type Guard<'a, T> = MutexGuard<'a, T>;

/// A value, and the right to work with it.
pub struct Baton<T> {
    n_announced: CachePadded<AtomicU64>,
    held: Mutex<T>,
}

impl<T> Baton<T> {
    /// Creates a baton that no thread has.
    pub fn new(with: T) -> Self {
        Self { n_announced: CachePadded::new(AtomicU64::new(0)), held: Mutex::new(with) }
    }

    /// Announces work to the thread that has the baton. The caller must [run](Baton::run) after that.
    pub fn announce(&self) {
        // Release pairs with the Acquire of `run`: a thread that counts this announcement sees the announced
        // work.
        self.n_announced.fetch_add(1, Ordering::Release);
    }

    /// Waits for the baton.
    ///
    /// After its release the caller must run, or have another thread run. Threads that announced work
    /// meanwhile did not wait.
    pub fn take(&self) -> Guard<'_, T> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes the baton unless another thread has it. The same holds after its release as for
    /// [`take`](Self::take).
    pub fn try_take(&self) -> Option<Guard<'_, T>> {
        self.held.try_lock().ok()
    }

    /// Does the work, unless another thread has the baton and therefore does it.
    ///
    /// `work` returns `Break` if another thread must continue.
    pub fn run(&self, mut work: impl FnMut(&mut T) -> ControlFlow<()>) {
        loop {
            // Pairs with the fence below. Either this thread finds the lock free, or the thread with the lock
            // finds this thread's announcement.
            fence(Ordering::SeqCst);
            let Ok(mut held) = self.held.try_lock() else { return };
            // Acquire pairs with the Release of `announce`: work that is counted here is not searched for
            // again.
            let n_announced = self.n_announced.load(Ordering::Acquire);
            let worked = work(&mut held);
            drop(held);
            // Pairs with the fence above.
            fence(Ordering::SeqCst);
            if worked.is_break() || self.n_announced.load(Ordering::Relaxed) == n_announced {
                return;
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::{sync::atomic::AtomicUsize, thread};

    use super::*;

    /// A count of published items, and how many of them are done.
    struct Desk {
        n_published: AtomicUsize,
        baton: Baton<usize>,
    }

    impl Desk {
        fn new() -> Arc<Desk> {
            Arc::new(Desk { n_published: AtomicUsize::new(0), baton: Baton::new(0) })
        }

        fn publish(&self) {
            self.n_published.fetch_add(1, Ordering::Relaxed);
            self.baton.announce();
            self.run();
        }

        fn run(&self) {
            self.baton.run(|n_done| {
                *n_done = self.n_published.load(Ordering::Relaxed);
                ControlFlow::Continue(())
            });
        }
    }

    #[test]
    fn what_is_announced_is_done_though_nobody_waits() {
        loom::model(|| {
            let desk = Desk::new();
            let other = { Arc::clone(&desk) };
            let thread = thread::spawn(move || other.publish());
            desk.publish();
            thread.join().expect("it does not panic");
            assert_eq!(*desk.baton.take(), 2);
        });
    }

    #[test]
    fn who_has_waited_for_the_baton_does_what_was_announced_meanwhile() {
        loom::model(|| {
            let desk = Desk::new();
            let other = { Arc::clone(&desk) };
            let thread = thread::spawn(move || other.publish());
            drop(desk.baton.take());
            desk.run();
            thread.join().expect("it does not panic");
            assert_eq!(*desk.baton.take(), 1);
        });
    }
}
