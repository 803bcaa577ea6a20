//! Tables that are created with their first entry, found by number: those of a shard's databases but the
//! first.
//!
//! ```text
//! Known ─▶ Index (2^n slots) ─▶ Numbered: root and number │ counts
//! ```
//!
//! The holder of the shard makes tables. Any thread may look for one under an epoch pin, to read its counts
//! or to prefetch. The index is replaced when it gets full; tables that are empty by then are dropped. So
//! there is at most one empty table to a few that are not. A key that comes and goes in one database makes
//! its table once.

use std::{
    alloc::{Layout, alloc_zeroed, handle_alloc_error},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{
            AtomicPtr, AtomicU32, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crossbeam_epoch::Guard;

use super::{
    Detached, Table,
    directory::{Counts, Root, Roots},
    retired::retire,
};
use crate::{memory::allocator::count_data, table::prefetch};

/// The slots of a new index: most shards have one table at the most.
const SLOTS_MIN: usize = 2;
/// The number of tables up to which no room for more is kept.
const FEW: usize = 4;
/// The quarters of its slots that may be taken before an index is replaced.
const FULL_QUARTERS: usize = 3;

/// The shared part of a table, which any thread may read. The holder writes the counts and prefetchers read
/// the root, so each lies on a cache line of its own.
#[repr(C)]
struct Numbered {
    root: Root,
    number: u32,
    /// The table's place in [`NumberedTables`]. For the holder only.
    nth: AtomicU32,
    counts: Counts,
}

/// A table's allocation, freed when no thread can read it any more.
struct Owned(NonNull<Numbered>);

// SAFETY: it points to atomics and a number that never changes.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// Bytes of a table apart from those that it counts itself.
    const BYTES: i64 = (size_of::<Numbered>() + size_of::<NumberedTable>()) as i64;

    fn new(number: u32, nth: usize) -> Self {
        let numbered = Numbered {
            root: Root::empty(),
            number,
            nth: AtomicU32::new(nth as u32),
            counts: Counts::default(),
        };
        // It exists for keys, and goes with them.
        count_data(Self::BYTES);
        Owned(NonNull::from(Box::leak(Box::new(numbered))))
    }

    fn get(&self) -> &Numbered {
        // SAFETY: it is freed after this has been dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        count_data(-Self::BYTES);
        // SAFETY: the allocation is a box's, and no index that is still found has it: the caller has
        // published one without it, or none. `Numbered` has nothing that must be dropped.
        unsafe { retire(self.0.cast(), Layout::new::<Numbered>()) };
    }
}

/// The slots that lead to tables, after this header in the same allocation. A table stands in the first free
/// slot from its home on.
#[repr(C)]
struct Index {
    n_slots: usize,
}

/// A pointer to an index, of the holder or of a pinned thread.
#[derive(Clone, Copy)]
struct IndexRef(NonNull<Index>);

impl IndexRef {
    fn allocate(n_slots: usize) -> Self {
        let layout = Self::layout(n_slots);
        count_data(layout.size() as i64);
        // SAFETY: the layout is not of size 0.
        let start =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let index = start.cast::<Index>();
        // SAFETY: the allocation is new, large enough and aligned; zeros are null pointers.
        unsafe { index.write(Index { n_slots }) };
        IndexRef(index)
    }

    fn layout(n_slots: usize) -> Layout {
        let slots = Layout::array::<AtomicPtr<Numbered>>(n_slots).expect("there are 2^32 databases at most");
        Layout::new::<Index>().extend(slots).expect("there are 2^32 databases at most").0
    }

    /// Frees the index when no thread can read it any more.
    ///
    /// # Safety
    /// No thread finds the index from now on.
    unsafe fn retire(self) {
        count_data(-(Self::layout(self.n_slots()).size() as i64));
        // SAFETY: the index is from `allocate`, with this layout; the rest is the caller's promise.
        unsafe { retire(self.0.cast(), Self::layout(self.n_slots())) };
    }

    fn n_slots(self) -> usize {
        // SAFETY: the owner of `self` holds or is pinned, and the header never changes.
        unsafe { self.0.as_ref() }.n_slots
    }

    fn slot(&self, at: usize) -> &AtomicPtr<Numbered> {
        debug_assert!(at < self.n_slots());
        // SAFETY: the slot is within the allocation, which lives while the owner of `self` holds or is
        // pinned.
        unsafe { self.0.add(1).cast::<AtomicPtr<Numbered>>().add(at).as_ref() }
    }

    /// The slots from a number's home on, each once.
    fn slots_from_home(&self, number: u32) -> impl Iterator<Item = &AtomicPtr<Numbered>> {
        let mask = self.n_slots() - 1;
        // Databases in use are mostly neighbours, so they have homes of their own.
        let home = number as usize & mask;
        (home..home + self.n_slots()).map(move |at| self.slot(at & mask))
    }

    fn find(&self, number: u32) -> Option<&Numbered> {
        for slot in self.slots_from_home(number) {
            // Acquire pairs with the Release in `add`: the number is seen. The holder has written it, or was
            // handed it.
            let numbered = NonNull::new(slot.load(Acquire))?;
            // SAFETY: a table in an index lives as long as the index can be read.
            let numbered = unsafe { numbered.as_ref() };
            if numbered.number == number {
                return Some(numbered);
            }
        }
        None
    }

    fn add(&self, owned: &Owned) {
        let number = owned.get().number;
        let free = self.slots_from_home(number).find(|slot| slot.load(Relaxed).is_null());
        // Release pairs with the Acquire in `find` and `each`.
        free.expect("an index is never full").store(owned.0.as_ptr(), Release);
    }
}

/// The numbered tables of one shard, found without holding it. The holder publishes, any thread reads.
#[derive(Default)]
pub struct Known {
    index: AtomicPtr<Index>,
    n_tables: AtomicUsize,
}

impl Known {
    /// Makes `n` of them, of which none has a table.
    pub fn many(n: usize) -> Arc<[Known]> {
        (0..n).map(|_| Known::default()).collect()
    }

    /// How many tables there are.
    pub fn n_tables(&self) -> usize {
        self.n_tables.load(Relaxed)
    }

    fn index(&self) -> Option<IndexRef> {
        // Acquire pairs with the Release in `publish`: the slots are seen as they were filled.
        NonNull::new(self.index.load(Acquire)).map(IndexRef)
    }

    fn publish(&self, index: Option<IndexRef>, n_tables: usize) {
        let index = index.map_or(ptr::null_mut(), |index| index.0.as_ptr());
        // Release pairs with the Acquire in `index`.
        self.index.store(index, Release);
        self.n_tables.store(n_tables, Relaxed);
    }

    fn find<'g>(&self, number: u32, _pinned: &'g Guard) -> Option<&'g Numbered> {
        let index = self.index()?;
        let found = NonNull::from(index.find(number)?);
        // SAFETY: a table that was found while the thread was pinned is not freed before the thread unpins.
        Some(unsafe { found.as_ref() })
    }

    /// Prefetches the cache line in which the search for a table begins.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::for_read(self.index.load(Relaxed));
    }

    /// Prefetches a table's root, unless another table stands in its home.
    #[inline]
    pub fn prefetch_table(&self, number: u32, _pinned: &Guard) {
        if let Some(slot) =
            self.index().and_then(|index| index.slots_from_home(number).next().map(NonNull::from))
        {
            // SAFETY: the slots are not freed while the thread is pinned.
            prefetch::for_read(unsafe { slot.as_ref() }.load(Relaxed));
        }
    }

    /// A table's root, to prefetch from; that of an empty table if there is no such table.
    pub fn root<'g>(&self, number: u32, pinned: &'g Guard) -> &'g Root {
        static EMPTY: Root = Root::empty();
        self.find(number, pinned).map_or(&EMPTY, |numbered| &numbered.root)
    }

    /// A table's counts, if there is one.
    pub fn counts<'g>(&self, number: u32, pinned: &'g Guard) -> Option<&'g Counts> {
        self.find(number, pinned).map(|numbered| &numbered.counts)
    }

    /// All tables, in no order.
    fn all<'g>(&self, _pinned: &'g Guard) -> impl Iterator<Item = &'g Numbered> {
        self.index().into_iter().flat_map(|index| {
            (0..index.n_slots()).filter_map(move |at| {
                // Acquire pairs with the Release in `add`.
                let numbered = NonNull::new(index.slot(at).load(Acquire))?;
                // SAFETY: a table that was found while the thread was pinned is not freed before the thread
                // unpins.
                Some(unsafe { numbered.as_ref() })
            })
        })
    }

    /// Visits all tables by their numbers, in no order.
    pub fn each<'g>(&self, pinned: &'g Guard, mut visit: impl FnMut(u32, &'g Root, &'g Counts)) {
        self.all(pinned).for_each(|numbered| visit(numbered.number, &numbered.root, &numbered.counts));
    }

    /// Whether `accept` accepts the counts of some table.
    pub fn any(&self, pinned: &Guard, accept: impl Fn(&Counts) -> bool) -> bool {
        self.all(pinned).any(|numbered| accept(&numbered.counts))
    }
}

/// A table with its number.
struct NumberedTable {
    // Dropped first: it leads into the next field.
    table: Table,
    owned: Owned,
}

impl NumberedTable {
    fn number(&self) -> u32 {
        self.owned.get().number
    }
}

/// The tables of a shard that have numbers, of its holder.
pub struct NumberedTables {
    /// The tables in the order of their creation.
    tables: Vec<NumberedTable>,
    known: Arc<[Known]>,
    /// The index of the shard's element of `known`.
    at: usize,
    /// Computes the places of keys, and has no tables itself.
    blank: Roots,
}

impl NumberedTables {
    /// Makes an empty collection. Its tables are found by the element `at` of `known`.
    pub fn new(known: Arc<[Known]>, at: usize, blank: Roots) -> Self {
        Self { tables: Vec::new(), known, at, blank }
    }

    fn index(&self) -> Option<IndexRef> {
        // Relaxed: the holder has written it, or was handed it.
        NonNull::new(self.known[self.at].index.load(Relaxed)).map(IndexRef)
    }

    /// The number of tables, with empty ones that are not dropped yet.
    pub fn len(&self) -> usize {
        self.tables.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The place of a table in the order of creation.
    pub fn place_of(&self, number: u32) -> Option<usize> {
        let index = self.index()?;
        let numbered = index.find(number)?;
        Some(numbered.nth.load(Relaxed) as usize)
    }

    /// A table, if there is one.
    pub fn get(&self, number: u32) -> Option<&Table> {
        self.place_of(number).map(|at| &self.tables[at].table)
    }

    /// A table, mutable, if there is one. Entries are only added to [one that is made](Self::or_make) for
    /// that.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Table> {
        self.place_of(number).map(|at| &mut self.tables[at].table)
    }

    /// A table by its place in the order of creation. Places change when [one is made](Self::or_make), unless
    /// empty ones stay.
    pub fn nth(&self, nth: usize) -> Option<(u32, &Table)> {
        self.tables.get(nth).map(|numbered| (numbered.number(), &numbered.table))
    }

    /// A table, which is made if there is none. Empty tables are dropped at some of these calls, unless
    /// `empty_stay`.
    pub fn or_make(&mut self, number: u32, empty_stay: bool) -> &mut Table {
        let at = self.place_of(number).unwrap_or_else(|| self.make(number, empty_stay));
        &mut self.tables[at].table
    }

    #[cold]
    fn make(&mut self, number: u32, empty_stay: bool) -> usize {
        let has_room = |index: &IndexRef| (self.tables.len() + 1) * 4 <= index.n_slots() * FULL_QUARTERS;
        let index = match self.index().filter(has_room) {
            Some(index) => index,
            None => self.rebuild(1, empty_stay),
        };
        let at = self.tables.len();
        let owned = Owned::new(number, at);
        let numbered = owned.get();
        let table = self.blank.table_apart(&numbered.root, &numbered.counts);
        index.add(&owned);
        if at < FEW {
            // A vector would begin with room for four.
            self.tables.reserve_exact(1);
        }
        self.tables.push(NumberedTable { table, owned });
        self.known[self.at].n_tables.store(at + 1, Relaxed);
        at
    }

    /// Makes another index, with room for as many tables again and some more.
    fn rebuild(&mut self, n_more: usize, empty_stay: bool) -> IndexRef {
        let is_over = |numbered: &mut NumberedTable| !empty_stay && numbered.table.is_empty();
        let over: Vec<NumberedTable> = self.tables.extract_if(.., is_over).collect();
        let n_slots = (2 * (self.tables.len() + n_more)).next_power_of_two().max(SLOTS_MIN);
        let index = IndexRef::allocate(n_slots);
        for (nth, numbered) in self.tables.iter().enumerate() {
            numbered.owned.get().nth.store(nth as u32, Relaxed);
            index.add(&numbered.owned);
        }
        self.publish(Some(index));
        // No thread finds them any more.
        drop(over);
        index
    }

    /// Publishes an index in place of the present one.
    fn publish(&mut self, index: Option<IndexRef>) {
        let before = self.index();
        self.known[self.at].publish(index, self.tables.len());
        if let Some(before) = before {
            // SAFETY: it has just been replaced.
            unsafe { before.retire() };
        }
    }

    /// Drops the tables that are empty.
    pub fn drop_empty(&mut self) {
        if self.tables.iter().any(|numbered| numbered.table.is_empty()) {
            self.rebuild(0, false);
        }
    }

    /// Takes all tables out. No thread finds them any more.
    pub fn take(&mut self) -> TakenTables {
        let tables = std::mem::take(&mut self.tables);
        self.publish(None);
        TakenTables { tables }
    }

    /// Swaps the contents of two tables, which are made if they are missing.
    pub fn swap_contents(&mut self, one: u32, other: u32, empty_stay: bool) {
        // Making the second may move the first.
        self.or_make(one, empty_stay);
        self.or_make(other, true);
        let at = [one, other].map(|number| self.place_of(number).expect("both are there"));
        let pair = self.tables.get_disjoint_mut(at).expect("two tables");
        let [one, other] = pair;
        one.table.swap_contents(&mut other.table);
    }

    /// Swaps all tables with those of another shard, whose keys must have the same places.
    pub fn swap(&mut self, other: &mut NumberedTables) {
        let (ours, theirs) = (self.index(), other.index());
        std::mem::swap(&mut self.tables, &mut other.tables);
        self.known[self.at].publish(theirs, self.tables.len());
        other.known[other.at].publish(ours, other.tables.len());
    }
}

/// Tables that have been [taken out](NumberedTables::take), as an iterator.
pub struct TakenTables {
    tables: Vec<NumberedTable>,
}

impl TakenTables {
    /// How many tables there are.
    pub fn len(&self) -> usize {
        self.tables.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Removes the tables from the count of data; returns their numbers of entries and of bytes.
    pub fn forget_bytes(&self) -> (usize, usize) {
        let counts = self.tables.iter().map(|numbered| &numbered.owned.get().counts);
        counts.fold((0, 0), |(n_entries, n_bytes), counts| {
            let of_table = counts.allocated_bytes();
            counts.allocated_bytes.clear();
            (n_entries + counts.len(), n_bytes + of_table)
        })
    }

    /// Takes all entries out of one of the tables; its number says which.
    pub fn detach_one(&mut self) -> Option<(u32, Detached)> {
        let mut numbered = self.tables.pop()?;
        Some((numbered.number(), numbered.table.detach()))
    }
}

impl std::fmt::Debug for TakenTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TakenTables").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Drop for NumberedTables {
    fn drop(&mut self) {
        let tables = std::mem::take(&mut self.tables);
        self.publish(None);
        drop(tables);
    }
}
