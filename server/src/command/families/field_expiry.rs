//! Commands on the deadlines of a hash's fields.
//!
//! The commands of Redis 7.4 (HEXPIRE, HTTL and related ones) reply with a number for each field. It is -2 if
//! there is no such field, and -1 if it has no deadline; otherwise it is the command's result. The commands
//! of Redis 8.0 (HGETEX, HSETEX, HGETDEL) also read or write the fields.

use braid_protocol::{number, reply::Reply};
use braid_storage::{
    entry::time::{Deadline, Expiry, Millis},
    keyspace::shard::Shard,
    observers::event::Event,
    types::hashes::{HashMut, HashRef, HashType},
};

use super::{hashes::write_value, keys::ExpiryCondition};
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Keys, Outcome, shown},
    command::{
        CommandSpec, Log, Run,
        arguments::expire_options::{CountedFrom, TimeUnit, absolute_millis, future_deadline, take_time_tag},
        log_rewrite,
    },
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "hexpire",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::field_deadlines),
        run: Run::Shard(hexpire),
        since: "7.4.0",
        group: Group::Hash,
        syntax: "key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        summary: "Lets fields of a hash expire after some seconds.",
        complexity: "O(N) where N is the number of fields that are named",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hpexpire",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::field_deadlines),
        run: Run::Shard(hpexpire),
        since: "7.4.0",
        group: Group::Hash,
        syntax: "key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        summary: "Lets fields of a hash expire after some milliseconds.",
        complexity: "O(N) where N is the number of fields that are named",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hexpireat",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::field_deadlines),
        run: Run::Shard(hexpireat),
        since: "7.4.0",
        group: Group::Hash,
        syntax: "key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        summary: "Lets fields of a hash expire at a point in time, in seconds.",
        complexity: "O(N) where N is the number of fields that are named",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hpexpireat",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::field_deadlines),
        run: Run::Shard(hpexpireat),
        since: "7.4.0",
        group: Group::Hash,
        syntax: "key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        summary: "Lets fields of a hash expire at a point in time, in milliseconds.",
        complexity: "O(N) where N is the number of fields that are named",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "httl",
        arity: Arity::AtLeast(5),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(httl),
        since: "7.4.0",
        group: Group::Hash,
        syntax: "key FIELDS numfields field [field ...]",
        summary: "Returns the seconds that fields of a hash have left.",
        complexity: "O(N) where N is the number of fields that are named",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hpttl",
        arity: Arity::AtLeast(5),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(hpttl),
        since: "7.4.0",
        group: Group::Hash,
        syntax: "key FIELDS numfields field [field ...]",
        summary: "Returns the milliseconds that fields of a hash have left.",
        complexity: "O(N) where N is the number of fields that are named",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hexpiretime",
        arity: Arity::AtLeast(5),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(hexpiretime),
        since: "7.4.0",
        group: Group::Hash,
        syntax: "key FIELDS numfields field [field ...]",
        summary: "Returns the points in time at which fields of a hash expire, in seconds.",
        complexity: "O(N) where N is the number of fields that are named",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hpexpiretime",
        arity: Arity::AtLeast(5),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(hpexpiretime),
        since: "7.4.0",
        group: Group::Hash,
        syntax: "key FIELDS numfields field [field ...]",
        summary: "Returns the points in time at which fields of a hash expire, in milliseconds.",
        complexity: "O(N) where N is the number of fields that are named",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hpersist",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::field_deadlines),
        run: Run::Shard(hpersist),
        since: "7.4.0",
        group: Group::Hash,
        syntax: "key FIELDS numfields field [field ...]",
        summary: "Lets fields of a hash live on.",
        complexity: "O(N) where N is the number of fields that are named",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hgetex",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        log: Log::As(log_rewrite::field_deadlines),
        run: Run::Shard(hgetex),
        since: "8.0.0",
        group: Group::Hash,
        syntax: "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] \
                 FIELDS numfields field [field ...]",
        summary: "Returns the values of fields and sets or removes their expiry.",
        complexity: "O(N) where N is the number of fields that are named",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hsetex",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE,
        log: Log::As(log_rewrite::set_fields),
        run: Run::Shard(hsetex),
        since: "8.0.0",
        group: Group::Hash,
        syntax: "key [NX | XX] [FNX | FXX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | \
                 PXAT unix-time-milliseconds | KEEPTTL] FIELDS numfields field value [field value ...]",
        summary: "Sets fields of a hash and their expiry, on a condition.",
        complexity: "O(N) where N is the number of fields that are set",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "hgetdel",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::READ_AND_DELETE,
        log: Log::As(log_rewrite::removed_fields),
        run: Run::Shard(hgetdel),
        since: "8.0.0",
        group: Group::Hash,
        syntax: "key FIELDS numfields field [field ...]",
        summary: "Returns the values of fields and removes the fields.",
        complexity: "O(N) where N is the number of fields that are named",
        ..CommandSpec::ROW
    },
];

/// The latest deadline of a field, in milliseconds since the Unix epoch. Redis stores 46 bits.
const LATEST: i64 = (1 << 46) - 1;

/// The error for an invalid number of fields in HEXPIRE and related commands.
const NO_FIELDS: CommandError = CommandError::text("ERR Parameter `numFields` should be greater than 0");

/// The error for an invalid number of fields in the other commands.
const NO_NUMBER: CommandError = CommandError::text("ERR Number of fields must be a positive integer");

/// The reply for a missing field.
const NO_FIELD: i64 = -2;

/// The reply for a field without a deadline.
const NO_DEADLINE: i64 = -1;

/// Reads `FIELDS numfields field …`, which ends the arguments, and returns the fields.
fn fields<'a>(mut args: Args<'a>, wrong_number: CommandError) -> Result<Args<'a>, CommandError> {
    if !args.tag("FIELDS") {
        return Err(CommandError::text(
            "ERR Mandatory argument FIELDS is missing or not at the right position",
        ));
    }
    let n_fields = args.next().ok().and_then(number::parse_i64).filter(|&n| n > 0).ok_or(wrong_number)?;
    if n_fields as u64 != args.remaining() as u64 {
        return Err(CommandError::text("ERR The `numfields` parameter must match the number of arguments"));
    }
    Ok(args)
}

/// Reads the expiry of a field for the named command.
///
/// Returns milliseconds since the Unix epoch, possibly in the past.
fn expiry_time(
    text: &[u8],
    unit: TimeUnit,
    from: CountedFrom,
    now: Millis,
    command: &'static str,
) -> Result<i64, CommandError> {
    let value = number::parse_i64(text).ok_or(CommandError::NotInteger)?;
    if value < 0 {
        return Err(CommandError::text("ERR invalid expire time, must be >= 0"));
    }
    absolute_millis(value, unit, from, now)
        .filter(|&millis| millis <= LATEST)
        .ok_or(CommandError::InvalidExpire(command))
}

fn hexpire(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_deadlines(shard, args, reply, (TimeUnit::Seconds, CountedFrom::Now), "hexpire")
}

fn hpexpire(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_deadlines(shard, args, reply, (TimeUnit::Millis, CountedFrom::Now), "hpexpire")
}

fn hexpireat(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_deadlines(shard, args, reply, (TimeUnit::Seconds, CountedFrom::Epoch), "hexpireat")
}

fn hpexpireat(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    set_deadlines(shard, args, reply, (TimeUnit::Millis, CountedFrom::Epoch), "hpexpireat")
}

fn set_deadlines(
    shard: &mut Shard,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
    (unit, from): (TimeUnit, CountedFrom),
    name: &'static str,
) -> Outcome {
    let key = args.key()?;
    let now = shard.now();
    let hash = shard.value_mut::<HashType>(&key, Event::HExpire)?;
    let millis = expiry_time(args.next()?, unit, from, now, name)?;
    let condition = ExpiryCondition::take_one(&mut args);
    let fields = fields(args, NO_FIELDS)?;
    reply.array(fields.remaining());
    let Some(mut hash) = hash else {
        fields.rest().for_each(|_| reply.integer(NO_FIELD));
        return Ok(());
    };
    hash.admit_deadlines();
    for name in fields.rest() {
        let current = hash.as_ref().field(name).map(|field| field.deadline);
        reply.integer(match current {
            None => NO_FIELD,
            Some(current) if !condition.allows(current, millis) => 0,
            Some(_) => match future_deadline(millis, now) {
                Some(deadline) => {
                    hash.set_field_deadline(name, Some(deadline));
                    1
                }
                None => {
                    hash.remove_over(name);
                    hash.set_event(Event::HDel);
                    2
                }
            },
        });
    }
    Ok(())
}

fn httl(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_deadlines(shard, args, reply, |deadline, now| to_seconds(deadline.saturating_sub(now)))
}

fn hpttl(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_deadlines(shard, args, reply, |deadline, now| deadline.saturating_sub(now))
}

fn hexpiretime(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_deadlines(shard, args, reply, |deadline, _| to_seconds(deadline))
}

fn hpexpiretime(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_deadlines(shard, args, reply, |deadline, _| deadline)
}

/// Rounds up to seconds, unlike TTL, which rounds to the nearest second.
fn to_seconds(millis: u64) -> u64 {
    millis.div_ceil(1000)
}

/// Replies with the result of `tell` for each field's deadline and the time.
///
/// Both are in milliseconds.
fn tell_deadlines(
    shard: &mut Shard,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
    tell: fn(u64, u64) -> u64,
) -> Outcome {
    let key = args.key()?;
    let now = shard.now();
    let hash = shard.value::<HashType>(&key)?;
    let fields = fields(args, NO_NUMBER)?;
    reply.array(fields.remaining());
    for name in fields.rest() {
        reply.integer(match deadline_of(hash, name) {
            None => NO_FIELD,
            Some(None) => NO_DEADLINE,
            Some(Some(deadline)) => tell(deadline.0.0, now.0) as i64,
        });
    }
    Ok(())
}

/// Returns the deadline, if any, of a field, if it exists.
fn deadline_of(hash: Option<HashRef<'_>>, name: &[u8]) -> Option<Option<Deadline>> {
    Some(hash?.field(name)?.deadline)
}

fn hpersist(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let mut hash = shard.value_mut::<HashType>(&key, Event::HPersist)?;
    let fields = fields(args, NO_NUMBER)?;
    reply.array(fields.remaining());
    for name in fields.rest() {
        reply.integer(match deadline_of(hash.as_ref().map(HashMut::as_ref), name) {
            None => NO_FIELD,
            Some(None) => NO_DEADLINE,
            Some(Some(_)) => {
                if let Some(hash) = &mut hash {
                    hash.set_field_deadline(name, None);
                }
                1
            }
        });
    }
    Ok(())
}

/// The change that HGETEX makes to its fields.
#[derive(Clone, Copy)]
enum Change {
    Nothing,
    Persist,
    /// The fields expire at this time, in milliseconds since the Unix epoch.
    ExpireAt(i64),
}

impl Change {
    fn read(args: &mut Args<'_>, now: Millis) -> Result<Self, CommandError> {
        Ok(if let Some((unit, from)) = take_time_tag(args) {
            Change::ExpireAt(expiry_time(args.next()?, unit, from, now, "hgetex")?)
        } else if args.tag("PERSIST") {
            Change::Persist
        } else {
            Change::Nothing
        })
    }

    /// Applies the change to an existing field.
    fn apply(self, hash: &mut HashMut<'_>, name: &[u8], current: Option<Deadline>) {
        match self {
            Change::Nothing => {}
            Change::Persist if current.is_none() => {}
            Change::Persist => {
                hash.set_field_deadline(name, None);
                hash.set_event(Event::HPersist);
            }
            Change::ExpireAt(millis) => match future_deadline(millis, hash.now()) {
                Some(deadline) => hash.set_field_deadline(name, Some(deadline)),
                None => {
                    hash.remove_over(name);
                    hash.set_event(Event::HDel);
                }
            },
        }
    }
}

fn hgetex(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let now = shard.now();
    let hash = shard.value_mut::<HashType>(&key, Event::HExpire)?;
    let change = Change::read(&mut args, now)?;
    let fields = fields(args, NO_NUMBER)?;
    reply.array(fields.remaining());
    let Some(mut hash) = hash else {
        fields.rest().for_each(|_| reply.null());
        return Ok(());
    };
    if !matches!(change, Change::Nothing) {
        hash.admit_deadlines();
    }
    for name in fields.rest() {
        write_value(Some(hash.as_ref()), name, reply);
        let current = hash.as_ref().field(name).map(|field| field.deadline);
        if let Some(current) = current {
            change.apply(&mut hash, name, current);
        }
    }
    Ok(())
}

fn hgetdel(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let mut hash = shard.value_mut::<HashType>(&key, Event::HDel)?;
    let fields = fields(args, NO_NUMBER)?;
    reply.array(fields.remaining());
    for name in fields.rest() {
        write_value(hash.as_ref().map(HashMut::as_ref), name, reply);
        if let Some(hash) = &mut hash {
            hash.remove(name);
        }
    }
    Ok(())
}

/// A condition of HSETEX on the key or on the fields.
#[derive(Clone, Copy, PartialEq)]
enum HashCondition {
    None,
    /// NX: the key does not exist. FNX: none of the fields does.
    Missing,
    /// XX: the key exists. FXX: all of the fields do.
    Present,
}

impl HashCondition {
    /// Takes a condition with these names, if it is the next argument. Only one of the two may be there.
    fn take(
        &mut self,
        args: &mut Args<'_>,
        [missing, present]: [&str; 2],
        error: &'static str,
    ) -> Result<bool, CommandError> {
        let wanted = if args.tag(missing) {
            HashCondition::Missing
        } else if args.tag(present) {
            HashCondition::Present
        } else {
            return Ok(false);
        };
        if *self != HashCondition::None {
            return Err(CommandError::text(error));
        }
        *self = wanted;
        Ok(true)
    }
}

/// The lifetime of the fields that HSETEX sets.
#[derive(Clone, Copy)]
enum FieldLifetime {
    Unset,
    Keep,
    /// Until this time, in milliseconds since the Unix epoch.
    Until(i64),
}

/// The arguments of HSETEX after the key.
struct SetFields<'a> {
    of_key: HashCondition,
    of_fields: HashCondition,
    lifetime: FieldLifetime,
    /// Names and values.
    pairs: Args<'a>,
}

impl<'a> SetFields<'a> {
    fn read(mut args: Args<'a>, now: Millis) -> Result<Self, CommandError> {
        let (mut of_key, mut of_fields) = (HashCondition::None, HashCondition::None);
        let mut lifetime = FieldLifetime::Unset;
        while !args.tag("FIELDS") {
            if let Some((unit, from)) = take_time_tag(&mut args) {
                lifetime.must_be_unset()?;
                let time = args.next().map_err(|_| CommandError::text("ERR missing expire time"))?;
                lifetime = FieldLifetime::Until(expiry_time(time, unit, from, now, "hsetex")?);
            } else if args.tag("KEEPTTL") {
                lifetime.must_be_unset()?;
                lifetime = FieldLifetime::Keep;
            } else {
                let only_one_of_fields = "ERR Only one of FXX or FNX arguments can be specified";
                let is_condition = of_fields.take(&mut args, ["FNX", "FXX"], only_one_of_fields)?
                    || of_key.take(&mut args, ["NX", "XX"], "ERR syntax error")?;
                if !is_condition {
                    let word = shown(args.next()?);
                    return Err(CommandError::owned(format!("ERR unknown argument: {word}")));
                }
            }
        }
        Ok(Self { of_key, of_fields, lifetime, pairs: Self::read_pairs(args)? })
    }

    fn read_pairs(mut args: Args<'a>) -> Result<Args<'a>, CommandError> {
        const ARITY: CommandError = CommandError::Arity("hsetex");
        if args.remaining() < 3 {
            return Err(ARITY);
        }
        let n_pairs = number::parse_i64(args.next()?).filter(|n| (1..=i32::MAX as i64).contains(n));
        let n_pairs = n_pairs.ok_or(CommandError::text("ERR invalid number of fields"))?;
        if n_pairs as usize * 2 != args.remaining() {
            return Err(ARITY);
        }
        Ok(args)
    }

    fn names(&self) -> impl Iterator<Item = &'a [u8]> {
        self.pairs.rest().step_by(2)
    }

    fn is_met(&self, hash: HashRef<'_>) -> bool {
        let exists = |name| hash.get(name).is_some();
        let key_fits = match self.of_key {
            HashCondition::None => true,
            HashCondition::Missing => hash.is_empty(),
            HashCondition::Present => !hash.is_empty(),
        };
        key_fits
            && match self.of_fields {
                HashCondition::None => true,
                HashCondition::Missing => !self.names().any(exists),
                HashCondition::Present => self.names().all(exists),
            }
    }

    fn apply(mut self, hash: &mut HashMut<'_>) -> Outcome {
        hash.prepare(self.pairs.remaining() / 2);
        let expiry = match self.lifetime {
            FieldLifetime::Unset => Some(Expiry::Clear),
            FieldLifetime::Keep => Some(Expiry::Keep),
            FieldLifetime::Until(millis) => future_deadline(millis, hash.now()).map(Expiry::At),
        };
        match expiry {
            Some(Expiry::At(_)) => hash.follow_up(Event::HExpire),
            Some(_) => {}
            None => hash.follow_up(Event::HDel),
        }
        while !self.pairs.is_empty() {
            let (name, value) = (self.pairs.next()?, self.pairs.next()?);
            match expiry {
                Some(expiry) => {
                    hash.set(name, value, expiry);
                }
                // The lifetime is already over.
                None => {
                    hash.remove_over(name);
                    hash.mark_changed();
                }
            }
        }
        Ok(())
    }
}

impl FieldLifetime {
    fn must_be_unset(self) -> Outcome {
        match self {
            FieldLifetime::Unset => Ok(()),
            _ => Err(CommandError::text(
                "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified",
            )),
        }
    }
}

fn hsetex(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let fields = SetFields::read(args, shard.now())?;
    let mut hash = shard.value_or_create::<HashType>(&key, Event::HSet)?;
    let is_met = fields.is_met(hash.as_ref());
    if is_met {
        fields.apply(&mut hash)?;
    }
    reply.integer(is_met as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_expire_before_46_bits_of_milliseconds_are_full() {
        let now = Millis(1_700_000_000_000);
        let time = |text: &str, unit, from| expiry_time(text.as_bytes(), unit, from, now, "hexpire");
        let too_late = Err(CommandError::InvalidExpire("hexpire"));
        let (from_now, absolute) = (CountedFrom::Now, CountedFrom::Epoch);
        assert_eq!(time("70368744177663", TimeUnit::Millis, absolute), Ok(LATEST));
        assert_eq!(time("70368744177664", TimeUnit::Millis, absolute), too_late);
        assert_eq!(time("70368744177", TimeUnit::Seconds, absolute), Ok(70_368_744_177_000));
        assert_eq!(time("70368744178", TimeUnit::Seconds, absolute), too_late);
        assert_eq!(time("68668744177663", TimeUnit::Millis, from_now), Ok(LATEST));
        assert_eq!(time("68668744177664", TimeUnit::Millis, from_now), too_late);
        assert_eq!(time("9223372036854775807", TimeUnit::Seconds, from_now), too_late);
        assert_eq!(time("0", TimeUnit::Seconds, from_now), Ok(now.0 as i64));
        assert_eq!(time("", TimeUnit::Seconds, from_now), Err(CommandError::NotInteger));
    }

    #[test]
    fn times_to_live_of_fields_are_rounded_up() {
        assert_eq!([0, 1, 999, 1000, 1001].map(to_seconds), [0, 1, 1, 1, 2]);
    }
}
