//! DUMP and RESTORE.

use braid_protocol::{number, reply::Reply};
use braid_storage::{entry::time::Deadline, observers::event::Event, rdb};

use crate::{
    catalog::{Args, Arity, Categories, CommandError, Flags, Group, Keys, Outcome},
    command::{Call, CommandSpec, Log, Run, Work, log_rewrite, work},
    log, verbose_later,
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "dump",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Transaction(dump),
        work: Work::pinned(work::dumped),
        since: "2.6.0",
        group: Group::Generic,
        syntax: "key",
        summary: "Returns a key's value in bytes that RESTORE takes.",
        complexity: "O(N) where N is the size of the value",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "restore",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::DANGEROUS),
        keys: Keys::OVERWRITE,
        log: Log::As(log_rewrite::restored),
        run: Run::Transaction(restore),
        work: Work::pinned(work::restored),
        since: "2.6.0",
        group: Group::Generic,
        categories: Some(Categories::KEYSPACE),
        syntax: "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        summary: "Makes a key of what DUMP gave.",
        complexity: "O(N*log(N)) where N is the size of the value",
        ..CommandSpec::ROW
    },
];

fn dump(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let format = call.server.config.load().rdb_write_format;
    let shard = call.shard_of(&key);
    let now = shard.now();
    match shard.read(&key) {
        None => reply.null(),
        Some(entry) => match rdb::dump_in(format.into(), entry, now) {
            Ok(payload) => reply.bulk(&payload),
            Err(why) => {
                let key = key.bytes.escape_ascii();
                return Err(CommandError::owned(format!("ERR The key '{key}' cannot be dumped: {why}")));
            }
        },
    }
    Ok(())
}

/// The options of RESTORE.
#[derive(Default)]
struct Options {
    replace: bool,
    is_absolute: bool,
    idle_seconds: Option<u64>,
    frequency: Option<u8>,
}

impl Options {
    fn take(mut args: Args<'_>) -> Result<Self, CommandError> {
        let mut options = Options::default();
        while !args.is_empty() {
            if args.tag("REPLACE") {
                options.replace = true;
            } else if args.tag("ABSTTL") {
                options.is_absolute = true;
            } else if args.remaining() > 1 && options.frequency.is_none() && args.tag("IDLETIME") {
                let seconds = u64::try_from(args.int()?);
                options.idle_seconds = Some(
                    seconds.map_err(|_| CommandError::text("ERR Invalid IDLETIME value, must be >= 0"))?,
                );
            } else if args.remaining() > 1 && options.idle_seconds.is_none() && args.tag("FREQ") {
                let frequency = u8::try_from(args.int()?);
                options.frequency =
                    Some(frequency.map_err(|_| {
                        CommandError::text("ERR Invalid FREQ value, must be >= 0 and <= 255")
                    })?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }
}

fn restore(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, ttl, payload) = (args.key()?, args.next()?, args.next()?);
    let options = Options::take(args)?;
    let (keyspace, now, checksums) = (&call.server.keyspace, call.now, call.server.payload_checksums());
    let shard = call.shard_of(&key);
    if shard.peek(&key).is_some() && !options.replace {
        return Err(CommandError::text("BUSYKEY Target key name already exists."));
    }
    let ttl = number::parse_i64(ttl).ok_or(CommandError::NotInteger)?;
    if ttl < 0 {
        return Err(CommandError::text("ERR Invalid TTL value, must be >= 0"));
    }
    let entry = rdb::restore(payload, &key, keyspace, now, checksums).map_err(|malformed| {
        // Any client may send any number of malformed payloads.
        verbose_later!(
            "RESTORE refuses a payload for key '{}' of database {}: {malformed} of {}",
            log::shown(key.bytes),
            shard.db().index(),
            payload.len()
        );
        CommandError::text(match malformed.flaw.is_of_footer() {
            true => "ERR DUMP payload version or checksum are wrong",
            false => "ERR Bad data format",
        })
    })?;
    let counted_from = if options.is_absolute { 0 } else { now.0 as i64 };
    // As in Redis, a time later than the latest possible one is in the past.
    let deadline =
        (ttl > 0).then(|| Deadline::at(u64::try_from(ttl.wrapping_add(counted_from)).unwrap_or(0)));
    match entry.filter(|_| deadline.is_none_or(|deadline| deadline.0 > now)) {
        Some(mut entry) => {
            entry.set_deadline(deadline);
            // Also with REPLACE, because Redis has deleted the old key.
            shard.announce_new(&key);
            shard.put_announced(&key, entry, Event::Restore);
            if let Some(entry) = shard.peek(&key) {
                keyspace.access().resume(entry, now, options.idle_seconds, options.frequency);
            }
        }
        None => {
            shard.remove(&key, Event::Del);
        }
    }
    reply.ok();
    Ok(())
}
