//! A row of the metrics: its name, its value and its form in Prometheus.

use std::{
    borrow::Cow,
    fmt::{self, Display},
};

use super::readings::Readings;
use crate::telemetry::stats::{Count, ThreadStats};

/// A figure: its field in INFO, the source of its value, and its metric.
#[derive(Clone, Copy)]
pub struct Metric {
    /// The name of the field; none if INFO does not show the figure.
    pub field: Option<&'static str>,
    source: FigureSource,
    /// Its form in Prometheus, if it has one.
    pub shown: Option<Prometheus>,
}

/// The source of a figure.
#[derive(Clone, Copy)]
enum FigureSource {
    /// The same text for ever.
    Fixed(&'static str),
    /// The sum of a counter over all threads.
    Sum(fn(&ThreadStats) -> &Count),
    /// A value from the server's state.
    Read(fn(&Readings<'_>) -> Figure),
}

/// The form of a figure in Prometheus.
#[derive(Clone, Copy, Debug)]
pub struct Prometheus {
    /// The metric's name. Names of redis_exporter are kept, and Braid's own begin with `braid_`.
    pub name: &'static str,
    /// The metric's type.
    pub kind: MetricType,
    /// The metric's help text.
    pub help: &'static str,
    /// The metric before it, where that is not the one before it in INFO.
    pub after: Option<&'static str>,
    /// Whether labels of its sample name the primary.
    pub names_primary: bool,
}

/// The metric types of Prometheus.
#[derive(Clone, Copy, Debug)]
pub enum MetricType {
    /// A level.
    Gauge,
    /// A number that only grows.
    Counter,
    /// A counter whose name does not end in `_total`.
    Untyped,
    /// Percentiles, with a count and a sum.
    Summary,
    /// Counts by upper bound.
    Histogram,
}

impl MetricType {
    /// The word for it in the text format.
    pub fn word(self) -> &'static str {
        match self {
            MetricType::Gauge => "gauge",
            MetricType::Counter => "counter",
            MetricType::Untyped => "untyped",
            MetricType::Summary => "summary",
            MetricType::Histogram => "histogram",
        }
    }
}

/// A figure with a field in INFO and a value from the server's state.
pub(super) const fn figure(field: &'static str, read: fn(&Readings<'_>) -> Figure) -> Metric {
    Metric { field: Some(field), source: FigureSource::Read(read), shown: None }
}

/// A figure that is the sum of a counter over all threads.
pub(super) const fn sum(field: &'static str, count: fn(&ThreadStats) -> &Count) -> Metric {
    Metric { field: Some(field), source: FigureSource::Sum(count), shown: None }
}

/// A figure that never changes.
pub(super) const fn fixed(field: &'static str, text: &'static str) -> Metric {
    Metric { field: Some(field), source: FigureSource::Fixed(text), shown: None }
}

/// A figure that INFO does not show.
pub(super) const fn unlisted(read: fn(&Readings<'_>) -> Figure) -> Metric {
    Metric { field: None, source: FigureSource::Read(read), shown: None }
}

impl Metric {
    /// Adds the form in Prometheus.
    pub(super) const fn shown(self, kind: MetricType, name: &'static str, help: &'static str) -> Self {
        Self { shown: Some(Prometheus { name, kind, help, after: None, names_primary: false }), ..self }
    }

    /// Makes labels of the sample name the primary.
    pub(super) const fn naming_primary(self) -> Self {
        let shown = self.shown.expect("a figure is shown before it has labels");
        Self { shown: Some(Prometheus { names_primary: true, ..shown }), ..self }
    }

    /// Moves the metric to the place after another one.
    pub(super) const fn after(self, name: &'static str) -> Self {
        let shown = self.shown.expect("a figure is shown before it is moved");
        Self { shown: Some(Prometheus { after: Some(name), ..shown }), ..self }
    }

    /// Returns the value.
    pub fn value(&self, now: &Readings<'_>) -> Figure {
        match self.source {
            FigureSource::Fixed(text) => text.into(),
            FigureSource::Sum(count) => now.server.sum(count).into(),
            FigureSource::Read(read) => read(now),
        }
    }
}

/// The value of a figure. It displays as INFO prints it.
#[derive(Clone, Debug, PartialEq)]
pub enum Figure {
    /// A figure that does not apply now. It is not printed.
    Absent,
    /// A count or a level.
    Unsigned(u64),
    /// A number that may be below 0.
    Signed(i64),
    /// A number of bytes. INFO adds a line with an abbreviation of it.
    Bytes(u64),
    /// A duration in microseconds, which is printed in seconds.
    Micros(u64),
    /// A number with two decimals.
    Decimal(f64),
    /// A number of percent with two decimals.
    Percent(f64),
    /// Whether the last attempt succeeded.
    Status(bool),
    /// A text.
    Text(Cow<'static, str>),
}

impl Figure {
    /// Returns the value in a form without words and units, where it has one.
    pub fn as_number(self) -> Self {
        match self {
            Figure::Status(is_ok) => is_ok.into(),
            Figure::Percent(percent) => Figure::Decimal(percent),
            figure => figure,
        }
    }
}

impl Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Figure::Absent => Ok(()),
            Figure::Unsigned(number) | Figure::Bytes(number) => number.fmt(f),
            Figure::Signed(number) => number.fmt(f),
            Figure::Micros(micros) => write!(f, "{}.{:06}", micros / 1_000_000, micros % 1_000_000),
            Figure::Decimal(number) => write!(f, "{number:.2}"),
            Figure::Percent(percent) => write!(f, "{percent:.2}%"),
            Figure::Status(is_ok) => f.write_str(if *is_ok { "ok" } else { "err" }),
            Figure::Text(text) => f.write_str(text),
        }
    }
}

macro_rules! figures_from {
    ($($number:ty => $variant:ident,)*) => {
        $(
            impl From<$number> for Figure {
                fn from(number: $number) -> Self {
                    Figure::$variant(number as _)
                }
            }
        )*
    };
}

figures_from! {
    u16 => Unsigned,
    u32 => Unsigned,
    u64 => Unsigned,
    usize => Unsigned,
    i64 => Signed,
    bool => Unsigned,
}

impl From<&'static str> for Figure {
    fn from(text: &'static str) -> Self {
        Figure::Text(text.into())
    }
}

impl From<String> for Figure {
    fn from(text: String) -> Self {
        Figure::Text(text.into())
    }
}

impl<T: Into<Figure>> From<Option<T>> for Figure {
    fn from(figure: Option<T>) -> Self {
        figure.map_or(Figure::Absent, Into::into)
    }
}
