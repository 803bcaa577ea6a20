//! Line charts as inline SVG: no script, no font, no network.
//!
//! A chart is as wide as its container. The `viewBox` scales it, and [`STYLE`] enlarges the type of a narrow
//! one, so that it is legible at the width of a phone. Colours are custom properties of the same style sheet,
//! one set for light and one for dark. The title and the description are for screen readers and for the
//! pointer. A page shows a title of its own.

mod axis;
mod svg;

use axis::Projection;
use svg::Svg;

/// The style sheet of every chart; a page includes it once.
pub const STYLE: &str = include_str!("plot/style.css");

/// The number of series with a colour of their own; further series reuse the colours.
pub const N_COLOURS: usize = 6;

/// A chart: plain data.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The subject of the chart, in a few words.
    pub title: String,
    /// The content of the chart in a sentence, for readers who cannot see it.
    pub description: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Lines and points, in the order of the legend; drawn first to last.
    pub series: Vec<Series>,
    /// Lines across, such as a target.
    pub marks: Vec<Mark>,
}

/// An axis.
///
/// A linear axis starts at zero. A logarithmic one shows only values above zero.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// The quantity on the axis.
    pub label: String,
    /// The unit of the values and of the labels at its ticks.
    pub unit: AxisUnit,
    /// The scale by which values become places.
    pub scale: Scale,
}

impl Axis {
    /// Makes a linear axis.
    pub fn linear(label: impl Into<String>, unit: AxisUnit) -> Self {
        Self { label: label.into(), unit, scale: Scale::Linear }
    }

    /// Makes a logarithmic axis.
    pub fn log(label: impl Into<String>, unit: AxisUnit) -> Self {
        Self { label: label.into(), unit, scale: Scale::Log }
    }

    /// Makes an axis of percentiles.
    pub fn percentiles(label: impl Into<String>) -> Self {
        Self { label: label.into(), unit: AxisUnit::Count, scale: Scale::Percentile }
    }
}

/// The rule by which values become places along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps are equal differences.
    Linear,
    /// Equal steps are equal ratios.
    Log,
    /// Values are percentiles below 100, and equal steps are further nines: 90, 99, 99.9.
    Percentile,
}

/// The unit of a figure, and so its written form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisUnit {
    /// A number of things, or of things a second; thousands and millions are shortened.
    Count,
    /// Microseconds, written as µs, ms or s.
    Micros,
    /// Seconds.
    Seconds,
    /// Bytes, written as KiB, MiB and so on.
    Bytes,
    /// Shares of a hundred.
    Percent,
}

/// A line or a set of points.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// x and y, by rising x. Where y is no number the line has a gap.
    pub points: Vec<(f64, f64)>,
    /// x, low and high of an interval around it.
    pub band: Option<Vec<(f64, f64, f64)>>,
    /// The style of drawing.
    pub style: Style,
}

impl Series {
    /// Makes a line.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, band: None, style: Style::Line }
    }

    /// Makes separate points, without a line.
    pub fn points(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { style: Style::Points, ..Self::line(name, points) }
    }

    /// Makes a dashed line, for computed values.
    pub fn dashed(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { style: Style::Dashed, ..Self::line(name, points) }
    }

    /// Adds an interval.
    pub fn with_band(self, band: Vec<(f64, f64, f64)>) -> Self {
        Self { band: Some(band), ..self }
    }
}

/// The style in which a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// A line, with dots on it while they are few.
    #[default]
    Line,
    /// A dashed line.
    Dashed,
    /// Dots only.
    Points,
}

/// A line across the chart at one value.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The axis that the value belongs to.
    pub axis: MarkedAxis,
    /// The value.
    pub at: f64,
    /// The words beside the line.
    pub label: String,
}

impl Mark {
    /// Makes a vertical line.
    pub fn x(at: f64, label: impl Into<String>) -> Self {
        Self { axis: MarkedAxis::X, at, label: label.into() }
    }

    /// Makes a horizontal line.
    pub fn y(at: f64, label: impl Into<String>) -> Self {
        Self { axis: MarkedAxis::Y, at, label: label.into() }
    }
}

/// The axis that a mark's value belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkedAxis {
    /// The horizontal one.
    X,
    /// The vertical one.
    Y,
}

impl AxisUnit {
    /// Writes a value with four digits at most.
    pub fn format(self, value: f64) -> String {
        let decimal = |divisor: f64, suffix: &str| format!("{}{suffix}", digits(value / divisor));
        let size = value.abs();
        match self {
            Self::Count if size >= 1e9 => decimal(1e9, " G"),
            Self::Count if size >= 1e6 => decimal(1e6, " M"),
            Self::Count if size >= 1e4 => decimal(1e3, " k"),
            Self::Count => decimal(1.0, ""),
            Self::Micros if size >= 1e6 => decimal(1e6, " s"),
            Self::Micros if size >= 1e3 => decimal(1e3, " ms"),
            Self::Micros => decimal(1.0, " µs"),
            Self::Seconds => decimal(1.0, " s"),
            Self::Percent => decimal(1.0, " %"),
            Self::Bytes => {
                let (divisor, suffix) = byte_unit(size);
                format!("{} {suffix}", digits(value / divisor))
            }
        }
    }
}

/// Returns the largest unit that is not above this many bytes, and its name.
fn byte_unit(bytes: f64) -> (f64, &'static str) {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = (bytes.max(1.0).log2() / 10.0).floor().min(5.0);
    ((power * 10.0).exp2(), UNITS[power as usize])
}

/// Writes four digits at most, and no zero at the end of a fraction.
fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{}", value.abs());
    }
    let whole = value.abs().log10().floor() as i32 + 1;
    let text = format!("{value:.*}", (4 - whole).clamp(0, 9) as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

const WIDTH: f64 = 480.0;
const PLOT_HEIGHT: f64 = 210.0;
const ROW: f64 = 22.0;
const EDGE: f64 = 8.0;
/// The width of a letter in the larger type of a narrow chart, on average.
const LETTER: f64 = 9.6;
/// Lines with more points than this have no dots.
const MOST_DOTS: usize = 40;

/// Draws a chart as an `<svg>` element.
pub fn chart(chart: &Chart) -> String {
    let frame = Frame::new(chart);
    let mut svg = Svg::begin(WIDTH, frame.height, &chart.title, &chart.description);
    frame.legend(&mut svg, &chart.series);
    frame.axes(&mut svg, chart);
    for (place, series) in chart.series.iter().enumerate() {
        frame.series(&mut svg, series, place, chart);
    }
    frame.marks(&mut svg, &chart.marks);
    svg.end()
}

/// The place and the size of a chart's parts.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    height: f64,
    x: Projection,
    y: Projection,
    /// The place of each name in the legend: x, and the row.
    legend: Vec<(f64, usize)>,
}

impl Frame {
    fn new(chart: &Chart) -> Self {
        let (xs, ys) = extents(chart);
        let y = Projection::new(&chart.y, &ys, axis::End::Rounded);
        let widest = y.ticks.iter().map(|tick| tick.label.chars().count()).max().unwrap_or(0);
        let left = EDGE + widest as f64 * LETTER + 6.0;
        let x = Projection::new(&chart.x, &xs, axis::End::Exact);
        // The last label may stand below the very end of the axis.
        let last = x.ticks.last().map_or(0, |tick| tick.label.chars().count());
        let right = WIDTH - EDGE.max(last as f64 * LETTER / 2.0) - 2.0;
        let (legend, n_rows) = legend(&chart.series);
        let top = EDGE + (n_rows as f64 + 1.0) * ROW + 16.0;
        let bottom = top + PLOT_HEIGHT;
        let height = bottom + 2.0 * ROW + 10.0;
        let x = x.between(left, right).thinned(LETTER);
        Self { left, right, top, bottom, height, x, y: y.between(bottom, top), legend }
    }

    fn legend(&self, svg: &mut Svg, series: &[Series]) {
        for (place, (series, &(x, row))) in series.iter().zip(&self.legend).enumerate() {
            let y = EDGE + ROW * row as f64 + ROW / 2.0;
            svg.open_series(place % N_COLOURS);
            match series.style {
                Style::Line => svg.path("line", &[(x, y), (x + 20.0, y)]),
                Style::Dashed => svg.path("line dashed", &[(x, y), (x + 20.0, y)]),
                Style::Points => svg.dot((x + 10.0, y), 4.0, None),
            }
            svg.close_group();
            svg.text("legend", (x + 26.0, y + 5.0), "start", &series.name);
        }
    }

    fn axes(&self, svg: &mut Svg, chart: &Chart) {
        for tick in &self.y.ticks {
            let y = self.y.place(tick.value);
            svg.rule(
                if tick.label.is_empty() { "grid minor" } else { "grid" },
                (self.left, y),
                (self.right, y),
            );
            svg.text("tick", (self.left - 6.0, y + 5.0), "end", &tick.label);
        }
        for tick in &self.x.ticks {
            let x = self.x.place(tick.value);
            svg.rule(
                if tick.label.is_empty() { "grid minor" } else { "grid" },
                (x, self.top),
                (x, self.bottom),
            );
            svg.text("tick", (x, self.bottom + ROW - 3.0), "middle", &tick.label);
        }
        svg.rule("axis", (self.left, self.bottom), (self.right, self.bottom));
        svg.text("label", (EDGE, self.top - 18.0), "start", &chart.y.label);
        svg.text("label", (self.right, self.bottom + 2.0 * ROW + 1.0), "end", &chart.x.label);
    }

    fn series(&self, svg: &mut Svg, series: &Series, place: usize, chart: &Chart) {
        svg.open_series(place % N_COLOURS);
        if let Some(band) = &series.band {
            self.band(svg, band);
        }
        let points: Vec<Option<(f64, f64)>> = series.points.iter().map(|&point| self.place(point)).collect();
        if series.style != Style::Points {
            let class = if series.style == Style::Dashed { "line dashed" } else { "line" };
            points.split(Option::is_none).for_each(|run| {
                let run: Vec<(f64, f64)> = run.iter().flatten().copied().collect();
                svg.path(class, &run);
            });
        }
        let radius = match series.style {
            Style::Points => Some(4.0),
            Style::Line if points.len() <= MOST_DOTS => Some(2.8),
            Style::Line | Style::Dashed => None,
        };
        if let Some(radius) = radius {
            for (&place, &(x, y)) in points.iter().zip(&series.points) {
                let (x, y) = (chart.x.write(x), chart.y.write(y));
                place
                    .into_iter()
                    .for_each(|place| svg.dot(place, radius, Some(&format!("{}: {x}, {y}", series.name))));
            }
        }
        svg.close_group();
    }

    /// Fills between low and high. An unbounded end is cut at the frame.
    fn band(&self, svg: &mut Svg, band: &[(f64, f64, f64)]) {
        let drawn = band.iter().filter(|(x, low, high)| self.x.shows(*x) && !low.is_nan() && !high.is_nan());
        let drawn: Vec<&(f64, f64, f64)> = drawn.collect();
        let edge = |x: f64, y: f64| (self.x.place(x), self.y.place(y).clamp(self.top, self.bottom));
        let above = drawn.iter().map(|(x, _, high)| edge(*x, *high));
        let below = drawn.iter().rev().map(|(x, low, _)| edge(*x, *low));
        svg.area(&above.chain(below).collect::<Vec<_>>());
    }

    fn marks(&self, svg: &mut Svg, marks: &[Mark]) {
        let mut n_vertical = 0;
        for mark in marks {
            match mark.axis {
                MarkedAxis::X if self.x.shows(mark.at) => {
                    let x = self.x.place(mark.at);
                    svg.rule("mark", (x, self.top), (x, self.bottom));
                    // Labels of several marks are stacked, on the side that has room.
                    let y = self.top + 15.0 + 19.0 * f64::from(n_vertical);
                    let fits = x + 5.0 + width(&mark.label) < self.right;
                    let (x, anchor) = if fits { (x + 5.0, "start") } else { (x - 5.0, "end") };
                    svg.text("mark-label", (x, y), anchor, &mark.label);
                    n_vertical += 1;
                }
                MarkedAxis::Y if self.y.shows(mark.at) => {
                    let y = self.y.place(mark.at);
                    svg.rule("mark", (self.left, y), (self.right, y));
                    // The label is above the line, unless that is outside the frame.
                    let above = y - 6.0 > self.top + 10.0;
                    let y = if above { y - 6.0 } else { y + 17.0 };
                    svg.text("mark-label", (self.left + 6.0, y), "start", &mark.label);
                }
                MarkedAxis::X | MarkedAxis::Y => {}
            }
        }
    }

    fn place(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        (self.x.shows(x) && self.y.shows(y)).then(|| (self.x.place(x), self.y.place(y)))
    }
}

impl Axis {
    /// Writes a value as the axis does.
    pub fn write(&self, value: f64) -> String {
        match self.scale {
            Scale::Percentile => format!("p{}", digits(value)),
            Scale::Linear | Scale::Log => self.unit.format(value),
        }
    }
}

/// Every x and y that the chart must show.
///
/// A band's upper end counts only up to three times the highest point of all series. An unbounded interval
/// must not flatten the measurements.
fn extents(chart: &Chart) -> (Vec<f64>, Vec<f64>) {
    let mut xs = Vec::new();
    let mut ys = Vec::new();
    for series in &chart.series {
        xs.extend(series.points.iter().map(|point| point.0));
        ys.extend(series.points.iter().map(|point| point.1));
    }
    let highest = ys.iter().copied().filter(|y| y.is_finite()).fold(0.0, f64::max);
    for (x, low, high) in chart.series.iter().filter_map(|series| series.band.as_ref()).flatten() {
        xs.push(*x);
        ys.extend([low.max(0.0), high.min(3.0 * highest)]);
    }
    for mark in &chart.marks {
        match mark.axis {
            MarkedAxis::X => xs.push(mark.at),
            MarkedAxis::Y => ys.push(mark.at),
        }
    }
    (xs, ys)
}

/// Places names one after the other, in as many rows as they need. One series needs no legend.
fn legend(series: &[Series]) -> (Vec<(f64, usize)>, usize) {
    if series.len() < 2 {
        return (Vec::new(), 0);
    }
    let mut places = Vec::new();
    let (mut x, mut row) = (EDGE, 0);
    for series in series {
        let needed = 26.0 + width(&series.name) + 16.0;
        if x > EDGE && x + needed > WIDTH {
            (x, row) = (EDGE, row + 1);
        }
        places.push((x, row));
        x += needed;
    }
    (places, row + 1)
}

fn width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

#[cfg(test)]
mod tests;
