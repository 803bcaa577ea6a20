//! The slots of a thread's connections.

use slab::Slab;

use crate::client::{connection::Connection, id::ClientId};

/// The thread's connections, by slot.
///
/// A connection is taken out of its slot while it is served. A connection that has closed keeps its slot
/// until its node has released the subscriptions. So no node and no message reaches a later connection.
#[derive(Default)]
pub(super) struct Slots(Slab<Option<Box<Connection>>>);

impl Slots {
    /// The slot that the next connection gets.
    pub(super) fn next(&self) -> usize {
        self.0.vacant_key()
    }

    /// Adds a connection, and returns its slot.
    pub(super) fn insert(&mut self, connection: Box<Connection>) -> usize {
        self.0.insert(Some(connection))
    }

    /// Makes a slot vacant, and returns the connection in it.
    pub(super) fn remove(&mut self, slot: usize) -> Option<Box<Connection>> {
        self.0.remove(slot)
    }

    /// The connection in a slot, unless it is being served or has closed.
    pub(super) fn get(&self, slot: usize) -> Option<&Connection> {
        self.0.get(slot)?.as_deref()
    }

    /// The same, for changes.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        self.0.get_mut(slot)?.as_deref_mut()
    }

    /// A client's connection, if it still has this slot.
    pub(super) fn of_client(&mut self, slot: usize, id: ClientId) -> Option<&mut Connection> {
        self.get_mut(slot).filter(|connection| connection.record.id == id)
    }

    /// A connection with a command under way. Such a connection is in its slot.
    ///
    /// # Panics
    /// If the slot is vacant.
    pub(super) fn parked(&mut self, slot: usize) -> &mut Connection {
        self.get_mut(slot).expect("a connection is in its slot while parked")
    }

    /// Whether a parked connection closes, or its client has left.
    pub(super) fn has_left(&self, slot: usize) -> bool {
        self.get(slot).is_none_or(|connection| connection.is_closing() || connection.peer_closed)
    }

    /// Takes a connection out of its slot, to serve or to close it.
    #[inline]
    pub(super) fn take(&mut self, slot: usize) -> Option<Box<Connection>> {
        self.0.get_mut(slot)?.take()
    }

    /// Returns a connection to its slot.
    #[inline]
    pub(super) fn put_back(&mut self, slot: usize, connection: Box<Connection>) {
        self.0[slot] = Some(connection);
    }

    /// One more than the highest slot that has ever been used.
    pub(super) fn n_slots(&self) -> usize {
        self.0.capacity()
    }

    /// Iterates over the connections that are in their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Connection)> {
        self.0.iter().filter_map(|(slot, connection)| Some((slot, connection.as_deref()?)))
    }

    /// The same, for changes.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.0.iter_mut().filter_map(|(_, connection)| connection.as_deref_mut())
    }
}
