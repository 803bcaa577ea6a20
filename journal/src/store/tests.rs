use super::*;
use std::io::Cursor;

use crate::{
    reader::Reader,
    simulated::{Dice, NAME, Simulated, start, unit},
};

const TEMPORARY: &[u8] = b"temp-base";

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
                aof.append(&bytes, &ends, Lsn(0))?;
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
                if aof.append(&[first, second].concat(), &ends, Lsn(0)).is_ok() {
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
    aof.append(&units, &[units.len() / 2, units.len()], Lsn(0)).expect("there is room");
    aof.current().sync().expect("the disk is well");
    aof.begin_rewrite().expect("the disk is well");
    std::fs::write(folder.path_of(TEMPORARY), "2").expect("there is room");
    aof.end_rewrite(TEMPORARY, true).expect("the disk is well");
    aof.remove_history().expect("the disk is well");
    aof.append(&unit(2), &[unit(2).len()], Lsn(0)).expect("there is room");
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
    aof.append(&unit(0), &[unit(0).len()], Lsn(0)).expect("there is room");
    aof.tell_time(Some(8));
    aof.begin_rewrite().expect("the disk is well");
    assert!(!aof.must_begin_anew());
    for (name, first) in [("appendonly.aof.1.incr.aof", "#TS:7"), ("appendonly.aof.2.incr.aof", "#TS:8")] {
        let file = disk.read(name.as_bytes()).expect("the disk is well").expect("it was begun");
        assert_eq!(String::from_utf8_lossy(&file).lines().next(), Some(first));
    }
    assert_eq!(start(&disk).0, [0]);
}

/// A thread may still be in a sync of a file that is closed. It must not keep the folder from the next
/// server.
#[test]
fn a_closed_file_is_not_locked_although_a_sync_still_has_it() {
    let path = std::env::temp_dir().join(format!("braid-closed-{}", std::process::id()));
    std::fs::create_dir(&path).expect("the folder is new");
    let locked = || crate::disk::Folder::locked(path.clone(), NAME);
    let aof = Aof::open(locked().expect("nobody has it"), NAME, None).expect("the disk is well");
    let current = aof.current();
    let refused = locked().map(|_| ()).expect_err("it is written to");
    assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    aof.close().expect("the disk is well");
    locked().expect("it is closed");
    current.sync().expect("the file is still there");
    std::fs::remove_dir_all(&path).expect("it was made here");
}
