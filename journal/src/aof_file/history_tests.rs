//! A model of a server with a file whose history others know: it takes turns as a primary and as a replica,
//! and stops at any moment.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::{
    history::{History, ReplicationId},
    intake::{Kind, Received},
    manifest::Manifest,
    reader::{Broken, Reader},
    simulated::{Dice, NAME, Simulated, unit},
    store::{End, manifest_in},
    stream::{Lsn, Turn},
};

const TEMPORARY: &[u8] = b"temp-base";
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// A clock that never moves: each sync is due at once under the policy of the test.
#[derive(Default)]
struct Still(AtomicU64);

impl Host for Still {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> u64 {
        0
    }

    fn wake_syncer(&self) {}
}

/// Unit `nth` runs in this database.
fn db_of(nth: usize) -> u32 {
    (nth as u32 / 3) % 3
}

fn id(nth: u64) -> ReplicationId {
    ReplicationId::parse(format!("{nth:040x}").as_bytes()).expect("an ID")
}

fn select(db: u32) -> Vec<u8> {
    format!("*2\r\n$6\r\nSELECT\r\n$1\r\n{db}\r\n").into_bytes()
}

/// A unit that a server has applied.
#[derive(Clone, Debug)]
struct Applied {
    nth: usize,
    /// The place after it.
    end: u64,
    /// It is in no stream.
    is_local: bool,
}

/// The server as it should be.
#[derive(Clone)]
struct Model {
    /// The units before those in `units` are in the data.
    n_before: usize,
    units: Vec<Applied>,
    /// All bytes of the stream since `start`.
    bytes: Vec<u8>,
    start: u64,
    db: u32,
    /// The IDs that the history has had, each with its place.
    ids: Vec<(ReplicationId, u64)>,
    is_replica: bool,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { n_before, units, start, db, ids, is_replica, .. } = self;
        let units = units
            .iter()
            .map(|unit| format!("{}{}@{}", if unit.is_local { "local " } else { "" }, unit.nth, unit.end));
        let units = units.collect::<Vec<_>>().join(" ");
        write!(f, "{n_before} units; {units}; from {start} to {}, db {db}, {ids:?}, {is_replica}", self.end())
    }
}

impl Model {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn n_units(&self) -> usize {
        self.units.last().map_or(self.n_before, |last| last.nth + 1)
    }
}

struct World {
    file: AofFile<Simulated, Still>,
    disk: Simulated,
    writer: Writer,
    model: Model,
    n_ids: u64,
    rewriting: Option<(usize, u64)>,
    /// The data is not in the file before the next rewrite has ended.
    is_replaced: bool,
}

/// The data and the place that a start finds.
struct Found {
    /// The units, each with the database in which it ran.
    units: Vec<(usize, u32)>,
    n_of_base: usize,
    db: u32,
    place: Option<(ReplicationId, Lsn)>,
    recent: History,
    files: Option<(Manifest, End)>,
}

fn look(disk: &Simulated) -> Found {
    let mut recent = History::from(Lsn(0));
    recent.limit(1 << 30);
    let manifest = manifest_in(disk, NAME).expect("the manifest is whole");
    let mut found = Found { units: Vec::new(), n_of_base: 0, db: 0, place: None, recent, files: None };
    let Some(manifest) = manifest else { return found };
    if let Some(base) = &manifest.base {
        let text = disk.read(&base.name).expect("the disk is well").expect("it is there");
        found.n_of_base = String::from_utf8(text).expect("text").parse().expect("a number");
    }
    let mut end = End::default();
    for (nth, part) in manifest.increments.iter().enumerate() {
        let bytes = disk.read(&part.name).expect("the disk is well").expect("it is there");
        let mut reader = Reader::new(std::io::Cursor::new(&bytes)).expect("memory can be read");
        reader.keep_recent(found.recent);
        let n_bytes = loop {
            match reader.next_units() {
                Ok(Some(further)) => run(further, &mut found.db, &mut found.units),
                Ok(None) => break reader.position(),
                Err(Broken::Torn { at }) if nth + 1 == manifest.increments.len() => break at,
                Err(broken) => panic!("it {broken}"),
            }
        };
        let offset = reader.stream_offset().unwrap_or(end.offset);
        end = End { n_bytes, previous: reader.previous_sum(), offset };
        found.place = reader.place();
        found.recent = reader.take_recent().expect("it was given");
    }
    found.files = Some((manifest, end));
    found
}

/// Runs commands as a server does.
fn run(bytes: &[u8], db: &mut u32, units: &mut Vec<(usize, u32)>) {
    let text = std::str::from_utf8(bytes).expect("text");
    let words: Vec<&str> = text.split("\r\n").collect();
    for words in words.chunks_exact(5) {
        let number: usize = words[4].parse().expect("a number");
        if words[2] == "SELECT" { *db = number as u32 } else { units.push((number, *db)) }
    }
}

/// The bytes of a stream without what makes no change.
fn without_filler(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).expect("text");
    text.replace(std::str::from_utf8(PING).expect("text"), "").trim_start_matches('\n').to_owned()
}

impl World {
    fn new() -> Self {
        let model = Model {
            n_before: 0,
            units: Vec::new(),
            bytes: Vec::new(),
            start: 1000,
            db: 9,
            ids: Vec::new(),
            is_replica: false,
        };
        let mut world = Self {
            file: AofFile::new(1, Still::default()),
            disk: Simulated::default(),
            writer: Writer::new(0),
            model,
            n_ids: 0,
            rewriting: None,
            is_replaced: false,
        };
        world.start(None);
        world
    }

    fn new_id(&mut self) -> ReplicationId {
        self.n_ids += 1;
        let (new, at) = (id(self.n_ids), self.model.end());
        self.model.ids.push((new, at));
        new
    }

    /// Begins from what the disk has, which was `found`.
    fn start(&mut self, found: Option<Found>) {
        self.file = AofFile::new(1, Still::default());
        self.writer = Writer::new(0);
        (self.rewriting, self.is_replaced) = (None, false);
        let mut recent = History::from(Lsn(self.model.start));
        let mut files = None;
        let mut db = None;
        if let Some(found) = found {
            (files, recent, db) = (found.files, found.recent, Some(found.db));
        }
        recent.limit(1 << 30);
        let is_replica = self.model.is_replica;
        let begin = (Lsn(self.model.end()), db, is_replica, Some(recent));
        self.file.stream().take().merger.begin_at(begin.0, begin.1, begin.2, begin.3);
        let had_files = files.is_some();
        let aof = Aof::open(self.disk.clone(), NAME, files).expect("the disk is well");
        let id = self.new_id();
        self.file.begin(aof, 0, Some(id), &mut self.writer);
        self.file.set_policy(SyncPolicy::Always);
        if !had_files {
            let base = self.disk.create(TEMPORARY).expect("the disk is well");
            base.write_at(b"0", 0).and_then(|()| base.sync()).expect("the disk is well");
            self.write();
            self.begin_rewrite();
            self.end_rewrite();
        }
    }

    fn write(&mut self) {
        self.file.stream().publish(&mut self.writer);
        self.file.do_chores();
        self.file.sync_if_due();
    }

    /// A unit of a client.
    fn add(&mut self) {
        let nth = self.model.n_units();
        let db = db_of(nth);
        let is_local = self.model.is_replica;
        self.file.stream().add(&mut self.writer, |to| {
            to.extend_from_slice(&unit(nth));
            match is_local {
                true => Kind::ForFile { first_db: db, last_db: db },
                false => Kind::Commands { first_db: db, last_db: db },
            }
        });
        if !is_local {
            // The model learns from the stream whether a database was selected.
            self.model.units.push(Applied { nth, end: u64::MAX, is_local });
            self.learn(nth);
        } else {
            let end = self.model.end();
            self.model.units.push(Applied { nth, end, is_local });
        }
    }

    fn merge(&mut self) {
        self.file.stream().publish(&mut self.writer);
        let mut held = self.file.stream().take();
        while held.merger.merge(self.file.stream().intake()) {}
    }

    /// Reads what the stream has for the last unit of a client.
    fn learn(&mut self, nth: usize) {
        let mut cursor = self.file.stream().subscribe();
        self.merge();
        while let Some(piece) = cursor.peek() {
            self.model.bytes.extend_from_slice(&piece.bytes);
            let (mut db, mut units) = (self.model.db, Vec::new());
            run(&without_filler(&piece.bytes).into_bytes(), &mut db, &mut units);
            self.model.db = db;
            if units.contains(&(nth, db_of(nth))) {
                let end = self.model.end();
                self.model.units.last_mut().expect("it was added").end = end;
            }
            cursor.pass();
        }
    }

    fn ping(&mut self) {
        self.file.stream().add(&mut self.writer, |to| {
            to.extend_from_slice(PING);
            Kind::ForFollowers
        });
        if !self.model.is_replica {
            let nth = usize::MAX;
            self.learn(nth);
        }
    }

    /// A part of the primary's stream: a unit in its own form or another, or a sign of life.
    fn receive(&mut self, dice: &mut Dice) {
        let nth = self.model.n_units();
        let (form, before) = (dice.roll(4), self.model.db);
        let (mut bytes, mut db, mut is_unit) = (Vec::new(), before, true);
        if form == 0 {
            (bytes, is_unit) = (PING.to_vec(), false);
        } else if db_of(nth) != before {
            // Its unit comes next.
            db = db_of(nth);
            (bytes, is_unit) = (select(db), false);
        } else {
            bytes.extend_from_slice(&unit(nth));
        }
        let (received, is_ping) = (Received { bytes: &bytes, db }, form == 0);
        self.file.stream().add(&mut self.writer, |to| {
            received.write(to, |to| match (is_unit, form) {
                (true, 1) => {
                    // The same in other words, as a primary of another kind might need.
                    to.extend_from_slice(&unit(nth));
                    to.extend_from_slice(&select(2));
                    to.extend_from_slice(&select(db));
                    Some((Some(db), db))
                }
                (true, _) => {
                    to.extend_from_slice(&unit(nth));
                    Some((Some(db), db))
                }
                (false, _) if is_ping => None,
                (false, _) => {
                    to.extend_from_slice(&bytes);
                    Some((None, db))
                }
            })
        });
        self.model.bytes.extend_from_slice(&bytes);
        self.model.db = db;
        if is_unit {
            let end = self.model.end();
            self.model.units.push(Applied { nth, end, is_local: false });
        }
    }

    /// Another role; or all data of another history.
    fn turn(&mut self, dice: &mut Dice) {
        // The model has read everything before.
        self.merge();
        let jumps = self.model.is_replica && dice.roll(3) == 0;
        let jump = jumps.then(|| {
            let n_before = self.model.n_units() + dice.roll(3);
            let start = self.model.end().saturating_sub(200) + dice.roll(400) as u64;
            let db = dice.roll(3) as u32;
            let (units, bytes, ids) = (Vec::new(), Vec::new(), Vec::new());
            self.model = Model { n_before, units, bytes, start, db, ids, is_replica: true };
            (Lsn(start), db)
        });
        if !jumps {
            self.model.is_replica = !self.model.is_replica;
        }
        let turn = Turn { id: Some(self.new_id()), is_received: self.model.is_replica, jump };
        self.file.stream().add_turn(&mut self.writer, &turn);
        if jumps {
            self.is_replaced = true;
            // Nothing is applied before the file has its new base.
            self.write();
            self.rewriting = None;
            self.begin_rewrite();
        }
    }

    fn begin_rewrite(&mut self) {
        self.file.stream().add_cut(&mut self.writer);
        self.rewriting = Some((self.model.n_units(), self.file.n_cuts()));
    }

    fn end_rewrite(&mut self) {
        let Some((n_units, n_cuts)) = self.rewriting else { return };
        self.write();
        if self.file.was_cut(n_cuts).is_none() {
            return;
        }
        self.rewriting = None;
        let base = self.disk.create(TEMPORARY).expect("the disk is well");
        base.write_at(n_units.to_string().as_bytes(), 0)
            .and_then(|()| base.sync())
            .expect("the disk is well");
        let base = Base { written_as: TEMPORARY.to_vec(), n_bytes: 1, is_snapshot: true };
        let ended = self.file.order_end_of_rewrite(base);
        self.file.do_chores();
        ended.try_recv().expect("it was done").expect("the disk is well");
        self.is_replaced = false;
    }

    fn act(&mut self, dice: &mut Dice) {
        match dice.roll(20) {
            _ if self.is_replaced => self.end_rewrite(),
            0..9 if self.model.is_replica => self.receive(dice),
            0..8 | 9 => self.add(),
            8 | 10 => self.ping(),
            11..16 => self.write(),
            16 if self.rewriting.is_none() => self.begin_rewrite(),
            16 | 17 => self.end_rewrite(),
            18 if dice.roll(3) == 0 => self.turn(dice),
            _ => {}
        }
    }

    /// The machine stops, and begins again.
    fn crash(&mut self, dice: &mut Dice) {
        let is_written = dice.roll(2) == 0;
        if is_written {
            self.write();
        }
        let disk = self.disk.after_crash(dice);
        let found = look(&disk);
        let case = format!("{:?} of {:?}", found.place, self.model);
        for &(nth, db) in &found.units {
            assert_eq!(db, db_of(nth), "unit {nth} ran in another database: {case}");
        }
        let Some((found_id, Lsn(at))) = found.place else {
            // Its data has no place: begin a new one.
            self.model.n_before = found.units.last().map_or(found.n_of_base, |&(nth, _)| nth + 1);
            self.model.units.clear();
            (self.model.start, self.model.bytes) = (self.model.end() + 500, Vec::new());
            self.model.ids.clear();
            self.model.is_replica = false;
            self.disk = disk;
            let recent = History::from(Lsn(self.model.start));
            return self.start(Some(Found { recent, ..found }));
        };
        assert!(!self.is_replaced, "the file's data is not that of its place: {case}");
        let nth_id = self.model.ids.iter().rposition(|&(id, _)| id == found_id);
        let (_, since) = self.model.ids[nth_id.expect("the history has had this ID")];
        assert!(at >= since && at <= self.model.end(), "{case}");
        assert!(!is_written || at == self.model.end(), "the file is behind what replicas may have: {case}");
        let is_after = |applied: &&Applied| applied.nth >= found.n_of_base;
        let expected =
            self.model.units.iter().filter(is_after).filter(|unit| !unit.is_local && unit.end <= at);
        let local: Vec<usize> =
            self.model.units.iter().filter(|unit| unit.is_local).map(|unit| unit.nth).collect();
        let is_shared = |nth: &usize| *nth >= self.model.n_before && !local.contains(nth);
        let shared: Vec<usize> = found.units.iter().map(|&(nth, _)| nth).filter(is_shared).collect();
        assert_eq!(shared, expected.map(|unit| unit.nth).collect::<Vec<_>>(), "{case}");
        // Base units are before the place, too.
        assert!(self.model.units.iter().all(|unit| unit.nth >= found.n_of_base || unit.end <= at), "{case}");
        assert_eq!(found.recent.end(), Lsn(at));
        let first = found.recent.first().0.max(self.model.start);
        let recent: Vec<u8> =
            found.recent.since(Lsn(first)).expect("it is kept").into_iter().flatten().collect();
        let truth = &self.model.bytes[(first - self.model.start) as usize..(at - self.model.start) as usize];
        assert_eq!(recent.len(), truth.len());
        assert_eq!(
            without_filler(&recent).replace('\n', ""),
            without_filler(truth).replace('\n', ""),
            "{case}"
        );

        // It goes on from there.
        self.model.bytes.truncate((at - self.model.start) as usize);
        let n_found = found.units.last().map_or(found.n_of_base, |&(nth, _)| nth + 1);
        self.model.units.retain(|unit| unit.nth < n_found);
        self.model.db = found.db;
        self.model.is_replica = self.model.is_replica && dice.roll(2) == 0;
        self.disk = disk;
        self.start(Some(found));
    }
}

/// Whenever a server stops, what its file says about its place is true: the data is that of this place, no
/// unit more and none less, in the right databases, and the bytes before it are those of the stream.
#[test]
fn the_place_that_a_file_tells_is_that_of_its_data() {
    let (mut n_placed, mut n_crashes) = (0, 0);
    for seed in 0..400 {
        let (mut dice, mut world) = (Dice(seed), World::new());
        for _ in 0..4 {
            for _ in 0..dice.roll(80) {
                world.act(&mut dice);
            }
            n_crashes += 1;
            let is_placed = look(&world.disk.after_crash(&mut Dice(seed))).place.is_some();
            n_placed += usize::from(is_placed);
            world.crash(&mut dice);
        }
    }
    assert!(n_placed * 10 > n_crashes * 8, "{n_placed} of {n_crashes} files tell a place");
}
