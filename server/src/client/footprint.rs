//! The memory of a client, part by part.

use std::sync::atomic::{AtomicU64, Ordering};

/// A part of a client's memory.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// Input that was read and not parsed.
    Input,
    /// Room for more input.
    InputRoom,
    /// The arguments of a command that is incomplete or under way.
    Arguments,
    /// Output that its socket has not taken yet.
    Output,
    /// The commands queued since MULTI.
    Queue,
    /// The keys that it watches.
    Watches,
    /// Its subscriptions.
    Topics,
    /// The prefixes of keys that it tracks.
    Prefixes,
    /// Its description of itself.
    Names,
}

const N_PARTS: usize = Part::Names as usize + 1;

/// The memory of each key or name besides its bytes.
///
/// It is the entry in a table of the client, and the overhead of allocator and table.
pub const NAME_BYTES: usize = 48;

/// The memory of a client, in bytes. The thread that runs its commands writes it, relaxed, for others to
/// read.
#[derive(Debug, Default)]
pub struct Footprint {
    /// The memory of every client.
    own: u64,
    parts: [AtomicU64; N_PARTS],
}

impl Footprint {
    /// Creates the footprint of a client that has sent nothing yet.
    pub fn of_new_client(own_bytes: usize) -> Self {
        Self { own: own_bytes as u64, parts: Default::default() }
    }

    /// Records the memory of a part.
    #[inline]
    pub fn set(&self, part: Part, n_bytes: usize) {
        self.parts[part as usize].store(n_bytes as u64, Ordering::Relaxed);
    }

    /// The memory of a part.
    pub fn of(&self, part: Part) -> u64 {
        self.parts[part as usize].load(Ordering::Relaxed)
    }

    /// The memory of all parts.
    #[inline]
    pub fn sum(&self) -> u64 {
        self.own + self.parts.iter().map(|part| part.load(Ordering::Relaxed)).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        let footprint = Footprint::of_new_client(100);
        assert_eq!(footprint.sum(), 100);
        footprint.set(Part::Input, 20);
        footprint.set(Part::Names, 3);
        footprint.set(Part::Input, 10);
        assert_eq!((footprint.sum(), footprint.of(Part::Input)), (113, 10));
    }
}
