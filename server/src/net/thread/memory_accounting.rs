//! The memory of the thread's connections, for `maxmemory-clients`.

use crate::{client::connection::Connection, notify::notifications::ConnectionSlot};

use super::IoThread;

impl IoThread {
    /// Updates a connection's memory after its turn.
    ///
    /// If it has grown, and all clients now use too much, the largest are closed. This one may be among them,
    /// and is found killed then.
    #[inline]
    pub(super) fn count_memory(&mut self, connection: &mut Connection) {
        let bytes = connection.publish_footprint();
        let before = std::mem::replace(&mut connection.counted_bytes, bytes);
        if bytes != before {
            self.add_memory(bytes, before);
            self.count_incoming(connection, connection.incoming_bytes());
        }
    }

    fn count_incoming(&self, connection: &mut Connection, bytes: u64) {
        let before = std::mem::replace(&mut connection.counted_incoming, bytes);
        if bytes != before {
            self.server().memory.note_incoming(before, bytes);
        }
    }

    /// Does [`IoThread::count_memory`] for a connection in its slot.
    pub(super) fn count_memory_at(&mut self, place: ConnectionSlot) {
        if let Some(mut connection) = self.connections.take(place) {
            self.count_memory(&mut connection);
            self.connections.put_back(place, connection);
        }
    }

    /// Removes a leaving connection from the count.
    pub(super) fn uncount_memory(&mut self, connection: &mut Connection) {
        let before = std::mem::take(&mut connection.counted_bytes);
        self.add_memory(0, before);
        self.count_incoming(connection, 0);
    }

    fn add_memory(&self, bytes: u64, before: u64) {
        let server = self.server();
        let all = &server.threads[self.worker.thread.index].client_bytes;
        all.sub(before);
        all.add(bytes);
        if bytes > before
            && self.own.clients_limit != u64::MAX
            && server.client_bytes() > self.own.clients_limit
        {
            server.limit_clients(&self.worker.thread);
        }
    }
}
