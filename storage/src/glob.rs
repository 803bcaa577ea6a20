//! Glob patterns, as Redis's `stringmatchlen` reads them.

/// Whether letters match letters of the other case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// `a` matches `a`.
    Sensitive,
    /// `a` matches `a` and `A` (ASCII letters only).
    Insensitive,
}

/// Says whether `text` matches `pattern`, to the byte as Redis says it.
///
/// Redis's odd answers are kept: a pattern of stars does not match the empty text (KEYS and SCAN never ask:
/// they let [`matches_everything`] pass first), bytes above 127 are negative in ranges, an unterminated `[`
/// ends with the pattern, and an escaped byte in brackets heeds case always.
///
/// A star that has matched is never reconsidered once a later star has matched too, so the time is at most
/// the product of the lengths, where naive recursion is exponential in the stars.
pub fn glob_match(pattern: &[u8], text: &[u8], case: Case) -> bool {
    let (mut p, mut t) = (0, 0);
    // Behind the last star, and where in the text it was last tried.
    let mut retry: Option<(usize, usize)> = None;
    while p < pattern.len() && t < text.len() {
        if pattern[p] == b'*' {
            p += count_stars(&pattern[p..]);
            if p == pattern.len() {
                return true;
            }
            retry = Some((p, t));
            continue;
        }
        let (matched, len) = match_one(&pattern[p..], text[t], case);
        if matched {
            p += len;
            t += 1;
            if t < text.len() {
                if p < pattern.len() {
                    continue;
                }
            } else if p + count_stars(&pattern[p..]) == pattern.len() {
                return true;
            }
        }
        match &mut retry {
            Some((behind_star, tried)) if *tried + 1 < text.len() => {
                *tried += 1;
                (p, t) = (*behind_star, *tried);
            }
            _ => return false,
        }
    }
    p == pattern.len() && t == text.len()
}

/// How much of a pattern, from its beginning, stands for itself.
pub fn literal_len(pattern: &[u8]) -> usize {
    pattern.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(pattern.len())
}

/// [`glob_match`], heeding case, for a pattern of which the [literal](literal_len) length is known: most
/// texts are told apart by what they begin with.
pub fn glob_match_from(pattern: &[u8], n_literal: usize, text: &[u8]) -> bool {
    let (literal, rest) = pattern.split_at(n_literal);
    match rest {
        [] => text == literal,
        _ if !text.starts_with(literal) => false,
        b"*" if n_literal > 0 => true,
        _ => glob_match(pattern, text, Case::Sensitive),
    }
}

/// Says whether a pattern is the one that KEYS and SCAN take for "all keys" without matching.
pub fn matches_everything(pattern: &[u8]) -> bool {
    pattern == b"*"
}

/// The bytes that every match of the pattern begins with.
pub fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let len = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    &pattern[..len.unwrap_or(pattern.len())]
}

/// Says whether the pattern matches only the text equal to it.
pub fn is_literal(pattern: &[u8]) -> bool {
    literal_prefix(pattern).len() == pattern.len()
}

fn count_stars(pattern: &[u8]) -> usize {
    pattern.iter().take_while(|&&byte| byte == b'*').count()
}

/// Matches one byte against the element at the start of the pattern, which is no star; also gives the
/// element's length.
fn match_one(pattern: &[u8], byte: u8, case: Case) -> (bool, usize) {
    match pattern[0] {
        b'?' => (true, 1),
        b'[' => match_brackets(pattern, byte, case),
        b'\\' if pattern.len() >= 2 => (same(pattern[1], byte, case), 2),
        literal => (same(literal, byte, case), 1),
    }
}

fn match_brackets(pattern: &[u8], byte: u8, case: Case) -> (bool, usize) {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut matched = false;
    loop {
        match &pattern[at..] {
            [] => break,
            [b'\\', escaped, ..] => {
                matched |= *escaped == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [first, b'-', last, ..] => {
                matched |= in_range(*first, *last, byte, case);
                at += 3;
            }
            [literal, ..] => {
                matched |= same(*literal, byte, case);
                at += 1;
            }
        }
    }
    (matched != negated, at)
}

/// Redis compares the ends of a range as C's `char`, which has a sign where Redis mostly runs, and takes them
/// in either order.
fn in_range(first: u8, last: u8, byte: u8, case: Case) -> bool {
    let (low, high) = ((first as i8).min(last as i8), (first as i8).max(last as i8));
    let fold = |byte: i8| match case {
        Case::Sensitive => byte,
        Case::Insensitive => (byte as u8).to_ascii_lowercase() as i8,
    };
    (fold(low)..=fold(high)).contains(&fold(byte as i8))
}

fn same(pattern: u8, byte: u8, case: Case) -> bool {
    match case {
        Case::Sensitive => pattern == byte,
        Case::Insensitive => pattern.eq_ignore_ascii_case(&byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        let table: &[(&str, &str, bool)] = &[
            ("hello", "hello", true),
            ("hello", "hell", false),
            ("hell", "hello", false),
            ("h?llo", "hallo", true),
            ("h?llo", "hllo", false),
            ("h*llo", "hllo", true),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hbllo", true),
            ("h[a-b]llo", "hcllo", false),
            ("h\\[a", "h[a", true),
            ("h\\*", "h*", true),
            ("h\\*", "hx", false),
            ("a\\", "a\\", true),
            ("[\\]]", "]", true),
            ("[a\\-z]", "-", true),
            ("[a\\-z]", "b", false),
            ("[a-", "a", true),
            ("[a-", "-", true),
            ("[abc", "b", true),
            ("[", "[", false),
            ("[^", "x", true),
            ("[]", "x", false),
            ("[^]", "x", true),
            ("[]a]", "a]", false),
            ("*", "x", true),
            ("*", "", false),
            ("**", "abc", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "a", true),
            ("a**", "a", true),
            ("a**b", "ab", true),
            ("*a", "a", true),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a?", "a", false),
            ("*?", "a", true),
            ("*?a", "a", false),
            ("a*a*a*b", "aaaab", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("*[0-9]", "abc7", true),
            ("*[0-9]", "abc", false),
            ("H*", "hello", false),
            ("user:*:name", "user:17:name", true),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(
                glob_match(pattern.as_bytes(), text.as_bytes(), Case::Sensitive),
                *expected,
                "{pattern} against {text}"
            );
        }
    }

    #[test]
    fn case_is_folded_on_request_but_for_escapes_in_brackets() {
        assert!(glob_match(b"MaxMemory*", b"maxmemory-policy", Case::Insensitive));
        assert!(glob_match(b"[A-C]", b"b", Case::Insensitive));
        assert!(glob_match(b"\\A", b"a", Case::Insensitive));
        assert!(!glob_match(b"[\\A]", b"a", Case::Insensitive));
    }

    #[test]
    fn bytes_above_127_are_negative_in_ranges() {
        assert!(glob_match(b"[\x80-\xff]", b"\x90", Case::Sensitive));
        assert!(glob_match(b"[a-\xff]", b"0", Case::Sensitive));
        assert!(!glob_match(b"[a-\xff]", b"z", Case::Sensitive));
    }

    #[test]
    fn many_stars_take_polynomial_time() {
        let text = [b'a'; 20_000];
        assert!(!glob_match(
            &b"a*".repeat(40).into_iter().chain(*b"b").collect::<Vec<_>>(),
            &text,
            Case::Sensitive
        ));
    }

    /// Redis's algorithm in its recursive form, to compare with.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([], _) => false,
            ([b'*', rest @ ..], _) => naive(rest, text) || (!text.is_empty() && naive(pattern, &text[1..])),
            (_, []) => false,
            _ => {
                let (matched, len) = match_one(pattern, text[0], Case::Sensitive);
                matched && naive(&pattern[len..], &text[1..])
            }
        }
    }

    #[test]
    fn agrees_with_the_recursive_definition() {
        let mut state = 1u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for _ in 0..200_000 {
            let pattern: Vec<u8> = (0..random(8)).map(|_| b"ab*?[]^\\-"[random(9)]).collect();
            let text: Vec<u8> = (0..1 + random(6)).map(|_| b"ab]-"[random(4)]).collect();
            assert_eq!(
                glob_match(&pattern, &text, Case::Sensitive),
                naive(&pattern, &text),
                "{:?} against {:?}",
                String::from_utf8_lossy(&pattern),
                String::from_utf8_lossy(&text)
            );
        }
    }

    #[test]
    fn literal_prefixes() {
        assert_eq!(literal_prefix(b"user:*"), b"user:");
        assert_eq!(literal_prefix(b"a\\*"), b"a");
        assert!(is_literal(b"plain"));
        assert!(!is_literal(b"a?"));
        assert!(matches_everything(b"*"));
    }

    #[test]
    fn what_a_pattern_begins_with_changes_nothing() {
        let patterns: [&[u8]; 12] =
            [b"", b"*", b"**", b"a", b"a*", b"ab", b"ab*", b"a?", b"a*b", b"a[bc]", b"a\\*", b"*a"];
        let texts: [&[u8]; 9] = [b"", b"a", b"ab", b"abc", b"b", b"ac", b"a*", b"ba", b"aab"];
        for pattern in patterns {
            for text in texts {
                assert_eq!(
                    glob_match_from(pattern, literal_len(pattern), text),
                    glob_match(pattern, text, Case::Sensitive),
                    "{pattern:?} {text:?}"
                );
            }
        }
    }
}
