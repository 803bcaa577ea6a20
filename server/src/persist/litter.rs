//! Removes unfinished files of ended processes at the start. The server log names them.
//!
//! Only regular files with names that this server or Redis gives are considered. A file stays if a living
//! process may be writing it. Its name contains the number of that process. This server also locks its files
//! while it writes them, which is visible from another container, too.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io,
    path::Path,
    process,
};

use braid_journal::{
    disk::{open_regular, read_regular},
    manifest::{Manifest, part_named},
};
use nix::{errno::Errno, sys::signal::kill, unistd::Pid};

use crate::notice;

/// Locks a temporary file while it is being written, as long as it is open. Where the system cannot lock it,
/// only the process number in its name protects it.
pub fn lock(file: &File) {
    let _ = file.try_lock();
}

/// Removes leftovers in the server's folder: of snapshots, and of rewrites by older versions of Redis.
///
/// # Errors
/// If the folder cannot be read, or a file cannot be removed.
pub fn remove_from_dir(dir: &Path) -> io::Result<()> {
    remove(dir, |name| writer_of(name).is_some_and(|writer| is_abandoned(&dir.join(name), writer)))
}

/// Removes leftovers in the folder of the append-only file `of`. The caller must own that file.
///
/// Leftovers are parts that no manifest names, and unfinished parts and manifests. Parts older than the
/// manifest stay, and all parts stay if there is none: a manifest that named them may have been lost.
///
/// # Errors
/// If the folder cannot be read, or a file cannot be removed.
pub fn remove_from_log(folder: &Path, of: &str) -> io::Result<()> {
    let named = named_parts(folder)?;
    let manifest = read_regular(&folder.join(format!("{of}.manifest"))).ok();
    let manifest = manifest.and_then(|text| Manifest::read(&text).ok());
    let is_since = |name: &str| {
        let (kind, number) = part_named(name.as_bytes(), of)?;
        Some(manifest.as_ref()?.first_of(kind).is_none_or(|first| number >= first))
    };
    let temporary = ["manifest", "incr.aof", "incr"].map(|kind| format!("temp-{of}.{kind}"));
    remove(folder, |name| match writer_of(name) {
        Some(writer) => is_abandoned(&folder.join(name), writer),
        None => {
            temporary.iter().any(|known| known == name)
                || is_since(name) == Some(true) && !named.contains(name.as_bytes())
        }
    })
}

fn remove(folder: &Path, is_litter: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(name) = name.to_str()
            && entry.file_type()?.is_file()
            && is_litter(name)
        {
            fs::remove_file(entry.path())?;
            notice!("Removed {}, which a process has left behind that ended", entry.path().display());
        }
    }
    Ok(())
}

/// Returns the process number in the name of a file that is renamed when complete. Such names are
/// `temp-123.rdb`, `temp-1700000000.123.rdb`, `temp-rewriteaof-123.rdb` and `temp-rewriteaof-bg-123.aof`.
fn writer_of(name: &str) -> Option<i32> {
    let (stem, extension) = name.strip_prefix("temp-")?.rsplit_once('.')?;
    let number = match (stem.strip_prefix("rewriteaof-"), extension) {
        (Some(rest), "rdb" | "aof") => rest.strip_prefix("bg-").unwrap_or(rest),
        (None, "rdb") => match stem.split_once('.') {
            Some((time, number)) => time.parse::<u64>().ok().map(|_| number)?,
            None => stem,
        },
        _ => return None,
    };
    let writer: i32 = number.parse().ok()?;
    (writer > 0 && writer.to_string() == number).then_some(writer)
}

/// Whether no process writes a file. This process has not begun any.
fn is_abandoned(path: &Path, writer: i32) -> bool {
    let is_alive = || !matches!(kill(Pid::from_raw(writer), None), Err(Errno::ESRCH));
    let is_free = |file: File| !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    (writer.unsigned_abs() == process::id() || !is_alive()) && open_regular(path).is_ok_and(is_free)
}

/// Returns the parts that the folder's manifests name. An operator's copies of manifests count.
fn named_parts(folder: &Path) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut named = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.contains(".manifest") || name.starts_with("temp-") || !entry.file_type()?.is_file() {
            continue;
        }
        // An invalid manifest keeps no parts.
        if let Ok(Manifest { base, increments, history, .. }) = Manifest::read(&read_regular(&entry.path())?)
        {
            named.extend(base.into_iter().chain(increments).chain(history).map(|part| part.name));
        }
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_servers_give_are_litter() {
        for (name, writer) in [
            ("temp-123.rdb", Some(123)),
            ("temp-1700000000.123.rdb", Some(123)),
            ("temp-rewriteaof-123.rdb", Some(123)),
            ("temp-rewriteaof-bg-123.aof", Some(123)),
            ("temp-0123.rdb", None),
            ("temp-0.rdb", None),
            ("temp--1.rdb", None),
            ("temp-+1.rdb", None),
            ("temp-backup.rdb", None),
            ("temp-123.aof", None),
            ("temp-123.rdb.bak", None),
            ("temp-a.123.rdb", None),
            ("dump.rdb", None),
        ] {
            assert_eq!(writer_of(name), writer, "{name}");
        }
    }
}
