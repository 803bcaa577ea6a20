//! The part of the table that both servers have.

use std::collections::BTreeSet;

use super::{
    families::{FAMILIES, Row},
    form::Form,
};

/// Families that only examine or move the data of others.
const WITHOUT_KEYS: &[&str] = &["keys", "transactions", "connection"];

/// The commands that can be compared.
pub struct Table {
    pub families: Vec<Present>,
    /// The families with keys of their own.
    pub key_pools: Vec<&'static str>,
}

/// The part of a family that both servers have.
pub struct Present {
    pub name: &'static str,
    pub rows: Vec<PresentRow>,
}

/// A row with its parsed form.
pub struct PresentRow {
    pub row: &'static Row,
    pub form: Form,
    /// The index of its first argument, after the name and the subcommand if there is one.
    pub n_names: usize,
}

/// Families and commands that the server under test lacks.
#[derive(Debug, Default)]
pub struct Missing {
    /// Whole families.
    pub families: Vec<&'static str>,
    /// Commands of other families, each with its family.
    pub commands: BTreeSet<(&'static str, String)>,
}

impl Table {
    /// Builds it from the two servers' replies to COMMAND LIST.
    ///
    /// # Panics
    /// When the reference does not have a command of the table.
    pub fn common(ours: &BTreeSet<String>, theirs: &BTreeSet<String>) -> (Table, Missing) {
        let mut table = Table { families: Vec::new(), key_pools: Vec::new() };
        let mut missing = Missing::default();
        for family in FAMILIES {
            let lacks: Vec<Option<String>> =
                family.rows.iter().map(|row| lacking(row, ours, theirs)).collect();
            if lacks[0].is_some() {
                missing.families.push(family.name);
                continue;
            }
            let rows = family.rows.iter().zip(&lacks).filter(|(_, lack)| lack.is_none());
            let rows = rows.map(|(row, _)| PresentRow::new(row, theirs)).collect();
            table.families.push(Present { name: family.name, rows });
            missing.commands.extend(lacks.into_iter().flatten().map(|lack| (family.name, lack)));
            if !WITHOUT_KEYS.contains(&family.name) {
                table.key_pools.push(family.name);
            }
        }
        (table, missing)
    }
}

impl PresentRow {
    fn new(row: &'static Row, known: &BTreeSet<String>) -> PresentRow {
        PresentRow { row, form: Form::parse(row.form), n_names: names(row, known).len() }
    }
}

/// Returns the names of a row's command and of its subcommand, as in COMMAND LIST.
fn names(row: &Row, known: &BTreeSet<String>) -> Vec<String> {
    let mut words = row.form.split_whitespace().map(str::to_ascii_lowercase);
    let name = words.next().expect("a form begins with a name");
    assert!(known.contains(&name), "the reference has no {name}");
    let sub = words.next().map(|sub| format!("{name}|{sub}")).filter(|sub| known.contains(sub));
    std::iter::once(name).chain(sub).collect()
}

/// Returns the first name of a row that the server under test lacks.
fn lacking(row: &Row, ours: &BTreeSet<String>, theirs: &BTreeSet<String>) -> Option<String> {
    names(row, theirs).into_iter().find(|name| !ours.contains(name))
}
