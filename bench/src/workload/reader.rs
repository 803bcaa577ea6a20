//! Finding a workload by its name, and reading one from a file.

use std::path::Path;
use std::{fs, io};

use super::definition::Workload;
use super::generator::Compiled;
use super::named::NAMED;
use crate::error::{BenchError, Doing};

impl Workload {
    /// Finds a workload by its shipped name, or reads it from a file.
    ///
    /// # Errors
    /// When there is neither, or the file is no workload; the error names the line or the field.
    pub fn named_or_file(name: &str) -> Result<Self, BenchError> {
        if let Some((_, text)) = NAMED.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let text = match fs::read_to_string(Path::new(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let known: Vec<_> = NAMED.iter().map(|(known, _)| *known).collect();
                return Err(BenchError::workload(
                    name,
                    format!("there is no such file; named ones are {}", known.join(", ")),
                ));
            }
            read => read.doing(format!("read {name}"))?,
        };
        Self::parse(name, &text)
    }

    /// Reads a workload from TOML. `name` is its name if the text has none.
    ///
    /// # Errors
    /// When the text is no workload; the error names the line or the field.
    pub fn parse(name: &str, text: &str) -> Result<Self, BenchError> {
        let mut workload: Self =
            toml::from_str(text).map_err(|error| BenchError::workload(name, error.to_string()))?;
        if workload.name == Self::default().name {
            name.clone_into(&mut workload.name);
        }
        Compiled::new(&workload)?;
        Ok(workload)
    }
}
