//! Pops from the first of several keys that has a value, and the wait for one: LMPOP, BLPOP, ZMPOP, BZPOPMIN
//! and the like.

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::{Kind, key::Key},
    error::StorageError,
    keyspace::shard::Shard,
};

use crate::{
    catalog::{Args, CommandError, Outcome},
    command::{Call, arguments::collection_args::at_least, log_rewrite},
};

/// An end from which a type's values are popped.
pub(super) trait PopEnd: Copy {
    /// The type.
    const KIND: Kind;

    /// Takes the word of an end.
    fn read(args: &mut Args<'_>) -> Result<Self, CommandError>;

    /// Returns the name of the command that pops from this end without waiting.
    fn command_name(self) -> &'static [u8];

    /// Removes one element, and writes its key with it. Returns whether the key has a value.
    fn pop_one(self, shard: &mut Shard, key: &Key<'_>, reply: &mut Reply<'_>) -> Result<bool, StorageError>;

    /// Removes up to `count` elements, and writes their key with them. Returns whether the key has a value.
    fn pop(
        self,
        shard: &mut Shard,
        key: &Key<'_>,
        count: usize,
        reply: &mut Reply<'_>,
    ) -> Result<bool, StorageError>;
}

/// Runs LMPOP or ZMPOP.
pub(super) fn pop_first<E: PopEnd>(
    call: &mut Call<'_, '_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    if !MultiplePop::<E>::read(args)?.run(call, reply)? {
        reply.null_array();
    }
    Ok(())
}

/// Runs BLMPOP or BZMPOP.
pub(super) fn pop_first_or_wait<E: PopEnd>(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let mut first = args;
    args.next()?;
    let pop = MultiplePop::<E>::read(args)?;
    // As in Redis, the timeout is checked last.
    let timeout = first.timeout(call.now)?;
    if pop.run(call, reply)? {
        return Ok(());
    }
    call.wait_for_kind(E::KIND, pop.keys, pop.n_keys, timeout, reply)
}

/// Runs BLPOP or a command like it.
pub(super) fn pop_one_or_wait<E: PopEnd>(
    call: &mut Call<'_, '_>,
    args: Args<'_>,
    end: E,
    reply: &mut Reply<'_>,
) -> Outcome {
    call.pop_or_wait(E::KIND, args, reply, |shard, key, reply| {
        let has_popped = end.pop_one(shard, key, reply)?;
        if has_popped {
            shard.log(&[end.command_name(), key.bytes]);
        }
        Ok(has_popped)
    })
}

/// The arguments of LMPOP or ZMPOP.
struct MultiplePop<'a, E> {
    /// The arguments from the first key onwards.
    keys: Args<'a>,
    n_keys: usize,
    end: E,
    count: usize,
}

impl<'a, E: PopEnd> MultiplePop<'a, E> {
    fn read(mut args: Args<'a>) -> Result<Self, CommandError> {
        let n_keys = at_least(1, &mut args, "ERR numkeys should be greater than 0")?;
        let keys = args;
        if args.remaining() <= n_keys {
            return Err(CommandError::Syntax);
        }
        for _ in 0..n_keys {
            args.next()?;
        }
        let end = E::read(&mut args)?;
        let count =
            if args.tag("COUNT") { at_least(1, &mut args, "ERR count should be greater than 0")? } else { 1 };
        args.finish()?;
        Ok(Self { keys, n_keys, end, count })
    }

    /// Removes elements of the first key that has a value. Returns whether there is such a key.
    fn run(&self, call: &mut Call<'_, '_>, reply: &mut Reply<'_>) -> Result<bool, CommandError> {
        let mut keys = self.keys;
        for _ in 0..self.n_keys {
            let key = keys.key()?;
            let Some(shard) = call.shard_if_held(&key) else { continue };
            if !self.end.pop(shard, &key, self.count, reply)? {
                continue;
            }
            if shard.is_logged() {
                let count = log_rewrite::decimal(self.count as u64);
                shard.log(&[self.end.command_name(), key.bytes, &count]);
            }
            return Ok(true);
        }
        Ok(false)
    }
}
