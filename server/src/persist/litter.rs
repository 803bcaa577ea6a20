//! Files that a process has left behind which ended while it wrote them: at the start they are removed, and
//! the log says which.
//!
//! Only names that this server or Redis gives are looked at, and only regular files. A file stays that a
//! living process may be writing: its number is in the name, and this server's are locked as long as they are
//! written, so that it is seen from another container, too.

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

/// Locks a file that is being written under a name of its own, for as long as it is open. Where the system
/// cannot do that, its name must do.
pub fn lock(file: &File) {
    let _ = file.try_lock();
}

/// Removes what is left of snapshots and of rewrites by older versions of Redis, in the folder of the server.
///
/// # Errors
/// If the folder cannot be read, or a file not be removed.
pub fn remove_from_dir(dir: &Path) -> io::Result<()> {
    remove(dir, |name| writer_of(name).is_some_and(|writer| is_abandoned(&dir.join(name), writer)))
}

/// Removes what is left in the folder of the append-only file of a name, to which the caller has the right:
/// parts that no manifest names, and what was to become a part or a manifest. Parts from before the manifest
/// stay, or all if there is none: one that named them may have been lost.
///
/// # Errors
/// If the folder cannot be read, or a file not be removed.
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

/// The number of the process that writes a file of this name, if it is one that is renamed when it is
/// complete: `temp-123.rdb`, `temp-1700000000.123.rdb`, `temp-rewriteaof-123.rdb`,
/// `temp-rewriteaof-bg-123.aof`.
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

/// Whether nobody writes a file. This process has not begun any.
fn is_abandoned(path: &Path, writer: i32) -> bool {
    let is_alive = || !matches!(kill(Pid::from_raw(writer), None), Err(Errno::ESRCH));
    let is_free = |file: File| !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    (writer.unsigned_abs() == process::id() || !is_alive()) && open_regular(path).is_ok_and(is_free)
}

/// Returns the parts that the folder's manifests name; an operator's copies of manifests count.
fn named_parts(folder: &Path) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut named = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.contains(".manifest") || name.starts_with("temp-") || !entry.file_type()?.is_file() {
            continue;
        }
        // One that says nothing keeps nothing.
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
