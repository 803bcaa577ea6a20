//! The facts that a snapshot's file contains about itself and its writer.

use std::io::{self, Write};

use braid_journal::{history::ReplicationId, stream::Lsn};
use braid_storage::rdb::{WriteFormat, file::SnapshotWriter};

use crate::{
    config::{REDIS_VERSION, RdbWriteFormat},
    shared::{memory::Memory, server::Server},
};

impl From<RdbWriteFormat> for WriteFormat {
    fn from(format: RdbWriteFormat) -> Self {
        match format {
            RdbWriteFormat::Auto => WriteFormat::Auto,
            RdbWriteFormat::Redis70 => WriteFormat::Redis70,
            RdbWriteFormat::Redis74 => WriteFormat::Redis74,
            RdbWriteFormat::Valkey9 => WriteFormat::Valkey9,
        }
    }
}

/// The place of a snapshot's data in a history.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPlace {
    /// The ID of the history.
    pub id: ReplicationId,
    /// The place.
    pub lsn: Lsn,
    /// The database that the stream has selected there.
    pub db: u32,
}

/// The intended use of a file.
#[derive(Clone, Copy)]
pub enum Purpose {
    /// The snapshot that is loaded at the start.
    Snapshot,
    /// The base of the append-only file.
    Base,
    /// A copy for replicas.
    Copy {
        /// Whether it has the functions.
        has_functions: bool,
        /// The format that the replicas read.
        format: RdbWriteFormat,
    },
}

/// Writes the facts at the beginning of a file.
///
/// # Errors
/// Those of the output.
pub fn write_facts<W: Write>(
    writer: &mut SnapshotWriter<W>,
    purpose: Purpose,
    place: Option<&SnapshotPlace>,
    server: &Server,
) -> io::Result<()> {
    writer.aux(b"redis-ver", REDIS_VERSION.as_bytes())?;
    writer.aux(b"redis-bits", b"64")?;
    writer.aux(b"ctime", server.clock.unix_seconds().to_string().as_bytes())?;
    writer.aux(b"used-mem", Memory::used().to_string().as_bytes())?;
    let is_base = match purpose {
        Purpose::Snapshot | Purpose::Copy { .. } => b"0",
        Purpose::Base => b"1",
    };
    if let Some(SnapshotPlace { id, lsn, db }) = place {
        writer.aux(b"repl-stream-db", db.to_string().as_bytes())?;
        writer.aux(b"repl-id", id.as_str().as_bytes())?;
        writer.aux(b"repl-offset", lsn.0.to_string().as_bytes())?;
    }
    writer.aux(b"aof-base", is_base)
}
