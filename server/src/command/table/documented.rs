//! Facts for `COMMAND DOCS` that the rows of the table do not have: `documented.txt`.

use std::{collections::HashMap, sync::LazyLock};

use super::syntax::{Argument, ArgumentKind};

/// The facts, one a line.
const FACTS: &str = include_str!("documented.txt");

/// The facts about one command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Documented {
    /// The versions that changed it, each with the change.
    pub history: Vec<(&'static str, &'static str)>,
    /// Whether it is for the server's own use.
    pub is_system: bool,
    /// The arguments, where the syntax of the row does not tell their names and types.
    pub arguments: Option<Vec<Argument<'static>>>,
}

static DOCUMENTED: LazyLock<HashMap<&'static str, Documented>> =
    LazyLock::new(|| read(FACTS).unwrap_or_else(|why| unreachable!("documented.txt: {why}")));

/// Returns the facts about a command, if there are any.
pub(super) fn documented(full_name: &str) -> Option<&'static Documented> {
    DOCUMENTED.get(full_name)
}

/// Reads lines of facts.
///
/// # Errors
/// The first line that cannot be understood.
fn read(text: &'static str) -> Result<HashMap<&'static str, Documented>, String> {
    let mut all: HashMap<&'static str, Documented> = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, fact) = line.split_once(' ').ok_or(line)?;
        let of_name = all.entry(name).or_default();
        match fact.split_once(' ') {
            None if fact == "system" => of_name.is_system = true,
            Some(("history", entry)) => of_name.history.push(history_entry(entry).ok_or(line)?),
            Some(("arguments", tree)) => {
                let mut rest = tree;
                of_name.arguments = Some(read_tree(&mut rest).filter(|_| rest.is_empty()).ok_or(line)?);
            }
            _ => return Err(line.to_owned()),
        }
    }
    Ok(all)
}

/// Splits a version from the change. A version of Valkey has two words.
fn history_entry(entry: &'static str) -> Option<(&'static str, &'static str)> {
    let after = entry.strip_prefix("valkey ").unwrap_or(entry);
    let end = entry.len() - after.len() + after.find(' ')?;
    Some((&entry[..end], &entry[end + 1..]))
}

/// Reads arguments that blanks divide, up to a closing parenthesis or the end.
fn read_tree(rest: &mut &'static str) -> Option<Vec<Argument<'static>>> {
    let mut arguments = Vec::new();
    loop {
        arguments.push(read_argument(rest)?);
        match rest.strip_prefix(' ') {
            Some(after) => *rest = after,
            None => return Some(arguments),
        }
    }
}

fn read_argument(rest: &mut &'static str) -> Option<Argument<'static>> {
    let name = take_until(rest, &[':']).to_owned();
    *rest = rest.strip_prefix(':')?;
    let kind = ArgumentKind::named(take_until(rest, SIGNS))?;
    let mut argument = Argument { name, kind, ..Argument::default() };
    argument.optional = accept(rest, '?');
    argument.multiple = accept(rest, '+');
    argument.multiple_token = accept(rest, '*');
    argument.since = accept(rest, '@').then(|| take_until(rest, SIGNS));
    argument.deprecated_since = accept(rest, '!').then(|| take_until(rest, SIGNS));
    if accept(rest, '#') {
        argument.key_spec = Some(take_until(rest, SIGNS).parse().ok()?);
    }
    // A token may be one of the signs.
    argument.token = accept(rest, '=').then(|| take_until(rest, &[' ', '(', ')']));
    if accept(rest, '(') {
        argument.children = read_tree(rest)?;
        *rest = rest.strip_prefix(')')?;
    }
    Some(argument)
}

/// The signs that end a type, a version or a number.
const SIGNS: &[char] = &['?', '+', '*', '@', '!', '#', '=', ' ', '(', ')'];

fn take_until(rest: &mut &'static str, ends: &[char]) -> &'static str {
    let (taken, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
    *rest = after;
    taken
}

fn accept(rest: &mut &'static str, sign: char) -> bool {
    let after = rest.strip_prefix(sign);
    *rest = after.unwrap_or(rest);
    after.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{TABLE, table::syntax::arguments};

    fn tokens(arguments: &[Argument<'_>]) -> Vec<String> {
        let of_one = |argument: &Argument<'_>| {
            let own = argument.token.map(str::to_owned);
            own.into_iter().chain(tokens(&argument.children)).collect::<Vec<_>>()
        };
        let mut all: Vec<String> = arguments.iter().flat_map(of_one).collect();
        all.sort();
        all
    }

    /// The syntax of a row and its tree say the same twice. An option that one of them lacks is a fault.
    #[test]
    fn trees_have_the_tokens_of_the_syntax() {
        // Their syntax says in words that the conditions have opposites, and leaves an old name out.
        let in_words = ["client|kill", "client|list"];
        for (&name, told) in DOCUMENTED.iter() {
            let Some(tree) = &told.arguments else { continue };
            let command = TABLE.originally(name.as_bytes()).unwrap_or_else(|| panic!("there is no {name}"));
            let (in_syntax, in_tree) = (tokens(&arguments(command.spec.syntax)), tokens(tree));
            let agree = match in_words.contains(&name) {
                true => in_syntax.iter().all(|token| in_tree.contains(token)),
                false => in_syntax == in_tree,
            };
            assert!(agree, "{name}: documented.txt has {in_tree:?}, and the row's syntax has {in_syntax:?}");
        }
    }

    #[test]
    fn facts_are_about_commands_that_exist() {
        for &name in DOCUMENTED.keys() {
            assert!(TABLE.originally(name.as_bytes()).is_some(), "there is no {name}");
        }
    }

    #[test]
    fn every_sign_of_a_tree_is_read() {
        let mut rest = "a:key+#1 b:block?+*@8.4.0!9.0.0=B(*:pure-token==) *:string?=*";
        let tree = read_tree(&mut rest).expect("it is a tree");
        assert_eq!(rest, "");
        let [key, block, last] = &tree[..] else { panic!("{tree:?}") };
        assert!(key.kind == ArgumentKind::Key && key.multiple && key.key_spec == Some(1) && !key.optional);
        assert!(block.kind == ArgumentKind::Block && block.optional && block.multiple_token);
        assert_eq!((block.since, block.deprecated_since), (Some("8.4.0"), Some("9.0.0")));
        assert_eq!((block.token, block.children[0].token), (Some("B"), Some("=")));
        assert_eq!((&last.name[..], last.token), ("*", Some("*")));
        assert!(read("get history 1.0.0").is_err(), "a change has a text");
        assert!(read("get arguments key:lock").is_err(), "there is no such type");
        assert!(read("get arguments key:key)").is_err(), "parentheses match");
        let read = read("get history valkey 9.1.0 Takes words.\nget system").expect("these are facts");
        assert_eq!(read["get"].history, [("valkey 9.1.0", "Takes words.")]);
        assert!(read["get"].is_system);
    }
}
