//! The parser and the skipper agree on a reply's end, whole or byte by byte.
#![no_main]

use braid_protocol::{ReplyParser, ReplySkipper, parse_reply, skip_reply};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let whole = parse_reply(input);
    if let Ok(Some((_, consumed))) = &whole {
        assert_eq!(skip_reply(input), Some(*consumed));
    }
    let (mut parser, mut skipper) = (ReplyParser::default(), ReplySkipper::default());
    for end in 0..=input.len() {
        let parsed = parser.parse(&input[..end]);
        let skipped = skipper.skip(&input[..end]);
        match (parsed, skipped) {
            (Ok(None), Ok(None)) => continue,
            (Ok(Some((value, consumed))), Ok(Some(skipped))) => {
                assert_eq!((consumed, consumed), (skipped, end));
                // Debug text, because a NaN does not equal itself.
                assert_eq!(format!("{whole:?}"), format!("{:?}", Ok::<_, ()>(Some((value, consumed)))));
            }
            (Err(_), _) => assert!(whole.is_err()),
            (parsed, skipped) => panic!("{parsed:?} but {skipped:?}"),
        }
        return;
    }
    assert_eq!(whole, Ok(None));
});
