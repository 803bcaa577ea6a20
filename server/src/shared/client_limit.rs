//! `maxmemory-clients`: the clients that take most memory are closed while all together take too much.
//!
//! Each thread counts what its own connections take, a connection at a time, when that has had its turn: in a
//! number of its own, which others read. Who finds that a connection has grown adds up these few numbers.
//! Only where the sum is too much are all clients looked at, and the largest of them closed, whichever
//! threads they are on. Redis keeps its clients in order of size at all times; here no order is kept that
//! threads would have to share.

use std::sync::{PoisonError, atomic::Ordering};

use crate::{
    client::record::ClientRecord,
    config::{Amount, Config},
    log::{self, Level},
    shared::{server::Server, thread_state::ThreadState},
};

/// Least limit of all clients together where `maxmemory-clients` is not set: twice the longest argument.
/// Above that, it is `maxmemory`.
const UNSAID_LEAST: u64 = 1 << 30;

/// How many bytes all clients may take together. What they take does not count against `maxmemory`, so under
/// that there is a limit in any case. A part of no limit is none.
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
    /// What all clients take, but for those that are being closed because it is too much.
    pub fn client_bytes(&self) -> u64 {
        let all = self.threads.iter().map(|peer| peer.client_bytes.get()).fold(0, u64::wrapping_add);
        all.saturating_sub(self.leaving_bytes.load(Ordering::Relaxed))
    }

    /// Closes clients while all together take more than `maxmemory-clients`, the largest first.
    #[cold]
    pub fn limit_clients(&self, thread: &ThreadState) {
        let limit = clients_limit(&self.config.load());
        if self.client_bytes() <= limit {
            return;
        }
        // Two at once would close twice as many as need be.
        let _turn = self.limiting_clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that are killed are free by now, or will be.
        let clients = self.clients.all().into_iter().filter(|client| !client.is_killed());
        let mut clients: Vec<_> = clients.map(|client| (client.footprint.sum(), client)).collect();
        let mut all: u64 = clients.iter().map(|(bytes, _)| bytes).sum();
        clients.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (bytes, client) in clients {
            if all <= limit {
                break;
            }
            if client.no_evict.load(Ordering::Relaxed) {
                continue;
            }
            self.leaving_bytes.fetch_add(bytes, Ordering::Relaxed);
            client.leaving_bytes.store(bytes, Ordering::Relaxed);
            // Before it is missed.
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

    /// Hears that a client has left: if it was closed for its memory, that is free now.
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
