//! The few SVG elements of a chart.

use std::fmt::{self, Write as _};

/// An `<svg>` element being written. Every text is escaped here and nowhere else.
pub(super) struct Svg {
    text: String,
}

impl Svg {
    pub fn begin(width: f64, height: f64, title: &str, description: &str) -> Self {
        let (title, description) = (Escaped(title), Escaped(description));
        let mut svg = Self { text: String::new() };
        svg.write(format_args!(
            "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{title}. {description}\"><title>{title}</title><desc>{description}</desc>",
        ));
        svg
    }

    pub fn end(mut self) -> String {
        self.text.push_str("</svg>");
        self.text
    }

    /// Opens the group with the colour of a series.
    pub fn open_series(&mut self, colour: usize) {
        self.write(format_args!("<g class=\"series-{}\">", colour + 1));
    }

    pub fn close_group(&mut self) {
        self.text.push_str("</g>");
    }

    pub fn rule(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let (x1, y1, x2, y2) = (Place(x1), Place(y1), Place(x2), Place(y2));
        self.write(format_args!("<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"));
    }

    pub fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
        if text.is_empty() {
            return;
        }
        let (x, y, text) = (Place(x), Place(y), Escaped(text));
        self.write(format_args!(
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    /// A line through all points; nothing for fewer than two.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        if points.len() > 1 {
            self.write(format_args!("<path class=\"{class}\" d=\"{}\"/>", Points(points)));
        }
    }

    /// The area within all points.
    pub fn area(&mut self, points: &[(f64, f64)]) {
        if points.len() > 2 {
            self.write(format_args!("<path class=\"band\" d=\"{}Z\"/>", Points(points)));
        }
    }

    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, title: Option<&str>) {
        let (x, y) = (Place(x), Place(y));
        self.write(format_args!("<circle class=\"dot\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\">"));
        title.into_iter().for_each(|title| self.write(format_args!("<title>{}</title>", Escaped(title))));
        self.text.push_str("</circle>");
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("a String takes all that is written");
    }
}

/// A coordinate, to a tenth.
struct Place(f64);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", (self.0 * 10.0).round() / 10.0)
    }
}

struct Points<'a>(&'a [(f64, f64)]);

impl fmt::Display for Points<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(place, &(x, y))| {
            write!(f, "{}{} {}", if place == 0 { 'M' } else { 'L' }, Place(x), Place(y))
        })
    }
}

struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            letter => f.write_char(letter),
        })
    }
}
