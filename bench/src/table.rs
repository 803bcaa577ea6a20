//! Tables of text.

use std::fmt;

/// Rows of cells, each column as wide as its widest cell.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns that are aligned left; the others are aligned right.
    n_left: usize,
}

impl Table {
    /// Begins a table with the heads of the columns.
    ///
    /// The first column is aligned left, the others right.
    pub fn new<S: Into<String>>(heads: impl IntoIterator<Item = S>) -> Self {
        Self::with(1, heads)
    }

    /// Begins a table with all columns aligned left.
    pub fn left<S: Into<String>>(heads: impl IntoIterator<Item = S>) -> Self {
        Self::with(usize::MAX, heads)
    }

    fn with<S: Into<String>>(n_left: usize, heads: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self { rows: Vec::new(), n_left };
        table.push(heads);
        table
    }

    /// Adds a row.
    pub fn push<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<_> = (0..n_columns).map(width).collect();
        for row in &self.rows {
            let padded = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                _ if column < self.n_left => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            });
            writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["a", "b"]);
        table.push(["long", "1"]);
        table.push(["x", "µµ"]);
        assert_eq!(table.to_string(), "a      b\nlong   1\nx     µµ\n");
    }

    #[test]
    fn all_columns_can_be_aligned_left() {
        let mut table = Table::left(["a", "b"]);
        table.push(["x", "long"]);
        table.push(["long", "1"]);
        assert_eq!(table.to_string(), "a     b\nx     long\nlong  1\n");
    }
}
