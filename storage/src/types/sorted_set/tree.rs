//! The order of a large sorted set: a B+ tree of its entries, which knows how many are below each node.
//!
//! ```text
//! Inner: first element, count and node of each child ─▶ … ─▶ Leaf: ruler | mark and address of each entry
//! ```
//!
//! Entries belong to the set's table; the tree has their addresses, sorted by score and member. So a rank,
//! the element at a rank, and the ends of any range are found in O(log n), and a range is read leaf by leaf.
//!
//! **Marks.** To compare an entry is to read it, which in a large set is a cache miss, and a binary search in
//! a leaf would have seven. But an address leaves 20 bits of its word free. A leaf has a [`Ruler`], a line
//! that maps scores to 20 bits and keeps their order. Each word has the *mark* of its entry's score on it.
//! Marks tell entries apart if they differ. Only entries with the mark of the wanted score are read.
//!
//! A ruler is laid over the scores of a leaf, twice as long as they are, when the leaf is made. It is laid
//! again when splitting has left the leaf with a few marks. Scores beyond its ends have the first or the last
//! mark. Where all scores are equal, marks say nothing, and entries are compared.
//!
//! **Memory.** Leaves and nodes have up to 128 items, and room for as many as the allocator's class of their
//! size holds. A leaf splits in two halves, so under random insertion sizes between 64 and 128 are as
//! frequent as their reciprocals, and 64 / ln 2 = 92.3 items on average. Classes are 16 items apart, so 7.5
//! words are free. A leaf's share of its node is 64 bytes (first element 16, count 8, ruler 16, vector 24)
//! and about 10 % of free room. That is (92.3 + 7.5) × 8 / 92.3 + 71 / 92.3 = 9.4 bytes a member. Leaves
//! after ascending insertion have 64 items and no free room: 9.1 bytes. A leaf with fewer than 32 items takes
//! from a sibling or joins it.

use std::{ops::Range, slice};

use super::{
    members::Members,
    order::{Cut, Point, Ranked},
};
use crate::{
    entry::{EntryHandle, SPARE_BITS, class_bytes},
    memory::teardown::Rubble,
    table::prefetch,
};

/// The most items of a leaf or an inner node.
const MAX: usize = 128;
/// The least items of a node with a sibling; with fewer, it takes from the sibling or joins it.
const MIN: usize = 32;
/// Siblings with at most this many items together join. It is well below the size at which a node splits.
const JOIN_MAX: usize = 96;
/// The items of a node that is made of sorted ones.
const FRESH: usize = 112;
/// The free room, in items, above which it is freed.
const ROOM_MAX: usize = 24;
/// A leaf whose marks span fewer than this gets a new ruler when it splits.
const SPAN_MIN: u64 = 1 << 11;
/// The number of entries that are fetched ahead of the one that is read.
const AHEAD: usize = 6;

/// Entries by score and member.
pub(super) struct Tree {
    root: TreeNode,
    len: usize,
    allocated_bytes: usize,
}

/// Nodes of a tree that is no more. Their elements are the table's.
struct TreeNodes(Vec<TreeNode>);

impl Rubble for TreeNodes {
    fn free_some(&mut self, max: usize) -> usize {
        let TreeNodes(nodes) = self;
        let mut n_freed = 0;
        while n_freed < max
            && let Some(node) = nodes.pop()
        {
            if let TreeNode::Inner(inner) = node {
                nodes.extend(inner.children);
            }
            n_freed += 1;
        }
        n_freed
    }
}

enum TreeNode {
    Leaf(Leaf),
    Inner(Box<Inner>),
}

#[derive(Default)]
struct Leaf {
    ruler: Ruler,
    handles: Vec<EntryHandle>,
}

/// The three vectors are about the same children, which are all leaves or all inner nodes.
struct Inner {
    firsts: Vec<First>,
    n_below: Vec<usize>,
    children: Vec<TreeNode>,
}

/// The first element below a child.
#[derive(Clone, Copy)]
struct First {
    score: f64,
    handle: EntryHandle,
}

impl First {
    fn of(handle: EntryHandle, members: Members<'_>) -> Self {
        First { score: members.at(handle).score, handle }
    }

    #[inline]
    fn is_before(&self, cut: Cut<'_>, members: Members<'_>) -> bool {
        cut.is_behind(|| self.score, |other| members.at(self.handle).member.cmp(other))
    }
}

/// The element that must be removed.
#[derive(Clone, Copy)]
enum Target<'a> {
    Rank(usize),
    Element(Ranked<'a>, EntryHandle),
}

impl Tree {
    /// Takes the tree apart, to be freed in steps.
    pub(super) fn demolish(self) -> Box<dyn Rubble> {
        Box::new(TreeNodes(vec![self.root]))
    }

    /// A tree of entries that are in order.
    pub(super) fn of(sorted: Vec<EntryHandle>, members: Members<'_>) -> Self {
        let len = sorted.len();
        let mut edit = Edit { members, allocated_bytes: 0 };
        let mut nodes: Vec<TreeNode> =
            even_chunks(sorted, |handles| TreeNode::Leaf(Leaf::of(edit.collect(handles), members)));
        while nodes.len() > 1 {
            nodes = even_chunks(nodes, |children| TreeNode::Inner(Inner::of(children.collect(), &mut edit)));
        }
        let root = nodes.pop().unwrap_or(TreeNode::Leaf(Leaf::default()));
        Tree { root, len, allocated_bytes: edit.allocated_bytes }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn allocated_bytes(&self) -> usize {
        self.allocated_bytes
    }

    /// The number of elements before a place.
    pub(super) fn rank(&self, cut: Cut<'_>, members: Members<'_>) -> usize {
        let (mut node, mut rank) = (&self.root, 0);
        loop {
            match node {
                TreeNode::Leaf(leaf) => return rank + leaf.position(cut, members),
                TreeNode::Inner(inner) => {
                    let at = inner.child_before(cut, members);
                    rank += inner.n_below[..at].iter().sum::<usize>();
                    node = &inner.children[at];
                }
            }
        }
    }

    /// The leaf with the element of a rank, and where in it.
    ///
    /// # Panics
    /// If there are no more than `rank` elements.
    fn leaf_of(&self, mut rank: usize) -> (&[EntryHandle], usize) {
        let mut node = &self.root;
        loop {
            match node {
                TreeNode::Leaf(leaf) => return (&leaf.handles, rank),
                TreeNode::Inner(inner) => {
                    let at = inner.child_of_rank(&mut rank);
                    node = &inner.children[at];
                }
            }
        }
    }

    /// The element of a rank.
    ///
    /// # Panics
    /// If there are no more than `rank` elements.
    pub(super) fn get(&self, rank: usize) -> EntryHandle {
        let (leaf, at) = self.leaf_of(rank);
        leaf[at]
    }

    /// The elements of some ranks, from both ends.
    pub(super) fn walk(&self, ranks: Range<usize>) -> Walk<'_> {
        debug_assert!(ranks.start <= ranks.end && ranks.end <= self.len);
        Walk { tree: self, ranks, front: [].iter(), back: [].iter() }
    }

    /// Adds an entry that has just been put into the table.
    pub(super) fn insert(&mut self, handle: EntryHandle, members: Members<'_>) {
        let mut edit = Edit { members, allocated_bytes: self.allocated_bytes };
        let element = members.at(handle);
        if let Some(right) = self.root.insert(handle, element, &mut edit) {
            let left = std::mem::replace(&mut self.root, TreeNode::Leaf(Leaf::default()));
            self.root = TreeNode::Inner(Inner::of(vec![left, right], &mut edit));
        }
        self.len += 1;
        self.allocated_bytes = edit.allocated_bytes;
    }

    /// Removes an entry, which is still in the table and as it was when it was added.
    pub(super) fn remove(&mut self, handle: EntryHandle, members: Members<'_>) {
        self.take(Target::Element(members.at(handle), handle), members);
    }

    /// Removes the entry of a rank, which is still in the table.
    ///
    /// # Panics
    /// If there are no more than `rank` elements.
    pub(super) fn remove_rank(&mut self, rank: usize, members: Members<'_>) -> EntryHandle {
        self.take(Target::Rank(rank), members)
    }

    fn take(&mut self, mut target: Target<'_>, members: Members<'_>) -> EntryHandle {
        let mut edit = Edit { members, allocated_bytes: self.allocated_bytes };
        let taken = self.root.remove(&mut target, &mut edit);
        while let TreeNode::Inner(root) = &mut self.root
            && root.children.len() == 1
        {
            let only = root.children.pop().expect("there is one");
            edit.release_inner(root);
            self.root = only;
        }
        self.len -= 1;
        self.allocated_bytes = edit.allocated_bytes;
        taken
    }
}

impl TreeNode {
    /// The number of the node's own items.
    fn width(&self) -> usize {
        match self {
            TreeNode::Leaf(leaf) => leaf.handles.len(),
            TreeNode::Inner(inner) => inner.children.len(),
        }
    }

    /// The number of elements below the node.
    fn len(&self) -> usize {
        match self {
            TreeNode::Leaf(leaf) => leaf.handles.len(),
            TreeNode::Inner(inner) => inner.n_below.iter().sum(),
        }
    }

    fn first(&self) -> EntryHandle {
        match self {
            TreeNode::Leaf(leaf) => leaf.handles[0],
            TreeNode::Inner(inner) => inner.firsts[0].handle,
        }
    }

    /// Adds an element. Returns the node that follows this one, if this one has split.
    fn insert(&mut self, handle: EntryHandle, element: Ranked<'_>, edit: &mut Edit<'_>) -> Option<TreeNode> {
        match self {
            TreeNode::Leaf(leaf) => leaf.insert(handle, element, edit).map(TreeNode::Leaf),
            TreeNode::Inner(inner) => inner.insert(handle, element, edit).map(TreeNode::Inner),
        }
    }

    /// Removes an element. The node may have too few items afterwards, which its parent corrects.
    fn remove(&mut self, target: &mut Target<'_>, edit: &mut Edit<'_>) -> EntryHandle {
        match self {
            TreeNode::Leaf(leaf) => leaf.remove(*target, edit),
            TreeNode::Inner(inner) => inner.remove(target, edit),
        }
    }
}

impl Leaf {
    fn of(handles: Vec<EntryHandle>, members: Members<'_>) -> Self {
        let mut leaf = Leaf { ruler: Ruler::default(), handles };
        leaf.rule(members);
        leaf
    }

    /// The number of elements before a place.
    fn position(&self, cut: Cut<'_>, members: Members<'_>) -> usize {
        let read = match cut.score() {
            Some(score) => self.marked(self.ruler.mark(score)),
            None => 0..self.handles.len(),
        };
        let is_before = |handle: &EntryHandle| {
            let element = members.at(*handle);
            cut.is_behind(|| element.score, |other| element.member.cmp(other))
        };
        read.start + self.handles[read].partition_point(is_before)
    }

    /// The range of the elements with a mark. Those before it have lower scores than any with the mark, those
    /// after it higher ones.
    #[inline]
    fn marked(&self, mark: u64) -> Range<usize> {
        let start = self.handles.partition_point(|handle| handle.spare() < mark);
        let rest = &self.handles[start..];
        match rest.first() {
            Some(first) if first.spare() == mark => {
                start..start + rest.partition_point(|handle| handle.spare() == mark)
            }
            _ => start..start,
        }
    }

    fn insert(&mut self, handle: EntryHandle, element: Ranked<'_>, edit: &mut Edit<'_>) -> Option<Leaf> {
        let mut right = (self.handles.len() == MAX).then(|| self.split(edit));
        let leaf = match &mut right {
            Some(right) if edit.members.at(right.handles[0]).order(element).is_lt() => right,
            _ => self,
        };
        let at = leaf.position(Cut::Before(Point::Element(element)), edit.members);
        let handle = handle.with_spare(leaf.ruler.mark(element.score));
        edit.insert(&mut leaf.handles, at, handle);
        right
    }

    fn split(&mut self, edit: &mut Edit<'_>) -> Leaf {
        let handles = edit.split_off(&mut self.handles, MAX / 2);
        let mut right = Leaf { ruler: self.ruler, handles };
        self.rule_anew(edit.members);
        right.rule_anew(edit.members);
        right
    }

    fn remove(&mut self, target: Target<'_>, edit: &mut Edit<'_>) -> EntryHandle {
        let at = match target {
            Target::Rank(rank) => rank,
            Target::Element(element, handle) => {
                let marked = self.marked(self.ruler.mark(element.score));
                let is_it = |other: &EntryHandle| other.is_of_entry_of(handle);
                let at = self.handles[marked.clone()].iter().position(is_it);
                marked.start + at.expect("an element is where the order has it")
            }
        };
        let taken = self.handles.remove(at);
        edit.give_back(&mut self.handles);
        taken
    }

    /// Lays the ruler over the scores, and marks all entries.
    fn rule(&mut self, members: Members<'_>) {
        let (Some(&first), Some(&last)) = (self.handles.first(), self.handles.last()) else { return };
        self.ruler = Ruler::over(members.at(first).score, members.at(last).score);
        for handle in &mut self.handles {
            *handle = handle.with_spare(self.ruler.mark(members.at(*handle).score));
        }
    }

    /// Lays the ruler again if its marks tell few entries apart.
    fn rule_anew(&mut self, members: Members<'_>) {
        let (first, last) = (self.handles[0], self.handles[self.handles.len() - 1]);
        let span = (last.spare() - first.spare()) >> (64 - SPARE_BITS);
        if span < SPAN_MIN && members.at(first).score < members.at(last).score {
            self.rule(members);
        }
    }

    /// Joins two neighbours, or shares out their items; returns whether all are in `self` now.
    fn level(&mut self, right: &mut Leaf, edit: &mut Edit<'_>) -> bool {
        let n_before = self.handles.len();
        let joined = edit.level(&mut self.handles, &mut right.handles);
        // To rule a leaf is to read all its entries: one that has only given some away keeps its marks.
        let (given_to, other) = if self.handles.len() > n_before { (self, right) } else { (right, self) };
        given_to.rule(edit.members);
        if !joined {
            other.rule_anew(edit.members);
        }
        joined
    }
}

impl Inner {
    fn of(children: Vec<TreeNode>, edit: &mut Edit<'_>) -> Box<Self> {
        let firsts: Vec<First> = children.iter().map(|child| edit.first_of(child)).collect();
        let n_below: Vec<usize> = children.iter().map(TreeNode::len).collect();
        edit.allocated_bytes += class_bytes(size_of::<Inner>());
        Box::new(Inner {
            firsts: edit.collect(firsts.into_iter()),
            n_below: edit.collect(n_below.into_iter()),
            children: edit.collect(children.into_iter()),
        })
    }

    /// The child in which a place is: the last one that begins before it, or the first.
    #[inline]
    fn child_before(&self, cut: Cut<'_>, members: Members<'_>) -> usize {
        self.firsts.partition_point(|first| first.is_before(cut, members)).saturating_sub(1)
    }

    /// The child with the element of a rank, which becomes the rank within the child.
    fn child_of_rank(&self, rank: &mut usize) -> usize {
        let mut at = 0;
        while *rank >= self.n_below[at] {
            *rank -= self.n_below[at];
            at += 1;
        }
        at
    }

    fn insert(
        &mut self,
        handle: EntryHandle,
        element: Ranked<'_>,
        edit: &mut Edit<'_>,
    ) -> Option<Box<Inner>> {
        let at = self.child_before(Cut::Before(Point::Element(element)), edit.members);
        let right = self.children[at].insert(handle, element, edit);
        self.n_below[at] += 1;
        self.note_first(at, edit);
        let right = right?;
        self.n_below[at] -= right.len();
        edit.insert(&mut self.firsts, at + 1, edit.first_of(&right));
        edit.insert(&mut self.n_below, at + 1, right.len());
        edit.insert(&mut self.children, at + 1, right);
        (self.children.len() == MAX).then(|| self.split(edit))
    }

    fn split(&mut self, edit: &mut Edit<'_>) -> Box<Inner> {
        let at = self.children.len() / 2;
        edit.allocated_bytes += class_bytes(size_of::<Inner>());
        Box::new(Inner {
            firsts: edit.split_off(&mut self.firsts, at),
            n_below: edit.split_off(&mut self.n_below, at),
            children: edit.split_off(&mut self.children, at),
        })
    }

    fn remove(&mut self, target: &mut Target<'_>, edit: &mut Edit<'_>) -> EntryHandle {
        let at = match target {
            Target::Rank(rank) => self.child_of_rank(rank),
            Target::Element(element, _) => {
                self.child_before(Cut::Behind(Point::Element(*element)), edit.members)
            }
        };
        let taken = self.children[at].remove(target, edit);
        self.n_below[at] -= 1;
        if self.children[at].width() < MIN {
            self.level_children(at.saturating_sub(1), edit);
        } else {
            self.note_first(at, edit);
        }
        taken
    }

    /// Joins the child at `at` and the next one, or shares out their items.
    fn level_children(&mut self, at: usize, edit: &mut Edit<'_>) {
        let [left, right] =
            self.children.get_disjoint_mut([at, at + 1]).expect("a node has two children or more");
        let joined = match (left, right) {
            (TreeNode::Leaf(left), TreeNode::Leaf(right)) => left.level(right, edit),
            (TreeNode::Inner(left), TreeNode::Inner(right)) => left.level(right, edit),
            _ => unreachable!("all leaves are equally deep"),
        };
        if joined {
            self.firsts.remove(at + 1);
            self.n_below.remove(at + 1);
            if let TreeNode::Inner(right) = self.children.remove(at + 1) {
                edit.release_inner(&right);
            }
            edit.give_back(&mut self.firsts);
            edit.give_back(&mut self.n_below);
            edit.give_back(&mut self.children);
        } else {
            self.n_below[at + 1] = self.children[at + 1].len();
            self.note_first(at + 1, edit);
        }
        self.n_below[at] = self.children[at].len();
        self.note_first(at, edit);
    }

    /// As [`Leaf::level`].
    fn level(&mut self, right: &mut Inner, edit: &mut Edit<'_>) -> bool {
        edit.level(&mut self.firsts, &mut right.firsts);
        edit.level(&mut self.n_below, &mut right.n_below);
        edit.level(&mut self.children, &mut right.children)
    }

    /// Updates the first element below a child, if it has changed.
    #[inline]
    fn note_first(&mut self, at: usize, edit: &Edit<'_>) {
        if !self.children[at].first().is_of_entry_of(self.firsts[at].handle) {
            self.firsts[at] = edit.first_of(&self.children[at]);
        }
    }
}

/// A change under way: the entries that it may read, and the bytes of the tree, which it counts. All vectors
/// of a tree get their room here.
struct Edit<'m> {
    members: Members<'m>,
    allocated_bytes: usize,
}

impl Edit<'_> {
    fn first_of(&self, node: &TreeNode) -> First {
        match node {
            TreeNode::Leaf(leaf) => First::of(leaf.handles[0], self.members),
            TreeNode::Inner(inner) => inner.firsts[0],
        }
    }

    fn collect<T>(&mut self, items: impl ExactSizeIterator<Item = T>) -> Vec<T> {
        let mut vec = Vec::with_capacity(capacity_for::<T>(items.len()));
        self.allocated_bytes += bytes_of(&vec);
        vec.extend(items);
        vec
    }

    fn insert<T>(&mut self, vec: &mut Vec<T>, at: usize, item: T) {
        self.make_room(vec, 1);
        vec.insert(at, item);
    }

    fn make_room<T>(&mut self, vec: &mut Vec<T>, n_more: usize) {
        let len = vec.len() + n_more;
        if len > vec.capacity() {
            self.allocated_bytes -= bytes_of(vec);
            vec.reserve_exact(capacity_for::<T>(len) - vec.len());
            self.allocated_bytes += bytes_of(vec);
        }
    }

    /// Takes off the items from `at` on. Neither half has more room than it needs.
    fn split_off<T>(&mut self, vec: &mut Vec<T>, at: usize) -> Vec<T> {
        let tail = self.collect(vec.drain(at..));
        self.fit(vec);
        tail
    }

    /// Frees room, if there is much.
    fn give_back<T>(&mut self, vec: &mut Vec<T>) {
        if vec.capacity() > capacity_for::<T>(vec.len() + ROOM_MAX) {
            self.fit(vec);
        }
    }

    /// Moves the items to an allocation with just enough room. `shrink_to` would not do: allocators leave a
    /// block that shrinks to a half in place.
    fn fit<T>(&mut self, vec: &mut Vec<T>) {
        if vec.capacity() > capacity_for::<T>(vec.len()) {
            let items = std::mem::take(vec);
            self.release(&items);
            *vec = self.collect(items.into_iter());
        }
    }

    /// Joins neighbours, or gives each a half of their items; returns whether it has joined them.
    fn level<T>(&mut self, left: &mut Vec<T>, right: &mut Vec<T>) -> bool {
        let total = left.len() + right.len();
        let joins = total <= JOIN_MAX;
        let n_left = if joins { total } else { total / 2 };
        if left.len() < n_left {
            let n_moved = n_left - left.len();
            self.make_room(left, n_moved);
            left.extend(right.drain(..n_moved));
        } else {
            let n_moved = left.len() - n_left;
            self.make_room(right, n_moved);
            right.splice(..0, left.drain(n_left..));
        }
        if joins {
            self.release(right);
            *right = Vec::new();
        } else {
            self.give_back(right);
        }
        self.give_back(left);
        joins
    }

    /// Counts a vector that is dropped.
    fn release<T>(&mut self, vec: &Vec<T>) {
        self.allocated_bytes -= bytes_of(vec);
    }

    /// Counts an inner node that is dropped.
    fn release_inner(&mut self, inner: &Inner) {
        self.release(&inner.firsts);
        self.release(&inner.n_below);
        self.release(&inner.children);
        self.allocated_bytes -= class_bytes(size_of::<Inner>());
    }
}

/// Divides items into as few parts of at most [`FRESH`] as there must be, all about as large.
fn even_chunks<T, N>(
    items: Vec<T>,
    mut make: impl FnMut(std::iter::Take<&mut std::vec::IntoIter<T>>) -> N,
) -> Vec<N> {
    let len = items.len();
    let n_chunks = len.div_ceil(FRESH);
    let mut items = items.into_iter();
    (0..n_chunks)
        .map(|nth| make(items.by_ref().take(len * (nth + 1) / n_chunks - len * nth / n_chunks)))
        .collect()
}

/// The number of items that fit where the allocator puts `len` of them.
fn capacity_for<T>(len: usize) -> usize {
    if len == 0 { 0 } else { class_bytes(len * size_of::<T>()) / size_of::<T>() }
}

fn bytes_of<T>(vec: &Vec<T>) -> usize {
    if vec.capacity() == 0 { 0 } else { class_bytes(vec.capacity() * size_of::<T>()) }
}

/// A line from scores to marks that keeps the order of the scores.
///
/// Subtracting a number and multiplying by a positive one keep the order of doubles, whatever is rounded, and
/// so does cutting off at both ends. Both numbers are finite and the factor is positive, so that infinite
/// scores make no NaN.
#[derive(Clone, Copy)]
struct Ruler {
    start: f64,
    marks_a_unit: f64,
}

impl Ruler {
    const N_MARKS: u64 = 1 << SPARE_BITS;

    /// A ruler whose middle half lies over these scores.
    fn over(low: f64, high: f64) -> Self {
        let (low, high) = (low.clamp(f64::MIN, f64::MAX), high.clamp(f64::MIN, f64::MAX));
        let half = (Self::N_MARKS / 2) as f64;
        let marks_a_unit = (half / (high - low)).clamp(f64::MIN_POSITIVE, f64::MAX);
        Ruler { start: (low - half / 2.0 / marks_a_unit).max(f64::MIN), marks_a_unit }
    }

    /// The mark of a score, in the top bits.
    #[inline]
    fn mark(self, score: f64) -> u64 {
        // The cast goes to the nearest number that exists, so scores before the start have the first mark.
        let mark = ((score - self.start) * self.marks_a_unit) as u64;
        mark.min(Self::N_MARKS - 1) << (64 - SPARE_BITS)
    }
}

impl Default for Ruler {
    fn default() -> Self {
        Ruler::over(0.0, 1.0)
    }
}

/// The elements of some ranks, from both ends.
#[derive(Clone)]
pub(super) struct Walk<'a> {
    tree: &'a Tree,
    /// The ranks that are left.
    ranks: Range<usize>,
    /// The rest of the leaf at the front; may go beyond the ranks.
    front: slice::Iter<'a, EntryHandle>,
    /// The rest of the leaf at the back; may go beyond the ranks.
    back: slice::Iter<'a, EntryHandle>,
}

impl Iterator for Walk<'_> {
    type Item = EntryHandle;

    #[inline]
    fn next(&mut self) -> Option<EntryHandle> {
        if self.ranks.is_empty() {
            return None;
        }
        if self.front.as_slice().is_empty() {
            let (leaf, at) = self.tree.leaf_of(self.ranks.start);
            self.front = leaf[at..].iter();
        }
        if let Some(ahead) = self.front.as_slice().get(AHEAD) {
            prefetch::for_read(ahead.address());
        }
        self.ranks.start += 1;
        self.front.next().copied()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ranks.len(), Some(self.ranks.len()))
    }
}

impl DoubleEndedIterator for Walk<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<EntryHandle> {
        if self.ranks.is_empty() {
            return None;
        }
        self.ranks.end -= 1;
        if self.back.as_slice().is_empty() {
            let (leaf, at) = self.tree.leaf_of(self.ranks.end);
            self.back = leaf[..=at].iter();
        }
        let rest = self.back.as_slice();
        if rest.len() > AHEAD {
            prefetch::for_read(rest[rest.len() - 1 - AHEAD].address());
        }
        self.back.next_back().copied()
    }
}

impl ExactSizeIterator for Walk<'_> {}

#[cfg(test)]
impl Tree {
    /// Panics unless all invariants of the structure hold. Returns the number of leaves.
    pub(super) fn check(&self, members: Members<'_>) -> usize {
        let mut seen = Seen { previous: None, allocated_bytes: 0, n_leaves: 0, depth: None };
        let len = self.root.check(0, &mut seen, members);
        assert_eq!((self.len, self.allocated_bytes), (len, seen.allocated_bytes));
        assert!(
            self.root.width() != 1 || matches!(self.root, TreeNode::Leaf(_)),
            "a root with one child is no use"
        );
        seen.n_leaves
    }

    /// The number of different marks, leaf by leaf.
    pub(super) fn n_marks(&self) -> usize {
        let mut walk = self.walk(0..self.len);
        let mut n_marks = 0;
        let mut last = None;
        while let Some(handle) = walk.next() {
            n_marks += usize::from(last != Some(handle.spare()));
            last = (!walk.front.as_slice().is_empty()).then_some(handle.spare());
        }
        n_marks
    }
}

#[cfg(test)]
struct Seen {
    previous: Option<EntryHandle>,
    allocated_bytes: usize,
    n_leaves: usize,
    depth: Option<usize>,
}

#[cfg(test)]
impl TreeNode {
    fn check(&self, depth: usize, seen: &mut Seen, members: Members<'_>) -> usize {
        assert!(depth == 0 || self.width() >= MIN, "{} items", self.width());
        match self {
            TreeNode::Leaf(leaf) => {
                assert!(leaf.handles.len() <= MAX);
                assert_eq!(*seen.depth.get_or_insert(depth), depth, "all leaves are equally deep");
                let handles = &leaf.handles;
                assert!(handles.capacity() <= capacity_for::<EntryHandle>(handles.len() + ROOM_MAX));
                seen.allocated_bytes += bytes_of(handles);
                seen.n_leaves += 1;
                for &handle in handles {
                    let element = members.at(handle);
                    assert_eq!(handle.spare(), leaf.ruler.mark(element.score), "marks are the ruler's");
                    if let Some(previous) = seen.previous.replace(handle) {
                        assert!(members.at(previous).order(element).is_lt(), "elements ascend");
                    }
                }
                handles.len()
            }
            TreeNode::Inner(inner) => {
                let n = inner.children.len();
                assert!(n < MAX && inner.firsts.len() == n && inner.n_below.len() == n);
                seen.allocated_bytes += class_bytes(size_of::<Inner>())
                    + bytes_of(&inner.firsts)
                    + bytes_of(&inner.n_below)
                    + bytes_of(&inner.children);
                for ((child, first), &n_below) in inner.children.iter().zip(&inner.firsts).zip(&inner.n_below)
                {
                    assert!(first.handle.is_of_entry_of(child.first()));
                    assert_eq!(first.score, members.at(first.handle).score);
                    assert_eq!(child.check(depth + 1, seen, members), n_below);
                }
                inner.n_below.iter().sum()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_in_its_node_is_64_bytes() {
        assert_eq!(size_of::<TreeNode>() + size_of::<First>() + size_of::<usize>(), 64);
    }

    #[test]
    fn marks_never_go_against_the_order_of_scores() {
        let scores = [
            f64::NEG_INFINITY,
            f64::MIN,
            -1e300,
            -1e9,
            -2.5,
            -1.0,
            -f64::MIN_POSITIVE,
            -5e-324,
            0.0,
            5e-324,
            f64::MIN_POSITIVE,
            1e-300,
            0.1,
            0.1 + f64::EPSILON,
            1.0,
            1.0 + f64::EPSILON,
            2.5,
            1e9,
            1e9 + 1.0,
            1e300,
            f64::MAX,
            f64::INFINITY,
        ];
        for (nth, &low) in scores.iter().enumerate() {
            for &high in &scores[nth..] {
                let ruler = Ruler::over(low, high);
                let marks = scores.map(|score| ruler.mark(score));
                assert!(marks.is_sorted(), "{low} to {high}: {marks:?}");
                assert_eq!(ruler.mark(-0.0), ruler.mark(0.0));
            }
        }
    }

    #[test]
    fn a_ruler_tells_a_hundred_even_scores_apart() {
        for (low, step) in [(0.0, 1.0), (1e9, 1.0), (-1.0, 1e-9), (1.7e12, 1000.0), (-1e308, 1e306)] {
            let scores: Vec<f64> = (0..100).map(|i| low + f64::from(i) * step).collect();
            let ruler = Ruler::over(scores[0], scores[99]);
            let mut marks: Vec<u64> = scores.iter().map(|&score| ruler.mark(score)).collect();
            marks.dedup();
            assert_eq!(marks.len(), 100, "{low} by {step}");
        }
    }
}
