//! The AOF: a manifest, a base, and increments. Commands are appended to the last increment.
//!
//! ```text
//! begin_rewrite   creates and syncs a new increment, then names it in the manifest; commands are appended
//!                 to it from now on (its base is still the old one with all increments before)
//! end_rewrite     gives the new base, which is written and synced, its name; the manifest names it with the
//!                 new increment only, and the older files become history
//! remove_history  removes the files that are no longer needed
//! ```
//!
//! Whenever the machine stops, the manifest names files that exist and that contain all synced data. The
//! thread with [`Aof::current`] syncs the appended data. A thread that must not wait for that sync must not
//! append meanwhile.

use std::{io, ops::Deref};

use crate::{
    disk::{Disk, DiskFile},
    frame::{FRAME_BYTES, Framer, Place},
    history::ReplicationId,
    manifest::{Invalid, Manifest},
    stream::{FilePart, Lsn},
};

/// The capacity for frames that is kept for the next append, in bytes.
const KEPT_BYTES: usize = 1 << 20;

/// The reserved space ahead, in bytes. Records in progress fit into it when the disk is found to be full.
pub const AHEAD_BYTES: u64 = 1 << 20;

/// The end of the last increment, as its [`Reader`](crate::reader::Reader) has found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The length of its intact part, in bytes.
    pub n_bytes: u64,
    /// The checksum of its last frame.
    pub previous: u32,
    /// The length of the stream of commands up to there, in bytes.
    pub offset: u64,
}

/// An AOF to which commands are appended. After it is dropped, other servers may write its files.
pub struct Aof<D: Disk> {
    disk: D,
    /// The beginning of the names of its files.
    name: String,
    manifest: Manifest,
    file: Written<D::File>,
    /// The offset of the next frame.
    end: u64,
    /// The offset up to which space is reserved.
    reserved: u64,
    /// The offset up to which bytes may have been written, if that is after `end`.
    touched: u64,
    framer: Framer,
    /// The manifest does not name the current increment yet, because that has no base.
    is_aside: bool,
    /// Nothing was appended to the increment since it was begun.
    is_fresh: bool,
    /// Something was appended to the increment since it was opened or begun.
    has_grown: bool,
    /// The increment's name may be lost if the machine stops.
    is_name_unsynced: bool,
    /// The manifest may name an increment that is not in use.
    is_manifest_unsure: bool,
    /// The increment could not be synced. Data appended since its last sync may be missing.
    is_lost: bool,
    /// A buffer for frames.
    frames: Vec<u8>,
}

/// The file that this process writes, as long as it does.
struct Written<F: DiskFile>(F);

impl<F: DiskFile> Deref for Written<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.0
    }
}

impl<F: DiskFile> Drop for Written<F> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Reads the manifest in a folder, if there is one.
///
/// # Errors
/// If it cannot be read, or is invalid.
pub fn manifest_in(disk: &impl Disk, name: &str) -> Result<Option<Manifest>, ManifestError> {
    let text = disk.read(&manifest_name(name)).map_err(ManifestError::Io)?;
    text.map(|text| Manifest::read(&text).map_err(ManifestError::Invalid)).transpose()
}

/// Creates an empty manifest for a folder without one.
///
/// New files are numbered after existing parts, so that none is overwritten.
///
/// # Errors
/// The error of the disk.
pub fn new_manifest(disk: &impl Disk, name: &str) -> io::Result<Manifest> {
    Ok(Manifest::behind(disk.names()?.iter().map(Vec::as_slice), name))
}

/// The reason why there is no manifest.
#[derive(Debug)]
pub enum ManifestError {
    /// It cannot be read.
    Io(io::Error),
    /// It is invalid.
    Invalid(Invalid),
}

impl From<ManifestError> for io::Error {
    fn from(error: ManifestError) -> Self {
        match error {
            ManifestError::Io(error) => error,
            ManifestError::Invalid(invalid) => io::Error::new(io::ErrorKind::InvalidData, invalid),
        }
    }
}

/// Makes a synced file the whole content of an AOF to which no process appends.
///
/// # Errors
/// The error of the disk, or that the manifest is invalid. The old files stay in force unless the new
/// manifest was written.
pub fn replace<D: Disk>(disk: &mut D, name: &str, written_as: &[u8], is_snapshot: bool) -> io::Result<()> {
    let mut manifest = match manifest_in(disk, name)? {
        Some(manifest) => manifest,
        None => new_manifest(disk, name)?,
    };
    let base = manifest.begin_base(name, is_snapshot, 0);
    disk.rename(written_as, &base.name)?;
    disk.sync_folder()?;
    Ok(write_manifest(disk, name, &manifest)?)
}

/// Removes files that are no longer needed from an AOF to which no process appends.
///
/// # Errors
/// The error of the disk, or that the manifest is invalid.
pub fn remove_history<D: Disk>(disk: &mut D, name: &str) -> io::Result<()> {
    match manifest_in(disk, name)? {
        Some(mut manifest) => forget_history(disk, name, &mut manifest),
        None => Ok(()),
    }
}

fn manifest_name(name: &str) -> Vec<u8> {
    format!("{name}.manifest").into_bytes()
}

impl<D: Disk> Aof<D> {
    /// Continues an AOF whose files have been read and end at `found`. Without a manifest it begins a new
    /// one.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn open(mut disk: D, name: &str, found: Option<(Manifest, End)>) -> io::Result<Self> {
        let (mut manifest, end) = match found {
            Some(found) => found,
            None => (new_manifest(&disk, name)?, End::default()),
        };
        let is_fresh = manifest.increments.is_empty();
        let mut framer =
            Framer { offset: end.offset, safe: end.offset, previous: end.previous, ..Framer::default() };
        let (file, n_bytes) = match manifest.increments.last() {
            Some(last) => {
                let file = disk.open(&last.name)?;
                // A torn end must not come back. The data that was read must stay, because coming replies
                // depend on it.
                file.truncate(end.n_bytes)?;
                let n_anchor = match end.previous {
                    0 => write_by(&file, end.n_bytes, &mut framer, Framer::begin_file)?,
                    _ => 0,
                };
                file.sync()?;
                (file, end.n_bytes + n_anchor)
            }
            None => begin_increment(&mut disk, name, (&mut manifest, Named::Now), &mut framer)?,
        };
        Ok(Self { is_fresh, ..Self::new(disk, name, manifest, (file, n_bytes), framer) })
    }

    /// Begins an AOF that will replace another one, if there is one.
    ///
    /// The old one stays in force until [`Aof::end_rewrite`] gives the new one its base.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn begin_aside(mut disk: D, name: &str, before: Option<Manifest>) -> io::Result<Self> {
        let before = before.map_or_else(|| new_manifest(&disk, name), Ok)?;
        let (mut manifest, mut framer) = (before, Framer::default());
        let begun = begin_increment(&mut disk, name, (&mut manifest, Named::Later), &mut framer)?;
        Ok(Self { is_aside: true, is_fresh: true, ..Self::new(disk, name, manifest, begun, framer) })
    }

    /// An AOF that continues at the end of its last increment.
    fn new(disk: D, name: &str, manifest: Manifest, (file, end): (D::File, u64), framer: Framer) -> Self {
        Self {
            disk,
            name: name.to_owned(),
            manifest,
            file: Written(file),
            end,
            reserved: 0,
            framer,
            is_aside: false,
            is_fresh: false,
            has_grown: false,
            is_name_unsynced: false,
            is_manifest_unsure: false,
            touched: 0,
            is_lost: false,
            frames: Vec::new(),
        }
    }

    /// The files of which the AOF consists.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The length of the current increment, in bytes.
    pub fn increment_bytes(&self) -> u64 {
        self.end
    }

    /// The length of the stream of commands, in bytes.
    pub fn offset(&self) -> u64 {
        self.framer.offset
    }

    /// The current increment's file, for another thread to sync.
    pub fn current(&self) -> D::File {
        self.file.0.clone()
    }

    /// Notes that the stream is known to be on disk up to `offset`.
    pub fn note_safe(&mut self, offset: u64) {
        self.framer.safe = self.framer.safe.max(offset);
    }

    /// Sets the time to log before appended frames, in seconds since 1970. `None` ends the logging of times.
    pub fn tell_time(&mut self, now: Option<u64>) {
        self.framer.now = now;
    }

    /// Notes that the increment could not be synced.
    ///
    /// It is not synced again: the system may have dropped the data that it could not write, and would report
    /// success. The next [rewrite](Aof::begin_rewrite) continues without it.
    pub fn note_lost(&mut self) {
        self.is_lost = true;
    }

    /// Whether the increment could not be synced.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether appended commands count only once a rewrite has ended.
    ///
    /// Until then the manifest does not name their increment.
    pub fn is_aside(&self) -> bool {
        self.is_aside
    }

    /// Whether [`Aof::begin_anew`] must come before anything is appended.
    pub fn must_begin_anew(&self) -> bool {
        self.is_manifest_unsure
            || self.is_name_unsynced
            || self.is_fresh && self.framer.now.is_some() && self.framer.told == 0
    }

    /// Replaces an increment without appended commands by one that begins with the time.
    ///
    /// Programs look for the time in the first line. If the content of the manifest is uncertain, the
    /// manifest is written first.
    ///
    /// # Errors
    /// The error of the disk. Nothing may be appended until this succeeds.
    pub fn begin_anew(&mut self) -> io::Result<()> {
        if self.is_manifest_unsure {
            write_manifest(&mut self.disk, &self.name, &self.manifest)?;
            self.is_manifest_unsure = false;
            if !self.must_begin_anew() {
                return Ok(());
            }
        }
        if !self.is_name_unsynced {
            let aside = format!("temp-{}.incr.aof", self.name).into_bytes();
            let mut framer = Framer { previous: 0, ..self.framer };
            let made = self.disk.create(&aside).and_then(|file| {
                let n_bytes = write_by(&file, 0, &mut framer, Framer::begin_file)?;
                file.sync()?;
                Ok((file, n_bytes))
            });
            let Ok((file, n_bytes)) = made else {
                // The open file still takes appends. Its first line then has no time; the next frame has one.
                self.is_fresh = false;
                return Ok(());
            };
            let last = self.manifest.increments.last().expect("it is written to");
            self.disk.rename(&aside, &last.name)?;
            (self.file, self.end, self.reserved, self.framer) = (Written(file), n_bytes, 0, framer);
            self.touched = 0;
        }
        self.is_name_unsynced = true;
        self.disk.sync_folder()?;
        self.is_name_unsynced = false;
        Ok(())
    }

    /// Reserves space ahead, if less than half of it is left.
    ///
    /// The caller does this before any change that must be appended.
    ///
    /// # Errors
    /// The error of the disk: it is full. As soon as it has space again, this succeeds.
    pub fn reserve(&mut self) -> io::Result<()> {
        if self.end + AHEAD_BYTES / 2 > self.reserved {
            self.file.reserve(self.end + AHEAD_BYTES)?;
            self.reserved = self.end + AHEAD_BYTES;
        }
        Ok(())
    }

    /// The history and the place in it after the last frame, if frames have places.
    pub fn history(&self) -> Option<(ReplicationId, Lsn)> {
        self.framer.history
    }

    /// Appends adjacent units, of which `ends` are the ends. `start` is their place in the change stream. It
    /// does not sync them. A single unit that is longer than a frame is not copied.
    ///
    /// # Errors
    /// The error of the disk. Nothing is appended then, even if bytes were written after the end. The caller
    /// may try again.
    pub fn append(&mut self, units: &[u8], ends: &[usize], start: Lsn) -> io::Result<()> {
        if ends.len() == 1 && units.len() > FRAME_BYTES {
            let place = Place::At(Lsn(start.0 + units.len() as u64));
            return self.append_long(units, place);
        }
        self.append_frames(|framer, to| framer.write(units, ends, start, to))
    }

    /// Appends what the file gets for a piece of the stream, if that is not the piece's own bytes.
    ///
    /// # Errors
    /// See [`append`](Self::append).
    pub fn append_own(&mut self, part: &FilePart) -> io::Result<()> {
        if let &[(end, place)] = &*part.ends
            && end > FRAME_BYTES
        {
            return self.append_long(&part.bytes, Place::To(place));
        }
        self.append_frames(|framer, to| framer.write_own(&part.bytes, &part.ends, to))
    }

    fn append_long(&mut self, unit: &[u8], place: Place) -> io::Result<()> {
        let mut framer = self.framer;
        self.frames.clear();
        framer.begin(unit, Some(place).filter(|_| framer.history.is_some()), &mut self.frames);
        self.write(framer, unit)
    }

    /// Notes how far the change stream has come with what the file does not need.
    ///
    /// # Errors
    /// See [`append`](Self::append).
    pub fn advance(&mut self, at: Lsn) -> io::Result<()> {
        match self.framer.history {
            None => Ok(()),
            Some(_) => self.append_frames(|framer, to| framer.advance(at, to)),
        }
    }

    /// Notes the history to which the data belongs from here on, and its place there.
    ///
    /// # Errors
    /// See [`append`](Self::append).
    pub fn tell_history(&mut self, id: Option<ReplicationId>, at: Lsn) -> io::Result<()> {
        match id {
            None => self.append_frames(Framer::end_history),
            Some(id) => self.append_frames(|framer, to| framer.tell_history(id, at, to)),
        }
    }

    fn append_frames(&mut self, write: impl FnOnce(&mut Framer, &mut Vec<u8>)) -> io::Result<()> {
        let mut framer = self.framer;
        self.frames.clear();
        write(&mut framer, &mut self.frames);
        self.write(framer, &[])
    }

    /// Writes `frames`, and after them `rest`, which the last frame still lacks. Then `framer` is the current
    /// one.
    fn write(&mut self, framer: Framer, rest: &[u8]) -> io::Result<()> {
        let n_frames = self.frames.len() as u64;
        let end = self.end + n_frames + rest.len() as u64;
        self.touched = self.touched.max(end);
        if self.frames.is_empty() {
            return Ok(());
        }
        self.file.write_at(&self.frames, self.end)?;
        if !rest.is_empty() {
            self.file.write_at(rest, self.end + n_frames)?;
        }
        (self.framer, self.is_fresh, self.has_grown) = (framer, false, true);
        self.end = end;
        self.frames.clear();
        self.frames.shrink_to(KEPT_BYTES);
        Ok(())
    }

    /// Begins a new increment at the cut of a rewrite's snapshot.
    ///
    /// Data before the cut must be on disk before any data after it. If the increment [could not be
    /// synced](Aof::note_lost), that is not certain. Then the manifest names the new increment only together
    /// with the base, which contains all data before the cut. Until then the old files are in force, up to
    /// the point at which the last one is torn.
    ///
    /// # Errors
    /// The error of the disk. The current increment stays in use, but may be [lost](Aof::is_lost) from now
    /// on. Only if the manifest may name the new one, [`Aof::begin_anew`] must come first.
    pub fn begin_rewrite(&mut self) -> io::Result<()> {
        // A failed append may have left bytes after the end, and another increment will follow.
        if self.touched > self.end {
            self.file.truncate(self.end)?;
            (self.touched, self.reserved) = (0, 0);
        }
        if !self.is_lost {
            self.file.sync().inspect_err(|_| self.is_lost = true)?;
        }
        let mut manifest = self.manifest.clone();
        let mut framer = Framer { safe: self.framer.offset, ..self.framer };
        let is_aside = self.is_aside || self.is_lost;
        let begun = begin_increment(&mut self.disk, &self.name, (&mut manifest, Named::Later), &mut framer)?;
        if !is_aside && let Err(unwritten) = write_manifest(&mut self.disk, &self.name, &manifest) {
            match unwritten.is_unsure {
                true => self.is_manifest_unsure = true,
                // If the file stays, the next increment overwrites it.
                false => drop(self.disk.remove(&manifest.increments.last().expect("it was begun").name)),
            }
            return Err(unwritten.error);
        }
        (self.file, self.end) = (Written(begun.0), begun.1);
        (self.manifest, self.framer, self.reserved, self.is_fresh) = (manifest, framer, 0, true);
        (self.is_aside, self.is_lost, self.is_manifest_unsure, self.touched) = (is_aside, false, false, 0);
        self.has_grown = false;
        Ok(())
    }

    /// Makes a synced file the base of the last increment. It contains all data from before that increment.
    ///
    /// # Errors
    /// The error of the disk. The old base and increments stay in force.
    pub fn end_rewrite(&mut self, written_as: &[u8], is_snapshot: bool) -> io::Result<()> {
        let mut manifest = self.manifest.clone();
        let base = manifest.begin_base(&self.name, is_snapshot, 1);
        // If this fails, the manifest may have the name all the same, so no other base gets it.
        self.manifest.skip_base();
        self.disk.rename(written_as, &base.name)?;
        self.disk.sync_folder()?;
        write_manifest(&mut self.disk, &self.name, &manifest)?;
        self.manifest = manifest;
        self.is_aside = false;
        Ok(())
    }

    /// Removes files that are no longer needed.
    ///
    /// # Errors
    /// The error of the disk. Files that are left may be removed later.
    pub fn remove_history(&mut self) -> io::Result<()> {
        forget_history(&mut self.disk, &self.name, &mut self.manifest)
    }

    /// Removes the increments since [`Aof::begin_aside`] if there is no base yet, and returns their names.
    ///
    /// The old files stay in force.
    ///
    /// # Errors
    /// The error of the disk. Files that are left are in no manifest, and the next increment overwrites them.
    pub fn give_up_aside(mut self) -> io::Result<Vec<Vec<u8>>> {
        if !self.is_aside {
            return Ok(Vec::new());
        }
        let named = manifest_in(&self.disk, &self.name)?.unwrap_or_default().increments;
        let over: Vec<_> =
            self.manifest.increments.into_iter().filter(|part| !named.contains(part)).collect();
        over.iter().try_for_each(|part| self.disk.remove(&part.name))?;
        Ok(over.into_iter().map(|part| part.name).collect())
    }

    /// Syncs the file, notes that in it, and releases the reserved space. Nothing more is appended.
    ///
    /// # Errors
    /// The error of the disk, or that the increment is [lost](Aof::is_lost).
    pub fn close(mut self) -> io::Result<()> {
        if self.is_lost {
            return Err(io::Error::other("it could not be synced before"));
        }
        let mut may_be_longer = self.reserved.max(self.touched) > self.end;
        if self.has_grown {
            // With an anchor, a reader that finds a broken frame knows that the file was intact. It does not
            // take the rest for a torn end.
            self.file.sync()?;
            self.framer.safe = self.framer.offset;
            // A full disk may have no space for the anchor, or for a part of it.
            let anchored = write_by(&*self.file, self.end, &mut self.framer, Framer::anchor);
            self.end += anchored.unwrap_or(0);
            may_be_longer = true;
        }
        if may_be_longer {
            self.file.truncate(self.end)?;
        }
        self.file.sync()
    }
}

fn forget_history(disk: &mut impl Disk, name: &str, manifest: &mut Manifest) -> io::Result<()> {
    if manifest.history.is_empty() {
        return Ok(());
    }
    for part in &manifest.history {
        disk.remove(&part.name)?;
    }
    let mut without = manifest.clone();
    without.history.clear();
    write_manifest(disk, name, &without)?;
    *manifest = without;
    Ok(())
}

/// The moment at which the manifest names a new increment.
enum Named {
    /// As soon as the file and its name are synced.
    Now,
    /// Together with its base.
    Later,
}

/// Creates the next increment. Returns its file and the file's length.
fn begin_increment<D: Disk>(
    disk: &mut D,
    name: &str,
    (manifest, named): (&mut Manifest, Named),
    framer: &mut Framer,
) -> io::Result<(D::File, u64)> {
    let part = manifest.begin_increment(name);
    (framer.previous, framer.told) = (0, 0);
    let mut make = || {
        let file = disk.create(&part.name)?;
        let n_bytes = write_by(&file, 0, framer, Framer::begin_file)?;
        file.sync()?;
        disk.sync_folder()?;
        Ok((file, n_bytes))
    };
    let made = make().inspect_err(|_: &io::Error| {
        // No manifest names it. Without a manifest it would look like a part of one that was lost.
        let _ = disk.remove(&part.name);
    })?;
    if let Named::Now = named {
        write_manifest(disk, name, manifest)?;
    }
    Ok(made)
}

/// Writes what `write` makes a framer write at a file's end, and returns its length.
fn write_by(
    file: &impl DiskFile,
    at: u64,
    framer: &mut Framer,
    write: impl FnOnce(&mut Framer, &mut Vec<u8>),
) -> io::Result<u64> {
    let mut frames = Vec::new();
    write(framer, &mut frames);
    file.write_at(&frames, at)?;
    Ok(frames.len() as u64)
}

/// The reason why a manifest could not be written.
struct Unwritten {
    error: io::Error,
    /// The new manifest may be in place all the same, now or after a crash.
    is_unsure: bool,
}

impl From<Unwritten> for io::Error {
    fn from(unwritten: Unwritten) -> Self {
        unwritten.error
    }
}

fn write_manifest(disk: &mut impl Disk, name: &str, manifest: &Manifest) -> Result<(), Unwritten> {
    let (name, aside) = (manifest_name(name), format!("temp-{name}.manifest").into_bytes());
    let text = manifest.text();
    let made = disk.create(&aside).and_then(|file| {
        file.write_at(&text, 0)?;
        file.sync()
    });
    made.map_err(|error| Unwritten { error, is_unsure: false })?;
    disk.rename(&aside, &name).map_err(|error| {
        let is_another = disk.read(&name).is_ok_and(|there| there.as_ref() != Some(&text));
        Unwritten { error, is_unsure: !is_another }
    })?;
    disk.sync_folder().map_err(|error| Unwritten { error, is_unsure: true })
}

#[cfg(test)]
mod tests;
