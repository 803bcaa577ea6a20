//! The use of memory, for INFO and MEMORY.

use std::{collections::HashMap, sync::atomic::Ordering};

use braid_storage::{entry::db::Db, keyspace::DatabaseCounts, memory::allocator};

use crate::{
    process::system::own_bytes,
    shared::{
        memory::{Memory, resident_bytes},
        server::Server,
    },
};

/// The use of memory, in bytes.
pub struct MemoryFigures {
    /// The size of the process when it began to serve.
    pub startup: u64,
    /// The memory of clients.
    pub of_clients: u64,
    /// The memory of output that waits for clients that subscribe, monitor or track.
    pub notifications: u64,
    /// The tables of each database, without their entries.
    pub tables: HashMap<Db, u64>,
    /// The counts of all databases with keys.
    pub databases: Vec<(Db, DatabaseCounts)>,
    /// The texts of scripts.
    pub scripts: u64,
    /// The texts of libraries.
    pub functions: u64,
    /// Lua's memory for scripts, and for functions.
    pub in_lua: [u64; 2],
    /// Keys and values.
    pub dataset: u64,
    /// The whole data set with its tables: the memory that eviction can free.
    pub data: u64,
    /// Bytes that wait to be written to the append-only file.
    pub unwritten: u64,
    /// Bytes that do not count against `maxmemory`.
    pub uncounted: u64,
    /// The memory in use.
    pub used: u64,
    /// The maximum of that.
    pub peak: u64,
    /// The time of the maximum, in seconds of Unix time.
    pub peak_unix_seconds: u64,
    /// The size of the process.
    pub resident: u64,
    /// The part of it that belongs to no file, which is the allocator's. The allocator does not tell how much
    /// of its pages is in use.
    pub own: u64,
}

impl MemoryFigures {
    /// Reads them. Each is of a moment of its own.
    pub fn read(server: &Server) -> Self {
        let keyspace = &server.keyspace;
        let now = server.clock.unix_micros() / 1_000_000;
        let (databases, tables) = (keyspace.databases(), keyspace.table_bytes());
        let used_by_databases: u64 = databases.iter().map(|(_, counts)| counts.used_bytes).sum();
        let in_lua = |of_functions| -> u64 {
            server.threads.iter().map(|peer| peer.program.lua_bytes(of_functions)).sum()
        };
        let figures = Self {
            startup: server.memory.startup.load(Ordering::Relaxed),
            of_clients: server.client_bytes(),
            notifications: server.notification_bytes(),
            dataset: (used_by_databases + keyspace.other_bytes()).saturating_sub(tables.values().sum()),
            tables,
            databases,
            data: allocator::data_bytes(),
            unwritten: server.durability.aof.unwritten_bytes() as u64,
            uncounted: server.memory.uncounted(),
            scripts: server.scripts.known().n_bytes() as u64,
            functions: server.functions.known().n_bytes() as u64,
            in_lua: [in_lua(false), in_lua(true)],
            used: Memory::used(),
            peak: server.memory.peak.load(Ordering::Relaxed),
            peak_unix_seconds: {
                let age =
                    server.uptime().as_secs().saturating_sub(server.memory.peak_at.load(Ordering::Relaxed));
                now.saturating_sub(age)
            },
            resident: resident_bytes(),
            own: own_bytes(),
        };
        // There may have been no measurement since memory grew.
        if figures.used > figures.peak {
            return Self { peak: figures.used, peak_unix_seconds: now, ..figures };
        }
        figures
    }

    /// The number of keys.
    pub fn n_keys(&self) -> u64 {
        self.databases.iter().map(|(_, counts)| counts.n_keys).sum()
    }

    /// The memory in use that is no key or value.
    pub fn overhead(&self) -> u64 {
        self.used.saturating_sub(self.dataset)
    }

    /// The server's own memory in use: neither data nor clients'.
    pub fn of_server(&self) -> u64 {
        self.used.saturating_sub(self.data).saturating_sub(self.of_clients)
    }

    /// Keys and values in percent of the memory that was added since the start.
    pub fn dataset_percent(&self) -> f64 {
        percent(self.dataset, self.used.saturating_sub(self.startup))
    }

    /// The memory in use in percent of its maximum.
    pub fn peak_percent(&self) -> f64 {
        percent(self.used, self.peak)
    }

    /// The allocator's memory compared with the memory in use.
    pub fn in_allocator(&self) -> Excess {
        Excess { more: self.own, less: self.used }
    }

    /// The allocator's pages compared with those in use. All of them count as in use.
    pub fn in_pages(&self) -> Excess {
        Excess { more: self.own, less: self.own }
    }

    /// The process compared with the allocator's memory.
    pub fn outside(&self) -> Excess {
        Excess { more: self.resident, less: self.own }
    }

    /// The process compared with the memory in use.
    pub fn in_all(&self) -> Excess {
        Excess { more: self.resident, less: self.used }
    }
}

/// An amount of memory compared with a part of it.
#[derive(Clone, Copy)]
pub struct Excess {
    more: u64,
    less: u64,
}

impl Excess {
    /// The whole divided by the part.
    pub fn ratio(self) -> f64 {
        self.more as f64 / self.less.max(1) as f64
    }

    /// The bytes beyond the part.
    pub fn bytes(self) -> i64 {
        self.more as i64 - self.less as i64
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}
