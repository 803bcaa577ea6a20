//! `--check-aof`: checks whether an append-only file can be loaded. It reports faults, and cuts off the part
//! that is not whole.
//!
//! The output begins like that of redis-check-aof, so scripts that read it continue to work.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{BufRead, Read, Write},
    path::Path,
};

use braid_journal::{
    check::{Checked, FramesAfter, check},
    disk::{Folder, open_regular, read_regular},
    manifest::{Manifest, Part},
    reader::Broken,
};
use braid_storage::{entry::time::Millis, rdb};

use super::check::snapshot_bytes;
use crate::config::{AofOrder, AofWork};

/// Checks an append-only file. The findings are written to `out`, and so are questions, which `answers`
/// answers.
///
/// # Errors
/// The reason why the file is not valid, or was not repaired.
pub fn check_aof(order: &AofOrder, answers: &mut dyn BufRead, out: &mut dyn Write) -> Result<(), String> {
    Checking { work: order.work, answers, out }.run(&order.path)
}

struct Checking<'a> {
    work: AofWork,
    answers: &'a mut dyn BufRead,
    out: &'a mut dyn Write,
}

/// A file under check.
struct Subject<'a> {
    file: &'a File,
    /// The file's name in the output.
    name: &'a str,
    /// No other file comes after it, so it may be cut.
    is_last: bool,
}

/// The result of a check that did not end all checks.
enum Verdict {
    Valid,
    Empty,
    Cut,
    CutAfter(u64),
}

/// The answer that confirms the loss of whole frames.
const CONFIRM: &str = "lose them";

impl Checking<'_> {
    fn run(&mut self, path: &Path) -> Result<(), String> {
        let Some(manifest) = manifest_at(path)? else {
            self.say("Start checking Old-Style AOF");
            return self.check_file("AOF", (path, &path.display().to_string()), true);
        };
        self.say("Start checking Multi Part AOF");
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = match self.work {
            AofWork::Check => Folder::new(folder.to_owned()).map_err(|error| cannot("open", path, &error)),
            // A server that writes to the file would continue where the file ended before.
            AofWork::Fix | AofWork::CutAfter(_) => Folder::locked(folder.to_owned(), &name_of(path))
                .map_err(|error| cannot("repair", path, &error)),
        }?;
        let path_and_name =
            |part: &Part| (folder.path_of(&part.name), String::from_utf8_lossy(&part.name).into_owned());
        if let Some(base) = &manifest.base {
            let (path, name) = path_and_name(base);
            let format = if is_snapshot(&path)? { "RDB" } else { "RESP" };
            self.say(format_args!("Start to check BASE AOF ({format} format)."));
            self.check_file("BASE AOF", (&path, &name), manifest.increments.is_empty())?;
        }
        if !manifest.increments.is_empty() {
            self.say("Start to check INCR files.");
        }
        for (nth, increment) in manifest.increments.iter().enumerate() {
            let (path, name) = path_and_name(increment);
            self.check_file("INCR AOF", (&path, &name), nth + 1 == manifest.increments.len())?;
        }
        self.say("All AOF files and manifest are valid");
        Ok(())
    }

    /// Checks a file of commands, or of a snapshot with commands after it.
    fn check_file(&mut self, kind: &str, (path, name): (&Path, &str), is_last: bool) -> Result<(), String> {
        let writes = self.work != AofWork::Check;
        let file = open_regular(path).and_then(|file| match writes {
            true => OpenOptions::new().read(true).write(true).open(path),
            false => Ok(file),
        });
        let file = file.map_err(|error| cannot("open", path, &error))?;
        let n_bytes = file.metadata().map_err(|error| cannot("read", path, &error))?.len();
        let verdict = match n_bytes {
            0 => Verdict::Empty,
            _ => {
                let from = if is_snapshot(path)? { self.check_snapshot(path, n_bytes)? } else { 0 };
                self.check_commands(&Subject { file: &file, name, is_last }, from)?
            }
        };
        match verdict {
            Verdict::Valid => self.say(format_args!("{kind} {name} is valid")),
            Verdict::Empty => self.say(format_args!("{kind} {name} is empty")),
            Verdict::Cut => self.say(format_args!("Successfully truncated AOF {name}")),
            Verdict::CutAfter(seconds) => {
                self.say(format_args!("Successfully truncated AOF {name} to timestamp {seconds}"));
            }
        }
        Ok(())
    }

    /// Checks the snapshot at the beginning of a file. Returns its length in bytes.
    fn check_snapshot(&mut self, path: &Path, n_bytes: u64) -> Result<u64, String> {
        let file = File::open(path).map_err(|error| cannot("open", path, &error))?;
        // Expired keys make no difference here.
        let n_bytes = snapshot_bytes(file, n_bytes, Millis(0)).map_err(|error| {
            self.say(format_args!("The snapshot in {}: {error}", path.display()));
            "RDB preamble of AOF file is not sane, aborting.".to_owned()
        })?;
        self.say("RDB preamble is OK, proceeding with AOF tail...");
        Ok(n_bytes)
    }

    fn check_commands(&mut self, subject: &Subject<'_>, from: u64) -> Result<Verdict, String> {
        let until = match self.work {
            AofWork::CutAfter(seconds) => Some(seconds),
            AofWork::Check | AofWork::Fix => None,
        };
        let checked = check(subject.file, from, until)
            .map_err(|error| format!("Failed to read from AOF {}: {error}, aborting...", subject.name))?;
        match (&checked.broken, until) {
            (None, Some(seconds)) => self.cut_after(subject, &checked, seconds),
            (None, None) => {
                self.analyze(subject, &checked);
                Ok(Verdict::Valid)
            }
            (Some(broken), _) => {
                self.explain(subject, &checked, broken);
                self.analyze(subject, &checked);
                self.fix(subject, &checked)
            }
        }
    }

    fn analyze(&mut self, subject: &Subject<'_>, checked: &Checked) {
        self.say(format_args!(
            "AOF analyzed: filename={}, size={}, ok_up_to={}, ok_up_to_line={}, diff={}",
            subject.name,
            checked.n_bytes,
            checked.whole_bytes,
            checked.line,
            checked.lost_bytes()
        ));
    }

    /// Describes the fault of a file, and its remedies.
    fn explain(&mut self, subject: &Subject<'_>, checked: &Checked, broken: &Broken) {
        let Checked { n_bytes, whole_bytes, after, .. } = checked;
        match broken {
            Broken::Torn { .. } => self.say(format_args!(
                "{} is torn: what begins at byte {whole_bytes} of {n_bytes} was not written to its end.",
                subject.name
            )),
            broken => self.say(format_args!("{} {broken}.", subject.name)),
        }
        match *after {
            FramesAfter { n_frames: 0, is_incomplete: false, .. } => {}
            FramesAfter { n_frames, n_bytes, first_at, is_incomplete } => {
                let more = if is_incomplete { ", and maybe more" } else { "" };
                self.say(format_args!(
                    "After that come {n_frames} whole frames with {n_bytes} bytes of commands{more}. The first begins at byte {first_at}."
                ));
            }
        }
        if !subject.is_last {
            return self
                .say("You can restore it from a copy. It is not cut, because other files come after it.");
        }
        self.say(format_args!(
            "You can restore it from a copy, or have --check-aof --fix cut it at byte {whole_bytes}."
        ));
        self.say(format_args!(
            "That loses the {} bytes from there on: copy the file before.",
            checked.lost_bytes()
        ));
        if let Broken::Torn { .. } = broken {
            self.say("A server with 'aof-load-truncated yes' cuts it there when it starts.");
        }
    }

    /// Cuts a file to its whole part, if this was ordered and the user agrees.
    fn fix(&mut self, subject: &Subject<'_>, checked: &Checked) -> Result<Verdict, String> {
        let Subject { name, is_last, .. } = *subject;
        if self.work != AofWork::Fix {
            return Err(format!("AOF {name} is not valid. Use the --fix option to try fixing it."));
        }
        if !is_last {
            return Err(format!("Failed to truncate AOF {name} because it is not the last file"));
        }
        let (n_lost, n_bytes) = (checked.lost_bytes(), checked.n_bytes);
        self.say(format_args!(
            "This will shrink the AOF {name} from {n_bytes} bytes, with {n_lost} bytes, to {} bytes",
            checked.whole_bytes
        ));
        if !self.agrees(&checked.after) {
            return Err("Aborting... Nothing was changed.".to_owned());
        }
        cut(subject.file, checked.whole_bytes)
            .map_err(|error| format!("Failed to truncate AOF {name}: {error}"))?;
        Ok(Verdict::Cut)
    }

    /// Asks whether to cut. Where whole frames would be lost, a hasty `y` is no agreement.
    fn agrees(&mut self, after: &FramesAfter) -> bool {
        if *after == FramesAfter::default() {
            return self.ask("Continue? [y/N]: ").to_ascii_lowercase().starts_with('y');
        }
        self.say(format_args!(
            "Clients may have been told that the commands of {} whole frames after the damage are done.",
            after.n_frames
        ));
        self.ask(&format!("To cut these frames away, too, type '{CONFIRM}': ")) == CONFIRM
    }

    fn ask(&mut self, question: &str) -> String {
        let _ = write!(self.out, "{question}").and_then(|()| self.out.flush());
        let mut answer = String::new();
        // A missing answer is no agreement.
        let _ = self.answers.read_line(&mut answer);
        answer.trim().to_owned()
    }

    /// Cuts off everything that was written after a time, without a question.
    fn cut_after(
        &mut self,
        subject: &Subject<'_>,
        checked: &Checked,
        seconds: u64,
    ) -> Result<Verdict, String> {
        let Subject { name, is_last, .. } = *subject;
        let at = checked.whole_bytes;
        match (checked.lost_bytes(), at) {
            (0, _) => {
                self.say(format_args!("Truncate nothing in AOF {name} to timestamp {seconds}"));
                return Ok(Verdict::Valid);
            }
            (_, 0) => return Err(format!("AOF {name} has nothing before timestamp {seconds}, aborting...")),
            _ if !is_last => {
                return Err(format!(
                    "Failed to truncate AOF {name} to timestamp {seconds} to offset {at} because it is not the last file.\n\
                     If that is wanted, remove the files after it from the folder and from the manifest, and try again."
                ));
            }
            _ => {}
        }
        cut(subject.file, at)
            .map_err(|error| format!("Failed to truncate AOF {name} to timestamp {seconds}: {error}"))?;
        Ok(Verdict::CutAfter(seconds))
    }

    fn say(&mut self, line: impl fmt::Display) {
        // The reader of the output may have closed it.
        let _ = writeln!(self.out, "{line}");
    }
}

/// Returns the name of the append-only file to which a manifest belongs.
fn name_of(manifest: &Path) -> String {
    let name = manifest.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".manifest").unwrap_or(&name).to_owned()
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("Cannot {what} file {}: {error}, aborting...", path.display())
}

/// Cuts a file to a length, and syncs it.
fn cut(file: &File, n_bytes: u64) -> std::io::Result<()> {
    file.set_len(n_bytes)?;
    file.sync_all()
}

/// Bytes that are read to recognize the kind of a file.
const HEAD_BYTES: u64 = 64 << 10;

fn head(path: &Path) -> Result<Vec<u8>, String> {
    let mut head = Vec::new();
    let file = open_regular(path).map_err(|error| cannot("open", path, &error))?;
    file.take(HEAD_BYTES).read_to_end(&mut head).map_err(|error| cannot("read", path, &error))?;
    Ok(head)
}

fn is_snapshot(path: &Path) -> Result<bool, String> {
    Ok(rdb::file::is_snapshot(&head(path)?))
}

/// Reads a file as a manifest, if it is one. Its name or its first line without a comment shows that.
fn manifest_at(path: &Path) -> Result<Option<Manifest>, String> {
    let is_named = path.extension().is_some_and(|extension| extension == "manifest");
    let head = head(path)?;
    let first = head.split(|&byte| byte == b'\n').find(|line| !line.starts_with(b"#"));
    let begins = first.is_some_and(|line| line.to_ascii_lowercase().starts_with(b"file "));
    if !is_named && !begins {
        return Ok(None);
    }
    let text = read_regular(path).map_err(|error| cannot("read", path, &error))?;
    let invalid = |invalid| format!("The manifest {} is not valid: {invalid}", path.display());
    Manifest::read(&text).map(Some).map_err(invalid)
}
