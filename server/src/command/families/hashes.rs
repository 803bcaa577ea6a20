//! Commands on hashes. `field_expiry.rs` contains those on the deadlines of fields.

use braid_protocol::{
    number::{self, LongDouble},
    reply::Reply,
};
use braid_storage::{
    entry::time::Expiry,
    keyspace::shard::Shard,
    observers::event::Event,
    sync::work::BYTES_PER_ELEMENT,
    table::Position,
    types::{
        hashes::{Field, HashRef, HashType, Inserted},
        packed::Element,
    },
};

use super::keys::parse_cursor;
use crate::{
    catalog::{Args, Arity, CommandError, Deprecation, Flags, Group, Keys, MembersAt, Outcome},
    command::{
        CommandSpec, Log, Look, Run, Work,
        arguments::collection_args::{ScanOptions, n_bytes, write_element, write_samples, write_scanned},
        log_rewrite, work,
    },
    random::random,
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "hset",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE,
        members: MembersAt::WITH_VALUES,
        run: Run::Shard(hset),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key field value [field value ...]",
        summary: "Sets fields of a hash and says how many are new.",
        complexity: "O(N) where N is the number of fields that are set",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hmset",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST).and(Flags::DEPRECATED),
        keys: Keys::UPDATE,
        members: MembersAt::WITH_VALUES,
        run: Run::Shard(hmset),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key field value [field value ...]",
        summary: "Sets fields of a hash.",
        complexity: "O(N) where N is the number of fields that are set",
        deprecated: Some(Deprecation {
            since: "4.0.0",
            replaced_by: "`HSET` with multiple field-value pairs",
        }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hsetnx",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::ADD,
        members: MembersAt::ONE,
        run: Run::Shard(hsetnx),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key field value",
        summary: "Sets a field of a hash unless it exists.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hget",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        members: MembersAt::ONE,
        run: Run::Shard(hget),
        work: Work::Refused { estimate: asked_for },
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key field",
        summary: "Returns the value of a field.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hmget",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        members: MembersAt::ALL,
        run: Run::Shard(hmget),
        work: Work::Refused { estimate: asked_for },
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key field [field ...]",
        summary: "Returns the values of fields.",
        complexity: "O(N) where N is the number of fields that are asked for",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hgetall",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(hgetall),
        work: Work::pinned(work::whole),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key",
        summary: "Returns all fields of a hash with their values.",
        complexity: "O(N) where N is the number of fields",
        tips: &["nondeterministic_output_order"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hdel",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::REMOVE,
        members: MembersAt::ALL,
        run: Run::Shard(hdel),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key field [field ...]",
        summary: "Removes fields, and the hash with the last of them.",
        complexity: "O(N) where N is the number of fields to remove",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hlen",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        run: Run::Shard(hlen),
        work: Work::pinned(work::expired_fields),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key",
        summary: "Counts the fields of a hash.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hexists",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        members: MembersAt::ONE,
        run: Run::Shard(hexists),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key field",
        summary: "Says whether a hash has a field.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hkeys",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(hkeys),
        work: Work::pinned(work::whole),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key",
        summary: "Returns the names of all fields of a hash.",
        complexity: "O(N) where N is the number of fields",
        tips: &["nondeterministic_output_order"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hvals",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(hvals),
        work: Work::pinned(work::whole),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key",
        summary: "Returns the values of all fields of a hash.",
        complexity: "O(N) where N is the number of fields",
        tips: &["nondeterministic_output_order"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hincrby",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        members: MembersAt::ONE,
        run: Run::Shard(hincrby),
        since: "2.0.0",
        group: Group::Hash,
        syntax: "key field increment",
        summary: "Adds to the integer that a field's value spells; a missing one counts as 0.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hincrbyfloat",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        members: MembersAt::ONE,
        log: Log::As(log_rewrite::one_field),
        run: Run::Shard(hincrbyfloat),
        since: "2.6.0",
        group: Group::Hash,
        syntax: "key field increment",
        summary: "Adds to the number that a field's value spells; a missing one counts as 0.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hstrlen",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        members: MembersAt::ONE,
        run: Run::Shard(hstrlen),
        since: "3.2.0",
        group: Group::Hash,
        syntax: "key field",
        summary: "Returns the length of a field's value in bytes.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hrandfield",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(hrandfield),
        work: Work::pinned(work::drawn_fields),
        since: "6.2.0",
        group: Group::Hash,
        syntax: "key [count [WITHVALUES]]",
        summary: "Returns fields of a hash that are chosen at random.",
        complexity: "O(N) where N is the number of fields to give",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hscan",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(hscan),
        work: Work::pinned(work::scanned),
        since: "2.8.0",
        group: Group::Hash,
        syntax: "key cursor [MATCH pattern] [COUNT count] [NOVALUES]",
        summary: "Goes through the fields of a hash, some at each call.",
        complexity: "O(1) a call, O(N) for all calls until the cursor is 0 again, where N is the number of fields",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
];

fn hset(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let n_new = set_fields(shard, args, "hset")?;
    reply.integer(n_new as i64);
    Ok(())
}

fn hmset(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_fields(shard, args, "hmset")?;
    reply.ok();
    Ok(())
}

/// Sets all given fields, and returns the number of new ones.
fn set_fields(shard: &mut Shard, mut args: Args<'_>, name: &'static str) -> Result<usize, CommandError> {
    let key = args.key()?;
    if !args.remaining().is_multiple_of(2) {
        return Err(CommandError::Arity(name));
    }
    let mut hash = shard.value_or_create::<HashType>(&key, Event::HSet)?;
    hash.prepare(args.remaining() / 2);
    let mut n_new = 0;
    while !args.is_empty() {
        let inserted = hash.set(args.next()?, args.next()?, Expiry::Clear);
        n_new += (inserted == Inserted::New) as usize;
    }
    Ok(n_new)
}

fn hsetnx(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let (field, value) = (args.next()?, args.next()?);
    let mut hash = shard.value_or_create::<HashType>(&key, Event::HSet)?;
    let is_new = hash.as_ref().get(field).is_none();
    if is_new {
        hash.set(field, value, Expiry::Clear);
    }
    reply.integer(is_new as i64);
    Ok(())
}

fn hget(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let max = shard.copied_max_bytes();
    let hash = shard.value::<HashType>(&key)?;
    match hash.and_then(|hash| hash.get(args.next().ok()?)) {
        Some(value) if n_bytes(value) > max => return Err(shard.refuse_read().into()),
        Some(value) => write_element(value, reply),
        None => reply.null(),
    }
    Ok(())
}

fn hmget(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let mut left = shard.copied_max_bytes();
    let hash = shard.value::<HashType>(&key)?;
    reply.array(args.remaining());
    for field in args.rest() {
        let Some(value) = hash.and_then(|hash| hash.get(field)) else {
            reply.null();
            continue;
        };
        match left.checked_sub(n_bytes(value)) {
            Some(less) => left = less,
            None => return Err(shard.refuse_read().into()),
        }
        write_element(value, reply);
    }
    Ok(())
}

/// Estimates HGET and HMGET, which copy values.
fn asked_for(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let values =
        |hash: HashRef<'_>| args.rest().filter_map(|field| hash.get(field)).map(n_bytes).sum::<usize>();
    look.hash(&key, values).unwrap_or(0) / BYTES_PER_ELEMENT
}

/// Writes the value of a field, or null.
pub(super) fn write_value(hash: Option<HashRef<'_>>, field: &[u8], reply: &mut Reply<'_>) {
    match hash.and_then(|hash| hash.get(field)) {
        Some(value) => write_element(value, reply),
        None => reply.null(),
    }
}

fn hgetall(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let Some(hash) = shard.value::<HashType>(&key)? else {
        reply.map(0);
        return Ok(());
    };
    write_fields(hash, reply);
    Ok(())
}

fn write_fields(hash: HashRef<'_>, reply: &mut Reply<'_>) {
    reply.map(hash.len());
    hash.iter().for_each(|field| write_field(&field, reply));
}

fn write_field(field: &Field<'_>, reply: &mut Reply<'_>) {
    write_element(field.name, reply);
    write_element(field.value, reply);
}

fn hkeys(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    write_texts(shard, args, reply, |field| field.name)
}

fn hvals(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    write_texts(shard, args, reply, |field| field.value)
}

/// Replies with one text of each field.
fn write_texts(
    shard: &mut Shard,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
    text: for<'f> fn(Field<'f>) -> Element<'f>,
) -> Outcome {
    let key = args.key()?;
    let hash = shard.value::<HashType>(&key)?;
    reply.array(hash.map_or(0, HashRef::len));
    if let Some(hash) = hash {
        hash.iter().for_each(|field| write_element(text(field), reply));
    }
    Ok(())
}

fn hdel(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let n_removed = match shard.value_mut::<HashType>(&key, Event::HDel)? {
        Some(mut hash) => args.rest().filter(|field| hash.remove(field)).count(),
        None => 0,
    };
    reply.integer(n_removed as i64);
    Ok(())
}

fn hlen(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let hash = shard.value::<HashType>(&key)?;
    reply.integer(hash.map_or(0, HashRef::len) as i64);
    Ok(())
}

fn hexists(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let field = args.next()?;
    let value = shard.value::<HashType>(&key)?.and_then(|hash| hash.get(field));
    reply.integer(value.is_some() as i64);
    Ok(())
}

fn hstrlen(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let field = args.next()?;
    let value = shard.value::<HashType>(&key)?.and_then(|hash| hash.get(field));
    reply.integer(value.map_or(0, Element::text_len) as i64);
    Ok(())
}

fn hincrby(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let (field, increment) = (args.next()?, args.int()?);
    let mut hash = shard.value_or_create::<HashType>(&key, Event::HIncrBy)?;
    let value = match hash.as_ref().get(field) {
        None => 0,
        Some(Element::Integer(value)) => value,
        Some(Element::Text(text)) => {
            number::parse_i64(text).ok_or(CommandError::text("ERR hash value is not an integer"))?
        }
    };
    let sum = value
        .checked_add(increment)
        .ok_or(CommandError::text("ERR increment or decrement would overflow"))?;
    number::format_i64(sum, |text| hash.set(field, text, Expiry::Keep));
    reply.integer(sum);
    Ok(())
}

fn hincrbyfloat(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let field = args.next()?;
    let increment = LongDouble::parse(args.next()?).ok_or(CommandError::NotFloat)?;
    if !increment.is_finite() {
        return Err(CommandError::text("ERR value is NaN or Infinity"));
    }
    let mut hash = shard.value_or_create::<HashType>(&key, Event::HIncrByFloat)?;
    let value = match hash.as_ref().get(field) {
        None => LongDouble::ZERO,
        Some(text) => {
            text.with_text(LongDouble::parse).ok_or(CommandError::text("ERR hash value is not a float"))?
        }
    };
    let sum = value + increment;
    if !sum.is_finite() {
        return Err(CommandError::text("ERR increment would produce NaN or Infinity"));
    }
    let mut text = Vec::new();
    sum.write(&mut text);
    hash.set(field, &text, Expiry::Keep);
    reply.bulk(&text);
    Ok(())
}

fn hrandfield(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let choice = if args.is_empty() { None } else { Some(Choice::read(args)?) };
    // Expired fields that remain are rare, and make the choice slower but not wrong.
    shard.expire_fields_of(&key);
    let hash = shard.value::<HashType>(&key)?;
    match choice {
        Some(choice) => {
            return choice.write(hash, reply);
        }
        None => match hash.and_then(|hash| hash.random_field(random())) {
            Some(field) => write_element(field.name, reply),
            None => reply.null(),
        },
    }
    Ok(())
}

/// The arguments of HRANDFIELD for several fields.
struct Choice {
    /// The number of fields. If it is negative, they are drawn one by one and may repeat.
    count: i64,
    with_values: bool,
}

impl Choice {
    fn read(mut args: Args<'_>) -> Result<Self, CommandError> {
        const OUT_OF_RANGE: CommandError = CommandError::text("ERR value is out of range");
        let count = args.int()?;
        if count == i64::MIN {
            return Err(CommandError::text(
                "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
            ));
        }
        let with_values = args.tag("WITHVALUES");
        args.finish()?;
        if with_values && count.unsigned_abs() > i64::MAX as u64 / 2 {
            return Err(OUT_OF_RANGE);
        }
        Ok(Self { count, with_values })
    }

    fn write(&self, hash: Option<HashRef<'_>>, reply: &mut Reply<'_>) -> Outcome {
        let Some(hash) = hash else {
            reply.array(0);
            return Ok(());
        };
        let n = self.count.unsigned_abs() as usize;
        if self.count < 0 {
            let fields = hash.random_fields();
            let write = |reply: &mut Reply<'_>| {
                let field = fields.draw(random()).expect("a hash has fields");
                self.write_field(&field, reply);
            };
            return write_samples(n as u64, reply, |reply| self.write_header(n, reply), write);
        }
        self.write_header(n.min(hash.len()), reply);
        hash.choose(n, &mut random, &mut |field| self.write_field(&field, reply));
        Ok(())
    }

    fn write_header(&self, n: usize, reply: &mut Reply<'_>) {
        if self.with_values { reply.pairs(n) } else { reply.array(n) }
    }

    fn write_field(&self, field: &Field<'_>, reply: &mut Reply<'_>) {
        if self.with_values {
            reply.pair();
            write_field(field, reply);
        } else {
            write_element(field.name, reply);
        }
    }
}

fn hscan(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let cursor = parse_cursor(args.next()?).ok_or(CommandError::text("ERR invalid cursor"))?;
    match shard.value::<HashType>(&key)? {
        Some(hash) => scan(hash, cursor, args, reply),
        // Even wrong options are no error if the key is missing.
        None => {
            write_scanned(None, 0, &[], reply);
            Ok(())
        }
    }
}

/// Writes the next cursor and then the fields from a cursor onwards.
fn scan(hash: HashRef<'_>, cursor: u64, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let mut with_values = true;
    let options = ScanOptions::read_among(args, |args| {
        let is_other = args.tag("NOVALUES");
        with_values &= !is_other;
        is_other
    })?;
    let (mut found, mut n) = (Vec::new(), 0);
    let mut texts = Reply::new(&mut found, reply.version());
    // An invalid cursor is past the end.
    let mut visit = |field: Field<'_>| {
        if !options.wants(field.name) {
            return;
        }
        write_element(field.name, &mut texts);
        n += 1;
        if with_values {
            write_element(field.value, &mut texts);
            n += 1;
        }
    };
    let next = options.visit(Position::decode(cursor), |from, n_visited| {
        hash.scan(from, 1, &mut |field| {
            *n_visited += 1;
            visit(field);
        })
    });
    write_scanned(next, n, &found, reply);
    Ok(())
}
