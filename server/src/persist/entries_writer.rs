//! Writes the contents of the keyspace to a file or another output: as a snapshot, or as commands.

use std::io::{self, Write};

use braid_journal::{frame::Framer, stream::Lsn};
use braid_protocol::request::write_request;
use braid_storage::{entry::db::Db, rdb::file::SnapshotWriter};

/// Bytes of commands that are written at once.
const PIECE_BYTES: usize = 256 << 10;

/// A snapshot in one of the two forms. Entries for it must have that form.
pub enum EntriesWriter<W: Write> {
    /// The file that redis-server loads at its start.
    Snapshot(SnapshotWriter<W>),
    /// A base of the append-only file that is no snapshot.
    Commands(CommandsWriter<W>),
}

impl<W: Write> EntriesWriter<W> {
    /// Writes the text of a library of functions.
    ///
    /// # Errors
    /// Those of the output, as in all methods below.
    pub fn write_library(&mut self, code: &[u8]) -> io::Result<()> {
        match self {
            EntriesWriter::Snapshot(writer) => writer.write_library(code),
            EntriesWriter::Commands(writer) => {
                writer.add(|commands| write_request(commands, &[b"FUNCTION", &b"LOAD"[..], code]))
            }
        }
    }

    /// Selects the database of the entries that follow.
    ///
    /// # Errors
    /// See [`EntriesWriter::write_library`].
    pub fn select(&mut self, db: Db) -> io::Result<()> {
        match self {
            EntriesWriter::Snapshot(writer) => writer.select(db),
            EntriesWriter::Commands(writer) => {
                writer.add(|commands| write_request(commands, &["SELECT", &db.index().to_string()]))
            }
        }
    }

    /// Writes the approximate number of entries that follow, and of those with a deadline. Commands have no
    /// place for these numbers.
    ///
    /// # Errors
    /// See [`EntriesWriter::write_library`].
    pub fn sizes(&mut self, n_keys: u64, n_deadlines: u64) -> io::Result<()> {
        match self {
            EntriesWriter::Snapshot(writer) => writer.sizes(n_keys, n_deadlines),
            EntriesWriter::Commands(_) => Ok(()),
        }
    }

    /// Writes any number of whole entries, one after the other.
    ///
    /// # Errors
    /// See [`EntriesWriter::write_library`].
    pub fn entries(&mut self, entries: &[u8]) -> io::Result<()> {
        match self {
            EntriesWriter::Snapshot(writer) => writer.entries(entries),
            EntriesWriter::Commands(writer) => writer.add(|commands| commands.extend_from_slice(entries)),
        }
    }

    /// Ends the snapshot. Returns the output and the length in bytes.
    ///
    /// # Errors
    /// See [`EntriesWriter::write_library`].
    pub fn finish(self) -> io::Result<(W, u64)> {
        match self {
            EntriesWriter::Snapshot(writer) => writer.finish(),
            EntriesWriter::Commands(writer) => writer.finish(),
        }
    }
}

/// Writes commands in frames, so that damage is found as in increments.
pub struct CommandsWriter<W> {
    out: W,
    framer: Framer,
    commands: Vec<u8>,
    frames: Vec<u8>,
    n_bytes: u64,
}

impl<W: Write> CommandsWriter<W> {
    /// Begins the frames. If `now` is given, in seconds since 1970, they contain times.
    pub fn new(out: W, now: Option<u64>) -> Self {
        let mut framer = Framer { now, ..Framer::default() };
        let mut frames = Vec::new();
        framer.anchor(&mut frames);
        Self { out, framer, commands: Vec::new(), frames, n_bytes: 0 }
    }

    fn add(&mut self, add: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        add(&mut self.commands);
        if self.commands.len() >= PIECE_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.framer.write(&self.commands, &ends(&self.commands), Lsn(0), &mut self.frames);
        self.out.write_all(&self.frames)?;
        self.n_bytes += self.frames.len() as u64;
        self.commands.clear();
        self.frames.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<(W, u64)> {
        self.write_out()?;
        Ok((self.out, self.n_bytes))
    }
}

/// Returns the end of each command. The commands were written by this file.
fn ends(commands: &[u8]) -> Vec<usize> {
    let (mut ends, mut at) = (Vec::new(), 0);
    while at < commands.len() {
        for _ in 0..number(commands, &mut at) {
            let n_bytes = number(commands, &mut at);
            at += n_bytes + 2;
        }
        ends.push(at);
    }
    ends
}

/// Reads the number after a line's sigil, and moves `at` to the next line.
fn number(commands: &[u8], at: &mut usize) -> usize {
    let digits = commands[*at + 1..].iter().take_while(|byte| byte.is_ascii_digit());
    let (n_digits, number) =
        digits.fold((0, 0), |(n, number), digit| (n + 1, 10 * number + usize::from(digit - b'0')));
    *at += 1 + n_digits + 2;
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart() {
        let mut commands = Vec::new();
        let mut expected = Vec::new();
        for words in [&["SET", "key", ""][..], &["SET", "*1\r\n$1\r\n", "b"], &["A"; 12]] {
            write_request(&mut commands, words);
            expected.push(commands.len());
        }
        assert_eq!(ends(&commands), expected);
    }

    #[test]
    fn commands_go_to_any_output_and_their_bytes_are_counted() {
        let mut writer = EntriesWriter::Commands(CommandsWriter::new(Vec::new(), None));
        writer.write_library(b"#!lua name=a").expect("memory takes all");
        let (bytes, n_bytes) = writer.finish().expect("memory takes all");
        assert_eq!(n_bytes, bytes.len() as u64);
        assert!(bytes.ends_with(b"#!lua name=a\r\n"));
    }
}
