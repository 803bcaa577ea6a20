//! The figures of INFO, each of them one row, with its form in Prometheus.
//!
//! A row says its name, how its value is read, and its metric, if it has one. INFO walks the rows of a
//! section. The metrics port walks the rows that have a metric, and the status page picks rows by name.

mod client_rows;
mod memory_figures;
mod memory_rows;
mod metric;
mod persistence_rows;
mod readings;
mod server_rows;
mod stats_rows;

pub use client_rows::CLIENTS;
pub use memory_figures::{Excess, MemoryFigures};
pub use memory_rows::MEMORY;
pub use metric::{Figure, Metric, MetricType, Prometheus};
pub use persistence_rows::PERSISTENCE;
pub use readings::Readings;
pub use server_rows::{CLUSTER, CPU, DEBUG, REPLICATION, SERVER, STREAM, TLS};
pub use stats_rows::STATS;

/// The rows of all sections, in the order of INFO.
const ALL: [&[Metric]; 11] =
    [SERVER, TLS, CLIENTS, MEMORY, PERSISTENCE, STATS, REPLICATION, STREAM, CPU, CLUSTER, DEBUG];

/// All rows, in the order of INFO.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    ALL.into_iter().flatten()
}

/// The row of a field of INFO.
///
/// # Panics
/// If there is none.
pub fn named(field: &str) -> &'static Metric {
    all().find(|row| row.field == Some(field)).expect("a field that is named has a row")
}

/// A row with its form in Prometheus.
type ShownRow = (&'static Metric, &'static Prometheus);

/// The rows that Prometheus shows, in the order of the exposition.
///
/// That is the order of INFO, except for rows that name their predecessor.
pub fn shown() -> Vec<ShownRow> {
    let rows: Vec<_> = all().filter_map(|row| Some((row, row.shown.as_ref()?))).collect();
    let mut ordered = Vec::with_capacity(rows.len());
    for &first in rows.iter().filter(|(_, shown)| shown.after.is_none()) {
        place(first, &rows, &mut ordered);
    }
    ordered
}

/// Adds a row, and then the rows that must follow it.
fn place(row: ShownRow, rows: &[ShownRow], ordered: &mut Vec<ShownRow>) {
    ordered.push(row);
    for &next in rows.iter().filter(|(_, shown)| shown.after == Some(row.1.name)) {
        place(next, rows, ordered);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let mut seen = HashSet::new();
        let names = all().flat_map(|row| [row.field, row.shown.map(|shown| shown.name)]).flatten();
        assert_eq!(names.filter(|name| !seen.insert(*name)).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn every_metric_has_its_place() {
        let placed: HashSet<_> = shown().into_iter().map(|(_, shown)| shown.name).collect();
        let lost = all().filter_map(|row| row.shown).filter(|shown| !placed.contains(shown.name));
        assert_eq!(lost.map(|shown| shown.after).collect::<Vec<_>>(), [None; 0]);
        assert!(shown().len() > 100);
    }
}
