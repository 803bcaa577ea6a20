//! The check of an AOF file: its intact length, and the loss at a cut.

use std::{
    io::{self, Read, Seek, SeekFrom},
    ops::ControlFlow,
};

use crate::reader::{Broken, Looked, Reader};

/// The result of a check.
#[derive(Debug)]
pub struct Checked {
    /// The length of the file.
    pub n_bytes: u64,
    /// The length of the intact part. No command, frame or transaction is cut at its end.
    pub whole_bytes: u64,
    /// The line in which that part ends, counted from 1 at the check's start.
    pub line: u64,
    /// The fault at that point, if there is one.
    ///
    /// Without a fault, any bytes that follow were written after the requested time.
    pub broken: Option<Broken>,
    /// The intact frames after the fault.
    pub after: FramesAfter,
}

/// The frames after a fault that are as they were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramesAfter {
    /// The number of frames.
    pub n_frames: u64,
    /// The bytes of commands in them.
    pub n_bytes: u64,
    /// The position of the first one in the file.
    pub first_at: u64,
    /// Whether there may be more, because the search was given up.
    ///
    /// Too many bytes resemble frames then.
    pub is_incomplete: bool,
}

impl Checked {
    /// The bytes that would be lost if the file were cut to its intact part.
    pub fn lost_bytes(&self) -> u64 {
        self.n_bytes - self.whole_bytes
    }
}

/// Checks a file from `from` on, the offset at which its commands begin.
///
/// With `until`, in seconds since 1970, the check ends before the first command written after that time.
///
/// # Errors
/// If the file cannot be read.
pub fn check<R: Read + Seek>(mut file: R, from: u64, until: Option<u64>) -> io::Result<Checked> {
    let mut reader = Reader::from_offset(&mut file, from)?;
    if let Some(seconds) = until {
        reader.end_after(seconds);
    }
    let broken = loop {
        match reader.next_units() {
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(Broken::Io(error)) => return Err(error),
            Err(broken) => break Some(broken),
        }
    };
    let (n_bytes, whole_bytes) = (reader.n_bytes(), reader.whole_bytes());
    let after =
        if broken.is_some() { FramesAfter::find(&mut reader, whole_bytes)? } else { FramesAfter::default() };
    let line = 1 + count_lines(file, from, whole_bytes)?;
    Ok(Checked { n_bytes, whole_bytes, line, broken, after })
}

impl FramesAfter {
    fn find<R: Read + Seek>(reader: &mut Reader<R>, start: u64) -> io::Result<Self> {
        let mut after = FramesAfter::default();
        let looked = reader.frames_after(start, |header, at| {
            if after.n_frames == 0 {
                after.first_at = at;
            }
            after.n_frames += 1;
            after.n_bytes += header.n_bytes;
            ControlFlow::Continue(())
        })?;
        after.is_incomplete = looked == Looked::InVain;
        Ok(after)
    }
}

/// Counts the lines that end between two offsets.
fn count_lines<R: Read + Seek>(mut file: R, from: u64, to: u64) -> io::Result<u64> {
    const BUFFER_BYTES: usize = 64 << 10;
    file.seek(SeekFrom::Start(from))?;
    let (mut file, mut buffer, mut n_lines) = (file.take(to - from), vec![0; BUFFER_BYTES], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(n_lines),
            n => n_lines += buffer[..n].iter().filter(|&&byte| byte == b'\n').count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::{frame::Framer, stream::Lsn};

    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";
    const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
    const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

    fn checked(file: &[u8], until: Option<u64>) -> Checked {
        check(Cursor::new(file), 0, until).expect("memory can be read")
    }

    /// Four frames of one SET each, and their offsets. The first two are known to be on disk.
    fn framed() -> (Vec<u8>, Vec<usize>) {
        let (mut framer, mut file, mut starts) = (Framer::default(), Vec::new(), Vec::new());
        for nth in 0..4 {
            starts.push(file.len());
            framer.safe = if nth > 1 { 2 * SET.len() as u64 } else { 0 };
            framer.write(SET, &[SET.len()], Lsn(0), &mut file);
        }
        (file, starts)
    }

    #[test]
    fn a_whole_file_is_whole_to_its_end() {
        let file = [SET, MULTI, SET, EXEC, b"#TS:1\r\n"].concat();
        let checked = checked(&file, None);
        assert!(checked.broken.is_none());
        assert_eq!((checked.whole_bytes, checked.lost_bytes(), checked.line), (file.len() as u64, 0, 22));
    }

    #[test]
    fn what_is_whole_ends_before_a_command_and_before_a_transaction() {
        for (tail, n_whole) in [
            ([SET, b"!!!"].concat(), SET.len()),
            ([SET, b"*2\r\n$3\r\nSET\r\n!"].concat(), SET.len()),
            ([SET, MULTI, SET, b"*2\r\nx"].concat(), SET.len()),
            ([SET, MULTI, SET].concat(), SET.len()),
            ([SET, MULTI, SET, b"*1\r\n$1000\r\nEX"].concat(), SET.len()),
            ([MULTI, SET].concat(), 0),
        ] {
            let checked = checked(&tail, None);
            assert!(checked.broken.is_some());
            assert_eq!(
                (checked.whole_bytes, checked.n_bytes),
                (n_whole as u64, tail.len() as u64),
                "{tail:?}"
            );
        }
    }

    #[test]
    fn whole_frames_after_damage_are_counted() {
        let (mut file, starts) = framed();
        file[starts[2] - 3] ^= 1;
        let checked = checked(&file, None);
        assert_eq!(checked.whole_bytes, starts[1] as u64);
        assert!(matches!(checked.broken, Some(Broken::Damaged { .. })), "{checked:?}");
        let expected = FramesAfter {
            n_frames: 2,
            n_bytes: 2 * SET.len() as u64,
            first_at: starts[2] as u64,
            is_incomplete: false,
        };
        assert_eq!(checked.after, expected);
    }

    #[test]
    fn behind_a_torn_frame_there_is_nothing() {
        let (file, starts) = framed();
        let checked = checked(&file[..file.len() - 1], None);
        assert!(matches!(checked.broken, Some(Broken::Torn { .. })), "{checked:?}");
        assert_eq!((checked.whole_bytes, checked.after), (starts[3] as u64, FramesAfter::default()));
    }

    #[test]
    fn what_was_written_after_a_time_is_left_out_but_no_part_of_a_transaction() {
        let file = [b"#TS:5\r\n", SET, b"#TS:6\r\n", MULTI, b"#TS:7\r\n", SET, EXEC, b"#TS:8\r\n"].concat();
        let at = |seconds| {
            let checked = checked(&file, Some(seconds));
            assert!(checked.broken.is_none());
            checked.whole_bytes as usize
        };
        assert_eq!([at(4), at(5), at(6), at(8)], [0, 7 + SET.len(), 14 + SET.len(), file.len()]);
        assert_eq!(at(7), file.len() - 7);
        assert!(self::checked(b"#TS:x\r\n", Some(1)).broken.is_some());
        assert!(self::checked(b"#TS:x\r\n", None).broken.is_none());
    }

    #[test]
    fn what_only_looks_like_frames_is_not_summed_without_end() {
        let (mut file, _) = framed();
        file.truncate(file.len() - 1);
        let n_fakes = 2000;
        for nth in 0..n_fakes {
            let n_bytes = (n_fakes - nth) * 60;
            let fake = format!("#BRAID:1 len={n_bytes:05} off=0 safe=0 prev=00000000 crc=00000000\r\n");
            file.extend_from_slice(fake.replace("len=0", "len=1").as_bytes());
        }
        let checked = checked(&file, None);
        assert!(checked.after.is_incomplete);
        // The bytes after the search are unknown.
        assert!(matches!(checked.broken, Some(Broken::Damaged { .. })), "{checked:?}");
    }
}
