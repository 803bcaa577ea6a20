//! Work that somebody must do, and for which nobody waits: whoever has the baton does it for all.
//!
//! ```text
//! thread A   announce, fence, try the lock: it has it. Work. Unlock, fence, was there another announcement? Then once more.
//! thread B   announce, fence, try the lock: A has it. Go on: A finds the announcement.
//! ```
//!
//! The two fences are the point. Either B's attempt comes after A has unlocked, and B works; or A looks at the announcements after B's, and works once
//! more. Without them both could pass each other, and what B has left would lie there until the next announcement. All this is tried in every interleaving by
//! the tests below.

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

/// What the work is done with, and the right to do it.
pub struct Baton<T> {
    n_announced: CachePadded<AtomicU64>,
    held: Mutex<T>,
}

impl<T> Baton<T> {
    /// One that nobody has.
    pub fn new(with: T) -> Self {
        Self { n_announced: CachePadded::new(AtomicU64::new(0)), held: Mutex::new(with) }
    }

    /// Tells whoever has the baton that there is more to do. The caller must [run](Baton::run) after that.
    pub fn announce(&self) {
        // Release pairs with the Acquire of `run`: who counts this announcement finds what it is about.
        self.n_announced.fetch_add(1, Ordering::Release);
    }

    /// Waits for the baton. Whoever lets it go must run, or have somebody run: others have not waited for it.
    pub fn take(&self) -> MutexGuard<'_, T> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Does the work, unless somebody has the baton: they do it, for this thread as well. `work` may break off, if it is another's to go on.
    pub fn run(&self, mut work: impl FnMut(&mut T) -> ControlFlow<()>) {
        loop {
            // Pairs with the fence below: either this finds the lock free, or who has it finds what this thread has announced.
            fence(Ordering::SeqCst);
            let Ok(mut held) = self.held.try_lock() else { return };
            // Acquire pairs with the Release of `announce`: what is counted here is not looked for again.
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

    /// What was published, and how much of it was done.
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
