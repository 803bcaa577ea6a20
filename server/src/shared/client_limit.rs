//! `maxmemory-clients`: the largest clients are closed while all together use too much memory.
//!
//! Each thread counts the memory of its own connections, each after its turn, in a number that other threads
//! read. A thread that finds a connection grown adds up these few numbers. Only if the sum is too large are
//! all clients checked, and the largest of them closed, on any thread. Redis keeps its clients in order of
//! size at all times. Here there is no order, which threads would have to share.

use std::sync::{PoisonError, atomic::Ordering};

use crate::{
    client::record::{ClientRecord, Listens},
    config::{Amount, Config},
    log::{self, Level},
    shared::{server::Server, thread_state::ThreadState},
};

/// The minimum limit without `maxmemory-clients`, twice the longest argument.
///
/// The limit is `maxmemory` if that is larger.
const UNSAID_LEAST: u64 = 1 << 30;

/// Returns the limit of all clients' memory, in bytes.
///
/// This memory does not count against `maxmemory`, so with that there is always a limit. A part of no limit
/// is none.
pub fn clients_limit(config: &Config) -> u64 {
    limit_of(config.maxmemory_clients, config.maxmemory)
}

fn limit_of(clients: Amount, maxmemory: Option<u64>) -> u64 {
    match (clients, maxmemory) {
        (Amount::Bytes(bytes), _) => bytes,
        (Amount::OfMaxmemory(percent), Some(maxmemory)) => {
            maxmemory / 100 * percent + maxmemory % 100 * percent / 100
        }
        (Amount::Unsaid, Some(maxmemory)) => maxmemory.max(UNSAID_LEAST),
        (Amount::Unsaid | Amount::OfMaxmemory(_), None) => u64::MAX,
    }
}

impl Server {
    /// The memory of all clients, without those that are being closed because of it.
    pub fn client_bytes(&self) -> u64 {
        let all = self.threads.iter().map(|peer| peer.client_bytes.get()).fold(0, u64::wrapping_add);
        all.saturating_sub(self.leaving_bytes.load(Ordering::Relaxed))
    }

    /// Closes clients while all together use more than `maxmemory-clients`, the largest first.
    #[cold]
    pub fn limit_clients(&self, thread: &ThreadState) {
        let limit = clients_limit(&self.config.load());
        if self.client_bytes() <= limit {
            return;
        }
        // Two threads at once would close twice as many as necessary.
        let _turn = self.limiting_clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Killed clients are freed by now, or will be.
        let clients = self.clients.all().into_iter().filter(|client| !client.is_killed());
        let mut clients: Vec<_> = clients.map(|client| (client.footprint.sum(), client)).collect();
        let mut all: u64 = clients.iter().map(|(bytes, _)| bytes).sum();
        clients.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (bytes, client) in clients {
            if all <= limit {
                break;
            }
            if client.no_evict.load(Ordering::Relaxed) || client.listens(Listens::ToStream) {
                continue;
            }
            self.leaving_bytes.fetch_add(bytes, Ordering::Relaxed);
            client.leaving_bytes.store(bytes, Ordering::Relaxed);
            // This comes before the client is missed.
            thread.stats().evicted_clients.add(1);
            if self.kill(client.id, thread) {
                let (id, addr) = (client.id.0, &client.peer);
                // CONFIG SET may hold shards.
                log::line_later(
                    Level::Notice,
                    format_args!("Evicting client: id={id} addr={addr} tot-mem={bytes}"),
                );
            } else {
                // It has left meanwhile, perhaps before it could see that.
                thread.stats().evicted_clients.sub(1);
                self.evicted_client_left(&client);
            }
            all -= bytes;
        }
    }

    /// Handles the end of a client. If it was closed for its memory, that is free now.
    pub fn evicted_client_left(&self, client: &ClientRecord) {
        let bytes = client.leaving_bytes.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            self.leaving_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_maxmemory_clients_have_a_limit_in_any_case() {
        assert_eq!(limit_of(Amount::Unsaid, None), u64::MAX);
        assert_eq!(limit_of(Amount::OfMaxmemory(5), None), u64::MAX);
        assert_eq!(limit_of(Amount::Unsaid, Some(1 << 20)), UNSAID_LEAST);
        assert_eq!(limit_of(Amount::Unsaid, Some(1 << 40)), 1 << 40);
        assert_eq!(limit_of(Amount::Bytes(7), Some(1 << 40)), 7);
        assert_eq!(limit_of(Amount::OfMaxmemory(5), Some(1000)), 50);
    }
}
