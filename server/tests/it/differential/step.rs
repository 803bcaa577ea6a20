//! The steps that are played on both servers, one after the other.

use super::same::Same;
use crate::support::{Reply, values::Argv};

/// The number of clients in an episode.
pub const N_CLIENTS: usize = 2;

/// The number of the client that inspects the effects of the others. It starts no transaction.
pub const INSPECTOR: usize = N_CLIENTS;

/// A step of an episode.
#[derive(Clone, Debug)]
pub enum Step {
    /// A client sends a command. The replies are compared.
    Command { client: usize, argv: Argv, same: Same },
    /// Time passes until deadlines one millisecond ahead are over.
    Lapse,
}

impl Step {
    /// Makes a command of the inspector.
    pub fn inspect(words: &[&[u8]], same: Same) -> Step {
        Step::Command { client: INSPECTOR, argv: words.iter().map(|word| word.to_vec()).collect(), same }
    }

    /// Returns the command's name.
    pub fn name(&self) -> String {
        match self {
            Step::Command { argv, .. } => String::from_utf8_lossy(&argv[0]).to_ascii_lowercase(),
            Step::Lapse => String::new(),
        }
    }

    /// Returns the step in the notation of transcripts.
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

/// Returns a word, quoted where necessary. Many equal letters are abbreviated as in transcripts.
fn word_text(word: &[u8]) -> String {
    if word.len() > 20 && word.iter().all(|byte| *byte == word[0]) {
        return format!("%{}*{}%", word[..1].escape_ascii(), word.len());
    }
    let is_plain =
        !word.is_empty() && word.iter().all(|byte| byte.is_ascii_graphic() && !b"\"'\\".contains(byte));
    if is_plain { String::from_utf8_lossy(word).into_owned() } else { Reply::Bulk(word.to_vec()).to_string() }
}

/// A difference between two servers.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The index of the step.
    pub at: usize,
    /// The replies of the server under test and of the reference.
    pub ours: String,
    pub theirs: String,
}
