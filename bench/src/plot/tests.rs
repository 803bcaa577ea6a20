//! The content of a chart, as text. Its look is judged by eye.

use super::*;

fn sample() -> Chart {
    Chart {
        title: "Latency".to_owned(),
        description: "Rises with the rate".to_owned(),
        x: Axis::linear("requests a second", AxisUnit::Count),
        y: Axis::log("response time", AxisUnit::Micros),
        series: vec![
            Series::line("p50", vec![(1e4, 90.0), (5e4, 110.0), (9e4, 400.0)]),
            Series::line("p99", vec![(1e4, 200.0), (5e4, 300.0), (9e4, 9000.0)]).with_band(vec![
                (1e4, 150.0, 260.0),
                (5e4, 250.0, 360.0),
                (9e4, 5000.0, f64::INFINITY),
            ]),
        ],
        marks: vec![Mark::y(1000.0, "target 1 ms"), Mark::x(7e4, "most")],
    }
}

#[test]
fn a_chart_scales_and_speaks() {
    let svg = chart(&sample());
    assert!(svg.starts_with("<svg class=\"chart\"") && svg.ends_with("</svg>"));
    assert!(svg.contains("viewBox=\"0 0 480 ") && !svg.contains(" width="));
    assert!(
        svg.contains("role=\"img\"")
            && svg.contains("<title>Latency</title><desc>Rises with the rate</desc>")
    );
    for text in ["p50", "p99", "requests a second", "response time", "1 ms", "target 1 ms", "most"] {
        assert!(svg.contains(&format!(">{text}</text>")), "{text}: {svg}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn texts_from_outside_are_escaped() {
    let hostile = "</svg><script>alert('\"&\"')</script>";
    let mut drawn = sample();
    drawn.title = hostile.to_owned();
    drawn.description = hostile.to_owned();
    drawn.x.label = hostile.to_owned();
    drawn.y.label = hostile.to_owned();
    drawn.series[0].name = hostile.to_owned();
    drawn.marks[0].label = hostile.to_owned();
    let svg = chart(&drawn);
    assert!(!svg.contains("<script") && svg.matches("</svg>").count() == 1);
    assert!(svg.contains("&lt;script&gt;alert(&#39;&quot;&amp;&quot;&#39;)"));
}

#[test]
fn every_place_is_within_the_frame() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..300 {
        let mut drawn = sample();
        let scale = 10.0_f64.powf(random.f64() * 12.0 - 3.0);
        let points = (0..random.usize(0..60)).map(|n| (n as f64 * scale, random.f64() * scale)).collect();
        drawn.series = vec![Series::line("one", points), Series::points("two", vec![(scale, scale)])];
        drawn.y =
            if random.bool() { Axis::log("", AxisUnit::Bytes) } else { Axis::linear("", AxisUnit::Percent) };
        drawn.marks.clear();
        let svg = chart(&drawn);
        let circles =
            svg.split("cy=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
        for y in circles {
            assert!((0.0..=400.0).contains(&y), "{svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn the_last_label_below_the_axis_is_whole() {
    let mut drawn = sample();
    drawn.x = Axis::percentiles("percentile");
    drawn.series = vec![Series::line("one", vec![(0.0, 90.0), (99.99, 400.0)])];
    let svg = chart(&drawn);
    let (before, _) = svg.split_once("\" text-anchor=\"middle\">p99.99</text>").expect("it is labelled");
    let (_, place) = before.rsplit_once("<text class=\"tick\" x=\"").expect("a text has a place");
    let x: f64 = place.split('"').next().and_then(|x| x.parse().ok()).expect("a place is a number");
    assert!(x + LETTER * "p99.99".len() as f64 / 2.0 <= WIDTH, "{x}");
}

#[test]
fn lines_have_gaps_where_nothing_was_measured() {
    let mut drawn = sample();
    let points = vec![(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 1.0)];
    drawn.series = vec![Series::line("rate", points)];
    drawn.marks.clear();
    assert_eq!(chart(&drawn).matches("<path class=\"line\"").count(), 2);
}

#[test]
fn an_empty_chart_is_a_frame() {
    let drawn = Chart { series: Vec::new(), marks: Vec::new(), ..sample() };
    assert!(chart(&drawn).contains("class=\"axis\""));
}

#[test]
fn values_are_written_with_four_digits_at_most() {
    assert_eq!(AxisUnit::Micros.format(1234.5), "1.234 ms");
    assert_eq!(AxisUnit::Micros.format(87.0), "87 µs");
    assert_eq!(AxisUnit::Count.format(123_456.0), "123.5 k");
    assert_eq!(AxisUnit::Count.format(0.0), "0");
    assert_eq!(AxisUnit::Bytes.format(1536.0), "1.5 KiB");
    assert_eq!(AxisUnit::Bytes.format(0.0), "0 B");
    assert_eq!(AxisUnit::Percent.format(12.5), "12.5 %");
}
