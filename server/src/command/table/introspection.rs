//! COMMAND: reports on the command table for clients.

use braid_protocol::reply::Reply;
use braid_storage::glob::{Case, glob_match};

use super::{
    documented::documented,
    syntax::{Argument, ArgumentKind, arguments},
};
use crate::{
    catalog::{Args, Arity, Categories, CommandError, Flags, Group, KeySpec, Keys, KeysAt, Outcome, Words},
    command::{Call, CommandSpec, CommandTable, Found, Registered, Run, help::help},
};

const ROW: CommandSpec = CommandSpec {
    flags: Flags::LOADING.and(Flags::STALE),
    group: Group::Server,
    categories: Some(Categories::CONNECTION),
    ..CommandSpec::ROW
};
const IN_NO_ORDER: &[&str] = &["nondeterministic_output_order"];

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "command",
    arity: Arity::AtLeast(1),
    run: Run::Session(list_all),
    since: "2.8.13",
    summary: "Returns detailed information about all commands.",
    complexity: "O(N) where N is the total number of commands",
    tips: IN_NO_ORDER,
    subcommands: SUBCOMMANDS,
    ..ROW
}];

const SUBCOMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "count",
        arity: Arity::Exactly(2),
        run: Run::Session(count),
        since: "2.8.13",
        summary: "Returns a count of commands.",
        ..ROW
    },
    CommandSpec {
        name: "docs",
        arity: Arity::AtLeast(2),
        run: Run::Session(docs),
        since: "7.0.0",
        syntax: "[command-name [command-name ...]]",
        summary: "Returns documentary information about one, multiple or all commands.",
        complexity: "O(N) where N is the number of commands to look up",
        tips: IN_NO_ORDER,
        ..ROW
    },
    CommandSpec {
        name: "getkeys",
        arity: Arity::AtLeast(3),
        run: Run::Session(get_keys),
        since: "2.8.13",
        syntax: "command [arg [arg ...]]",
        summary: "Extracts the key names from an arbitrary command.",
        complexity: "O(N) where N is the number of arguments to the command",
        ..ROW
    },
    CommandSpec {
        name: "getkeysandflags",
        arity: Arity::AtLeast(3),
        run: Run::Session(get_keys_and_flags),
        since: "7.0.0",
        syntax: "command [arg [arg ...]]",
        summary: "Extracts the key names and access flags for an arbitrary command.",
        complexity: "O(N) where N is the number of arguments to the command",
        ..ROW
    },
    CommandSpec {
        run: Run::Session(print_help),
        since: "5.0.0",
        group: Group::Server,
        categories: Some(Categories::CONNECTION),
        ..CommandSpec::HELP
    },
    CommandSpec {
        name: "info",
        arity: Arity::AtLeast(2),
        run: Run::Session(info),
        since: "2.8.13",
        syntax: "[command-name [command-name ...]]",
        summary: "Returns information about one, multiple or all commands.",
        complexity: "O(N) where N is the number of commands to look up",
        tips: IN_NO_ORDER,
        ..ROW
    },
    CommandSpec {
        name: "list",
        arity: Arity::AtLeast(2),
        run: Run::Session(list),
        since: "7.0.0",
        syntax: "[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]",
        summary: "Returns a list of command names.",
        complexity: "O(N) where N is the total number of commands",
        tips: IN_NO_ORDER,
        ..ROW
    },
];

const HELP: &[&str] = &[
    "(no subcommand)",
    "    Return details about all commands.",
    "COUNT",
    "    Return how many commands there are.",
    "DOCS [<command-name> ...]",
    "    Return the documentation of the named commands, or of all.",
    "GETKEYS <full-command>",
    "    Return the keys of a full command.",
    "GETKEYSANDFLAGS <full-command>",
    "    Return the keys of a full command, and what it does to each.",
    "INFO [<command-name> ...]",
    "    Return details about the named commands, or about all.",
    "LIST [FILTERBY (MODULE <name>|ACLCAT <category>|PATTERN <glob>)]",
    "    Return the names of all commands, or of those that fit.",
];

fn print_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "COMMAND", HELP)
}

fn list_all(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    describe_all(call.table, reply);
    Ok(())
}

fn describe_all(table: &CommandTable, reply: &mut Reply<'_>) {
    reply.array(table.top().len());
    for command in table.top() {
        describe(reply, command);
    }
}

fn count(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.integer(call.table.top().len() as i64);
    Ok(())
}

fn list(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let fits: Fits<'_> = if args.is_empty() {
        Box::new(|_| true)
    } else if args.tag("FILTERBY") {
        filter(args)?
    } else {
        return Err(CommandError::Syntax);
    };
    let names: Vec<&str> = call
        .table
        .all()
        .iter()
        .filter(|command| !command.is_hidden && fits(command))
        .map(|command| command.full_name)
        .collect();
    reply.array(names.len());
    for name in names {
        reply.bulk(name.as_bytes());
    }
    Ok(())
}

/// A filter of COMMAND LIST.
type Fits<'a> = Box<dyn Fn(&Registered) -> bool + 'a>;

/// Reads the filter of COMMAND LIST.
fn filter(mut args: Args<'_>) -> Result<Fits<'_>, CommandError> {
    if args.remaining() != 2 {
        return Err(CommandError::Syntax);
    }
    if args.tag("MODULE") {
        // No command comes from a module.
        return Ok(Box::new(|_| false));
    }
    if args.tag("ACLCAT") {
        let category = Categories::named(args.next()?);
        return Ok(Box::new(move |command| {
            category.is_some_and(|category| Categories::of(command).has(category))
        }));
    }
    if args.tag("PATTERN") {
        let pattern = args.next()?;
        return Ok(Box::new(move |command| {
            glob_match(pattern, command.full_name.as_bytes(), Case::Insensitive)
        }));
    }
    Err(CommandError::Syntax)
}

/// Finds a command, or `container|subcommand`, in either case.
pub(in crate::command) fn named(table: &CommandTable, name: &[u8]) -> Option<&'static Registered> {
    let mut parts = name.splitn(2, |&byte| byte == b'|');
    let command = table.command(parts.next()?)?;
    match parts.next() {
        None => Some(command),
        Some(sub) => command.subcommands().find(|known| known.spec.name.as_bytes().eq_ignore_ascii_case(sub)),
    }
}

fn info(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.is_empty() {
        describe_all(call.table, reply);
        return Ok(());
    }
    reply.array(args.remaining());
    for name in args.rest() {
        match named(call.table, name) {
            Some(command) => describe(reply, command),
            None => reply.null(),
        }
    }
    Ok(())
}

/// Writes the ten fields of COMMAND INFO.
fn describe(reply: &mut Reply<'_>, command: &Registered) {
    let spec = command.spec;
    let (first, last, step) = legacy_range(spec.keys.told());
    reply.array(10);
    reply.bulk(command.full_name.as_bytes());
    reply.integer(spec.arity.as_integer());
    simple_set(reply, &flag_words(command));
    reply.integer(first);
    reply.integer(last);
    reply.integer(step);
    let categories: Vec<String> = Categories::of(command).names().map(|name| format!("@{name}")).collect();
    reply.set(categories.len());
    for category in &categories {
        reply.simple(category);
    }
    reply.set(spec.tips.len());
    for tip in spec.tips {
        reply.bulk(tip.as_bytes());
    }
    reply.set(spec.keys.told().len());
    for keys in spec.keys.told() {
        describe_keys(reply, keys);
    }
    reply.set(spec.subcommands.len());
    for sub in command.subcommands() {
        describe(reply, sub);
    }
}

fn simple_set(reply: &mut Reply<'_>, words: &[&str]) {
    reply.set(words.len());
    for word in words {
        reply.simple(word);
    }
}

fn flag_words(command: &Registered) -> Vec<&'static str> {
    if command.is_container() {
        return Vec::new();
    }
    Flags::NAMES.iter().filter(|(flag, _)| command.has(*flag)).filter_map(|&(_, word)| word).collect()
}

/// Returns first key, last key and step, for clients that do not know key specifications.
///
/// Adjoining ranges become one.
fn legacy_range(keys: &[KeySpec]) -> (i64, i64, i64) {
    let mut whole: Option<(i64, i64, i64)> = None;
    for spec in keys {
        let KeysAt::Range { first, last, step } = spec.at else { continue };
        let (first, last, step) = (i64::from(first), i64::from(last), i64::from(step));
        whole = match whole {
            None => Some((first, last, step)),
            Some((from, to, by)) if to + 1 == first => Some((from, last, by)),
            Some(range) => Some(range),
        };
    }
    whole.unwrap_or((0, 0, 0))
}

/// Writes a key specification.
///
/// It tells how to search the first key, and how to find the others from there.
fn describe_keys(reply: &mut Reply<'_>, keys: &KeySpec) {
    let notes = keys.at.notes().or(keys.used.notes());
    reply.map(3 + usize::from(notes.is_some()));
    if let Some(notes) = notes {
        reply.bulk(b"notes");
        reply.bulk(notes.as_bytes());
    }
    reply.bulk(b"flags");
    simple_set(reply, keys.used.wire());
    reply.bulk(b"begin_search");
    let (kind, fields): (&str, [(&str, i64); 3]) = match keys.at {
        KeysAt::Range { first, last, step } => {
            // A last key that is counted from the front is relative to the first one.
            let last = if last < 0 { i64::from(last) } else { i64::from(last) - i64::from(first) };
            describe_search(reply, "index", &[("index", i64::from(first))]);
            ("range", [("lastkey", last), ("keystep", i64::from(step)), ("limit", 0)])
        }
        KeysAt::Counted { count, step } => {
            describe_search(reply, "index", &[("index", i64::from(count))]);
            ("keynum", [("keynumidx", 0), ("firstkey", 1), ("keystep", i64::from(step))])
        }
        KeysAt::Behind { word, from } => {
            describe_keyword_search(reply, word, i64::from(from));
            ("range", [("lastkey", 0), ("keystep", 1), ("limit", 0)])
        }
        KeysAt::HalfBehind { keyword, from, .. } => {
            describe_keyword_search(reply, keyword, i64::from(from));
            ("range", [("lastkey", -1), ("keystep", 1), ("limit", 2)])
        }
        KeysAt::LastBehind { .. } | KeysAt::InData => {
            describe_search(reply, "unknown", &[]);
            reply.bulk(b"find_keys");
            return describe_search(reply, "unknown", &[]);
        }
    };
    reply.bulk(b"find_keys");
    describe_search(reply, kind, &fields);
}

fn describe_search(reply: &mut Reply<'_>, kind: &str, fields: &[(&str, i64)]) {
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(kind.as_bytes());
    reply.bulk(b"spec");
    reply.map(fields.len());
    for (name, value) in fields {
        reply.bulk(name.as_bytes());
        reply.integer(*value);
    }
}

fn describe_keyword_search(reply: &mut Reply<'_>, word: &str, from: i64) {
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"keyword");
    reply.bulk(b"spec");
    reply.map(2);
    reply.bulk(b"keyword");
    reply.bulk(word.as_bytes());
    reply.bulk(b"startfrom");
    reply.integer(from);
}

fn get_keys(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let words = args.words().from(2);
    let keys = keys_of(call.table, words)?;
    reply.array(keys.len());
    for (at, _) in keys {
        reply.bulk(words.get(at));
    }
    Ok(())
}

fn get_keys_and_flags(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let words = args.words().from(2);
    let keys = keys_of(call.table, words)?;
    reply.array(keys.len());
    for (at, used) in keys {
        reply.array(2);
        reply.bulk(words.get(at));
        simple_set(reply, used.in_words(words.iter()).wire());
    }
    Ok(())
}

/// Returns the positions and uses of the keys of a full command.
fn keys_of(
    table: &CommandTable,
    words: Words<'_>,
) -> Result<Vec<(usize, crate::catalog::KeyUse)>, CommandError> {
    let Found::Command(command) = table.find(words) else {
        return Err(CommandError::text("ERR Invalid command specified"));
    };
    if !command.spec.keys.are_some() {
        return Err(CommandError::text("ERR The command has no key arguments"));
    }
    if !command.spec.arity.admits(words.len()) {
        return Err(CommandError::text("ERR Invalid number of arguments specified for command"));
    }
    let mut keys = Vec::new();
    for spec in command.spec.keys.0 {
        let n_before = keys.len();
        let these = Keys(std::slice::from_ref(spec));
        these.positions(words.len(), |at| words.get(at), |at, used| keys.push((at, used)));
        // An invalid number of keys makes the other keys irrelevant.
        if keys.len() == n_before && matches!(spec.at, KeysAt::Counted { .. }) {
            keys.clear();
            break;
        }
    }
    if keys.is_empty() && !command.has(Flags::NO_MANDATORY_KEYS) {
        return Err(CommandError::text("ERR Invalid arguments specified for command"));
    }
    Ok(keys)
}

fn docs(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let commands: Vec<&Registered> = if args.is_empty() {
        call.table.top().to_vec()
    } else {
        args.rest().filter_map(|name| named(call.table, name)).collect()
    };
    reply.map(commands.len());
    for command in commands {
        document(reply, command);
    }
    Ok(())
}

/// Writes a command's name and its documentation.
fn document(reply: &mut Reply<'_>, command: &Registered) {
    let spec = command.spec;
    reply.bulk(command.full_name.as_bytes());
    let map = reply.map_later();
    let texts = [
        ("summary", spec.summary),
        ("since", spec.since),
        ("group", spec.group.name()),
        ("complexity", spec.complexity),
    ];
    let mut n_fields = texts.len();
    for (name, text) in texts {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    let told = documented(command.full_name);
    let doc_flags =
        [("deprecated", spec.deprecated.is_some()), ("syscmd", told.is_some_and(|told| told.is_system))];
    let doc_flags: Vec<&str> = doc_flags.iter().filter(|(_, holds)| *holds).map(|&(word, _)| word).collect();
    if !doc_flags.is_empty() {
        n_fields += 1;
        reply.bulk(b"doc_flags");
        simple_set(reply, &doc_flags);
    }
    if let Some(deprecation) = spec.deprecated {
        n_fields += 2;
        reply.bulk(b"deprecated_since");
        reply.bulk(deprecation.since.as_bytes());
        reply.bulk(b"replaced_by");
        reply.bulk(deprecation.replaced_by.as_bytes());
    }
    if let Some(told) = told.filter(|told| !told.history.is_empty()) {
        n_fields += 1;
        reply.bulk(b"history");
        reply.set(told.history.len());
        for (version, change) in &told.history {
            reply.array(2);
            reply.bulk(version.as_bytes());
            reply.bulk(change.as_bytes());
        }
    }
    let arguments = match told.and_then(|told| told.arguments.as_ref()) {
        Some(arguments) => arguments,
        None => &typed_arguments(command),
    };
    if !arguments.is_empty() {
        n_fields += 1;
        reply.bulk(b"arguments");
        document_arguments(reply, arguments);
    }
    if !spec.subcommands.is_empty() {
        n_fields += 1;
        reply.bulk(b"subcommands");
        reply.map(spec.subcommands.len());
        for sub in command.subcommands() {
            document(reply, sub);
        }
    }
    reply.close(map, n_fields);
}

/// Returns the arguments as the row's syntax tells them.
///
/// An argument at the position of a key is a key, whatever its word. A container has subcommands in place of
/// arguments.
fn typed_arguments(command: &Registered) -> Vec<Argument<'static>> {
    if command.is_container() {
        return Vec::new();
    }
    let keys = command.spec.keys.told();
    let mut arguments = arguments(command.spec.syntax);
    let n_names = if command.parent.is_some() { 2 } else { 1 };
    // Positions are fixed up to the first argument that may be missing or repeated.
    for (index, argument) in arguments.iter_mut().enumerate() {
        if is_key(index + n_names, keys) && argument.kind == ArgumentKind::String {
            argument.kind = ArgumentKind::Key;
        }
        if argument.optional || argument.multiple || argument.token.is_some() {
            break;
        }
    }
    if !keys.is_empty() {
        assign_key_specs(&mut arguments, keys);
    }
    arguments
}

fn is_key(at: usize, keys: &[KeySpec]) -> bool {
    keys.iter().filter(|spec| spec.used.is_key()).any(|spec| match spec.at {
        KeysAt::Range { first, last, .. } => at >= first as usize && (last < 0 || at <= last as usize),
        _ => false,
    })
}

/// Notes the specification of each key. Keys are in the order of their specifications.
fn assign_key_specs(arguments: &mut [Argument<'_>], keys: &[KeySpec]) {
    let mut n_keys = 0;
    for argument in arguments {
        if argument.kind == ArgumentKind::Key {
            argument.key_spec = Some(spec_of(keys, n_keys));
            n_keys += 1;
        }
        assign_key_specs(&mut argument.children, keys);
    }
}

/// Returns the index of the specification of the `n`th key argument.
fn spec_of(keys: &[KeySpec], n: usize) -> usize {
    let mut n_before = 0;
    for (index, spec) in keys.iter().enumerate() {
        n_before += match spec.at {
            KeysAt::Range { first, last, step } if last > 0 => {
                (last as usize - first as usize) / step as usize + 1
            }
            KeysAt::Range { .. } | KeysAt::Counted { .. } | KeysAt::HalfBehind { .. } => {
                usize::MAX - n_before
            }
            KeysAt::Behind { .. } | KeysAt::LastBehind { .. } | KeysAt::InData => 1,
        };
        if n < n_before {
            return index;
        }
    }
    keys.len() - 1
}

fn document_arguments(reply: &mut Reply<'_>, arguments: &[Argument<'_>]) {
    reply.array(arguments.len());
    for argument in arguments {
        document_argument(reply, argument);
    }
}

fn document_argument(reply: &mut Reply<'_>, argument: &Argument<'_>) {
    let map = reply.map_later();
    let mut n_fields = 2;
    reply.bulk(b"name");
    reply.bulk(argument.name.as_bytes());
    reply.bulk(b"type");
    reply.bulk(argument.kind.name().as_bytes());
    let texts = [
        ("display_text", (!argument.kind.is_form()).then_some(&argument.name[..])),
        ("token", argument.token),
        ("since", argument.since),
        ("deprecated_since", argument.deprecated_since),
    ];
    for (name, text) in texts {
        let Some(text) = text else { continue };
        n_fields += 1;
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if let Some(index) = argument.key_spec {
        n_fields += 1;
        reply.bulk(b"key_spec_index");
        reply.integer(index as i64);
    }
    let flags = [
        ("optional", argument.optional),
        ("multiple", argument.multiple),
        ("multiple_token", argument.multiple_token),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(_, holds)| *holds).map(|&(word, _)| word).collect();
    if !flags.is_empty() {
        n_fields += 1;
        reply.bulk(b"flags");
        simple_set(reply, &flags);
    }
    if !argument.children.is_empty() {
        n_fields += 1;
        reply.bulk(b"arguments");
        document_arguments(reply, &argument.children);
    }
    reply.close(map, n_fields);
}
