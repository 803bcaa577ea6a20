//! What MONITOR and the slow log show of a command's words: not those that may be secrets.

use crate::{
    catalog::{Flags, Words},
    config::is_sensitive,
};

/// What is shown of a hidden word.
const HIDDEN: &[u8] = b"(redacted)";

/// The words of a command as they may be shown, of which the first `n_names` name it.
pub fn shown<'a>(flags: Flags, n_names: usize, words: Words<'a>) -> impl ExactSizeIterator<Item = &'a [u8]> {
    let mut n_secret = 0usize;
    words.iter().enumerate().map(move |(at, word)| {
        let hidden = flags.has(Flags::SECRET) && at >= n_names || n_secret > 0;
        n_secret = n_secret.saturating_sub(1);
        if flags.has(Flags::SECRET_AFTER_AUTH) && !hidden && word.eq_ignore_ascii_case(b"auth") {
            n_secret = 2;
        }
        if flags.has(Flags::SECRET_DIRECTIVES) && !hidden && at >= n_names && is_sensitive(word) {
            n_secret = 1;
        }
        if hidden { HIDDEN } else { word }
    })
}
