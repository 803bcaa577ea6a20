//! The history of the change stream: its last bytes, for followers that come back after a pause.

use std::{collections::VecDeque, fmt};

use bytes::{Buf, Bytes, BytesMut};

/// A place in the change stream: the number of bytes of its history before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);

/// The ID of a history: 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReplicationId([u8; Self::BYTES]);

impl ReplicationId {
    /// Its length.
    pub const BYTES: usize = 40;

    /// The ID that no history has.
    pub const NONE: Self = Self([b'0'; Self::BYTES]);

    /// Reads its digits; `None` if they are others, or not as many.
    pub fn parse(digits: &[u8]) -> Option<Self> {
        let digits: [u8; Self::BYTES] = digits.try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(Self(digits))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("they are ASCII")
    }

    /// Whether a replica means this one.
    pub fn is(&self, asked: &[u8]) -> bool {
        self.0.eq_ignore_ascii_case(asked)
    }
}

impl fmt::Display for ReplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ReplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The length of the chunks in which short pieces are gathered, in bytes.
const CHUNK_BYTES: usize = 16 << 10;

/// The bytes that are kept of a piece that is longer than the whole history.
const COPIED_BYTES: u64 = 1 << 20;

/// The last bytes of the stream.
///
/// Long pieces are shared with the stream. Short ones are copied together, because each would keep more
/// memory than it has bytes.
#[derive(Debug)]
pub struct History {
    /// The place of its first byte.
    first: u64,
    /// The chunks, oldest first. Each is whole pieces, or the end of a long one.
    chunks: VecDeque<Bytes>,
    /// The last bytes, which still grow.
    open: BytesMut,
    n_bytes: u64,
    most_bytes: u64,
}

impl History {
    /// An empty history that begins at a place.
    pub fn from(start: Lsn) -> Self {
        let (chunks, open) = (VecDeque::new(), BytesMut::new());
        Self { first: start.0, chunks, open, n_bytes: 0, most_bytes: u64::MAX }
    }

    /// Keeps `most_bytes` from now on, rounded up to whole chunks.
    pub fn limit(&mut self, most_bytes: u64) {
        self.most_bytes = most_bytes;
        self.trim();
    }

    /// Forgets all bytes. It goes on at another place.
    pub fn begin_anew(&mut self, start: Lsn) {
        *self = Self { most_bytes: self.most_bytes, ..Self::from(start) };
    }

    /// The place after its last byte.
    pub fn end(&self) -> Lsn {
        Lsn(self.first + self.n_bytes)
    }

    /// Adds the bytes that follow.
    pub fn add(&mut self, bytes: &Bytes) {
        if bytes.len() as u64 > self.most_bytes {
            // A part of them would keep the memory of all. A copy must not take long.
            let n_kept = self.most_bytes.min(COPIED_BYTES) as usize;
            let n_lost = bytes.len() - n_kept;
            self.begin_anew(Lsn(self.end().0 + n_lost as u64));
            return self.add(&Bytes::copy_from_slice(&bytes[n_lost..]));
        }
        if bytes.len() >= CHUNK_BYTES {
            self.seal();
            self.chunks.push_back(bytes.clone());
        } else {
            if self.open.len() + bytes.len() > CHUNK_BYTES {
                self.seal();
            }
            self.open.extend_from_slice(bytes);
        }
        self.n_bytes += bytes.len() as u64;
        self.trim();
    }

    /// Goes on at a place. The bytes before that are not known, but they make no change: a PING stands for
    /// them, after empty lines. If they are too many, or the place is before the end, the history begins
    /// there.
    pub fn skip_to(&mut self, place: Lsn) {
        const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
        let Some(n_left) = place.0.checked_sub(self.end().0).filter(|&n| n < self.most_bytes) else {
            return self.begin_anew(place);
        };
        let ping = if n_left >= PING.len() as u64 { PING } else { b"" };
        let mut filler = vec![b'\n'; n_left as usize - ping.len()];
        filler.extend_from_slice(ping);
        self.add(&Bytes::from(filler));
    }

    /// The place of its first byte.
    pub fn first(&self) -> Lsn {
        Lsn(self.first)
    }

    /// Its length in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// The bytes from a place on, unless it does not have all of them. If a unit begins at the place, one
    /// begins in each part.
    pub fn since(&self, from: Lsn) -> Option<VecDeque<Bytes>> {
        let mut n_skipped = from.0.checked_sub(self.first).filter(|&n| n <= self.n_bytes)?;
        let open = Bytes::copy_from_slice(&self.open);
        let mut rest = VecDeque::new();
        for chunk in self.chunks.iter().chain([&open]) {
            let n_here = n_skipped.min(chunk.len() as u64);
            n_skipped -= n_here;
            let bytes = chunk.slice(n_here as usize..);
            if !bytes.is_empty() {
                rest.push_back(bytes);
            }
        }
        Some(rest)
    }

    fn seal(&mut self) {
        if !self.open.is_empty() {
            self.chunks.push_back(self.open.split().freeze());
        }
    }

    fn trim(&mut self) {
        while let Some(oldest) = self.chunks.front_mut() {
            // A long piece is forgotten in parts.
            let n = oldest.len().min(CHUNK_BYTES);
            if self.n_bytes - (n as u64) < self.most_bytes {
                return;
            }
            oldest.advance(n);
            self.first += n as u64;
            self.n_bytes -= n as u64;
            if oldest.is_empty() {
                self.chunks.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One value may be longer than all of the history.
    #[test]
    fn the_memory_of_a_piece_that_is_too_long_is_not_kept() {
        let mut history = History::from(Lsn(0));
        history.limit(100_000);
        history.add(&Bytes::from_static(b"before"));
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        history.add(&piece);
        assert!(piece.is_unique(), "the history has a copy of its end");
        assert_eq!((history.end(), history.n_bytes()), (Lsn((1 << 20) + 6), 100_000));
        let kept = history.since(history.first()).expect("it is kept");
        assert_eq!(kept.iter().map(Bytes::len).sum::<usize>(), 100_000);
        history.limit(4 << 20);
        history.add(&Bytes::from(vec![b'x'; 5 << 20]));
        assert_eq!((history.end(), history.n_bytes()), (Lsn((6 << 20) + 6), COPIED_BYTES));
    }

    /// A search for a command in the parts misses none.
    #[test]
    fn pieces_stay_whole() {
        let mut history = History::from(Lsn(0));
        let long = Bytes::from(vec![b'x'; 5 * CHUNK_BYTES]);
        for piece in [Bytes::from_static(b"short"), long.clone(), long, Bytes::from_static(b"end")] {
            history.add(&piece);
        }
        let lengths = |from| -> Vec<_> {
            history.since(Lsn(from)).expect("it is kept").iter().map(Bytes::len).collect()
        };
        assert_eq!(lengths(0), [5, 5 * CHUNK_BYTES, 5 * CHUNK_BYTES, 3]);
        assert_eq!(lengths(5 + 5 * CHUNK_BYTES as u64), [5 * CHUNK_BYTES, 3]);
    }

    /// Pieces of all lengths: the history always has the last bytes of everything that was added.
    #[test]
    fn it_has_the_last_bytes_from_any_place_that_it_keeps() {
        let mut all: Vec<u8> = b"before".to_vec();
        let mut history = History::from(Lsn(6));
        history.limit(100_000);
        let mut random = 1_u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = match random >> 60 {
                0 => (random >> 20) as usize % 60_000,
                _ => (random >> 20) as usize % 300,
            };
            let piece: Vec<u8> = (0..n).map(|at| (all.len() + at) as u8).collect();
            all.extend_from_slice(&piece);
            history.add(&Bytes::from(piece));
            let first = history.first().0 as usize;
            assert_eq!(all.len() - first, history.n_bytes() as usize);
            assert!(history.n_bytes() >= 100_000.min(all.len() as u64 - 6), "it keeps what it was told to");
            let most = 100_000 + CHUNK_BYTES as u64;
            assert!(history.n_bytes() <= most, "it forgets the beginning of a long piece");
            for from in [first, first + history.n_bytes() as usize / 2, all.len()] {
                let chunks = history.since(Lsn(from as u64)).expect("it is kept");
                let bytes: Vec<u8> = chunks.into_iter().flatten().collect();
                assert!(bytes == all[from..], "from {from}");
            }
            assert!(history.since(Lsn(first as u64 - 1)).is_none());
            assert!(history.since(Lsn(all.len() as u64 + 1)).is_none());
        }
    }
}
