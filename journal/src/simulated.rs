//! A disk that can stop at any moment, for tests: it loses any part of the unsynced data.

use std::{
    collections::BTreeMap,
    io::{self, Cursor},
    sync::{Arc, Mutex},
};

use crate::{
    disk::{Disk, DiskFile},
    manifest::Manifest,
    reader::{Broken, Reader},
    store::{End, manifest_in},
};

/// The name of the AOF on the disk.
pub const NAME: &str = "appendonly.aof";

/// Random numbers that a seed repeats.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
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
    pub fn after_crash(&self, dice: &mut Dice) -> Vec<u8> {
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
enum NameChange {
    Named(Vec<u8>, usize),
    Renamed(Vec<u8>, Vec<u8>),
    Removed(Vec<u8>),
}

fn apply(change: &NameChange, names: &mut BTreeMap<Vec<u8>, usize>) {
    match change {
        NameChange::Named(name, file) => drop(names.insert(name.clone(), *file)),
        NameChange::Renamed(from, to) => {
            let file = names.remove(from).expect("it is there");
            names.insert(to.clone(), file);
        }
        NameChange::Removed(name) => drop(names.remove(name)),
    }
}

/// The content of a disk that may stop at any moment.
#[derive(Default)]
pub struct Platter {
    files: Vec<Content>,
    synced_names: BTreeMap<Vec<u8>, usize>,
    /// The changes of the folder since it was synced. The system makes them in this order.
    changes: Vec<NameChange>,
    /// The number of operations after which the machine stops.
    pub n_left: Option<usize>,
    pub n_done: usize,
    /// The source of failing operations, if any fail while the machine continues.
    pub faults: Option<Dice>,
}

impl Platter {
    pub fn step(&mut self) -> io::Result<()> {
        if self.n_left == Some(self.n_done) {
            return Err(io::Error::other("the machine has stopped"));
        }
        self.n_done += 1;
        let fails = self.faults.as_mut().is_some_and(|dice| dice.roll(12) == 0);
        if fails { Err(io::Error::other("the disk fails")) } else { Ok(()) }
    }

    pub fn names(&self) -> BTreeMap<Vec<u8>, usize> {
        let mut names = self.synced_names.clone();
        self.changes.iter().for_each(|change| apply(change, &mut names));
        names
    }

    fn change(&mut self, change: NameChange) {
        self.changes.push(change);
    }
}

#[derive(Clone, Default)]
pub struct Simulated(Arc<Mutex<Platter>>);

impl Simulated {
    pub fn with<R>(&self, work: impl FnOnce(&mut Platter) -> R) -> R {
        work(&mut self.0.lock().expect("no test panics within"))
    }

    /// The disk that the next machine finds after this one has stopped.
    pub fn after_crash(&self, dice: &mut Dice) -> Simulated {
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

    pub fn file(&self, name: &[u8]) -> Option<SimulatedFile> {
        let index = self.with(|platter| platter.names().get(name).copied())?;
        Some(SimulatedFile { disk: self.clone(), index })
    }
}

#[derive(Clone)]
pub struct SimulatedFile {
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
            platter.change(NameChange::Named(name.to_vec(), index));
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
            platter.change(NameChange::Renamed(from.to_vec(), to.to_vec()));
            Ok(())
        })
    }

    fn remove(&mut self, name: &[u8]) -> io::Result<()> {
        self.with(|platter| {
            platter.step()?;
            platter.change(NameChange::Removed(name.to_vec()));
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

pub fn unit(nth: usize) -> Vec<u8> {
    let text = format!("{nth:04}");
    format!("*2\r\n$4\r\nUNIT\r\n$4\r\n{text}\r\n").into_bytes()
}

/// The units in some bytes of whole commands, without the selections of a database.
pub fn units_in(bytes: &[u8]) -> Vec<usize> {
    let text = std::str::from_utf8(bytes).expect("units are text");
    let words: Vec<&str> = text.split("\r\n").collect();
    let units = words.chunks_exact(5).filter(|words| words[2] != "SELECT");
    units.map(|words| words[4].parse().expect("a number")).collect()
}

/// Returns the units that a start finds, and the AOF to continue.
pub fn start(disk: &Simulated) -> (Vec<usize>, Option<(Manifest, End)>) {
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
