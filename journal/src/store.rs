//! The append-only file: a manifest, a base, and increments, of which the last is written to.
//!
//! ```text
//! begin_rewrite   a new increment is made and synced, then named in the manifest: what is appended goes there from now on
//!                 (its base is still the old one with all increments before)
//! end_rewrite     the new base, written meanwhile and synced, gets its name; the manifest names it with the new increment only, and what
//!                 was there before becomes history
//! remove_history  nothing needs it any more
//! ```
//!
//! Whenever the machine stops, the manifest names files that are there and hold all that was synced. What is appended is synced by whoever has
//! [`Aof::current`]: nobody may append meanwhile who must not wait.

use std::io;

use crate::{
    disk::{Disk, DiskFile},
    frame::Framer,
    manifest::{Invalid, Manifest},
};

/// So much room for frames is kept for the next.
const KEPT_BYTES: usize = 1 << 20;

/// So far ahead room is reserved, in bytes: what is on its way when the disk is found to be full fits in.
pub const AHEAD_BYTES: u64 = 1 << 20;

/// Where the last increment ends, as its [`Reader`](crate::reader::Reader) has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Its length in bytes, as far as it is whole.
    pub n_bytes: u64,
    /// The sum of its last frame.
    pub previous: u32,
    /// How many bytes the stream of commands has up to there.
    pub offset: u64,
}

/// An append-only file that is written to.
pub struct Aof<D: Disk> {
    disk: D,
    /// What the names of its files begin with.
    name: String,
    manifest: Manifest,
    file: D::File,
    /// Where the next frame goes.
    end: u64,
    /// Up to where room is reserved.
    reserved: u64,
    /// Up to where something may have been written to the file, if that is after its end.
    touched: u64,
    framer: Framer,
    /// The manifest does not name what is written to yet, as it has no base.
    is_aside: bool,
    /// Nothing was appended to the increment since it was begun.
    is_fresh: bool,
    /// Something was appended to the increment since it was opened or begun.
    has_grown: bool,
    /// Its name may go with the machine.
    is_name_unsynced: bool,
    /// The manifest may name an increment that was not begun after all.
    is_manifest_unsure: bool,
    /// The increment could not be synced: what was written to it since it last was may not be there.
    is_lost: bool,
    /// Room for frames.
    frames: Vec<u8>,
}

/// The manifest in a folder, if there is one.
///
/// # Errors
/// If it cannot be read, or is none.
pub fn manifest_in(disk: &impl Disk, name: &str) -> Result<Option<Manifest>, ManifestError> {
    let text = disk.read(&manifest_name(name)).map_err(ManifestError::Io)?;
    text.map(|text| Manifest::read(&text).map_err(ManifestError::Invalid)).transpose()
}

/// A manifest that names nothing yet, for a folder without one. Parts that are there all the same are not written over.
///
/// # Errors
/// The disk's.
pub fn new_manifest(disk: &impl Disk, name: &str) -> io::Result<Manifest> {
    Ok(Manifest::behind(disk.names()?.iter().map(Vec::as_slice), name))
}

/// Why there is no manifest.
#[derive(Debug)]
pub enum ManifestError {
    /// It cannot be read.
    Io(io::Error),
    /// It is none.
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

/// Takes a file in, which is synced, as all of an append-only file that nobody writes to.
///
/// # Errors
/// The disk's, or that the manifest is none. What was there before holds, unless the new manifest was written.
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

/// Removes what nothing needs any more of an append-only file that nobody writes to.
///
/// # Errors
/// The disk's, or that the manifest is none.
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
    /// Goes on with one whose files have been read, and whose last increment ends there; begins one if there was no manifest.
    ///
    /// # Errors
    /// The disk's.
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
                // What is torn must not come back, and what was read must stay: the replies to come build on it.
                file.truncate(end.n_bytes)?;
                let n_anchor =
                    if end.previous == 0 { write_anchor(&file, end.n_bytes, &mut framer)? } else { 0 };
                file.sync()?;
                (file, end.n_bytes + n_anchor)
            }
            None => begin_increment(&mut disk, name, (&mut manifest, Named::Now), &mut framer)?,
        };
        Ok(Self { is_fresh, ..Self::new(disk, name, manifest, (file, n_bytes), framer) })
    }

    /// Begins one in the place of another, if there is one: that holds until this has its base, by [`Aof::end_rewrite`].
    ///
    /// # Errors
    /// The disk's.
    pub fn begin_aside(mut disk: D, name: &str, before: Option<Manifest>) -> io::Result<Self> {
        let before = before.map_or_else(|| new_manifest(&disk, name), Ok)?;
        let (mut manifest, mut framer) = (before, Framer::default());
        let begun = begin_increment(&mut disk, name, (&mut manifest, Named::Later), &mut framer)?;
        Ok(Self { is_aside: true, is_fresh: true, ..Self::new(disk, name, manifest, begun, framer) })
    }

    /// One that goes on where its last increment ends.
    fn new(disk: D, name: &str, manifest: Manifest, (file, end): (D::File, u64), framer: Framer) -> Self {
        Self {
            disk,
            name: name.to_owned(),
            manifest,
            file,
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

    /// Of which files it consists.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// How long the increment is that is written to, in bytes.
    pub fn increment_bytes(&self) -> u64 {
        self.end
    }

    /// How many bytes the stream of commands has.
    pub fn offset(&self) -> u64 {
        self.framer.offset
    }

    /// The file that is written to, to be synced by another thread.
    pub fn current(&self) -> D::File {
        self.file.clone()
    }

    /// Notes that so much of the stream is known to be on disk.
    pub fn note_safe(&mut self, offset: u64) {
        self.framer.safe = self.framer.safe.max(offset);
    }

    /// Has the time, in seconds since 1970, be told before what is appended, once a second; or does no more.
    pub fn tell_time(&mut self, now: Option<u64>) {
        self.framer.now = now;
    }

    /// Notes that the increment could not be synced. It is not synced again: the system may have dropped what it could not write, and would
    /// say that all is well. The next [rewrite](Aof::begin_rewrite) goes on without it.
    pub fn note_lost(&mut self) {
        self.is_lost = true;
    }

    /// Whether the increment could not be synced.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether what is appended now counts only once a rewrite has ended: the manifest does not name its increment yet.
    pub fn is_aside(&self) -> bool {
        self.is_aside
    }

    /// Whether [`Aof::begin_anew`] must come before anything is appended.
    pub fn must_begin_anew(&self) -> bool {
        self.is_manifest_unsure
            || self.is_name_unsynced
            || self.is_fresh && self.framer.now.is_some() && self.framer.told == 0
    }

    /// Puts an increment that begins with the time in the place of one that nothing was appended to: programs look for it in the first line.
    /// Where it is not known what the manifest says, it is written first.
    ///
    /// # Errors
    /// The disk's. Nothing may be appended until this succeeds.
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
                let n_bytes = write_anchor(&file, 0, &mut framer)?;
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
            (self.file, self.end, self.reserved, self.framer) = (file, n_bytes, 0, framer);
            self.touched = 0;
        }
        self.is_name_unsynced = true;
        self.disk.sync_folder()?;
        self.is_name_unsynced = false;
        Ok(())
    }

    /// Reserves room ahead, if less than half of it is left; to be called before anything is done that must be appended.
    ///
    /// # Errors
    /// The disk's: it is full. As soon as it is not, this succeeds.
    pub fn reserve(&mut self) -> io::Result<()> {
        if self.end + AHEAD_BYTES / 2 > self.reserved {
            self.file.reserve(self.end + AHEAD_BYTES)?;
            self.reserved = self.end + AHEAD_BYTES;
        }
        Ok(())
    }

    /// Appends units that lie one behind the other, and of which these are the ends. They are not synced.
    ///
    /// # Errors
    /// The disk's. Nothing is appended then, whatever the file has behind its end, and the same may be tried again.
    pub fn append(&mut self, units: &[u8], ends: &[usize]) -> io::Result<()> {
        let mut framer = self.framer;
        self.frames.clear();
        framer.write(units, ends, &mut self.frames);
        self.write(framer, &[])
    }

    /// Appends one unit, which is not copied.
    ///
    /// # Errors
    /// As of [`append`](Self::append).
    pub fn append_long(&mut self, unit: &[u8]) -> io::Result<()> {
        let mut framer = self.framer;
        self.frames.clear();
        framer.begin(unit, &mut self.frames);
        self.write(framer, unit)
    }

    /// Writes the frames there are, and behind them what the last of them still lacks. After that the framer is as this one.
    fn write(&mut self, framer: Framer, rest: &[u8]) -> io::Result<()> {
        let n_frames = self.frames.len() as u64;
        let end = self.end + n_frames + rest.len() as u64;
        self.touched = self.touched.max(end);
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

    /// Begins a new increment, where a snapshot is cut that will be the new base.
    ///
    /// What is before the cut must be on disk before anything after it is. If it may not be, as it [could not be synced](Aof::note_lost), the new
    /// increment is named only together with the base, which has all of that. Until then the old files hold, up to where the last was torn.
    ///
    /// # Errors
    /// The disk's. It goes on with the increment that there is, which may be [lost](Aof::is_lost) from now on. Only where the manifest may name
    /// the new one all the same, [`Aof::begin_anew`] must come first.
    pub fn begin_rewrite(&mut self) -> io::Result<()> {
        // Of what could not be appended there may be a part, and another file follows.
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
                // The next to be begun writes over it, if it stays.
                false => drop(self.disk.remove(&manifest.increments.last().expect("it was begun").name)),
            }
            return Err(unwritten.error);
        }
        (self.file, self.end) = begun;
        (self.manifest, self.framer, self.reserved, self.is_fresh) = (manifest, framer, 0, true);
        (self.is_aside, self.is_lost, self.is_manifest_unsure, self.touched) = (is_aside, false, false, 0);
        self.has_grown = false;
        Ok(())
    }

    /// Takes a file in as the base of the last increment: it has all that was done before that began, and is synced.
    ///
    /// # Errors
    /// The disk's. Old base and increments hold as before.
    pub fn end_rewrite(&mut self, written_as: &[u8], is_snapshot: bool) -> io::Result<()> {
        let mut manifest = self.manifest.clone();
        let base = manifest.begin_base(&self.name, is_snapshot, 1);
        // Should this fail, the name may be in the manifest all the same: no other base gets it.
        self.manifest.skip_base();
        self.disk.rename(written_as, &base.name)?;
        self.disk.sync_folder()?;
        write_manifest(&mut self.disk, &self.name, &manifest)?;
        self.manifest = manifest;
        self.is_aside = false;
        Ok(())
    }

    /// Removes what nothing needs any more.
    ///
    /// # Errors
    /// The disk's. What is left may be removed later.
    pub fn remove_history(&mut self) -> io::Result<()> {
        forget_history(&mut self.disk, &self.name, &mut self.manifest)
    }

    /// Removes what has been written since [`Aof::begin_aside`], if it has not got a base: the files of before hold. Gives the names.
    ///
    /// # Errors
    /// The disk's. What is left is in no manifest, and written over by the next that is begun.
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

    /// Syncs, notes that in the file, and gives back what was reserved: nothing more is appended.
    ///
    /// # Errors
    /// The disk's, or that the increment is [lost](Aof::is_lost).
    pub fn close(mut self) -> io::Result<()> {
        if self.is_lost {
            return Err(io::Error::other("it could not be synced before"));
        }
        let mut may_be_longer = self.reserved.max(self.touched) > self.end;
        if self.has_grown {
            // Whoever then finds something broken in it knows that it was whole, and does not take what is behind for a torn end.
            self.file.sync()?;
            self.framer.safe = self.framer.offset;
            // On a full disk there may be no room for it, or for a part of it.
            self.end += write_anchor(&self.file, self.end, &mut self.framer).unwrap_or(0);
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

/// When the manifest names a new increment.
enum Named {
    /// As soon as it is there for good.
    Now,
    /// Together with its base.
    Later,
}

/// Makes the increment that comes next. Gives its file, and how long that is.
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
        let n_bytes = write_anchor(&file, 0, framer)?;
        file.sync()?;
        disk.sync_folder()?;
        Ok((file, n_bytes))
    };
    let made = make().inspect_err(|_: &io::Error| {
        // Nothing names it, and without a manifest it would look like a part of one that was lost.
        let _ = disk.remove(&part.name);
    })?;
    if let Named::Now = named {
        write_manifest(disk, name, manifest)?;
    }
    Ok(made)
}

/// Writes a frame of no units to where a file ends; says how long it is.
fn write_anchor(file: &impl DiskFile, at: u64, framer: &mut Framer) -> io::Result<u64> {
    let mut anchor = Vec::new();
    framer.anchor(&mut anchor);
    file.write_at(&anchor, at)?;
    Ok(anchor.len() as u64)
}

/// Why a manifest could not be written.
struct Unwritten {
    error: io::Error,
    /// It may be there all the same, now or when the machine has stopped.
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
