//! Places on Earth as scores: pure functions.
//!
//! A score is a geohash of 52 bits. Longitude and latitude are each divided into 2²⁶ steps. The latitude's
//! are between ±85.05112878°, where the square of the Mercator projection ends. The bits of the two numbers
//! alternate, the longitude's first. So all places in one cell of a coarser grid, of 2ⁿ by 2ⁿ cells, have
//! scores of one range. A search covers its area with a cell of about its size and the cells around it, and
//! measures the distance to each place in them.
//!
//! The Earth is a sphere here, and distances are great circles by the haversine formula. Constants, the
//! choice of cells, their order and the order of operations on doubles are Redis's, so that scores, distances
//! and the order of results are the same to the bit.

use std::{f64::consts::PI, ops::Range};

use smallvec::SmallVec;

/// The Earth's radius, in metres.
const EARTH_RADIUS: f64 = 6_372_797.560856;
/// Half of the Earth's circumference on the projection, in metres.
const MERCATOR_MAX: f64 = 20_037_726.37;
const LONGITUDE_MAX: f64 = 180.0;
const LATITUDE_MAX: f64 = 85.05112878;
/// Bits of each number in a score.
const SCORE_STEP: u32 = 26;
/// The letters of geohashes.
const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";

/// A place, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeoPoint {
    /// East of Greenwich.
    pub longitude: f64,
    /// North of the equator.
    pub latitude: f64,
}

impl GeoPoint {
    /// A place that has a score; none beyond ±180° or ±85.05112878°.
    pub fn new(longitude: f64, latitude: f64) -> Option<Self> {
        let is_within = longitude.abs() <= LONGITUDE_MAX && latitude.abs() <= LATITUDE_MAX;
        is_within.then_some(GeoPoint { longitude, latitude })
    }

    /// The middle of the cell that a score stands for.
    pub fn of_score(score: f64) -> Self {
        Cell { bits: to_bits(score), step: SCORE_STEP }.bounds().middle()
    }

    /// The score of the place.
    pub fn score(self) -> f64 {
        Cell::of(self, SCORE_STEP, LATITUDE_MAX).bits as f64
    }

    /// The place's geohash as others spell it: 11 letters over the whole range of latitudes, of which the
    /// last says nothing.
    pub fn geohash(self) -> [u8; 11] {
        let bits = Cell::of(self, SCORE_STEP, 90.0).bits;
        let mut text = [ALPHABET[0]; 11];
        for (nth, letter) in text[..10].iter_mut().enumerate() {
            *letter = ALPHABET[(bits >> (52 - 5 * (nth + 1))) as usize & 31];
        }
        text
    }

    /// The way to another place, in metres.
    pub fn distance(self, other: GeoPoint) -> f64 {
        let v = ((radians(other.longitude) - radians(self.longitude)) / 2.0).sin();
        if v == 0.0 {
            return self.distance_north(other);
        }
        let (from, to) = (radians(self.latitude), radians(other.latitude));
        let u = ((to - from) / 2.0).sin();
        let a = u * u + from.cos() * to.cos() * v * v;
        2.0 * EARTH_RADIUS * a.sqrt().asin()
    }

    /// The way to the latitude of another place.
    fn distance_north(self, other: GeoPoint) -> f64 {
        EARTH_RADIUS * (radians(other.latitude) - radians(self.latitude)).abs()
    }
}

/// The bits of a score, which may be that of any sorted set: as a C program converts it, negative numbers
/// wrap around.
fn to_bits(score: f64) -> u64 {
    if score < i64::MAX as f64 { score as i64 as u64 } else { score as u64 }
}

fn radians(degrees: f64) -> f64 {
    degrees * (PI / 180.0)
}

fn degrees(radians: f64) -> f64 {
    radians / (PI / 180.0)
}

/// A cell of the grid that has 2^step cells in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    /// The numbers of its column and row, by turns.
    bits: u64,
    step: u32,
}

impl Cell {
    /// The cell of a place, on a grid that ends at a latitude.
    fn of(place: GeoPoint, step: u32, latitude_max: f64) -> Self {
        let n_cells = (1u64 << step) as f64;
        let column = (place.longitude + LONGITUDE_MAX) / (2.0 * LONGITUDE_MAX) * n_cells;
        let row = (place.latitude + latitude_max) / (2.0 * latitude_max) * n_cells;
        Self::at(column as u32, row as u32, step)
    }

    fn at(column: u32, row: u32, step: u32) -> Self {
        Cell { bits: spread(column) << 1 | spread(row), step }
    }

    fn column(self) -> u32 {
        gather(self.bits >> 1)
    }

    fn row(self) -> u32 {
        gather(self.bits)
    }

    /// The cell `east` columns and `north` rows from this one; the grid goes round in both directions.
    fn neighbour(self, east: i32, north: i32) -> Self {
        let mask = u32::MAX >> (32 - self.step);
        // A number that is not moved is left as it is: at the very end of the range it is one too large for
        // the grid.
        let moved = |number: u32, by: i32| match by {
            0 => number,
            by => number.wrapping_add_signed(by) & mask,
        };
        Self::at(moved(self.column(), east), moved(self.row(), north), self.step)
    }

    fn bounds(self) -> Bounds {
        let n_cells = (1u64 << self.step) as f64;
        let edge = |number: u64, max: f64| -max + number as f64 / n_cells * (2.0 * max);
        let (column, row) = (u64::from(self.column()), u64::from(self.row()));
        Bounds {
            west: edge(column, LONGITUDE_MAX),
            east: edge(column + 1, LONGITUDE_MAX),
            south: edge(row, LATITUDE_MAX),
            north: edge(row + 1, LATITUDE_MAX),
        }
    }

    /// The scores of the places in the cell.
    fn scores(self) -> Range<f64> {
        let shift = 2 * (SCORE_STEP - self.step);
        (self.bits << shift) as f64..((self.bits + 1) << shift) as f64
    }
}

/// Puts a zero bit before each bit (Sean Anderson, "Bit Twiddling Hacks": interleave bits by binary magic
/// numbers).
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    bits = (bits | bits << 16) & 0x0000_ffff_0000_ffff;
    bits = (bits | bits << 8) & 0x00ff_00ff_00ff_00ff;
    bits = (bits | bits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    bits = (bits | bits << 2) & 0x3333_3333_3333_3333;
    (bits | bits << 1) & 0x5555_5555_5555_5555
}

/// Takes every second bit, from the lowest on.
fn gather(bits: u64) -> u32 {
    let mut bits = bits & 0x5555_5555_5555_5555;
    bits = (bits | bits >> 1) & 0x3333_3333_3333_3333;
    bits = (bits | bits >> 2) & 0x0f0f_0f0f_0f0f_0f0f;
    bits = (bits | bits >> 4) & 0x00ff_00ff_00ff_00ff;
    bits = (bits | bits >> 8) & 0x0000_ffff_0000_ffff;
    (bits | bits >> 16) as u32
}

/// A rectangle, in degrees.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    west: f64,
    east: f64,
    south: f64,
    north: f64,
}

impl Bounds {
    /// The rectangle around places.
    fn around(places: &[GeoPoint]) -> Self {
        let longitudes = || places.iter().map(|place| place.longitude);
        let latitudes = || places.iter().map(|place| place.latitude);
        Bounds {
            west: longitudes().fold(LONGITUDE_MAX, f64::min),
            east: longitudes().fold(-LONGITUDE_MAX, f64::max),
            south: latitudes().fold(LATITUDE_MAX, f64::min),
            north: latitudes().fold(-LATITUDE_MAX, f64::max),
        }
    }

    fn middle(self) -> GeoPoint {
        GeoPoint {
            longitude: ((self.west + self.east) / 2.0).clamp(-LONGITUDE_MAX, LONGITUDE_MAX),
            latitude: ((self.south + self.north) / 2.0).clamp(-LATITUDE_MAX, LATITUDE_MAX),
        }
    }
}

/// The form of a search area, in metres.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// All that is no further away than this.
    Circle {
        /// The distance.
        radius: f64,
    },
    /// All that is no further away than half of this in either direction.
    Box {
        /// From west to east.
        width: f64,
        /// From south to north.
        height: f64,
    },
    /// All within a polygon, whose edges are straight lines on a map of degrees.
    Polygon {
        /// Its corners, at least three, in order.
        corners: Vec<GeoPoint>,
    },
}

/// Where to search.
#[derive(Clone, Debug, PartialEq)]
pub struct Area {
    /// The middle.
    pub centre: GeoPoint,
    /// The form.
    pub shape: Shape,
}

impl Area {
    /// Creates the area within a polygon. Its centre is the mean of the corners, as points in space.
    pub fn of_polygon(corners: Vec<GeoPoint>) -> Self {
        let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
        for corner in &corners {
            let (longitude, latitude) = (radians(corner.longitude), radians(corner.latitude));
            x += EARTH_RADIUS * latitude.cos() * longitude.cos();
            y += EARTH_RADIUS * latitude.cos() * longitude.sin();
            z += EARTH_RADIUS * latitude.sin();
        }
        let n = corners.len() as f64;
        let (x, y, z) = (x / n, y / n, z / n);
        let centre =
            GeoPoint { longitude: degrees(y.atan2(x)), latitude: degrees(z.atan2((x * x + y * y).sqrt())) };
        Area { centre, shape: Shape::Polygon { corners } }
    }

    /// How far a place is from the centre, if it is in the area.
    pub fn distance_to(&self, place: GeoPoint) -> Option<f64> {
        if let Shape::Polygon { corners } = &self.shape {
            return is_within(place, corners).then(|| self.centre.distance(place));
        }
        let distance = self.centre.distance(place);
        let is_inside = match self.shape {
            Shape::Circle { radius } => distance <= radius,
            Shape::Box { width, height } => {
                // How far east it is, is measured where the place is.
                let below = GeoPoint { longitude: self.centre.longitude, latitude: place.latitude };
                self.centre.distance_north(place) <= height / 2.0 && place.distance(below) <= width / 2.0
            }
            Shape::Polygon { .. } => unreachable!("polygons have been dealt with"),
        };
        is_inside.then_some(distance)
    }

    /// The scores of cells that cover the area, in the order in which they are searched.
    ///
    /// Where the area is a large part of the Earth, neighbours may be one cell: those that follow each other
    /// are one range.
    pub fn score_ranges(&self) -> SmallVec<[Range<f64>; 9]> {
        let mut last = None;
        self.cells().into_iter().filter(|cell| last.replace(*cell) != Some(*cell)).map(Cell::scores).collect()
    }

    /// The cell with the centre, and of those around it the ones into which the area reaches.
    fn cells(&self) -> SmallVec<[Cell; 9]> {
        let bounds = self.bounds();
        let step = self.step();
        // The middle of a polygon around a pole may be beyond the grid.
        let latitude = self.centre.latitude.clamp(-LATITUDE_MAX, LATITUDE_MAX);
        let middle = GeoPoint { latitude, ..self.centre };
        let mut centre = Cell::of(middle, step, LATITUDE_MAX);
        if step > 1 && !is_covered(bounds, centre) {
            centre = Cell::of(middle, step - 1, LATITUDE_MAX);
        }
        let own = centre.bounds();
        // The grid of step 1 has only four cells, none of which is useless.
        let is_coarse = centre.step < 2;
        let reaches = |east: i32, north: i32| {
            is_coarse
                || !(north < 0 && own.south < bounds.south
                    || north > 0 && own.north > bounds.north
                    || east < 0 && own.west < bounds.west
                    || east > 0 && own.east > bounds.east)
        };
        const AROUND: [(i32, i32); 9] =
            [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        AROUND
            .into_iter()
            .filter(|&(east, north)| reaches(east, north))
            .map(|(east, north)| centre.neighbour(east, north))
            .collect()
    }

    /// A step whose cells are about as large as the area.
    fn step(&self) -> u32 {
        let mut radius = match self.shape {
            Shape::Circle { radius } => radius,
            Shape::Box { width, height } => {
                (width / 2.0 * (width / 2.0) + height / 2.0 * (height / 2.0)).sqrt()
            }
            Shape::Polygon { .. } => {
                let Bounds { west, east, south, north } = self.bounds();
                let corners = [(west, north), (east, north), (west, south), (east, south)];
                let distances = corners
                    .map(|(longitude, latitude)| self.centre.distance(GeoPoint { longitude, latitude }));
                distances.into_iter().fold(0.0, f64::max)
            }
        };
        if radius == 0.0 {
            return SCORE_STEP;
        }
        let mut step = 1;
        while radius < MERCATOR_MAX {
            radius *= 2.0;
            step += 1;
        }
        // Cells twice as large as that, and larger ones towards the poles, where they are narrow.
        step -= 2;
        let latitude = self.centre.latitude.abs();
        if latitude > 66.0 {
            step -= 1;
        }
        if latitude > 80.0 {
            step -= 1;
        }
        step.clamp(1, SCORE_STEP as i32) as u32
    }

    /// The rectangle around the area.
    fn bounds(&self) -> Bounds {
        let (half_width, half_height) = match self.shape {
            Shape::Circle { radius } => (radius, radius),
            Shape::Box { width, height } => (width / 2.0, height / 2.0),
            Shape::Polygon { ref corners } => return Bounds::around(corners),
        };
        let GeoPoint { longitude, latitude } = self.centre;
        let north = degrees(half_height / EARTH_RADIUS);
        // The area is widest at the edge nearer to the pole.
        let widest = if latitude < 0.0 { latitude - north } else { latitude + north };
        let east = degrees(half_width / EARTH_RADIUS / radians(widest).cos());
        Bounds {
            west: longitude - east,
            east: longitude + east,
            south: latitude - north,
            north: latitude + north,
        }
    }
}

/// Whether a place is within a polygon: a line from there to the east crosses an odd number of edges
/// (W. Randolph Franklin, "PNPOLY").
fn is_within(place: GeoPoint, corners: &[GeoPoint]) -> bool {
    let Some(&last) = corners.last() else { return false };
    let GeoPoint { longitude, latitude } = place;
    let (mut before, mut is_inside) = (last, false);
    for &corner in corners {
        let is_crossed = (corner.latitude > latitude) != (before.latitude > latitude)
            && longitude
                < (before.longitude - corner.longitude) * (latitude - corner.latitude)
                    / (before.latitude - corner.latitude)
                    + corner.longitude;
        is_inside ^= is_crossed;
        before = corner;
    }
    is_inside
}

/// Whether a cell and those around it cover a rectangle.
fn is_covered(bounds: Bounds, cell: Cell) -> bool {
    let beyond = |east, north| cell.neighbour(east, north).bounds();
    !(beyond(0, 1).north < bounds.north
        || beyond(0, -1).south > bounds.south
        || beyond(1, 0).east < bounds.east
        || beyond(-1, 0).west > bounds.west)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PALERMO: GeoPoint = GeoPoint { longitude: 13.361389, latitude: 38.115556 };
    const CATANIA: GeoPoint = GeoPoint { longitude: 15.087269, latitude: 37.502669 };

    #[test]
    fn scores_geohashes_and_distances_are_those_of_redis() {
        assert_eq!(PALERMO.score(), 3479099956230698.0);
        assert_eq!(CATANIA.score(), 3479447370796909.0);
        let (palermo, catania) = (GeoPoint::of_score(PALERMO.score()), GeoPoint::of_score(CATANIA.score()));
        assert_eq!(palermo, GeoPoint { longitude: 13.361389338970184, latitude: 38.1155563954963 });
        assert_eq!(palermo.geohash(), *b"sqc8b49rny0");
        assert_eq!(catania.geohash(), *b"sqdtr74hyu0");
        assert_eq!(format!("{:.4}", palermo.distance(catania)), "166274.1516");
        assert_eq!(palermo.distance(palermo), 0.0);
    }

    #[test]
    fn a_place_is_within_the_projection() {
        assert!(GeoPoint::new(180.0, 85.05112878).is_some() && GeoPoint::new(-180.0, -85.05112878).is_some());
        for (longitude, latitude) in
            [(180.1, 0.0), (-180.1, 0.0), (0.0, 85.06), (0.0, -85.06), (f64::INFINITY, 0.0)]
        {
            assert_eq!(GeoPoint::new(longitude, latitude), None);
        }
    }

    #[test]
    fn bits_alternate_and_come_back() {
        for number in [0, 1, 2, 0x5555, 0xffff_ffff, 0x1234_5678] {
            assert_eq!(gather(spread(number)), number);
            assert_eq!(gather(spread(number) << 1), 0);
        }
        assert_eq!(spread(0b1011), 0b100_0101);
        let cell = Cell::at(3, 0, 2);
        assert_eq!((cell.bits, cell.column(), cell.row()), (0b1010, 3, 0));
        assert_eq!(cell.neighbour(1, -1), Cell::at(0, 3, 2), "the grid goes round");
    }

    #[test]
    fn any_score_is_some_place() {
        for score in [f64::NEG_INFINITY, -1.5, -0.0, 0.5, 1e15, 4503599627370495.0, 1e300, f64::INFINITY] {
            let GeoPoint { longitude, latitude } = GeoPoint::of_score(score);
            assert!(GeoPoint::new(longitude, latitude).is_some(), "{score}");
        }
    }

    /// The distances are Valkey 9.1's.
    #[test]
    fn a_polygon_has_what_is_within_its_edges() {
        let corner = |(longitude, latitude)| GeoPoint { longitude, latitude };
        let corners = [(12.0, 37.0), (16.0, 37.0), (16.0, 39.0), (12.0, 39.0)].map(corner);
        let area = Area::of_polygon(corners.to_vec());
        let distance = |place: GeoPoint| area.distance_to(GeoPoint::of_score(place.score()));
        assert_eq!(distance(PALERMO).map(|metres| format!("{metres:.4}")), Some("56987.4933".to_owned()));
        assert_eq!(distance(CATANIA).map(|metres| format!("{metres:.4}")), Some("111411.0839".to_owned()));
        assert_eq!(distance(corner((17.24151, 38.788135))), None);
        // A dent: the middle of the rectangle is outside.
        let dented = [(12.0, 37.0), (14.0, 38.9), (16.0, 37.0), (16.0, 39.0), (12.0, 39.0)].map(corner);
        assert!(!is_within(corner((14.0, 38.0)), &dented) && is_within(corner((12.5, 38.0)), &dented));
    }

    #[test]
    fn ranges_cover_the_area() {
        let mut state = 1u64;
        let mut random = |max: f64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 53) as f64 * max
        };
        let mut n_inside = 0;
        for _ in 0..20_000 {
            let centre = GeoPoint { longitude: random(340.0) - 170.0, latitude: random(120.0) - 60.0 };
            let size = 10f64.powf(random(6.0));
            let near = degrees(size / EARTH_RADIUS);
            let area = if random(1.0) < 0.3 {
                let mut corner = |_| GeoPoint {
                    longitude: centre.longitude + random(4.0 * near) - 2.0 * near,
                    latitude: centre.latitude + random(2.0 * near) - near,
                };
                Area::of_polygon([0; 4].map(&mut corner).to_vec())
            } else if random(1.0) < 0.5 {
                Area { centre, shape: Shape::Circle { radius: size } }
            } else {
                Area { centre, shape: Shape::Box { width: 2.0 * size, height: random(2.0) * size } }
            };
            let ranges = area.score_ranges();
            assert!(!ranges.is_empty() && ranges.len() <= 9);
            let longitude = centre.longitude + random(4.0 * near) - 2.0 * near;
            let latitude = centre.latitude + random(2.0 * near) - near;
            let Some(place) = GeoPoint::new(longitude, latitude) else { continue };
            let score = place.score();
            if area.distance_to(GeoPoint::of_score(score)).is_some() {
                n_inside += 1;
                assert!(ranges.iter().any(|range| range.contains(&score)), "{area:?} {place:?}");
            }
        }
        assert!(n_inside > 4000, "{n_inside}");
    }
}
