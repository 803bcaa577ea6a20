//! Arguments for the expiry of a key: `EX 10`, `PXAT 1700000000000`, `KEEPTTL`, `EXPIRE key 10`.

use braid_protocol::number;
use braid_storage::{
    entry::{
        key::Key,
        time::{Deadline, Expiry, Millis},
    },
    keyspace::shard::Shard,
    observers::event::Event,
};

use crate::catalog::{Args, CommandError};

/// The unit of a time in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) enum TimeUnit {
    Seconds,
    Millis,
}

/// The origin of a time in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) enum CountedFrom {
    /// The command's own time.
    Now,
    /// The Unix epoch.
    Epoch,
}

/// Returns the absolute time, in milliseconds since the Unix epoch, that a command's number means.
///
/// It may be before the epoch. It is `None` if it does not fit an `i64`, which Redis refuses as an invalid
/// expire time.
pub(in crate::command) fn absolute_millis(
    value: i64,
    unit: TimeUnit,
    from: CountedFrom,
    now: Millis,
) -> Option<i64> {
    let millis = match unit {
        TimeUnit::Seconds => value.checked_mul(1000)?,
        TimeUnit::Millis => value,
    };
    match from {
        CountedFrom::Now => millis.checked_add(now.0 as i64),
        CountedFrom::Epoch => Some(millis),
    }
}

/// Returns the deadline at a time, unless that has passed.
///
/// A key whose deadline has passed is deleted instead.
pub(in crate::command) fn future_deadline(millis: i64, now: Millis) -> Option<Deadline> {
    (millis > now.0 as i64).then(|| Deadline::at(millis as u64))
}

/// An expiry option of SET, GETEX or MSETEX.
///
/// The options exclude each other. If one is repeated, the last one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::command) enum ExpiryOption<'a> {
    /// No option.
    #[default]
    Unset,
    /// The option KEEPTTL.
    Keep,
    /// The option PERSIST.
    Persist,
    /// EX, PX, EXAT or PXAT, with a number that is not parsed yet.
    Time { unit: TimeUnit, from: CountedFrom, text: &'a [u8] },
}

/// The options that a time follows.
const TIMES: [(&str, TimeUnit, CountedFrom); 4] = [
    ("EX", TimeUnit::Seconds, CountedFrom::Now),
    ("PX", TimeUnit::Millis, CountedFrom::Now),
    ("EXAT", TimeUnit::Seconds, CountedFrom::Epoch),
    ("PXAT", TimeUnit::Millis, CountedFrom::Epoch),
];

/// Takes EX, PX, EXAT or PXAT, and returns the meaning of the next number.
pub(in crate::command) fn take_time_tag(args: &mut Args<'_>) -> Option<(TimeUnit, CountedFrom)> {
    TIMES.iter().find(|(tag, ..)| args.tag(tag)).map(|&(_, unit, from)| (unit, from))
}

impl<'a> ExpiryOption<'a> {
    /// Takes the next arguments if they are EX, PX, EXAT or PXAT and a time.
    pub(in crate::command) fn take_time(&mut self, args: &mut Args<'a>) -> Result<bool, CommandError> {
        let Some((unit, from)) = take_time_tag(args) else { return Ok(false) };
        let same = match *self {
            ExpiryOption::Unset => true,
            ExpiryOption::Time { unit: old_unit, from: old_from, .. } => (old_unit, old_from) == (unit, from),
            ExpiryOption::Keep | ExpiryOption::Persist => false,
        };
        if !same {
            return Err(CommandError::Syntax);
        }
        *self = ExpiryOption::Time { unit, from, text: args.next()? };
        Ok(true)
    }

    /// Takes the next argument if it is KEEPTTL.
    pub(in crate::command) fn take_keep(&mut self, args: &mut Args<'a>) -> Result<bool, CommandError> {
        self.take_word(args, "KEEPTTL", ExpiryOption::Keep)
    }

    /// Takes the next argument if it is PERSIST.
    pub(in crate::command) fn take_persist(&mut self, args: &mut Args<'a>) -> Result<bool, CommandError> {
        self.take_word(args, "PERSIST", ExpiryOption::Persist)
    }

    fn take_word(&mut self, args: &mut Args<'a>, tag: &str, word: Self) -> Result<bool, CommandError> {
        if !args.tag(tag) {
            return Ok(false);
        }
        if *self != ExpiryOption::Unset && *self != word {
            return Err(CommandError::Syntax);
        }
        *self = word;
        Ok(true)
    }

    /// Parses the time, if there is one, for the named command.
    pub(in crate::command) fn lifetime(
        self,
        now: Millis,
        command: &'static str,
    ) -> Result<Lifetime, CommandError> {
        let (unit, from, text) = match self {
            ExpiryOption::Unset => return Ok(Lifetime::Unset),
            ExpiryOption::Keep => return Ok(Lifetime::Keep),
            ExpiryOption::Persist => return Ok(Lifetime::Persist),
            ExpiryOption::Time { unit, from, text } => (unit, from, text),
        };
        let value = number::parse_i64(text).ok_or(CommandError::NotInteger)?;
        let millis = (value > 0).then(|| absolute_millis(value, unit, from, now)).flatten();
        let millis = millis.ok_or(CommandError::InvalidExpire(command))?;
        Ok(future_deadline(millis, now).map_or(Lifetime::Over, Lifetime::Until))
    }
}

/// The lifetime of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) enum Lifetime {
    /// Not given.
    Unset,
    /// Unchanged.
    Keep,
    /// Unlimited.
    Persist,
    /// Until this deadline.
    Until(Deadline),
    /// Already over.
    Over,
}

impl Lifetime {
    /// Sets a key to a string with this lifetime.
    ///
    /// If the lifetime is over it deletes the key.
    pub(in crate::command) fn put_string(self, shard: &mut Shard, key: &Key<'_>, value: &[u8]) {
        let expiry = match self {
            Lifetime::Unset | Lifetime::Persist => Expiry::Clear,
            Lifetime::Keep => Expiry::Keep,
            Lifetime::Until(deadline) => Expiry::At(deadline),
            Lifetime::Over => {
                shard.remove(key, Event::Del);
                return;
            }
        };
        shard.put_string(key, value, expiry, Event::Set);
        if let Expiry::At(_) = expiry {
            shard.follow_up(key, Event::Expire);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_700_000_000_000);

    #[test]
    fn times_count_from_the_command_or_the_epoch() {
        assert_eq!(absolute_millis(10, TimeUnit::Seconds, CountedFrom::Now, NOW), Some(1_700_000_010_000));
        assert_eq!(absolute_millis(10, TimeUnit::Millis, CountedFrom::Now, NOW), Some(1_700_000_000_010));
        assert_eq!(absolute_millis(10, TimeUnit::Seconds, CountedFrom::Epoch, NOW), Some(10_000));
        assert_eq!(absolute_millis(10, TimeUnit::Millis, CountedFrom::Epoch, NOW), Some(10));
        assert_eq!(absolute_millis(-10, TimeUnit::Seconds, CountedFrom::Epoch, NOW), Some(-10_000));
    }

    #[test]
    fn times_that_do_not_fit_are_refused() {
        let limit = i64::MAX / 1000;
        assert_eq!(absolute_millis(limit, TimeUnit::Seconds, CountedFrom::Epoch, NOW), Some(limit * 1000));
        assert_eq!(absolute_millis(limit + 1, TimeUnit::Seconds, CountedFrom::Epoch, NOW), None);
        assert_eq!(absolute_millis(limit, TimeUnit::Seconds, CountedFrom::Now, NOW), None);
        assert_eq!(absolute_millis(i64::MIN, TimeUnit::Seconds, CountedFrom::Now, NOW), None);
        assert_eq!(
            absolute_millis(i64::MIN, TimeUnit::Millis, CountedFrom::Now, NOW),
            Some(i64::MIN + NOW.0 as i64)
        );
        let room = i64::MAX - NOW.0 as i64;
        assert_eq!(absolute_millis(room, TimeUnit::Millis, CountedFrom::Now, NOW), Some(i64::MAX));
        assert_eq!(absolute_millis(room + 1, TimeUnit::Millis, CountedFrom::Now, NOW), None);
    }

    #[test]
    fn a_time_that_has_come_is_no_deadline() {
        assert_eq!(future_deadline(-1, NOW), None);
        assert_eq!(future_deadline(NOW.0 as i64, NOW), None);
        assert_eq!(future_deadline(NOW.0 as i64 + 1, NOW), Some(Deadline::at(NOW.0 + 1)));
    }

    fn lifetime(unit: TimeUnit, from: CountedFrom, text: &str) -> Result<Lifetime, CommandError> {
        ExpiryOption::Time { unit, from, text: text.as_bytes() }.lifetime(NOW, "set")
    }

    #[test]
    fn the_time_of_an_option_is_a_positive_integer() {
        let until = |millis| Ok(Lifetime::Until(Deadline::at(millis)));
        let invalid = Err(CommandError::InvalidExpire("set"));
        assert_eq!(lifetime(TimeUnit::Seconds, CountedFrom::Now, "1"), until(NOW.0 + 1000));
        assert_eq!(
            lifetime(TimeUnit::Millis, CountedFrom::Epoch, "9223372036854775807"),
            until(i64::MAX as u64)
        );
        assert_eq!(lifetime(TimeUnit::Millis, CountedFrom::Epoch, "1"), Ok(Lifetime::Over));
        assert_eq!(lifetime(TimeUnit::Millis, CountedFrom::Epoch, "0"), invalid);
        assert_eq!(lifetime(TimeUnit::Millis, CountedFrom::Epoch, "-1"), invalid);
        assert_eq!(lifetime(TimeUnit::Seconds, CountedFrom::Now, "9223372036854775"), invalid);
        assert_eq!(lifetime(TimeUnit::Seconds, CountedFrom::Now, "ten"), Err(CommandError::NotInteger));
    }
}
