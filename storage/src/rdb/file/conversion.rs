//! Entries of one file written to another, of another format.

use std::io::{Error, Result, Write};

use super::{RawEntry, Recency, SnapshotWriter};
use crate::{
    entry::time::{Deadline, Millis},
    rdb::{
        Reader, Unwritable, WriteFormat,
        codes::{opcode, types},
        stream_dump,
        write_format::{self, Whole},
        writer,
    },
};

impl<W: Write> SnapshotWriter<W> {
    /// Writes an entry, or a part of one, that was read from another file and has no strings that stand
    /// apart. No value is built: one whose type the format has is copied, others are rewritten part by part.
    ///
    /// # Errors
    /// Those of the output. If the format cannot hold the entry, the error says why.
    pub fn converted(&mut self, raw: &RawEntry<'_>) -> Result<()> {
        debug_assert!(raw.apart.is_empty(), "the reader keeps strings in their places");
        let continues = std::mem::replace(&mut self.continues, raw.is_part);
        let in_parts = continues || raw.is_part;
        let whole = if in_parts { Whole::Part } else { Whole::Yes };
        let mut rewritten = std::mem::take(&mut self.rewritten);
        rewritten.clear();
        let value_type = value_in(self.format(), raw, whole, &mut rewritten)
            .map_err(|why| Error::other(why.to_string()))?;
        let value = if rewritten.is_empty() { raw.value } else { &rewritten };
        let mut head = Vec::new();
        write_head(&mut head, raw, value_type);
        if in_parts {
            let shared = if value_type == types::HASH_WITH_DEADLINES { size_of::<Millis>() } else { 0 };
            let mut elements = Reader::new(&value[shared..]);
            let n = elements.len().ok_or_else(|| Error::other("a count is not well formed"))?;
            let start = shared + elements.at();
            if !continues {
                head.extend_from_slice(&value[..shared]);
                writer::len(&mut head, n + raw.n_left);
                self.raw(&head)?;
            }
            self.raw(&value[start..])?;
        } else if rewritten.is_empty() {
            self.raw(&head)?;
            self.raw(value)?;
        } else {
            head.extend_from_slice(value);
            self.encoded_entries(&head)?;
        }
        self.rewritten = rewritten;
        Ok(())
    }
}

/// Writes all of an entry before its value.
fn write_head(out: &mut Vec<u8>, raw: &RawEntry<'_>, value_type: u8) {
    if let Some(Deadline(Millis(unix_ms))) = raw.deadline {
        out.push(opcode::DEADLINE_MS);
        out.extend_from_slice(&unix_ms.to_le_bytes());
    }
    match raw.recency {
        Some(Recency::Idle(seconds)) => {
            out.push(opcode::IDLE);
            writer::len(out, seconds);
        }
        Some(Recency::Frequency(frequency)) => out.extend_from_slice(&[opcode::FREQUENCY, frequency]),
        None => {}
    }
    out.push(write_format::stated(value_type));
    writer::string(out, &raw.key);
}

/// Rewrites the value of an entry if the format lacks its type. Returns the type.
fn value_in(
    format: WriteFormat,
    raw: &RawEntry<'_>,
    whole: Whole,
    rewritten: &mut Vec<u8>,
) -> std::result::Result<u8, Unwritable> {
    if format.has(raw.value_type) {
        return Ok(raw.value_type);
    }
    // Parts have one type, and only the last of them tells whether an earlier type would do.
    if whole == Whole::Part && format == WriteFormat::Auto && stream_dump::is_latest(raw.value_type) {
        return Ok(raw.value_type);
    }
    if raw.is_part && stream_dump::TYPES.contains(&raw.value_type) {
        // Entries stand in streams of all types alike. Only the state after them differs.
        return Ok(write_format::target_of_streams(format));
    }
    write_format::rewrite(rewritten, raw.value_type, raw.value, format, whole)
}
