//! Known faults of redis-server 7.0 itself. Commands that meet them are not sent, so every difference is a
//! fault of the server under test.

use crate::support::values::Argv;

/// Whether a command would meet a fault of redis-server 7.0.
///
/// SORT by numbers refuses a number if `errno` says that one was out of range, and does not clear it before.
/// Any earlier command, such as `SCAN 18446744073709551616`, may have left it set. Then valid values are
/// refused with "One or more scores can't be converted into double".
pub fn has_a_fault(argv: &Argv) -> bool {
    sorts_by_numbers(argv)
}

/// Whether this is a SORT without ALPHA, whatever its other words.
fn sorts_by_numbers(argv: &Argv) -> bool {
    let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    if !is(&argv[0], "SORT") && !is(&argv[0], "SORT_RO") {
        return false;
    }
    let mut words = argv.iter().skip(2);
    while let Some(word) = words.next() {
        if is(word, "ALPHA") {
            return false;
        }
        let n_arguments = match () {
            () if is(word, "LIMIT") => 2,
            () if ["BY", "GET", "STORE"].iter().any(|name| is(word, name)) => 1,
            () => 0,
        };
        words.by_ref().take(n_arguments).for_each(drop);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sorting_by_numbers_is_avoided() {
        let has = |line: &str| has_a_fault(&line.split(' ').map(|word| word.as_bytes().to_vec()).collect());
        for line in
            ["SORT k", "sort k desc", "SORT k GET alpha", "SORT k LIMIT alpha 1", "SORT_RO k STORE ALPHA"]
        {
            assert!(has(line), "{line}");
        }
        for line in
            ["SORT k ALPHA", "sort k LIMIT 0 1 GET # alpha", "SORT_RO k ALPHA STORE x", "GET k", "SORTED k"]
        {
            assert!(!has(line), "{line}");
        }
    }
}
