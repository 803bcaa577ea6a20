//! How much memory a client takes, part by part.

use std::sync::atomic::{AtomicU64, Ordering};

/// What of a client takes memory.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// What was read and is not parsed.
    Input,
    /// Room for more of that.
    InputRoom,
    /// The arguments of a command that is not complete, or is under way.
    Arguments,
    /// What its socket has not taken yet.
    Output,
    /// What it has queued since MULTI.
    Queue,
    /// The keys that it watches.
    Watches,
    /// What it is subscribed to.
    Topics,
    /// The prefixes of keys that it tracks.
    Prefixes,
    /// What it has said of itself.
    Names,
}

const N_PARTS: usize = Part::Names as usize + 1;

/// What each key or name takes beside its bytes: its place in a table of the client's, and the allocator's
/// and the table's own.
pub const NAME_BYTES: usize = 48;

/// How much memory a client takes, in bytes. Whoever runs its commands writes, relaxed, what others read.
#[derive(Debug, Default)]
pub struct Footprint {
    /// What every client takes.
    own: u64,
    parts: [AtomicU64; N_PARTS],
}

impl Footprint {
    /// That of a client which has sent nothing yet.
    pub fn of_new_client(own_bytes: usize) -> Self {
        Self { own: own_bytes as u64, parts: Default::default() }
    }

    /// Notes how much a part takes.
    #[inline]
    pub fn set(&self, part: Part, n_bytes: usize) {
        self.parts[part as usize].store(n_bytes as u64, Ordering::Relaxed);
    }

    /// What a part takes.
    pub fn of(&self, part: Part) -> u64 {
        self.parts[part as usize].load(Ordering::Relaxed)
    }

    /// What all of it takes.
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
