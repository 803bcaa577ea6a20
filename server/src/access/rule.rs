//! Rules as words: how they are merged, and why one is refused.

use std::fmt;

use crate::catalog::shown;

/// The reason why a rule is refused. Prints as Redis does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// It is no rule, or has an impossible pattern.
    Syntax,
    /// It names a command or a category that does not exist.
    Unknown,
    /// It adds a pattern of keys where all keys are allowed.
    KeysBehindAll,
    /// It adds a pattern of channels where all channels are allowed.
    ChannelsBehindAll,
    /// It removes a password that does not exist.
    NoSuchPassword,
    /// Its hash is not valid.
    BadHash,
    /// It names a database that cannot exist.
    DatabaseOutOfRange,
    /// It allows a subcommand with a certain argument.
    ArgumentOfSubcommand,
}

impl fmt::Display for RuleError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            RuleError::Syntax => "Syntax error",
            RuleError::Unknown => "Unknown command or category name in ACL",
            RuleError::KeysBehindAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try \
                 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::ChannelsBehindAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try \
                 'resetchannels' to start with an empty list of channels"
            }
            RuleError::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            RuleError::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            RuleError::DatabaseOutOfRange => "The provided database ID is out of range",
            RuleError::ArgumentOfSubcommand => "Allowing first-arg of a subcommand is not supported",
        })
    }
}

/// The reason why the rules of a user are refused. Prints as Redis's reply to ACL SETUSER without the leading
/// `ERR `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserError {
    /// A selector is not closed. It begins with this word.
    Unmatched(Vec<u8>),
    /// This rule is refused.
    Rule(Vec<u8>, RuleError),
}

impl fmt::Display for UserError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserError::Unmatched(word) => {
                write!(out, "Unmatched parenthesis in acl selector starting at '{}'.", shown(word))
            }
            UserError::Rule(rule, why) => {
                write!(out, "Error in ACL SETUSER modifier '{}': {why}", shown(rule))
            }
        }
    }
}

impl std::error::Error for UserError {}

/// Whether a text has a byte that would cut a description of users.
pub fn has_spaces(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b' ' | b'\t'..=b'\r' | 0))
}

/// Merges selectors that are spread over several words.
///
/// # Errors
/// The first word of a selector that is not closed.
pub fn merge<W: AsRef<[u8]>>(words: &[W]) -> Result<Vec<Vec<u8>>, UserError> {
    let mut merged: Vec<Vec<u8>> = Vec::with_capacity(words.len());
    let mut open: Option<(&[u8], Vec<u8>)> = None;
    for word in words {
        let word = word.as_ref();
        // As in Redis, a selector that begins before another is closed replaces it.
        if word.first() == Some(&b'(') && word.last() != Some(&b')') {
            open = Some((word, word.to_vec()));
            continue;
        }
        match &mut open {
            None => merged.push(word.to_vec()),
            Some((_, selector)) => {
                selector.push(b' ');
                selector.extend_from_slice(word);
                if word.last() == Some(&b')')
                    && let Some((_, selector)) = open.take()
                {
                    merged.push(selector);
                }
            }
        }
    }
    match open {
        Some((word, _)) => Err(UserError::Unmatched(word.to_vec())),
        None => Ok(merged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(words: &[&str]) -> Result<Vec<String>, String> {
        let merged = merge(words).map_err(|error| error.to_string())?;
        Ok(merged.into_iter().map(|word| String::from_utf8(word).unwrap()).collect())
    }

    #[test]
    fn a_selector_may_be_spread_over_words() {
        assert_eq!(merged(&["on", "(~a", "+get", ")", "off"]).unwrap(), ["on", "(~a +get )", "off"]);
        assert_eq!(merged(&["(", "~a", "+get)", "(~b +get)"]).unwrap(), ["( ~a +get)", "(~b +get)"]);
        assert_eq!(merged(&["()", "", ")"]).unwrap(), ["()", "", ")"]);
        let why = "Unmatched parenthesis in acl selector starting at '(~a'.";
        assert_eq!(merged(&["on", "(~a", "+get"]).unwrap_err(), why);
    }

    #[test]
    fn spaces_are_those_of_c() {
        for space in [" ", "\t", "\n", "\x0b", "\x0c", "\r", "\0"] {
            assert!(has_spaces(format!("a{space}b").as_bytes()), "{space:?}");
        }
        assert!(!has_spaces("aé\x08\x7f".as_bytes()));
    }
}
