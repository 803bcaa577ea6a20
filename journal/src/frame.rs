//! Frames: the form of commands in Braid's AOF, which exposes damage and keeps units whole.
//!
//! ```text
//! #BRAID:1 len=61 off=4096 safe=2048 prev=9a3c01ff crc=5be0c1d2\r\n             a comment to Redis's programs
//! *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n …                             `len` bytes: commands of whole units
//! #BRAID:2 len=31 off=4157 safe=4096 prev=5be0c1d2 crc=07a411e0 at=900388\r\n   the same, with its place in a history
//! ```
//!
//! A *unit* takes effect at one moment: one command, or a transaction with its MULTI and EXEC.
//!
//! - `crc` is the CRC-32C of all numbers and of the bytes. It proves that the frame is intact.
//! - `prev` is the checksum of the previous frame in the file, 0 in the first. It proves that no frame is
//!   missing between the two.
//! - `off` is the position of the bytes in the stream of all commands ever logged.
//! - `safe` is the length of that stream that was known to be on disk when the frame was written. If bytes
//!   before that position are missing, the disk has lost them. Bytes after it may never have reached the
//!   disk.
//!
//! - `at` is the replication offset after the frame: a server that has read everything up to here has the
//!   data of this place in the history. The bytes are those of the change stream. What the stream has between
//!   the frame before and these bytes, the file does not need.
//! - `to` is the same, of bytes that are not those of the stream.
//!
//! Frames have a place as soon as another server may know the history. A frame with the line
//! `#BRAID:R id=<40 hexadecimal digits>` instead of commands tells the history's ID, and one with
//! `#BRAID:R none` that the data from there on has no place in a history.
//!
//! A file of Braid begins with a frame of no bytes, an *anchor*. When a file that has grown is closed, it
//! gets another anchor at its end: everything before that anchor is safe. Where times are logged, a line
//! `#TS:<seconds since 1970>` stands before the first frame of each second. So the first one stands before
//! the anchor.
//!
//! Redis reads such a line as an annotation, for which it has 128 bytes.

use std::ops::Range;

use crate::{history::ReplicationId, stream::Lsn};

/// The beginning of every frame.
pub const MAGIC: &[u8] = b"#BRAID:";

/// The beginning of a line within a frame that tells the ID of the history.
const HISTORY_MAGIC: &[u8] = b"#BRAID:R ";

/// The beginning of a line with the time at which the following bytes were written.
pub const TIME_MAGIC: &[u8] = b"#TS:";

/// The most bytes of a frame, unless a single unit has more.
pub const FRAME_BYTES: usize = 16 << 10;

/// The longest line that Redis accepts as an annotation, including its end.
pub const LINE_BYTES: usize = 127;

/// The line before a frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of bytes in the frame.
    pub n_bytes: u64,
    /// Their position in the stream of commands.
    pub offset: u64,
    /// The length of the stream that was known to be on disk.
    pub safe: u64,
    /// The checksum of the previous frame.
    pub previous: u32,
    /// The place in the history after the frame.
    pub place: Option<Place>,
    /// The checksum of the numbers above and the bytes.
    pub sum: u32,
}

/// A place in the history after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The frame's bytes are the last ones of the change stream before this place.
    At(Lsn),
    /// The frame's bytes are not those of the change stream.
    To(Lsn),
}

impl Place {
    /// The place.
    pub fn lsn(self) -> Lsn {
        let (Place::At(lsn) | Place::To(lsn)) = self;
        lsn
    }
}

impl Header {
    /// Creates the header of these bytes.
    pub fn of(bytes: &[u8], offset: u64, safe: u64, previous: u32, place: Option<Place>) -> Header {
        let header = Header { n_bytes: bytes.len() as u64, offset, safe, previous, place, sum: 0 };
        Header { sum: header.sum_with(bytes), ..header }
    }

    /// Whether the header was written for these bytes.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        self.n_bytes == bytes.len() as u64 && self.sum == self.sum_with(bytes)
    }

    fn sum_with(&self, bytes: &[u8]) -> u32 {
        let mut head = [0; 28];
        head[..8].copy_from_slice(&self.n_bytes.to_le_bytes());
        head[8..16].copy_from_slice(&self.offset.to_le_bytes());
        head[16..24].copy_from_slice(&self.safe.to_le_bytes());
        head[24..].copy_from_slice(&self.previous.to_le_bytes());
        let mut sum = crc32c::crc32c(&head);
        if let Some(place) = self.place {
            let mut tail = [u8::from(matches!(place, Place::At(_))); 9];
            tail[1..].copy_from_slice(&place.lsn().0.to_le_bytes());
            sum = crc32c::crc32c_append(sum, &tail);
        }
        crc32c::crc32c_append(sum, bytes)
    }

    /// Appends the header as a line.
    pub fn write(&self, to: &mut Vec<u8>) {
        let Header { n_bytes, offset, safe, previous, place, sum } = self;
        let (version, place) = match place {
            None => (1, String::new()),
            Some(Place::At(lsn)) => (2, format!(" at={}", lsn.0)),
            Some(Place::To(lsn)) => (2, format!(" to={}", lsn.0)),
        };
        to.extend_from_slice(MAGIC);
        let figures = format!(
            "{version} len={n_bytes} off={offset} safe={safe} prev={previous:08x} crc={sum:08x}{place}\r\n"
        );
        to.extend_from_slice(figures.as_bytes());
    }

    /// Parses a line, including its end; `None` if it is not a header.
    pub fn read(line: &[u8]) -> Option<Header> {
        let text = std::str::from_utf8(line.strip_prefix(MAGIC)?.strip_suffix(b"\r\n")?).ok()?;
        let mut figures = text.split(' ');
        let has_place = match figures.next()? {
            "1" => false,
            "2" => true,
            _ => return None,
        };
        let mut figure = |name: &str| figures.next()?.strip_prefix(name);
        let n_bytes = decimal(figure("len=")?)?;
        let offset = decimal(figure("off=")?)?;
        let safe = decimal(figure("safe=")?)?;
        let previous = hexadecimal(figure("prev=")?)?;
        let sum = hexadecimal(figure("crc=")?)?;
        let place = match (has_place, figures.next()) {
            (false, None) => None,
            (true, Some(figure)) => Some(match figure.split_at_checked(3)? {
                ("at=", lsn) => Place::At(Lsn(decimal(lsn)?)),
                ("to=", lsn) => Place::To(Lsn(decimal(lsn)?)),
                _ => return None,
            }),
            _ => return None,
        };
        figures.next().is_none().then_some(Header { n_bytes, offset, safe, previous, place, sum })
    }
}

/// The ID of the history that a frame tells, if it tells one or the end of the history instead of commands.
pub(crate) fn history_in(frame: &[u8]) -> Option<Option<ReplicationId>> {
    let text = frame.strip_prefix(HISTORY_MAGIC)?.strip_suffix(b"\r\n")?;
    Some(text.strip_prefix(b"id=").and_then(ReplicationId::parse))
}

/// Parses a decimal number in its only valid form.
///
/// A flipped bit is therefore noticed.
fn decimal(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok().filter(|number| format!("{number:08x}") == text)
}

/// Writes units as frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framer {
    /// The position of the next unit in the stream of commands.
    pub offset: u64,
    /// The length of the stream that is known to be on disk.
    pub safe: u64,
    /// The checksum of the last frame of the file; 0 if it has none.
    pub previous: u32,
    /// The current time in seconds since 1970, if times are logged.
    pub now: Option<u64>,
    /// The last time that was written to the file; 0 if there is none.
    pub told: u64,
    /// The history and the place in it after the last frame, if frames have places.
    pub history: Option<(ReplicationId, Lsn)>,
}

impl Framer {
    /// Appends a line with the time at the first frame of a second.
    ///
    /// It does so only if times are logged.
    fn tell_time(&mut self, to: &mut Vec<u8>) {
        if let Some(now) = self.now.filter(|&now| now > self.told) {
            to.extend_from_slice(TIME_MAGIC);
            to.extend_from_slice(format!("{now}\r\n").as_bytes());
            self.told = now;
        }
    }

    /// Appends the beginning of a file: a frame of no units, and the ID of the history.
    ///
    /// From there on the file has frames, so a torn end after it is recognized.
    pub fn begin_file(&mut self, to: &mut Vec<u8>) {
        self.anchor(to);
        if let Some((id, at)) = self.history {
            self.tell_history(id, at, to);
        }
    }

    /// Appends a frame of no units.
    pub fn anchor(&mut self, to: &mut Vec<u8>) {
        let place = self.history.map(|(_, at)| Place::At(at));
        self.begin(&[], place, to);
    }

    /// Appends a frame of no units that tells how far the history has come.
    pub fn advance(&mut self, at: Lsn, to: &mut Vec<u8>) {
        self.begin(&[], Some(Place::At(at)), to);
    }

    /// Appends a frame with the ID of the history. Frames have places from here on.
    pub fn tell_history(&mut self, id: ReplicationId, at: Lsn, to: &mut Vec<u8>) {
        let line = [HISTORY_MAGIC, b"id=", id.as_str().as_bytes(), b"\r\n"].concat();
        self.history = Some((id, at));
        self.begin(&line, Some(Place::To(at)), to);
        to.extend_from_slice(&line);
    }

    /// Appends a frame that says that the data has no place in a history from here on.
    pub fn end_history(&mut self, to: &mut Vec<u8>) {
        if let Some((_, at)) = self.history {
            let line = [HISTORY_MAGIC, b"none\r\n"].concat();
            self.begin(&line, Some(Place::To(at)), to);
            to.extend_from_slice(&line);
            self.history = None;
        }
    }

    /// Appends adjacent units as frames. `ends` are the ends of the units. `start` is their place in the
    /// stream, of which they are the bytes.
    pub fn write(&mut self, units: &[u8], ends: &[usize], start: Lsn, to: &mut Vec<u8>) {
        for range in frames(ends) {
            let place = self.history.map(|_| Place::At(Lsn(start.0 + range.end as u64)));
            let bytes = &units[range];
            self.begin(bytes, place, to);
            to.extend_from_slice(bytes);
        }
    }

    /// Appends adjacent units as frames that are not the bytes of the stream. `ends` are the ends of the
    /// units, each with the place to which the data has come there.
    pub fn write_own(&mut self, units: &[u8], ends: &[(usize, Lsn)], to: &mut Vec<u8>) {
        let only: Vec<usize> = ends.iter().map(|&(end, _)| end).collect();
        for range in frames(&only) {
            let last = only.partition_point(|&end| end <= range.end) - 1;
            let place = self.history.map(|_| Place::To(ends[last].1));
            let bytes = &units[range];
            self.begin(bytes, place, to);
            to.extend_from_slice(bytes);
        }
    }

    /// Appends the header of a frame of these units, which the caller appends after it.
    pub fn begin(&mut self, units: &[u8], place: Option<Place>, to: &mut Vec<u8>) {
        self.tell_time(to);
        let header = Header::of(units, self.offset, self.safe, self.previous, place);
        header.write(to);
        self.offset += header.n_bytes;
        self.previous = header.sum;
        if let (Some((_, at)), Some(place)) = (&mut self.history, place) {
            *at = place.lsn();
        }
    }
}

/// Divides units into frames: each has as many units as fit, and at least one.
fn frames(ends: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let (mut start, mut next) = (0, 0);
    std::iter::from_fn(move || {
        let first = *ends.get(next)?;
        let n_fitting = ends[next..].iter().take_while(|&&end| end - start <= FRAME_BYTES).count();
        let end = if n_fitting == 0 { first } else { ends[next + n_fitting - 1] };
        next += n_fitting.max(1);
        Some(std::mem::replace(&mut start, end)..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_redis_has_room_for_it() {
        let most = u64::MAX;
        let longest = Header {
            n_bytes: most,
            offset: most,
            safe: most,
            previous: u32::MAX,
            place: None,
            sum: u32::MAX,
        };
        // With a place there is room for values of a terabyte in histories of ten petabytes.
        let (long, place) = (9_999_999_999_999_999, Some(Place::At(Lsn(9_999_999_999_999_999))));
        let with_place = Header { n_bytes: 9_999_999_999_999, offset: long, safe: long, place, ..longest };
        let to = Some(Place::To(Lsn(3)));
        let others = [Header::of(b"bytes", 7, 3, 0, to), Header::of(b"", 0, 0, 1, None)];
        for header in [longest, with_place].into_iter().chain(others) {
            let mut line = Vec::new();
            header.write(&mut line);
            assert_eq!(Header::read(&line), Some(header));
            assert!(line.len() <= LINE_BYTES, "{} bytes", line.len());
        }
    }

    #[test]
    fn whatever_bit_is_flipped_the_frame_is_not_taken_for_what_it_was() {
        let bytes = b"*1\r\n$4\r\nPING\r\n";
        let mut frame = Vec::new();
        for place in [None, Some(Place::At(Lsn(77))), Some(Place::To(Lsn(77)))] {
            frame.clear();
            Header::of(bytes, 12, 10, 34, place).write(&mut frame);
            let n_line = frame.len();
            frame.extend_from_slice(bytes);
            for bit in 0..8 * frame.len() {
                let mut flipped = frame.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let header = Header::read(&flipped[..n_line]);
                assert!(!header.is_some_and(|header| header.is_of(&flipped[n_line..])), "bit {bit}");
            }
        }
    }

    #[test]
    fn units_are_never_split_and_fill_frames() {
        let small = [400; 100];
        let ends = |sizes: &[usize]| -> Vec<usize> {
            sizes
                .iter()
                .scan(0, |end, size| {
                    *end += size;
                    Some(*end)
                })
                .collect()
        };
        let sizes =
            |sizes: &[usize]| -> Vec<usize> { frames(&ends(sizes)).map(|range| range.len()).collect() };
        assert_eq!(sizes(&small), [16_000, 16_000, 8_000]);
        assert_eq!(sizes(&[100, 20_000, 30_000, 1, 2]), [100, 20_000, 30_000, 3]);
        assert_eq!(sizes(&[FRAME_BYTES, 1]), [FRAME_BYTES, 1]);
        assert!(sizes(&[]).is_empty());
    }

    #[test]
    fn frames_are_chained() {
        let (mut framer, mut file) = (Framer { offset: 5, safe: 2, ..Framer::default() }, Vec::new());
        framer.write(b"onetwo", &[3, 6], Lsn(0), &mut file);
        framer.write(b"three", &[5], Lsn(6), &mut file);
        let first = Header::of(b"onetwo", 5, 2, 0, None);
        let second = Header::of(b"three", 11, 2, first.sum, None);
        let mut expected = Vec::new();
        first.write(&mut expected);
        expected.extend_from_slice(b"onetwo");
        second.write(&mut expected);
        expected.extend_from_slice(b"three");
        assert_eq!(file, expected);
        assert_eq!(framer, Framer { offset: 16, safe: 2, previous: second.sum, ..Framer::default() });
    }

    #[test]
    fn a_history_is_told_and_each_frame_has_its_place_in_it() {
        let id = ReplicationId::parse(&[b'a'; 40]).expect("an ID");
        let (mut framer, mut file) = (Framer::default(), Vec::new());
        framer.tell_history(id, Lsn(100), &mut file);
        framer.write(b"onetwo", &[3, 6], Lsn(114), &mut file);
        let own = vec![b'x'; FRAME_BYTES + 9];
        framer.write_own(&own, &[(9, Lsn(125)), (FRAME_BYTES + 9, Lsn(130))], &mut file);
        framer.advance(Lsn(144), &mut file);
        framer.begin_file(&mut file);
        framer.end_history(&mut file);
        framer.write(b"last", &[4], Lsn(0), &mut file);
        let text = String::from_utf8(file).expect("it is text");
        let lines = text.split("#BRAID:").filter(|line| !line.is_empty()).map(|line| {
            let line = line.trim_end().trim_start_matches("2 ").trim_end_matches('x');
            line.rsplit(' ').next().unwrap_or_default().split("\r\n").next().unwrap_or_default().to_owned()
        });
        let places: Vec<String> = lines.collect();
        let id = format!("id={}", id.as_str());
        let crc = places.last().expect("a frame without a place").clone();
        assert!(crc.starts_with("crc="));
        let expected = [
            "to=100", &id, "at=120", "to=125", "to=130", "at=144", "at=144", "to=144", &id, "to=144", "none",
            &crc,
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn the_time_is_told_before_the_first_frame_of_each_second() {
        let (mut framer, mut file) = (Framer::default(), Vec::new());
        for now in [None, Some(5), Some(5), Some(4), Some(6), None] {
            framer.now = now;
            framer.write(b"*", &[1], Lsn(0), &mut file);
            file.push(b'\n');
        }
        let text = String::from_utf8(file).expect("it is text");
        let lines: Vec<&str> =
            text.lines().map(|line| if line.starts_with("#BRAID") { "" } else { line }).collect();
        assert_eq!(lines, ["", "*", "#TS:5", "", "*", "", "*", "", "*", "#TS:6", "", "*", "", "*"]);
    }
}
