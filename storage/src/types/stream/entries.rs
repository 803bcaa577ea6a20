//! The entries of a stream, in nodes, and the record of former entries.

use std::{
    collections::{BTreeMap, btree_map},
    iter::Rev,
    ops::Bound,
};

use smallvec::SmallVec;

use super::{
    StreamId,
    node::{Backwards, Entry, Fate, Forwards, PackedNode},
};
use crate::{
    entry::{class_bytes, time::Millis},
    memory::{
        reclaim,
        teardown::{Pieces, Rubble},
    },
    types::{
        packed::{Element, PACKED_MAX_BYTES},
        thresholds::Thresholds,
    },
};

/// The cost of a node in the tree apart from its own allocation: a tree that grows at its end is little more
/// than half full.
const NODE_TREE_BYTES: usize = 2 * (size_of::<StreamId>() + size_of::<PackedNode>());

/// Which identity a new entry is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewId {
    /// The time, and the next number if there are entries of this time already.
    Auto,
    /// This time, and the next number.
    AutoSeq {
        /// Milliseconds since the Unix epoch.
        ms: u64,
    },
    /// Exactly this one.
    Given(StreamId),
}

/// Why an entry was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// The last entry has the greatest identity there is.
    Exhausted,
    /// The last entry's identity is not less.
    NotGreater,
    /// Fields and values are longer than a node may be.
    TooLarge,
}

/// Which entries are to go from the start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimTo {
    /// As long as there are more than this many.
    Len(u64),
    /// Those before this one.
    Id(StreamId),
}

/// The precision of a trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// To the entry.
    Exact,
    /// To the node: entries whose removal would leave a node stay.
    Nodes,
}

/// The way in which a stream is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// The entries that go.
    pub to: TrimTo,
    /// The precision.
    pub precision: Precision,
    /// The most entries to remove; no bound if there is none.
    pub limit: Option<u64>,
    /// The treatment of consumer groups.
    pub references: References,
}

/// The treatment of consumer groups that have yet to deal with a removed entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum References {
    /// They keep it among their pending entries.
    #[default]
    Keep,
    /// They forget it.
    Delete,
    /// The entry stays, as long as there are any.
    Obey,
}

/// Entries in order of their identity.
#[derive(Clone, Default)]
pub struct Entries {
    /// By the identity of the first entry that the node has had.
    nodes: BTreeMap<StreamId, PackedNode>,
    n_live: u64,
    first: StreamId,
    last: StreamId,
    max_deleted: StreamId,
    n_added: u64,
    node_bytes: usize,
}

impl Entries {
    /// Takes the entries apart, to be freed in steps.
    pub(super) fn demolish(self) -> Box<dyn Rubble> {
        Pieces::boxed(self.nodes.into_iter(), |(_, node)| free_node(node))
    }

    /// The number of entries.
    pub fn len(&self) -> u64 {
        self.n_live
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n_live == 0
    }

    /// The identity of the first one, or the least of all if there is none.
    pub fn first_id(&self) -> StreamId {
        self.first
    }

    /// The greatest identity that was given out, deleted or not.
    pub fn last_id(&self) -> StreamId {
        self.last
    }

    /// The greatest identity that was deleted, not trimmed.
    pub fn max_deleted_id(&self) -> StreamId {
        self.max_deleted
    }

    /// The number of entries that were ever added.
    pub fn n_added(&self) -> u64 {
        self.n_added
    }

    /// The nodes, with their keys in the tree.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (StreamId, &PackedNode)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// The bytes that are allocated.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.node_bytes
    }

    /// The identity of the last existing entry.
    pub fn last_live_id(&self) -> Option<StreamId> {
        self.range_backwards(StreamId::MIN, StreamId::MAX).next().map(|entry| entry.id())
    }

    /// Whether there is an entry after `id`.
    pub fn has_after(&self, id: StreamId) -> bool {
        !self.is_empty() && self.last_live_id().is_some_and(|last| last > id)
    }

    /// The one of this identity.
    pub fn get(&self, id: StreamId) -> Option<Entry<'_>> {
        self.range(id, id).next()
    }

    /// Prepares to look up many entries, one after the other.
    pub fn look_ups(&self) -> LookUps<'_> {
        LookUps { entries: self, asked: None, node: None, next_node: None, met: None }
    }

    /// Those from one identity to another, both included.
    pub fn range(&self, from: StreamId, to: StreamId) -> Range<'_> {
        Range { nodes: self.nodes_between(from, to), node: None, from, to }
    }

    /// The same, from the last to the first.
    pub fn range_backwards(&self, from: StreamId, to: StreamId) -> RangeBackwards<'_> {
        RangeBackwards { nodes: self.nodes_between(from, to).rev(), node: None, from, to }
    }

    /// The approximate number of entries from one identity to another: those of all nodes that have some,
    /// with deleted ones. Stops counting at `enough`.
    pub fn about_between(&self, from: StreamId, to: StreamId, enough: usize) -> usize {
        let mut n = 0;
        for (_, node) in self.nodes_between(from, to) {
            n += node.n_live() + node.n_deleted();
            if n >= enough {
                break;
            }
        }
        n
    }

    /// The nodes in which entries of these identities are.
    fn nodes_between(&self, from: StreamId, to: StreamId) -> btree_map::Range<'_, StreamId, PackedNode> {
        if from > to {
            return self.nodes.range(to..to);
        }
        let start = self.nodes.range(..=from).next_back().map_or(from, |(id, _)| *id);
        self.nodes.range(start..=to)
    }

    /// Adds an entry of these names and values in turn at the end.
    ///
    /// # Errors
    /// If there is no identity for it, or it is too large.
    pub fn add<'f>(
        &mut self,
        new_id: NewId,
        fields: impl Iterator<Item = &'f [u8]>,
        now: Millis,
        thresholds: &Thresholds,
    ) -> Result<StreamId, AddError> {
        let id = self.next_id(new_id, now)?;
        let mut text_bytes = 0;
        let fields: SmallVec<[Element<'_>; 16]> =
            fields.inspect(|text| text_bytes += text.len()).map(Element::of).collect();
        if text_bytes > PACKED_MAX_BYTES {
            return Err(AddError::TooLarge);
        }
        let mut last_node = self.nodes.last_entry();
        match last_node.as_mut().filter(|node| has_room(node.get(), text_bytes, thresholds)) {
            Some(node) => {
                let node_id = *node.key();
                let bytes_before = heap_bytes(node.get());
                node.get_mut().push(node_id, id, &fields);
                self.node_bytes += heap_bytes(node.get()) - bytes_before;
            }
            None => {
                if let Some(full) = &mut last_node {
                    self.node_bytes -= heap_bytes(full.get());
                    full.get_mut().shrink();
                    self.node_bytes += heap_bytes(full.get());
                }
                let node = PackedNode::new(&fields);
                self.node_bytes += heap_bytes(&node) + NODE_TREE_BYTES;
                self.nodes.insert(id, node);
            }
        }
        self.last = id;
        self.n_added = self.n_added.wrapping_add(1);
        self.n_live += 1;
        if self.n_live == 1 {
            self.first = id;
        }
        Ok(id)
    }

    /// The identity of the next entry.
    fn next_id(&self, new_id: NewId, now: Millis) -> Result<StreamId, AddError> {
        let last = self.last;
        if last == StreamId::MAX {
            return Err(AddError::Exhausted);
        }
        let id = match new_id {
            NewId::Given(id) => Some(id),
            NewId::AutoSeq { ms } if ms == last.ms => {
                last.seq.checked_add(1).map(|seq| StreamId::new(ms, seq))
            }
            NewId::AutoSeq { ms } => Some(StreamId::new(ms, 0)),
            NewId::Auto if now.0 > last.ms => Some(StreamId::new(now.0, 0)),
            NewId::Auto => last.next(),
        };
        id.filter(|id| *id > last).ok_or(AddError::NotGreater)
    }

    /// Deletes the entry of this identity; returns whether there was one.
    pub(super) fn delete(&mut self, id: StreamId) -> bool {
        let Some((&node_id, node)) = self.nodes.range_mut(..=id).next_back() else { return false };
        let bytes_before = heap_bytes(node);
        let n_gone = node.sift(node_id, |live| match live.cmp(&id) {
            std::cmp::Ordering::Less => Fate::Stays,
            std::cmp::Ordering::Equal => Fate::Goes,
            std::cmp::Ordering::Greater => Fate::Ends,
        });
        if n_gone == 0 {
            return false;
        }
        self.node_bytes = self.node_bytes - bytes_before + heap_bytes(node);
        if node.n_live() == 0 {
            self.remove_node(node_id);
        }
        self.n_live -= 1;
        self.max_deleted = self.max_deleted.max(id);
        if id == self.first {
            self.find_first(id);
        }
        true
    }

    /// Removes entries from the start; returns how many. `may_go` decides about each if it is `Some`.
    pub(super) fn trim(&mut self, trim: &Trim, mut may_go: Option<&mut dyn FnMut(StreamId) -> bool>) -> u64 {
        let (n_before, bytes_before) = (self.n_live, self.node_bytes);
        let mut removed = Vec::new();
        let mut from = Bound::Unbounded;
        while let Some((&node_id, node)) = self.nodes.range_mut((from, Bound::Unbounded)).next() {
            let n_in_node = node.n_live() as u64;
            let n_gone = n_before - self.n_live;
            if trim.is_done(self.n_live) || trim.limit.is_some_and(|limit| n_gone + n_in_node > limit) {
                break;
            }
            let takes_all = match trim.to {
                TrimTo::Len(len) => self.n_live - n_in_node >= len,
                TrimTo::Id(id) => node.entries_backwards(node_id).next().is_some_and(|last| last.id() < id),
            };
            if may_go.is_none() && takes_all {
                self.n_live -= n_in_node;
            } else if may_go.is_none() && trim.precision == Precision::Nodes {
                break;
            } else {
                let n_live = &mut self.n_live;
                let bytes_before = heap_bytes(node);
                node.sift(node_id, |id| {
                    if trim.is_done(*n_live) || trim.spares(id) {
                        Fate::Ends
                    } else if may_go.as_mut().is_some_and(|may_go| !may_go(id)) {
                        Fate::Stays
                    } else {
                        *n_live -= 1;
                        Fate::Goes
                    }
                });
                self.node_bytes = self.node_bytes - bytes_before + heap_bytes(node);
                if !takes_all {
                    break;
                }
                if node.n_live() > 0 {
                    from = Bound::Excluded(node_id);
                    continue;
                }
            }
            removed.extend(self.remove_node(node_id));
        }
        reclaim::free_part(removed, bytes_before.saturating_sub(self.node_bytes), |removed| {
            Pieces::boxed(removed.into_iter(), free_node)
        });
        let n_removed = n_before - self.n_live;
        if n_removed > 0 {
            self.find_first(self.first);
        }
        n_removed
    }

    fn remove_node(&mut self, node_id: StreamId) -> Option<PackedNode> {
        let node = self.nodes.remove(&node_id)?;
        self.node_bytes -= heap_bytes(&node) + NODE_TREE_BYTES;
        Some(node)
    }

    /// Finds the first entry. It is not before `from`.
    fn find_first(&mut self, from: StreamId) {
        let first = self.range(from, StreamId::MAX).next();
        self.first = first.map_or(StreamId::MIN, |entry| entry.id());
    }

    /// Adds a node from elsewhere, if its entries are after all existing ones. A node whose entries are all
    /// deleted is left out, since readers would have to pass it.
    pub(crate) fn append_node(&mut self, node_id: StreamId, node: PackedNode) -> Option<()> {
        if self.n_live > 0 && self.last >= node_id {
            return None;
        }
        let live = |entry: &Entry<'_>| !entry.is_deleted();
        let (Some(first), Some(last)) =
            (node.entries(node_id).find(live), node.entries_backwards(node_id).find(live))
        else {
            return Some(());
        };
        self.last = last.id();
        if self.n_live == 0 {
            self.first = first.id();
        }
        self.n_live += node.n_live() as u64;
        self.node_bytes += heap_bytes(&node) + NODE_TREE_BYTES;
        self.nodes.insert(node_id, node);
        Some(())
    }

    /// Sets the record of former entries.
    pub(crate) fn set_last_id(
        &mut self,
        last: StreamId,
        n_added: Option<u64>,
        max_deleted: Option<StreamId>,
    ) {
        self.last = last;
        self.n_added = n_added.unwrap_or(self.n_added);
        self.max_deleted = max_deleted.unwrap_or(self.max_deleted);
    }

    /// Whether entries were deleted from `from` on, by the record.
    pub(super) fn has_gaps_from(&self, from: StreamId) -> bool {
        !self.is_empty() && self.max_deleted != StreamId::MIN && self.max_deleted >= from
    }

    /// The number of entries that had been added when the one of this identity was, if it is known.
    pub(crate) fn n_added_until(&self, id: StreamId) -> Option<u64> {
        if self.n_added == 0 {
            return Some(0);
        }
        if id == self.last || (self.is_empty() && id < self.last) {
            return Some(self.n_added);
        }
        let is_past_gaps = self.max_deleted == StreamId::MIN || self.max_deleted < self.first;
        if id > self.last || id < self.max_deleted || !is_past_gaps || id > self.first {
            return None;
        }
        let n_gone = self.n_added.saturating_sub(self.n_live);
        Some(n_gone + u64::from(id == self.first))
    }
}

impl Trim {
    fn is_done(&self, len: u64) -> bool {
        matches!(self.to, TrimTo::Len(len_max) if len <= len_max)
    }

    pub(super) fn spares(&self, id: StreamId) -> bool {
        matches!(self.to, TrimTo::Id(least) if id >= least)
    }
}

/// Frees a node, later if it is very long; returns the number of bytes that it has freed at once.
fn free_node(node: PackedNode) -> usize {
    let bytes = heap_bytes(&node);
    reclaim::free_piece(node, bytes)
}

fn heap_bytes(node: &PackedNode) -> usize {
    class_bytes(node.capacity())
}

/// Whether a node takes another entry with this many bytes of texts.
fn has_room(node: &PackedNode, text_bytes: usize, thresholds: &Thresholds) -> bool {
    let max_bytes = match thresholds.stream_node_max_bytes() {
        1..=PACKED_MAX_BYTES => thresholds.stream_node_max_bytes(),
        _ => PACKED_MAX_BYTES,
    };
    let max_entries = thresholds.stream_node_max_entries();
    node.bytes().len() + text_bytes < max_bytes
        && (max_entries == 0 || node.n_live() + node.n_deleted() < max_entries)
}

/// Some entries of a stream, in order.
#[derive(Clone)]
pub struct Range<'a> {
    nodes: btree_map::Range<'a, StreamId, PackedNode>,
    node: Option<Forwards<'a>>,
    from: StreamId,
    to: StreamId,
}

impl<'a> Iterator for Range<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            for entry in self.node.iter_mut().flatten().filter(|entry| !entry.is_deleted()) {
                if entry.id() > self.to {
                    // No node is left: each begins after the entries before it.
                    break;
                }
                if entry.id() >= self.from {
                    return Some(entry);
                }
            }
            let (id, node) = self.nodes.next()?;
            self.node = Some(node.entries(*id));
        }
    }
}

/// Some entries of a stream, from the last to the first.
#[derive(Clone)]
pub struct RangeBackwards<'a> {
    nodes: Rev<btree_map::Range<'a, StreamId, PackedNode>>,
    node: Option<Backwards<'a>>,
    from: StreamId,
    to: StreamId,
}

impl<'a> Iterator for RangeBackwards<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            for entry in self.node.iter_mut().flatten().filter(|entry| !entry.is_deleted()) {
                if entry.id() < self.from {
                    // This is the first node of the range.
                    break;
                }
                if entry.id() <= self.to {
                    return Some(entry);
                }
            }
            let (id, node) = self.nodes.next()?;
            self.node = Some(node.entries_backwards(*id));
        }
    }
}

/// Looks entries up by identity. Entries of a node lie one after the other and must be passed over to find
/// one. So ordered look-ups need one pass over each node.
pub struct LookUps<'a> {
    entries: &'a Entries,
    /// The last identity that was looked up; none if it was before the first node.
    asked: Option<StreamId>,
    /// The rest of the node in which it would be.
    node: Option<Forwards<'a>>,
    /// The key of the next node in the tree.
    next_node: Option<StreamId>,
    /// The first entry of the node that is not before the identity.
    met: Option<Entry<'a>>,
}

impl<'a> LookUps<'a> {
    /// The one of this identity.
    pub fn get(&mut self, id: StreamId) -> Option<Entry<'a>> {
        let is_ahead = self.asked.is_some_and(|asked| asked <= id);
        if !is_ahead || self.next_node.is_some_and(|next| next <= id) {
            *self = self.entries.look_ups();
            let (&node_id, node) = self.entries.nodes.range(..=id).next_back()?;
            self.node = Some(node.entries(node_id));
            let after = (Bound::Excluded(node_id), Bound::Unbounded);
            self.next_node = self.entries.nodes.range(after).next().map(|(next, _)| *next);
            self.met = self.next_live();
        }
        self.asked = Some(id);
        while self.met.is_some_and(|met| met.id() < id) {
            self.met = self.next_live();
        }
        self.met.filter(|met| met.id() == id)
    }

    fn next_live(&mut self) -> Option<Entry<'a>> {
        self.node.iter_mut().flatten().find(|entry| !entry.is_deleted())
    }
}
