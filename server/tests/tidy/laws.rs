//! Laws about the source of the crates.

use super::{
    Exceptions, excepting, none,
    source::{Line, Source, crates, has_word, lines, sources, std_paths, texts},
};

/// Parts of std that protocol and storage must not use. Time, files, sockets and threads belong to their
/// callers.
const OUTSIDE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::time::UNIX_EPOCH",
    "std::time::self",
];

/// Whether this thread is panicking is no I/O, and guards must know it. The caller provides inputs and
/// outputs: these traits and their error do nothing by themselves.
const OUTSIDE_EXCEPTIONS: &[&str] =
    &["std::thread::panicking", "std::io::Error", "std::io::Read", "std::io::Write", "std::io::Result"];

/// Returns the sources of the crates of a server: all except the benchmarks.
fn of_the_server() -> impl Iterator<Item = Source> {
    crates().into_iter().filter(|krate| krate != "bench").flat_map(|krate| sources(&format!("{krate}/src")))
}

/// The most columns of a line of comments, as of a line of code.
const COMMENT_COLUMNS: usize = 110;

#[test]
fn comments_are_no_wider_than_code() {
    let mut found = Vec::new();
    for (path, text) in texts() {
        // Drawings, examples and tables may be wider.
        let mut is_drawn = false;
        for (at, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                is_drawn = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            is_drawn ^= comment.starts_with("```");
            if !is_drawn && !comment.starts_with('|') && line.chars().count() > COMMENT_COLUMNS {
                found.push(format!("{path}:{}", at + 1));
            }
        }
    }
    none("Comments of more than 110 columns:", found);
}

const PRINTING: &[&str] = &["println!", "eprintln!", "print!", "eprint!", "dbg!"];

#[test]
fn protocol_and_storage_do_no_io_start_no_threads_and_read_no_clock() {
    let mut found = Vec::new();
    for source in sources("protocol/src").into_iter().chain(sources("storage/src")) {
        let code = source.joined();
        let outside = |path: &&String| {
            let is_of = |module: &&str| *path == module || path.starts_with(&format!("{module}::"));
            OUTSIDE.iter().any(is_of) && !OUTSIDE_EXCEPTIONS.contains(&path.as_str())
        };
        let paths = std_paths(&code);
        found.extend(paths.iter().filter(outside).map(|path| format!("{}: {path}", source.path)));
        for (number, line) in source.product() {
            let prints = PRINTING.iter().filter(|print| line.code.contains(*print));
            found.extend(prints.map(|print| format!("{}:{number}: {print}", source.path)));
        }
    }
    none("I/O, threads and clocks are the server's:", found);
}

/// The clocks of the standard library.
const CLOCKS: &[&str] = &["std::time::Instant", "std::time::SystemTime"];

/// The files of the server that may read the system's clocks: a test simulates the time of the others.
const CLOCK_FILES: &[&str] = &["server/src/clock.rs", "server/src/clock/simulated.rs"];

#[test]
fn the_server_reads_the_time_in_one_place() {
    let mut found = Vec::new();
    for source in sources("server/src").into_iter().filter(|one| !CLOCK_FILES.contains(&one.path.as_str())) {
        let paths = std_paths(&source.joined());
        let clocks = paths.iter().filter(|path| CLOCKS.iter().any(|clock| path.starts_with(clock)));
        found.extend(clocks.map(|path| format!("{}: {path}", source.path)));
    }
    none("The server reads the time through clock.rs:", found);
}

/// Types that can put a thread to sleep until another one releases them.
const LOCKS: &[&str] = &["Mutex", "RwLock", "Condvar", "DashMap", "LazyLock", "OnceLock", "Once"];

/// Every lock in the product, by file. None of them is taken while a GET or SET runs.
const LOCK_EXCEPTIONS: Exceptions = &[
    (
        "journal/src/baton.rs",
        "Mutex",
        "the append-only file: whoever ends a turn tries it, and never waits for it",
    ),
    (
        "journal/src/stream.rs",
        "OnceLock",
        "the next piece of the change stream: set once by its only writer, read without waiting",
    ),
    (
        "journal/src/spool.rs",
        "Mutex",
        "the files of slow replicas: for each of their reads of 64 KiB, and to write a part of 1 MiB",
    ),
    ("server/src/boot.rs", "Mutex", "makes the locks of `Server`"),
    ("server/src/client/record.rs", "DashMap", "touched when a client comes or goes, and by CLIENT and INFO"),
    ("server/src/client/record.rs", "Mutex", "what a client says of itself: CLIENT SETNAME and SETINFO"),
    ("server/src/command/table/documented.rs", "LazyLock", "facts for COMMAND DOCS, read at its first call"),
    (
        "server/src/command/mod.rs",
        "LazyLock",
        "the command table, built at the first look and then only read",
    ),
    (
        "server/src/command/mod.rs",
        "OnceLock",
        "the names by which commands are called, set once before the table is built",
    ),
    (
        "server/src/notify/subscriptions.rs",
        "Mutex",
        "what a client is subscribed to: SUBSCRIBE and its kin, and ACL SETUSER",
    ),
    ("server/src/config/directives.rs", "LazyLock", "the directives by name, for CONFIG and the start"),
    (
        "server/src/shared/average_ttls.rs",
        "Mutex",
        "how long keys last: at the end of a cycle of expiry, and for INFO",
    ),
    ("server/src/shared/user_table.rs", "Mutex", "changes of the users, one at a time, and what was denied"),
    (
        "server/src/telemetry/command_log.rs",
        "Mutex",
        "a thread's entries of the slow log: to add one, and for SLOWLOG and COMMANDLOG",
    ),
    (
        "server/src/telemetry/hot_keys.rs",
        "Mutex",
        "a thread's part of what HOTKEYS finds: to add a sampled command, and for HOTKEYS",
    ),
    (
        "server/src/telemetry/latency_monitor.rs",
        "Mutex",
        "what took longer than the latency monitor's threshold: to add it, and for LATENCY",
    ),
    ("server/src/replication/mod.rs", "Mutex", "the IDs: for PSYNC, INFO, and when another history begins"),
    (
        "server/src/replication/copy_payload.rs",
        "Mutex",
        "a copy for replicas: to add a part of 64 KiB, and for each link to find it",
    ),
    (
        "server/src/replication/failover.rs",
        "Mutex",
        "the plan of a failover: FAILOVER, and the link's thread",
    ),
    (
        "server/src/replication/full_copy.rs",
        "Mutex",
        "the place in the stream after a copy: for its links, which may move it to the spool",
    ),
    (
        "server/src/replication/own_keys.rs",
        "Mutex",
        "the keys that clients of a writable replica have written: when they write, and ten times a second",
    ),
    (
        "server/src/replication/replicas.rs",
        "Mutex",
        "the replicas and what they say of themselves: REPLCONF, INFO, and WAIT when one has acknowledged",
    ),
    ("server/src/sockets/listening.rs", "Mutex", "the listening sockets: to accept, and for CONFIG SET"),
    (
        "server/src/durability/last_writes.rs",
        "OnceLock",
        "room that is taken once, if `appendfsync` is `always`",
    ),
    ("server/src/crash.rs", "OnceLock", "whom a fault wakes, set once at start"),
    ("server/src/log.rs", "OnceLock", "the log's file, set once at start"),
    (
        "server/src/shared/server.rs",
        "Mutex",
        "CONFIG SET and REWRITE one at a time, closing clients for memory, a cron's sampler, the end of the process",
    ),
    (
        "storage/src/observers/snapshot/copy_before_write.rs",
        "OnceLock",
        "whom to tell when a snapshot is given too much before its turn, set once at start",
    ),
    ("server/src/scripting/scripts.rs", "Mutex", "changes of the known scripts, one at a time"),
    ("server/src/scripting/scripts.rs", "LazyLock", "what the texts of scripts are hashed with, made once"),
    ("server/src/scripting/functions.rs", "Mutex", "changes of the known libraries, one at a time"),
    (
        "server/src/telemetry/splits.rs",
        "OnceLock",
        "a thread's histograms of a family of commands, made by that thread when `latency-split` first needs them",
    ),
    (
        "server/src/telemetry/latency.rs",
        "OnceLock",
        "a power of two of a histogram, initialised by its owning thread only",
    ),
    (
        "server/src/telemetry/stats.rs",
        "OnceLock",
        "a thread's histogram of a command, made by that thread when the command first runs there",
    ),
];

#[test]
fn every_lock_has_a_reason() {
    let mut found = Vec::new();
    for source in of_the_server() {
        for (number, line) in source.product() {
            let locks = LOCKS.iter().filter(|lock| has_word(&line.code, lock));
            found.extend(locks.map(|lock| {
                (source.path.clone(), (*lock).to_owned(), format!("{}:{number}: {lock}", source.path))
            }));
        }
    }
    none("No thread waits for another on the data path:", excepting(LOCK_EXCEPTIONS, found));
}

/// Places where `.lock()` is called, with the users of the locks above.
const LOCKING: Exceptions = &[
    ("journal/src/baton.rs", ".lock()", "the thread that syncs, the saver, the start and the end"),
    ("server/src/boot.rs", ".lock()", "before the threads start"),
    ("server/src/client/record.rs", ".lock()", "what a client says of itself"),
    ("server/src/notify/subscriptions.rs", ".lock()", "what a client is subscribed to"),
    ("server/src/command/admin/config_command.rs", ".lock()", "CONFIG SET and REWRITE, one at a time"),
    ("server/src/shared/role_change.rs", ".lock()", "REPLICAOF changes the configuration, too"),
    (
        "server/src/net/certificate_watch.rs",
        ".lock()",
        "no CONFIG SET while changed certificates replace others",
    ),
    ("server/src/replication/mod.rs", ".lock()", "the IDs of the data"),
    ("server/src/replication/copy_payload.rs", ".lock()", "a part of a copy comes, or is sent"),
    (
        "server/src/replication/full_copy.rs",
        ".lock()",
        "a link follows a copy, or moves its place to the spool",
    ),
    ("journal/src/spool.rs", ".lock()", "a slow replica joins or reads the spool, or a part is written"),
    ("server/src/replication/failover.rs", ".lock()", "a failover begins, or is waited for"),
    (
        "server/src/replication/own_keys.rs",
        ".lock()",
        "a client writes on a writable replica, and its keys expire",
    ),
    ("server/src/replication/replicas.rs", ".lock()", "a replica comes, goes, or is asked about"),
    ("server/src/shared/user_table.rs", ".lock()", "a change of the users, and what is denied to one"),
    ("server/src/shared/average_ttls.rs", ".lock()", "a cycle of expiry ends, or INFO asks"),
    ("server/src/shared/client_limit.rs", ".lock()", "clients take too much memory: one thread closes some"),
    ("server/src/telemetry/command_log.rs", ".lock()", "an entry of the slow log comes, or is read"),
    ("server/src/telemetry/hot_keys.rs", ".lock()", "a sampled command is added, or HOTKEYS asks"),
    ("server/src/telemetry/latency_monitor.rs", ".lock()", "an event took long, or is asked for"),
    ("server/src/sockets/listening.rs", ".lock()", "accepts connections, or listens elsewhere"),
    ("server/src/log.rs", ".lock()", "standard output"),
    ("server/src/scripting/scripts.rs", ".lock()", "a script comes or goes"),
    ("server/src/scripting/functions.rs", ".lock()", "a library comes or goes"),
    ("server/src/shared/server.rs", ".lock()", "a cron's sampler, and the end of the process"),
];

#[test]
fn every_use_of_a_lock_has_a_reason() {
    let mut found = Vec::new();
    for source in of_the_server() {
        if source.joined().contains(".lock()") {
            found.push((source.path.clone(), ".lock()".to_owned(), format!("{}: .lock()", source.path)));
        }
    }
    none("Who takes a lock says why:", excepting(LOCKING, found));
}

/// The modules that may be unsafe.
const UNSAFE_MODULES: &[(&str, &str)] = &[
    ("script/src/lua_overrides", "functions of Lua's own libraries that go on to the originals"),
    ("script/src/bridge", "functions that Lua calls at each command and each run"),
    ("script/src/library/builder", "makes tables on Lua's own stack"),
    ("script/src/library/cmsgpack/short", "the same, where they are short"),
    ("script/src/stack", "Lua's own stack"),
    ("storage/src/memory/allocator", "calls into mimalloc"),
    ("storage/src/sync/coordinator", "hands out the shards that a job holds"),
    ("storage/src/entry", "an entry's layout in one allocation"),
    ("storage/src/sync/executor", "the word, and the queues of nodes"),
    ("storage/src/table/prefetch", "an instruction that reads nothing"),
    ("storage/src/keyspace/shard", "lends entries for longer than the borrow checker sees"),
    ("storage/src/types/sorted_set/members", "reads the entries that a tree has the addresses of"),
    ("storage/src/table", "structure that is read while it is replaced"),
    ("server/src/crash", "what is called at a fault that ends the process"),
    ("server/src/main", "moves the environment before there are threads, and ignores signals"),
];

/// The most lines between an unsafe block and its reason: a statement may be long.
const REASON_LINES: usize = 8;

#[test]
fn unsafe_code_says_why_it_is_sound() {
    let mut found = Vec::new();
    let mut n_seen = 0;
    for source in crates().iter().flat_map(|krate| sources(&format!("{krate}/src"))) {
        let module = source.path.trim_end_matches(".rs");
        let may = UNSAFE_MODULES.iter().any(|(of, _)| module == *of || module.starts_with(&format!("{of}/")));
        for (at, line) in source.lines.iter().enumerate().filter(|(_, line)| has_word(&line.code, "unsafe")) {
            let number = at + 1;
            let code = line.code.split_once("unsafe").map_or("", |(_, after)| after.trim_start());
            let place = format!("{}:{number}", source.path);
            n_seen += 1;
            if !may && !line.is_test {
                found.push(format!("{place}: unsafe code outside of the modules that may have it"));
            }
            let is_function = code.starts_with("fn ") || code.starts_with("extern ");
            if is_function && !source.says(number, 25, &["# Safety"]) {
                found.push(format!("{place}: an unsafe function without a section `# Safety`"));
            }
            let is_block = code.starts_with('{') || code.starts_with("impl");
            if is_block && !source.says(number, REASON_LINES, &["SAFETY: "]) {
                found.push(format!("{place}: no SAFETY comment"));
            }
        }
    }
    assert!(n_seen > 50, "the search has missed the unsafe code: {n_seen} places");
    none("Every unsafe block says why its obligation holds here:", found);
}

/// Crates whose library has some of these modules.
const UNSAFE_LIBRARIES: Exceptions = &[
    ("script", "unsafe", "works on Lua's own stack"),
    ("storage", "unsafe", "the allocator, the table, the entries and the executor"),
];

#[test]
fn the_other_crates_forbid_unsafe_code() {
    let mut found = Vec::new();
    for krate in crates() {
        let sources = sources(&format!("{krate}/src"));
        let root = ["lib.rs", "main.rs"]
            .iter()
            .find_map(|name| sources.iter().find(|source| source.path == format!("{krate}/src/{name}")));
        let root = root.expect("a crate has a root");
        if !root.lines.iter().any(|line| line.code.trim() == "#![forbid(unsafe_code)]") {
            found.push((krate, "unsafe".to_owned(), root.path.clone()));
        }
    }
    none("These crates need no unsafe code:", excepting(UNSAFE_LIBRARIES, found));
}

/// Files in which a lint fires only in some builds: `expect` would fail in the others.
const ALLOWS: Exceptions = &[(
    "server/tests/it/support/mod.rs",
    "allow",
    "each program of tests compiles the module, and uses another part of it",
)];

/// Returns the attributes in some code, from `#` to the closing bracket, with their line numbers.
fn attributes(lines: &[Line]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        for (start, _) in line.code.match_indices('#') {
            let rest = &line.code[start + 1..];
            if !rest.strip_prefix('!').unwrap_or(rest).starts_with('[') {
                continue;
            }
            let following = lines[at + 1..].iter().flat_map(|line| line.code.chars());
            let (mut attribute, mut depth) = (String::new(), 0);
            for c in line.code[start..].chars().chain(following) {
                attribute.push(c);
                depth += i32::from(c == '[') - i32::from(c == ']');
                if c == ']' && depth == 0 {
                    break;
                }
            }
            found.push((at + 1, attribute));
        }
    }
    found
}

#[test]
fn every_lint_that_is_off_has_a_reason() {
    let mut found = Vec::new();
    let mut n_seen = 0;
    for (path, text) in texts().into_iter().filter(|(path, _)| path.ends_with(".rs")) {
        for (number, attribute) in attributes(&lines(&text)) {
            let sets = |level: &str| has_word(&attribute, level) && attribute.contains(&format!("{level}("));
            let (allows, expects) = (sets("allow"), sets("expect"));
            n_seen += usize::from(allows || expects);
            let place = format!("{path}:{number}");
            if (allows || expects) && !has_word(&attribute, "reason") {
                found.push((path.clone(), "no reason".to_owned(), format!("{place}: no reason")));
            }
            if allows {
                let text = format!("{place}: `expect` fails once the lint is silent, `allow` does not");
                found.push((path.clone(), "allow".to_owned(), text));
            }
        }
    }
    assert!(n_seen > 10, "the search has missed the attributes: {n_seen}");
    none("A lint that is off says why, and is on again when it has no cause:", excepting(ALLOWS, found));
}

#[test]
fn attributes_are_found_in_all_their_forms() {
    let text = "#![allow(dead_code)]\n#[expect(\n    unused,\n    reason = \"a ] b\"\n)]\nlet x = [a[0]]; #[cfg_attr(test, allow(x))] f();";
    let found: Vec<(usize, String)> = attributes(&lines(text));
    let expected = [
        (1, "#![allow(dead_code)]"),
        (2, "#[expect(    unused,    reason = \"\")]"),
        (6, "#[cfg_attr(test, allow(x))]"),
    ];
    assert_eq!(found, expected.map(|(number, attribute)| (number, attribute.to_owned())));
}

const STRONG: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];

#[test]
fn orderings_name_their_partners() {
    let mut found = Vec::new();
    let mut n_seen = 0;
    for source in of_the_server() {
        for (number, line) in source.product().filter(|(_, line)| !is_use(&source, line)) {
            let strong: Vec<&&str> = STRONG.iter().filter(|order| has_word(&line.code, order)).collect();
            n_seen += strong.len();
            if !strong.is_empty() && !source.says(number, 6, &["airs with", ": as in `"]) {
                found.push(format!("{}:{number}: {strong:?} pairs with what?", source.path));
            }
        }
    }
    assert!(n_seen > 10, "the search has missed the orderings: {n_seen} places");
    none("An ordering stronger than Relaxed names its partner in a comment nearby:", found);
}

/// Whether a line only names orderings, in a `use` that may span lines.
fn is_use(source: &Source, line: &Line) -> bool {
    let at = source.lines.iter().position(|other| std::ptr::eq(other, line)).expect("it is one of them");
    let first = source.lines[..=at].iter().rposition(|line| {
        let code = line.code.trim_start();
        code.starts_with("use ") || code.starts_with("pub(crate) use ") || code.ends_with(';')
    });
    first.is_some_and(|first| {
        let code = source.lines[first].code.trim_start();
        (code.starts_with("use ") || code.starts_with("pub(crate) use "))
            && (first == at || !code.ends_with(';'))
    })
}

/// The names of a command in its row, its container and its registration.
const COMMAND_NAMES: &[&str] = &["spec.name", "parent.name", "full_name"];

/// Code that distinguishes one name from others.
const COMPARISONS: &[&str] = &[
    "==",
    "!=",
    "match ",
    "matches!",
    ".eq(",
    ".eq_ignore_ascii_case(",
    ".starts_with(",
    ".ends_with(",
    ".contains(",
];

/// Places that look a command up by the name that a client has sent.
const LOOK_UPS: Exceptions =
    &[("server/src/command/table/introspection.rs", "by name", "COMMAND INFO's look-up of a subcommand")];

/// Whether a piece of code depends on a command's name.
fn decides_by_name(code: &str) -> bool {
    COMMAND_NAMES.iter().any(|name| has_word(code, name))
        && COMPARISONS.iter().any(|word| code.contains(word))
}

#[test]
fn no_code_but_the_table_knows_commands_by_name() {
    let mut found = Vec::new();
    for source in sources("server/src") {
        let code = source.joined();
        let pieces = code.split([';', '{', '}']).filter(|piece| decides_by_name(piece));
        for (nth, piece) in pieces.enumerate() {
            // An exception covers one place in a file, and no further ones of its kind.
            let what = if nth == 0 { "by name" } else { "by name again" };
            found.push((source.path.clone(), what.to_owned(), format!("{}: {}", source.path, piece.trim())));
        }
    }
    none("A command's row says everything about it, by its flags and fields:", excepting(LOOK_UPS, found));
}

#[test]
fn deciding_by_a_commands_name_is_seen_in_all_its_forms() {
    for code in [
        "command.spec.name == \"\"",
        "match command.full_name ",
        "command.parent.is_some_and(|parent| parent.name == \"\")",
        "let is_client = matches!(registered.spec.name, \"\" | \"\")",
        "if command.full_name.starts_with(\"\") ",
    ] {
        assert!(decides_by_name(code), "{code}");
    }
    for code in ["reply.bulk(command.full_name.as_bytes())", "let n = command.spec.arity == spec.arity"] {
        assert!(!decides_by_name(code), "{code}");
    }
}

/// Places besides the reply writer that name a version of the protocol.
const DIALECTS: Exceptions = &[
    ("server/src/command/connections/handshake.rs", "Resp::V", "HELLO chooses it, RESET goes back"),
    ("server/src/command/families/pubsub.rs", "Resp::V", "in RESP2 a subscriber may do nothing else"),
    ("server/src/command/admin/debug.rs", "Resp::V", "DEBUG PROTOCOL has no push in RESP2"),
    ("server/src/client/connection.rs", "Resp::V", "what its client speaks while its session is under way"),
    (
        "server/src/net/thread/push_delivery.rs",
        "Resp::V",
        "a message is written once for each version, not for each client",
    ),
    ("server/src/client/session.rs", "Resp::V", "what a session begins with, and CLIENT LIST"),
];

#[test]
fn only_the_reply_writer_tells_resp2_from_resp3() {
    let mut found = Vec::new();
    for source in sources("server/src") {
        for (number, line) in source.product().filter(|(_, line)| line.code.contains("Resp::V")) {
            let text = format!("{}:{number}: {}", source.path, line.code.trim());
            found.push((source.path.clone(), "Resp::V".to_owned(), text));
        }
    }
    none("Handlers say a shape, not a dialect:", excepting(DIALECTS, found));
}

/// Places besides `CommandError` that write error texts.
const ERROR_WRITERS: Exceptions = &[
    ("server/src/catalog/error.rs", "reply.error(", "the one place"),
    ("server/src/net/thread/serving.rs", ".error(text)", "what cannot be parsed is no command's error"),
];

#[test]
fn only_one_place_writes_errors() {
    let mut found = Vec::new();
    for source in sources("server/src") {
        for (number, line) in source.product() {
            for what in ["reply.error(", ".error(text)"] {
                if line.code.contains(what) {
                    let text = format!("{}:{number}: {}", source.path, line.code.trim());
                    found.push((source.path.clone(), what.to_owned(), text));
                }
            }
        }
    }
    none("Errors become text in one function:", excepting(ERROR_WRITERS, found));
}
