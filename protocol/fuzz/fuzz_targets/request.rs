//! Requests cut into pieces are the requests in the whole input.
#![no_main]

use braid_protocol::{Limits, Parse, ProtocolError, RequestParser};
use libfuzzer_sys::fuzz_target;

/// Requests, the rest of the input, and the error that ended it.
type Parsed = (Vec<Vec<Vec<u8>>>, Vec<u8>, Option<ProtocolError>);

fn feed(limits: Limits, pieces: impl Iterator<Item = Vec<u8>>) -> Parsed {
    let mut parser = RequestParser::new(limits);
    let (mut requests, mut buffer, mut args) = (Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(&piece);
        loop {
            match parser.parse(&mut buffer, &mut args) {
                Ok(Parse::Request { consumed }) => {
                    requests.push(args.drain(..).map(|arg| arg.of(&buffer[..consumed]).to_vec()).collect());
                    buffer.drain(..consumed);
                }
                Ok(Parse::Empty { consumed }) => drop(buffer.drain(..consumed)),
                Ok(Parse::Incomplete { wanted }) => {
                    assert!(wanted > 0 && args.is_empty());
                    break;
                }
                Err(error) => return (requests, Vec::new(), Some(error)),
            }
        }
    }
    (requests, buffer, None)
}

fuzz_target!(|data: (bool, u8, Vec<u8>)| {
    let (authenticated, piece_bytes, input) = data;
    let limits = Limits { authenticated, ..Limits::default() };
    let whole = feed(limits, [input.clone()].into_iter());
    let pieces = feed(limits, input.chunks(usize::from(piece_bytes) + 1).map(<[u8]>::to_vec));
    assert_eq!(whole, pieces);
});
