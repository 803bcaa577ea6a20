//! The common part of scripts and functions.
//!
//! It has the facts about a run before it begins, and its state as other threads see it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use arc_swap::ArcSwapOption;
use braid_script::{
    Engine, Flavour, Settings, Version,
    analysis::{Analysis, Class},
    shebang::Flags,
};

use crate::{config::REDIS_VERSION, random};

/// A script or a function, with the facts that are known before it runs.
pub struct Program {
    /// The flags in its first line or registration. A script may have none.
    pub flags: Option<Flags>,
    /// The prediction of its keys.
    pub analysis: Analysis,
    /// Whether it has used a key that its text does not show.
    is_distrusted: AtomicBool,
    has_run: AtomicBool,
    /// Whether its last run took long.
    is_long: AtomicBool,
    /// Whether its last run needed the lane.
    wants_lane: AtomicBool,
}

impl Program {
    /// Creates a program that has not run.
    pub fn new(flags: Option<Flags>, analysis: Analysis) -> Self {
        let [is_distrusted, has_run, is_long, wants_lane] = [const { AtomicBool::new(false) }; 4];
        Self { flags, analysis, is_distrusted, has_run, is_long, wants_lane }
    }

    /// Whether its keys can be predicted before it runs. The prediction is usually right.
    pub fn is_predictable(&self) -> bool {
        self.analysis.class != Class::Open && !self.is_distrusted.load(Ordering::Relaxed)
    }

    /// Whether its keys can be predicted for certain.
    pub fn is_certain(&self) -> bool {
        self.analysis.is_certain && !self.is_distrusted.load(Ordering::Relaxed)
    }

    /// Marks the prediction of its keys as unreliable.
    #[cold]
    pub fn distrust(&self) {
        self.is_distrusted.store(true, Ordering::Relaxed);
    }

    /// Whether it is expected to take long, like its last run. It is none before the first run.
    pub fn expects_long(&self) -> Option<bool> {
        self.has_run.load(Ordering::Relaxed).then(|| self.is_long.load(Ordering::Relaxed))
    }

    /// Whether it is expected to need the lane. Taking the lane from the beginning avoids half a run that is
    /// wasted.
    pub fn wants_lane(&self) -> bool {
        self.wants_lane.load(Ordering::Relaxed)
    }

    /// Records whether a run needed the lane. Writes its cache line only if that has changed.
    pub fn needed_lane(&self, needed: bool) {
        if self.wants_lane() != needed {
            self.wants_lane.store(needed, Ordering::Relaxed);
        }
    }

    /// Records whether a run took long. Writes its cache line only if that has changed.
    pub fn ran(&self, is_long: bool) {
        if self.expects_long() != Some(is_long) {
            self.is_long.store(is_long, Ordering::Relaxed);
            self.has_run.store(true, Ordering::Relaxed);
        }
    }
}

/// The memory limit of a thread's Lua until its first script, the default of `lua-memory-limit`.
const MEMORY_MAX_BYTES: usize = 1 << 30;

/// Returns the settings of a thread's Lua. The memory limit is set again before each run.
pub fn settings(flavour: Flavour) -> Settings {
    let version = Version { text: REDIS_VERSION.to_owned(), number: version_number(REDIS_VERSION) };
    Settings { flavour, memory_limit: MEMORY_MAX_BYTES, seed: Some(random::random() as i32), version }
}

/// Returns a version like `redis.REDIS_VERSION_NUM`, a byte for each of its three parts.
fn version_number(version: &str) -> u32 {
    version.split('.').filter_map(|part| part.parse::<u32>().ok()).fold(0, |number, part| number << 8 | part)
}

/// The change in bytes from which Lua's memory is published.
const LUA_BYTES_TOLD: u64 = 16 * 1024;

/// The number of steps of the collector at a time. Each visits a few KB.
const STEPS_AT_A_TIME: usize = 16;

/// Collects a little in a thread's Lua if it owes that. Returns whether there is more, and publishes its
/// memory.
pub fn collect_some(engine: &mut Engine, seen: &RunningScript, of_functions: bool) -> bool {
    if !engine.owes_collection() {
        return false;
    }
    let is_left = (0..STEPS_AT_A_TIME).all(|_| engine.collect_some());
    seen.note_lua_bytes(of_functions, engine.used_bytes() as u64);
    is_left
}

/// The program that a thread runs, as other threads see it.
///
/// Short programs are not seen: it is written at the engine's first check.
#[derive(Default)]
pub struct RunningScript {
    /// The time of its first check, in milliseconds of uptime plus one. It is 0 if none runs.
    seen_at: AtomicU64,
    is_function: AtomicBool,
    has_written: AtomicBool,
    is_killed: AtomicBool,
    /// The words of its command.
    words: ArcSwapOption<Vec<Box<[u8]>>>,
    /// The memory of the thread's scripts and of its functions in Lua, in bytes.
    lua_bytes: [AtomicU64; 2],
}

impl RunningScript {
    /// Records that a program is running and continues.
    pub fn goes_on<'w>(
        &self,
        uptime_millis: u64,
        is_function: bool,
        has_written: bool,
        words: impl Iterator<Item = &'w [u8]>,
    ) {
        self.has_written.store(has_written, Ordering::Relaxed);
        if self.seen_at.load(Ordering::Relaxed) == 0 {
            self.words.store(Some(Arc::new(words.map(Box::from).collect())));
            self.is_function.store(is_function, Ordering::Relaxed);
            self.is_killed.store(false, Ordering::Relaxed);
            self.seen_at.store(uptime_millis + 1, Ordering::Relaxed);
        }
    }

    /// Publishes the memory of the thread's scripts, or of its functions, in Lua. Small changes are left out.
    pub fn note_lua_bytes(&self, of_functions: bool, n_bytes: u64) {
        let told = &self.lua_bytes[usize::from(of_functions)];
        if told.load(Ordering::Relaxed).abs_diff(n_bytes) >= LUA_BYTES_TOLD {
            told.store(n_bytes, Ordering::Relaxed);
        }
    }

    /// The memory of the thread's scripts, or of its functions, in Lua, in bytes.
    pub fn lua_bytes(&self, of_functions: bool) -> u64 {
        self.lua_bytes[usize::from(of_functions)].load(Ordering::Relaxed)
    }

    /// Records that it has ended.
    pub fn ended(&self) {
        self.seen_at.store(0, Ordering::Relaxed);
        self.words.store(None);
    }

    /// Whether it must end.
    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Relaxed) && self.seen_at.load(Ordering::Relaxed) != 0
    }

    /// Whether it is a function.
    pub fn is_function(&self) -> bool {
        self.is_function.load(Ordering::Relaxed)
    }

    /// The words of its command, if one runs.
    pub fn words(&self) -> Option<Arc<Vec<Box<[u8]>>>> {
        self.words.load_full()
    }

    /// The milliseconds for which a program has run here, if one does.
    pub fn runs_for(&self, uptime_millis: u64) -> Option<u64> {
        let seen_at = self.seen_at.load(Ordering::Relaxed);
        (seen_at != 0).then(|| uptime_millis.saturating_sub(seen_at - 1))
    }

    /// Makes it end, unless it has written. Returns whether it will.
    pub fn kill(&self) -> bool {
        let may_end = !self.has_written.load(Ordering::Relaxed);
        if may_end {
            self.is_killed.store(true, Ordering::Relaxed);
        }
        may_end
    }
}
