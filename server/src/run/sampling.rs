//! The samples for HOTKEYS: the cost of a sampled command is added to its keys.
//!
//! While keys are tracked, [`Server::attention`](crate::shared::server::Server::attention) is raised. So all
//! commands pass the two places of sampling: the inner step, and the commands of a transaction. A script
//! counts as one command on the keys that it declares.

use smallvec::SmallVec;

use crate::{
    catalog::Words, clock::Instant, command::Registered, shared::thread_state::ThreadState,
    telemetry::hot_keys::Cost,
};

/// The maximum of a command's keys that are sampled. Their shards are held meanwhile.
const KEYS_MAX: usize = 64;

/// A sampled command that runs.
pub struct Sampled {
    began: Instant,
}

impl Sampled {
    /// Begins, if keys are tracked and the command is sampled.
    #[inline]
    pub fn begin(thread: &ThreadState) -> Option<Self> {
        if thread.server().hot_keys.is_active() { Self::draw(thread) } else { None }
    }

    #[cold]
    fn draw(thread: &ThreadState) -> Option<Self> {
        thread.server().hot_keys.samples_next(thread.index).then(|| Self { began: Instant::now() })
    }

    /// Returns the duration of the command that has just run, in nanoseconds.
    #[cold]
    pub fn end(self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// Records the cost of a sampled command.
#[cold]
pub fn note(command: &Registered, words: Words<'_>, reply_bytes: usize, nanos: u64, thread: &ThreadState) {
    let keys = keys_of(command, words);
    if !keys.is_empty() {
        let bytes = (words.request_bytes() + reply_bytes) as u64;
        thread.server().hot_keys.add(thread.index, keys.into_iter(), Cost { nanos, bytes });
    }
}

/// Returns a command's keys. Of very many keys it returns an even selection: each stands for its neighbours.
fn keys_of<'w>(command: &Registered, words: Words<'w>) -> SmallVec<[&'w [u8]; 4]> {
    let mut n_keys = 0usize;
    let get = |at| words.get(at);
    command.spec.keys.positions(words.len(), get, |_, _| n_keys += 1);
    let apart = n_keys.div_ceil(KEYS_MAX).max(1);
    let (mut keys, mut nth) = (SmallVec::new(), 0);
    command.spec.keys.positions(words.len(), get, |at, _| {
        if nth % apart == 0 {
            keys.push(words.get(at));
        }
        nth += 1;
    });
    keys
}
