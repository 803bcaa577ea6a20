//! What is done to both servers, one thing after the other.

use super::{form::Argv, same::Same};
use crate::support::Reply;

/// How many clients take part.
pub const N_CLIENTS: usize = 2;

/// The number of the client that looks at what the others have done. It starts no transaction.
pub const INSPECTOR: usize = N_CLIENTS;

/// One thing.
#[derive(Clone, Debug)]
pub enum Step {
    /// A client sends a command; the replies are compared.
    Command { client: usize, argv: Argv, same: Same },
    /// So much time passes that deadlines a millisecond ahead are over.
    Lapse,
}

impl Step {
    /// A command of the inspector.
    pub fn inspect(words: &[&[u8]], same: Same) -> Step {
        Step::Command { client: INSPECTOR, argv: words.iter().map(|word| word.to_vec()).collect(), same }
    }

    /// The command's name.
    pub fn name(&self) -> String {
        match self {
            Step::Command { argv, .. } => String::from_utf8_lossy(&argv[0]).to_ascii_lowercase(),
            Step::Lapse => String::new(),
        }
    }

    /// As a transcript writes it.
    pub fn text(&self) -> String {
        match self {
            Step::Lapse => "(until deadlines a millisecond ahead are over)".to_owned(),
            Step::Command { client, argv, .. } => {
                let words: Vec<String> = argv.iter().map(|word| word_text(word)).collect();
                format!("{}> {}", client + 1, words.join(" "))
            }
        }
    }
}

/// A word, quoted where that is needed; one letter many times as transcripts write it.
fn word_text(word: &[u8]) -> String {
    if word.len() > 20 && word.iter().all(|byte| *byte == word[0]) {
        return format!("%{}*{}%", word[..1].escape_ascii(), word.len());
    }
    let is_plain =
        !word.is_empty() && word.iter().all(|byte| byte.is_ascii_graphic() && !b"\"'\\".contains(byte));
    if is_plain { String::from_utf8_lossy(word).into_owned() } else { Reply::Bulk(word.to_vec()).to_string() }
}

/// Where two servers differ.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Which of the steps.
    pub at: usize,
    /// What the server under test answered, and what the reference did.
    pub ours: String,
    pub theirs: String,
}
