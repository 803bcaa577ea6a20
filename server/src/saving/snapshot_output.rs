//! A snapshot that is being written, to a file or to any other output.

use std::{
    collections::HashMap,
    io::{self, Write},
    sync::atomic::Ordering::Relaxed,
};

use braid_storage::{
    entry::{EntryBox, db::Db},
    keyspace::{
        DatabaseCounts,
        shard::saving::{Form, Uses},
    },
    rdb::file::{SnapshotOptions, SnapshotWriter},
};

use crate::{
    client::node::Cut,
    clock::Clock,
    config::Config,
    persist::{self, CommandsWriter, EntriesWriter, Purpose, SnapshotPlace},
    shared::server::Server,
};

/// A snapshot that is being written.
pub(super) struct Snapshot<W: Write> {
    writer: EntriesWriter<W>,
    form: Form,
    /// The database of the last entry.
    db: Option<Db>,
    /// Approximate sizes of the databases of which no entry is written yet.
    sizes: HashMap<Db, DatabaseCounts>,
    server: &'static Server,
}

impl<W: Write> Snapshot<W> {
    /// Begins a snapshot with its facts and libraries.
    ///
    /// # Errors
    /// Those of the output, as in all methods below.
    pub fn begin(
        out: W,
        purpose: Purpose,
        cut: &Cut,
        place: Option<&SnapshotPlace>,
        config: &Config,
        server: &'static Server,
    ) -> io::Result<Self> {
        let mut writer = match cut.form {
            Form::Snapshot => EntriesWriter::Snapshot(begin_snapshot(
                out,
                purpose,
                place,
                cut.has_field_deadlines,
                config,
                server,
            )?),
            Form::Commands => EntriesWriter::Commands(begin_commands(out, config)),
        };
        if !matches!(purpose, Purpose::Copy { has_functions: false, .. }) {
            cut.libraries.iter().try_for_each(|code| writer.write_library(code))?;
        }
        let sizes = server.keyspace.databases().into_iter().collect();
        Ok(Snapshot { writer, form: cut.form, db: None, sizes, server })
    }

    /// Writes any number of whole entries of a database, one after the other.
    ///
    /// # Errors
    /// See [`Snapshot::begin`].
    pub fn add(&mut self, db: Db, entries: &[u8], n_keys: u64) -> io::Result<()> {
        if self.db != Some(db) {
            self.writer.select(db)?;
            self.db = Some(db);
            if let Some(counts) = self.sizes.remove(&db) {
                self.writer.sizes(counts.n_keys, counts.n_deadlines)?;
            }
        }
        self.writer.entries(entries)?;
        self.server.saves.n_keys_written.fetch_add(n_keys, Relaxed);
        Ok(())
    }

    /// Encodes and writes an entry.
    ///
    /// # Errors
    /// See [`Snapshot::begin`].
    pub fn add_entry(&mut self, db: Db, entry: &EntryBox, uses: &Uses) -> io::Result<()> {
        let mut encoded = Vec::new();
        match uses.encode(self.form, &mut encoded, entry.as_ref(), self.server.clock.now()) {
            true => self.add(db, &encoded, 1),
            false => Ok(()),
        }
    }

    /// Ends the snapshot. Returns the output and the length in bytes.
    ///
    /// # Errors
    /// See [`Snapshot::begin`].
    pub fn finish(self) -> io::Result<(W, u64)> {
        self.writer.finish()
    }
}

/// Begins a snapshot that redis-server reads, with facts about it.
///
/// # Errors
/// Those of the output.
pub(super) fn begin_snapshot<W: Write>(
    out: W,
    purpose: Purpose,
    place: Option<&SnapshotPlace>,
    has_field_deadlines: bool,
    config: &Config,
    server: &Server,
) -> io::Result<SnapshotWriter<W>> {
    let format = match purpose {
        Purpose::Snapshot | Purpose::Base => config.rdb_write_format,
        Purpose::Copy { format, .. } => format,
    };
    let options = SnapshotOptions {
        format: format.into(),
        has_field_deadlines,
        checksum: config.rdbchecksum,
        compress: config.rdbcompression,
    };
    let mut writer = SnapshotWriter::new(out, options);
    persist::write_facts(&mut writer, purpose, place, server)?;
    Ok(writer)
}

/// Begins a snapshot of commands.
pub(super) fn begin_commands<W: Write>(out: W, config: &Config) -> CommandsWriter<W> {
    CommandsWriter::new(out, config.aof_timestamp_enabled.then(Clock::system_seconds))
}
