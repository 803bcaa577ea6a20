//! The reader of a file, in memory that is bounded by its longest entry.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    io::{Error, Read},
    ops::Range,
};

use crc::{Digest, Table};

use super::{HEADER_BYTES, MAGIC, MAGIC_OF_VALKEY, RawEntry, Recency, VERSION_WITH_CHECKSUM};
use crate::{
    entry::time::{Deadline, Millis},
    rdb::{
        CHECKSUM, Dialect, Malformed, Reader, Stop, UnknownType, ValueParts,
        apart::{self, Apart, Filling, LongString},
        codes::{encoded, module, opcode, types},
        dialect::{FIRST_OF_VALKEY, LATEST_OF_REDIS},
        walk::{self, Elements, Walker},
        writer,
    },
    types::{kinds, packed::Packed},
};

/// The bytes that are read at once; more for an entry that is longer.
const PIECE_BYTES: usize = 512 << 10;

/// The length from which a part of a value is given out, if values are [divided](SnapshotReader::divide).
const PART_BYTES: usize = 4 << 20;

/// Reads a file record by record.
///
/// Lengths in the file are not believed: memory is allocated as bytes are read. The value of an entry is cut
/// out and not built, so that other threads can build it meanwhile. Where it is known how long the file is,
/// very long strings are read to places of their own.
pub struct SnapshotReader<R> {
    source: R,
    /// The bytes that are read, from `first` on in the file.
    buffer: Vec<u8>,
    first: u64,
    /// The part of the buffer that has been given out.
    n_given: usize,
    /// The part of the buffer that is summed.
    n_summed: usize,
    /// The very long strings of the record that was given last, or is read.
    apart: Vec<Apart>,
    /// The number of bytes that the record has in the file and not in the buffer.
    n_apart_bytes: usize,
    /// Whether large values are given out in parts, and the bytes of the last part.
    divides: bool,
    part: Vec<u8>,
    /// Whether very long strings stay in their places.
    keeps_long: bool,
    version: u16,
    grammar: Grammar,
    /// The number of keys of which metadata of modules was passed over.
    n_metadata: u64,
    /// The length of the file, if that is known.
    total: Option<u64>,
    checksum: Option<Digest<'static, u64, Table<16>>>,
}

/// All that decides how the bytes of a record are understood.
#[derive(Default)]
struct Grammar {
    dialect: Dialect,
    /// Whether data of modules is passed over rather than refused.
    skips_modules: bool,
    /// The names of fields that hashes refer to, by the number of their template.
    templates: HashMap<u64, Vec<Box<[u8]>>>,
}

/// A record of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A fact about the file or its writer: a name and a value.
    Aux(Cow<'a, [u8]>, Cow<'a, [u8]>),
    /// The text of a library of functions.
    Library(Cow<'a, [u8]>),
    /// The entries that follow are of the database with this number.
    Select(u64),
    /// The approximate number of entries that follow, and of those with deadlines.
    Sizes(u64, u64),
    /// A record without data of this server: about slots of a cluster, or a template of hashes.
    Other,
    /// A record of a module that is not about a key.
    ModuleRecord {
        /// The module's name.
        module: String,
        /// It has numbers only, so it describes nothing that has a name.
        is_empty: bool,
    },
    /// A key with a value of a module, which was passed over.
    ModuleValue {
        /// The key.
        key: Cow<'a, [u8]>,
        /// The module's name.
        module: String,
    },
    /// An entry.
    Entry(RawEntry<'a>),
    /// The end, and whether a checksum confirms all bytes before it.
    End {
        /// The checksum was compared, and is right.
        is_checked: bool,
    },
}

/// A fault of a file, and its place.
#[derive(Debug)]
pub struct FileError {
    /// The place in the file, in bytes from its beginning.
    pub offset: u64,
    /// The key of the entry that it concerns.
    pub key: Option<Vec<u8>>,
    /// The fault.
    pub problem: Problem,
}

/// A fault of a file.
#[derive(Debug)]
pub enum Problem {
    /// It cannot be read.
    Io(Error),
    /// It begins otherwise.
    NotASnapshot,
    /// Its version is not supported.
    Version(u16),
    /// It ends in the middle of a record.
    Ends,
    /// A length or a string has an invalid form.
    Length,
    /// It continues where it should end.
    GoesOn,
    /// A value of a type that is not supported.
    Type(UnknownType),
    /// A hash refers to a template that the file does not have before it.
    Template(u64),
    /// A value of a module, or a record of one.
    Module(String),
    /// Data that modules keep about a key whose value is not theirs.
    ModuleMetadata,
    /// A value of a module in the form before Redis 4.0, whose end only the module can find.
    EarlyModule(String),
    /// Functions as the release candidates of Redis 7.0 wrote them.
    EarlyLibrary,
    /// A value whose bytes are invalid, and the place in the value.
    Value(Malformed),
    /// The checksum in the file is not that of the file.
    Checksum {
        /// The checksum in the file.
        stated: u64,
        /// The computed checksum.
        computed: u64,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Io(error) => write!(f, "reading failed: {error}"),
            Problem::NotASnapshot => {
                write!(f, "this is no RDB file: it does not begin with REDIS or VALKEY and a version")
            }
            Problem::Version(version) => write!(
                f,
                "the format's version is {version}; versions 1 to {} of Redis, and from {FIRST_OF_VALKEY} on of Valkey, are read",
                FIRST_OF_VALKEY - 1
            ),
            Problem::Ends => write!(
                f,
                "the file ends in the middle of a record: it was cut off, or a length in it is wrong"
            ),
            Problem::Length => write!(f, "a length or string is not well formed"),
            Problem::GoesOn => write!(f, "the file goes on after its end"),
            Problem::Type(unknown) => write!(f, "{unknown}"),
            Problem::Template(number) => {
                write!(f, "the hash refers to template {number}, which does not stand before it")
            }
            Problem::Module(name) => write!(
                f,
                "it holds data of the module '{name}', and modules are not supported: 'rdb-skip-module-data yes' leaves such data out"
            ),
            Problem::ModuleMetadata => write!(
                f,
                "it has metadata of modules, and modules are not supported: 'rdb-skip-module-data yes' leaves such data out"
            ),
            Problem::EarlyModule(name) => write!(
                f,
                "it holds data of the module '{name}' in the form before Redis 4.0, whose end is not known without the module"
            ),
            Problem::EarlyLibrary => {
                write!(f, "functions of a release candidate of Redis 7.0 are not supported")
            }
            Problem::Value(malformed) => write!(f, "the value is not well formed: {malformed} of the value"),
            Problem::Checksum { stated, computed } => write!(
                f,
                "CRC error: the checksum is {stated:016x} in the file and {computed:016x} of what was read: the file is damaged"
            ),
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}", self.offset)?;
        if let Some(key) = &self.key {
            write!(f, ", key '{}'", key.escape_ascii())?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for FileError {}

/// The places of the parts of a record, from the record's beginning on.
enum RecordParts {
    Aux(Range<usize>, Range<usize>),
    Library(Range<usize>),
    Select(u64),
    Sizes(u64, u64),
    Other,
    Template(u64, Vec<Range<usize>>),
    ModuleRecord { module: String, is_empty: bool },
    ModuleValue { key: Range<usize>, module: String },
    Entry(EntryParts),
    End,
}

/// The places of the parts of an entry.
struct EntryParts {
    deadline: Option<Deadline>,
    recency: Option<Recency>,
    value_type: u8,
    has_metadata: bool,
    key: Range<usize>,
    value: Range<usize>,
}

impl EntryParts {
    fn refers_to_template(&self) -> bool {
        matches!(self.value_type, types::HASH_OF_TEMPLATE | types::HASH_OF_TEMPLATE_PACKED)
    }
}

/// The reason why a record is missing.
enum Missing {
    Stop(Stop),
    Problem(Problem),
    /// The key is there.
    OfKey(Range<usize>, Problem),
}

impl From<Stop> for Missing {
    fn from(stop: Stop) -> Self {
        Missing::Stop(stop)
    }
}

impl<R: Read> SnapshotReader<R> {
    /// Begins to read a file of length `total`, if that is known. `checks` says whether its checksum is
    /// compared.
    ///
    /// # Errors
    /// If it is no file of a version that is read.
    pub fn new(source: R, total: Option<u64>, checks: bool) -> Result<Self, FileError> {
        let mut reader = Self {
            source,
            buffer: Vec::with_capacity(2 * PIECE_BYTES),
            first: 0,
            n_given: 0,
            n_summed: 0,
            apart: Vec::new(),
            n_apart_bytes: 0,
            divides: false,
            keeps_long: false,
            part: Vec::new(),
            version: 0,
            grammar: Grammar::default(),
            n_metadata: 0,
            total,
            checksum: checks.then(|| CHECKSUM.digest()),
        };
        reader.read_more(HEADER_BYTES).map_err(|problem| match problem {
            Problem::Io(_) => reader.wrong(0, problem),
            _ => reader.wrong(0, Problem::NotASnapshot),
        })?;
        let header = &reader.buffer[..HEADER_BYTES];
        let is_valkey = header.starts_with(MAGIC_OF_VALKEY);
        let magic = if is_valkey { MAGIC_OF_VALKEY.as_slice() } else { MAGIC };
        let version = header.strip_prefix(magic).and_then(|digits| std::str::from_utf8(digits).ok());
        let version = version.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let version = version.and_then(|text| text.parse().ok());
        reader.version = version.ok_or_else(|| reader.wrong(0, Problem::NotASnapshot))?;
        let is_read = match reader.version {
            0 => false,
            FIRST_OF_VALKEY => true,
            version => (version > FIRST_OF_VALKEY) == is_valkey,
        };
        let dialect = Dialect::of_version(reader.version).filter(|_| is_read);
        reader.grammar.dialect =
            dialect.ok_or_else(|| reader.wrong(magic.len(), Problem::Version(reader.version)))?;
        reader.n_given = HEADER_BYTES;
        Ok(reader)
    }

    /// Gives out large values in parts, so that the file's bytes of a value and its entry are never both in
    /// memory. Every entry but the last of a key is marked as [a part](RawEntry::is_part).
    pub fn divide(&mut self) {
        self.divides = true;
    }

    /// Leaves very long strings in their places, for a caller that copies them.
    pub fn keep_long(&mut self) {
        self.keeps_long = true;
    }

    /// Passes over data of modules instead of refusing it.
    pub fn skip_modules(&mut self) {
        self.grammar.skips_modules = true;
    }

    /// The number of keys so far of which metadata of modules was passed over.
    pub fn n_metadata(&self) -> u64 {
        self.n_metadata
    }

    /// Whether the version is later than those that are known. Then the file may have types that are not.
    pub fn is_of_later_version(&self) -> bool {
        let known = match self.grammar.dialect {
            Dialect::Redis => LATEST_OF_REDIS,
            Dialect::Valkey => FIRST_OF_VALKEY,
        };
        self.version > known
    }

    /// Whether the format is Valkey's own.
    pub fn is_of_valkey(&self) -> bool {
        self.grammar.dialect == Dialect::Valkey
    }

    /// The version of the format.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// How much of the file has been given out.
    pub fn offset(&self) -> u64 {
        self.first + self.n_given as u64
    }

    /// Bytes that the reader has allocated, without the strings of the last record that stand apart.
    pub fn allocated_bytes(&self) -> usize {
        self.buffer.capacity() + self.part.capacity()
    }

    /// Returns the next record. Not to be called after the [end](Item::End).
    ///
    /// # Errors
    /// The fault of the file.
    pub fn next_item(&mut self) -> Result<Item<'_>, FileError> {
        self.apart.clear();
        if self.part.capacity() > 2 * PART_BYTES {
            self.part = Vec::new();
        }
        let offset = self.offset();
        let (record, at) = loop {
            let bytes = &self.buffer[self.n_given..];
            let mut walker = match self.total {
                Some(_) if !self.keeps_long => Walker::setting_apart(bytes, self.apart.len()),
                _ => Walker::new(bytes),
            };
            match record(&mut walker, &self.grammar) {
                Ok(record) => {
                    let at = self.n_given;
                    self.n_given += walker.at();
                    self.first += std::mem::take(&mut self.n_apart_bytes) as u64;
                    break (record, at);
                }
                Err(Missing::Stop(Stop::More(n))) => {
                    let (at, elements) = (walker.at(), walker.elements());
                    if self.divides && elements.end - elements.start >= PART_BYTES {
                        let head = self.head_of_part(&elements);
                        if let Some(head) = head {
                            return Ok(Item::Entry(self.take_part(head, &elements, offset)));
                        }
                    }
                    self.read_more(n).map_err(|problem| self.wrong(at, problem))?;
                }
                Err(Missing::Stop(Stop::Long(long))) => self.set_apart(&long)?,
                Err(missing) => return Err(self.missing(walker.at(), missing)),
            }
        };
        if let RecordParts::End = record {
            return self.end();
        }
        let bytes = &self.buffer[at..self.n_given];
        let malformed = || FileError { offset, key: None, problem: Problem::Length };
        if let RecordParts::Entry(EntryParts { has_metadata: true, .. }) = record {
            self.n_metadata += 1;
        }
        match record {
            RecordParts::Template(number, names) => {
                let text = |name: Range<usize>| Reader::with_apart(&bytes[name], &self.apart).string();
                let names: Option<Vec<Box<[u8]>>> =
                    names.into_iter().map(|name| text(name).map(|name| name.into())).collect();
                self.grammar.templates.insert(number, names.ok_or_else(malformed)?);
                Ok(Item::Other)
            }
            RecordParts::Entry(parts) if parts.refers_to_template() => {
                let key = Reader::with_apart(&bytes[parts.key.clone()], &self.apart).string();
                let key = key.ok_or_else(malformed)?;
                let value = &bytes[parts.value];
                let is_packed = parts.value_type == types::HASH_OF_TEMPLATE_PACKED;
                self.part.clear();
                write_as_hash(&mut self.part, value, is_packed, &self.grammar.templates, &self.apart)
                    .map_err(|problem| FileError { offset, key: Some(key.to_vec()), problem })?;
                Ok(Item::Entry(RawEntry {
                    key,
                    deadline: parts.deadline,
                    recency: parts.recency,
                    value_type: types::HASH,
                    value: &self.part,
                    apart: if is_packed { &[] } else { &self.apart },
                    is_part: false,
                    n_left: 0,
                    offset,
                }))
            }
            record => item(record, bytes, &self.apart, offset).ok_or_else(malformed),
        }
    }

    /// The part of the next entry before its value, if the value may be divided after these elements.
    fn head_of_part(&self, elements: &Elements) -> Option<(EntryHead, usize)> {
        let bytes = &self.buffer[self.n_given..];
        let mut walker = Walker::setting_apart(bytes, self.apart.len());
        let first = walker.byte().ok()?;
        let head = head(&mut walker, first, &self.grammar).ok()?;
        // The strings that stand apart go with the part. So none may be of the key, or of the element that
        // follows.
        let has_first_deadline = head.value_type == Some(types::HASH_WITH_DEADLINES);
        let first_count_at = walker.at() + if has_first_deadline { size_of::<Millis>() } else { 0 };
        // The other counts of a stream are of its groups.
        let may_be = head.value_type.is_some_and(|value_type| types::DIVISIBLE.contains(&value_type))
            && elements.count_at == first_count_at
            && bytes[head.key.start] != encoded::APART
            && elements.n_apart == self.apart.len();
        may_be.then_some((head, walker.at()))
    }

    /// Takes the passed elements of the next entry out of the buffer, and gives them out as an entry. What is
    /// left in the buffer is an entry with the others.
    fn take_part(
        &mut self,
        (head, value_at): (EntryHead, usize),
        elements: &Elements,
        offset: u64,
    ) -> RawEntry<'_> {
        let &Elements { count_at, count, start, n_passed, end, .. } = elements;
        let base = self.n_given;
        self.part.clear();
        self.part.extend_from_slice(&self.buffer[base + value_at..base + count_at]);
        writer::len(&mut self.part, n_passed);
        self.part.extend_from_slice(&self.buffer[base + start..base + end]);
        self.sum_up_to(base + end);
        let mut n_left = Vec::new();
        writer::len(&mut n_left, count - n_passed);
        self.n_summed = base + count_at + n_left.len();
        self.n_apart_bytes += end - count_at - n_left.len();
        self.buffer.splice(base + count_at..base + end, n_left);
        let EntryHead { deadline, recency, value_type, key, .. } = head;
        let value_type = value_type.expect("only known types are divided");
        let key = Reader::new(&self.buffer[base..][key]).string().expect("it was walked over");
        let (value, apart) = (&self.part[..], &self.apart[..]);
        RawEntry {
            key,
            deadline,
            recency,
            value_type,
            value,
            apart,
            is_part: true,
            n_left: count - n_passed,
            offset,
        }
    }

    /// Reads a very long string of the next record to a place of its own. In the record's bytes a placeholder
    /// stands for it.
    #[cold]
    fn set_apart(&mut self, long: &LongString) -> Result<(), FileError> {
        let LongString { start, text_at, stored, .. } = *long;
        let stands_at = self.offset() + (text_at + self.n_apart_bytes) as u64;
        let end = stands_at.checked_add(stored as u64);
        if end.is_none_or(|end| self.total.is_none_or(|total| end > total)) {
            return Err(self.wrong(text_at, Problem::Ends));
        }
        let refused = |reader: &Self| reader.wrong(text_at, Problem::Length);
        let mut filling = Filling::new(long).ok_or_else(|| refused(self))?;
        let (start_at, text_at) = (self.n_given + start, self.n_given + text_at);
        let n_there = stored.min(self.buffer.len() - text_at);
        self.sum_up_to(text_at + n_there);
        filling.push(&self.buffer[text_at..][..n_there]).ok_or_else(|| refused(self))?;
        let placeholder = apart::placeholder(self.apart.len());
        self.buffer.splice(start_at..text_at + n_there, placeholder);
        self.n_summed = start_at + placeholder.len();

        let (mut piece, mut n_left) = (Vec::with_capacity(PIECE_BYTES), stored - n_there);
        while n_left > 0 {
            piece.clear();
            let wanted = n_left.min(PIECE_BYTES);
            let read = (&mut self.source).take(wanted as u64).read_to_end(&mut piece);
            let n_read = read.map_err(|error| self.wrong(start, Problem::Io(error)))?;
            if n_read < wanted {
                return Err(self.wrong(start, Problem::Ends));
            }
            if let Some(checksum) = &mut self.checksum {
                checksum.update(&piece);
            }
            filling.push(&piece).ok_or_else(|| self.wrong(start, Problem::Length))?;
            n_left -= wanted;
        }
        let text = filling.finish().ok_or_else(|| self.wrong(start, Problem::Length))?;
        let n_bytes_less = text_at - start_at + stored - placeholder.len();
        self.n_apart_bytes += n_bytes_less;
        self.apart.push(Apart { text, n_bytes_less });
        Ok(())
    }

    /// Compares the checksum, all of the file having been given out.
    fn end(&mut self) -> Result<Item<'static>, FileError> {
        if self.version < VERSION_WITH_CHECKSUM {
            return self.end_without_checksum();
        }
        self.sum_up_to(self.n_given);
        let computed = self.checksum.take().map(|checksum| checksum.finalize());
        let at = self.offset();
        let stated = loop {
            match Walker::new(&self.buffer[self.n_given..]).array() {
                Ok(stated) => break u64::from_le_bytes(stated),
                Err(Stop::More(n)) => self.read_more(n).map_err(|problem| self.wrong(0, problem))?,
                Err(Stop::Malformed | Stop::Long(_)) => unreachable!("bytes as they are have no form"),
            }
        };
        self.n_given += size_of::<u64>();
        match computed {
            Some(computed) if stated != 0 && stated != computed => {
                Err(FileError { offset: at, key: None, problem: Problem::Checksum { stated, computed } })
            }
            _ => Ok(Item::End { is_checked: computed.is_some() && stated != 0 }),
        }
    }

    /// Where there is no checksum, a file that goes on may be one of a later version.
    fn end_without_checksum(&mut self) -> Result<Item<'static>, FileError> {
        let has_more = self.n_given < self.buffer.len() || self.read_more(1).is_ok();
        if has_more { Err(self.wrong(0, Problem::GoesOn)) } else { Ok(Item::End { is_checked: false }) }
    }

    /// The fault at this number of bytes from the record's beginning on, behind its strings that stand apart.
    fn wrong(&self, at: usize, problem: Problem) -> FileError {
        let n_apart_bytes = if at > 0 { self.n_apart_bytes } else { 0 };
        FileError { offset: self.offset() + (at + n_apart_bytes) as u64, key: None, problem }
    }

    fn missing(&self, at: usize, missing: Missing) -> FileError {
        match missing {
            Missing::Stop(_) => self.wrong(at, Problem::Length),
            Missing::Problem(problem) => self.wrong(0, problem),
            Missing::OfKey(key, problem) => {
                let written = &self.buffer[self.n_given..][key];
                let key = Reader::with_apart(written, &self.apart).string().map(Cow::into_owned);
                FileError { key, ..self.wrong(0, problem) }
            }
        }
    }

    /// Reads at least `n` bytes more. The bytes that are there and not given out are at most doubled. So
    /// repeated walks over a long value take no longer in all than two walks.
    fn read_more(&mut self, n: usize) -> Result<(), Problem> {
        self.forget_given();
        if let Some(total) = self.total {
            let rest = total.saturating_sub(self.first + self.buffer.len() as u64);
            if n as u64 > rest {
                return Err(Problem::Ends);
            }
        }
        let wanted = n.max(self.buffer.len()).max(PIECE_BYTES);
        if self.total.is_some() {
            // The file has this many bytes. Growing step by step would copy the buffer.
            self.buffer.reserve_exact(n);
        }
        // This allocates as it reads.
        let n_read =
            (&mut self.source).take(wanted as u64).read_to_end(&mut self.buffer).map_err(Problem::Io)?;
        if n_read < n { Err(Problem::Ends) } else { Ok(()) }
    }

    /// Sums and drops the bytes that were given out.
    fn forget_given(&mut self) {
        self.sum_up_to(self.n_given);
        self.buffer.drain(..self.n_given);
        if self.buffer.capacity() > 8 * PIECE_BYTES && self.buffer.len() < PIECE_BYTES {
            self.buffer.shrink_to(2 * PIECE_BYTES);
        }
        self.first += self.n_given as u64;
        (self.n_given, self.n_summed) = (0, self.n_summed - self.n_given);
    }

    /// Sums the bytes of the buffer before a place, if they are not summed.
    fn sum_up_to(&mut self, end: usize) {
        if self.n_summed >= end {
            return;
        }
        if let Some(checksum) = &mut self.checksum {
            checksum.update(&self.buffer[self.n_summed..end]);
        }
        self.n_summed = end;
    }
}

/// Finds the next record and the places of its parts.
fn record(walker: &mut Walker<'_>, grammar: &Grammar) -> Result<RecordParts, Missing> {
    let first = walker.byte()?;
    Ok(match (first, grammar.dialect) {
        (opcode::AUX, _) => RecordParts::Aux(string(walker)?, string(walker)?),
        (opcode::LIBRARY, _) => RecordParts::Library(string(walker)?),
        (opcode::LIBRARY_EARLY, _) => return Err(Missing::Problem(Problem::EarlyLibrary)),
        (opcode::SELECT, _) => RecordParts::Select(walker.len()?),
        (opcode::SIZES, _) => RecordParts::Sizes(walker.len()?, walker.len()?),
        (opcode::SLOT_INFO, _) => {
            walk::lens(walker, 3)?;
            RecordParts::Other
        }
        (opcode::SLOT_IMPORT, Dialect::Valkey) => {
            walker.string()?;
            walk::repeated(walker, |ranges| walk::lens(ranges, 2))?;
            RecordParts::Other
        }
        (opcode::HASH_TEMPLATE, Dialect::Redis) => {
            let (number, n) = (walker.len()?, walker.len()?);
            // Each name reads something, so a number that is too large ends with the bytes.
            let mut names = Vec::new();
            for _ in 0..n {
                names.push(string(walker)?);
            }
            RecordParts::Template(number, names)
        }
        (opcode::MODULE_AUX, _) => {
            let module = module_name(walker.len()?);
            walk::lens(walker, 2)?;
            let is_empty = !module_data(walker)?;
            if !is_empty && !grammar.skips_modules {
                return Err(Missing::Problem(Problem::Module(module)));
            }
            RecordParts::ModuleRecord { module, is_empty }
        }
        (opcode::END, _) => RecordParts::End,
        _ => entry(walker, first, grammar)?,
    })
}

/// Walks over the data of a module, which says of each part how it is written. Returns whether there is
/// anything but integers.
fn module_data(walker: &mut Walker<'_>) -> Result<bool, Stop> {
    let mut has_more = false;
    loop {
        let code = walker.len()?;
        has_more |= matches!(code, module::FLOAT | module::DOUBLE | module::STRING);
        match code {
            module::END => return Ok(has_more),
            module::SIGNED | module::UNSIGNED => _ = walker.len()?,
            module::FLOAT => walker.bytes(size_of::<f32>())?,
            module::DOUBLE => walker.bytes(size_of::<f64>())?,
            module::STRING => walker.string()?,
            _ => return Err(Stop::Malformed),
        }
    }
}

/// The part of an entry before its value.
struct EntryHead {
    deadline: Option<Deadline>,
    recency: Option<Recency>,
    /// The number of the type in the file, and the one that stands for it here.
    stated: u8,
    value_type: Option<u8>,
    /// Whether modules keep something about the key.
    has_metadata: bool,
    key: Range<usize>,
}

fn head(walker: &mut Walker<'_>, first: u8, grammar: &Grammar) -> Result<EntryHead, Stop> {
    let (mut next, mut deadline, mut recency, mut has_metadata) = (first, None, None, false);
    let stated = loop {
        match next {
            opcode::DEADLINE_MS => deadline = Some(Deadline::at(u64::from_le_bytes(walker.array()?))),
            opcode::DEADLINE_SECONDS => {
                let seconds = u32::from_le_bytes(walker.array()?);
                deadline = Some(Deadline(Millis(u64::from(seconds) * 1000)));
            }
            opcode::IDLE => recency = Some(Recency::Idle(walker.len()?)),
            opcode::FREQUENCY => recency = Some(Recency::Frequency(walker.byte()?)),
            opcode::KEY_METADATA if grammar.dialect == Dialect::Redis => {
                for _ in 0..walker.len()? {
                    walker.bytes(size_of::<u32>())?;
                    module_data(walker)?;
                    has_metadata = true;
                }
            }
            stated => break stated,
        }
        next = walker.byte()?;
    };
    let value_type = grammar.dialect.value_type(stated);
    Ok(EntryHead { deadline, recency, stated, value_type, has_metadata, key: string(walker)? })
}

fn entry(walker: &mut Walker<'_>, first: u8, grammar: &Grammar) -> Result<RecordParts, Missing> {
    let EntryHead { deadline, recency, stated, value_type, has_metadata, key } =
        head(walker, first, grammar)?;
    if has_metadata && !grammar.skips_modules {
        return Err(Missing::OfKey(key, Problem::ModuleMetadata));
    }
    let start = walker.at();
    let walked = match value_type {
        Some(types::HASH_OF_TEMPLATE) => {
            let number = walker.len()?;
            let Some(names) = grammar.templates.get(&number) else {
                return Err(Missing::OfKey(key, Problem::Template(number)));
            };
            Some(names.iter().try_for_each(|_| walker.string()))
        }
        Some(types::HASH_OF_TEMPLATE_PACKED) => Some(walker.string()),
        Some(value_type) => kinds::walk_dump(value_type, walker),
        None => None,
    };
    let (Some(walked), Some(value_type)) = (walked, value_type) else {
        let problem = match stated {
            types::MODULE_EARLY => Problem::EarlyModule(module_name(walker.len()?)),
            types::MODULE => {
                let module = module_name(walker.len()?);
                if grammar.skips_modules {
                    module_data(walker)?;
                    return Ok(RecordParts::ModuleValue { key, module });
                }
                Problem::Module(module)
            }
            number => Problem::Type(UnknownType { number, dialect: grammar.dialect }),
        };
        return Err(Missing::OfKey(key, problem));
    };
    match walked {
        Ok(()) => {
            let value = start..walker.at();
            Ok(RecordParts::Entry(EntryParts { deadline, recency, value_type, has_metadata, key, value }))
        }
        Err(Stop::Malformed) => Err(Missing::OfKey(key, Problem::Length)),
        Err(more) => Err(Missing::Stop(more)),
    }
}

/// Writes the value of a hash that refers to a template as that of a hash with the names of its fields.
fn write_as_hash(
    out: &mut Vec<u8>,
    value: &[u8],
    is_packed: bool,
    templates: &HashMap<u64, Vec<Box<[u8]>>>,
    apart: &[Apart],
) -> Result<(), Problem> {
    let names_of = |number| templates.get(&number).ok_or(Problem::Template(number));
    if !is_packed {
        let mut walker = Walker::setting_apart(value, apart.len());
        let number = walker.len().map_err(|_| Problem::Length)?;
        let names = names_of(number)?;
        writer::number_of(out, names.len());
        for name in names {
            writer::string(out, name);
            let start = walker.at();
            walker.string().map_err(|_| Problem::Length)?;
            out.extend_from_slice(walker.between(start, walker.at()));
        }
        return Ok(());
    }
    let packed = Reader::with_apart(value, apart).string().ok_or(Problem::Length)?;
    let mut elements = Packed::check(&packed).ok_or(Problem::Length)?.iter();
    let number = elements.next().and_then(|number| u64::try_from(number.integer()?).ok());
    let names = names_of(number.ok_or(Problem::Length)?)?;
    writer::number_of(out, names.len());
    for name in names {
        writer::string(out, name);
        writer::element(out, elements.next().ok_or(Problem::Length)?);
    }
    if elements.next().is_some() { Err(Problem::GoesOn) } else { Ok(()) }
}

/// Returns the place of a string.
fn string(walker: &mut Walker<'_>) -> Result<Range<usize>, Stop> {
    let start = walker.at();
    walker.string()?;
    Ok(start..walker.at())
}

/// Returns a record with its strings; `None` if one of them is invalid.
fn item<'a>(record: RecordParts, bytes: &'a [u8], apart: &'a [Apart], offset: u64) -> Option<Item<'a>> {
    let text = |range: Range<usize>| Reader::with_apart(&bytes[range], apart).string();
    Some(match record {
        RecordParts::Aux(name, value) => Item::Aux(text(name)?, text(value)?),
        RecordParts::Library(code) => Item::Library(text(code)?),
        RecordParts::Select(db) => Item::Select(db),
        RecordParts::Sizes(n_keys, n_deadlines) => Item::Sizes(n_keys, n_deadlines),
        RecordParts::Other => Item::Other,
        RecordParts::ModuleRecord { module, is_empty } => Item::ModuleRecord { module, is_empty },
        RecordParts::ModuleValue { key, module } => Item::ModuleValue { key: text(key)?, module },
        RecordParts::Entry(EntryParts { deadline, recency, value_type, key, value, .. }) => {
            Item::Entry(RawEntry {
                key: text(key)?,
                deadline,
                recency,
                value_type,
                value: &bytes[value],
                apart,
                is_part: false,
                n_left: 0,
                offset,
            })
        }
        RecordParts::Template(..) | RecordParts::End => unreachable!("they are no items with strings"),
    })
}

/// The name of a module, which is packed into its number: nine characters of six bits, before ten of its
/// version.
fn module_name(id: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..9).map(|nth| char::from(LETTERS[(id >> (58 - 6 * nth) & 63) as usize])).collect()
}
