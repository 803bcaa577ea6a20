//! Followers of random speeds, with a disk that fails now and then, get exactly the stream.

use super::*;
use crate::{
    disk::DiskRoom,
    follower::Taken,
    history::ReplicationId,
    intake::{Kind, Writer},
    simulated::Dice,
    stream::{ChangeStream, Turn},
};

/// A disk in memory.
#[derive(Clone, Default)]
struct MemoryDisk(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    /// Decides which operations fail.
    dice: Option<Dice>,
    n_files: usize,
    is_full: bool,
}

impl Disk {
    fn step(&mut self) -> io::Result<()> {
        let fails = self.dice.as_mut().is_some_and(|dice| dice.roll(4) == 0);
        if fails || self.is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl MemoryDisk {
    fn with<R>(&self, work: impl FnOnce(&mut Disk) -> R) -> R {
        work(&mut self.0.lock().expect("no test panics within"))
    }
}

struct MemoryFile {
    disk: MemoryDisk,
    bytes: Mutex<Vec<u8>>,
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.disk.with(|disk| disk.n_files -= 1);
    }
}

impl SpoolDisk for MemoryDisk {
    fn create(&mut self) -> io::Result<Arc<dyn SpoolFile>> {
        self.with(|disk| {
            disk.step()?;
            disk.n_files += 1;
            io::Result::Ok(())
        })?;
        Ok(Arc::new(MemoryFile { disk: self.clone(), bytes: Mutex::default() }))
    }

    fn room(&self) -> io::Result<DiskRoom> {
        Ok(DiskRoom { free_bytes: 10 << 30, all_bytes: 10 << 30 })
    }
}

impl SpoolFile for MemoryFile {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let done = self.disk.with(Disk::step);
        // If it fails, a part may have been written.
        let n = if done.is_ok() { bytes.len() } else { bytes.len() / 2 };
        let mut all = self.bytes.lock().expect("no test panics within");
        let (at, len) = (at as usize, all.len());
        all.resize(len.max(at + n), 0);
        all[at..at + n].copy_from_slice(&bytes[..n]);
        done
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let all = self.bytes.lock().expect("no test panics within");
        bytes.copy_from_slice(&all[at as usize..at as usize + bytes.len()]);
        Ok(())
    }
}

const ON: SpoolLimits = SpoolLimits { is_on: true, most_bytes: 0 };

/// The followers that are farther behind move to a spool.
const MOST_BEHIND: u64 = 700;

/// A stream whose bytes are known, and its spools.
struct Scene {
    stream: ChangeStream<()>,
    writer: Writer,
    all: Vec<u8>,
    /// The place of the first of `all`.
    start: u64,
    spools: Spools,
    spool_writer: SpoolWriter,
    disk: MemoryDisk,
}

impl Scene {
    fn new() -> Self {
        Self {
            stream: ChangeStream::new(1, ()),
            writer: Writer::new(0),
            all: Vec::new(),
            start: 0,
            spools: Spools::default(),
            spool_writer: SpoolWriter::default(),
            disk: MemoryDisk::default(),
        }
    }

    fn merge(&mut self) {
        self.stream.publish(&mut self.writer);
        let mut held = self.stream.take();
        while held.merger.merge(self.stream.intake()) {}
    }

    fn add(&mut self, text: &[u8]) -> Ticket {
        let ticket = self.stream.add(&mut self.writer, |to| {
            to.extend_from_slice(text);
            Kind::ForFollowers
        });
        self.all.extend_from_slice(text);
        self.merge();
        ticket
    }

    /// Makes all data another one, at a place of another history.
    fn jump(&mut self, to: u64) {
        let turn = Turn { id: Some(ReplicationId::NONE), is_received: false, jump: Some((Lsn(to), 0)) };
        self.stream.add_turn(&mut self.writer, &turn);
        self.merge();
        (self.all, self.start) = (Vec::new(), to);
    }

    fn follower(&self) -> Follower {
        Follower::resumed(VecDeque::new(), 0, self.stream.subscribe())
    }

    fn end(&self) -> u64 {
        self.stream.merged_end().1.0
    }

    fn advance(&mut self, reached: Ticket, limits: SpoolLimits) -> SpoolRound {
        let mut disk = self.disk.clone();
        self.spools.advance(&mut self.spool_writer, &mut disk, reached, limits, |piece| {
            piece.starts_with(b"odd").then_some("odd")
        })
    }

    /// Writes everything, and frees everything that nobody needs.
    fn settle(&mut self) {
        loop {
            match self.advance(Ticket::MAX, ON) {
                SpoolRound::Wrote => {}
                SpoolRound::Idle | SpoolRound::UpToDate => return,
                SpoolRound::Blocked(why) => panic!("{why}"),
            }
        }
    }

    /// Reads once. Returns whether there was something.
    fn read(&self, follower: &mut Follower, reached: Ticket) -> bool {
        let at = (follower.lsn().0 - self.start) as usize;
        if !follower.has_more(reached) {
            return false;
        }
        let (Taken::Piece(bytes) | Taken::Part(bytes, _)) =
            follower.take(reached).expect("reads do not fail").expect("there is more");
        assert!(self.all[at..].starts_with(&bytes), "other bytes at {at}");
        assert_eq!(follower.lsn().0, self.start + (at + bytes.len()) as u64);
        true
    }

    fn n_files(&self) -> usize {
        self.disk.with(|disk| disk.n_files)
    }
}

#[test]
fn followers_of_all_speeds_read_the_stream_and_little_stays_in_memory() {
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let mut scene = Scene::new();
        let mut followers: Vec<(Follower, usize)> = Vec::new();
        let mut reached = 0;
        for step in 0..400_u32 {
            if step % 100 == 0 {
                // The disk fails in every second part.
                let fails = step % 200 != 0;
                scene.disk.with(|disk| disk.dice = fails.then(|| Dice(seed + 7)));
            }
            let n = if dice.roll(20) == 0 { dice.roll(3000) } else { dice.roll(120) };
            let text: Vec<u8> = (0..n).map(|at| (step as usize * 31 + at) as u8).collect();
            let last = scene.add(&text);
            if dice.roll(2) == 0 {
                reached = last;
            }
            match dice.roll(60) {
                0 if followers.len() < 6 => followers.push((scene.follower(), dice.roll(4))),
                1 if !followers.is_empty() => drop(followers.swap_remove(dice.roll(followers.len()))),
                2 if !followers.is_empty() => {
                    let another = followers[dice.roll(followers.len())].0.clone();
                    followers.push((another, dice.roll(4)));
                }
                _ => {}
            }
            for (follower, speed) in &mut followers {
                if scene.end() - follower.lsn().0 > MOST_BEHIND {
                    scene.spools.relieve(follower);
                }
                for _ in 0..dice.roll(1 + *speed) {
                    scene.read(follower, reached);
                }
                if dice.roll(50) == 0 {
                    *speed = dice.roll(4);
                }
            }
            scene.advance(reached, ON);
        }
        scene.disk.with(|disk| disk.dice = None);
        scene.settle();
        // Some were ahead of a spool that had got behind.
        for (follower, _) in &mut followers {
            if scene.end() - follower.memory_from().0 > MOST_BEHIND {
                assert!(scene.spools.relieve(follower), "seed {seed}");
                scene.settle();
            }
        }
        for (follower, _) in &mut followers {
            let n_in_memory = scene.end() - follower.memory_from().0;
            assert!(n_in_memory <= MOST_BEHIND, "seed {seed}: {n_in_memory}");
            while scene.read(follower, Ticket::MAX) {}
            assert_eq!(follower.lsn().0, scene.end(), "seed {seed}");
            assert!(follower.pieces().is_some(), "it needs no spool");
        }
        scene.settle();
        assert_eq!((scene.n_files(), scene.spools.n_bytes()), (0, 0), "seed {seed}: nobody needs files");
        assert_eq!(scene.spools.memory_from(), None);
        drop(followers);
        assert!(!scene.stream.take().merger.has_subscribers(), "no cursor is left");
    }
}

#[test]
fn a_spool_takes_only_what_may_leave_and_is_freed_from_its_front() {
    let mut scene = Scene::new();
    let (mut slow, mut slower) = (scene.follower(), scene.follower());
    let first = scene.add(&[b'a'; 5000]);
    scene.add(&[b'b'; 5000]);
    assert!(scene.spools.relieve(&mut slow) && scene.spools.relieve(&mut slower));
    assert!(!scene.spools.relieve(&mut slow), "it is there");
    while scene.advance(first, ON) == SpoolRound::Wrote {}
    assert_eq!((scene.spools.n_bytes(), scene.n_files()), (5000, 5), "both share the files");
    assert_eq!(slow.memory_from().0, 5000);
    scene.settle();
    assert_eq!((scene.spools.n_bytes(), scene.n_files()), (10_000, 10));
    while scene.read(&mut slow, Ticket::MAX) {}
    scene.settle();
    assert_eq!(scene.n_files(), 10, "the other one needs them");
    for _ in 0..3 {
        assert!(scene.read(&mut slower, Ticket::MAX));
    }
    scene.settle();
    assert_eq!(scene.n_files(), 7);
    let resumed = scene.spools.resume(Lsn(3000), 0).expect("the files have it");
    assert!(scene.spools.resume(Lsn(2999), 0).is_none(), "this is freed");
    drop(slower);
    scene.settle();
    assert_eq!(scene.n_files(), 7, "the one that came back needs them");
    drop(resumed);
    scene.settle();
    assert_eq!((scene.n_files(), scene.spools.n_bytes()), (0, 0));
    assert_eq!(scene.advance(Ticket::MAX, ON), SpoolRound::Idle);
}

#[test]
fn a_spool_that_takes_nothing_more_says_why_and_its_followers_go_on_in_memory() {
    let mut scene = Scene::new();
    let mut slow = scene.follower();
    scene.add(&[b'a'; 800]);
    scene.spools.relieve(&mut slow);
    let limits = SpoolLimits { is_on: true, most_bytes: 1000 };
    while scene.advance(Ticket::MAX, limits) == SpoolRound::Wrote {}
    scene.add(&[b'b'; 800]);
    let SpoolRound::Blocked(why) = scene.advance(Ticket::MAX, limits) else { panic!("it is full") };
    assert_eq!(why, "it has 800 bytes, and repl-spool-max is 1000");
    assert_eq!(scene.spools.blocked(), Some(why));
    assert_eq!(slow.memory_from().0, 800);
    scene.disk.with(|disk| disk.is_full = true);
    assert!(matches!(scene.advance(Ticket::MAX, ON), SpoolRound::Blocked(_)));
    scene.disk.with(|disk| disk.is_full = false);
    let off = SpoolLimits { is_on: false, most_bytes: 0 };
    assert_eq!(scene.advance(Ticket::MAX, off), SpoolRound::Blocked("repl-spool is no".to_owned()));
    while scene.read(&mut slow, Ticket::MAX) {}
    assert_eq!(slow.lsn().0, 1600);
    // Nothing was ever written for this one.
    scene.add(&[b'c'; 800]);
    scene.spools.relieve(&mut slow);
    scene.advance(Ticket::MAX, off);
    while scene.read(&mut slow, Ticket::MAX) {}
    assert_eq!(slow.lsn().0, 2400);
    scene.advance(Ticket::MAX, off);
    assert_eq!((scene.n_files(), scene.spools.blocked()), (0, None));
}

#[test]
fn a_spool_ends_at_a_jump_and_no_follower_of_the_new_data_reads_it() {
    let mut scene = Scene::new();
    let mut old = scene.follower();
    scene.add(&[b'a'; 1000]);
    scene.spools.relieve(&mut old);
    scene.add(&[b'b'; 1000]);
    let all_old = scene.all.clone();
    scene.jump(300);
    let mut new = scene.follower();
    scene.add(&[b'n'; 900]);
    // The old spool has a place of this number, too.
    scene.spools.relieve(&mut new);
    assert!(scene.spools.resume(Lsn(500), 2).is_none());
    scene.settle();
    while scene.read(&mut new, Ticket::MAX) {}
    assert_eq!(new.lsn().0, 1200);
    (scene.all, scene.start) = (all_old, 0);
    while scene.read(&mut old, Ticket::MAX) {}
    assert_eq!(old.lsn().0, 2000, "it gets nothing after the jump");
}

#[test]
fn the_parts_of_a_spool_tell_what_was_found_in_their_pieces() {
    let mut scene = Scene::new();
    let (mut slow, mut late) = (scene.follower(), scene.follower());
    scene.add(&[b'a'; 2000]);
    scene.add(b"odd one");
    scene.add(&[b'b'; 2000]);
    scene.spools.relieve(&mut slow);
    scene.settle();
    let mut found = Vec::new();
    while let Some(Taken::Part(bytes, what)) = slow.take(Ticket::MAX).expect("reads do not fail") {
        found.extend(what.map(|_| slow.lsn().0 - bytes.len() as u64));
    }
    assert_eq!(found, [2000]);
    while scene.read(&mut late, Ticket::MAX) {}
}
