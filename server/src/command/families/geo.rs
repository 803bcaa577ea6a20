//! Commands on geospatial indexes: sorted sets whose scores encode positions.

use std::{io::Write as _, ops::Range};

use braid_protocol::{
    number::{self, LongDouble},
    reply::Reply,
};
use braid_storage::{
    entry::key::Key,
    keyspace::shard::Shard,
    observers::{event::Event, record::Mark},
    sync::work::WORK_MAX,
    types::{
        geo::{Area, GeoPoint, Shape},
        packed::Element,
        sorted_set::{AddRule, Gathered, Limit, Presence, SortedSetRef, SortedSetType},
    },
};

use super::sorted_sets::{AddOptions, Members, STORED_FROM_ANOTHER, add_members, store};
use crate::{
    catalog::{
        Args, Arity, CommandError, Deprecation, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, MembersAt,
        Outcome, shown,
    },
    command::{
        Call, CommandSpec, Log, Look, Run, Work, arguments::collection_args::write_element, log_rewrite,
    },
};

const FOR_EACH_IN_AREA: &str = "O(N+M*log(M)) where N is the number of members in the cells around the area \
                                and M that of the members in the area";

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "geoadd",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys::UPDATE,
        members: MembersAt::WITH_COORDINATES,
        run: Run::Shard(geoadd),
        since: "3.2.0",
        group: Group::Geo,
        syntax: "key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]",
        summary: "Adds members to a geospatial index, or updates the positions of those that are there.",
        complexity: "O(log(N)) for each member given, where N is the number of members",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "geopos",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        members: MembersAt::ALL,
        run: Run::Shard(geopos),
        since: "3.2.0",
        group: Group::Geo,
        syntax: "key [member [member ...]]",
        summary: "Returns the longitudes and latitudes of members.",
        complexity: "O(N) where N is the number of members asked for",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "geodist",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY,
        keys: Keys::READ,
        members: MembersAt::ALL,
        run: Run::Shard(geodist),
        since: "3.2.0",
        group: Group::Geo,
        syntax: "key member1 member2 [M | KM | FT | MI]",
        summary: "Returns the distance between two members.",
        complexity: "O(1)",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "geohash",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        members: MembersAt::ALL,
        run: Run::Shard(geohash),
        since: "3.2.0",
        group: Group::Geo,
        syntax: "key [member [member ...]]",
        summary: "Returns the places of members as geohashes.",
        complexity: "O(N) where N is the number of members asked for",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "geosearch",
        arity: Arity::AtLeast(7),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(geosearch),
        work: Work::pinned(geosearch_work),
        since: "6.2.0",
        group: Group::Geo,
        syntax: "key <<FROMMEMBER member | FROMLONLAT longitude latitude> <BYRADIUS radius <M | KM | FT | \
                 MI> | BYBOX width height <M | KM | FT | MI>> | BYPOLYGON num-vertices longitude latitude \
                 [longitude latitude ...]> [ASC | DESC] [COUNT count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]",
        summary: "Returns the members in a circle, a box or a polygon.",
        complexity: FOR_EACH_IN_AREA,
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "geosearchstore",
        arity: Arity::AtLeast(8),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: STORED_FROM_ANOTHER,
        log: Log::Given,
        run: Run::Transaction(geosearchstore),
        work: Work::pinned(geosearchstore_work),
        since: "6.2.0",
        group: Group::Geo,
        syntax: "destination source <<FROMMEMBER member | FROMLONLAT longitude latitude> <BYRADIUS radius \
                 <M | KM | FT | MI> | BYBOX width height <M | KM | FT | MI>> | BYPOLYGON num-vertices longitude \
                 latitude [longitude latitude ...]> [ASC | DESC] [COUNT count [ANY]] [STOREDIST]",
        summary: "Stores the members in a circle, a box or a polygon under another key.",
        complexity: FOR_EACH_IN_AREA,
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "georadius",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::MOVABLE_KEYS).and(Flags::DEPRECATED),
        keys: READ_AND_STORED_FROM_6,
        log: Log::Given,
        run: Run::Transaction(georadius),
        work: Work::pinned(georadius_work),
        since: "3.2.0",
        group: Group::Geo,
        syntax: "key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT \
                 count [ANY]] [ASC | DESC] [STORE key] [STOREDIST key]",
        summary: "Returns the members in a circle around a place, or stores them.",
        complexity: FOR_EACH_IN_AREA,
        deprecated: Some(Deprecation {
            since: "6.2.0",
            replaced_by: "`GEOSEARCH` and `GEOSEARCHSTORE` with the `BYRADIUS` argument",
        }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "georadius_ro",
        arity: Arity::AtLeast(6),
        flags: Flags::READONLY.and(Flags::DEPRECATED),
        keys: Keys::READ,
        run: Run::Shard(georadius_ro),
        work: Work::pinned(georadius_work),
        since: "3.2.10",
        group: Group::Geo,
        syntax: "key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT \
                 count [ANY]] [ASC | DESC]",
        summary: "Returns the members in a circle around a place.",
        complexity: FOR_EACH_IN_AREA,
        deprecated: Some(Deprecation {
            since: "6.2.0",
            replaced_by: "`GEOSEARCH` with the `BYRADIUS` argument",
        }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "georadiusbymember",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::MOVABLE_KEYS).and(Flags::DEPRECATED),
        keys: READ_AND_STORED_FROM_5,
        log: Log::Given,
        run: Run::Transaction(georadiusbymember),
        work: Work::pinned(georadiusbymember_work),
        since: "3.2.0",
        group: Group::Geo,
        syntax: "key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count \
                 [ANY]] [ASC | DESC] [STORE key] [STOREDIST key]",
        summary: "Returns the members in a circle around one of them, or stores them.",
        complexity: FOR_EACH_IN_AREA,
        deprecated: Some(Deprecation {
            since: "6.2.0",
            replaced_by: "`GEOSEARCH` and `GEOSEARCHSTORE` with the `BYRADIUS` and `FROMMEMBER` arguments",
        }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "georadiusbymember_ro",
        arity: Arity::AtLeast(5),
        flags: Flags::READONLY.and(Flags::DEPRECATED),
        keys: Keys::READ,
        members: MembersAt::ONE,
        run: Run::Shard(georadiusbymember_ro),
        work: Work::pinned(georadiusbymember_work),
        since: "3.2.10",
        group: Group::Geo,
        syntax: "key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count \
                 [ANY]] [ASC | DESC]",
        summary: "Returns the members in a circle around one of them.",
        complexity: FOR_EACH_IN_AREA,
        deprecated: Some(Deprecation {
            since: "6.2.0",
            replaced_by: "`GEOSEARCH` with the `BYRADIUS` and `FROMMEMBER` arguments",
        }),
        ..CommandSpec::ROW
    },
];

const SOURCE: KeySpec = KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::Read };
const READ_AND_STORED_FROM_6: Keys = Keys(&[SOURCE, stored("STORE", 6), stored("STOREDIST", 6)]);
const READ_AND_STORED_FROM_5: Keys = Keys(&[SOURCE, stored("STORE", 5), stored("STOREDIST", 5)]);

const fn stored(word: &'static str, from: u8) -> KeySpec {
    KeySpec { at: KeysAt::Behind { word, from }, used: KeyUse::Overwrite }
}

fn geoadd(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let (mut missing, mut present, mut counts_changed) = (false, false, false);
    loop {
        let options = [("NX", &mut missing), ("XX", &mut present), ("CH", &mut counts_changed)];
        let Some((_, wanted)) = options.into_iter().find(|(tag, _)| args.tag(tag)) else { break };
        *wanted = true;
    }
    if args.is_empty() || !args.remaining().is_multiple_of(3) || missing && present {
        return Err(CommandError::Syntax);
    }
    let presence = match (missing, present) {
        (true, _) => Presence::Missing,
        (_, true) => Presence::Present,
        _ => Presence::Any,
    };
    let mut members = Members::new();
    while !args.is_empty() {
        let place = place(&mut args)?;
        members.push((place.score(), args.next()?));
    }
    let rule = AddRule { presence, ..AddRule::default() };
    add_members(shard, &key, AddOptions { rule, counts_changed }, &members, reply)
}

/// Takes the next two arguments as a position.
fn place(args: &mut Args<'_>) -> Result<GeoPoint, CommandError> {
    let (longitude, latitude) = (args.float()?, args.float()?);
    GeoPoint::new(longitude, latitude).ok_or_else(|| {
        let text = format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}");
        CommandError::owned(text)
    })
}

/// Returns the position of a member of a set.
fn place_of(set: Option<SortedSetRef<'_>>, member: &[u8]) -> Option<GeoPoint> {
    set?.score(member).map(GeoPoint::of_score)
}

fn geopos(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let set = shard.value::<SortedSetType>(&key)?;
    reply.array(args.remaining());
    for member in args.rest() {
        match place_of(set, member) {
            Some(place) => write_place(place, reply),
            None => reply.null_array(),
        }
    }
    Ok(())
}

fn write_place(place: GeoPoint, reply: &mut Reply<'_>) {
    reply.array(2);
    reply.long_double(LongDouble::from_f64(place.longitude));
    reply.long_double(LongDouble::from_f64(place.latitude));
}

fn geohash(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let set = shard.value::<SortedSetType>(&key)?;
    reply.array(args.remaining());
    for member in args.rest() {
        match place_of(set, member) {
            Some(place) => reply.bulk(&place.geohash()),
            None => reply.null(),
        }
    }
    Ok(())
}

fn geodist(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, from, to) = (args.key()?, args.next()?, args.next()?);
    if args.remaining() > 1 {
        return Err(CommandError::Syntax);
    }
    let metres = if args.is_empty() { 1.0 } else { unit(&mut args)? };
    let set = shard.value::<SortedSetType>(&key)?;
    match place_of(set, from).zip(place_of(set, to)) {
        Some((from, to)) => write_distance(from.distance(to) / metres, reply),
        None => reply.null(),
    }
    Ok(())
}

/// Writes a distance with four decimals, as text in RESP3 too.
///
/// As in Redis, the product with 10,000 is rounded half to even. If that product lies between two whole
/// numbers and the distance is slightly inexact, printing the nearest decimal would differ in the last digit.
fn write_distance(distance: f64, reply: &mut Reply<'_>) {
    let scaled = (distance * 10_000.0).round_ties_even() as u64;
    // At most twenty digits and a point.
    let mut text = [0; 24];
    let mut rest = &mut text[..];
    write!(rest, "{}.{:04}", scaled / 10_000, scaled % 10_000).expect("a number of 64 bits is short");
    let n_free = rest.len();
    reply.bulk(&text[..text.len() - n_free]);
}

/// Takes the next argument as a unit of length, and returns its metres.
fn unit(args: &mut Args<'_>) -> Result<f64, CommandError> {
    let units = [("M", 1.0), ("KM", 1000.0), ("FT", 0.3048), ("MI", 1609.34)];
    let unknown = CommandError::text("ERR unsupported unit provided. please use M, KM, FT, MI");
    units.into_iter().find(|(name, _)| args.tag(name)).map(|(_, metres)| metres).ok_or(unknown)
}

/// Takes the next argument as a length.
fn length(args: &mut Args<'_>, not_numeric: &'static str) -> Result<f64, CommandError> {
    number::parse_f64(args.next()?).ok_or(CommandError::text(not_numeric))
}

/// The way in which a command names the searched area.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// GEORADIUS: a position, a radius and a unit.
    Around { may_store: bool },
    /// GEORADIUSBYMEMBER: a member, a radius and a unit.
    AroundMember { may_store: bool },
    /// GEOSEARCH: options only.
    Search,
    /// GEOSEARCHSTORE: as GEOSEARCH, but the result is stored.
    SearchAndStore,
}

impl Dialect {
    fn is_search(self) -> bool {
        matches!(self, Dialect::Search | Dialect::SearchAndStore)
    }

    fn may_name_destination(self) -> bool {
        matches!(self, Dialect::Around { may_store: true } | Dialect::AroundMember { may_store: true })
    }
}

/// The centre of the searched area.
#[derive(Clone, Copy, Default)]
enum Centre {
    /// Not given yet.
    #[default]
    Unsaid,
    /// The position of a member, or `None` if there is no set.
    Member(Option<GeoPoint>),
    /// A given position.
    Given(GeoPoint),
}

/// The arguments of a search: its area, and the contents of its reply.
#[derive(Default)]
struct GeoQuery<'a> {
    centre: Centre,
    shape: Option<Shape>,
    /// The unit of distances in the reply, in metres.
    metres: f64,
    with_place: bool,
    with_distance: bool,
    with_score: bool,
    /// The most members in the result.
    count: Option<usize>,
    /// Whether the first members found are enough.
    any: bool,
    order: Option<DistanceOrder>,
    destination: Option<Key<'a>>,
    stores_distance: bool,
}

/// The order of distances.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DistanceOrder {
    Ascending,
    Descending,
}

/// A member in the area.
struct FoundMember<'s> {
    member: Element<'s>,
    place: GeoPoint,
    score: f64,
    /// The distance from the centre, in metres.
    distance: f64,
}

impl<'a> GeoQuery<'a> {
    /// Reads the arguments after the keys. The set, if there is one, locates its members.
    fn read(
        mut args: Args<'a>,
        set: Option<SortedSetRef<'_>>,
        dialect: Dialect,
        destination: Option<Key<'a>>,
    ) -> Result<Self, CommandError> {
        let mut query = GeoQuery { metres: 1.0, destination, ..GeoQuery::default() };
        match dialect {
            Dialect::Around { .. } => {
                query.centre = Centre::Given(place(&mut args)?);
                query.read_radius(&mut args)?;
            }
            Dialect::AroundMember { .. } => {
                query.read_member(&mut args, set)?;
                if set.is_some() {
                    query.read_radius(&mut args)?;
                } else {
                    args.next()?;
                    args.next()?;
                }
            }
            Dialect::Search | Dialect::SearchAndStore => {}
        }
        while !args.is_empty() {
            let is_option = query.read_option(&mut args, dialect)?
                || dialect.is_search() && query.read_area(&mut args, set)?;
            if !is_option {
                return Err(CommandError::Syntax);
            }
        }
        query.check(args, dialect)?;
        Ok(query)
    }

    /// Takes an option about the contents of the reply.
    fn read_option(&mut self, args: &mut Args<'a>, dialect: Dialect) -> Result<bool, CommandError> {
        let GeoQuery { with_distance, with_score, with_place, any, .. } = self;
        let flags =
            [("WITHDIST", with_distance), ("WITHHASH", with_score), ("WITHCOORD", with_place), ("ANY", any)];
        if let Some((_, flag)) = flags.into_iter().find(|(tag, _)| args.tag(tag)) {
            *flag = true;
        } else if args.tag("ASC") {
            self.order = Some(DistanceOrder::Ascending);
        } else if args.tag("DESC") {
            self.order = Some(DistanceOrder::Descending);
        } else if args.remaining() > 1 && args.tag("COUNT") {
            let count = usize::try_from(args.int()?).ok().filter(|&count| count > 0);
            self.count = Some(count.ok_or(CommandError::text("ERR COUNT must be > 0"))?);
        } else if dialect.may_name_destination() && args.remaining() > 1 && args.tag("STORE") {
            (self.destination, self.stores_distance) = (Some(args.key()?), false);
        } else if dialect.may_name_destination() && args.remaining() > 1 && args.tag("STOREDIST") {
            (self.destination, self.stores_distance) = (Some(args.key()?), true);
        } else if dialect == Dialect::SearchAndStore && args.tag("STOREDIST") {
            self.stores_distance = true;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Takes an option about the searched area.
    fn read_area(
        &mut self,
        args: &mut Args<'_>,
        set: Option<SortedSetRef<'_>>,
    ) -> Result<bool, CommandError> {
        let n_values = args.remaining() - 1;
        let is_at_place = matches!(self.centre, Centre::Given(_));
        let is_at_member = matches!(self.centre, Centre::Member(_));
        let is_circle = matches!(self.shape, Some(Shape::Circle { .. }));
        let is_box = matches!(self.shape, Some(Shape::Box { .. }));
        let is_polygon = matches!(self.shape, Some(Shape::Polygon { .. }));
        let is_alone = is_polygon || matches!(self.centre, Centre::Unsaid) && self.shape.is_none();
        if is_alone && n_values >= 2 && args.tag("BYPOLYGON") {
            self.read_polygon(args)?;
        } else if is_polygon {
            return Ok(false);
        } else if !is_at_place && n_values >= 1 && args.tag("FROMMEMBER") {
            self.read_member(args, set)?;
        } else if !is_at_member && n_values >= 2 && args.tag("FROMLONLAT") {
            self.centre = Centre::Given(place(args)?);
        } else if !is_box && n_values >= 2 && args.tag("BYRADIUS") {
            self.read_radius(args)?;
        } else if !is_circle && n_values >= 3 && args.tag("BYBOX") {
            self.read_box(args)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn read_member(&mut self, args: &mut Args<'_>, set: Option<SortedSetRef<'_>>) -> Outcome {
        let found = place_of(set, args.next()?);
        if set.is_some() && found.is_none() {
            return Err(CommandError::text("ERR could not decode requested zset member"));
        }
        self.centre = Centre::Member(found);
        Ok(())
    }

    fn read_radius(&mut self, args: &mut Args<'_>) -> Outcome {
        let radius = length(args, "ERR need numeric radius")?;
        if radius < 0.0 {
            return Err(CommandError::text("ERR radius cannot be negative"));
        }
        self.metres = unit(args)?;
        self.shape = Some(Shape::Circle { radius: radius * self.metres });
        Ok(())
    }

    fn read_box(&mut self, args: &mut Args<'_>) -> Outcome {
        let width = length(args, "ERR need numeric width")?;
        let height = length(args, "ERR need numeric height")?;
        if height < 0.0 || width < 0.0 {
            return Err(CommandError::text("ERR height or width cannot be negative"));
        }
        self.metres = unit(args)?;
        self.shape = Some(Shape::Box { width: width * self.metres, height: height * self.metres });
        Ok(())
    }

    /// Reads the number of corners, and their positions. Its own middle is the centre.
    fn read_polygon(&mut self, args: &mut Args<'_>) -> Outcome {
        let n_corners = number::parse_i64(args.next()?)
            .filter(|n| i32::try_from(*n).is_ok())
            .ok_or(CommandError::text("ERR invalid number of vertices"))?;
        let n_corners = usize::try_from(n_corners).unwrap_or(0);
        if n_corners < 3 || args.remaining() / 2 < n_corners {
            return Err(CommandError::text("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices"));
        }
        let corners = (0..n_corners).map(|_| place(args)).collect::<Result<_, _>>()?;
        let Area { centre, shape } = Area::of_polygon(corners);
        (self.centre, self.shape, self.metres) = (Centre::Given(centre), Some(shape), 1.0);
        Ok(())
    }

    /// Fails if the options contradict each other or are incomplete.
    fn check(&self, args: Args<'_>, dialect: Dialect) -> Outcome {
        if self.destination.is_some() && (self.with_distance || self.with_score || self.with_place) {
            return Err(CommandError::text(match dialect {
                Dialect::SearchAndStore => {
                    "ERR GEOSEARCHSTORE is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
                }
                _ => {
                    "ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
                }
            }));
        }
        if dialect.is_search() {
            // The name in the client's spelling.
            let name = shown(args.words().get(0));
            if matches!(self.centre, Centre::Unsaid) {
                return Err(CommandError::owned(format!(
                    "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {name}"
                )));
            }
            if self.shape.is_none() {
                return Err(CommandError::owned(format!(
                    "ERR exactly one of BYRADIUS and BYBOX can be specified for {name}"
                )));
            }
        }
        if self.any && self.count.is_none() {
            return Err(CommandError::text("ERR the ANY argument requires COUNT argument"));
        }
        Ok(())
    }

    /// Returns the searched area, or `None` if there is no set.
    fn area(&self) -> Option<Area> {
        let (Centre::Given(centre) | Centre::Member(Some(centre))) = self.centre else { return None };
        Some(Area { centre, shape: self.shape.clone()? })
    }

    /// Returns the members of the result, in order.
    fn find<'s>(&self, set: SortedSetRef<'s>) -> Vec<FoundMember<'s>> {
        let Some(area) = self.area() else { return Vec::new() };
        let enough = self.count.filter(|_| self.any).unwrap_or(usize::MAX);
        let scored = area.score_ranges().into_iter().flat_map(|scores| {
            set.iter(set.score_range(Limit::Including(scores.start), Limit::Excluding(scores.end)))
        });
        let in_area = scored.filter_map(|scored| {
            let score = scored.score();
            let place = GeoPoint::of_score(score);
            let distance = area.distance_to(place)?;
            Some(FoundMember { member: scored.member, place, score, distance })
        });
        let mut found: Vec<FoundMember<'s>> = in_area.take(enough).collect();
        // A limited result contains the nearest members, unless ANY is given.
        let order = self.order.or((self.count.is_some() && !self.any).then_some(DistanceOrder::Ascending));
        match order {
            Some(DistanceOrder::Ascending) => {
                found.sort_by(|one, other| one.distance.total_cmp(&other.distance))
            }
            Some(DistanceOrder::Descending) => {
                found.sort_by(|one, other| other.distance.total_cmp(&one.distance))
            }
            None => {}
        }
        found.truncate(self.count.unwrap_or(usize::MAX));
        found
    }

    fn write(&self, found: &[FoundMember<'_>], reply: &mut Reply<'_>) {
        let n_told =
            usize::from(self.with_distance) + usize::from(self.with_score) + usize::from(self.with_place);
        reply.array(found.len());
        for found in found {
            if n_told > 0 {
                reply.array(1 + n_told);
            }
            write_element(found.member, reply);
            if self.with_distance {
                write_distance(found.distance / self.metres, reply);
            }
            if self.with_score {
                reply.integer(found.score as i64);
            }
            if self.with_place {
                write_place(found.place, reply);
            }
        }
    }
}

/// Searches, and replies with the result.
fn search(shard: &mut Shard, mut args: Args<'_>, dialect: Dialect, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let set = shard.value::<SortedSetType>(&key)?;
    let query = GeoQuery::read(args, set, dialect, None)?;
    match set {
        Some(set) => query.write(&query.find(set), reply),
        None => reply.array(0),
    }
    Ok(())
}

/// Searches, and replies with the result, or stores it at a destination.
fn search_and_store<'a>(
    call: &mut Call<'_, '_>,
    mut args: Args<'a>,
    destination: Option<Key<'a>>,
    dialect: Dialect,
    reply: &mut Reply<'_>,
) -> Outcome {
    let key = args.key()?;
    let router = *call.server.keyspace.router();
    let set = call.shard_of(&key).value::<SortedSetType>(&key)?;
    let query = GeoQuery::read(args, set, dialect, destination)?;
    let found = set.map(|set| query.find(set)).unwrap_or_default();
    let Some(destination) = query.destination else {
        query.write(&found, reply);
        return Ok(());
    };
    let mut gathered = Gathered::new(&router);
    for found in &found {
        let score = if query.stores_distance { found.distance / query.metres } else { found.score };
        found.member.with_text(|member| gathered.put(member, |_| score));
    }
    let event = match dialect {
        Dialect::SearchAndStore => Event::GeoSearchStore,
        _ => Event::GeoRadiusStore,
    };
    let mark = Mark::here();
    let n = store(call, &destination, gathered.sort(), event);
    if mark.has_changes() {
        // Distances may differ in their last digit by server, and COUNT ANY takes places in an order of the
        // server's own.
        log_rewrite::sorted_set(call.session.db, call.shard_of(&destination), &destination);
    }
    reply.integer(n as i64);
    Ok(())
}

fn geosearch(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    search(shard, args, Dialect::Search, reply)
}

fn geosearchstore(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let destination = args.key()?;
    search_and_store(call, args, Some(destination), Dialect::SearchAndStore, reply)
}

fn georadius(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    search_and_store(call, args, None, Dialect::Around { may_store: true }, reply)
}

fn georadius_ro(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    search(shard, args, Dialect::Around { may_store: false }, reply)
}

fn georadiusbymember(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    search_and_store(call, args, None, Dialect::AroundMember { may_store: true }, reply)
}

fn georadiusbymember_ro(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    search(shard, args, Dialect::AroundMember { may_store: false }, reply)
}

/// Returns the work of a search.
///
/// It visits all members of the cells around the area.
fn searched(look: &mut Look<'_, '_>, mut args: Args<'_>, dialect: Dialect) -> usize {
    /// Work of computing a member's position and distance, in elements.
    const DISTANCE: usize = 4;
    /// More words than a search has that is for no polygon.
    const WORDS_OF_OTHERS: usize = 16;
    /// Words of a polygon whose edges are as much work as one element.
    const WORDS_PER_ELEMENT: usize = 8;
    let Ok(key) = args.key() else { return 0 };
    let n_each = DISTANCE + args.remaining().saturating_sub(WORDS_OF_OTHERS) / WORDS_PER_ELEMENT;
    let n = |set: SortedSetRef<'_>| {
        if set.len() <= WORK_MAX / n_each / 8 {
            return 0;
        }
        let area = GeoQuery::read(args, Some(set), dialect, None).ok().and_then(|query| query.area());
        let n_within = |scores: Range<f64>| {
            set.score_range(Limit::Including(scores.start), Limit::Excluding(scores.end)).len()
        };
        area.map_or(0, |area| area.score_ranges().into_iter().map(n_within).sum())
    };
    look.sorted_set(&key, n).unwrap_or(0).saturating_mul(n_each)
}

fn geosearch_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    searched(look, args, Dialect::Search)
}

fn geosearchstore_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    searched(look, args.skip(1), Dialect::SearchAndStore)
}

fn georadius_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    searched(look, args, Dialect::Around { may_store: true })
}

fn georadiusbymember_work(look: &mut Look<'_, '_>, args: Args<'_>) -> usize {
    searched(look, args, Dialect::AroundMember { may_store: true })
}

#[cfg(test)]
mod tests {
    use braid_protocol::reply::Resp;

    use super::*;

    #[test]
    fn distances_have_four_decimals_rounded_as_redis_rounds_them() {
        for (distance, text) in [
            (0.0, "0.0000"),
            (0.00004, "0.0000"),
            (0.00005, "0.0000"),
            (166274.15156960033, "166274.1516"),
            (15912450.960749999, "15912450.9608"),
            (47797796.35375, "47797796.3538"),
        ] {
            let mut out = Vec::new();
            write_distance(distance, &mut Reply::new(&mut out, Resp::V3));
            assert_eq!(out, format!("${}\r\n{text}\r\n", text.len()).as_bytes(), "{distance}");
        }
    }
}
