use std::{
    collections::BTreeMap,
    io::Cursor,
    sync::{Arc, Mutex},
};

use super::*;
use crate::reader::{Broken, Reader};

const NAME: &str = "appendonly.aof";
const TEMPORARY: &[u8] = b"temp-base";

/// Random numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// The synced content of a file, and the writes since the sync.
#[derive(Clone, Default)]
struct Content {
    synced: Vec<u8>,
    written: Vec<(u64, Vec<u8>)>,
}

fn write(content: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let end = at as usize + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at as usize..end].copy_from_slice(bytes);
}

impl Content {
    fn now(&self) -> Vec<u8> {
        let mut now = self.synced.clone();
        self.written.iter().for_each(|(at, bytes)| write(&mut now, *at, bytes));
        now
    }

    /// The content after a crash: the synced bytes, and random pieces of 16 bytes of the writes.
    fn after_crash(&self, dice: &mut Dice) -> Vec<u8> {
        let mut left = self.synced.clone();
        for (at, bytes) in &self.written {
            for (nth, piece) in bytes.chunks(16).enumerate() {
                if dice.roll(2) == 0 {
                    write(&mut left, at + 16 * nth as u64, piece);
                }
            }
        }
        left
    }
}

#[derive(Clone, Debug)]
enum Change {
    Named(Vec<u8>, usize),
    Renamed(Vec<u8>, Vec<u8>),
    Removed(Vec<u8>),
}

fn apply(change: &Change, names: &mut BTreeMap<Vec<u8>, usize>) {
    match change {
        Change::Named(name, file) => drop(names.insert(name.clone(), *file)),
        Change::Renamed(from, to) => {
            let file = names.remove(from).expect("it is there");
            names.insert(to.clone(), file);
        }
        Change::Removed(name) => drop(names.remove(name)),
    }
}

/// The content of a disk that may stop at any moment.
#[derive(Default)]
struct Platter {
    files: Vec<Content>,
    synced_names: BTreeMap<Vec<u8>, usize>,
    /// The changes of the folder since it was synced. The system makes them in this order.
    changes: Vec<Change>,
    /// The number of operations after which the machine stops.
    n_left: Option<usize>,
    n_done: usize,
    /// The source of failing operations, if any fail while the machine continues.
    faults: Option<Dice>,
}

impl Platter {
    fn step(&mut self) -> io::Result<()> {
        if self.n_left == Some(self.n_done) {
            return Err(io::Error::other("the machine has stopped"));
        }
        self.n_done += 1;
        let fails = self.faults.as_mut().is_some_and(|dice| dice.roll(12) == 0);
        if fails { Err(io::Error::other("the disk fails")) } else { Ok(()) }
    }

    fn names(&self) -> BTreeMap<Vec<u8>, usize> {
        let mut names = self.synced_names.clone();
        self.changes.iter().for_each(|change| apply(change, &mut names));
        names
    }

    fn change(&mut self, change: Change) {
        self.changes.push(change);
    }
}

#[derive(Clone, Default)]
struct Simulated(Arc<Mutex<Platter>>);

impl Simulated {
    fn with<R>(&self, work: impl FnOnce(&mut Platter) -> R) -> R {
        work(&mut self.0.lock().expect("no test panics within"))
    }

    /// The disk that the next machine finds after this one has stopped.
    fn after_crash(&self, dice: &mut Dice) -> Simulated {
        self.with(|platter| {
            let mut names = platter.synced_names.clone();
            let n_changes = dice.roll(platter.changes.len() + 1);
            platter.changes[..n_changes].iter().for_each(|change| apply(change, &mut names));
            let left = |content: &Content| Content { synced: content.after_crash(dice), written: Vec::new() };
            let files = platter.files.iter().map(left).collect();
            let platter = Platter { files, synced_names: names, ..Platter::default() };
            Simulated(Arc::new(Mutex::new(platter)))
        })
    }

    fn file(&self, name: &[u8]) -> Option<SimulatedFile> {
        let index = self.with(|platter| platter.names().get(name).copied())?;
        Some(SimulatedFile { disk: self.clone(), index })
    }
}

#[derive(Clone)]
struct SimulatedFile {
    disk: Simulated,
    index: usize,
}

impl Disk for Simulated {
    type File = SimulatedFile;

    fn read(&self, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name) else { return Ok(None) };
        Ok(Some(self.with(|platter| platter.files[file.index].now())))
    }

    fn create(&mut self, name: &[u8]) -> io::Result<SimulatedFile> {
        let index = self.with(|platter| {
            platter.step()?;
            platter.files.push(Content::default());
            let index = platter.files.len() - 1;
            platter.change(Change::Named(name.to_vec(), index));
            io::Result::Ok(index)
        })?;
        Ok(SimulatedFile { disk: self.clone(), index })
    }

    fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        Ok(self.with(|platter| platter.names().into_keys().collect()))
    }

    fn open(&mut self, name: &[u8]) -> io::Result<SimulatedFile> {
        self.file(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()> {
        self.with(|platter| {
            platter.step()?;
            platter.change(Change::Renamed(from.to_vec(), to.to_vec()));
            Ok(())
        })
    }

    fn remove(&mut self, name: &[u8]) -> io::Result<()> {
        self.with(|platter| {
            platter.step()?;
            platter.change(Change::Removed(name.to_vec()));
            Ok(())
        })
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        self.with(|platter| {
            platter.step()?;
            platter.synced_names = platter.names();
            platter.changes.clear();
            Ok(())
        })
    }
}

impl DiskFile for SimulatedFile {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.disk.with(|platter| {
            // A part of it may be written when the machine stops.
            platter.files[self.index].written.push((at, bytes.to_vec()));
            platter.step()
        })
    }

    fn reserve(&self, _: u64) -> io::Result<()> {
        self.disk.with(Platter::step)
    }

    fn truncate(&self, n_bytes: u64) -> io::Result<()> {
        self.disk.with(|platter| {
            platter.step()?;
            let content = &mut platter.files[self.index];
            content.synced = content.now();
            content.written.clear();
            content.synced.truncate(n_bytes as usize);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.with(|platter| {
            let done = platter.step();
            let content = &mut platter.files[self.index];
            content.synced = match (&done, &mut platter.faults) {
                // Data that could not be written is dropped: the next sync has nothing to do, and succeeds.
                (Err(_), Some(dice)) => content.after_crash(dice),
                (Err(_), None) => return done,
                (Ok(()), _) => content.now(),
            };
            content.written.clear();
            done
        })
    }
}

fn unit(nth: usize) -> Vec<u8> {
    let text = format!("{nth:04}");
    format!("*2\r\n$4\r\nUNIT\r\n$4\r\n{text}\r\n").into_bytes()
}

/// The units in some bytes of whole commands.
fn units_in(bytes: &[u8]) -> Vec<usize> {
    let text = std::str::from_utf8(bytes).expect("units are text");
    let words: Vec<&str> = text.split("\r\n").collect();
    words.chunks_exact(5).map(|words| words[4].parse().expect("a number")).collect()
}

/// Returns the units that a start finds, and the AOF to continue.
fn start(disk: &Simulated) -> (Vec<usize>, Option<(Manifest, End)>) {
    let manifest = manifest_in(disk, NAME).expect("whatever is left of it, the manifest is whole");
    let Some(manifest) = manifest else { return (Vec::new(), None) };
    let mut units = Vec::new();
    if let Some(base) = &manifest.base {
        let text =
            disk.read(&base.name).expect("the disk is well").expect("what the manifest names is there");
        let n_units: usize = String::from_utf8(text).expect("a number").parse().expect("the base is whole");
        units.extend(0..n_units);
    }
    let mut end = End::default();
    for (nth, part) in manifest.increments.iter().enumerate() {
        let bytes =
            disk.read(&part.name).expect("the disk is well").expect("what the manifest names is there");
        let mut reader = Reader::new(Cursor::new(&bytes)).expect("memory can be read");
        let n_bytes = loop {
            match reader.next_units() {
                Ok(Some(further)) => units.extend(units_in(further)),
                Ok(None) => break reader.position(),
                Err(Broken::Torn { at }) if nth + 1 == manifest.increments.len() => break at,
                Err(broken) => panic!("{}: it {broken}", String::from_utf8_lossy(&part.name)),
            }
        };
        let offset = reader.stream_offset().unwrap_or(end.offset);
        end = End { n_bytes, previous: reader.previous_sum(), offset };
    }
    (units, Some((manifest, end)))
}

/// The result of one life of the machine.
#[derive(Default)]
struct Life {
    n_appended: usize,
    /// The number of units that are safe.
    n_synced: usize,
}

/// Appends, syncs and rewrites until the machine stops.
fn live(disk: &Simulated, dice: &mut Dice, life: &mut Life) -> io::Result<()> {
    let (units, found) = start(disk);
    assert_eq!(units, (0..units.len()).collect::<Vec<_>>(), "what is found is whole and in order");
    assert!(units.len() >= life.n_synced, "{} units are found, and {} were safe", units.len(), life.n_synced);
    assert!(units.len() <= life.n_appended);
    life.n_appended = units.len();
    let mut aof = Aof::open(disk.clone(), NAME, found)?;
    aof.remove_history()?;
    life.n_synced = life.n_appended;
    // The number of units in the base that is being written.
    let mut base = None;
    for _ in 0..40 {
        let now = dice.roll(100) as u64;
        aof.tell_time((dice.roll(3) > 0).then_some(now + 1));
        if aof.must_begin_anew() {
            aof.begin_anew()?;
        }
        match dice.roll(8) {
            0..4 => {
                let (mut bytes, mut ends) = (Vec::new(), Vec::new());
                for nth in 0..1 + dice.roll(3) {
                    bytes.extend_from_slice(&unit(life.n_appended + nth));
                    ends.push(bytes.len());
                }
                life.n_appended += ends.len();
                aof.append(&bytes, &ends)?;
            }
            4 | 5 => {
                aof.current().sync()?;
                life.n_synced = life.n_appended;
                aof.note_safe(aof.offset());
            }
            6 => aof.reserve()?,
            _ => match base.take() {
                None => {
                    aof.begin_rewrite()?;
                    life.n_synced = life.n_appended;
                    base = Some(life.n_appended);
                }
                Some(n_units) => {
                    let file = disk.clone().create(TEMPORARY)?;
                    file.write_at(n_units.to_string().as_bytes(), 0)?;
                    file.sync()?;
                    aof.end_rewrite(TEMPORARY, true)?;
                    if dice.roll(2) == 0 {
                        aof.remove_history()?;
                    }
                }
            },
        }
    }
    aof.close()?;
    life.n_synced = life.n_appended;
    Ok(())
}

#[test]
fn whenever_the_machine_stops_all_that_was_synced_is_found_and_nothing_by_halves() {
    let (mut n_crashes, mut n_lost) = (0, 0);
    for seed in 0..400 {
        let mut dice = Dice(seed);
        let mut disk = Simulated::default();
        let mut life = Life::default();
        for _ in 0..4 {
            let n_left = dice.roll(90);
            disk.with(|platter| platter.n_left = Some(platter.n_done + n_left));
            if live(&disk, &mut dice, &mut life).is_err() {
                n_crashes += 1;
            }
            disk = disk.after_crash(&mut dice);
            n_lost += usize::from(start(&disk).0.len() < life.n_appended);
        }
        // Two starts find the same units, and the second has nothing to mend.
        let (first, found) = start(&disk);
        assert!(first.len() >= life.n_synced);
        let mut aof = Aof::open(disk.clone(), NAME, found).expect("the disk is well");
        aof.remove_history().expect("the disk is well");
        assert!(aof.manifest().history.is_empty());
        let (second, again) = start(&disk);
        assert_eq!(first, second);
        let (_, end) = again.expect("there is a manifest now");
        assert_eq!(end.n_bytes, aof.increment_bytes());
    }
    assert!(
        n_crashes > 500 && n_lost > 50,
        "{n_crashes} crashes, and {n_lost} lost something that was not synced"
    );
}

/// Continues after every failure, as the server does. Then the machine stops.
fn live_with_faults(disk: &Simulated, dice: &mut Dice) -> Life {
    let mut aof = Aof::open(disk.clone(), NAME, None).expect("the disk is well yet");
    disk.with(|platter| platter.faults = Some(Dice(dice.0 ^ 1)));
    let (mut life, mut base) = (Life::default(), None);
    for _ in 0..80 {
        match dice.roll(8) {
            0..4 => {
                if aof.must_begin_anew() && aof.begin_anew().is_err() {
                    continue;
                }
                let (first, second) = (unit(life.n_appended), unit(life.n_appended + 1));
                let ends = [first.len(), first.len() + second.len()];
                if aof.append(&[first, second].concat(), &ends).is_ok() {
                    life.n_appended += 2;
                }
            }
            4 | 5 if !aof.is_lost() => match aof.current().sync() {
                Ok(()) if aof.is_aside() => {}
                Ok(()) => {
                    life.n_synced = life.n_appended;
                    aof.note_safe(aof.offset());
                }
                Err(_) => aof.note_lost(),
            },
            6 if base.is_none() && !aof.must_begin_anew() && aof.begin_rewrite().is_ok() => {
                base = Some(life.n_appended);
            }
            7 => {
                let Some(n_units) = base.take() else { continue };
                let write_base = |mut disk: Simulated| -> io::Result<()> {
                    let file = disk.create(TEMPORARY)?;
                    file.write_at(n_units.to_string().as_bytes(), 0)?;
                    file.sync()
                };
                if write_base(disk.clone()).and_then(|()| aof.end_rewrite(TEMPORARY, true)).is_ok() {
                    life.n_synced = life.n_synced.max(n_units);
                    // Files that are left are removed later.
                    let _: io::Result<()> = aof.remove_history();
                }
            }
            _ => {}
        }
    }
    life
}

#[test]
fn whatever_operation_fails_what_was_said_to_be_safe_is_found_when_the_machine_stops() {
    let (mut n_safe, mut n_lost) = (0, 0);
    for seed in 0..3000 {
        let mut dice = Dice(seed);
        let disk = Simulated::default();
        let life = live_with_faults(&disk, &mut dice);
        let (units, _) = start(&disk.after_crash(&mut dice));
        assert_eq!(
            units,
            (0..units.len()).collect::<Vec<_>>(),
            "seed {seed}: what is found is whole and in order"
        );
        assert!(
            units.len() >= life.n_synced,
            "seed {seed}: {} units are found, and {} were safe",
            units.len(),
            life.n_synced
        );
        n_safe += usize::from(life.n_synced > 0);
        n_lost += usize::from(units.len() < life.n_appended);
    }
    assert!(n_safe > 2000 && n_lost > 500, "something was safe in {n_safe} lives, and lost in {n_lost}");
}

#[test]
fn a_folder_of_the_system_holds_what_was_appended() {
    let path = std::env::temp_dir().join(format!("braid-journal-{}", std::process::id()));
    let folder = crate::disk::Folder::new(path.clone()).expect("the folder can be made");
    let mut aof = Aof::open(folder.clone(), NAME, None).expect("the disk is well");
    aof.reserve().expect("there is room");
    let units = [unit(0), unit(1)].concat();
    aof.append(&units, &[units.len() / 2, units.len()]).expect("there is room");
    aof.current().sync().expect("the disk is well");
    aof.begin_rewrite().expect("the disk is well");
    std::fs::write(folder.path_of(TEMPORARY), "2").expect("there is room");
    aof.end_rewrite(TEMPORARY, true).expect("the disk is well");
    aof.remove_history().expect("the disk is well");
    aof.append(&unit(2), &[unit(2).len()]).expect("there is room");
    aof.close().expect("the disk is well");
    let mut names: Vec<String> = std::fs::read_dir(&path)
        .expect("it is there")
        .map(|entry| entry.expect("it can be read").file_name().into_string().expect("a text"))
        .collect();
    names.sort();
    assert_eq!(names, ["appendonly.aof.1.base.rdb", "appendonly.aof.2.incr.aof", "appendonly.aof.manifest"]);
    let increment = std::fs::read(path.join("appendonly.aof.2.incr.aof")).expect("it is there");
    let mut reader = Reader::new(Cursor::new(&increment)).expect("memory can be read");
    assert_eq!(reader.next_units().expect("it is whole"), Some(&unit(2)[..]));
    std::fs::remove_dir_all(&path).expect("it is ours");
}

#[test]
fn an_increment_begins_with_the_time_if_that_is_told_before_anything_is_appended() {
    let disk = Simulated::default();
    let mut aof = Aof::open(disk.clone(), NAME, None).expect("the disk is well");
    assert!(!aof.must_begin_anew());
    aof.tell_time(Some(7));
    assert!(aof.must_begin_anew());
    aof.begin_anew().expect("the disk is well");
    assert!(!aof.must_begin_anew());
    aof.append(&unit(0), &[unit(0).len()]).expect("there is room");
    aof.tell_time(Some(8));
    aof.begin_rewrite().expect("the disk is well");
    assert!(!aof.must_begin_anew());
    for (name, first) in [("appendonly.aof.1.incr.aof", "#TS:7"), ("appendonly.aof.2.incr.aof", "#TS:8")] {
        let file = disk.read(name.as_bytes()).expect("the disk is well").expect("it was begun");
        assert_eq!(String::from_utf8_lossy(&file).lines().next(), Some(first));
    }
    assert_eq!(start(&disk).0, [0]);
}
