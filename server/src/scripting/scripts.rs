//! The scripts that the server knows, and their compiled forms on each thread.
//!
//! The map of known scripts is replaced whole when a script is added or removed. So finding a script takes no
//! lock and writes no cache line that others read. A thread compiles a script when it first runs it.

use std::{
    cell::RefCell,
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};
use braid_script::{CompileError, Engine, Flavour, Handle};
use sha1::{Digest, Sha1};
use xxhash_rust::xxh3::xxh3_64_with_secret;

use crate::{
    random,
    scripting::running_scripts::{self, Program, RunningScript},
};

/// The maximum of remembered scripts from EVAL, as in Redis 7.4. Beyond it the least recently run one is
/// forgotten.
const EVALUATED_MAX: usize = 500;

/// 40 hexadecimal digits in lower case: the SHA-1 of a script's source.
pub type Sha = [u8; 40];

/// A script.
pub struct Script {
    /// Its number, which no other script gets.
    id: u64,
    /// Its digest, for EVALSHA.
    pub sha: Sha,
    /// Its text.
    pub source: Arc<[u8]>,
    /// The facts about its runs.
    pub program: Program,
    /// Whether it came with SCRIPT LOAD, so that it is not forgotten.
    is_loaded: AtomicBool,
    /// The uptime at its last run, in milliseconds, to about a second.
    ran_at: AtomicU64,
}

impl Script {
    /// Its name in errors: its digest.
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.sha).expect("hexadecimal digits are text")
    }

    /// Records that it runs. Writes its cache line at most once a second.
    pub fn note_run(&self, uptime_millis: u64) {
        const EXACT_TO_MILLIS: u64 = 1000;
        if uptime_millis.saturating_sub(self.ran_at.load(Ordering::Relaxed)) >= EXACT_TO_MILLIS {
            self.ran_at.store(uptime_millis, Ordering::Relaxed);
        }
    }

    /// The memory of the script without its compiled forms.
    fn n_bytes(&self) -> usize {
        size_of::<Self>() + self.source.len()
    }
}

/// The origin of a script.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ScriptOrigin {
    /// EVAL: it may be forgotten.
    Evaluated,
    /// SCRIPT LOAD: it stays.
    Loaded,
}

/// Hashes a digest or a script's number.
///
/// A digest is a hash, so a part of it suffices. A client cannot choose a script's number.
#[derive(Default)]
struct OfDigest(u64);

impl Hasher for OfDigest {
    fn write(&mut self, digest: &[u8]) {
        // These are 16 of the digits: 64 bits. A client cannot choose many of them.
        for half in digest.chunks_exact(8).take(2) {
            let digits = half.try_into().expect("chunks of eight");
            self.0 =
                (self.0.rotate_left(32) ^ u64::from_le_bytes(digits)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The key for hashing texts. No client knows it, so none can cause collisions.
///
/// It is created once and whole, because making one from a seed takes longer than hashing a short script.
static TEXT_KEY: LazyLock<[u8; 192]> = LazyLock::new(|| {
    let mut key = [0; 192];
    key.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random::random().to_le_bytes()));
    key
});

/// Hashes a text.
#[derive(Default)]
struct OfText(u64);

impl Hasher for OfText {
    fn write(&mut self, text: &[u8]) {
        self.0 = xxh3_64_with_secret(text, &*TEXT_KEY);
    }

    // The hash of a text depends on its length.
    fn write_usize(&mut self, _len: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The scripts that are known at a moment.
#[derive(Clone, Default)]
pub struct Known {
    by_sha: HashMap<Sha, Arc<Script>, BuildHasherDefault<OfDigest>>,
    by_source: HashMap<Arc<[u8]>, Arc<Script>, BuildHasherDefault<OfText>>,
    /// The number of scripts forgotten so far.
    n_forgotten: u64,
}

impl Known {
    /// The script of a digest in hexadecimal digits of either case.
    pub fn by_sha(&self, sha: &[u8]) -> Option<&Arc<Script>> {
        let mut sha = Sha::try_from(sha).ok()?;
        self.by_sha.get(&sha).or_else(|| {
            sha.make_ascii_lowercase();
            self.by_sha.get(&sha)
        })
    }

    /// The script of a text.
    pub fn by_source(&self, source: &[u8]) -> Option<&Arc<Script>> {
        self.by_source.get(source)
    }

    /// The number of scripts.
    pub fn len(&self) -> usize {
        self.by_sha.len()
    }

    /// Whether there are no scripts.
    pub fn is_empty(&self) -> bool {
        self.by_sha.is_empty()
    }

    /// The memory of the scripts, without the threads' compiled forms.
    pub fn n_bytes(&self) -> usize {
        self.by_sha.values().map(|script| script.n_bytes()).sum()
    }

    pub(super) fn add(&mut self, script: &Arc<Script>) {
        self.by_sha.insert(script.sha, Arc::clone(script));
        self.by_source.insert(Arc::clone(&script.source), Arc::clone(script));
    }

    /// Forgets the least recently run script, if too many have come with EVAL. Returns whether it did.
    fn forget_oldest(&mut self) -> bool {
        let evaluated = self.by_sha.values().filter(|script| !script.is_loaded.load(Ordering::Relaxed));
        if evaluated.clone().count() <= EVALUATED_MAX {
            return false;
        }
        let oldest = evaluated.min_by_key(|script| (script.ran_at.load(Ordering::Relaxed), script.id));
        let oldest = oldest.map(Arc::clone).expect("there are more than none");
        self.by_sha.remove(&oldest.sha);
        self.by_source.remove(&oldest.source);
        self.n_forgotten += 1;
        true
    }
}

/// All scripts that are known.
#[derive(Default)]
pub struct Scripts {
    known: ArcSwap<Known>,
    /// Serialises changes, and counts all scripts ever added.
    writer: Mutex<u64>,
    /// The number of scripts that have made way for newer ones of EVAL, since CONFIG RESETSTAT.
    n_evicted: AtomicU64,
}

impl Scripts {
    /// The scripts that are known now.
    #[inline]
    pub fn known(&self) -> Guard<Arc<Known>> {
        self.known.load()
    }

    /// Adds a script that compiles, or finds it.
    pub fn add(
        &self,
        source: &[u8],
        make: impl FnOnce() -> Program,
        origin: ScriptOrigin,
        uptime_millis: u64,
    ) -> Arc<Script> {
        let mut n_scripts = self.writer.lock().expect("nobody panics with it");
        if let Some(script) = self.known.load().by_source(source) {
            script.is_loaded.fetch_or(origin == ScriptOrigin::Loaded, Ordering::Relaxed);
            return Arc::clone(script);
        }
        *n_scripts += 1;
        let script = Arc::new(Script {
            id: *n_scripts,
            sha: sha1_hex(source),
            source: source.into(),
            program: make(),
            is_loaded: AtomicBool::new(origin == ScriptOrigin::Loaded),
            ran_at: AtomicU64::new(uptime_millis),
        });
        let mut known = Known::clone(&self.known.load());
        known.add(&script);
        if known.forget_oldest() {
            self.n_evicted.fetch_add(1, Ordering::Relaxed);
        }
        self.known.store(Arc::new(known));
        script
    }

    /// The number of scripts that have made way for newer ones of EVAL.
    pub fn n_evicted(&self) -> u64 {
        self.n_evicted.load(Ordering::Relaxed)
    }

    /// CONFIG RESETSTAT.
    pub fn reset_stats(&self) {
        self.n_evicted.store(0, Ordering::Relaxed);
    }

    /// Forgets all scripts.
    pub fn flush(&self) {
        let _writer = self.writer.lock().expect("nobody panics with it");
        let known = self.known.load();
        let n_forgotten = known.n_forgotten + known.len() as u64;
        self.known.store(Arc::new(Known { n_forgotten, ..Known::default() }));
    }
}

/// A thread's Lua for scripts, with its compiled forms.
pub struct ThreadScripts {
    /// The state.
    pub engine: Engine,
    handles: HashMap<u64, Handle, BuildHasherDefault<OfDigest>>,
    /// The number of forgotten scripts when the thread last checked.
    n_forgotten: u64,
}

impl ThreadScripts {
    fn new() -> Self {
        Self {
            engine: Engine::new(&running_scripts::settings(Flavour::Scripts)),
            handles: HashMap::default(),
            n_forgotten: 0,
        }
    }

    /// Returns a known script's compiled form.
    ///
    /// # Errors
    /// If it does not compile in this state. Then memory is exhausted, since the script has compiled before.
    pub fn compiled(&mut self, script: &Script, known: &Known) -> Result<Handle, CompileError> {
        if self.n_forgotten != known.n_forgotten {
            self.drop_forgotten(known);
        }
        if let Some(&handle) = self.handles.get(&script.id) {
            return Ok(handle);
        }
        let handle = self.engine.compile(&script.source, script.name())?;
        self.handles.insert(script.id, handle);
        Ok(handle)
    }

    /// Checks whether a text compiles.
    ///
    /// # Errors
    /// If it does not.
    pub fn check(&mut self, source: &[u8]) -> Result<(), CompileError> {
        let handle = self.engine.compile(source, "")?;
        self.engine.forget(handle);
        Ok(())
    }

    #[cold]
    fn drop_forgotten(&mut self, known: &Known) {
        let ids: std::collections::HashSet<u64> = known.by_sha.values().map(|script| script.id).collect();
        let engine = &mut self.engine;
        self.handles.retain(|id, handle| {
            let stays = ids.contains(id);
            if !stays {
                engine.forget(*handle);
            }
            stays
        });
        self.n_forgotten = known.n_forgotten;
    }
}

/// Returns the digest by which a script is known.
pub fn sha1_hex(source: &[u8]) -> Sha {
    let digest = Sha1::digest(source);
    let mut hex = [0; 40];
    for (byte, digits) in digest.iter().zip(hex.chunks_exact_mut(2)) {
        digits.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    hex
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

thread_local! {
    /// Created when the thread first needs it.
    static SCRIPTS: RefCell<Option<Box<ThreadScripts>>> = const { RefCell::new(None) };
}

/// Does work with the thread's Lua for scripts. After a panic the thread has none until it is created again.
///
/// # Panics
/// If it is in use: no script runs another.
pub fn with_thread_scripts<R>(work: impl FnOnce(&mut ThreadScripts) -> R) -> R {
    SCRIPTS.with(|scripts| {
        let mut scripts = scripts.try_borrow_mut().expect("no script runs another");
        let mut own = scripts.take().unwrap_or_else(|| Box::new(ThreadScripts::new()));
        let result = work(&mut own);
        *scripts = Some(own);
        result
    })
}

/// Collects a little of the scripts' garbage in the thread's Lua, if there is one. Returns whether there is
/// more.
pub fn collect_some(seen: &RunningScript) -> bool {
    SCRIPTS.with_borrow_mut(|scripts| {
        scripts.as_mut().is_some_and(|own| running_scripts::collect_some(&mut own.engine, seen, false))
    })
}
