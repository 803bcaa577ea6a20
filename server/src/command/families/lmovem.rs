//! LMOVEM and BLMOVEM: several elements that move from one list to another.

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::{Kind, key::Key},
    observers::{record, waiters::Awaits},
    types::list::{ListEnd, ListRef, ListType},
};

use super::lists::{AbsentList, FROM_ONE_TO_ANOTHER, list_end, pop_event, push_event, push_texts};
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Outcome},
    client::waits::{Nothing, Wait},
    command::{
        Call, CommandSpec, Log, Look, Run, Work, arguments::collection_args::at_least, log_rewrite::decimal,
        work,
    },
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "lmovem",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        run: Run::Transaction(lmovem),
        syntax: "source destination <LEFT | RIGHT> <LEFT | RIGHT> [<COUNT count | EXACTLY exactly> <OBO | BULK>]",
        summary: "Moves elements from an end of a list to an end of another one, and gives them.",
        ..ROW
    },
    CommandSpec {
        name: "blmovem",
        arity: Arity::AtLeast(6),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::BLOCKING),
        run: Run::Transaction(blmovem),
        syntax: "source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout \
                 [<COUNT count | EXACTLY exactly> <OBO | BULK>]",
        summary: "Moves elements from an end of a list to an end of another one; waits for enough of them.",
        ..ROW
    },
];

const ROW: CommandSpec = CommandSpec {
    keys: FROM_ONE_TO_ANOTHER,
    log: Log::Given,
    work: Work::held(moved),
    since: "8.10.0",
    group: Group::List,
    complexity: "O(N) where N is the number of elements moved",
    ..CommandSpec::ROW
};

/// The arguments after the keys, without a timeout.
struct Moving {
    from: ListEnd,
    to: ListEnd,
    /// The most elements to move.
    n_max: usize,
    /// Whether fewer are not moved at all.
    is_exact: bool,
    /// Whether the elements arrive in the reverse order of the one in the source.
    is_reversed: bool,
}

impl Moving {
    /// Reads the number and the order of the elements.
    fn read(mut args: Args<'_>, from: ListEnd, to: ListEnd) -> Result<Self, CommandError> {
        let mut moving = Moving { from, to, n_max: 1, is_exact: false, is_reversed: false };
        if args.is_empty() {
            return Ok(moving);
        }
        moving.is_exact = args.tag("EXACTLY");
        if args.remaining() < 2 || !moving.is_exact && !args.tag("COUNT") {
            return Err(CommandError::Syntax);
        }
        moving.n_max = at_least(1, &mut args, "ERR count should be greater than 0")?;
        if args.tag("OBO") {
            // The first element that is taken from an end lies deepest at the same end of the other list.
            moving.is_reversed = from == to;
        } else if !args.tag("BULK") {
            return Err(CommandError::Syntax);
        }
        args.finish()?;
        Ok(moving)
    }

    /// The number of elements that a list of `len` elements gives, if it gives any.
    fn n_of(&self, len: usize) -> Option<usize> {
        let is_enough = len > 0 && !(self.is_exact && len < self.n_max);
        is_enough.then(|| self.n_max.min(len))
    }

    /// The state of the source for which a client waits.
    fn awaits(&self) -> Awaits {
        if self.is_exact { Awaits::Elements(self.n_max) } else { Awaits::Kind(Kind::List) }
    }
}

fn lmovem(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (source, destination) = (args.key()?, args.key()?);
    let (from, to) = (list_end(&mut args)?, list_end(&mut args)?);
    let moving = Moving::read(args, from, to)?;
    match move_elements(call, &source, &destination, &moving)? {
        Some(texts) => write(&texts, reply),
        None if moving.is_exact => reply.null_array(),
        None => reply.array(0),
    }
    Ok(())
}

fn blmovem(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (source, destination) = (args.key()?, args.key()?);
    let (from, to) = (list_end(&mut args)?, list_end(&mut args)?);
    let timeout = args.timeout(call.now)?;
    let moving = Moving::read(args, from, to)?;
    match move_elements(call, &source, &destination, &moving)? {
        Some(texts) => write(&texts, reply),
        None => {
            let awaited = call.waited_key(&source, moving.awaits());
            let wait = Wait::new(vec![awaited], timeout, Nothing::NullArray);
            call.wait_for(wait.with_destination(destination.bytes), reply);
        }
    }
    Ok(())
}

fn write(texts: &[Vec<u8>], reply: &mut Reply<'_>) {
    reply.array(texts.len());
    texts.iter().for_each(|text| reply.bulk(text));
}

/// Moves elements, and returns them in the order in which they lie at the destination.
///
/// Returns `None` if the source has too few.
fn move_elements(
    call: &mut Call<'_, '_>,
    source: &Key<'_>,
    destination: &Key<'_>,
    moving: &Moving,
) -> Result<Option<Vec<Vec<u8>>>, CommandError> {
    // As for LMOVE, the destination's type does not matter if nothing moves.
    let refused = call.shard_of(destination).value_mut::<ListType>(destination, push_event(moving.to)).err();
    let shard = call.shard_of(source);
    let Some(list) = shard.value::<ListType>(source)? else { return Ok(None) };
    let Some(n) = moving.n_of(list.len()) else { return Ok(None) };
    if let Some(error) = refused {
        return Err(error.into());
    }
    let texts = taken(list, moving, n);
    let is_logged = shard.is_logged();
    let is_rotated = source.bytes == destination.bytes;
    if is_rotated && moving.from == moving.to {
        write_back(call, source, moving, &texts, is_logged)?;
        return Ok(Some(texts));
    }
    let from_outside = |texts: &[Vec<u8>]| -> Vec<Vec<u8>> {
        // An element that is pushed at the left end lies before those pushed earlier.
        if moving.to == ListEnd::Left { texts.iter().rev().cloned().collect() } else { texts.to_vec() }
    };
    let pushed = from_outside(&texts);
    push_texts(
        call.shard_of(destination),
        destination,
        moving.to,
        AbsentList::Make,
        pushed.iter().map(Vec::as_slice),
    )?;
    // In a rotated list the elements are there twice for a moment.
    if let Some(mut list) = call.shard_of(source).value_mut::<ListType>(source, pop_event(moving.from))? {
        list.pop(moving.from, n, |_| {});
    }
    if is_logged {
        log_moved(call, source, destination, moving, &pushed);
    }
    Ok(Some(texts))
}

/// Returns `n` elements at an end of a list, in the order in which they arrive at the destination.
fn taken(list: ListRef<'_>, moving: &Moving, n: usize) -> Vec<Vec<u8>> {
    let first = if moving.from == ListEnd::Left { 0 } else { list.len() - n };
    let mut texts: Vec<Vec<u8>> = list.elements_from(first).take(n).map(|element| element.to_vec()).collect();
    if moving.is_reversed {
        texts.reverse();
    }
    texts
}

/// Puts elements back at the end of the list from which they were taken, in their new order.
fn write_back(
    call: &mut Call<'_, '_>,
    key: &Key<'_>,
    moving: &Moving,
    texts: &[Vec<u8>],
    is_logged: bool,
) -> Outcome {
    if !moving.is_reversed {
        return Ok(());
    }
    let db = call.session.db;
    let list = call.shard_of(key).value_mut::<ListType>(key, push_event(moving.to))?;
    let Some(mut list) = list else { return Ok(()) };
    let first = if moving.from == ListEnd::Left { 0 } else { -(texts.len() as i64) };
    for (index, text) in (first..).zip(texts) {
        list.set(index, text);
        if is_logged {
            let index = index.to_string();
            record::add(db, [b"LSET", key.bytes, index.as_bytes(), text]);
        }
    }
    list.follow_up(pop_event(moving.from));
    Ok(())
}

/// Records the pushes and the pops of which a move consists, or LMOVE for one element.
fn log_moved(
    call: &Call<'_, '_>,
    source: &Key<'_>,
    destination: &Key<'_>,
    moving: &Moving,
    pushed: &[Vec<u8>],
) {
    /// The most elements in a recorded command.
    const CHUNK: usize = 64;
    let db = call.session.db;
    let end =
        |end, left: &'static [u8], right: &'static [u8]| if end == ListEnd::Left { left } else { right };
    if let [_] = pushed {
        let (from, to) = (end(moving.from, b"LEFT", b"RIGHT"), end(moving.to, b"LEFT", b"RIGHT"));
        return record::add(db, [b"LMOVE", source.bytes, destination.bytes, from, to]);
    }
    for chunk in pushed.chunks(CHUNK) {
        let name = end(moving.to, b"LPUSH", b"RPUSH");
        record::add(db, [name, destination.bytes].into_iter().chain(chunk.iter().map(Vec::as_slice)));
    }
    let n = decimal(pushed.len() as u64);
    record::add(db, [end(moving.from, b"LPOP", b"RPOP"), source.bytes, &n]);
}

/// Estimates the move: the elements are copied and removed.
fn moved(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let (Ok(_), Ok(_), Ok(to)) = (args.next(), args.next(), list_end(&mut args)) else { return 0 };
    let options = if args.remaining().is_multiple_of(3) { args } else { args.skip(1) };
    let Ok(moving) = Moving::read(options, ListEnd::Left, to) else { return 0 };
    work::moved(look, &key, |len| moving.n_of(len).unwrap_or(0))
}
