//! The destinations of reports: standard output and files.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::error::{BenchError, Doing};

/// Writes a report as JSON, with a newline at the end.
pub fn json(report: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(report).expect("a report has only string keys");
    text.push('\n');
    text
}

/// Writes to standard output. A reader that has closed it is no error.
///
/// # Errors
/// When the system refuses it for another reason.
pub fn print(text: impl fmt::Display) -> Result<(), BenchError> {
    let mut output = io::stdout().lock();
    match write!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).doing("write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a report to a file.
///
/// # Errors
/// When the system refuses it.
pub fn write(path: &Path, text: &[u8]) -> Result<(), BenchError> {
    fs::write(path, text).doing(format!("write {}", path.display()))
}
