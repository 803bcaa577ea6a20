//! The logging of a unit's changes at its end, under its holds.
//!
//! Observers are told afterwards.

use braid_journal::intake::{Kind, Ticket};
use braid_protocol::request::write_words;
use braid_storage::{
    entry::db::Db,
    observers::record::{self, Record, Recorded, Touched},
};

use crate::{
    catalog::Words,
    command::{Call, Registered, Run},
    run::route,
    shared::thread_state::ThreadState,
};

/// Logs the changes of a unit that ends, if there are any to log.
pub fn log_unit(thread: &ThreadState) {
    let durability = &thread.server().durability;
    if !durability.is_recording() {
        debug_assert!(record::with(|record| record.is_empty()), "words were recorded that no log takes");
        return;
    }
    record::with(|record| {
        log_record(record, thread);
        record.clear();
    });
    thread.log_messages();
}

fn log_record(record: &Record, thread: &ThreadState) {
    debug_assert!(
        !record.is_empty() || !record.has_changes(),
        "a unit has changed something, and the log has not been told"
    );
    if record.is_empty() {
        return;
    }
    thread.server().durability.record_log.note(record);
    add(record.touched(), thread, |to| write_unit(record, to));
}

/// Adds a unit's changes to the thread's log.
fn add(touched: Touched<'_>, thread: &ThreadState, build: impl FnOnce(&mut Vec<u8>) -> Kind) {
    let durability = &thread.server().durability;
    if !durability.fills_stream() {
        return;
    }
    let ticket = if thread.server().replica.is_on() {
        match add_on_replica(thread, build) {
            Some(ticket) => ticket,
            None => return,
        }
    } else {
        durability.add(&mut thread.log.borrow_mut(), build)
    };
    thread.ticket.set(ticket);
    if durability.last_writes.is_on() {
        durability.last_writes.note(touched, ticket);
    }
}

/// Adds a unit's changes on a replica. The stream is the primary's: it gets the bytes that were received, if
/// the unit is the primary's. Only the file gets the changes.
#[cold]
fn add_on_replica(thread: &ThreadState, build: impl FnOnce(&mut Vec<u8>) -> Kind) -> Option<Ticket> {
    let durability = &thread.server().durability;
    let has_file = durability.aof.is_writing();
    let mut build = Some(build);
    let mut write = |to: &mut Vec<u8>| {
        let kind = build.take().filter(|_| has_file).map(|build| build(to));
        let Some(Kind::Commands { first_db, last_db }) = kind else { return None };
        Some((Some(first_db), last_db))
    };
    let (mut log, mut received) = (thread.log.borrow_mut(), thread.received.borrow_mut());
    let added = received.take(|received| durability.add(&mut log, |to| received.write(to, &mut write)));
    if added.is_some() || !has_file {
        return added;
    }
    Some(durability.add(&mut log, |to| {
        let (first_db, last_db) = write(to).expect("there is a file");
        Kind::ForFile { first_db: first_db.expect("a unit has a database"), last_db }
    }))
}

/// Adds a part of the primary's stream that has changed nothing. If it `selects` a database, the file gets
/// it, too.
pub fn log_received(thread: &ThreadState, selects: bool) {
    let (mut log, mut received) = (thread.log.borrow_mut(), thread.received.borrow_mut());
    received.take(|received| {
        thread.server().durability.add(&mut log, |to| {
            received.write(to, |to| {
                selects.then(|| {
                    to.extend_from_slice(received.bytes);
                    (None, received.db)
                })
            })
        })
    });
}

/// Logs the changes of a command that ran in place and is observed only by the log.
///
/// Such a command is logged in its own words ([`Log::is_verbatim`](command::Log::is_verbatim)). The shard is
/// held.
#[inline(never)]
pub fn ran_in_place(db: Db, command: &Registered, words: Words<'_>, thread: &ThreadState) {
    let durability = &thread.server().durability;
    record::with(|record| {
        // A command with changes waits for its own record, which comes after all records of the data that it
        // has read.
        if !record.has_changes() && durability.aof.holds_back_reads() {
            await_keys(db, command, words, thread);
        }
        if record.lacks_words() {
            // If nothing has expired or been evicted, these words are the whole unit.
            if record.is_empty() && !durability.record_log.is_on() {
                add(record.touched(), thread, |to| {
                    write_words(to, words.len(), words.iter());
                    Kind::Commands { first_db: db.0, last_db: db.0 }
                });
                return record.clear();
            }
            record.add(db, words.iter());
        }
        log_record(record, thread);
        record.clear();
    });
}

/// Makes the reply to a command wait until all data that it read is on disk.
///
/// Its shards are held, or its values pinned.
#[cold]
pub fn await_what_was_read(call: &Call<'_, '_>, command: &Registered, words: Words<'_>) {
    let durability = &call.server.durability;
    let reads_all = matches!(command.spec.run, Run::Everything(_) | Run::EachShard { .. })
        || route::roams(command, words);
    if reads_all {
        return call.thread.await_ticket(durability.last_ticket());
    }
    await_keys(call.session.db, command, words, call.thread);
}

/// Makes the reply to a command wait until its keys' last changes are on disk.
fn await_keys(db: Db, command: &Registered, words: Words<'_>, thread: &ThreadState) {
    let durability = &thread.server().durability;
    if command.spec.keys.0.is_empty() {
        return;
    }
    if !durability.last_writes.is_on() {
        return thread.await_ticket(durability.last_ticket());
    }
    let get = |at| words.get(at);
    command.spec.keys.positions(words.len(), get, |at, used| {
        if used.is_key() {
            thread.await_ticket(durability.last_writes.of(db, words.get(at)));
        }
    });
}

/// Appends a unit in the form of the change stream.
fn write_unit(record: &Record, to: &mut Vec<u8>) -> Kind {
    let first = record.gone().next().or_else(|| record.commands().next());
    let first_db = first.map_or(Db(0), |recorded| recorded.db);
    let mut selected = first_db;
    let is_one = record.len() == 1;
    if !is_one {
        write_words(to, 1, [&b"MULTI"[..]].into_iter());
    }
    for gone in record.gone() {
        let name: &[u8] = if gone.n_words() == 1 { b"DEL" } else { b"HDEL" };
        select(gone, &mut selected, to);
        write_words(to, 1 + gone.n_words(), std::iter::once(name).chain(gone.words()));
    }
    for command in record.commands() {
        select(command, &mut selected, to);
        write_words(to, command.n_words(), command.words());
    }
    if !is_one {
        write_words(to, 1, [&b"EXEC"[..]].into_iter());
    }
    Kind::Commands { first_db: first_db.0, last_db: selected.0 }
}

/// Appends SELECT if a record belongs to another database than the selected one.
fn select(recorded: Recorded<'_>, selected: &mut Db, to: &mut Vec<u8>) {
    if recorded.db != *selected {
        *selected = recorded.db;
        let db = recorded.db.index().to_string();
        write_words(to, 2, [&b"SELECT"[..], db.as_bytes()].into_iter());
    }
}
