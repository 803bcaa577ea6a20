//! The reply writer's bytes, and that the reply parser reads them in both versions.

use braid_protocol::{Reply, ReplyError, ReplyParser, ReplySkipper, Resp, Value, parse_reply, skip_reply};
use proptest::prelude::*;

fn written(version: Resp, write: impl FnOnce(&mut Reply<'_>)) -> String {
    let mut out = Vec::new();
    write(&mut Reply::new(&mut out, version));
    String::from_utf8_lossy(&out).into_owned()
}

fn both(write: impl Fn(&mut Reply<'_>)) -> (String, String) {
    (written(Resp::V2, &write), written(Resp::V3, &write))
}

fn same(text: &str) -> (String, String) {
    (text.into(), text.into())
}

fn differ(v2: &str, v3: &str) -> (String, String) {
    (v2.into(), v3.into())
}

#[test]
fn shapes_that_both_versions_write_alike() {
    assert_eq!(both(|reply| reply.ok()), same("+OK\r\n"));
    assert_eq!(both(|reply| reply.simple("PONG")), same("+PONG\r\n"));
    for value in [0, 1, 2, 10, -1, i64::MAX, i64::MIN] {
        assert_eq!(both(|reply| reply.integer(value)), same(&format!(":{value}\r\n")));
    }
    for len in [0, 1, 9, 10, 99, 100, 12345] {
        let text = "x".repeat(len);
        assert_eq!(both(|reply| reply.bulk(text.as_bytes())), same(&format!("${len}\r\n{text}\r\n")));
    }
    assert_eq!(both(|reply| reply.bulk_integer(-42)), same("$3\r\n-42\r\n"));
    assert_eq!(both(|reply| reply.array(0)), same("*0\r\n"));
    assert_eq!(both(|reply| reply.array(1234)), same("*1234\r\n"));
    assert_eq!(both(|reply| reply.raw(b":7\r\n")), same(":7\r\n"));
}

#[test]
fn shapes_that_differ_between_the_versions() {
    assert_eq!(both(|reply| reply.null()), differ("$-1\r\n", "_\r\n"));
    assert_eq!(both(|reply| reply.null_array()), differ("*-1\r\n", "_\r\n"));
    assert_eq!(both(|reply| reply.map(6)), differ("*12\r\n", "%6\r\n"));
    assert_eq!(both(|reply| reply.pairs(6)), differ("*12\r\n", "*6\r\n"));
    assert_eq!(both(|reply| reply.pair()), differ("", "*2\r\n"));
    assert_eq!(both(|reply| reply.set(6)), differ("*6\r\n", "~6\r\n"));
    assert_eq!(both(|reply| reply.push(3)), differ("*3\r\n", ">3\r\n"));
    assert_eq!(both(|reply| reply.double(0.1)), differ("$3\r\n0.1\r\n", ",0.1\r\n"));
    let long_double = braid_protocol::number::LongDouble::from_f64(0.1);
    assert_eq!(
        both(|reply| reply.long_double(long_double)),
        differ("$19\r\n0.10000000000000001\r\n", ",0.10000000000000001\r\n")
    );
    assert_eq!(both(|reply| reply.double(f64::NEG_INFINITY)), differ("$4\r\n-inf\r\n", ",-inf\r\n"));
    let long = "-1.2345678901234567e-100";
    assert_eq!(both(|reply| reply.double(long.parse().unwrap())).0, format!("${}\r\n{long}\r\n", long.len()));
    assert_eq!(both(|reply| reply.boolean(true)), differ(":1\r\n", "#t\r\n"));
    assert_eq!(both(|reply| reply.boolean(false)), differ(":0\r\n", "#f\r\n"));
    assert_eq!(both(|reply| reply.big_number("-12")), differ("$3\r\n-12\r\n", "(-12\r\n"));
    assert_eq!(both(|reply| reply.verbatim(b"txt", b"a b")), differ("$3\r\na b\r\n", "=7\r\ntxt:a b\r\n"));
    assert_eq!(written(Resp::V3, |reply| assert!(reply.attribute(2))), "|2\r\n");
    assert_eq!(written(Resp::V2, |reply| assert!(!reply.attribute(2))), "");
}

#[test]
fn an_error_is_one_line() {
    assert_eq!(both(|reply| reply.error("ERR no")), same("-ERR no\r\n"));
    assert_eq!(both(|reply| reply.error("\r\nERR a\r\nb\n")), same("-ERR a  b\r\n"));
    assert_eq!(both(|reply| reply.error("")), same("-\r\n"));
}

#[test]
fn an_aggregate_may_be_counted_later() {
    let (v2, v3) = both(|reply| {
        reply.ok();
        let map = reply.map_later();
        reply.bulk(b"k");
        let array = reply.array_later();
        for i in 0..12 {
            reply.integer(i % 2);
        }
        reply.close(array, 12);
        reply.bulk(b"s");
        let set = reply.set_later();
        reply.close(set, 0);
        reply.close(map, 2);
    });
    let (pairs_v2, pairs_v3) = both(|reply| {
        let pairs = reply.nested_map_later();
        for i in 0..2 {
            reply.nested_pair();
            reply.integer(i);
            reply.ok();
        }
        reply.close(pairs, 2);
    });
    assert_eq!(pairs_v2, "*2\r\n*2\r\n:0\r\n+OK\r\n*2\r\n:1\r\n+OK\r\n");
    assert_eq!(pairs_v3, "%2\r\n:0\r\n+OK\r\n:1\r\n+OK\r\n");
    let integers = ":0\r\n:1\r\n".repeat(6);
    assert_eq!(v2, format!("+OK\r\n*4\r\n$1\r\nk\r\n*12\r\n{integers}$1\r\ns\r\n*0\r\n"));
    assert_eq!(v3, format!("+OK\r\n%2\r\n$1\r\nk\r\n*12\r\n{integers}$1\r\ns\r\n~0\r\n"));
}

#[test]
fn what_has_been_written_can_be_taken_back() {
    assert_eq!(
        written(Resp::V2, |reply| {
            reply.ok();
            let mark = reply.written_bytes();
            reply.array(3);
            reply.truncate(mark);
        }),
        "+OK\r\n"
    );
}

#[test]
fn malformed_replies_are_refused() {
    let table: &[(&[u8], ReplyError)] = &[
        (b"?1\r\n", ReplyError::UnknownType(b'?')),
        (b"?", ReplyError::UnknownType(b'?')),
        (b":x\r\n", ReplyError::Malformed),
        (b":1\n", ReplyError::Malformed),
        (b"\n", ReplyError::Malformed),
        (b"$-2\r\n", ReplyError::Malformed),
        (b"$3\r\nabcde", ReplyError::Malformed),
        (b"_x\r\n", ReplyError::Malformed),
        (b"#x\r\n", ReplyError::Malformed),
        (b",x\r\n", ReplyError::Malformed),
        (b"(1x\r\n", ReplyError::Malformed),
        (b"=3\r\nabc\r\n", ReplyError::Malformed),
        (b"$?\r\n", ReplyError::Malformed),
        (b"$536870913\r\n", ReplyError::TooLong),
        (b"*18446744073709551615\r\n", ReplyError::TooManyValues),
        (b"%18446744073709551615\r\n", ReplyError::TooManyValues),
    ];
    for (input, error) in table {
        assert_eq!(parse_reply(input), Err(*error), "{}", input.escape_ascii());
    }
    let deep = ["*1\r\n".repeat(200), ":1\r\n".into()].concat();
    assert_eq!(parse_reply(deep.as_bytes()), Err(ReplyError::TooDeep));
    assert_eq!(skip_reply(deep.as_bytes()), Some(deep.len()));
    let attributes = ["|0\r\n".repeat(100_000), ":1\r\n".into()].concat();
    assert_eq!(parse_reply(attributes.as_bytes()), Err(ReplyError::TooDeep));
}

#[test]
fn announced_sizes_allocate_nothing() {
    assert_eq!(parse_reply(b"*4000000000\r\n:1\r\n"), Ok(None));
    assert_eq!(parse_reply(b"$500000000\r\nabc"), Ok(None));
    assert_eq!(skip_reply(b"$500000000\r\nabc"), None);
}

#[test]
fn errors_in_both_forms_and_signed_integers_are_read() {
    assert_eq!(parse_reply(b"-ERR x\r\n"), Ok(Some((Value::Error(b"ERR x".to_vec()), 8))));
    assert_eq!(parse_reply(b"!5\r\nERR x\r\n"), Ok(Some((Value::Error(b"ERR x".to_vec()), 11))));
    assert_eq!(parse_reply(b":+5\r\n"), Ok(Some((Value::Integer(5), 5))));
    assert!(matches!(parse_reply(b",nan\r\n"), Ok(Some((Value::Double(d), 6))) if d.is_nan()));
}

/// Writes a value of RESP3 through the writer.
fn write(reply: &mut Reply<'_>, value: &Value) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match value {
        Value::Simple(line) => reply.simple(&text(line)),
        Value::Error(line) => reply.error(line),
        Value::Integer(value) => reply.integer(*value),
        Value::Bulk(bytes) => reply.bulk(bytes),
        Value::Null | Value::NullBulk => reply.null(),
        Value::NullArray => reply.null_array(),
        Value::Array(values) => write_all(reply, values, |reply, n| reply.array(n)),
        Value::Set(values) => write_all(reply, values, |reply, n| reply.set(n)),
        Value::Push(values) => write_all(reply, values, |reply, n| reply.push(n)),
        Value::Map(pairs) => {
            reply.map(pairs.len());
            write_pairs(reply, pairs);
        }
        Value::Double(value) => reply.double(*value),
        Value::Boolean(value) => reply.boolean(*value),
        Value::BigNumber(digits) => reply.big_number(text(digits)),
        Value::Verbatim(format, bytes) => reply.verbatim(format, bytes),
        Value::Attribute(pairs, value) => {
            if reply.attribute(pairs.len()) {
                write_pairs(reply, pairs);
            }
            write(reply, value);
        }
    }
}

fn write_all(reply: &mut Reply<'_>, values: &[Value], open: fn(&mut Reply<'_>, usize)) {
    open(reply, values.len());
    values.iter().for_each(|value| write(reply, value));
}

fn write_pairs(reply: &mut Reply<'_>, pairs: &[(Value, Value)]) {
    for (key, value) in pairs {
        write(reply, key);
        write(reply, value);
    }
}

/// The RESP2 form of a value of RESP3.
fn in_resp2(value: Value) -> Value {
    let all = |values: Vec<Value>| Value::Array(values.into_iter().map(in_resp2).collect());
    let printed = |value: f64| {
        let mut text = Vec::new();
        braid_protocol::number::write_f64(&mut text, value);
        text
    };
    match value {
        Value::Null => Value::NullBulk,
        Value::Array(values) | Value::Set(values) | Value::Push(values) => all(values),
        Value::Map(pairs) => all(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()),
        Value::Double(value) => Value::Bulk(printed(value)),
        Value::Boolean(value) => Value::Integer(i64::from(value)),
        Value::BigNumber(bytes) | Value::Verbatim(_, bytes) => Value::Bulk(bytes),
        Value::Attribute(_, value) => in_resp2(*value),
        value => value,
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let line = "[ -~]{0,20}".prop_map(String::into_bytes);
    let leaf = prop_oneof![
        line.prop_map(Value::Simple),
        "ERR [ -~]{0,20}".prop_map(|text| Value::Error(text.into_bytes())),
        any::<i64>().prop_map(Value::Integer),
        proptest::collection::vec(any::<u8>(), 0..120).prop_map(Value::Bulk),
        Just(Value::Null),
        any::<f64>().prop_filter("NaN equals nothing", |value| !value.is_nan()).prop_map(Value::Double),
        any::<bool>().prop_map(Value::Boolean),
        "-?[1-9][0-9]{0,40}".prop_map(|digits| Value::BigNumber(digits.into_bytes())),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(|text| Value::Verbatim(*b"txt", text)),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let values = proptest::collection::vec(inner.clone(), 0..6);
        let pairs = proptest::collection::vec((inner.clone(), inner.clone()), 0..4);
        prop_oneof![
            values.clone().prop_map(Value::Array),
            values.clone().prop_map(Value::Set),
            values.prop_map(Value::Push),
            pairs.clone().prop_map(Value::Map),
            (pairs, inner).prop_map(|(pairs, value)| Value::Attribute(pairs, Box::new(value))),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_reads_back(value in any_value()) {
        for (version, expected) in [(Resp::V3, value.clone()), (Resp::V2, in_resp2(value.clone()))] {
            let mut out = Vec::new();
            write(&mut Reply::new(&mut out, version), &value);
            let len = out.len();
            out.extend_from_slice(b"+next");
            prop_assert_eq!(skip_reply(&out), Some(len));
            prop_assert_eq!(parse_reply(&out), Ok(Some((expected.clone(), len))));

            let mut parser = ReplyParser::default();
            let mut skipper = ReplySkipper::default();
            for end in 0..len {
                prop_assert_eq!(parser.parse(&out[..end]), Ok(None));
                prop_assert_eq!(skipper.skip(&out[..end]), Ok(None));
                prop_assert_eq!(skip_reply(&out[..end]), None);
            }
            prop_assert_eq!(parser.parse(&out), Ok(Some((expected, len))));
            prop_assert_eq!(skipper.skip(&out), Ok(Some(len)));
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(input in proptest::collection::vec(
        proptest::sample::select(&b"+-:$*_,#(!=%~>|0123\r\n\r\n\r\nat"[..]), 0..40)) {
        if let Ok(Some((_, consumed))) = parse_reply(&input) {
            prop_assert_eq!(skip_reply(&input), Some(consumed));
        }
    }
}
