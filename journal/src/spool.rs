//! The spool: the part of the change stream that slow followers have still to read, in files.
//!
//! ```text
//! stream    ……………………………………………………[piece][piece] ◀ merger
//!               ▲            ▲   │
//! spool     [64 MiB][64 MiB][··]─┘ source: the place up to which the files have it
//!               ▲       ▲
//! followers     one     another      read the files, and after their end the stream again
//! ```
//!
//! A follower that is far behind would keep the pieces after its place in memory. It [moves](Spools::relieve)
//! to a spool, and keeps an offset only. One thread [writes](Spools::advance) the pieces to files without a
//! name, in their order, and releases them from memory. Only what a follower may send is written: all of it
//! has been [reached](Follower::take).
//!
//! A follower at the end of the files takes the source's place, and reads pieces again. A spool without
//! followers is dropped. While the files cannot be written the source stays, and so the pieces after it stay
//! in memory: no follower loses its place.
//!
//! The writer alone creates, writes and closes files: followers only read them.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use crate::{
    disk::{SpoolDisk, SpoolFile},
    follower::{Follower, Pieces},
    intake::Ticket,
    stream::Lsn,
};

/// The length of a file, in bytes. Tests have short ones.
const FILE_BYTES: u64 = if cfg!(test) { 1000 } else { 64 << 20 };

/// The bytes that are written at a time, unless a piece is longer.
const WRITE_BYTES: usize = if cfg!(test) { 512 } else { 1 << 20 };

/// The bytes that are written in one [`Spools::advance`] to each spool, unless a piece is longer.
const ROUND_BYTES: usize = 4 * WRITE_BYTES;

/// The bytes that are read at a time.
const READ_BYTES: u64 = 64 << 10;

/// Notes about places that are nearer than this are one note.
const NOTE_BYTES: u64 = if cfg!(test) { 64 } else { 64 << 10 };

/// The free space that the spools leave on the disk if they have no other limit: this many bytes, and this
/// part of all.
const FREE_BYTES: u64 = 1 << 30;
const FREE_PART: u64 = 20;

/// Looks for something in a piece of the stream that some followers must not get, and names it.
pub type Inspect = fn(&[u8]) -> Option<&'static str>;

/// The files that a slow follower reads.
pub struct Spool {
    /// The bytes before this place may be read.
    end: AtomicU64,
    /// The number of jumps of the stream before.
    n_jumps: u64,
    shared: Mutex<Shared>,
}

struct Shared {
    /// The place of the first byte of the first file.
    first: u64,
    files: VecDeque<Arc<dyn SpoolFile>>,
    /// The place in the stream at which the files end.
    source: Pieces,
    /// The places of the followers.
    readers: Vec<Arc<AtomicU64>>,
    /// The parts in which [`Inspect`] has found something.
    notes: VecDeque<Note>,
}

struct Note {
    first: u64,
    end: u64,
    found: &'static str,
}

impl Spool {
    fn begin(source: Pieces) -> Arc<Self> {
        let at = source.lsn().0;
        Arc::new(Self {
            end: AtomicU64::new(at),
            n_jumps: source.n_jumps(),
            shared: Mutex::new(Shared {
                first: at,
                files: VecDeque::new(),
                source,
                readers: Vec::new(),
                notes: VecDeque::new(),
            }),
        })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The place up to which the files have the stream.
    fn end(&self) -> u64 {
        // Acquire pairs with the Release of `publish`.
        self.end.load(Ordering::Acquire)
    }

    /// A reader at a place, if the files have the stream from there on.
    fn join(self: &Arc<Self>, at: Lsn) -> Option<SpoolReader> {
        let mut shared = self.shared();
        if !(shared.first..=self.end()).contains(&at.0) {
            return None;
        }
        let place = Arc::new(AtomicU64::new(at.0));
        shared.readers.push(Arc::clone(&place));
        Some(SpoolReader { spool: Arc::clone(self), place })
    }

    /// Forgets the followers that have gone. Returns whether there are any, and the files that all have
    /// passed.
    fn tidy(&self) -> (bool, Vec<Arc<dyn SpoolFile>>) {
        let mut shared = self.shared();
        shared.readers.retain(|place| Arc::strong_count(place) > 1);
        let least = shared.readers.iter().map(|place| place.load(Ordering::Relaxed)).min();
        let mut passed = Vec::new();
        while let Some(least) = least
            && shared.first + FILE_BYTES <= least
            && let Some(file) = shared.files.pop_front()
        {
            passed.push(file);
            shared.first += FILE_BYTES;
        }
        while let Some(note) = shared.notes.front()
            && least.is_some_and(|least| note.end <= least)
        {
            shared.notes.pop_front();
        }
        (least.is_some(), passed)
    }

    /// The length of its files, in bytes.
    fn n_bytes(&self) -> u64 {
        let shared = self.shared();
        self.end() - shared.first
    }

    fn publish(&self, batch: Batch, files: Vec<Arc<dyn SpoolFile>>) {
        let mut shared = self.shared();
        shared.files.extend(files);
        for note in batch.notes {
            match shared.notes.back_mut() {
                Some(last) if last.found == note.found && note.first <= last.end + NOTE_BYTES => {
                    last.end = note.end;
                }
                _ => shared.notes.push_back(note),
            }
        }
        let end = batch.source.lsn().0;
        shared.source = batch.source;
        // Release pairs with the Acquire of `end`: whoever sees it finds the bytes before. It is stored under
        // the lock, so the source is at the end for all who have the lock.
        self.end.store(end, Ordering::Release);
    }
}

/// Bytes that are about to be written.
struct Batch {
    bytes: Vec<u8>,
    /// A long piece, which is written from where it is.
    long: Option<Bytes>,
    notes: Vec<Note>,
    /// The source after them.
    source: Pieces,
}

impl Batch {
    /// Takes the next bytes of a source.
    fn gather(mut source: Pieces, mut bytes: Vec<u8>, reached: Ticket, inspect: Inspect) -> Self {
        bytes.clear();
        let (mut long, mut notes) = (None, Vec::new());
        while bytes.len() < WRITE_BYTES {
            let is_long = source.next_bytes(reached).is_some_and(|n| n >= WRITE_BYTES);
            if is_long && !bytes.is_empty() {
                break;
            }
            let first = source.lsn().0;
            let Some(piece) = source.take(reached) else { break };
            if let Some(found) = inspect(&piece) {
                notes.push(Note { first, end: source.lsn().0, found });
            }
            if is_long {
                long = Some(piece);
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        Self { bytes, long, notes, source }
    }

    fn bytes(&self) -> &[u8] {
        self.long.as_deref().unwrap_or(&self.bytes)
    }
}

/// The place of a follower in a spool.
pub struct SpoolReader {
    // This is dropped before the place, by which the spool counts its followers: so the writer has the last
    // reference, and closes the files.
    spool: Arc<Spool>,
    place: Arc<AtomicU64>,
}

impl std::fmt::Debug for SpoolReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SpoolReader").field(&self.lsn()).finish()
    }
}

impl Clone for SpoolReader {
    fn clone(&self) -> Self {
        // The files before this place stay, because this reader is there.
        let place = Arc::new(AtomicU64::new(self.lsn().0));
        self.spool.shared().readers.push(Arc::clone(&place));
        Self { spool: Arc::clone(&self.spool), place }
    }
}

impl SpoolReader {
    /// Its place in the stream.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.place.load(Ordering::Relaxed))
    }

    /// The place from which on the stream is kept in memory for it.
    pub fn memory_from(&self) -> Lsn {
        Lsn(self.spool.end())
    }

    /// Whether it or its successor has something to read.
    pub fn has_more(&self, reached: Ticket) -> bool {
        self.lsn().0 < self.spool.end() || self.successor().is_none_or(|pieces| pieces.has_more(reached))
    }

    /// Its successor if it has read all of the files: the same place among the pieces of the stream.
    pub fn successor(&self) -> Option<Pieces> {
        let shared = self.spool.shared();
        (shared.source.lsn() == self.lsn()).then(|| shared.source.clone())
    }

    /// Reads the next bytes of the files, and what was found in them.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(&mut self) -> io::Result<(Bytes, Option<&'static str>)> {
        let at = self.lsn().0;
        let (file, in_file, n, found) = {
            let shared = self.spool.shared();
            let (nth, in_file) = ((at - shared.first) / FILE_BYTES, (at - shared.first) % FILE_BYTES);
            let n = (self.spool.end() - at).min(FILE_BYTES - in_file).min(READ_BYTES);
            if n == 0 {
                return Ok((Bytes::new(), None));
            }
            let note = shared.notes.iter().find(|note| note.first < at + n && at < note.end);
            (Arc::clone(&shared.files[nth as usize]), in_file, n, note.map(|note| note.found))
        };
        let mut bytes = vec![0; n as usize];
        file.read_at(&mut bytes, in_file)?;
        // Before the place moves: the writer may free the file then, and must close it itself.
        drop(file);
        self.place.store(at + n, Ordering::Relaxed);
        Ok((bytes.into(), found))
    }
}

/// The limits of the spools.
#[derive(Clone, Copy, Debug)]
pub struct SpoolLimits {
    /// Whether anything may be written.
    pub is_on: bool,
    /// The most bytes; 0 leaves a part of the disk free.
    pub most_bytes: u64,
}

impl SpoolLimits {
    /// Refuses `n_more` bytes beside `n_bytes` if they are too many.
    fn check(self, n_bytes: u64, n_more: u64, disk: &dyn SpoolDisk) -> Result<(), String> {
        if !self.is_on {
            return Err("repl-spool is no".to_owned());
        }
        if self.most_bytes != 0 {
            return match n_bytes + n_more > self.most_bytes {
                true => Err(format!("it has {n_bytes} bytes, and repl-spool-max is {}", self.most_bytes)),
                false => Ok(()),
            };
        }
        let room = disk.room().map_err(|error| error.to_string())?;
        let least = FREE_BYTES.max(room.all_bytes / FREE_PART);
        match room.free_bytes < least.saturating_add(n_more) {
            true => Err(format!("the disk has {} free bytes, and {least} are left free", room.free_bytes)),
            false => Ok(()),
        }
    }
}

/// The result of a round of the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpoolRound {
    /// There is no spool.
    Idle,
    /// All is written.
    UpToDate,
    /// Some is written, and there may be more.
    Wrote,
    /// Nothing can be written, for this reason.
    Blocked(String),
}

/// All spools. In most cases there is none or one: followers at different places share one.
#[derive(Default)]
pub struct Spools {
    list: Mutex<Vec<Arc<Spool>>>,
    n_bytes: AtomicU64,
    /// The reason for which nothing can be written.
    blocked: Mutex<Option<String>>,
}

/// The writer's own memory.
#[derive(Default)]
pub struct SpoolWriter {
    buffer: Vec<u8>,
}

impl Spools {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Spool>>> {
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Moves a follower to a spool, so that it keeps no pieces of the stream in memory. The writer must
    /// [advance](Self::advance) the spools after that. Returns whether it has moved.
    pub fn relieve(&self, follower: &mut Follower) -> bool {
        let Some(pieces) = follower.pieces() else { return false };
        let at = pieces.lsn();
        let mut list = self.list();
        let mut of_stream = list.iter().filter(|spool| spool.n_jumps == pieces.n_jumps());
        let mut reader = of_stream.clone().find_map(|spool| spool.join(at));
        if reader.is_none() {
            // A spool that is behind the follower keeps the same pieces in memory.
            if of_stream.any(|spool| spool.end() < at.0) {
                return false;
            }
            let spool = Spool::begin(pieces.clone());
            reader = spool.join(at);
            list.push(spool);
        }
        match reader {
            Some(reader) => follower.move_to(reader),
            None => unreachable!("the spool begins at this place"),
        }
        true
    }

    /// A follower at a place that some spool has, in a stream with so many jumps before.
    pub fn resume(&self, at: Lsn, n_jumps: u64) -> Option<Follower> {
        let list = self.list();
        let mut of_stream = list.iter().filter(|spool| spool.n_jumps == n_jumps);
        of_stream.find_map(|spool| spool.join(at)).map(Follower::in_spool)
    }

    /// Writes some of what slow followers have still to read, and frees what all have passed. One thread
    /// calls this.
    pub fn advance(
        &self,
        writer: &mut SpoolWriter,
        disk: &mut dyn SpoolDisk,
        reached: Ticket,
        limits: SpoolLimits,
        inspect: Inspect,
    ) -> SpoolRound {
        let mut unused = Vec::new();
        let spools = {
            let mut list = self.list();
            list.retain(|spool| {
                let (is_used, passed) = spool.tidy();
                unused.extend(passed);
                if !is_used {
                    unused.extend(spool.shared().files.drain(..));
                }
                is_used
            });
            list.clone()
        };
        // Closing a long file takes a while, so no lock is held.
        drop(unused);
        self.count(&spools);
        let mut round = if spools.is_empty() { SpoolRound::Idle } else { SpoolRound::UpToDate };
        for spool in &spools {
            match self.fill(spool, writer, disk, reached, limits, inspect) {
                Ok(0) => {}
                Ok(_) => round = SpoolRound::Wrote,
                Err(why) => {
                    round = SpoolRound::Blocked(why);
                    break;
                }
            }
            self.count(&spools);
        }
        if round == SpoolRound::Idle {
            writer.buffer = Vec::new();
        }
        let why = if let SpoolRound::Blocked(why) = &round { Some(why.clone()) } else { None };
        *self.blocked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = why;
        round
    }

    fn count(&self, spools: &[Arc<Spool>]) {
        self.n_bytes.store(spools.iter().map(|spool| spool.n_bytes()).sum(), Ordering::Relaxed);
    }

    /// Writes a round's share of a spool. Returns the number of bytes.
    fn fill(
        &self,
        spool: &Spool,
        writer: &mut SpoolWriter,
        disk: &mut dyn SpoolDisk,
        reached: Ticket,
        limits: SpoolLimits,
        inspect: Inspect,
    ) -> Result<usize, String> {
        let mut n_written = 0;
        while n_written < ROUND_BYTES {
            let source = spool.shared().source.clone();
            let batch = Batch::gather(source, std::mem::take(&mut writer.buffer), reached, inspect);
            let n = batch.bytes().len();
            if n == 0 {
                // Records without bytes may have been passed.
                spool.publish(batch, Vec::new());
                break;
            }
            limits.check(self.n_bytes() + n_written as u64, n as u64, disk)?;
            let files = write(spool, batch.bytes(), disk).map_err(|error| error.to_string())?;
            spool.publish(batch, files);
            n_written += n;
        }
        Ok(n_written)
    }

    /// The length of all files, in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes.load(Ordering::Relaxed)
    }

    /// The reason for which nothing can be written at this moment.
    pub fn blocked(&self) -> Option<String> {
        self.blocked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The place from which on spools keep the stream in memory.
    pub fn memory_from(&self) -> Option<Lsn> {
        self.list().iter().map(|spool| Lsn(spool.end())).min()
    }
}

/// Writes bytes at the end of a spool. Returns the files that are new.
fn write(spool: &Spool, bytes: &[u8], disk: &mut dyn SpoolDisk) -> io::Result<Vec<Arc<dyn SpoolFile>>> {
    let (first, mut files) = {
        let shared = spool.shared();
        (shared.first, shared.files.clone())
    };
    let n_before = files.len();
    let (mut at, mut rest) = (spool.end() - first, bytes);
    while !rest.is_empty() {
        let (nth, in_file) = ((at / FILE_BYTES) as usize, at % FILE_BYTES);
        if nth == files.len() {
            files.push_back(disk.create()?);
        }
        let n = usize::try_from(FILE_BYTES - in_file).map_or(rest.len(), |n| n.min(rest.len()));
        files[nth].write_at(&rest[..n], in_file)?;
        (at, rest) = (at + n as u64, &rest[n..]);
    }
    Ok(files.split_off(n_before).into())
}

#[cfg(test)]
mod tests;
