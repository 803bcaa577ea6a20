//! The documents: every claim that can be looked up is looked up here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    process::Command,
};

use braid_server::{
    catalog::Group,
    command::{Registered, TABLE},
    config::{Directive, DirectiveFlags, Kind, directives},
    metrics,
};

use super::{
    Exceptions, excepting, none,
    source::{crates, root, sources, texts},
};

/// If this is set, the parts of documents that are made from tables are written anew.
const CORRECT: &str = "BRAID_DOCS_CORRECT";

/// The documents, with their paths from the root.
fn documents() -> Vec<(String, String)> {
    let found: Vec<_> = texts().into_iter().filter(|(path, _)| path.ends_with(".md")).collect();
    assert!(found.len() > 8, "the search has missed the documents: {}", found.len());
    found
}

fn document(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// Compares the part of a document between `<!-- mark -->` and `<!-- /mark -->` with its expected text, or
/// writes that.
fn assert_part(path: &str, mark: &str, expected: &str) {
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    let text = document(path);
    let parts = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?)));
    let (before, (part, after)) = parts.unwrap_or_else(|| panic!("{path} has no {begin} and {end}"));
    if part == expected {
        return;
    }
    if std::env::var_os(CORRECT).is_some() {
        let text = format!("{before}{begin}{expected}{end}{after}");
        fs::write(root().join(path), text).unwrap_or_else(|why| panic!("{path}: {why}"));
        return;
    }
    panic!("{path} says otherwise than the code under {mark}; {CORRECT}=1 writes it:\n{expected}");
}

/// Returns a code span for a table, where a bar would end the cell.
fn cell(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

// Parts that are made from tables. All parts of one file are in one test, so that two tests do not write it
// at once.

#[test]
fn every_command_is_described() {
    let mut groups: Vec<(Group, BTreeMap<&str, &Registered>)> = Vec::new();
    for command in TABLE.all() {
        let group = command.spec.group;
        let at = groups.iter().position(|(known, _)| *known == group).unwrap_or_else(|| {
            groups.push((group, BTreeMap::new()));
            groups.len() - 1
        });
        groups[at].1.insert(command.full_name, command);
    }
    let mut text = String::new();
    for (group, commands) in groups {
        writeln!(text, "\n## {}\n\n| Command | Does |\n|---|---|", group.name()).expect("it is a String");
        for (name, command) in commands.into_iter().filter(|(_, command)| !command.is_container()) {
            let name = name.replace('|', " ").to_ascii_uppercase();
            let usage = format!("{name} {}", command.spec.syntax);
            let summary = command.spec.summary.trim_end_matches('.').replace('|', "\\|");
            writeln!(text, "| {} | {summary} |", cell(usage.trim_end())).expect("it is a String");
        }
    }
    assert_part("docs/commands.md", "commands", &format!("{text}\n"));
}

/// The commands and subcommands of Redis 7.4, one in each line. They are those of `src/commands` of 7.0, and
/// later ones of 7.2 and 7.4.
const REDIS_7_4: &str = include_str!("../../src/command/table/redis-7.4-commands.txt");

#[test]
fn commands_that_are_missing_or_newer_are_named() {
    let known: BTreeSet<&str> = REDIS_7_4.lines().collect();
    let ours: BTreeSet<&str> = TABLE.all().iter().map(|command| command.full_name).collect();
    assert!(known.intersection(&ours).count() > 250, "the two lists are of different things");
    let top = |name: &str| name.split('|').next().expect("a name has a beginning").to_owned();
    // A missing container stands for its subcommands.
    let is_absent =
        |name: &&&str| !ours.contains(**name) && (!name.contains('|') || ours.contains(&*top(name)));
    let shown = |name: &str| format!("`{}`", name.replace('|', " ").to_ascii_uppercase());
    let absent: Vec<String> = known.iter().filter(is_absent).map(|name| shown(name)).collect();
    assert_part("docs/differences.md", "absent", &format!("{}.\n", absent.join(", ")));
    let is_newer = |name: &str| {
        let since =
            TABLE.all().iter().find(|command| command.full_name == name).expect("it is there").spec.since;
        let number = since.strip_prefix("valkey ").unwrap_or(since);
        // A version that is no number is Braid's own.
        let parts: Vec<u32> = number.split('.').filter_map(|part| part.parse().ok()).collect();
        parts > vec![7, 4, u32::MAX]
    };
    let newer: Vec<String> = ours.iter().filter(|name| is_newer(name)).map(|name| shown(name)).collect();
    assert!(!newer.is_empty());
    assert_part("docs/differences.md", "newer", &format!("{}.\n", newer.join(", ")));
}

/// Describes the values of a directive in a few words.
fn values(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "`yes` or `no`".to_owned(),
        Kind::Integer { min, max } => format!("number, {min} to {}", largest(*max)),
        Kind::Memory { min, max } => format!("bytes, {min} to {}", largest(*max)),
        Kind::MemoryOrPercent => "bytes, or a percentage of `maxmemory`".to_owned(),
        Kind::FileMode => "octal file mode".to_owned(),
        Kind::Choice(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        Kind::Choices(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            format!("any of {}", words.join(", "))
        }
        Kind::Text => "text".to_owned(),
        Kind::Dir => "directory".to_owned(),
        Kind::Addresses => "addresses".to_owned(),
        Kind::Save => "pairs of seconds and changes".to_owned(),
        Kind::OutputLimits => "class, hard limit, soft limit and seconds, for each class".to_owned(),
        Kind::Events => "classes of events".to_owned(),
        Kind::OomScores => "three numbers".to_owned(),
        Kind::Percentiles => "percentiles".to_owned(),
        Kind::Primary => "host and port".to_owned(),
        Kind::Line { .. } => "words, in files only".to_owned(),
    }
}

fn largest(max: i128) -> String {
    match max {
        max if max == i128::from(i32::MAX) => "2^31 - 1".to_owned(),
        max if max == i128::from(u32::MAX) => "2^32 - 1".to_owned(),
        max if max == i128::from(i64::MAX) => "2^63 - 1".to_owned(),
        max if max == i128::from(u64::MAX) => "2^64 - 1".to_owned(),
        max => max.to_string(),
    }
}

/// The columns of directives with an effect, and that of the reason for those without.
const COLUMNS: [&str; 2] = ["| Directive | Default | Values | Changes |", " Why it has no effect |"];

fn directive_rows(has_effect: bool) -> String {
    let belongs = |row: &Directive| row.has_effect() == has_effect;
    let mut rows: Vec<&Directive> = directives().iter().filter(|row| belongs(row)).collect();
    rows.sort_by_key(|row| row.name);
    let mut text = match has_effect {
        true => format!("{}\n|---|---|---|---|\n", COLUMNS[0]),
        false => format!("{}{}\n|---|---|---|---|---|\n", COLUMNS[0], COLUMNS[1]),
    };
    for row in rows {
        let alias = row.alias.map(|alias| format!(" ({})", cell(alias))).unwrap_or_default();
        let default = match (row.name, row.default) {
            ("io-threads", _) => "the cores available".to_owned(),
            (_, "") => "none".to_owned(),
            (_, default) => cell(default),
        };
        let changes = match row.flags {
            flags
                if flags.contains(DirectiveFlags::FILE_ONLY) || flags.contains(DirectiveFlags::IMMUTABLE) =>
            {
                "at start"
            }
            flags if flags.contains(DirectiveFlags::PROTECTED) => "any time, protected",
            _ => "any time",
        };
        let values = values(&row.kind);
        let why = if has_effect { String::new() } else { format!(" {} |", row.why_idle()) };
        writeln!(text, "| {}{alias} | {default} | {values} | {changes} |{why}", cell(row.name))
            .expect("it is a String");
    }
    text
}

#[test]
fn every_directive_is_described() {
    let path = "docs/configuration.md";
    assert_part(path, "directives with an effect", &directive_rows(true));
    assert_part(path, "directives without an effect", &directive_rows(false));
    let help =
        Command::new(env!("CARGO_BIN_EXE_braid-server")).arg("--help").output().expect("the program runs");
    let help = String::from_utf8(help.stdout).expect("help is text");
    assert_part(path, "braid-server --help", &format!("```\n{}\n```\n", help.trim_end()));
}

// Claims that can be looked up.

/// Returns the text of a document without code blocks.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// Returns the texts between backticks.
fn code_spans(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the anchor of a heading for links.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let text = prose(text);
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn links_lead_somewhere() {
    let documents: BTreeMap<String, String> = documents().into_iter().collect();
    let mut found = Vec::new();
    let mut n_seen = 0;
    for (path, text) in &documents {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let prose = prose(text);
        for link in prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            n_seen += 1;
            if link.starts_with("https://") {
                continue;
            }
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => normal(&format!("{folder}/{file}")),
            };
            if !root().join(&target).exists() {
                found.push(format!("{path}: there is no {target}"));
            } else if !part.is_empty()
                && !documents.get(&target).is_some_and(|text| anchors(text).contains(part))
            {
                found.push(format!("{path}: {target} has no heading #{part}"));
            }
        }
    }
    assert!(n_seen > 20, "the search has missed the links: {n_seen}");
    none("A link leads to what is there:", found);
}

/// The largest size of a page about the code, in bytes.
const PAGE_BYTES: usize = 15_000;

#[test]
fn pages_about_the_code_are_short_and_listed() {
    let overview = document("ARCHITECTURE.md");
    let mut found = Vec::new();
    for (path, text) in documents().into_iter().filter(|(path, _)| is_about_code(path)) {
        if text.len() > PAGE_BYTES {
            found.push(format!("{path} has {} bytes, of at most {PAGE_BYTES}", text.len()));
        }
        if path != "ARCHITECTURE.md" && !overview.contains(&format!("]({path})")) {
            found.push(format!("ARCHITECTURE.md does not list {path}"));
        }
    }
    none("A page about the code has one subject, and ARCHITECTURE.md lists it:", found);
}

/// Whether a document is about the code.
fn is_about_code(path: &str) -> bool {
    path == "ARCHITECTURE.md" || path == "docs/glossary.md" || path.starts_with("docs/internals/")
}

/// Returns the words of some code that may be names.
fn identifiers(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns the parts of a code span that is a name of the code, like `Journal::gather`. Other spans have
/// none.
fn parts_of_name(span: &str) -> Vec<&str> {
    let is_word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    let parts: Vec<&str> = span.split("::").collect();
    let is_camel = |part: &str| part.starts_with(char::is_uppercase) && part.contains(char::is_lowercase);
    if parts.iter().all(|part| is_word(part)) && (parts.len() > 1 || is_camel(span)) {
        parts
    } else {
        Vec::new()
    }
}

#[test]
fn names_and_paths_of_the_code_are_there() {
    let sources: Vec<_> = crates().iter().flat_map(|krate| sources(&format!("{krate}/src"))).collect();
    let known: BTreeSet<&str> =
        sources.iter().flat_map(|source| &source.lines).flat_map(|line| identifiers(&line.code)).collect();
    let mut found = Vec::new();
    let mut n_seen = 0;
    for (path, text) in documents().into_iter().filter(|(path, _)| is_about_code(path)) {
        for span in code_spans(&prose(&text)) {
            let is_path = span.contains('/') && !span.contains([' ', '<', ':', '#']);
            let missing = |part: &&str| !known.contains(part) && *part != "std";
            if is_path && !span.starts_with(['/', '*']) {
                n_seen += 1;
                if !root().join(span).exists() {
                    found.push(format!("{path}: there is no {span}"));
                }
            } else if let Some(part) = parts_of_name(span).iter().find(|part| missing(part)) {
                found.push(format!("{path}: `{span}`: no code has {part}"));
            }
        }
    }
    assert!(n_seen > 100, "the search has missed the paths: {n_seen}");
    none("A document about the code names what is there:", found);
}

/// Returns a path without `..`, `.` and a slash at its beginning or end.
fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn the_readme_is_a_front_door() {
    let n_bytes = document("README.md").len();
    assert!((5_000..10_000).contains(&n_bytes), "README.md has {n_bytes} bytes: long lists belong in docs/");
}

#[test]
fn targets_of_make_that_are_named_are_there() {
    let makefile = document("Makefile");
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':').map(|(name, _)| name))
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
        .collect();
    let mut found = Vec::new();
    let mut n_seen = 0;
    for (path, text) in documents() {
        let spans = code_spans(&prose(&text)).into_iter().map(str::to_owned).collect::<Vec<_>>();
        let blocks = text.lines().filter(|line| line.starts_with("make ")).map(str::to_owned);
        for target in spans
            .into_iter()
            .chain(blocks)
            .filter_map(|span| Some(span.strip_prefix("make ")?.split_whitespace().next()?.to_owned()))
        {
            n_seen += 1;
            if !targets.contains(&*target) {
                found.push(format!("{path}: make {target}"));
            }
        }
    }
    assert!(n_seen > 20, "the search has missed the targets: {n_seen}");
    none("A target that a document names is there:", found);
}

/// Words in capitals that are no commands.
const NO_COMMANDS: &[&str] = &["OVERFLOW", "GROUP", "SEED", "ARGS", "AUTH", "URI"];

#[test]
fn commands_that_are_named_are_there() {
    let mut found = Vec::new();
    let mut n_seen = 0;
    for (path, text) in documents().into_iter().filter(|(path, _)| path != "docs/differences.md") {
        let text = prose(&text);
        for span in code_spans(&text) {
            let word = span.split_whitespace().next().unwrap_or_default();
            let is_name = word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
            if !is_name || NO_COMMANDS.contains(&word) {
                continue;
            }
            n_seen += 1;
            let name = word.to_ascii_lowercase();
            let is_there = TABLE.all().iter().any(|command| command.full_name == name);
            if !is_there {
                found.push(format!("{path}: `{span}`"));
            }
        }
    }
    assert!(n_seen > 200, "the search has missed the commands: {n_seen}");
    none("Documents but docs/differences.md name commands that are there:", found);
}

// The checklists of CONTRIBUTING.md.

/// Returns the numbered items of each section whose heading ends with a number of places.
fn checklists() -> Vec<(String, usize, Vec<String>)> {
    let text = document("CONTRIBUTING.md");
    let mut lists: Vec<(String, usize, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            let (name, number) = heading.split_once(" (").expect("a heading names the number of places");
            let number =
                number.trim_end_matches(')').split(' ').next().and_then(|number| number.parse().ok());
            lists.push((name.to_owned(), number.expect("it is a number"), Vec::new()));
        } else if line.starts_with('#') {
            continue;
        } else if let Some((_, items)) = lists.last_mut().map(|(name, _, items)| (name, items)) {
            if line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok()) {
                items.push(line.to_owned());
            } else if let Some(item) = items.last_mut().filter(|_| line.starts_with("   ")) {
                item.push_str(line);
            }
        }
    }
    assert_eq!(
        lists.len(),
        6,
        "a command, a type, a directive, a figure, observers of commands and of writes"
    );
    lists
}

#[test]
fn checklists_count_their_places_and_name_what_is_there() {
    let mut found = Vec::new();
    for (name, n_places, items) in checklists() {
        if items.len() != n_places {
            found.push(format!("{name}: {} items, and the heading says {n_places}", items.len()));
        }
        for item in &items {
            let is_path = |span: &&str| span.contains('/') && !span.contains([' ', '<']);
            let paths: Vec<&str> = code_spans(item).into_iter().filter(is_path).collect();
            let missing = paths.iter().filter(|path| !root().join(path).exists());
            found.extend(missing.map(|path| format!("{name}: there is no {path}")));
            // `name()` is defined in one of the files.
            let functions = code_spans(item).into_iter().filter_map(|span| span.strip_suffix("()"));
            let is_in = |name: &str| {
                let files = paths.iter().filter(|path| path.ends_with(".rs"));
                files.map(|path| document(path)).any(|text| text.contains(&format!("fn {name}(")))
            };
            found.extend(
                functions.filter(|name| !is_in(name)).map(|name| format!("{name} is not where {item}")),
            );
            if paths.is_empty() && !item.contains('<') {
                found.push(format!("{name}: an item that names no place: {item}"));
            }
        }
    }
    none("CONTRIBUTING.md's checklists:", found);
}

/// Returns the server's files without their tests, as they are written.
fn product() -> Vec<(String, String)> {
    let paths: BTreeSet<String> = sources("server/src").into_iter().map(|source| source.path).collect();
    let mut product: Vec<_> = texts().into_iter().filter(|(path, _)| paths.contains(path)).collect();
    for (_, text) in &mut product {
        text.truncate(text.find("#[cfg(test)]").unwrap_or(text.len()));
    }
    product
}

/// Returns the files that contain `"word"`.
fn naming<'p>(product: &'p [(String, String)], word: &str) -> Vec<&'p str> {
    let quoted = format!("\"{word}\"");
    product.iter().filter(|(_, text)| text.contains(&quoted)).map(|(path, _)| path.as_str()).collect()
}

/// Calls that report commands to observers.
const TELLS_OF_COMMANDS: &[&str] =
    &["monitor::observe(", "monitor::line_for_later(", "sampling::note(", "timing::note_long("];

#[test]
fn observers_of_commands_are_told_where_commands_end() {
    let mut found = Vec::new();
    for (path, text) in product() {
        let others = TELLS_OF_COMMANDS.iter().filter(|tells| text.contains(**tells));
        let others = others.filter(|_| path != "server/src/run/finish.rs");
        found.extend(others.map(|tells| format!("{path} has {tells}…)")));
    }
    none("Observers of commands are told in `run/finish.rs` alone:", found);
    let finish = document("server/src/run/finish.rs");
    assert!(TELLS_OF_COMMANDS.iter().all(|tells| finish.contains(tells)), "an observer has another name");
}

/// Places where a command's name means something else.
const OTHER_MEANINGS: Exceptions = &[
    ("server/src/command/families/stubs.rs", "failover", "a subcommand of CLUSTER"),
    ("server/src/command/families/libraries.rs", "restore", "FUNCTION RESTORE"),
    ("server/src/catalog/facts.rs", "cluster", "a group of commands"),
    ("server/src/command/reports/info.rs", "cluster", "a section of INFO"),
    ("server/src/catalog/flags.rs", "readonly", "a flag of commands"),
    ("server/src/telemetry/latency_monitor.rs", "command", "an event of the latency monitor"),
    ("server/src/command/families/libraries.rs", "command", "what FUNCTION STATS calls a function's words"),
];

/// Only longer names, because short ones may be words of options.
#[test]
fn a_command_is_named_by_its_family_only() {
    let product = product();
    let mut found = Vec::new();
    let mut n_seen = 0;
    for command in TABLE.top().iter().filter(|command| command.spec.name.len() > 6) {
        let files: Vec<&str> = naming(&product, command.spec.name)
            .into_iter()
            // Directives may have a command's name.
            .filter(|path| !path.starts_with("server/src/config/"))
            .filter(|path| {
                !OTHER_MEANINGS.iter().any(|(of, word, _)| of == path && *word == command.spec.name)
            })
            .map(|path| path.trim_end_matches(".rs"))
            .collect();
        n_seen += 1;
        let is_one = files.first().is_some_and(|family| files.iter().all(|file| file.starts_with(family)));
        if !is_one {
            found.push(format!("{}: {files:?}", command.spec.name));
        }
    }
    assert!(n_seen > 50);
    none("A command is a row and a function in the file of its family:", found);
}

/// Files that name directives besides their rows.
const NAMED_DIRECTIVES: Exceptions = &[
    ("server/src/config/configuration.rs", "io-threads", "its default is the number of cores"),
    ("server/src/metrics/memory_rows.rs", "maxmemory-policy", "INFO prints its word"),
    ("server/src/metrics/server_rows.rs", "repl-backlog-size", "INFO prints it"),
    ("server/src/process/title.rs", "tls-port", "a variable of the title"),
    (
        "server/src/command/admin/config_command.rs",
        "tls-port",
        "the one of the listening ports that CONFIG SET could not open",
    ),
];

#[test]
fn a_directive_is_named_by_its_row_only() {
    let product = product();
    let mut found = Vec::new();
    for row in directives().iter().filter(|row| row.name.contains('-')) {
        let files = naming(&product, row.name);
        assert!(files.contains(&"server/src/config/directives.rs"), "{} is in no row", row.name);
        for file in files.into_iter().filter(|path| *path != "server/src/config/directives.rs") {
            found.push((file.to_owned(), row.name.to_owned(), format!("{file}: {}", row.name)));
        }
    }
    none("A directive is a row of server/src/config/directives.rs:", excepting(NAMED_DIRECTIVES, found));
}

/// Files that pick figures by name: labels of the server, the status page, and HELLO.
const PICK_FIGURES: &[&str] = &[
    "server/src/status/exposition.rs",
    "server/src/status/snapshot.rs",
    // HELLO has the field of INFO.
    "server/src/command/connections/handshake.rs",
];

/// Names of more than one word, which have no other meaning.
#[test]
fn a_figure_is_named_by_its_row_only() {
    let product = product();
    let is_row = |path: &str| path.starts_with("server/src/metrics/");
    let mut found = Vec::new();
    let mut n_seen = 0;
    for row in metrics::all() {
        let names = row.field.into_iter().chain(row.shown.map(|shown| shown.name));
        for name in names.filter(|name| name.contains('_')) {
            let files = naming(&product, name);
            n_seen += usize::from(files.iter().any(|path| is_row(path)));
            let others = files.into_iter().filter(|path| !is_row(path) && !PICK_FIGURES.contains(path));
            found.extend(others.map(|path| format!("{path}: {name}")));
        }
    }
    assert!(n_seen > 300, "the search has missed the rows: {n_seen}");
    none("A figure is a row of server/src/metrics/:", found);
}

/// The places that know the types of values one by one are those of the checklist.
#[test]
fn the_checklist_of_a_type_names_every_place() {
    let (_, _, items) =
        checklists().into_iter().find(|(name, ..)| name == "A type").expect("it is one of them");
    let items = items.join("\n");
    let mut found = Vec::new();
    let mut n_seen = 0;
    for source in crates().iter().flat_map(|krate| sources(&format!("{krate}/src"))) {
        // Streams are a type like any other, and the least likely to share code with another.
        if source.joined().contains("Kind::Stream") {
            n_seen += 1;
            let is_own =
                source.path.starts_with("storage/src/types/stream") || source.path.contains("/stream");
            if !is_own && !items.contains(&format!("`{}`", source.path)) {
                found.push(source.path);
            }
        }
    }
    assert!(n_seen > 3, "the search has missed the places: {n_seen}");
    none("Places that name a type and are not on the checklist:", found);
}
