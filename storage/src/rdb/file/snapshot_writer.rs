//! The writer of a file.

use std::io::{Error, Result, Write};

use crc::{Digest, Table};

use super::{MAGIC, MAGIC_OF_VALKEY, raw_entry};
use crate::{
    entry::db::Db,
    rdb::{CHECKSUM, Dialect, WriteFormat, codes::opcode, lzf::Compressor, writer},
};

/// Bytes that are summed and written at once.
const PIECE_BYTES: usize = 256 << 10;

/// The options of a file.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotOptions {
    /// The format. [`WriteFormat::Auto`] chooses by `has_field_deadlines`.
    pub format: WriteFormat,
    /// Whether some hash has fields with deadlines, which takes a version that Redis before 7.4 does not
    /// read.
    pub has_field_deadlines: bool,
    /// Whether it ends with a checksum (`rdbchecksum`).
    pub checksum: bool,
    /// Whether long strings are compressed (`rdbcompression`).
    pub compress: bool,
}

/// Writes a file record by record; the order is the caller's.
///
/// It compresses, sums and [rewrites](WriteFormat) for the format, so that [encoding an
/// entry](super::encode_entry), which is done under a hold, is but copying.
pub struct SnapshotWriter<W> {
    out: W,
    /// Bytes that are not written yet; they are summed when they are.
    piece: Vec<u8>,
    n_bytes: u64,
    checksum: Option<Digest<'static, u64, Table<16>>>,
    compressor: Option<Compressor>,
    format: WriteFormat,
    /// The database of the entries that follow.
    db: usize,
    /// An entry that was rewritten for the format.
    pub(super) rewritten: Vec<u8>,
    /// Whether the next entry that is converted has further elements of the last one.
    pub(super) continues: bool,
}

impl<W: Write> SnapshotWriter<W> {
    /// Begins a file.
    pub fn new(out: W, options: SnapshotOptions) -> Self {
        let version = options.format.version(options.has_field_deadlines);
        let mut piece = Vec::with_capacity(2 * PIECE_BYTES);
        match options.format.dialect() {
            Dialect::Redis => {
                piece.extend_from_slice(MAGIC);
                piece.extend_from_slice(format!("{version:04}").as_bytes());
            }
            Dialect::Valkey => {
                piece.extend_from_slice(MAGIC_OF_VALKEY);
                piece.extend_from_slice(format!("{version:03}").as_bytes());
            }
        }
        Self {
            out,
            piece,
            n_bytes: 0,
            checksum: options.checksum.then(|| CHECKSUM.digest()),
            compressor: options.compress.then(Compressor::default),
            format: options.format,
            db: 0,
            rewritten: Vec::new(),
            continues: false,
        }
    }

    /// Writes a fact about the file or its writer, like `redis-ver`.
    ///
    /// # Errors
    /// Those of the output.
    pub fn aux(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        self.piece.push(opcode::AUX);
        writer::string(&mut self.piece, name);
        writer::string(&mut self.piece, value);
        self.write_pieces()
    }

    /// Writes the text of a library of functions.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write_library(&mut self, code: &[u8]) -> Result<()> {
        self.piece.push(opcode::LIBRARY);
        raw_entry::string(&mut self.piece, code, self.compressor.as_mut());
        self.write_pieces()
    }

    /// Writes the database of the entries that follow.
    ///
    /// # Errors
    /// Those of the output.
    pub fn select(&mut self, db: Db) -> Result<()> {
        self.db = db.index();
        self.piece.push(opcode::SELECT);
        writer::number_of(&mut self.piece, db.index());
        self.write_pieces()
    }

    /// Writes about how many entries follow, and how many of them have a deadline: for a reader that makes
    /// room.
    ///
    /// # Errors
    /// Those of the output.
    pub fn sizes(&mut self, n_keys: u64, n_deadlines: u64) -> Result<()> {
        self.piece.push(opcode::SIZES);
        writer::len(&mut self.piece, n_keys);
        writer::len(&mut self.piece, n_deadlines);
        self.write_pieces()
    }

    /// Writes any number of whole entries, one after the other as [`encode_entry`](super::encode_entry) has
    /// written them.
    ///
    /// # Errors
    /// Those of the output. If the format cannot hold an entry, the error names its key.
    ///
    /// # Panics
    /// If they are compressed or rewritten, and are no entries.
    pub fn entries(&mut self, entries: &[u8]) -> Result<()> {
        if self.format.is_encoded_form() {
            return self.encoded_entries(entries);
        }
        let mut rest = entries;
        while !rest.is_empty() {
            let mut rewritten = std::mem::take(&mut self.rewritten);
            rewritten.clear();
            let first =
                raw_entry::rewrite_first(rest, &mut rewritten, self.format).map_err(|(key, why)| {
                    let (key, db) = (key.escape_ascii(), self.db);
                    Error::other(format!("the key '{key}' of database {db}: {why}"))
                })?;
            let (entry, others) = rest.split_at(first.n_bytes);
            self.encoded_entries(if first.is_rewritten { &rewritten } else { entry })?;
            self.rewritten = rewritten;
            rest = others;
        }
        Ok(())
    }

    pub(super) fn encoded_entries(&mut self, entries: &[u8]) -> Result<()> {
        if self.compressor.is_none() && entries.len() >= PIECE_BYTES {
            self.write_out()?;
            return self.write_summed(entries);
        }
        let mut rest = entries;
        while let Some(compressor) = &mut self.compressor
            && !rest.is_empty()
        {
            rest = raw_entry::compress_first(rest, &mut self.piece, compressor, self.format.dialect());
            self.write_pieces()?;
        }
        self.piece.extend_from_slice(rest);
        self.write_pieces()
    }

    /// Writes bytes of records as they are.
    ///
    /// # Errors
    /// Those of the output.
    pub(super) fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() >= PIECE_BYTES {
            self.write_out()?;
            return self.write_summed(bytes);
        }
        self.piece.extend_from_slice(bytes);
        self.write_pieces()
    }

    /// The format that is written.
    pub(super) fn format(&self) -> WriteFormat {
        self.format
    }

    /// Ends the file. Returns the output, to be synced, and the number of bytes.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> Result<(W, u64)> {
        self.piece.push(opcode::END);
        self.write_out()?;
        let checksum = self.checksum.take().map_or(0, |checksum| checksum.finalize());
        self.write_summed(&checksum.to_le_bytes())?;
        self.out.flush()?;
        Ok((self.out, self.n_bytes))
    }

    /// The number of bytes of the file so far.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes + self.piece.len() as u64
    }

    /// Writes the waiting bytes if they are enough.
    #[inline]
    fn write_pieces(&mut self) -> Result<()> {
        if self.piece.len() < PIECE_BYTES { Ok(()) } else { self.write_out() }
    }

    fn write_out(&mut self) -> Result<()> {
        let mut piece = std::mem::take(&mut self.piece);
        let written = self.write_summed(&piece);
        piece.clear();
        // A long value has made it large.
        piece.shrink_to(2 * PIECE_BYTES);
        self.piece = piece;
        written
    }

    fn write_summed(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(checksum) = &mut self.checksum {
            checksum.update(bytes);
        }
        self.n_bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}
