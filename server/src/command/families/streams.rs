//! Commands on streams.

mod claim;
mod estimates;
mod groups;
mod ids;
mod log_words;
mod nack;
mod options;
mod read;
mod write;
mod xinfo;

use braid_protocol::reply::Reply;
use braid_storage::{
    keyspace::shard::Shard,
    observers::{event::Event, record},
    types::stream::{AddError, Deletion, NewId, References, StreamId, StreamRef, StreamType},
};

use self::{
    ids::{id, ids, range_end, range_start, write_id},
    options::{Doomed, TrimOptions, XaddOptions},
    write::{write_deletion, write_entries},
};
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome},
    command::{CommandSpec, Log, Run, Work},
};

const ROW: CommandSpec = CommandSpec { since: "5.0.0", group: Group::Stream, ..CommandSpec::ROW };
const IN_ANY_FORM: &[&str] = &["nondeterministic_output"];
const HELP: CommandSpec = CommandSpec { since: "5.0.0", group: Group::Stream, ..CommandSpec::HELP };

/// The options of XREAD and XREADGROUP, each with the number of its values.
const READ_OPTIONS: &[(&str, usize)] =
    &[("BLOCK", 1), ("CLAIM", 1), ("COUNT", 1), ("GROUP", 2), ("MAXCOUNT", 1), ("MAXSIZE", 1), ("NOACK", 0)];

/// Returns the keys after STREAMS, which is the word at `from` or a later one.
const fn streams_from(from: u8) -> [KeySpec; 1] {
    let at = KeysAt::HalfBehind { keyword: "STREAMS", from, options: READ_OPTIONS };
    [KeySpec { at, used: KeyUse::Read }]
}

/// Returns the key of a subcommand.
const fn second(used: KeyUse) -> [KeySpec; 1] {
    [KeySpec { at: KeysAt::Range { first: 2, last: 2, step: 1 }, used }]
}

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "xadd",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::Given,
        run: Run::Shard(xadd),
        work: Work::held(estimates::trimmed_by_adding),
        syntax: "key [NOMKSTREAM] [KEEPREF | DELREF | ACKED] [<MAXLEN | MINID> [= | ~] threshold [LIMIT count]] \
                 <* | id> field value [field value ...]",
        summary: "Appends an entry to a stream, which is made if it is missing.",
        complexity: "O(1) when adding a new entry, O(N) when trimming where N being the number of entries evicted",
        tips: IN_ANY_FORM,
        ..ROW
    },
    CommandSpec {
        name: "xlen",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        run: Run::Shard(xlen),
        syntax: "key",
        summary: "Counts the entries of a stream.",
        ..ROW
    },
    CommandSpec {
        name: "xrange",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(xrange),
        work: Work::pinned(estimates::ranged),
        syntax: "key start end [COUNT count]",
        summary: "Returns the entries of a stream from one to another.",
        complexity: "O(N) where N is the number of entries that are given",
        ..ROW
    },
    CommandSpec {
        name: "xrevrange",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(xrevrange),
        work: Work::pinned(estimates::ranged_backwards),
        syntax: "key end start [COUNT count]",
        summary: "Returns the entries of a stream from one back to another.",
        complexity: "O(N) where N is the number of entries that are given",
        ..ROW
    },
    CommandSpec {
        name: "xdel",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::REMOVE,
        run: Run::Shard(xdel),
        syntax: "key id [id ...]",
        summary: "Deletes entries of a stream; counts those that there were.",
        complexity: "O(1) for each entry, whatever the size of the stream",
        ..ROW
    },
    CommandSpec {
        name: "xdelex",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::REMOVE,
        run: Run::Shard(xdelex),
        work: Work::held(estimates::dealt_with_by_groups),
        since: "8.2.0",
        syntax: "key [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
        summary: "Deletes entries of a stream, and says what is to become of references in consumer groups.",
        complexity: "O(1) for each entry and consumer group, whatever the size of the stream",
        ..ROW
    },
    CommandSpec {
        name: "xtrim",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE,
        keys: Keys::REMOVE,
        log: Log::Given,
        run: Run::Shard(xtrim),
        work: Work::held(estimates::trimmed),
        syntax: "key <MAXLEN | MINID> [= | ~] threshold [LIMIT count] [KEEPREF | DELREF | ACKED]",
        summary: "Deletes entries from the start of a stream.",
        complexity: "O(N) where N is the number of entries that go; most go with their neighbours, at little cost",
        tips: IN_ANY_FORM,
        ..ROW
    },
    CommandSpec {
        name: "xsetid",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE,
        run: Run::Shard(xsetid),
        syntax: "key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
        summary: "Sets what a stream knows of entries that it had.",
        ..ROW
    },
    CommandSpec {
        name: "xread",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY.and(Flags::BLOCKING).and(Flags::MOVABLE_KEYS),
        keys: Keys(&streams_from(1)),
        run: Run::Transaction(read::xread),
        work: Work::held(estimates::read),
        syntax: "[COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
        summary: "Returns the entries of streams behind those that the client has seen.",
        complexity: "O(N) for each stream, where N is the number of entries that are given",
        ..ROW
    },
    CommandSpec {
        name: "xreadgroup",
        arity: Arity::AtLeast(7),
        flags: Flags::WRITE.and(Flags::BLOCKING).and(Flags::MOVABLE_KEYS),
        keys: Keys(&streams_from(4)),
        log: Log::Given,
        run: Run::Transaction(read::xreadgroup),
        work: Work::held(estimates::read),
        syntax: "GROUP group consumer [COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] \
                 [CLAIM min-idle-time] [NOACK] STREAMS key [key ...] id [id ...]",
        summary: "Returns entries that the group has not delivered yet, or those that the consumer has yet to acknowledge.",
        complexity: "O(N) for each stream, where N is the number of entries that are given; with CLAIM, O(M) where M \
                     is the number of entries that are pending",
        ..ROW
    },
    CommandSpec {
        name: "xnack",
        arity: Arity::AtLeast(7),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        run: Run::Shard(nack::xnack),
        since: "8.8.0",
        syntax: "key group <SILENT | FAIL | FATAL> IDS numids id [id ...] [RETRYCOUNT count] [FORCE]",
        summary: "Hands pending entries back to their group, so that any consumer can claim them.",
        complexity: "O(1) for each entry",
        ..ROW
    },
    CommandSpec {
        name: "xgroup",
        arity: Arity::AtLeast(2),
        summary: "A container for consumer groups commands.",
        complexity: "Depends on subcommand.",
        subcommands: XGROUP,
        ..ROW
    },
    CommandSpec {
        name: "xack",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        run: Run::Shard(groups::xack),
        syntax: "key group id [id ...]",
        summary: "Acknowledges entries for a consumer group; counts those that were pending.",
        complexity: "O(1) for each entry",
        ..ROW
    },
    CommandSpec {
        name: "xackdel",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys(&[KeySpec {
            at: KeysAt::Range { first: 1, last: 1, step: 1 },
            used: KeyUse::UpdateAndRemove,
        }]),
        run: Run::Shard(groups::xackdel),
        work: Work::held(estimates::dealt_with_by_groups),
        since: "8.2.0",
        syntax: "key group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
        summary: "Acknowledges entries for a consumer group and deletes them.",
        complexity: "O(1) for each entry and consumer group",
        ..ROW
    },
    CommandSpec {
        name: "xpending",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(groups::xpending),
        work: Work::pinned(estimates::pending),
        syntax: "key group [[IDLE min-idle-time] start end count [consumer]]",
        summary: "Returns the entries of a consumer group that are delivered and not acknowledged.",
        complexity: "O(N) where N is the number of entries that are looked at, or of consumers",
        tips: IN_ANY_FORM,
        ..ROW
    },
    CommandSpec {
        name: "xclaim",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::Given,
        run: Run::Shard(claim::xclaim),
        syntax: "key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] \
                 [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID lastid]",
        summary: "Makes a consumer the owner of entries that are pending with others.",
        complexity: "O(log N) for each entry, where N is the number of entries that are pending",
        tips: IN_ANY_FORM,
        ..ROW
    },
    CommandSpec {
        name: "xautoclaim",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::REMOVE,
        log: Log::Given,
        run: Run::Shard(claim::xautoclaim),
        work: Work::held(estimates::claimed),
        since: "6.2.0",
        syntax: "key group consumer min-idle-time start [COUNT count] [JUSTID]",
        summary: "Makes a consumer the owner of entries that have been pending with others for long enough.",
        complexity: "O(N) where N is the count",
        tips: IN_ANY_FORM,
        ..ROW
    },
    CommandSpec {
        name: "xinfo",
        arity: Arity::AtLeast(2),
        summary: "A container for stream introspection commands.",
        complexity: "Depends on subcommand.",
        subcommands: XINFO,
        ..ROW
    },
];

const XGROUP: &[CommandSpec] = &[
    CommandSpec {
        name: "create",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys(&second(KeyUse::Add)),
        run: Run::Transaction(groups::create),
        syntax: "key group <id | $> [MKSTREAM] [ENTRIESREAD entries-read]",
        summary: "Makes a consumer group.",
        ..ROW
    },
    CommandSpec {
        name: "createconsumer",
        arity: Arity::Exactly(5),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys(&second(KeyUse::Add)),
        run: Run::Transaction(groups::create_consumer),
        since: "6.2.0",
        syntax: "key group consumer",
        summary: "Makes a consumer in a group.",
        ..ROW
    },
    CommandSpec {
        name: "delconsumer",
        arity: Arity::Exactly(5),
        flags: Flags::WRITE,
        keys: Keys(&second(KeyUse::Remove)),
        run: Run::Transaction(groups::delete_consumer),
        work: Work::held(estimates::all_pending),
        syntax: "key group consumer",
        summary: "Deletes a consumer, with what is pending there.",
        complexity: "O(N) where N is the number of entries that are pending there",
        ..ROW
    },
    CommandSpec {
        name: "destroy",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE,
        keys: Keys(&second(KeyUse::Remove)),
        run: Run::Transaction(groups::destroy),
        work: Work::held(estimates::all_pending),
        syntax: "key group",
        summary: "Deletes a consumer group.",
        complexity: "O(N) where N is the number of entries that are pending there",
        ..ROW
    },
    CommandSpec { run: Run::Session(groups::group_help), ..HELP },
    CommandSpec {
        name: "setid",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE,
        keys: Keys(&second(KeyUse::Update)),
        run: Run::Transaction(groups::set_id),
        syntax: "key group <id | $> [ENTRIESREAD entries-read]",
        summary: "Sets up to where a consumer group has read.",
        ..ROW
    },
];

const XINFO: &[CommandSpec] = &[
    CommandSpec {
        name: "consumers",
        arity: Arity::Exactly(4),
        flags: Flags::READONLY,
        keys: Keys(&second(KeyUse::Read)),
        run: Run::Transaction(xinfo::consumers),
        work: Work::pinned(estimates::shown),
        syntax: "key group",
        summary: "Returns the consumers of a group.",
        tips: IN_ANY_FORM,
        ..ROW
    },
    CommandSpec {
        name: "groups",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY,
        keys: Keys(&second(KeyUse::Read)),
        run: Run::Transaction(xinfo::groups),
        work: Work::pinned(estimates::shown),
        syntax: "key",
        summary: "Returns the consumer groups of a stream.",
        ..ROW
    },
    CommandSpec { run: Run::Session(xinfo::info_help), ..HELP },
    CommandSpec {
        name: "stream",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY,
        keys: Keys(&second(KeyUse::Read)),
        run: Run::Transaction(xinfo::stream),
        work: Work::pinned(estimates::shown),
        syntax: "key [FULL [COUNT count]]",
        summary: "Returns what is known about a stream.",
        ..ROW
    },
];

fn xadd(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let options = XaddOptions::read(&mut args)?;
    let trim = options.trim.finish(shard.thresholds())?;
    if args.is_empty() || !args.remaining().is_multiple_of(2) {
        return Err(CommandError::Arity("xadd"));
    }
    if options.id == NewId::Given(StreamId::MIN) {
        return Err(CommandError::text("ERR The ID specified in XADD must be greater than 0-0"));
    }
    if !options.creates && shard.peek(&key).is_none() {
        reply.null();
        return Ok(());
    }
    let (db, is_logged) = (shard.db(), shard.is_logged());
    let mut stream = shard.value_or_create::<StreamType>(&key, Event::XAdd)?;
    let added = stream.add(options.id, args.rest()).map_err(add_error)?;
    // Changes that affect groups or depend on them are repeated by recording the options.
    let keeps_options = trim.as_ref().is_some_and(|trim| trim.references != References::Keep);
    if is_logged {
        log_words::added(db, added, args, keeps_options);
    }
    if let Some(trim) = trim
        && stream.trim(&trim) > 0
    {
        stream.follow_up(Event::XTrim);
        if is_logged && !keeps_options {
            log_words::trimmed(db, &key, &stream);
        }
    }
    write_id(reply, added);
    Ok(())
}

fn add_error(error: AddError) -> CommandError {
    CommandError::text(match error {
        AddError::Exhausted => "ERR The stream has exhausted the last possible ID, unable to add more items",
        AddError::NotGreater => {
            "ERR The ID specified in XADD is equal or smaller than the target stream top item"
        }
        AddError::TooLarge => "ERR Elements are too large to be stored",
    })
}

fn xlen(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let stream = shard.value::<StreamType>(&key)?;
    reply.integer(stream.map_or(0, |stream| stream.stream().entries().len()) as i64);
    Ok(())
}

/// The order of a range.
#[derive(Clone, Copy)]
enum EntryOrder {
    Forwards,
    Backwards,
}

fn xrange(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    range(shard, args, reply, EntryOrder::Forwards)
}

fn xrevrange(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    range(shard, args, reply, EntryOrder::Backwards)
}

fn range(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>, order: EntryOrder) -> Outcome {
    let key = args.key()?;
    let (mut from, mut to) = (args.next()?, args.next()?);
    if let EntryOrder::Backwards = order {
        (from, to) = (to, from);
    }
    let (from, to) = (range_start(from)?, range_end(to)?);
    let mut n_max = None;
    while !args.is_empty() {
        if args.remaining() < 2 || !args.tag("COUNT") {
            return Err(CommandError::Syntax);
        }
        n_max = Some(args.int()?.max(0) as usize);
    }
    match shard.value::<StreamType>(&key)? {
        None => reply.array(0),
        Some(_) if n_max == Some(0) => reply.null_array(),
        Some(stream) => write_range(reply, stream, from, to, order, n_max),
    }
    Ok(())
}

fn write_range(
    reply: &mut Reply<'_>,
    stream: StreamRef<'_>,
    from: StreamId,
    to: StreamId,
    order: EntryOrder,
    n_max: Option<usize>,
) {
    let entries = stream.stream().entries();
    match order {
        EntryOrder::Forwards => write_entries(reply, entries.range(from, to), n_max),
        EntryOrder::Backwards => write_entries(reply, entries.range_backwards(from, to), n_max),
    };
}

fn xdel(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let n_deleted = match shard.value_mut::<StreamType>(&key, Event::XDel)? {
        Some(mut stream) => stream.delete(&ids(args)?, References::Keep, |_| {}),
        None => 0,
    };
    reply.integer(n_deleted as i64);
    Ok(())
}

fn xdelex(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let Doomed { ids, references } = Doomed::read(args)?;
    let stream = shard.value_mut::<StreamType>(&key, Event::XDel)?;
    reply.array(ids.len());
    match stream {
        Some(mut stream) => {
            stream.delete(&ids, references, |deletion| write_deletion(reply, deletion));
        }
        None => ids.iter().for_each(|_| write_deletion(reply, Deletion::Missing)),
    }
    Ok(())
}

fn xtrim(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let mut options = TrimOptions::default();
    while !args.is_empty() {
        if !options.take(&mut args)? {
            return Err(CommandError::Syntax);
        }
    }
    let trim = options.finish_some(shard.thresholds())?;
    let (db, is_logged) = (shard.db(), shard.is_logged());
    let n_removed = match shard.value_mut::<StreamType>(&key, Event::XTrim)? {
        Some(mut stream) => {
            let n_removed = stream.trim(&trim);
            if is_logged && stream.has_changed() {
                match trim.references {
                    References::Keep => log_words::trimmed(db, &key, &stream),
                    _ => record::add(db, args.words().iter()),
                }
            }
            n_removed
        }
        None => 0,
    };
    reply.integer(n_removed as i64);
    Ok(())
}

/// The options of XSETID after the ID.
#[derive(Default)]
struct SetIdOptions {
    n_added: Option<u64>,
    max_deleted: Option<StreamId>,
}

impl SetIdOptions {
    fn read(mut args: Args<'_>, last_id: StreamId) -> Result<Self, CommandError> {
        let mut options = SetIdOptions::default();
        while !args.is_empty() {
            if args.remaining() < 2 {
                return Err(CommandError::Syntax);
            } else if args.tag("ENTRIESADDED") {
                let n_added = u64::try_from(args.int()?);
                options.n_added =
                    Some(n_added.map_err(|_| CommandError::text("ERR entries_added must be positive"))?);
            } else if args.tag("MAXDELETEDID") {
                let max_deleted = id(args.next()?)?;
                if last_id < max_deleted {
                    return Err(CommandError::text(
                        "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                    ));
                }
                options.max_deleted = Some(max_deleted);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        // The least ID means that none is given.
        options.max_deleted = options.max_deleted.filter(|max_deleted| *max_deleted > StreamId::MIN);
        Ok(options)
    }
}

fn xsetid(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let last_id = id(args.next()?)?;
    let options = SetIdOptions::read(args, last_id)?;
    let mut stream = shard.value_mut::<StreamType>(&key, Event::XSetId)?.ok_or(CommandError::NoSuchKey)?;
    let entries = stream.stream().entries();
    if last_id < entries.max_deleted_id() {
        return Err(CommandError::text(
            "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
        ));
    }
    if entries.last_live_id().is_some_and(|last| last_id < last) {
        return Err(CommandError::text(
            "ERR The ID specified in XSETID is smaller than the target stream top item",
        ));
    }
    if options.n_added.is_some_and(|n_added| n_added < entries.len()) {
        return Err(CommandError::text(
            "ERR The entries_added specified in XSETID is smaller than the target stream length",
        ));
    }
    stream.set_last_id(last_id, options.n_added, options.max_deleted);
    reply.ok();
    Ok(())
}
