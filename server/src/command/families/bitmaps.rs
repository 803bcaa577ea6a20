//! Commands on the bits of strings.

use std::ops::Range;

use braid_protocol::{number, reply::Reply};
use braid_storage::{
    entry::Pinned,
    error::StorageError,
    keyspace::shard::Shard,
    observers::event::Event,
    types::{
        bits::{self, BitOperation, IntType, Overflow},
        string::{STRING_MAX_BYTES, StringOrigin},
    },
};
use smallvec::SmallVec;

use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome},
    command::{
        Call, CommandSpec, Log, Look, Run, Work, arguments::each_key::for_each_key, log_rewrite, work,
    },
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "setbit",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys::UPDATE_AND_READ,
        run: Run::Shard(setbit),
        work: Work::held(written_bit),
        since: "2.2.0",
        group: Group::Bitmap,
        syntax: "key offset value",
        summary: "Sets or clears a bit of a string, which grows where it must, and gives what the bit was.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "getbit",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(getbit),
        since: "2.2.0",
        group: Group::Bitmap,
        syntax: "key offset",
        summary: "Returns a bit of a string; bits behind its end are 0.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bitcount",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(bitcount),
        work: Work::pinned(work::bits),
        since: "2.6.0",
        group: Group::Bitmap,
        syntax: "key [start end [BYTE | BIT]]",
        summary: "Counts the bits that are set in a string or a part of it.",
        complexity: "O(N) where N is the length of the part",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bitpos",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(bitpos),
        work: Work::pinned(work::bits),
        since: "2.8.7",
        group: Group::Bitmap,
        syntax: "key bit [start [end [BYTE | BIT]]]",
        summary: "Finds the first bit that is set, or clear, in a string or a part of it.",
        complexity: "O(N) where N is the length of the part",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bitop",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: DESTINATION_AND_SOURCES,
        log: Log::As(log_rewrite::combined_strings),
        run: Run::Transaction(bitop),
        work: Work::pinned(work::combined_strings),
        since: "2.6.0",
        group: Group::Bitmap,
        syntax: "<AND | OR | XOR | NOT | DIFF | DIFF1 | ANDOR | ONE> destkey key [key ...]",
        summary: "Combines strings bit by bit and stores the result.",
        complexity: "O(N) where N is the length of all strings together",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bitfield",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: Keys::UPDATE_OR_READ,
        run: Run::Shard(bitfield),
        work: Work::held(written_fields),
        since: "3.2.0",
        group: Group::Bitmap,
        syntax: "key [<GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] <SET encoding offset value | \
                 INCRBY encoding offset increment>> ...]",
        summary: "Reads and changes integers of any width that lie anywhere in a string.",
        complexity: "O(1) for each integer",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bitfield_ro",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(bitfield_ro),
        since: "6.0.0",
        group: Group::Bitmap,
        syntax: "key [GET encoding offset [GET encoding offset ...]]",
        summary: "Reads integers of any width that lie anywhere in a string.",
        complexity: "O(1) for each integer",
        ..CommandSpec::ROW
    },
];

const DESTINATION_AND_SOURCES: Keys = Keys(&[
    KeySpec { at: KeysAt::Range { first: 2, last: 2, step: 1 }, used: KeyUse::Overwrite },
    KeySpec { at: KeysAt::Range { first: 3, last: -1, step: 1 }, used: KeyUse::Read },
]);

const BAD_OFFSET: CommandError = CommandError::text("ERR bit offset is not an integer or out of range");

fn setbit(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let at = offset(args.next()?)?;
    let on = match number::parse_i64(args.next()?) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(CommandError::text("ERR bit is not an integer or out of range")),
    };
    let mut string = shard.string_or_create(&key, Event::SetBit)?;
    let was_on = bits::get(string.bytes(), at);
    let byte = (at / 8) as usize;
    if was_on != on || byte >= string.bytes().len() {
        let changed = bits::byte_with(string.bytes(), at, on);
        string.write_at(byte, &[changed]);
    }
    // Also if the bit has not changed.
    string.set_origin(StringOrigin::Edited);
    reply.integer(was_on.into());
    Ok(())
}

fn written_bit(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let (Ok(key), Ok(at)) = (args.key(), args.next()) else { return 0 };
    offset(at).map_or(0, |at| work::lengthened(look, &key, |_| (at / 8) as usize + 1))
}

fn getbit(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let at = offset(args.next()?)?;
    let bytes = shard.string(&key)?.unwrap_or_default();
    reply.integer(bits::get(bytes, at).into());
    Ok(())
}

/// Reads the number of a bit within the longest string.
fn offset(text: &[u8]) -> Result<u64, CommandError> {
    checked_offset(number::parse_i64(text))
}

fn checked_offset(offset: Option<i64>) -> Result<u64, CommandError> {
    let offset = offset.and_then(|offset| u64::try_from(offset).ok());
    offset.filter(|offset| offset / 8 < STRING_MAX_BYTES as u64).ok_or(BAD_OFFSET)
}

/// The unit of positions.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Counted {
    #[default]
    Bytes,
    Bits,
}

impl Counted {
    fn read(args: &mut Args<'_>) -> Result<Self, CommandError> {
        match (args.tag("BIT"), args.tag("BYTE")) {
            (true, _) => Ok(Counted::Bits),
            (_, true) => Ok(Counted::Bytes),
            _ => Err(CommandError::Syntax),
        }
    }
}

/// Returns the bits from `start` to `end`, inclusive, of a string. Negative positions count from its end.
fn part(len_bytes: usize, start: i64, end: i64, counted: Counted) -> Range<u64> {
    let bits_each = if counted == Counted::Bits { 1 } else { 8 };
    let len = len_bytes as i64 * 8 / bits_each;
    let from_beginning = |at: i64| if at < 0 { (len + at).max(0) } else { at };
    let (start, behind) = (from_beginning(start), from_beginning(end).min(len - 1) + 1);
    if start < behind { (start * bits_each) as u64..(behind * bits_each) as u64 } else { 0..0 }
}

fn bitcount(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let wanted = match args.remaining() {
        0 => None,
        2 | 3 => {
            let (start, end) = (args.int()?, args.int()?);
            let counted = if args.is_empty() { Counted::default() } else { Counted::read(&mut args)? };
            Some((start, end, counted))
        }
        _ => return Err(CommandError::Syntax),
    };
    args.finish()?;
    let bytes = shard.string(&key)?.unwrap_or_default();
    let n_set = match wanted {
        None => bits::count(bytes),
        // Otherwise both could mean the first byte, whose bits would be counted.
        Some((start, end, _)) if start < 0 && end < 0 && start > end => 0,
        Some((start, end, counted)) => bits::count_in(bytes, part(bytes.len(), start, end, counted)),
    };
    reply.integer(n_set as i64);
    Ok(())
}

fn bitpos(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let on = match args.int()? {
        0 => false,
        1 => true,
        _ => return Err(CommandError::text("ERR The bit argument must be 1 or 0.")),
    };
    if args.remaining() > 3 {
        return Err(CommandError::Syntax);
    }
    let start = if args.is_empty() { 0 } else { args.int()? };
    let (mut end, mut counted) = (None, Counted::default());
    if let Some(text) = args.peek() {
        args.next()?;
        // As in Redis, the unit is read before the end.
        counted = if args.is_empty() { counted } else { Counted::read(&mut args)? };
        end = Some(number::parse_i64(text).ok_or(CommandError::NotInteger)?);
    }
    let position = match shard.string(&key)? {
        // A missing key consists of endless zeros.
        None => (!on).then_some(0),
        Some(bytes) => {
            let wanted = part(bytes.len(), start, end.unwrap_or(-1), counted);
            // Zeros also follow a string, unless the command names an end; but a range may be empty.
            let behind = (!on && end.is_none() && !wanted.is_empty()).then_some(bytes.len() as u64 * 8);
            bits::find(bytes, on, wanted).or(behind)
        }
    };
    reply.integer(position.map_or(-1, |position| position as i64));
    Ok(())
}

const OPERATIONS: [(&str, BitOperation); 8] = [
    ("AND", BitOperation::And),
    ("OR", BitOperation::Or),
    ("XOR", BitOperation::Xor),
    ("NOT", BitOperation::Not),
    ("DIFF", BitOperation::Diff),
    ("DIFF1", BitOperation::Diff1),
    ("ANDOR", BitOperation::AndOr),
    ("ONE", BitOperation::One),
];

fn bitop(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let word = args.next()?;
    let known = OPERATIONS.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
    let &(name, operation) = known.ok_or(CommandError::Syntax)?;
    let keys = args.rest();
    check_sources(name, operation, keys.len() - 1)?;
    let mut sources: Vec<Result<Option<Pinned>, StorageError>> = Vec::new();
    for_each_key(call, keys.enumerate().map(|(nth, key)| (key, nth)), |shard, key, nth| {
        // The first key is the destination, which is not read.
        if nth > 0 {
            sources.push(shard.pinned_string(key));
        }
    });
    let sources = sources.into_iter().collect::<Result<Vec<_>, _>>()?;
    let combined = combine(operation, &sources);
    // A pinned value could neither be overwritten in place nor freed later.
    drop(sources);
    let destination = args.key()?;
    let shard = call.shard_of(&destination);
    reply.integer(combined.len() as i64);
    if combined.is_empty() {
        shard.remove(&destination, Event::Del);
    } else {
        shard.put_pinned_string(&destination, combined, Event::Set);
    }
    Ok(())
}

fn check_sources(name: &str, operation: BitOperation, n_sources: usize) -> Outcome {
    match operation {
        BitOperation::Not if n_sources > 1 => {
            Err(CommandError::text("ERR BITOP NOT must be called with a single source key."))
        }
        BitOperation::Diff | BitOperation::Diff1 | BitOperation::AndOr if n_sources < 2 => Err(
            CommandError::owned(format!("ERR BITOP {name} must be called with at least two source keys.")),
        ),
        _ => Ok(()),
    }
}

fn combine(operation: BitOperation, sources: &[Option<Pinned>]) -> Pinned {
    let sources: Vec<&[u8]> = sources.iter().map(|source| source.as_deref().unwrap_or_default()).collect();
    let mut combined = Pinned::with_capacity(bits::longest(&sources));
    bits::combine(operation, &sources, |piece| combined.extend_from_slice(piece));
    combined
}

/// An operation of BITFIELD on one integer.
struct BitfieldOperation {
    int: IntType,
    /// The number of its first bit.
    at: u64,
    action: Action,
    overflow: Overflow,
}

#[derive(Clone, Copy)]
enum Action {
    Get,
    Set(i64),
    Increment(i64),
}

impl BitfieldOperation {
    /// Returns the length of a string that ends with the integer's last byte.
    fn end_bytes(&self) -> usize {
        (self.at + self.int.n_bits()).div_ceil(8) as usize
    }

    fn is_write(&self) -> bool {
        !matches!(self.action, Action::Get)
    }
}

type Fields = SmallVec<[BitfieldOperation; 4]>;

/// Reads BITFIELD's operations.
fn fields(mut args: Args<'_>) -> Result<Fields, CommandError> {
    let mut fields = Fields::new();
    let mut overflow = Overflow::default();
    while !args.is_empty() {
        if args.tag("OVERFLOW") {
            overflow = overflow_type(args.next()?)?;
            continue;
        }
        let (is_get, is_set) = (args.tag("GET"), args.tag("SET"));
        let known = is_get || is_set || args.tag("INCRBY");
        if !known || args.remaining() < 3 - usize::from(is_get) {
            return Err(CommandError::Syntax);
        }
        let int = int_type(args.next()?)?;
        let at = field_offset(args.next()?, int)?;
        let action = match (is_get, is_set) {
            (true, _) => Action::Get,
            (_, true) => Action::Set(args.int()?),
            _ => Action::Increment(args.int()?),
        };
        fields.push(BitfieldOperation { int, at, action, overflow });
    }
    Ok(fields)
}

fn overflow_type(word: &[u8]) -> Result<Overflow, CommandError> {
    let words = [("WRAP", Overflow::Wrap), ("SAT", Overflow::Saturate), ("FAIL", Overflow::Fail)];
    let known = words.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
    known.map(|&(_, overflow)| overflow).ok_or(CommandError::text("ERR Invalid OVERFLOW type specified"))
}

/// Reads a type such as `i16` or `u8`, in lower case only.
fn int_type(text: &[u8]) -> Result<IntType, CommandError> {
    let known = text.split_first().and_then(|(kind, n_bits)| {
        let n_bits = u32::try_from(number::parse_i64(n_bits)?).ok()?;
        match kind {
            b'i' => IntType::signed(n_bits),
            b'u' => IntType::unsigned(n_bits),
            _ => None,
        }
    });
    known.ok_or(CommandError::text(
        "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
    ))
}

/// Reads the number of a bit, or of an integer after a `#`.
///
/// The integers have the type `int`.
fn field_offset(text: &[u8], int: IntType) -> Result<u64, CommandError> {
    match text.strip_prefix(b"#") {
        Some(nth) => checked_offset(number::parse_i64(nth).and_then(|n| n.checked_mul(int.n_bits() as i64))),
        None => offset(text),
    }
}

fn bitfield(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let fields = fields(args)?;
    let writes = fields.iter().filter(|field| field.is_write());
    let Some(len) = writes.map(BitfieldOperation::end_bytes).max() else {
        write_fields(&fields, shard.string(&key)?.unwrap_or_default(), reply);
        return Ok(());
    };
    let mut string = shard.string_or_create(&key, Event::Lengthened)?;
    // The string grows even if every integer overflows and is refused. Growth is a change.
    if string.bytes().len() < len {
        string.write_at(len, &[]);
    }
    reply.array(fields.len());
    for &BitfieldOperation { int, at, action, overflow } in &fields {
        let old = int.get(string.bytes(), at);
        let wanted = match action {
            Action::Get => old.into(),
            Action::Set(value) => int.given(value),
            Action::Increment(by) => i128::from(old) + i128::from(by),
        };
        let Some(new) = int.fit(wanted, overflow) else {
            reply.null();
            continue;
        };
        if !matches!(action, Action::Get) {
            string.set_event(Event::SetBit);
        }
        if new != old {
            string.edit(|bytes| int.set(bytes, at, new));
        }
        reply.integer(if matches!(action, Action::Set(_)) { old } else { new });
    }
    // Also if no integer has changed.
    string.set_origin(StringOrigin::Edited);
    Ok(())
}

fn written_fields(look: &mut Look<'_, '_>, mut args: Args<'_>) -> usize {
    let Ok(key) = args.key() else { return 0 };
    let fields = fields(args).unwrap_or_default();
    let end = fields.iter().filter(|field| field.is_write()).map(BitfieldOperation::end_bytes).max();
    end.map_or(0, |end| work::lengthened(look, &key, |_| end))
}

fn bitfield_ro(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let fields = fields(args)?;
    if fields.iter().any(BitfieldOperation::is_write) {
        return Err(CommandError::text("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    write_fields(&fields, shard.string(&key)?.unwrap_or_default(), reply);
    Ok(())
}

/// Replies with integers without changing them.
fn write_fields(fields: &Fields, bytes: &[u8], reply: &mut Reply<'_>) {
    reply.array(fields.len());
    for field in fields {
        reply.integer(field.int.get(bytes, field.at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_redis() {
        for (start, end, counted, expected) in [
            (0, -1, Counted::Bytes, 0..24),
            (0, -1, Counted::Bits, 0..24),
            (1, 1, Counted::Bytes, 8..16),
            (-2, -1, Counted::Bytes, 8..24),
            (-9, -1, Counted::Bits, 15..24),
            (3, 9, Counted::Bits, 3..10),
            (2, 1, Counted::Bytes, 0..0),
            (3, 9, Counted::Bytes, 0..0),
            (-100, -50, Counted::Bytes, 0..8),
            (i64::MIN, i64::MAX, Counted::Bits, 0..24),
            (i64::MAX, i64::MIN, Counted::Bytes, 0..0),
        ] {
            assert_eq!(part(3, start, end, counted), expected, "{start} {end}");
        }
        assert_eq!(part(0, 0, -1, Counted::Bytes), 0..0);
    }

    #[test]
    fn offsets_of_integers_do_not_overflow() {
        let byte = int_type(b"u8").unwrap();
        assert_eq!(field_offset(b"#3", byte), Ok(24));
        assert_eq!(field_offset(b"#536870911", byte), Ok(4294967288));
        for text in [&b"#536870912"[..], b"#9223372036854775807", b"#-1", b"#", b"-1", b"##1", b"4294967296"]
        {
            assert_eq!(field_offset(text, byte), Err(BAD_OFFSET));
        }
    }
}
