//! The grammar of requests, every error, and equal results for all splits of the bytes.

use braid_protocol::request::{MAX_LINE_BYTES, Pattern, write_request};
use braid_protocol::{Arg, Limits, Parse, ProtocolError, RequestParser};
use proptest::prelude::*;

type Request = Vec<Vec<u8>>;

/// The requests that a connection would see, the rest, and its error.
#[derive(Debug, PartialEq)]
struct Seen {
    requests: Vec<Request>,
    rest: Vec<u8>,
    error: Option<ProtocolError>,
}

/// Feeds `input` in pieces that end at `cuts`.
///
/// As in a connection, bytes that are not consumed are kept.
fn feed(limits: Limits, input: &[u8], cuts: impl IntoIterator<Item = usize>) -> Seen {
    let mut parser = RequestParser::new(limits);
    let mut seen = Seen { requests: Vec::new(), rest: Vec::new(), error: None };
    let mut fed = 0;
    for cut in cuts.into_iter().chain([input.len()]) {
        let cut = cut.clamp(fed, input.len());
        seen.rest.extend_from_slice(&input[fed..cut]);
        fed = cut;
        if let Err(error) = take_requests(&mut parser, &mut seen) {
            seen.error = Some(error);
            seen.rest.clear();
            return seen;
        }
    }
    seen
}

fn take_requests(parser: &mut RequestParser, seen: &mut Seen) -> Result<(), ProtocolError> {
    let earlier = Arg { start: 7, len: 7 };
    let mut args = vec![earlier];
    loop {
        match parser.parse(&mut seen.rest, &mut args)? {
            Parse::Request { consumed } => {
                assert!(!parser.holds_memory());
                seen.requests
                    .push(args.drain(1..).map(|arg| arg.of(&seen.rest[..consumed]).to_vec()).collect());
                seen.rest.drain(..consumed);
            }
            Parse::Empty { consumed } => {
                seen.rest.drain(..consumed);
            }
            Parse::Incomplete { wanted } => {
                assert!(wanted > 0);
                assert_eq!(args, [earlier], "the arena is left as it was");
                return Ok(());
            }
        }
    }
}

fn whole(input: &[u8]) -> Seen {
    feed(Limits::default(), input, [])
}

fn requests(input: &[u8]) -> Vec<Request> {
    let seen = whole(input);
    assert_eq!((seen.error, seen.rest), (None, Vec::new()), "{}", input.escape_ascii());
    seen.requests
}

fn error(input: &[u8]) -> String {
    let error = whole(input).error.unwrap_or_else(|| panic!("{} is refused", input.escape_ascii()));
    String::from_utf8_lossy(&error.text()).into_owned()
}

fn words(line: &str) -> Vec<String> {
    let request = requests(format!("{line}\r\n").as_bytes()).pop().unwrap_or_default();
    request.into_iter().map(|word| String::from_utf8_lossy(&word).into_owned()).collect()
}

#[test]
fn an_idle_parser_is_small() {
    assert!(size_of::<RequestParser>() <= 64);
    assert_eq!(size_of::<Arg>(), 8);
}

#[test]
fn requests_follow_each_other() {
    let input = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\nGET k\r\n*0\r\n*-1\r\n\r\n \t\n*-7\r\nPING\n";
    let expected: Vec<Vec<&[u8]>> =
        vec![vec![b"SET", b"k", b""], vec![b"PING"], vec![b"GET", b"k"], vec![b"PING"]];
    assert_eq!(requests(input), expected);
}

#[test]
fn lengths_of_all_sizes_are_read() {
    for len in [0usize, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 65535, 100_000, 1_234_567, 12_345_678] {
        let request = vec![b"SET".to_vec(), vec![b'v'; len], b"x".to_vec()];
        let mut input = Vec::new();
        write_request(&mut input, &request);
        assert_eq!(requests(&input), [request], "{len}");
    }
    let many = vec![b"x".to_vec(); 100_000];
    let mut input = Vec::new();
    write_request(&mut input, &many);
    assert_eq!(requests(&input), [many]);
}

#[test]
fn a_pipeline_of_one_command_is_parsed_by_its_pattern() {
    let input = b"*3\r\n$3\r\nSET\r\n$2\r\nk1\r\n$1\r\nv\r\n*3\r\n$3\r\nSET\r\n$2\r\nk2\r\n$10\r\n0123456789\r\n*3\r\n$3\r\nSET\r\n$3\r\n";
    let mut parser = RequestParser::new(Limits::default());
    let mut args = Vec::new();
    let Ok(Parse::Request { consumed }) = parser.parse(&mut input.to_vec(), &mut args) else {
        panic!("the first request is complete")
    };
    let pattern = Pattern::of(input, 0, &args).expect("it has two arguments");
    args.clear();
    let len = parser.parse_alike(&pattern, input, consumed, &mut args).expect("it begins alike");
    let words: Vec<_> = args.iter().map(|arg| arg.of(&input[consumed..])).collect();
    assert_eq!(words, [&b"SET"[..], b"k2", b"0123456789"]);
    assert_eq!(parser.parse_alike(&pattern, input, consumed + len, &mut args), None, "its key is longer");
}

#[test]
fn the_ends_of_strings_are_not_looked_at() {
    assert_eq!(requests(b"*1\r\n$4\r\nPINGxx*1\rx$4\ryPING\r\n"), [[b"PING"], [b"PING"]]);
}

#[test]
fn every_error_has_the_text_of_redis() {
    assert_eq!(error(b"*\r\n"), "invalid multibulk length");
    assert_eq!(error(b"*01\r\n"), "invalid multibulk length");
    assert_eq!(error(b"*+1\r\n"), "invalid multibulk length");
    assert_eq!(error(b"* 1\r\n"), "invalid multibulk length");
    assert_eq!(error(b"*a\r\n"), "invalid multibulk length");
    assert_eq!(error(b"*2147483648\r\n"), "invalid multibulk length");
    assert_eq!(error(b"*1\r\n$-1\r\n"), "invalid bulk length");
    assert_eq!(error(b"*1\r\n$\r\n"), "invalid bulk length");
    assert_eq!(error(b"*1\r\n$01\r\na\r\n"), "invalid bulk length");
    assert_eq!(error(b"*1\r\n$1x\r\na\r\n"), "invalid bulk length");
    assert_eq!(error(b"*1\r\n$536870913\r\n"), "invalid bulk length");
    assert_eq!(error(b"*1\r\n:4\r\n"), "expected '$', got ':'");
    assert_eq!(error(b"*1\r\n\r\n"), "expected '$', got '\r'");
    assert_eq!(error(b"echo \"a\n"), "unbalanced quotes in request");
    assert_eq!(error(b"echo 'a'b\n"), "unbalanced quotes in request");
    assert_eq!(error(b"echo 'a\\'\n"), "unbalanced quotes in request");
    assert_eq!(error(b"echo \"a\"b\n"), "unbalanced quotes in request");
    let digits = [b'1'; MAX_LINE_BYTES + 1];
    assert_eq!(error(&[b"*", &digits[1..]].concat()), "too big mbulk count string");
    assert_eq!(error(&[b"*1\r\n$", &digits[1..]].concat()), "too big bulk count string");
    assert_eq!(error(&digits), "too big inline request");
    let text = ProtocolError::ExpectedDollar(0xff).text();
    assert_eq!(&*text, b"expected '$', got '\xff'");
    assert_eq!(ProtocolError::TooBigRequest.to_string(), "too big request");
}

#[test]
fn the_longest_lines_are_not_too_big() {
    assert_eq!(whole(&[b"*", &[b'1'; MAX_LINE_BYTES - 1][..]].concat()).error, None);
    let line = [&[b'a'; MAX_LINE_BYTES][..], b"\n"].concat();
    assert_eq!(requests(&line)[0][0].len(), MAX_LINE_BYTES);
}

#[test]
fn before_authentication_the_limits_are_tight() {
    let limits = Limits { authenticated: false, ..Limits::default() };
    let error = |input: &[u8]| feed(limits, input, []).error;
    assert_eq!(error(b"*10\r\n$16384\r\n"), None);
    assert_eq!(error(b"*11\r\n"), Some(ProtocolError::UnauthenticatedMultibulkLength));
    assert_eq!(error(b"*1\r\n$16385\r\n"), Some(ProtocolError::UnauthenticatedBulkLength));
    assert_eq!(error(b"*1\r\n$536870913\r\n"), Some(ProtocolError::InvalidBulkLength));
    assert_eq!(ProtocolError::UnauthenticatedMultibulkLength.to_string(), "unauthenticated multibulk length");
    assert_eq!(ProtocolError::UnauthenticatedBulkLength.to_string(), "unauthenticated bulk length");

    let mut parser = RequestParser::new(limits);
    parser.set_authenticated(true);
    assert!(matches!(parser.parse(&mut b"*11\r\n".to_vec(), &mut Vec::new()), Ok(Parse::Incomplete { .. })));
}

#[test]
fn the_longest_argument_is_a_setting() {
    let limits = Limits { max_bulk_bytes: 50, authenticated: true };
    assert_eq!(feed(limits, b"*1\r\n$50\r\n", []).error, None);
    assert_eq!(feed(limits, b"*1\r\n$51\r\n", []).error, Some(ProtocolError::InvalidBulkLength));
}

#[test]
fn a_string_cut_short_says_how_much_is_missing() {
    let mut parser = RequestParser::default();
    let mut input = b"*2\r\n$3\r\nGET\r\n$1000000\r\nabc".to_vec();
    let outcome = parser.parse(&mut input, &mut Vec::new());
    assert_eq!(outcome, Ok(Parse::Incomplete { wanted: 1_000_000 - 3 + 2 }));
    assert!(!parser.holds_memory());
}

#[test]
fn words_are_split_and_unquoted_as_redis_does() {
    assert_eq!(words("echo a"), ["echo", "a"]);
    assert_eq!(words("  echo \t a \x0b\x0c "), ["echo", "a"]);
    assert_eq!(words("echo a\x0bb"), ["echo", "a\x0bb"]);
    assert_eq!(words("echo \"\" ''"), ["echo", "", ""]);
    assert_eq!(words(r#"echo "a\x41\n\r\t\b\a\"\\\q\xzz\x4""#), ["echo", "aA\n\r\t\x08\x07\"\\qxzzx4"]);
    assert_eq!(words(r#"echo 'a\'b\n"c'"#), ["echo", r#"a'b\n"c"#]);
    assert_eq!(words(r#"echo a"b c" d"#), ["echo", "ab c", "d"]);
    assert_eq!(words(r#""ECHO" a\x"#), ["ECHO", r"a\x"]);
    assert_eq!(words("echo \"a\"\x0b'b'"), ["echo", "a", "b"]);
    assert_eq!(words("echo \r a\r"), ["echo", "a"]);
}

#[test]
fn every_split_gives_the_same_requests() {
    let mut input =
        b"*3\r\n$3\r\nSET\r\n$12\r\nkey\r\n45\0\xff901\r\n$0\r\n\r\necho \"a\\x41 b\" 'c'\r\n*0\r\n".to_vec();
    write_request(&mut input, &vec![b"word".to_vec(); 40]);
    input.extend_from_slice(b"*1\r\n$120\r\n");
    input.extend_from_slice(&[b'v'; 122]);
    for tail in [&b""[..], b"*1\r\n:", b"*1\r\n:\r\n", b"*x\r\n", b"a \"b\r\nc", b"*2\r\n$4\r\nPING\r\n$1"] {
        let input = [&input, tail].concat();
        let expected = whole(&input);
        for cut in 0..input.len() {
            assert_eq!(feed(Limits::default(), &input, [cut]), expected, "cut at {cut}");
        }
        assert_eq!(feed(Limits::default(), &input, 0..input.len()), expected, "byte by byte");
    }
}

#[test]
fn a_million_arguments_in_small_pieces_take_linear_time() {
    let request = vec![b"x".to_vec(); 1_000_000];
    let mut input = Vec::new();
    write_request(&mut input, &request);
    let mut parser = RequestParser::default();
    let mut args = Vec::new();
    for end in (1..input.len()).step_by(3) {
        let outcome = parser.parse(&mut input[..end], &mut args);
        assert!(matches!(outcome, Ok(Parse::Incomplete { .. })));
    }
    assert_eq!(parser.parse(&mut input, &mut args), Ok(Parse::Request { consumed: input.len() }));
    assert_eq!(args.len(), 1_000_000);
    assert!(args.iter().all(|arg| arg.of(&input) == b"x"));
}

fn any_traffic() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::collection::vec(any::<u8>(), 90..130),
        Just(b"\r\n$1\r\n".to_vec()),
    ];
    let request = proptest::collection::vec(word, 1..24).prop_map(|args| {
        let mut out = Vec::new();
        write_request(&mut out, &args);
        out
    });
    let noise = proptest::collection::vec(proptest::sample::select(&b"*$-0123a \"'\\x\r\n\r\n\0"[..]), 0..30);
    proptest::collection::vec(prop_oneof![4 => request, 1 => noise], 0..6).prop_map(|parts| parts.concat())
}

/// Requests that mostly begin alike.
fn alike_traffic() -> impl Strategy<Value = Vec<u8>> {
    let word = || proptest::sample::select(vec!["k", "l", "key", "a longer one", ""]).prop_map(str::as_bytes);
    let request = proptest::collection::vec(word(), 1..5).prop_map(|args| {
        let mut out = Vec::new();
        write_request(&mut out, &args);
        out
    });
    let other = any_traffic();
    let piece = prop_oneof![8 => request, 1 => other];
    (proptest::collection::vec(piece, 1..12), 0usize..40).prop_map(|(parts, n_cut)| {
        let mut input = parts.concat();
        input.truncate(input.len().saturating_sub(n_cut));
        input
    })
}

proptest! {
    #[test]
    fn a_request_like_an_earlier_one_is_what_it_is_by_itself(input in alike_traffic()) {
        let (mut input, mut at, mut patterns) = (input, 0, Vec::new());
        let mut parser = RequestParser::new(Limits::default());
        loop {
            let (start, mut args) = (at, Vec::new());
            let is_inline = input.get(at) != Some(&b'*');
            let by_itself = parser.parse(&mut input[at..], &mut args);
            if let Ok(Parse::Request { consumed }) = by_itself {
                at += consumed;
            }
            // An inline command must not be parsed a second time.
            for pattern in patterns.iter().filter(|_| !is_inline) {
                let mut parser = RequestParser::new(Limits::default());
                let mut found = vec![Arg { start: 7, len: 7 }];
                match parser.parse_alike(pattern, &input, start, &mut found) {
                    Some(consumed) => {
                        prop_assert_eq!(by_itself, Ok(Parse::Request { consumed }));
                        prop_assert_eq!(&found[1..], &args[..]);
                    }
                    None => {
                        prop_assert_eq!(found.len(), 1);
                        let again = parser.parse(&mut input[start..], &mut found);
                        prop_assert_eq!(again, by_itself);
                    }
                }
            }
            match by_itself {
                Ok(Parse::Request { .. }) => patterns.extend(Pattern::of(&input, start, &args)),
                Ok(Parse::Empty { consumed }) => at += consumed,
                Ok(Parse::Incomplete { .. }) | Err(_) => break,
            }
        }
    }

    #[test]
    fn any_split_gives_the_same_requests(input in any_traffic(), mut cuts in proptest::collection::vec(0usize..2000, 0..8)) {
        cuts.sort_unstable();
        prop_assert_eq!(feed(Limits::default(), &input, cuts), whole(&input));
    }

    #[test]
    fn a_quoted_word_keeps_its_bytes(word in proptest::collection::vec(any::<u8>(), 0..60)) {
        let quoted: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        let expected = vec![vec![b"echo".to_vec(), word]];
        prop_assert_eq!(requests(format!("echo \"{quoted}\"\r\n").as_bytes()), expected);
    }
}

/// A bug: after a long incomplete request the parser was rewound to a short one.
///
/// It then took the short one's bytes for those of the long one.
#[test]
fn a_parser_that_is_sent_back_forgets_what_it_had_begun() {
    let mut long = b"*40\r\n".to_vec();
    for _ in 0..30 {
        long.extend_from_slice(b"$1\r\nx\r\n");
    }
    let mut parser = RequestParser::new(Limits::default());
    let mut args = Vec::new();
    assert!(matches!(parser.parse(&mut long, &mut args), Ok(Parse::Incomplete { .. })));
    assert!(parser.holds_memory());
    parser.rewind();
    let mut short = b"*1\r\n$4\r\nPING\r\n".to_vec();
    assert_eq!(parser.parse(&mut short, &mut args), Ok(Parse::Request { consumed: 14 }));
    assert_eq!(args[0].of(&short), b"PING");
}
