use std::{
    sync::{Arc, Mutex, atomic::AtomicBool},
    thread,
};

use super::*;
use crate::{
    intake::Kind,
    manifest::Manifest,
    simulated::{Dice, NAME, Simulated, start, unit, units_in},
    stream::Lsn,
};

const TEMPORARY: &[u8] = b"temp-base";

/// A clock that the test sets, and what it was told.
#[derive(Default)]
struct Surroundings {
    millis: AtomicU64,
    n_wakes: AtomicUsize,
    told: Mutex<Vec<String>>,
}

impl Surroundings {
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().expect("no test panics within"))
    }

    fn pass(&self, millis: u64) {
        self.millis.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Host for Surroundings {
    fn now(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> u64 {
        1_700_000_000 + self.millis.load(Ordering::Relaxed) / 1000
    }

    fn wake_syncer(&self) {
        self.n_wakes.fetch_add(1, Ordering::Relaxed);
    }

    fn tell(&self, news: News<'_>) {
        let text = format!("{news:?}");
        let name = text.split(['(', ' ']).next().expect("it has a name").to_owned();
        self.told.lock().expect("no test panics within").push(name);
    }
}

type File = AofFile<Simulated, Surroundings>;

/// Adds unit number `nth`.
fn add(file: &File, writer: &mut Writer, nth: usize) -> Ticket {
    file.stream().add(writer, |to| {
        to.extend_from_slice(&unit(nth));
        Kind::Commands { first_db: 0, last_db: 0 }
    })
}

/// Reads the units of the pieces that are there.
fn read_all(cursor: &mut Cursor, units: &mut Vec<usize>) {
    while let Some(piece) = cursor.peek() {
        assert_eq!(piece.start, cursor.lsn(), "there is no gap");
        units.extend(units_in(&piece.bytes));
        cursor.pass();
    }
}

/// A stream with its file, a second consumer that counts, and one thread that plays all others.
struct World {
    file: File,
    disk: Simulated,
    writers: Vec<Writer>,
    /// The tickets of all units so far.
    tickets: Vec<Ticket>,
    /// The base that is being written: its number of units, and of cuts before it.
    rewriting: Option<(usize, u64)>,
    /// Whether the last rewrite has succeeded.
    is_rewritten: bool,
    counter: Cursor,
    counted: Vec<usize>,
}

impl World {
    fn new() -> Self {
        let file = File::new(3, Surroundings::default());
        let counter = file.stream().subscribe();
        Self {
            file,
            disk: Simulated::default(),
            writers: (0..3).map(Writer::new).collect(),
            tickets: Vec::new(),
            rewriting: None,
            is_rewritten: false,
            counter,
            counted: Vec::new(),
        }
    }

    fn add(&mut self, lane: usize) {
        let ticket = add(&self.file, &mut self.writers[lane], self.tickets.len());
        self.tickets.push(ticket);
    }

    fn publish(&mut self) {
        self.writers.iter_mut().for_each(|writer| self.file.stream().publish(writer));
    }

    /// A world with an open file that has its base.
    fn with_file() -> Self {
        let mut world = Self::new();
        world.begin();
        world.end_rewrite();
        world.publish();
        world.file.sync_if_due();
        world
    }

    /// A file whose base is begun at this moment.
    fn begin(&mut self) {
        let before = crate::store::manifest_in(&self.disk, NAME).expect("the manifest is whole");
        let Ok(aof) = Aof::begin_aside(self.disk.clone(), NAME, before) else { return };
        self.file.begin_aside(aof, None, &mut self.writers[0]);
        // There is no cut in a file that begins at one.
        self.rewriting = Some((self.tickets.len(), u64::MAX));
    }

    fn begin_rewrite(&mut self) {
        self.file.stream().add_cut(&mut self.writers[0]);
        self.rewriting = Some((self.tickets.len(), self.file.n_cuts()));
    }

    /// Writes the base and names it, if the file has passed the cut.
    fn end_rewrite(&mut self) {
        let Some((n_units, n_cuts)) = self.rewriting else { return };
        let is_cut = if n_cuts == u64::MAX { Some(true) } else { self.file.was_cut(n_cuts) };
        match is_cut {
            None => return,
            Some(false) => return self.rewriting = None,
            Some(true) => self.rewriting = None,
        }
        let written = self.disk.create(TEMPORARY).and_then(|base| {
            base.write_at(n_units.to_string().as_bytes(), 0)?;
            base.sync()
        });
        if written.is_ok() {
            let base = Base { written_as: TEMPORARY.to_vec(), n_bytes: 1, is_snapshot: true };
            // The saver waits for the result, too.
            let ended = self.file.order_end_of_rewrite(base);
            self.file.do_chores();
            self.is_rewritten = ended.try_recv().expect("it was done").is_ok();
        }
    }

    fn close(&mut self) -> bool {
        self.publish();
        self.rewriting = None;
        self.file.end();
        self.file.close()
    }

    /// One action of a server, or of its clock.
    fn act(&mut self, dice: &mut Dice) {
        match dice.roll(24) {
            0..8 => self.add(dice.roll(3)),
            8..12 => {
                let writer = &mut self.writers[dice.roll(3)];
                self.file.stream().publish(writer);
            }
            12..15 => _ = self.file.advance(),
            15..17 => {
                self.file.do_chores();
                self.file.sync_if_due();
            }
            17 => self.file.host().pass(400),
            18 if self.rewriting.is_none() && self.file.is_writing() => self.begin_rewrite(),
            19 => self.end_rewrite(),
            20 if self.file.is_writing() => _ = self.close(),
            20 | 21 if !self.file.is_writing() => self.begin(),
            22 => {
                let policies = [SyncPolicy::Always, SyncPolicy::EverySecond, SyncPolicy::Never];
                self.file.set_policy(policies[dice.roll(3)]);
                self.file.skip_syncs(dice.roll(4) == 0);
                self.file.log_time(dice.roll(2) == 0);
            }
            _ => read_all(&mut self.counter, &mut self.counted),
        }
    }

    /// The number of first units that are safe.
    fn n_safe(&self) -> usize {
        let synced = self.file.synced().filter(|_| !self.file.needs_base()).unwrap_or(0);
        self.tickets.partition_point(|&ticket| ticket <= synced)
    }

    fn assert_counted(&mut self) {
        self.publish();
        while self.file.stream().intake().has_published() {
            self.file.advance();
            self.file.do_chores();
            self.file.sync_if_due();
        }
        read_all(&mut self.counter, &mut self.counted);
        assert_eq!(self.counted, (0..self.tickets.len()).collect::<Vec<_>>());
    }
}

/// The file and a consumer that only counts both get every unit once, in order, however often the file is
/// turned off and on and rewritten.
#[test]
fn each_consumer_gets_each_unit_once_and_in_order() {
    for seed in 0..300 {
        let (mut dice, mut world) = (Dice(seed), World::new());
        for _ in 0..300 {
            world.act(&mut dice);
        }
        world.assert_counted();
        if world.file.is_writing() {
            world.end_rewrite();
            let has_base = !world.file.needs_base();
            assert!(world.close(), "{:?}", world.file.host().told());
            let (units, _) = start(&world.disk);
            let n_expected = if has_base { world.tickets.len() } else { units.len() };
            assert_eq!(units, (0..n_expected).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}

/// While operations of the disk fail at random, the consumer that counts misses nothing, and whatever was
/// reported as synced is found after a crash.
#[test]
fn a_failing_disk_loses_nothing_that_was_reported_as_synced() {
    for seed in 0..300 {
        let (mut dice, mut world) = (Dice(seed), World::with_file());
        world.disk.with(|platter| platter.faults = Some(Dice(seed ^ 1)));
        for _ in 0..300 {
            world.act(&mut dice);
            if world.file.is_writing() {
                let n_safe = world.n_safe();
                let (units, _) = start(&world.disk.after_crash(&mut dice));
                assert_eq!(units, (0..units.len()).collect::<Vec<_>>(), "seed {seed}");
                assert!(units.len() >= n_safe, "seed {seed}: {} of {n_safe} units", units.len());
            }
        }
        world.disk.with(|platter| platter.faults = None);
        world.assert_counted();
    }
}

/// A file that cannot be written to holds back replies, and no other consumer.
#[test]
fn a_stuck_file_does_not_make_other_consumers_wait() {
    let mut world = World::with_file();
    world.disk.with(|platter| platter.n_left = Some(platter.n_done));
    world.add(0);
    world.publish();
    assert!(world.file.advance(), "there is something for the other consumer");
    assert!(world.file.has_failed() && world.file.reached() < world.tickets[0]);
    world.add(1);
    world.publish();
    assert!(world.file.sync_if_due());
    assert!(world.file.reached() < world.tickets[0]);
    read_all(&mut world.counter, &mut world.counted);
    assert_eq!(world.counted, [0, 1]);
    assert!(world.file.unwritten_bytes() > 0);
    assert_eq!(world.file.host().told(), ["WriteFails"]);

    world.disk.with(|platter| platter.n_left = None);
    assert!(world.file.sync_if_due());
    assert!(!world.file.has_failed() && world.file.reached() == world.tickets[1]);
    assert_eq!((world.file.unwritten_bytes(), world.file.host().told()), (0, vec!["WritesAgain".to_owned()]));
    assert!(world.close());
    assert_eq!(start(&world.disk).0, [0, 1]);
}

/// The injected clock decides when the file is synced, and the policy which replies wait for that.
#[test]
fn the_policy_decides_when_the_file_is_synced_and_which_replies_wait() {
    let mut world = World::with_file();
    world.add(0);
    world.publish();
    assert!(world.file.advance(), "under everysec any thread writes");
    assert_eq!((world.file.reached(), world.file.synced()), (world.tickets[0], Some(0)));
    world.file.host().pass(999);
    world.file.sync_if_due();
    assert_eq!(world.file.synced(), Some(0));
    world.file.host().pass(1);
    assert!(world.file.sync_if_due());
    assert_eq!(world.file.synced(), Some(world.tickets[0]));

    world.file.set_policy(SyncPolicy::Always);
    world.add(0);
    world.publish();
    assert!(!world.file.advance(), "under always only the syncer writes");
    assert!(world.file.holds_back_reads() && world.file.reached() == world.tickets[0]);
    assert!(world.file.sync_if_due());
    assert_eq!(world.file.reached(), world.tickets[1]);
    assert!(world.file.gather(true).is_some(), "it lets others join the next sync");

    world.file.set_policy(SyncPolicy::Never);
    world.add(0);
    world.publish();
    assert!(world.file.advance());
    world.file.host().pass(5000);
    assert!(!world.file.sync_if_due());
    assert_eq!((world.file.reached(), world.file.synced()), (world.tickets[2], Some(world.tickets[1])));
}

/// A rewrite passes its cut on the syncer alone, and units after the cut are not in the base.
#[test]
fn only_the_syncer_passes_a_cut() {
    let mut world = World::with_file();
    world.add(0);
    world.begin_rewrite();
    world.add(0);
    world.publish();
    let n_wakes = world.file.host().n_wakes.load(Ordering::Relaxed);
    assert!(world.file.advance());
    assert_eq!((world.file.reached(), world.file.n_cuts()), (world.tickets[0], 0));
    assert!(world.file.host().n_wakes.load(Ordering::Relaxed) > n_wakes);
    assert!(world.file.sync_if_due());
    assert_eq!((world.file.reached(), world.file.was_cut(0)), (world.tickets[1], Some(true)));
    world.end_rewrite();
    assert!(world.is_rewritten);
    assert!(world.close());
    assert_eq!(start(&world.disk).0, [0, 1]);
}

/// Threads that add, publish and write at the same time, a syncer that also rewrites, and a consumer of its
/// own pace: all see one order.
#[test]
fn threads_agree_on_one_order() {
    const N_THREADS: usize = 3;
    const N_UNITS: usize = 3000;
    let (file, disk) = (File::new(N_THREADS + 1, Surroundings::default()), Simulated::default());
    let mut own = Writer::new(N_THREADS);
    let mut counter = file.stream().subscribe();
    file.begin(
        Aof::open(disk.clone(), NAME, None::<(Manifest, _)>).expect("the disk is well"),
        0,
        None,
        &mut own,
    );
    file.stream().publish(&mut own);
    let (is_over, seen) = (AtomicBool::new(false), Arc::new(Mutex::new((Vec::new(), Lsn(0)))));
    thread::scope(|scope| {
        let adding: Vec<_> = (0..N_THREADS)
            .map(|lane| {
                let file = &file;
                scope.spawn(move || {
                    let mut writer = Writer::new(lane);
                    for nth in 0..N_UNITS {
                        add(file, &mut writer, lane * N_UNITS + nth);
                        if nth % (lane + 1) == 0 {
                            file.stream().publish(&mut writer);
                            file.advance();
                        }
                    }
                    file.stream().publish(&mut writer);
                    file.advance();
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                file.host().pass(1001);
                file.sync_if_due();
            }
        });
        let reading = scope.spawn({
            let (is_over, seen) = (&is_over, Arc::clone(&seen));
            move || {
                let mut units = Vec::new();
                while units.len() < N_THREADS * N_UNITS && !is_over.load(Ordering::Acquire) {
                    read_all(&mut counter, &mut units);
                    thread::yield_now();
                }
                read_all(&mut counter, &mut units);
                *seen.lock().expect("no test panics within") = (units, counter.lsn());
            }
        });
        adding.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        file.sync_if_due();
        is_over.store(true, Ordering::Release);
        reading.join().expect("it does not panic");
    });
    file.end();
    assert!(file.close());
    let (units, end) = std::mem::take(&mut *seen.lock().expect("no test panics within"));
    assert_eq!((units.len(), file.stream().take().merger.end()), (N_THREADS * N_UNITS, end));
    let mut next: Vec<usize> = (0..N_THREADS).map(|lane| lane * N_UNITS).collect();
    for &nth in &units {
        assert_eq!(nth, next[nth / N_UNITS], "each thread's units are in their order");
        next[nth / N_UNITS] += 1;
    }
    assert_eq!(start_of_file(&disk), units, "the file has the same order");
}

/// The units of a file without a base.
fn start_of_file(disk: &Simulated) -> Vec<usize> {
    let (units, found) = start(disk);
    assert!(found.is_some_and(|(manifest, _)| manifest.base.is_none()));
    units
}
