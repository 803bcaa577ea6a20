//! The words of commands that MONITOR and the slow log show, without possible secrets.

use crate::{
    catalog::{Flags, Words},
    config::is_sensitive,
};

/// The replacement of a hidden word.
const HIDDEN: &[u8] = b"(redacted)";

/// Returns the words of a command in a form that may be shown. The first `n_names` of them name it.
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
