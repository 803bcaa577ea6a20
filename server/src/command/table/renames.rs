//! `rename-command`: names that replace commands' own names.

use std::collections::{BTreeMap, HashMap};

use crate::{catalog::shown, config::RenamedCommand};

/// The names that clients use, by the commands' own names; `None` for hidden commands.
pub(in crate::command) type CalledNames = HashMap<&'static str, Option<Vec<u8>>>;

/// Applies `rename-command` to the commands' own names.
///
/// # Errors
/// If a command does not exist, or a new name is taken. The error has Redis's words.
pub(in crate::command) fn called_names(
    own: impl Iterator<Item = &'static str>,
    renamed: &[RenamedCommand],
) -> Result<CalledNames, String> {
    let mut by_called: BTreeMap<Vec<u8>, &'static str> =
        own.map(|name| (name.as_bytes().to_vec(), name)).collect();
    let mut names: CalledNames = by_called.values().map(|&own| (own, None)).collect();
    for RenamedCommand { from, to } in renamed {
        let refused = |why: &str| {
            let to = to.as_deref().unwrap_or_default();
            format!("rename-command {} \"{}\": {why}", shown(from), shown(to))
        };
        let own = by_called
            .remove(&from.to_ascii_lowercase())
            .ok_or_else(|| refused("No such command in rename-command"))?;
        let Some(to) = to else { continue };
        let taken = by_called.insert(to.to_ascii_lowercase(), own);
        if taken.is_some() {
            return Err(refused("Target command name already exists"));
        }
    }
    for (called, own) in by_called {
        names.insert(own, Some(called));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(lines: &[(&str, &str)], own: &str) -> Result<Option<String>, String> {
        let line = |&(from, to): &(&str, &str)| RenamedCommand {
            from: from.into(),
            to: (!to.is_empty()).then(|| to.into()),
        };
        let lines: Vec<_> = lines.iter().map(line).collect();
        let names = called_names(["del", "get", "set"].into_iter(), &lines)?;
        Ok(names[own].clone().map(|name| String::from_utf8(name).unwrap()))
    }

    #[test]
    fn lines_are_obeyed_in_their_order() {
        assert_eq!(called(&[], "get"), Ok(Some("get".into())));
        assert_eq!(called(&[("GET", "")], "get"), Ok(None));
        assert_eq!(called(&[("get", "Fetch")], "get"), Ok(Some("fetch".into())));
        let swapped = [("get", "tmp"), ("set", "get"), ("tmp", "set")];
        assert_eq!(called(&swapped, "get"), Ok(Some("set".into())));
        assert_eq!(called(&swapped, "set"), Ok(Some("get".into())));
    }

    #[test]
    fn a_command_that_is_not_there_and_a_name_that_is_taken_are_refused() {
        let unknown = called(&[("nosuch", "x")], "get").unwrap_err();
        assert!(unknown.ends_with("No such command in rename-command"), "{unknown}");
        let gone = called(&[("get", ""), ("get", "x")], "get").unwrap_err();
        assert!(gone.ends_with("No such command in rename-command"), "{gone}");
        let taken = called(&[("get", "set")], "get").unwrap_err();
        assert!(taken.ends_with("Target command name already exists"), "{taken}");
    }
}
