//! `--convert-rdb`: writes a snapshot again in the format of another program, without a server.
//!
//! Values are copied or rewritten while the file is read, so memory holds the longest string and a few
//! megabytes.

use std::{
    fmt::Display,
    fs::{self, File, OpenOptions},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use braid_journal::disk::open_regular;
use braid_storage::{
    entry::db::Db,
    rdb::{
        WriteFormat,
        file::{Item, SnapshotOptions, SnapshotReader, SnapshotWriter},
    },
};

use crate::config::ConvertOrder;

/// The state of a conversion.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    /// The bytes that were read, and those of the file.
    pub n_read: u64,
    /// The length of the file.
    pub n_bytes: u64,
    /// The keys that were written.
    pub n_keys: u64,
}

/// Keys after which the progress is told.
const TOLD_EVERY_KEYS: u64 = 4096;

/// Converts a snapshot, and describes the result. `tell` learns of the progress.
///
/// The new file appears under its name once it is complete and on disk, and never replaces another.
///
/// # Errors
/// The file, the place in it, the key and the reason.
pub fn convert(order: &ConvertOrder, tell: &mut dyn FnMut(Progress)) -> Result<String, String> {
    let to = &order.to;
    let cannot_write = |error: &dyn Display| format!("{} cannot be written: {error}", to.display());
    if fs::symlink_metadata(to).is_ok() {
        return Err(cannot_write(&"it is there already, and nothing is overwritten"));
    }
    let unfinished = Unfinished::create(to).map_err(|error| cannot_write(&error))?;
    let (file, done) = copy(order, &unfinished.file, tell)?;
    file.sync_all().map_err(|error| cannot_write(&error))?;
    unfinished.publish(to).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => cannot_write(&"it is there already, and nothing is overwritten"),
        _ => cannot_write(&error),
    })?;
    let Progress { n_read, n_keys, .. } = done.progress;
    let mut text = format!(
        "{} has the {n_keys} keys of {} in the format {}: {} bytes of {n_read}",
        to.display(),
        order.from.display(),
        WriteFormat::from(order.format).name(),
        done.n_bytes
    );
    if done.n_modules > 0 {
        text.push_str(&format!("\nData of modules was left out {} times", done.n_modules));
    }
    Ok(text)
}

/// The result of a conversion.
struct Conversion {
    progress: Progress,
    n_modules: u64,
    /// The length of the new file.
    n_bytes: u64,
}

fn copy<'f>(
    order: &ConvertOrder,
    out: &'f File,
    tell: &mut dyn FnMut(Progress),
) -> Result<(&'f File, Conversion), String> {
    let (from, to) = (order.from.display(), order.to.display());
    let cannot_read = |error| format!("{from} cannot be read: {error}");
    let cannot_write = |error| format!("{to} cannot be written: {error}");
    let file = open_regular(&order.from).map_err(cannot_read)?;
    let n_bytes = file.metadata().map_err(cannot_read)?.len();
    let invalid = |why: &dyn Display| format!("{from} cannot be converted: {why}");
    let mut reader = SnapshotReader::new(file, Some(n_bytes), true).map_err(|error| invalid(&error))?;
    reader.divide();
    reader.keep_long();
    if order.skips_modules {
        reader.skip_modules();
    }
    let format = WriteFormat::from(order.format);
    let options = SnapshotOptions { format, has_field_deadlines: true, checksum: true, compress: true };
    let mut writer = SnapshotWriter::new(out, options);
    let (mut progress, mut n_modules) = (Progress { n_bytes, ..Progress::default() }, 0);
    loop {
        match reader.next_item().map_err(|error| invalid(&error))? {
            Item::Aux(name, value) => writer.aux(&name, &value).map_err(cannot_write)?,
            Item::Library(code) => writer.write_library(&code).map_err(cannot_write)?,
            Item::Select(db) => {
                let db = u32::try_from(db).map_err(|_| invalid(&format!("it has a database {db}")))?;
                writer.select(Db(db)).map_err(cannot_write)?;
            }
            Item::Sizes(n_keys, n_deadlines) => {
                writer.sizes(n_keys, n_deadlines).map_err(cannot_write)?;
            }
            Item::Other => {}
            Item::ModuleRecord { is_empty, .. } => n_modules += u64::from(!is_empty),
            Item::ModuleValue { .. } => n_modules += 1,
            Item::Entry(raw) => {
                writer.converted(&raw).map_err(|error| match error.kind() {
                    // Not of the output.
                    ErrorKind::Other => {
                        let key = raw.key.escape_ascii();
                        invalid(&format!("at byte {}, key '{key}': {error}", raw.offset))
                    }
                    _ => cannot_write(error),
                })?;
                progress.n_keys += u64::from(!raw.is_part);
                if raw.is_part || progress.n_keys.is_multiple_of(TOLD_EVERY_KEYS) {
                    progress.n_read = raw.offset;
                    tell(progress);
                }
            }
            Item::End { .. } => break,
        }
    }
    progress.n_read = reader.offset();
    if progress.n_read < n_bytes {
        let at = progress.n_read;
        return Err(invalid(&format!(
            "at byte {at}: the file goes on after the snapshot. An append-only file is converted by a server: set \
             'rdb-write-format' and send BGREWRITEAOF"
        )));
    }
    n_modules += reader.n_metadata();
    tell(progress);
    let (file, n_bytes) = writer.finish().map_err(cannot_write)?;
    Ok((file, Conversion { progress, n_modules, n_bytes }))
}

/// The new file before it is complete. It is removed unless it is published.
struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Unfinished {
    fn create(to: &Path) -> std::io::Result<Self> {
        let mut name = to.as_os_str().to_owned();
        name.push(format!(".unfinished-{}", std::process::id()));
        let path = PathBuf::from(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Self { path, file })
    }

    /// Links the file under its name. Fails if there is a file with that name.
    fn publish(&self, to: &Path) -> std::io::Result<()> {
        fs::hard_link(&self.path, to)?;
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // The name goes away. The published file stays, under its own.
        let _ = fs::remove_file(&self.path);
    }
}
