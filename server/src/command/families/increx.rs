//! INCREX: adds to a number within bounds, and sets its expiry.

use std::ops::{Add, Neg};

use braid_protocol::{
    number::{self, LongDouble},
    reply::Reply,
};
use braid_storage::{
    entry::key::Key, keyspace::shard::Shard, observers::event::Event, types::string::StringOrigin,
};

use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Keys, Outcome},
    command::{
        CommandSpec, Log, Run,
        arguments::expire_options::{ExpiryOption, Lifetime},
        log_rewrite,
    },
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "increx",
    arity: Arity::AtLeast(2),
    flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
    keys: Keys::UPDATE_AND_READ,
    log: Log::As(log_rewrite::strings),
    run: Run::Shard(increx),
    since: "8.8.0",
    group: Group::String,
    syntax: "key [BYFLOAT increment | BYINT increment] [LBOUND lowerbound] [UBOUND upperbound] [SATURATE] \
             [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] [ENX]",
    summary: "Adds to the number that a string spells, within bounds, and sets its expiry.",
    ..CommandSpec::ROW
}];

/// The arguments of INCREX after the key.
#[derive(Default)]
struct Options<'a> {
    increment: Option<&'a [u8]>,
    is_float: bool,
    lower: Option<&'a [u8]>,
    upper: Option<&'a [u8]>,
    saturates: bool,
    expiry: ExpiryOption<'a>,
    /// ENX: a key that has a deadline keeps it.
    only_without_deadline: bool,
}

impl<'a> Options<'a> {
    fn read(mut args: Args<'a>) -> Result<Self, CommandError> {
        let mut options = Self::default();
        while !args.is_empty() {
            if options.expiry.take_time(&mut args)? || options.expiry.take_persist(&mut args)? {
                continue;
            }
            if args.tag("SATURATE") {
                options.saturates = true;
            } else if args.tag("ENX") {
                options.only_without_deadline = true;
            } else if args.tag("LBOUND") {
                take_once(&mut options.lower, &mut args)?;
            } else if args.tag("UBOUND") {
                take_once(&mut options.upper, &mut args)?;
            } else if args.tag("BYINT") {
                take_once(&mut options.increment, &mut args)?;
            } else if args.tag("BYFLOAT") {
                options.is_float = true;
                take_once(&mut options.increment, &mut args)?;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        match options.expiry {
            ExpiryOption::Unset if options.only_without_deadline => {
                Err(CommandError::text("ERR ENX flag requires an expiration option"))
            }
            ExpiryOption::Persist if options.only_without_deadline => Err(CommandError::Syntax),
            _ => Ok(options),
        }
    }
}

/// Takes the value of an option that may be there once.
fn take_once<'a>(value: &mut Option<&'a [u8]>, args: &mut Args<'a>) -> Outcome {
    if args.is_empty() || value.is_some() {
        return Err(CommandError::Syntax);
    }
    *value = Some(args.next()?);
    Ok(())
}

/// A kind of numbers that INCREX adds.
trait Number: Copy + Neg<Output = Self> + Add<Output = Self> {
    const ZERO: Self;

    /// Parses a value, an increment or a bound.
    fn parse(text: &[u8]) -> Result<Self, CommandError>;

    fn write(self, out: &mut Vec<u8>);

    fn reply(self, reply: &mut Reply<'_>);

    fn is_less_than(self, other: Self) -> bool;

    /// Whether a key can hold the number, or a reply can name it.
    fn is_possible(self) -> bool;

    /// The error for an increment that has no possible result.
    const IMPOSSIBLE: CommandError;

    /// The event of a change.
    const EVENT: Event;

    /// The nearest possible number.
    fn saturated(self) -> Self;
}

/// An integer, with room for sums of two.
impl Number for i128 {
    const ZERO: Self = 0;
    const IMPOSSIBLE: CommandError = CommandError::text("ERR increment or decrement would overflow");
    const EVENT: Event = Event::IncrBy;

    fn parse(text: &[u8]) -> Result<Self, CommandError> {
        number::parse_i64(text).map(i128::from).ok_or(CommandError::NotInteger)
    }

    fn write(self, out: &mut Vec<u8>) {
        number::format_i64(self as i64, |text| out.extend_from_slice(text));
    }

    fn reply(self, reply: &mut Reply<'_>) {
        reply.integer(self as i64);
    }

    fn is_less_than(self, other: Self) -> bool {
        self < other
    }

    fn is_possible(self) -> bool {
        i64::try_from(self).is_ok()
    }

    fn saturated(self) -> Self {
        self.clamp(i64::MIN.into(), i64::MAX.into())
    }
}

impl Number for LongDouble {
    const ZERO: Self = LongDouble::ZERO;
    const IMPOSSIBLE: CommandError = CommandError::text("ERR value or increment would produce Infinity");
    const EVENT: Event = Event::IncrByFloat;

    fn parse(text: &[u8]) -> Result<Self, CommandError> {
        let number = LongDouble::parse(text).ok_or(CommandError::NotFloat)?;
        if number.is_finite() { Ok(number) } else { Err(Self::IMPOSSIBLE) }
    }

    fn write(self, out: &mut Vec<u8>) {
        LongDouble::write(self, out);
    }

    fn reply(self, reply: &mut Reply<'_>) {
        reply.long_double(self);
    }

    fn is_less_than(self, other: Self) -> bool {
        LongDouble::is_less_than(self, other)
    }

    fn is_possible(self) -> bool {
        self.is_finite()
    }

    /// The largest floats have more digits than any counter.
    fn saturated(self) -> Self {
        self
    }
}

fn increx(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let options = Options::read(args)?;
    let lifetime = options.expiry.lifetime(shard.now(), "increx")?;
    if options.is_float {
        add_within::<LongDouble>(shard, &key, &options, lifetime, reply)
    } else {
        add_within::<i128>(shard, &key, &options, lifetime, reply)
    }
}

/// Adds within the bounds. If the sum is outside, it becomes the bound (SATURATE), or nothing happens.
fn add_within<N: Number>(
    shard: &mut Shard,
    key: &Key<'_>,
    options: &Options<'_>,
    lifetime: Lifetime,
    reply: &mut Reply<'_>,
) -> Outcome {
    let increment = N::parse(options.increment.unwrap_or(b"1"))?;
    let lower = options.lower.map(N::parse).transpose()?;
    let upper = options.upper.map(N::parse).transpose()?;
    if let (Some(lower), Some(upper)) = (lower, upper)
        && upper.is_less_than(lower)
    {
        return Err(CommandError::text("ERR LBOUND can't be greater than UBOUND"));
    }
    let old = match shard.string_mut(key, N::EVENT)? {
        Some(string) => N::parse(string.bytes())?,
        None => N::ZERO,
    };
    let sum = old + increment;
    let bound = if lower.is_some_and(|lower| sum.is_less_than(lower)) {
        lower
    } else if upper.is_some_and(|upper| upper.is_less_than(sum)) {
        upper
    } else {
        (!sum.is_possible()).then(|| sum.saturated())
    };
    let (new, added) = match bound {
        None => (sum, increment),
        Some(bound) if options.saturates => (bound, bound + -old),
        Some(_) => (old, N::ZERO),
    };
    if !new.is_possible() || !added.is_possible() {
        return Err(N::IMPOSSIBLE);
    }
    if bound.is_none() || options.saturates {
        let mut text = Vec::new();
        new.write(&mut text);
        let mut string = shard.string_or_create(key, N::EVENT)?;
        string.set(&text);
        if options.is_float {
            string.set_origin(StringOrigin::Computed);
        }
        drop(string);
        set_lifetime(shard, key, lifetime, options.only_without_deadline);
    }
    reply.array(2);
    new.reply(reply);
    added.reply(reply);
    Ok(())
}

fn set_lifetime(shard: &mut Shard, key: &Key<'_>, lifetime: Lifetime, only_without_deadline: bool) {
    let has_deadline = shard.peek(key).is_some_and(|entry| entry.has_deadline());
    if only_without_deadline && has_deadline {
        return;
    }
    match lifetime {
        Lifetime::Unset | Lifetime::Keep => {}
        Lifetime::Until(deadline) => {
            shard.set_deadline(key, Some(deadline), Event::Expire);
        }
        Lifetime::Over => {
            shard.remove(key, Event::Del);
        }
        Lifetime::Persist if has_deadline => {
            shard.set_deadline(key, None, Event::Persist);
        }
        Lifetime::Persist => {}
    }
}
