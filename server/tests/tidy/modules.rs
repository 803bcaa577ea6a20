//! The uses between files, and the structures that must not result.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Exceptions, excepting, none,
    source::{Source, crates, sources},
};

/// Names that show only the place of a file, or that it is for tests.
const NAMED_BY_PLACE: &[&str] = &["mod.rs", "tests.rs", "lib.rs", "main.rs"];

/// Files with the same name that are still allowed.
const SAME_NAMES: Exceptions = &[];

#[test]
fn no_two_files_of_a_crate_have_one_name() {
    let mut found = Vec::new();
    for krate in crates() {
        let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for source in sources(&format!("{krate}/src")) {
            let name = source.path.rsplit('/').next().expect("a path has a last part").to_owned();
            by_name.entry(name).or_default().push(source.path);
        }
        by_name.retain(|name, paths| paths.len() > 1 && !NAMED_BY_PLACE.contains(&name.as_str()));
        for (name, paths) in by_name {
            let text = format!("{krate}: {}", paths.join(", "));
            found.push((krate.clone(), name, text));
        }
    }
    none("A file's name says which file is meant:", excepting(SAME_NAMES, found));
}

/// The most files that may use each other in a circle.
const MAX_CIRCLE: usize = 3;

/// Circles that are still allowed, by one file and the largest number of files of each. If a circle is
/// smaller by more than a quarter, its number must be lowered.
const CIRCLES: &[(&str, usize)] = &[];

#[test]
fn files_do_not_use_each_other_in_large_circles() {
    let mut found = Vec::new();
    let mut is_used = vec![false; CIRCLES.len()];
    for krate in crates() {
        let uses = Uses::of(&sources(&format!("{krate}/src")));
        assert!(
            uses.0.values().map(BTreeSet::len).sum::<usize>() > 5,
            "the search has missed {krate}'s paths"
        );
        for circle in uses.circles().into_iter().filter(|circle| circle.len() > MAX_CIRCLE) {
            let known = CIRCLES.iter().position(|(file, _)| circle.iter().any(|other| other == file));
            match known {
                Some(at) => {
                    is_used[at] = true;
                    let (n, allowed) = (circle.len(), CIRCLES[at].1);
                    if (allowed - allowed / 4..=allowed).contains(&n) {
                        continue;
                    }
                    let advice = if n < allowed { "lower the number to it" } else { "what has joined it?" };
                    found.push(format!(
                        "{}: a circle of {n} files, of at most {allowed}: {advice}\n    {}",
                        CIRCLES[at].0,
                        circle.join("\n    ")
                    ));
                }
                None => found.push(format!("a new circle of {} files: {}", circle.len(), circle.join(", "))),
            }
        }
    }
    let gone = CIRCLES.iter().zip(is_used).filter(|(_, is_used)| !is_used);
    found.extend(gone.map(|((file, _), _)| format!("{file}: its circle is no more, take it off the list")));
    none("What uses each other is one thing, and belongs in few files:", found);
}

/// For each file, the files of its crate whose names it uses. A name that a module reexports (`pub use`)
/// belongs to its origin.
pub(super) struct Uses(pub(super) BTreeMap<String, BTreeSet<String>>);

impl Uses {
    pub(super) fn of(sources: &[Source]) -> Uses {
        let modules = Modules::of(sources);
        let uses = sources.iter().map(|source| {
            let module = module_path(&source.path);
            let named =
                modules.paths[&module].iter().filter_map(|named| modules.resolve(&module, &named.path, 8));
            (source.path.clone(), named.filter(|path| *path != source.path).collect())
        });
        Uses(uses.collect())
    }

    /// Returns the sets of files in which each uses every other, directly or not.
    fn circles(&self) -> Vec<Vec<String>> {
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            self.0.keys().map(|file| (file, self.reached_from(file))).collect();
        let mut circles: Vec<Vec<String>> = Vec::new();
        for file in self.0.keys() {
            if circles.iter().flatten().any(|other| other == file) {
                continue;
            }
            let together = reached[file].iter().filter(|other| reached[**other].contains(file));
            let circle: Vec<String> = together.map(|other| (*other).clone()).collect();
            if circle.len() > 1 {
                circles.push(circle);
            }
        }
        circles
    }

    fn reached_from<'u>(&'u self, file: &'u String) -> BTreeSet<&'u String> {
        let mut reached = BTreeSet::new();
        let mut open = vec![file];
        while let Some(file) = open.pop() {
            open.extend(self.0[file].iter().filter(|next| reached.insert(*next)));
        }
        reached
    }
}

/// A path somewhere in a file, and its local name if a `use` gives it one.
struct Named {
    path: Vec<String>,
    known_as: Option<String>,
}

/// The modules of a crate.
struct Modules {
    /// The file of each module, by the module's path from the crate's root.
    files: BTreeMap<Vec<String>, String>,
    paths: BTreeMap<Vec<String>, Vec<Named>>,
}

impl Modules {
    fn of(sources: &[Source]) -> Modules {
        let files: BTreeMap<_, _> =
            sources.iter().map(|source| (module_path(&source.path), source.path.clone())).collect();
        let mut paths: BTreeMap<Vec<String>, Vec<Named>> = BTreeMap::new();
        for source in sources {
            let module = module_path(&source.path);
            let named = paths_in(&source.joined(), |word| {
                ["crate", "super", "self"].contains(&word) || files.contains_key(&child(&module, word))
            });
            paths.entry(module).or_default().extend(named);
        }
        Modules { files, paths }
    }

    /// Returns the file that defines the item of a path, as far as it can be followed.
    fn resolve(&self, from: &[String], path: &[String], n_steps: usize) -> Option<String> {
        let mut at: Vec<String> = from.to_vec();
        let mut rest = path.iter();
        let mut next = rest.next();
        while let Some(word) = next {
            match word.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                word if self.files.contains_key(&child(&at, word)) => at.push(word.to_owned()),
                word => {
                    let passed_on =
                        self.paths.get(&at)?.iter().find(|named| named.known_as.as_deref() == Some(word));
                    if let Some(named) = passed_on.filter(|_| n_steps > 0 && at != from) {
                        let whole = named.path.iter().chain(rest).cloned().collect::<Vec<_>>();
                        return self.resolve(&at, &whole, n_steps - 1);
                    }
                    break;
                }
            }
            next = rest.next();
        }
        self.files.get(&at).cloned()
    }
}

fn child(module: &[String], name: &str) -> Vec<String> {
    module.iter().map(String::as_str).chain([name]).map(str::to_owned).collect()
}

/// Returns the path of a file's module from the root of its crate.
fn module_path(path: &str) -> Vec<String> {
    let (_, inner) = path.split_once("/src/").expect("a source lies in src");
    let mut parts: Vec<String> = inner.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    match parts.last().map(String::as_str) {
        Some("mod") | Some("lib") => drop(parts.pop()),
        // A module that only the program has names the library from outside.
        Some("main") if parts.len() == 1 => parts = vec!["(main)".to_owned()],
        _ => {}
    }
    parts
}

/// Returns the paths in some code that begin with a word for which `begins` is true. Groups are written out.
fn paths_in(code: &str, begins: impl Fn(&str) -> bool) -> Vec<Named> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(offset) = code[at..].find(is_word) {
        let start = at + offset;
        let len = code[start..].find(|c| !is_word(c)).unwrap_or(code.len() - start);
        let word = &code[start..start + len];
        at = start + len;
        let is_inner = code[..start].ends_with([':', '.']);
        // A visibility names a place and uses nothing of it.
        let is_visibility = code[..start].ends_with("pub(in ");
        if is_inner || is_visibility || !code[at..].starts_with("::") || !begins(word) {
            continue;
        }
        let in_use = code[..start].rfind([';', '{', '}']).map_or(&code[..start], |end| &code[end + 1..start]);
        let in_use = has_use(in_use);
        at = start + take_tree(&code[start..], &[], in_use, &mut found);
    }
    found
}

fn has_use(before: &str) -> bool {
    before.split_whitespace().next_back() == Some("use")
}

/// Reads one path or group. Returns the number of bytes of `code` that it took.
fn take_tree(code: &str, prefix: &[String], in_use: bool, found: &mut Vec<Named>) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut path = prefix.to_vec();
    let mut at = 0;
    loop {
        let skipped = code[at..].len() - code[at..].trim_start().len();
        let rest = &code[at + skipped..];
        if rest.starts_with('{') && in_use {
            at += skipped + 1;
            loop {
                let rest = &code[at..];
                let gap = rest.len() - rest.trim_start_matches([' ', ',']).len();
                at += gap;
                if at >= code.len() || code[at..].starts_with('}') {
                    return (at + 1).min(code.len());
                }
                let taken = take_tree(&code[at..], &path, in_use, found);
                at += taken.max(1);
            }
        }
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if len == 0 {
            // A glob, or the end of a generic path.
            found.push(Named { path, known_as: None });
            let glob = usize::from(rest.starts_with('*'));
            return at + if glob > 0 { skipped + 1 } else { 0 };
        }
        path.push(rest[..len].to_owned());
        at += skipped + len;
        if code[at..].starts_with("::") {
            at += 2;
            continue;
        }
        let mut known_as = in_use.then(|| path.last().cloned()).flatten();
        if let Some(renamed) = code[at..].strip_prefix(" as ").filter(|_| in_use) {
            let len = renamed.find(|c| !is_word(c)).unwrap_or(renamed.len());
            known_as = Some(renamed[..len].to_owned());
            at += 4 + len;
        }
        if path.last().map(String::as_str) == Some("self") {
            path.pop();
            known_as = path.last().cloned();
        }
        found.push(Named { path, known_as });
        return at;
    }
}

/// The search itself: one that finds no path would find no circle.
mod search {
    use super::*;
    use crate::source::lines;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), lines: lines(text) }
    }

    #[test]
    fn paths_are_followed_to_the_files_where_things_are() {
        let sources = [
            source("x/src/lib.rs", "mod a; mod b; pub use b::inner::Thing as Renamed;"),
            source("x/src/a.rs", "use crate::{Renamed, b::{self, Other}}; fn f() { super::c::g::<u8>(); }"),
            source("x/src/b/mod.rs", "mod inner; pub use self::inner::{Thing, Fourth as Other};"),
            source(
                "x/src/b/inner.rs",
                "use super::super::a::f;\n#[cfg(test)]\nmod tests {\nuse crate::c;\n}",
            ),
            source("x/src/c.rs", "pub(in crate::a) fn g() { let crate_ = a::b; }"),
        ];
        let uses = Uses::of(&sources);
        let of = |file: &str| uses.0[file].iter().map(|path| &path[6..]).collect::<Vec<_>>();
        assert_eq!(of("x/src/lib.rs"), ["b/inner.rs"]);
        assert_eq!(of("x/src/a.rs"), ["b/inner.rs", "b/mod.rs", "c.rs"]);
        assert_eq!(of("x/src/b/mod.rs"), ["b/inner.rs"]);
        assert_eq!(of("x/src/b/inner.rs"), ["a.rs"]);
        assert_eq!(of("x/src/c.rs"), [""; 0]);
        let circle = ["x/src/a.rs", "x/src/b/inner.rs", "x/src/b/mod.rs"].map(str::to_owned).to_vec();
        assert_eq!(uses.circles(), [circle]);
    }
}
