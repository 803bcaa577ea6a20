//! The executor of a shard: one word for its holder, and the queue of waiting nodes.
//!
//! **Guarantee.** At any moment a shard has at most one holder. Its holder takes up every node that is linked
//! to the held shard, in the order of the links, before the shard is idle again. No thread ever blocks or
//! spins.
//!
//! A *holder* must make sure that the shard is released. It is one of three:
//!
//! - a thread that runs something on the shard,
//! - a transaction: under way on a thread or, having the lane, in another shard's queue or in that of its
//!   heavy-work thread,
//! - the injector.
//!
//! The lane is an executor, too. It guards only the right to wait while holding (`coordinator.rs`).
//!
//! # The word
//!
//! | word | means | who may change it, and to which value |
//! |---|---|---|
//! | null | idle | anyone: to `HELD`, and is then the holder |
//! | [`held()`] | held, nothing linked since the holder last looked | the holder: to null, if nothing is pending. Anyone: to a node |
//! | a node | held, and the newest of the nodes linked since | the holder: to `HELD`, taking the list. Anyone: to a newer node |
//!
//! # Who writes what
//!
//! | thing | belongs to | and passes on |
//! |---|---|---|
//! | the shard | the holder | with the hold |
//! | the list at the word | the holder, but for its head, to which anyone may link | by the swap that takes it |
//! | `pending`: the nodes that were taken and have not run | the holder | with the hold: to a grant, to the injector, out of a panicking drain |
//! | a node, its job and its `next` | the owner of its `Box` | by the compare-and-swap that links it or pushes it on an [`Inbox`] |
//!
//! The list is newest first. The holder takes it only when nothing is pending any more, and reverses it into
//! arrival order. All that goes with a node (further commands of its connection) is in it before it is
//! linked. After the compare-and-swap not even its route may be read, because its job may have run and be
//! gone.
//!
//! # Orderings
//!
//! Holding (null → `HELD`) and taking the list are Acquire; releasing (`HELD` → null) and linking are
//! Release. So a holder sees all that the holder before it wrote to the shard and to `pending`. It also sees
//! all that the linker wrote to the node. Links made before the newest one are covered too: every change of
//! the word is a read-modify-write and so continues the release sequences before it.
//!
//! A hold may pass without the word: to a grant in another shard's queue, to the injector, or to a heavy-work
//! thread's own queue. Then it passes through a link or a queue, which release and acquire in the same way.
//!
//! Between a linker's load and its compare-and-swap, a node may be freed and another be linked at its
//! address. That does no harm. The linker sets `next` to the very pointer that it compares with, so a swap
//! that succeeds has linked to the node that is at the head now.
//!
//! `coordinator/loom_tests.rs` tries all this in every interleaving.

use std::{ptr, sync::Arc};

use crate::{
    sync::{
        atomics::{AtomicBool, AtomicPtr, Ordering, UnsafeCell, fence},
        coordinator::Route,
    },
    table::prefetch,
};

/// Work that waits for shards and then runs on them.
pub struct Node<J> {
    /// The next node of the list this one is in. Owned by the owner of the node.
    next: *mut Node<J>,
    pub(crate) route: Route,
    /// The queue of the heavy-work thread that is reserved for the node.
    pub(crate) reserved: Option<Arc<Inbox<J>>>,
    /// The work that runs once all shards of the route are held.
    pub job: J,
}

// SAFETY: `next` is only followed by the owner of the list that the node is in; the pointer itself is
// plain data, so a node may go wherever its job may go.
unsafe impl<J: Send> Send for Node<J> {}

impl<J> Node<J> {
    /// Makes a node that is in no list and goes nowhere yet.
    pub fn new(job: J) -> Box<Self> {
        Box::new(Self { next: ptr::null_mut(), route: Route::default(), reserved: None, job })
    }

    /// Sets the shards that the job needs next.
    pub fn set_route(&mut self, route: Route) {
        self.route = route;
    }
}

/// The mark of a held word. No node lies at address 1: nodes are aligned.
#[inline(always)]
fn held<J>() -> *mut Node<J> {
    ptr::without_provenance_mut(1)
}

/// The result of a node's attempt to take a shard.
pub(crate) enum Linked<J> {
    /// The shard was idle: the caller holds it and still has the node.
    Held(Box<Node<J>>),
    /// The shard's holder has the node now.
    Waiting,
}

/// A shard, its word, and the nodes that wait for it.
///
/// The word shares its cache line with the first fields of the shard. A thread that takes the hold then has
/// that line to itself, so the fields that every command writes lie there. Two executors never share a line,
/// nor a pair of lines, which x86 fetches together.
#[repr(C, align(128))]
pub(crate) struct ShardExecutor<S, J> {
    word: AtomicPtr<Node<J>>,
    held: UnsafeCell<Holding<S, J>>,
}

/// The fields that belong to the holder of a shard.
#[repr(C)]
struct Holding<S, J> {
    /// The oldest node that was taken from the word and has not run yet. It leads to the others.
    pending: *mut Node<J>,
    shard: S,
}

// SAFETY: `held` is reached only by the holder, of which the word admits one at a time (see the module's
// documentation), so a shared executor gives out the shard to one thread at a time: Send is enough.
unsafe impl<S: Send, J: Send> Sync for ShardExecutor<S, J> {}
// SAFETY: the raw pointers are lists of nodes that this executor owns; nodes and shard are Send.
unsafe impl<S: Send, J: Send> Send for ShardExecutor<S, J> {}

impl<S, J> ShardExecutor<S, J> {
    pub(crate) fn new(shard: S) -> Self {
        Self {
            word: AtomicPtr::new(ptr::null_mut()),
            held: UnsafeCell::new(Holding { pending: ptr::null_mut(), shard }),
        }
    }

    /// Fetches the cache line of the word and of the most written fields, for writing. Reads nothing.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch::for_write(&raw const self.word);
    }

    /// Takes the hold if the shard is idle. On `true` the caller is the holder and must see to its release.
    #[inline(always)]
    pub(crate) fn try_hold(&self) -> bool {
        // Acquire: pairs with the Release of the previous holder's release.
        self.word.compare_exchange(ptr::null_mut(), held(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the hold, or leaves the node with the holder.
    pub(crate) fn hold_or_link(&self, node: Box<Node<J>>) -> Linked<J> {
        let node = Box::into_raw(node);
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word.is_null() {
                // Acquire: as in `try_hold`.
                match self.word.compare_exchange_weak(word, held(), Ordering::Acquire, Ordering::Relaxed) {
                    // SAFETY: the node was not linked, so it is still ours; it came from `Box::into_raw`.
                    Ok(_) => return Linked::Held(unsafe { Box::from_raw(node) }),
                    Err(now) => word = now,
                }
                continue;
            }
            // SAFETY: ours until the exchange below succeeds.
            unsafe { (*node).next = if word == held() { ptr::null_mut() } else { word } };
            // Release: pairs with the Acquire of `take_linked`; the holder sees the node's content.
            match self.word.compare_exchange_weak(word, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Linked::Waiting,
                Err(now) => word = now,
            }
        }
    }

    /// The shard.
    ///
    /// # Safety
    /// The caller holds this shard and has no other reference to it.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the caller holds the shard, and has no other reference to it")]
    pub(crate) unsafe fn shard(&self) -> &mut S {
        // SAFETY: exclusive by the caller's promise; the word admits one holder.
        self.held.with_mut(|held| unsafe { &mut (*held).shard })
    }

    /// Releases the shard if no node waits for it.
    ///
    /// # Safety
    /// The caller holds this shard; on `true` it no longer does.
    #[inline(always)]
    pub(crate) unsafe fn release_if_unwanted(&self) -> bool {
        // SAFETY: the caller is the holder.
        let pending = self.held.with_mut(|held| unsafe { (*held).pending });
        // Release: pairs with the Acquire of the next hold. Not weak: it must fail only if a node is linked.
        pending.is_null()
            && self
                .word
                .compare_exchange(held(), ptr::null_mut(), Ordering::Release, Ordering::Relaxed)
                .is_ok()
    }

    /// Takes the oldest waiting node, or, when there is none, releases the shard.
    ///
    /// # Safety
    /// The caller holds this shard; on `None` it no longer does.
    pub(crate) unsafe fn next_or_release(&self) -> Option<Box<Node<J>>> {
        loop {
            // SAFETY: the caller is the holder.
            if let Some(node) = unsafe { self.pop_pending() } {
                return Some(node);
            }
            // SAFETY: the caller is the holder.
            if unsafe { self.release_if_unwanted() } {
                return None;
            }
            // SAFETY: the caller is the holder, nothing is pending, and so a node was linked: the release
            // fails for no other reason.
            unsafe { self.take_linked() };
        }
    }

    /// Takes the oldest waiting node, if there is one.
    ///
    /// # Safety
    /// The caller holds this shard.
    pub(crate) unsafe fn next_waiting(&self) -> Option<Box<Node<J>>> {
        loop {
            // SAFETY: the caller is the holder.
            if let Some(node) = unsafe { self.pop_pending() } {
                return Some(node);
            }
            // Relaxed: the linked nodes are read after `take_linked`.
            if self.word.load(Ordering::Relaxed) == held() {
                return None;
            }
            // SAFETY: the caller is the holder, nothing is pending, and a node is linked.
            unsafe { self.take_linked() };
        }
    }

    /// Puts back a node of `next_or_release` or `next_waiting`, in front of all other waiting nodes.
    ///
    /// # Safety
    /// The caller holds this shard.
    pub(crate) unsafe fn put_back(&self, node: Box<Node<J>>) {
        let node = Box::into_raw(node);
        self.held.with_mut(|held| {
            // SAFETY: the caller is the holder, to whom the list belongs, and brings the node.
            unsafe {
                (*node).next = (*held).pending;
                (*held).pending = node;
            }
        });
    }

    /// Takes the first node off `pending`, if there is one.
    ///
    /// # Safety
    /// The caller holds this shard.
    unsafe fn pop_pending(&self) -> Option<Box<Node<J>>> {
        self.held.with_mut(|held| {
            // SAFETY: the caller is the holder, to whom the list and its nodes belong.
            unsafe {
                let first = (*held).pending;
                if first.is_null() {
                    return None;
                }
                (*held).pending = (*first).next;
                (*first).next = ptr::null_mut();
                Some(Box::from_raw(first))
            }
        })
    }

    /// Makes the nodes that were linked to the word pending, oldest first.
    ///
    /// # Safety
    /// The caller holds this shard, saw that the word is not `held()`, and has nothing pending.
    unsafe fn take_linked(&self) {
        // Acquire: pairs with the Release of every link in the list (they form one release sequence).
        let newest = self.word.swap(held(), Ordering::Acquire);
        debug_assert!(!newest.is_null() && newest != held(), "only the holder takes what is linked");
        let oldest = reverse(newest);
        self.held.with_mut(|held| {
            // SAFETY: the caller is the holder, to whom the list belongs.
            unsafe {
                debug_assert!((*held).pending.is_null(), "what is pending is older");
                (*held).pending = oldest;
            }
        });
    }
}

impl<S, J> Drop for ShardExecutor<S, J> {
    fn drop(&mut self) {
        // Nodes that still wait when the engine is dropped are freed and do not run. A shard that is held
        // already has a holder that no longer exists: the injector, or a transaction that is freed with the
        // queue it waits in.
        let _: bool = self.try_hold();
        // SAFETY: held now, and `&mut self`: nobody else holds or links.
        while unsafe { self.next_or_release() }.is_some() {}
    }
}

/// Reverses a list that no other thread has, and returns its new head.
fn reverse<J>(mut node: *mut Node<J>) -> *mut Node<J> {
    let mut reversed = ptr::null_mut();
    while !node.is_null() {
        // SAFETY: the caller owns the list, so each node in it is alive and ours to relink.
        let next = unsafe { std::mem::replace(&mut (*node).next, reversed) };
        reversed = node;
        node = next;
    }
    reversed
}

/// The stack of a thread's finished nodes: many threads push, and the thread empties it.
///
/// It also says whether the thread sleeps, so that a thread that brings a node knows whether to wake it.
///
/// The two sides agree through a pair of sequentially consistent fences. The thread announces its sleep and
/// then looks for nodes; the other side pushes and then looks for the announcement. At least one of them sees
/// the other, so no node is left with a sleeping thread. The same holds for any other queue that `may_sleep`
/// is told to look at and whose writers call `must_wake`.
///
/// A thread that has withdrawn its announcement may still be woken by a thread that saw it. A wake-up may be
/// unnecessary, but it is never too late. `take` may miss a push that is under way; the next `may_sleep` does
/// not.
pub struct Inbox<J> {
    newest: AtomicPtr<Node<J>>,
    asleep: AtomicBool,
}

impl<J> Default for Inbox<J> {
    fn default() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()), asleep: AtomicBool::new(false) }
    }
}

impl<J: Send> Inbox<J> {
    /// Adds a node.
    pub fn push(&self, node: Box<Node<J>>) {
        let node = Box::into_raw(node);
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            // SAFETY: ours until the exchange succeeds.
            unsafe { (*node).next = newest };
            // Release: pairs with the Acquire of `take`.
            match self.newest.compare_exchange_weak(newest, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => newest = now,
            }
        }
    }

    /// Returns whether the thread sleeps and the caller must wake it. Called after something was pushed, here
    /// or elsewhere.
    pub fn must_wake(&self) -> bool {
        // Pairs with the fence of `may_sleep`.
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Announces that the thread is about to sleep. `also_empty` looks at all else that the thread must not
    /// sleep on. On `false` there is something to do, and the announcement is withdrawn.
    pub fn may_sleep(&self, also_empty: impl FnOnce() -> bool) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence of `must_wake`.
        fence(Ordering::SeqCst);
        if self.newest.load(Ordering::Relaxed).is_null() && also_empty() {
            return true;
        }
        self.awake();
        false
    }

    /// Withdraws the announcement of `may_sleep`.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Takes all nodes, oldest first.
    pub fn take(&self) -> Nodes<J> {
        if self.newest.load(Ordering::Relaxed).is_null() {
            return Nodes { first: ptr::null_mut() };
        }
        // Acquire: pairs with the Release of each push.
        Nodes { first: reverse(self.newest.swap(ptr::null_mut(), Ordering::Acquire)) }
    }
}

impl<J> Drop for Inbox<J> {
    fn drop(&mut self) {
        // A swap, because loom does not see that the last owner of an `Arc` has synchronised with the others.
        // A load could return nodes that another thread has taken since. Acquire: pairs with the Release of
        // each push.
        drop(Nodes { first: self.newest.swap(ptr::null_mut(), Ordering::Acquire) });
    }
}

/// Nodes taken from an [`Inbox`], oldest first.
pub struct Nodes<J> {
    first: *mut Node<J>,
}

impl<J> Iterator for Nodes<J> {
    type Item = Box<Node<J>>;

    fn next(&mut self) -> Option<Box<Node<J>>> {
        if self.first.is_null() {
            return None;
        }
        // SAFETY: the list is this iterator's own; each node came from `Box::into_raw` and leaves the list
        // here.
        unsafe {
            let mut node = Box::from_raw(self.first);
            self.first = std::mem::replace(&mut node.next, ptr::null_mut());
            Some(node)
        }
    }
}

impl<J> Drop for Nodes<J> {
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ids(nodes: impl Iterator<Item = Box<Node<u32>>>) -> Vec<u32> {
        nodes.map(|node| node.job).collect()
    }

    #[test]
    fn an_inbox_gives_back_the_oldest_first() {
        let inbox = Inbox::default();
        (1..=3).for_each(|id| inbox.push(Node::new(id)));
        assert_eq!(ids(inbox.take()), [1, 2, 3]);
        assert!(ids(inbox.take()).is_empty());
    }

    #[test]
    fn nobody_sleeps_on_a_node() {
        let inbox = Inbox::default();
        assert!(!inbox.must_wake(), "it is awake");
        assert!(inbox.may_sleep(|| true));
        inbox.push(Node::new(1));
        assert!(inbox.must_wake());
        assert!(!inbox.must_wake(), "one waker is enough");
        assert!(!inbox.may_sleep(|| true), "there is a node");
        inbox.take();
        assert!(!inbox.may_sleep(|| false), "there is something else");
        assert!(!inbox.must_wake(), "the announcement is withdrawn");
    }

    #[test]
    fn nodes_that_nobody_takes_are_freed() {
        let counted = Arc::new(());
        let inbox = Inbox::default();
        for _ in 0..3 {
            inbox.push(Node::new(Arc::clone(&counted)));
        }
        let mut taken = inbox.take();
        drop(taken.next());
        inbox.push(Node::new(Arc::clone(&counted)));
        assert_eq!(Arc::strong_count(&counted), 4);
        drop(taken);
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(inbox);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn what_is_put_back_stays_in_front() {
        let executor = ShardExecutor::new(());
        assert!(executor.try_hold());
        let link = |id| assert!(matches!(executor.hold_or_link(Node::new(id)), Linked::Waiting));
        let mut order = Vec::new();
        link(1);
        link(2);
        // SAFETY: held above, and released by the last call only.
        unsafe {
            let first = executor.next_or_release().expect("linked");
            link(3);
            executor.put_back(first);
            link(4);
            while let Some(node) = executor.next_or_release() {
                order.push(node.job);
            }
        }
        assert_eq!(order, [1, 2, 3, 4]);
        assert!(matches!(executor.hold_or_link(Node::new(5)), Linked::Held(node) if node.job == 5));
    }
}
