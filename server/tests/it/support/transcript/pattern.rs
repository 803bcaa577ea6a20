//! Patterns with which replies are compared.

use std::collections::HashMap;

use crate::support::{Reply, Resp};

/// Texts that a transcript captured by name.
pub type Captures = HashMap<String, Vec<u8>>;

/// An expected reply.
#[derive(Clone, Debug)]
pub enum Pattern {
    Any,
    /// No reply at all.
    Nothing,
    Status(TextPattern),
    Error(TextPattern),
    Integer(i64),
    AnyInteger,
    Between(i64, i64),
    Bulk(TextPattern),
    Nil,
    NilArray,
    Double(f64),
    Boolean(bool),
    BigNumber(Vec<u8>),
    Verbatim(Vec<u8>, TextPattern),
    Array(Vec<Pattern>),
    UnorderedArray(Vec<Pattern>),
    /// An array of arrays, which is one array in RESP2.
    Flat(Vec<Pattern>),
    Set(Vec<Pattern>),
    Push(Vec<Pattern>),
    Map(Vec<Pattern>),
    /// A map whose pairs are arrays in RESP2.
    Pairs(Vec<Pattern>),
    Attribute(Vec<Pattern>, Box<Pattern>),
    /// Inside a collection: any number of elements.
    Rest,
    OneOf(Vec<Pattern>),
    Capture(String, Box<Pattern>),
}

/// An expected text.
#[derive(Clone, Debug)]
pub enum TextPattern {
    Any,
    Exact(Vec<u8>),
    /// `*` stands for any text.
    Glob(Vec<u8>),
    /// Globs, each of which some line of the text must match, in this order.
    Lines(Vec<Vec<u8>>),
}

impl Pattern {
    /// Whether a reply in a version of the protocol matches. If it does, the pattern's captures are kept.
    pub fn matches(&self, reply: &Reply, resp: Resp, captures: &mut Captures) -> bool {
        let three = resp == Resp::Three;
        match (self, reply) {
            (Pattern::Any, _) => true,
            (Pattern::OneOf(patterns), _) => {
                patterns.iter().any(|pattern| pattern.matches(reply, resp, captures))
            }
            (Pattern::Capture(name, pattern), _) => {
                let matched = pattern.matches(reply, resp, captures);
                if matched {
                    captures.insert(name.clone(), capturable(reply));
                }
                matched
            }
            (Pattern::Attribute(pairs, pattern), _) => match reply {
                Reply::Attribute(given, reply) if three => {
                    match_pairs(pairs, given, resp, captures) && pattern.matches(reply, resp, captures)
                }
                _ => !three && pattern.matches(reply, resp, captures),
            },
            (Pattern::Status(pattern), Reply::Status(text))
            | (Pattern::Error(pattern), Reply::Error(text))
            | (Pattern::Bulk(pattern), Reply::Bulk(text)) => pattern.matches(text, captures),
            (Pattern::Integer(expected), Reply::Integer(value)) => value == expected,
            (Pattern::AnyInteger, Reply::Integer(_)) => true,
            (Pattern::Between(low, high), Reply::Integer(value)) => (low..=high).contains(&value),
            (Pattern::Nil, Reply::Nil) | (Pattern::NilArray, Reply::NilArray) => !three,
            (Pattern::Nil | Pattern::NilArray, Reply::Null) => three,
            (Pattern::Double(expected), Reply::Double(text)) => three && same_number(*expected, text),
            (Pattern::Double(expected), Reply::Bulk(text)) => !three && same_number(*expected, text),
            (Pattern::Boolean(expected), Reply::Boolean(value)) => three && value == expected,
            (Pattern::Boolean(expected), Reply::Integer(value)) => !three && *value == i64::from(*expected),
            (Pattern::BigNumber(expected), Reply::BigNumber(digits)) => three && digits == expected,
            (Pattern::BigNumber(expected), Reply::Bulk(digits)) => !three && digits == expected,
            (Pattern::Verbatim(format, pattern), Reply::Verbatim(given, text)) => {
                three && given == format && pattern.matches(text, captures)
            }
            (Pattern::Verbatim(_, pattern), Reply::Bulk(text)) => !three && pattern.matches(text, captures),
            (Pattern::Array(patterns), Reply::Array(items)) => {
                match_in_order(patterns, items, resp, captures)
            }
            (Pattern::UnorderedArray(patterns), Reply::Array(items)) => {
                match_unordered(patterns, items, resp, captures)
            }
            (Pattern::Flat(patterns), Reply::Array(items)) if three => {
                match_in_order(patterns, items, resp, captures)
            }
            (Pattern::Flat(patterns), Reply::Array(items)) => {
                match_in_order(&flattened(patterns), items, resp, captures)
            }
            (Pattern::Set(patterns), Reply::Set(items)) => {
                three && match_unordered(patterns, items, resp, captures)
            }
            (Pattern::Set(patterns), Reply::Array(items)) => {
                !three && match_unordered(patterns, items, resp, captures)
            }
            (Pattern::Push(patterns), Reply::Push(items)) => {
                three && match_in_order(patterns, items, resp, captures)
            }
            (Pattern::Push(patterns), Reply::Array(items)) => {
                !three && match_in_order(patterns, items, resp, captures)
            }
            (Pattern::Map(patterns) | Pattern::Pairs(patterns), Reply::Map(pairs)) => {
                three && match_pairs(patterns, pairs, resp, captures)
            }
            (Pattern::Pairs(patterns), Reply::Array(items)) => {
                let pairs = items.iter().map(|item| match item {
                    Reply::Array(pair) if pair.len() == 2 => Some((pair[0].clone(), pair[1].clone())),
                    _ => None,
                });
                let pairs: Option<Vec<_>> = pairs.collect();
                !three && pairs.is_some_and(|pairs| match_pairs(patterns, &pairs, resp, captures))
            }
            (Pattern::Map(patterns), Reply::Array(items)) if items.len() % 2 == 0 => {
                let pairs: Vec<(Reply, Reply)> =
                    items.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
                !three && match_pairs(patterns, &pairs, resp, captures)
            }
            _ => false,
        }
    }
}

impl TextPattern {
    fn matches(&self, text: &[u8], captures: &Captures) -> bool {
        match self {
            TextPattern::Any => true,
            TextPattern::Exact(expected) => expand(expected, captures) == text,
            TextPattern::Glob(glob) => glob_matches(&expand(glob, captures), text),
            TextPattern::Lines(globs) => {
                let mut lines = text.split(|&byte| byte == b'\n').map(|line| line.trim_ascii_end());
                globs.iter().all(|glob| {
                    let glob = expand(glob, captures);
                    lines.any(|line| glob_matches(&glob, line))
                })
            }
        }
    }
}

/// Replaces the names of captured texts and repetitions (`%ab*3%`).
pub fn expand(text: &[u8], captures: &Captures) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.iter().position(|&byte| byte == b'%') {
        let replacement = rest[start + 1..].iter().position(|&byte| byte == b'%').and_then(|length| {
            let name = &rest[start + 1..][..length];
            let name = std::str::from_utf8(name).ok()?;
            let text = captures.get(name).cloned().or_else(|| repetition(name))?;
            Some((text, start + length + 2))
        });
        match replacement {
            Some((text, end)) => {
                out.extend_from_slice(&rest[..start]);
                out.extend_from_slice(&text);
                rest = &rest[end..];
            }
            None => {
                out.extend_from_slice(&rest[..=start]);
                rest = &rest[start + 1..];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

fn repetition(name: &str) -> Option<Vec<u8>> {
    let (text, times) = name.rsplit_once('*')?;
    Some(text.repeat(times.parse().ok()?).into_bytes())
}

fn capturable(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Integer(value) => value.to_string().into_bytes(),
        Reply::Status(text) | Reply::Error(text) | Reply::Bulk(text) | Reply::Verbatim(_, text) => {
            text.clone()
        }
        other => other.to_string().into_bytes(),
    }
}

fn same_number(expected: f64, text: &[u8]) -> bool {
    let given = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    given.is_some_and(|given| given == expected || (given.is_nan() && expected.is_nan()))
}

fn match_in_order(patterns: &[Pattern], items: &[Reply], resp: Resp, captures: &mut Captures) -> bool {
    match patterns.split_first() {
        None => items.is_empty(),
        Some((Pattern::Rest, after)) => {
            (0..=items.len()).any(|skipped| match_in_order(after, &items[skipped..], resp, captures))
        }
        Some((pattern, after)) => items.split_first().is_some_and(|(item, items)| {
            pattern.matches(item, resp, captures) && match_in_order(after, items, resp, captures)
        }),
    }
}

/// Returns the elements of all arrays in an array.
fn flattened(patterns: &[Pattern]) -> Vec<Pattern> {
    let inner = |pattern: &Pattern| match pattern {
        Pattern::Array(patterns) => patterns.clone(),
        other => vec![other.clone()],
    };
    patterns.iter().flat_map(inner).collect()
}

fn match_unordered(patterns: &[Pattern], items: &[Reply], resp: Resp, captures: &mut Captures) -> bool {
    let items: Vec<Vec<&Reply>> = items.iter().map(|item| vec![item]).collect();
    match_rows(&rows(patterns, 1), items, resp, captures)
}

fn match_pairs(patterns: &[Pattern], pairs: &[(Reply, Reply)], resp: Resp, captures: &mut Captures) -> bool {
    let pairs: Vec<Vec<&Reply>> = pairs.iter().map(|(name, value)| vec![name, value]).collect();
    match_rows(&rows(patterns, 2), pairs, resp, captures)
}

/// Divides a collection's patterns into elements of one or two patterns. `...` stands alone.
fn rows(patterns: &[Pattern], width: usize) -> Vec<&[Pattern]> {
    let mut rows = Vec::new();
    let mut rest = patterns;
    while !rest.is_empty() {
        let width = if matches!(rest[0], Pattern::Rest) { 1 } else { width.min(rest.len()) };
        let (row, after) = rest.split_at(width);
        rows.push(row);
        rest = after;
    }
    rows
}

/// Matches rows in any order, trying every choice.
fn match_rows(
    patterns: &[&[Pattern]],
    mut rows: Vec<Vec<&Reply>>,
    resp: Resp,
    captures: &mut Captures,
) -> bool {
    let Some((pattern, after)) = patterns.split_first() else { return rows.is_empty() };
    if matches!(pattern, [Pattern::Rest]) {
        // The rest takes the elements that no other pattern matches.
        return after.is_empty() || match_rows(&[after, &[pattern]].concat(), rows, resp, captures);
    }
    (0..rows.len()).any(|at| {
        let row = rows.swap_remove(at);
        let matched = row.len() == pattern.len()
            && pattern.iter().zip(&row).all(|(pattern, item)| pattern.matches(item, resp, captures))
            && match_rows(after, rows.clone(), resp, captures);
        rows.push(row);
        let last = rows.len() - 1;
        rows.swap(at, last);
        matched
    })
}

fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    match glob.split_first() {
        None => text.is_empty(),
        Some((b'*', after)) => (0..=text.len()).any(|skipped| glob_matches(after, &text[skipped..])),
        Some((byte, after)) => {
            text.split_first().is_some_and(|(first, text)| first == byte && glob_matches(after, text))
        }
    }
}
