//! Entries as they stand in a file: written, compressed, taken apart and built.

use std::{borrow::Cow, cell::Cell};

use crate::{
    entry::{
        self, EntryRef, Kind,
        lru::{Access, AccessPolicy, idle_seconds},
        time::{Deadline, Millis},
    },
    keyspace::Keyspace,
    rdb::{
        Dialect, Flaw, Made, Making, Malformed, Reader, Stop, Unfinished, Unwritable, ValueParts,
        WriteFormat,
        apart::Apart,
        codes::{encoded, opcode},
        lzf::Compressor,
        walk::{Walker, Written},
        write_format::{self, Whole},
        writer,
    },
    types::kinds,
};

/// Shorter strings are not compressed, as in Redis.
const COMPRESSED_MIN_BYTES: usize = 21;

/// The number of bytes that a compressed string must save, as in Redis.
const SAVED_MIN_BYTES: usize = 4;

/// The use of a key, in the unit of the eviction policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recency {
    /// The seconds since it was last used.
    Idle(u64),
    /// The frequency of its use, on the logarithmic scale of LFU policies.
    Frequency(u8),
}

impl Recency {
    /// The use of an entry.
    pub fn of(entry: EntryRef<'_>, access: &Access, now: Millis) -> Self {
        match access.policy() {
            AccessPolicy::Lru | AccessPolicy::Lrm => Recency::Idle(idle_seconds(entry, now)),
            AccessPolicy::Lfu { .. } => Recency::Frequency(access.frequency(entry, now).min(255) as u8),
        }
    }
}

/// Writes an entry with its strings as they are: under a hold, compressing them would take too long.
///
/// Fields whose deadline has passed are left out; if there are no others, nothing is written, and the answer
/// is false. A key whose own deadline has passed is written, as in Redis.
pub fn encode_entry(out: &mut Vec<u8>, entry: EntryRef<'_>, recency: Option<Recency>, now: Millis) -> bool {
    if kinds::is_over(entry, now) {
        return false;
    }
    if let Some(Deadline(Millis(unix_ms))) = entry.deadline() {
        out.push(opcode::DEADLINE_MS);
        out.extend_from_slice(&unix_ms.to_le_bytes());
    }
    match recency {
        Some(Recency::Idle(seconds)) => {
            out.push(opcode::IDLE);
            writer::len(out, seconds);
        }
        Some(Recency::Frequency(frequency)) => out.extend_from_slice(&[opcode::FREQUENCY, frequency]),
        None => {}
    }
    let key_at = out.len();
    writer::string(out, entry.key());
    let type_at = out.len();
    kinds::dump(out, entry, now);
    // A value begins with its type, and the key stands between the two.
    out[key_at..=type_at].rotate_right(1);
    true
}

/// Writes a string, compressed if that saves something.
pub(super) fn string(out: &mut Vec<u8>, text: &[u8], compressor: Option<&mut Compressor>) {
    if !compressor.is_some_and(|compressor| compressed(out, text, compressor)) {
        writer::string(out, text);
    }
}

/// Writes a string compressed; returns false if that saves nothing.
fn compressed(out: &mut Vec<u8>, text: &[u8], compressor: &mut Compressor) -> bool {
    if text.len() < COMPRESSED_MIN_BYTES {
        return false;
    }
    let Some(bytes) = compressor.try_compress(text, text.len() - SAVED_MIN_BYTES) else { return false };
    out.push(encoded::LZF);
    writer::number_of(out, bytes.len());
    writer::number_of(out, text.len());
    out.extend_from_slice(bytes);
    true
}

/// Writes the first of some entries again, with its long strings compressed. Returns the others.
///
/// # Panics
/// If it is no entry.
pub(super) fn compress_first<'a>(
    entries: &'a [u8],
    out: &mut Vec<u8>,
    compressor: &mut Compressor,
    dialect: Dialect,
) -> &'a [u8] {
    let walker = Walker::new(entries);
    let mut compressing = Compressing { walker, n_copied: 0, out, compressor, dialect };
    let walked = compressing.entry();
    assert_eq!(walked, Ok(()), "what was encoded is an entry");
    compressing.copy_up_to(compressing.walker.at());
    compressing.walker.rest()
}

/// The first of some entries, seen for a format.
pub(super) struct FirstEntry {
    /// Its length.
    pub n_bytes: usize,
    /// Whether it was rewritten for the format, which lacks its type.
    pub is_rewritten: bool,
}

/// Rewrites the first of some entries if the format lacks its type.
///
/// # Errors
/// If the format cannot hold it: its key, and the reason.
///
/// # Panics
/// If it is no entry.
pub(super) fn rewrite_first(
    entries: &[u8],
    out: &mut Vec<u8>,
    format: WriteFormat,
) -> Result<FirstEntry, (Vec<u8>, Unwritable)> {
    let seen = see_first(entries).expect("what was encoded is an entry");
    let SeenEntry { type_at, value_at, n_bytes } = seen;
    let value_type = entries[type_at];
    if format.has(value_type) {
        return Ok(FirstEntry { n_bytes, is_rewritten: false });
    }
    out.extend_from_slice(&entries[..value_at]);
    let value = &entries[value_at..n_bytes];
    match write_format::rewrite(out, value_type, value, format, Whole::Yes) {
        Ok(value_type) => out[type_at] = write_format::stated(value_type),
        Err(why) => {
            let key = Reader::new(&entries[type_at + 1..value_at]).string();
            return Err((key.map_or_else(Vec::new, Cow::into_owned), why));
        }
    }
    Ok(FirstEntry { n_bytes, is_rewritten: true })
}

/// The places of an encoded entry's parts.
struct SeenEntry {
    type_at: usize,
    value_at: usize,
    n_bytes: usize,
}

fn see_first(entries: &[u8]) -> Result<SeenEntry, Stop> {
    let mut walker = Walker::new(entries);
    let (type_at, value_type) = loop {
        match walker.byte()? {
            opcode::DEADLINE_MS => walker.bytes(size_of::<Millis>())?,
            opcode::IDLE => _ = ValueParts::len(&mut walker)?,
            opcode::FREQUENCY => walker.bytes(1)?,
            value_type => break (walker.at() - 1, value_type),
        }
    };
    walker.string()?;
    let value_at = walker.at();
    kinds::walk_dump(value_type, &mut walker).unwrap_or(Err(Stop::Malformed))?;
    Ok(SeenEntry { type_at, value_at, n_bytes: walker.at() })
}

/// Walks over an entry and writes it again.
struct Compressing<'a, 'o> {
    walker: Walker<'a>,
    /// The number of bytes of the walk that have been written again.
    n_copied: usize,
    out: &'o mut Vec<u8>,
    compressor: &'o mut Compressor,
    /// The dialect of the entry's type.
    dialect: Dialect,
}

impl Compressing<'_, '_> {
    fn entry(&mut self) -> Result<(), Stop> {
        loop {
            match self.walker.byte()? {
                opcode::DEADLINE_MS => self.bytes(size_of::<Millis>())?,
                opcode::IDLE => _ = self.len()?,
                opcode::FREQUENCY => self.bytes(1)?,
                value_type => {
                    self.string()?;
                    let value_type = self.dialect.value_type(value_type).ok_or(Stop::Malformed)?;
                    return kinds::walk_dump(value_type, self).unwrap_or(Err(Stop::Malformed));
                }
            }
        }
    }

    fn copy_up_to(&mut self, end: usize) {
        self.out.extend_from_slice(self.walker.between(self.n_copied, end));
        self.n_copied = end;
    }
}

impl ValueParts for Compressing<'_, '_> {
    fn len(&mut self) -> Result<u64, Stop> {
        self.walker.len()
    }

    fn string(&mut self) -> Result<(), Stop> {
        let start = self.walker.at();
        if let Written::Plain(text) = self.walker.written()?
            && text.len() >= COMPRESSED_MIN_BYTES
        {
            self.copy_up_to(start);
            if compressed(self.out, text, self.compressor) {
                self.n_copied = self.walker.at();
            }
        }
        Ok(())
    }

    fn bytes(&mut self, n: usize) -> Result<(), Stop> {
        self.walker.bytes(n)
    }

    fn double_in_text(&mut self) -> Result<(), Stop> {
        self.walker.double_in_text()
    }
}

/// An entry of a file, cut out and not built yet.
#[derive(Debug, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// The key.
    pub key: Cow<'a, [u8]>,
    /// The deadline of the key.
    pub deadline: Option<Deadline>,
    /// The use of the key.
    pub recency: Option<Recency>,
    /// The number of the value's type in the format.
    pub value_type: u8,
    /// The value as it is written.
    pub value: &'a [u8],
    /// The strings of key and value that stand apart.
    pub apart: &'a [Apart],
    /// Whether the value has further elements, which the next entry has. It has the same key.
    pub is_part: bool,
    /// The number of these further elements.
    pub n_left: u64,
    /// The place of the entry in the file.
    pub offset: u64,
}

impl RawEntry<'_> {
    /// The type of the value.
    pub fn kind(&self) -> Option<Kind> {
        kinds::kind_of_dump(self.value_type)
    }

    /// Whether the key's own deadline has passed.
    pub fn has_expired(&self, now: Millis) -> bool {
        self.deadline.is_some_and(|deadline| deadline.has_passed(now))
    }

    /// The memory that the value takes before it is built.
    pub fn n_value_bytes(&self) -> usize {
        self.value.len() + self.apart.iter().map(|apart| apart.text.len()).sum::<usize>()
    }

    /// Builds the entry, with its deadline. It takes over the strings that stand apart, and goes on from the
    /// parts before, if there are any.
    ///
    /// # Errors
    /// If the value makes no sense.
    pub fn build(
        &self,
        keyspace: &Keyspace,
        now: Millis,
        onto: Option<Unfinished>,
    ) -> Result<Made, Malformed> {
        let hasher = keyspace.router().hasher();
        let (thresholds, deadline) = (keyspace.thresholds(), self.deadline);
        let (onto, is_part) = (Cell::new(onto), self.is_part);
        let making = Making { key: &self.key, hasher, thresholds, now, deadline, onto, is_part };
        let mut reader = Reader::with_apart(self.value, self.apart);
        let built = if self.apart.is_empty() {
            kinds::restore(self.value_type, &mut reader, &making)
        } else {
            let texts = self.apart.iter().map(|apart| &apart.text);
            entry::offer_blobs(texts, || kinds::restore(self.value_type, &mut reader, &making))
        };
        let mut built = built.ok_or_else(|| reader.malformed())?;
        if !reader.is_at_end() {
            return Err(Malformed { at: reader.at(), flaw: Flaw::GoesOn });
        }
        if let Made::Entry(entry) = &mut built
            && entry.as_ref().deadline() != self.deadline
        {
            entry.set_deadline(self.deadline);
        }
        Ok(built)
    }
}
