//! The command table for access control, under the original names of commands.

use crate::{
    access::{CommandForm, Commands, NamedCommand},
    catalog::{Categories, CommandId},
    command::{CommandTable, Registered},
};

/// The commands and subcommands of Redis 7.4, one on each line.
///
/// Rules may also name those that Braid does not have. So users' files for Redis load, and such rules have no
/// effect.
const REDIS_7_4: &str = include_str!("redis-7.4-commands.txt");

/// The further commands and subcommands of Redis 8.10, with its modules, and of Valkey 9.1.
const LATER: &str = include_str!("later-commands.txt");

/// The categories of the modules of Redis 8.10 and of Valkey, and of types that Braid does not have.
const FURTHER_CATEGORIES: &[&str] =
    &["array", "bloom", "cms", "cuckoo", "json", "search", "tdigest", "timeseries", "topk", "vectorset"];

/// All names of the lists.
fn listed() -> impl Iterator<Item = &'static str> {
    REDIS_7_4.lines().chain(LATER.lines())
}

impl CommandTable {
    /// Returns the commands that access control judges: all except those that count as their container.
    fn judged(&self) -> impl Iterator<Item = &'static Registered> {
        self.all().iter().copied().filter(|command| !command.counts_as_parent)
    }
}

/// Returns the numbers of a command and of its subcommands.
fn numbers(command: &Registered) -> Vec<CommandId> {
    let contained = command.subcommands().filter(|sub| !sub.counts_as_parent);
    std::iter::once(command.id).chain(contained.map(|sub| sub.id)).collect()
}

impl Commands for CommandTable {
    fn named(&self, name: &[u8]) -> Option<NamedCommand> {
        let Some(command) = self.originally(name).filter(|command| !command.counts_as_parent) else {
            return named_in_redis(name, self);
        };
        let form = match () {
            () if command.parent.is_some() => CommandForm::Subcommand,
            () if command.subcommands().any(|sub| !sub.counts_as_parent) => CommandForm::Container,
            () => CommandForm::Plain,
        };
        Some(NamedCommand { full_name: command.full_name.to_owned(), ids: numbers(command), form })
    }

    fn knows_category(&self, name: &[u8]) -> bool {
        FURTHER_CATEGORIES.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
    }

    fn each(&self, each: &mut dyn FnMut(&[CommandId], Categories)) {
        for command in self.judged() {
            each(&numbers(command), Categories::of(command));
        }
    }
}

/// Finds a command of Redis that Braid does not have.
fn named_in_redis(name: &[u8], table: &CommandTable) -> Option<NamedCommand> {
    let found = listed().find(|line| line.as_bytes().eq_ignore_ascii_case(name))?;
    if table.originally(found.as_bytes()).is_some() {
        // It counts as its container, which is a plain command in Redis.
        return None;
    }
    let is_within = |line: &str| line.strip_prefix(found).is_some_and(|rest| rest.starts_with('|'));
    let form = match () {
        () if found.contains('|') => CommandForm::Subcommand,
        () if listed().any(is_within) => CommandForm::Container,
        () => CommandForm::Plain,
    };
    Some(NamedCommand { full_name: found.to_owned(), ids: Vec::new(), form })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::TABLE;

    #[test]
    fn what_counts_as_its_container_is_an_argument_of_it() {
        let debug = TABLE.named(b"DEBUG").unwrap();
        assert_eq!((debug.form, debug.ids.len()), (CommandForm::Plain, 1));
        assert_eq!(TABLE.named(b"debug|object"), None);
        let client = TABLE.named(b"client").unwrap();
        assert!(client.form == CommandForm::Container && client.ids.len() > 10);
        let kill = TABLE.named(b"Client|KILL").unwrap();
        assert_eq!(
            (kill.full_name.as_str(), kill.form, kill.ids.len()),
            ("client|kill", CommandForm::Subcommand, 1)
        );
        assert_eq!(TABLE.named(b"get").unwrap().form, CommandForm::Plain);
        for unknown in [&b"nosuch"[..], b"get|x", b"client|nosuch", b"client|kill|x", b""] {
            assert_eq!(TABLE.named(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn commands_of_redis_that_are_not_there_have_no_numbers() {
        let there = |name: &str| TABLE.originally(name.as_bytes()).is_some();
        let absent: Vec<&str> = listed().filter(|name| !there(name)).collect();
        assert!(absent.len() > 150, "{}", absent.len());
        for name in absent {
            let named = TABLE.named(name.as_bytes()).unwrap();
            assert!(named.ids.is_empty() && named.full_name == name, "{name}");
        }
        let form = |name: &str| TABLE.named(name.as_bytes()).unwrap().form;
        assert_eq!(form("CLIENT|capa"), CommandForm::Subcommand);
        assert_eq!((form("himport"), form("FT.SEARCH")), (CommandForm::Container, CommandForm::Plain));
        assert!(TABLE.knows_category(b"JSON") && !TABLE.knows_category(b"nosuch"));
    }
}
