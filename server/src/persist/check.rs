//! `--check-rdb`: describes the contents of a file, or its fault.

use std::{collections::BTreeMap, fmt::Write as _, fs::File, path::Path};

use braid_storage::{
    entry::time::Millis,
    keyspace::Keyspace,
    rdb::{
        Made,
        file::{FileError, Item, Problem, SnapshotReader},
    },
    table::hash::{HashTags, KeyHasher, Router},
    types::kinds::type_name,
};

/// The contents of a file.
#[derive(Default)]
struct Contents {
    version: u16,
    facts: Vec<(String, String)>,
    n_libraries: u64,
    /// Keys without a value, which are not loaded.
    n_empty: u64,
    is_of_valkey: bool,
    modules: ModuleData,
    databases: BTreeMap<u64, Database>,
    n_bytes: u64,
    is_checked: bool,
}

/// Data of modules. A server that loads the file refuses it, or leaves it out.
#[derive(Default)]
struct ModuleData {
    /// The numbers of keys with a value, by module.
    values: BTreeMap<String, u64>,
    /// Records that are not about a key and hold more than numbers.
    records: Vec<String>,
    /// Keys about which modules keep something.
    n_metadata: u64,
}

/// The contents of a database.
#[derive(Default)]
struct Database {
    n_by_type: BTreeMap<&'static str, u64>,
    n_deadlines: u64,
    n_expired: u64,
    n_value_bytes: u64,
}

/// Reads a whole file, builds each of its values, and describes its contents.
///
/// # Errors
/// The fault of the file, and its place.
pub fn check(path: &Path, now: Millis) -> Result<String, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{} is not valid: {why}", path.display());
    let cannot_read = |error| format!("{} cannot be read: {error}", path.display());
    let file = File::open(path).map_err(cannot_read)?;
    let n_bytes = file.metadata().map_err(cannot_read)?.len();
    contents(file, n_bytes, now).map(|contents| contents.report(path)).map_err(|error| failed(&error))
}

/// Reads the snapshot at the beginning of a file and builds each of its values. Returns its length in bytes.
pub(super) fn snapshot_bytes(file: File, n_bytes: u64, now: Millis) -> Result<u64, FileError> {
    contents(file, n_bytes, now).map(|contents| contents.n_bytes)
}

fn contents(file: File, n_bytes: u64, now: Millis) -> Result<Contents, FileError> {
    let router = Router::new(KeyHasher::random(), 0, HashTags::Honoured);
    let (keyspace, _) = Keyspace::new(router, 1);
    let mut reader = SnapshotReader::new(file, Some(n_bytes), true)?;
    reader.skip_modules();
    let (version, is_of_valkey) = (reader.version(), reader.is_of_valkey());
    let mut contents = Contents { version, is_of_valkey, ..Contents::default() };
    let mut db = 0;
    loop {
        match reader.next_item()? {
            Item::Select(selected) => db = selected,
            Item::Aux(name, value) => {
                contents.facts.push((name.escape_ascii().to_string(), value.escape_ascii().to_string()));
            }
            Item::Library(_) => contents.n_libraries += 1,
            Item::Sizes(..) | Item::Other | Item::ModuleRecord { is_empty: true, .. } => {}
            Item::ModuleRecord { module, .. } => contents.modules.records.push(module),
            Item::ModuleValue { module, .. } => *contents.modules.values.entry(module).or_default() += 1,
            Item::Entry(entry) => {
                // At time zero nothing has expired.
                let made = entry.build(&keyspace, Millis(0), None).map_err(|malformed| FileError {
                    offset: entry.offset,
                    key: Some(entry.key.to_vec()),
                    problem: Problem::Value(malformed),
                })?;
                if let Made::Empty = made {
                    contents.n_empty += 1;
                    continue;
                }
                let database = contents.databases.entry(db).or_default();
                let kind = entry.kind().expect("it was built");
                *database.n_by_type.entry(type_name(kind)).or_default() += 1;
                database.n_deadlines += u64::from(entry.deadline.is_some());
                database.n_expired += u64::from(entry.has_expired(now));
                database.n_value_bytes += entry.n_value_bytes() as u64;
            }
            Item::End { is_checked } => {
                contents.modules.n_metadata = reader.n_metadata();
                return Ok(Contents { n_bytes: reader.offset(), is_checked, ..contents });
            }
        }
    }
}

impl Contents {
    fn report(&self, path: &Path) -> String {
        let whose = if self.is_of_valkey { " of Valkey" } else { "" };
        let (path, version) = (path.display(), self.version);
        let mut text = format!("{path} is valid: RDB version {version}{whose}, {} bytes", self.n_bytes);
        text.push_str(if self.is_checked { ", checksum right\n" } else { ", no checksum\n" });
        // Writing to a String cannot fail.
        for (name, value) in &self.facts {
            let _ = writeln!(text, "  {name}: {value}");
        }
        let _ = writeln!(text, "  libraries of functions: {}", self.n_libraries);
        if self.n_empty > 0 {
            let _ = writeln!(text, "  keys with nothing in them, which are skipped: {}", self.n_empty);
        }
        self.modules.report(&mut text);
        for (db, database) in &self.databases {
            let n_keys: u64 = database.n_by_type.values().sum();
            let _ = writeln!(
                text,
                "  db{db}: {n_keys} keys, {} with a deadline, {} of those expired, {} bytes of values",
                database.n_deadlines, database.n_expired, database.n_value_bytes
            );
            for (name, n) in &database.n_by_type {
                let _ = writeln!(text, "    {name}: {n}");
            }
        }
        text.pop();
        text
    }
}

impl ModuleData {
    fn report(&self, text: &mut String) {
        let Self { values, records, n_metadata } = self;
        if values.is_empty() && records.is_empty() && *n_metadata == 0 {
            return;
        }
        let advice = "refused, or left out with 'rdb-skip-module-data yes'";
        let _ = writeln!(text, "  data of modules, which is {advice}:");
        for (module, n) in values {
            let _ = writeln!(text, "    {module}: {n} keys");
        }
        for module in records {
            let _ = writeln!(text, "    {module}: a record");
        }
        if *n_metadata > 0 {
            let _ = writeln!(text, "    metadata of {n_metadata} keys");
        }
    }
}
