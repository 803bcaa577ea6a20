//! The placeholders of a request's arguments.
//!
//! | placeholder | becomes |
//! |---|---|
//! | `{key}` | the name of a key, drawn anew |
//! | `{key%1000}` | the same among the first thousand: the number drawn modulo 1000 |
//! | `{same}` | the name of the key drawn last |
//! | `{new_key}` | the name of a key that no request has named |
//! | `{value}`, `{value:100}` | a value of a drawn size, or of 100 bytes |
//! | `{int:1:6}` | a number, both bounds included |
//! | `{ttl}` | seconds to live |
//! | `{now}` | the moment at which the request was due, for delivery times |
//! | `{connection}` | the connection's number, from 0 |
//! | `{key*10}` as a whole argument | ten arguments; so with every placeholder |
//! | `{expire}` as a whole argument | the arguments `EX` and `{ttl}`, or none, by the share of `expiry` |
//! | `{{`, `}}` | a brace |

use crate::error::BenchError;

/// The start of `{now}`. After it come 16 hexadecimal digits: nanoseconds since the run began.
pub const NOW_MARKER: &[u8] = b"@now:";

/// A part of an argument.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Literal(Vec<u8>),
    Key,
    KeyOf { n_keys: u64 },
    Same,
    NewKey,
    Value,
    ValueOf(u64),
    Int { low: i64, high: i64 },
    Ttl,
    Now,
    Connection,
}

/// An argument, or a placeholder for several.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Argument {
    Pieces(Vec<Piece>),
    /// The placeholder `{expire}`.
    Expire,
}

/// Parses a request's arguments. `place` is the field's name.
pub(super) fn parse(place: &str, args: &[String]) -> Result<Vec<Argument>, BenchError> {
    if args.is_empty() {
        return Err(BenchError::workload(place, "a request has at least one argument"));
    }
    let mut parsed = Vec::new();
    for (index, text) in args.iter().enumerate() {
        let place = format!("{place}[{index}]");
        if text == "{expire}" {
            parsed.push(Argument::Expire);
            continue;
        }
        let (text, n_times) = repeated(&place, text)?;
        let pieces = pieces(&place, &text)?;
        parsed.extend(std::iter::repeat_n(Argument::Pieces(pieces), n_times));
    }
    Ok(parsed)
}

/// Splits `{key*10}` into `{key}` and 10.
fn repeated(place: &str, text: &str) -> Result<(String, usize), BenchError> {
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let Some((name, times)) = inner.and_then(|inner| inner.split_once('*')) else {
        return Ok((text.to_owned(), 1));
    };
    match times.parse() {
        Ok(n_times @ 1..=100_000) => Ok((format!("{{{name}}}"), n_times)),
        _ => Err(BenchError::workload(place, format!("{text} repeats from 1 to 100000 times"))),
    }
}

fn pieces(place: &str, text: &str) -> Result<Vec<Piece>, BenchError> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        literal.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(behind) = rest.strip_prefix("{{").or_else(|| rest.strip_prefix("}}")) {
            literal.push_str(&rest[..1]);
            rest = behind;
            continue;
        }
        let Some((name, behind)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
            return Err(BenchError::workload(place, format!("a single brace in {text}; write it twice")));
        };
        flush(&mut literal, &mut pieces);
        pieces.push(placeholder(place, name)?);
        rest = behind;
    }
    literal.push_str(rest);
    flush(&mut literal, &mut pieces);
    Ok(pieces)
}

fn flush(literal: &mut String, pieces: &mut Vec<Piece>) {
    if !literal.is_empty() {
        pieces.push(Piece::Literal(std::mem::take(literal).into_bytes()));
    }
}

fn placeholder(place: &str, name: &str) -> Result<Piece, BenchError> {
    let unknown = || BenchError::workload(place, format!("unknown placeholder {{{name}}}"));
    if let Some(n_keys) = name.strip_prefix("key%") {
        let n_keys = n_keys.parse().ok().filter(|&n_keys| n_keys > 0).ok_or_else(unknown)?;
        return Ok(Piece::KeyOf { n_keys });
    }
    let mut parts = name.split(':');
    let piece = match (parts.next(), parts.next(), parts.next()) {
        (Some("key"), None, None) => Piece::Key,
        (Some("same"), None, None) => Piece::Same,
        (Some("new_key"), None, None) => Piece::NewKey,
        (Some("value"), None, None) => Piece::Value,
        (Some("value"), Some(size), None) => Piece::ValueOf(size.parse().map_err(|_| unknown())?),
        (Some("ttl"), None, None) => Piece::Ttl,
        (Some("now"), None, None) => Piece::Now,
        (Some("connection"), None, None) => Piece::Connection,
        (Some("int"), Some(low), Some(high)) => {
            let (low, high) = (low.parse().map_err(|_| unknown())?, high.parse().map_err(|_| unknown())?);
            if low > high {
                return Err(BenchError::workload(
                    place,
                    format!("{{{name}}} has its bounds the wrong way round"),
                ));
            }
            Piece::Int { low, high }
        }
        _ => return Err(unknown()),
    };
    if parts.next().is_some() { Err(unknown()) } else { Ok(piece) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(argument: &str) -> Result<Vec<Argument>, String> {
        parse("args", &[argument.to_owned()]).map_err(|error| error.to_string())
    }

    #[test]
    fn placeholders_stand_within_text() {
        let expected = vec![
            Piece::Literal(b"user:".to_vec()),
            Piece::Key,
            Piece::Literal(b":{a}".to_vec()),
            Piece::Int { low: -1, high: 6 },
        ];
        assert_eq!(parsed("user:{key}:{{a}}{int:-1:6}"), Ok(vec![Argument::Pieces(expected)]));
    }

    #[test]
    fn a_repeated_placeholder_makes_arguments() {
        assert_eq!(parsed("{key*3}"), Ok(vec![Argument::Pieces(vec![Piece::Key]); 3]));
        assert_eq!(parsed("{value:8*2}"), Ok(vec![Argument::Pieces(vec![Piece::ValueOf(8)]); 2]));
    }

    #[test]
    fn mistakes_are_named() {
        let mistakes = [
            "{kee}",
            "{key",
            "a}",
            "{int:5:1}",
            "{int:1}",
            "{value:x}",
            "{key*0}",
            "{key%0}",
            "{value:1:2:3}",
        ];
        for mistake in mistakes {
            let error = parsed(mistake).expect_err(mistake);
            assert!(error.contains("args[0]"), "{error}");
        }
    }
}
