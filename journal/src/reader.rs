//! Reads the commands of an AOF file, and finds where it is torn or damaged.
//!
//! The file may be Braid's or Redis's.
//!
//! A read returns one frame, or one unit of a file without frames. Announced lengths are compared with the
//! file's length before memory is allocated.
//!
//! A file is *torn* if its end was not written, because a process or machine stopped. The intact part before
//! that point is the data. Nothing after it was ever reported as safe. A file is *damaged* if bytes in its
//! middle are missing that were on disk once. Nothing may be served from it until its owner decides.
//!
//! A value may look like a header, so any number of false headers may follow broken bytes. The search for
//! intact frames among them is given up after a time proportional to the file's length.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    ops::ControlFlow,
};

use bytes::Bytes;

use crate::{
    frame::{Header, MAGIC, Place, TIME_MAGIC, history_in},
    history::{History, ReplicationId},
    stream::Lsn,
};

/// The longest line of such a file, except for comments, in bytes.
const LINE_MAX: u64 = 64 << 10;

/// A multiple of the file's length that limits the search after damage.
///
/// After broken bytes, checksums of false frames are computed over at most this many times the file's length.
const SUMMED_IN_VAIN_MAX: u64 = 16;

/// The reason why reading ends before the end of the file.
#[derive(Debug)]
pub enum Broken {
    /// The file could not be read.
    Io(io::Error),
    /// The file ends inside the item that begins at this offset.
    Torn {
        /// The length of the intact part, in bytes.
        at: u64,
    },
    /// The bytes at this offset are not the ones that were written there.
    Damaged {
        /// The offset, in bytes from the file's beginning.
        at: u64,
        /// The kind of damage.
        why: &'static str,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Io(error) => write!(out, "cannot be read: {error}"),
            Broken::Torn { at } => write!(out, "ends in the middle of what begins at byte {at}"),
            Broken::Damaged { at, why } => write!(out, "is damaged at byte {at}: {why}"),
        }
    }
}

impl std::error::Error for Broken {}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Broken::Io(error)
    }
}

/// A reader of a file of commands.
pub struct Reader<R> {
    from: BufReader<R>,
    /// The offset of the next line.
    at: u64,
    /// The length of the intact part, as far as the file has been read.
    whole_bytes: u64,
    n_bytes: u64,
    /// Reading ends before commands written after this time, in seconds since 1970.
    until: Option<u64>,
    /// The checksum of the last frame.
    previous: u32,
    /// The position in the stream of commands after the last frame; `None` before the first.
    offset: Option<u64>,
    /// The ID of the history, if the file has told it.
    id: Option<ReplicationId>,
    /// The place in it after the last frame.
    place: Option<Lsn>,
    /// The last bytes of the stream, if the caller wants them.
    recent: Option<History>,
    has_units: bool,
    line: Vec<u8>,
    unit: Vec<u8>,
    /// The offset of the last units that were read.
    units_at: u64,
    /// The last units must be returned once more.
    is_kept: bool,
}

impl<R: Read + Seek> Reader<R> {
    /// Reads from the beginning. The file's length is taken now.
    ///
    /// # Errors
    /// The error of the file.
    pub fn new(from: R) -> io::Result<Self> {
        Reader::from_offset(from, 0)
    }

    /// Reads from an offset on, after other data at the file's beginning.
    ///
    /// # Errors
    /// The error of the file.
    pub fn from_offset(mut from: R, at: u64) -> io::Result<Self> {
        let n_bytes = from.seek(SeekFrom::End(0))?;
        from.seek(SeekFrom::Start(at))?;
        let (line, unit) = (Vec::new(), Vec::new());
        let (from, whole_bytes, until) = (BufReader::new(from), at, None);
        Ok(Self {
            from,
            at,
            whole_bytes,
            n_bytes,
            until,
            previous: 0,
            offset: None,
            id: None,
            place: None,
            recent: None,
            has_units: false,
            line,
            unit,
            units_at: at,
            is_kept: false,
        })
    }

    /// Keeps the last bytes of the change stream, as far as the file has them. They are added to those of the
    /// files before.
    pub fn keep_recent(&mut self, recent: History) {
        self.recent = Some(recent);
    }

    /// The last bytes of the change stream, as far as the file has them.
    pub fn take_recent(&mut self) -> Option<History> {
        self.recent.take()
    }

    /// Whether the file has had a unit so far.
    pub fn has_units(&self) -> bool {
        self.has_units
    }

    /// The history of which the data is, and its place there, if the file has told that.
    pub fn place(&self) -> Option<(ReplicationId, Lsn)> {
        self.id.zip(self.place)
    }

    /// Ends reading before the first line with a time after `seconds`, in seconds since 1970.
    pub fn end_after(&mut self, seconds: u64) {
        self.until = Some(seconds);
    }

    /// The offset up to which the file has been read.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The length of the intact part, as far as the file has been read.
    ///
    /// It cuts no unit and no frame.
    pub fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// The length of the file when reading began, in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// The checksum of the last frame; 0 if there was none.
    pub fn previous_sum(&self) -> u32 {
        self.previous
    }

    /// The position in the stream of commands after the last frame, if there was one.
    pub fn stream_offset(&self) -> Option<u64> {
        self.offset
    }

    /// Returns the next whole units: those of a frame, or one outside of frames.
    ///
    /// They are adjacent. At the end of the file it returns `None`.
    ///
    /// # Errors
    /// If the file is broken. Reading cannot continue then.
    pub fn next_units(&mut self) -> Result<Option<&[u8]>, Broken> {
        if std::mem::take(&mut self.is_kept) {
            return Ok(Some(&self.unit));
        }
        self.unit.clear();
        self.units_at = self.at;
        // The offset of a transaction outside of frames.
        let mut multi_at = None;
        loop {
            let start = self.at;
            self.whole_bytes = multi_at.unwrap_or(start);
            if !self.read_line()? {
                return match multi_at {
                    Some(at) => Err(Broken::Torn { at }),
                    None => Ok(None),
                };
            }
            if is_frame_line(&self.line) {
                if let Some(at) = multi_at {
                    return Err(Broken::Damaged { at, why: "a transaction has no end" });
                }
                if !self.read_frame()? {
                    return Err(self.judge(start, "a frame is not what it says it is")?);
                }
                if let Some(id) = history_in(&self.unit) {
                    self.unit.clear();
                    self.id = id;
                    if id.is_none() {
                        self.forget_history();
                    }
                }
                if self.unit.is_empty() {
                    continue;
                }
                (self.whole_bytes, self.has_units) = (self.at, true);
                return Ok(Some(&self.unit));
            }
            match self.line[0] {
                // Bytes appended next would become part of the comment.
                b'#' if !self.line.ends_with(b"\n") => return Err(Broken::Torn { at: self.whole_bytes }),
                b'#' if self.offset.is_some() && !is_whole_comment(&self.line) => {
                    return Err(self.judge(start, "a comment is not what was written there")?);
                }
                b'#' if self.is_too_late(start)? => return Ok(None),
                b'#' => {}
                b'*' => {
                    // Another program wrote it, which knows of no history.
                    self.forget_history();
                    self.has_units = true;
                    let from = self.unit.len();
                    if !self.read_command(start)? {
                        return Err(Broken::Torn { at: self.whole_bytes });
                    }
                    let command = &self.unit[from..];
                    if is_named(command, b"MULTI") && multi_at.is_none() {
                        multi_at = Some(start);
                    } else if multi_at.is_none() || is_named(command, b"EXEC") {
                        self.whole_bytes = self.at;
                        return Ok(Some(&self.unit));
                    }
                }
                _ => return Err(self.judge(start, "no command begins there")?),
            }
        }
    }

    /// Makes [`Reader::next_units`] return the last units once more.
    pub fn keep_units(&mut self) {
        self.is_kept = true;
    }

    /// The offset of the last units in the file, in bytes. Lines between them and the units before belong to
    /// them.
    pub fn units_at(&self) -> u64 {
        self.units_at
    }

    /// Appends the last units to `bytes`.
    ///
    /// If they are at least twice as long as `bytes`, their buffer is kept and `bytes` is copied into it.
    pub fn move_units(&mut self, bytes: &mut Vec<u8>) {
        let (n_before, n_units) = (bytes.len(), self.unit.len());
        if n_units < 2 * n_before {
            bytes.append(&mut self.unit);
            return;
        }
        self.unit.reserve_exact(n_before);
        self.unit.resize(n_before + n_units, 0);
        self.unit.copy_within(..n_units, n_before);
        self.unit[..n_before].copy_from_slice(bytes);
        std::mem::swap(bytes, &mut self.unit);
        self.unit.clear();
    }

    /// Whether the comment that was read has a time after which reading must end.
    fn is_too_late(&self, start: u64) -> Result<bool, Broken> {
        let (Some(until), Some(time)) = (self.until, self.line.strip_prefix(TIME_MAGIC)) else {
            return Ok(false);
        };
        let seconds = seconds(time).ok_or(Broken::Damaged { at: start, why: "a time is no number" })?;
        Ok(seconds > until)
    }

    /// Reads up to the end of a line, and returns whether there was one. Of a long comment only the beginning
    /// is kept.
    fn read_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        let n = (&mut self.from).take(LINE_MAX).read_until(b'\n', &mut self.line)?;
        self.at += n as u64;
        if n as u64 == LINE_MAX && self.line[0] == b'#' && self.line.last() != Some(&b'\n') {
            let mut rest = Vec::new();
            while rest.last() != Some(&b'\n') {
                rest.clear();
                let n = (&mut self.from).take(LINE_MAX).read_until(b'\n', &mut rest)?;
                if n == 0 {
                    return Ok(true);
                }
                self.at += n as u64;
            }
            self.line.push(b'\n');
        }
        Ok(n > 0)
    }

    /// Reads the frame after its header. Returns whether it is intact and follows the previous frame.
    fn read_frame(&mut self) -> io::Result<bool> {
        let Some(header) = Header::read(&self.line) else { return Ok(false) };
        if header.previous != self.previous || header.n_bytes > self.n_bytes - self.at {
            return Ok(false);
        }
        self.unit.resize(header.n_bytes as usize, 0);
        self.from.read_exact(&mut self.unit)?;
        self.at += header.n_bytes;
        if !header.is_of(&self.unit) {
            return Ok(false);
        }
        self.previous = header.sum;
        self.offset = Some(header.offset + header.n_bytes);
        self.note_place(header.place);
        Ok(true)
    }

    /// Notes the place after the frame that was read, and the bytes of the stream that it has.
    fn note_place(&mut self, place: Option<Place>) {
        let Some(place) = place else { return self.forget_history() };
        self.place = Some(place.lsn());
        let Some(recent) = &mut self.recent else { return };
        let start = place.lsn().0.checked_sub(self.unit.len() as u64).map(Lsn);
        match (place, start) {
            (Place::At(_), Some(start)) => {
                match recent.end() {
                    // Nothing is known of the bytes before.
                    Lsn(0) => recent.begin_anew(start),
                    _ => recent.skip_to(start),
                }
                recent.add(&Bytes::copy_from_slice(&self.unit));
            }
            (place, _) if recent.end() != place.lsn() => recent.begin_anew(place.lsn()),
            _ => {}
        }
    }

    /// Notes that the data is of no history any more.
    fn forget_history(&mut self) {
        (self.id, self.place) = (None, None);
        if let Some(recent) = &mut self.recent {
            recent.begin_anew(Lsn(0));
        }
    }

    /// Appends the command that begins at `start`, whose first line has been read. Returns whether it is
    /// whole.
    fn read_command(&mut self, start: u64) -> Result<bool, Broken> {
        let Some(n_words) = self.announced(b'*', start)? else { return Ok(false) };
        if n_words == 0 {
            return Err(Broken::Damaged { at: start, why: "a command has no words" });
        }
        self.unit.extend_from_slice(&self.line);
        for _ in 0..n_words {
            let line_at = self.at;
            if !self.read_line()? {
                return Ok(false);
            }
            let Some(n_bytes) = self.announced(b'$', line_at)? else { return Ok(false) };
            self.unit.extend_from_slice(&self.line);
            let n_bytes = n_bytes.saturating_add(2);
            if n_bytes > self.n_bytes - self.at {
                return Ok(false);
            }
            let from = self.unit.len();
            self.unit.resize(from + n_bytes as usize, 0);
            self.from.read_exact(&mut self.unit[from..])?;
            self.at += n_bytes;
            if !self.unit.ends_with(b"\r\n") {
                return Err(Broken::Damaged { at: line_at, why: "a word has no end where it says it has" });
            }
        }
        Ok(true)
    }

    /// The number after the sigil of a line; `None` if the line is not whole.
    fn announced(&self, sigil: u8, at: u64) -> Result<Option<u64>, Broken> {
        let wrong = Broken::Damaged { at, why: "no number stands where one must" };
        if self.line[0] != sigil {
            return Err(wrong);
        }
        if !self.line.ends_with(b"\n") {
            return if (self.line.len() as u64) < LINE_MAX { Ok(None) } else { Err(wrong) };
        }
        let digits = self.line[1..].strip_suffix(b"\r\n").and_then(|digits| std::str::from_utf8(digits).ok());
        digits.and_then(|digits| digits.parse().ok()).map(Some).ok_or(wrong)
    }

    /// Decides whether the fault at `start` is the file's torn end, or damage.
    ///
    /// It is damage if a later intact frame says that these bytes were on disk. It is also damage if that
    /// search was given up. A fault in a file without frames is damage, as it is to Redis.
    fn judge(&mut self, start: u64, why: &'static str) -> io::Result<Broken> {
        let damaged = Broken::Damaged { at: start, why };
        let offset = match self.offset {
            Some(offset) => offset,
            // The file's first frame may be the torn one.
            None if is_frame_line(&self.line) => 0,
            None => return Ok(damaged),
        };
        let mut was_safe = false;
        let looked = self.frames_after(start, |header, _| {
            was_safe |= header.safe > offset;
            if was_safe { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(if was_safe || looked == Looked::InVain { damaged } else { Broken::Torn { at: self.whole_bytes } })
    }

    /// Calls `each` with the intact frames from an offset on, and with their offsets. It skips all other
    /// bytes.
    pub(crate) fn frames_after(
        &mut self,
        start: u64,
        mut each: impl FnMut(&Header, u64) -> ControlFlow<()>,
    ) -> io::Result<Looked> {
        let mut n_left = SUMMED_IN_VAIN_MAX.saturating_mul(self.n_bytes);
        self.seek(start)?;
        while self.read_line()? {
            let line_end = self.at;
            // Broken bytes may lack a line end, so the header may begin inside a line.
            let Some(begin) = self.line.windows(MAGIC.len()).position(|window| window == MAGIC) else {
                continue;
            };
            let line = &self.line[begin..];
            let fits = |header: &Header| header.n_bytes <= self.n_bytes - line_end;
            let Some(header) = Header::read(line).filter(fits) else { continue };
            let begins_at = line_end - line.len() as u64;
            self.unit.resize(header.n_bytes as usize, 0);
            self.from.read_exact(&mut self.unit)?;
            self.at += header.n_bytes;
            if header.is_of(&self.unit) {
                if each(&header, begins_at).is_break() {
                    return Ok(Looked::Through);
                }
                continue;
            }
            match n_left.checked_sub(header.n_bytes) {
                Some(left) => n_left = left,
                None => return Ok(Looked::InVain),
            }
            self.seek(line_end)?;
        }
        Ok(Looked::Through)
    }

    fn seek(&mut self, to: u64) -> io::Result<()> {
        self.at = to;
        self.from.seek(SeekFrom::Start(to)).map(drop)
    }
}

/// The extent of a search for frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    /// The search reached the end of the file, or the caller ended it.
    Through,
    /// The search was given up, because too many bytes only resemble frames.
    InVain,
}

/// Whether a line is a frame's header, or was one before it was damaged.
///
/// The bytes after such a line must not be read as commands without a checksum.
fn is_frame_line(line: &[u8]) -> bool {
    let has = |part: &[u8]| line.windows(part.len()).any(|window| window == part);
    line.starts_with(MAGIC) || line[0] == b'#' && has(b" prev=") && has(b" crc=")
}

/// Whether a comment among frames is intact.
///
/// A line with a time may have lost its end, and the header after it its beginning. The bytes after that must
/// not be read as commands without a checksum.
fn is_whole_comment(line: &[u8]) -> bool {
    let is_text = line.trim_ascii_end().iter().all(|byte| matches!(byte, b' '..=b'~'));
    is_text && line.strip_prefix(TIME_MAGIC).is_none_or(|time| seconds(time).is_some())
}

/// Parses the seconds of a line with a time, after its magic.
fn seconds(time: &[u8]) -> Option<u64> {
    std::str::from_utf8(time.trim_ascii_end()).ok()?.parse().ok()
}

/// Whether a command consists of one word, which is compared in any case.
fn is_named(command: &[u8], name: &[u8]) -> bool {
    let mut words = command.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    words.next() == Some(b"*1") && words.nth(1).is_some_and(|word| word.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod any_bytes;

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::frame::Framer;

    const FILLER: &[u8] = b"################################\n";

    pub(super) fn command(words: &[&str]) -> Vec<u8> {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        command
    }

    pub(super) fn transaction() -> Vec<u8> {
        [command(&["MULTI"]), command(&["SET", "a", "1"]), command(&["exec"])].concat()
    }

    /// The bytes of all units that can be read, and the fault at their end.
    fn read(file: &[u8]) -> (Vec<u8>, Option<Broken>) {
        let mut reader = Reader::new(Cursor::new(file)).expect("memory can be read");
        let mut all = Vec::new();
        loop {
            match reader.next_units() {
                Ok(Some(units)) => all.extend_from_slice(units),
                Ok(None) => return (all, None),
                Err(broken) => return (all, Some(broken)),
            }
        }
    }

    /// Returns frames of one unit each, their units, and their offsets.
    ///
    /// When the last frame was written, all but the last `n_unsafe` units were on disk.
    pub(super) fn framed(n_units: usize, n_unsafe: usize) -> (Vec<u8>, Vec<Vec<u8>>, Vec<usize>) {
        let (mut framer, mut file, mut units, mut starts) =
            (Framer::default(), Vec::new(), Vec::new(), Vec::new());
        for nth in 0..n_units {
            let unit = if nth == 1 { transaction() } else { command(&["SET", "key", &nth.to_string()]) };
            starts.push(file.len());
            framer.write(&unit, &[unit.len()], Lsn(0), &mut file);
            if nth + 1 < n_units - n_unsafe {
                framer.safe = framer.offset;
            }
            units.push(unit);
        }
        (file, units, starts)
    }

    #[test]
    fn frames_comments_and_what_a_redis_has_appended_are_read_in_order() {
        let (mut file, units, _) = framed(3, 0);
        file.extend_from_slice(FILLER);
        file.extend_from_slice(b"#TS:1600000000\r\n");
        file.extend_from_slice(&transaction());
        file.extend_from_slice(&command(&["SELECT", "0"]));
        let mut reader = Reader::new(Cursor::new(&file)).expect("memory can be read");
        while reader.next_units().expect("it is whole").is_some() {}
        let mut framer = Framer {
            offset: reader.stream_offset().expect("it has frames"),
            previous: reader.previous_sum(),
            ..Framer::default()
        };
        let last = command(&["DEL", "key"]);
        framer.write(&last, &[last.len()], Lsn(0), &mut file);
        let expected = [units.concat(), transaction(), command(&["SELECT", "0"]), last].concat();
        assert!(matches!(read(&file), (all, None) if all == expected));
    }

    #[test]
    fn wherever_a_file_is_torn_whole_units_are_read_and_the_rest_is_told() {
        let (file, units, starts) = framed(4, 0);
        for n_bytes in 0..file.len() {
            for tail in [&b""[..], FILLER] {
                let torn = [&file[..n_bytes], tail].concat();
                let (all, broken) = read(&torn);
                let n_whole =
                    starts.iter().skip(1).chain([&file.len()]).filter(|&&end| end <= n_bytes).count();
                assert_eq!(all, units[..n_whole].concat(), "{n_bytes} bytes");
                match broken {
                    Some(Broken::Torn { at }) => assert_eq!(at as usize, starts[n_whole], "{n_bytes} bytes"),
                    // The next frame is missing, or its rest looks like any other comment.
                    None => {
                        let n_torn = n_bytes - starts[n_whole];
                        let most = if tail.is_empty() { 0 } else { MAGIC.len() - 1 };
                        assert!(n_torn <= most, "{n_bytes} bytes");
                    }
                    Some(other) => panic!("{n_bytes} bytes: the file {other}"),
                }
                // The second start, after the truncation, finds an intact file.
                assert!(matches!(read(&torn[..starts[n_whole]]), (again, None) if again == all));
            }
        }
    }

    /// Frames after the first bytes of a header could not be read. Those bytes look like a comment.
    #[test]
    fn a_comment_that_is_torn_is_not_appended_to() {
        let (file, units, starts) = framed(2, 0);
        for n_bytes in starts[1] + 1..starts[1] + MAGIC.len() {
            let mut reader = Reader::new(Cursor::new(&file[..n_bytes])).expect("memory can be read");
            assert!(reader.next_units().expect("the first frame is whole").is_some());
            let Err(Broken::Torn { at }) = reader.next_units() else {
                panic!("{n_bytes} bytes are taken for whole")
            };
            let mut framer = Framer { previous: reader.previous_sum(), ..Framer::default() };
            let mut mended = file[..at as usize].to_vec();
            framer.write(&units[1], &[units[1].len()], Lsn(0), &mut mended);
            assert!(matches!(read(&mended), (all, None) if all == units.concat()), "{n_bytes} bytes");
        }
    }

    #[test]
    fn whichever_byte_is_another_no_wrong_one_is_read() {
        let (file, units, starts) = framed(4, 1);
        let whole = units.concat();
        for at in 0..file.len() {
            let mut flipped = file.clone();
            flipped[at] ^= 0x20;
            let (all, broken) = read(&flipped);
            assert!(whole.starts_with(&all), "byte {at}: something else was read");
            let nth = starts.iter().rposition(|&start| start <= at).expect("the first begins at 0");
            assert_eq!(all, units[..nth].concat(), "byte {at}");
            // The last two were not known to be on disk.
            match broken {
                Some(Broken::Damaged { at, .. }) => assert!(nth < 2 && at as usize == starts[nth]),
                Some(Broken::Torn { at }) => assert!(nth >= 2 && at as usize == starts[nth]),
                other => panic!("byte {at}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_frame_that_is_missing_is_missed() {
        let (file, units, starts) = framed(4, 0);
        let without = [&file[..starts[1]], &file[starts[2]..]].concat();
        let (all, broken) = read(&without);
        assert_eq!(all, units[0]);
        assert!(matches!(broken, Some(Broken::Damaged { at, .. }) if at as usize == starts[1]));
    }

    #[test]
    fn what_redis_has_written_goes_back_to_before_a_transaction_that_is_torn() {
        let first = command(&["SET", "a", "1"]);
        let file = [first.clone(), transaction()].concat();
        for n_bytes in first.len() + 1..file.len() {
            let (all, broken) = read(&file[..n_bytes]);
            assert_eq!(all, first);
            assert!(
                matches!(broken, Some(Broken::Torn { at }) if at as usize == first.len()),
                "{n_bytes} bytes"
            );
        }
    }

    #[test]
    fn a_transaction_behind_frames_that_is_torn_goes_whatever_is_left_of_it() {
        let (file, units, _) = framed(2, 0);
        let begun = transaction();
        for tail in [&b"\0\0\0\0"[..], b"#TS:1\0\0\r\n", b"#\0\r\n"] {
            let torn = [&file[..], &begun[..begun.len() - 14], tail].concat();
            let (all, broken) = read(&torn);
            assert_eq!(all, units.concat());
            assert!(matches!(broken, Some(Broken::Torn { at }) if at as usize == file.len()), "{broken:?}");
        }
    }

    #[test]
    fn what_is_no_command_is_damage_and_sizes_are_not_trusted() {
        for file in ["SET a 1\r\n", "*2\r\n+OK\r\n", "*x\r\n", "*1\r\n$3\r\nabcde\r\n", "*0\r\n", "\0\0\0\0"]
        {
            assert!(
                matches!(read(file.as_bytes()), (all, Some(Broken::Damaged { at: 0.., .. })) if all.is_empty()),
                "{file:?}"
            );
        }
        for file in [
            "*9223372036854775807\r\n$1\r\na\r\n",
            "*1\r\n$9223372036854775807\r\nabc",
            "*1\r\n$18446744073709551615\r\n",
        ] {
            assert!(matches!(read(file.as_bytes()), (_, Some(Broken::Torn { at: 0 }))), "{file:?}");
        }
    }
}
