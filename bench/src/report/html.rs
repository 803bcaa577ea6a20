//! A report as one page that needs nothing else: no network, no script, charts inline.
//!
//! Server names, flags and replies come from outside. The template escapes every text, and the charts escape
//! theirs.

pub mod charts;

use askama::Template;

use crate::plot::{self, Chart, Series};

/// The content of the page, in the order of the page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// The subject of the measurement, in a sentence.
    pub subtitle: String,
    /// Warnings that a reader needs before the figures, such as a limited client.
    pub warnings: Vec<Warning>,
    /// The figures that matter most.
    pub figures: Vec<Figure>,
    /// The plan in words, a paragraph each.
    pub plan: Vec<String>,
    /// Charts and tables.
    pub sections: Vec<Section>,
    /// The conditions under which the figures hold: server, machine, versions, flags, date.
    pub facts: Vec<Fact>,
}

/// A limit on the meaning of the figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The headline, in capitals where the text report has it so: `CLIENT LIMITED`.
    pub headline: String,
    /// The consequence for the figures.
    pub text: String,
}

/// One large figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// The figure's name.
    pub name: String,
    /// The figure with its unit.
    pub value: String,
    /// Its interval, or its assumptions.
    pub note: String,
}

/// A name and a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A heading and the content under it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Section {
    /// The heading.
    pub heading: String,
    /// Paragraphs before the charts.
    pub text: Vec<String>,
    /// Charts with their captions.
    pub plates: Vec<Plate>,
    /// Tables after them.
    pub tables: Vec<HtmlTable>,
}

/// A chart and its explanation.
#[derive(Debug, Clone, PartialEq)]
pub struct Plate {
    /// The chart; its title is shown above it.
    pub chart: Chart,
    /// The words below it.
    pub caption: String,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HtmlTable {
    /// The content of the table.
    pub caption: String,
    /// The names of the columns.
    pub head: Vec<String>,
    /// The rows, each with a cell for each column; the first cell names the row.
    pub rows: Vec<Vec<String>>,
}

/// Writes the page.
pub fn render(page: &Page) -> String {
    Document { page, plot_style: plot::STYLE, style: include_str!("html/style.css") }
        .render()
        .expect("a String takes all that is written, and the template calls nothing that fails")
}

#[derive(Template)]
#[template(path = "page.html")]
struct Document<'a> {
    page: &'a Page,
    plot_style: &'static str,
    style: &'static str,
}

impl Plate {
    fn svg(&self) -> String {
        plot::chart(&self.chart)
    }

    /// The chart's points in words, for readers who cannot see them.
    ///
    /// Series of more than `MOST` points are left out.
    fn readings(&self) -> Vec<[String; 3]> {
        const MOST: usize = 60;
        let reading = |series: &Series| -> Vec<[String; 3]> {
            let write =
                |&(x, y): &(f64, f64)| [series.name.clone(), self.chart.x.write(x), self.chart.y.write(y)];
            series.points.iter().filter(|point| point.1.is_finite()).map(write).collect()
        };
        self.chart.series.iter().filter(|series| series.points.len() <= MOST).flat_map(reading).collect()
    }
}

#[cfg(test)]
mod tests;
