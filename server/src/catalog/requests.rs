//! Requests that outlive their input buffer: queued for EXEC, or delegated in a node.

use braid_protocol::request::Arg;
use braid_storage::{entry::Handover, memory::reclaim};

use super::Words;

/// Bytes of a piece of memory that requests share. A longer request has a piece of its own.
const PIECE_BYTES: usize = 64 * 1024;

/// Copies of requests, in order.
///
/// The words of a request are relative to its first byte. So 32 bits are enough for any number of requests,
/// as the parser accepts no longer request. Pieces are never moved, so memory does not double while requests
/// are added.
#[derive(Default)]
pub struct Requests {
    pieces: Vec<RequestPiece>,
    words: Vec<Arg>,
    requests: Vec<RequestSpan>,
    n_bytes: usize,
}

/// Memory that contains requests.
enum RequestPiece {
    /// Requests in the form in which they arrived.
    Bytes(Vec<u8>),
    /// One request with a long word that an entry can take over.
    Handover(Handover),
}

impl RequestPiece {
    fn bytes(&self) -> &[u8] {
        match self {
            RequestPiece::Bytes(bytes) => bytes,
            RequestPiece::Handover(handover) => handover.bytes(),
        }
    }

    /// Frees the piece. Freeing megabytes takes long, so [`braid_storage::memory::reclaim::discard_bytes`]
    /// does it.
    fn discard(self) {
        let bytes = match self {
            RequestPiece::Bytes(bytes) => Some(bytes),
            RequestPiece::Handover(handover) => handover.into_buffer(),
        };
        if let Some(bytes) = bytes {
            reclaim::discard_bytes(bytes);
        }
    }
}

/// The position of a request.
#[derive(Clone, Copy)]
struct RequestSpan {
    piece: usize,
    /// Its first byte in the piece.
    start: usize,
    first_word: usize,
    n_words: usize,
}

impl Requests {
    /// Adds a copy of a request.
    pub fn push(&mut self, words: Words<'_>) {
        let (bytes, ranges) = words.parts();
        let start = match self.pieces.last_mut() {
            Some(RequestPiece::Bytes(piece)) if piece.len() + bytes.len() <= PIECE_BYTES => {
                piece.extend_from_slice(bytes);
                piece.len() - bytes.len()
            }
            _ => {
                self.pieces.push(RequestPiece::Bytes(bytes.to_vec()));
                0
            }
        };
        self.n_bytes += bytes.len();
        self.add(start, ranges);
    }

    /// Adds a request whose bytes the next [`Requests::adopt`] supplies. They begin at `start`.
    pub fn push_without_bytes(&mut self, words: Words<'_>, start: usize) {
        let (_, ranges) = words.parts();
        self.pieces.push(RequestPiece::Bytes(Vec::new()));
        self.add(start, ranges);
    }

    /// Adds a request that begins at `start` in the last piece.
    fn add(&mut self, start: usize, ranges: &[Arg]) {
        self.n_bytes += size_of_val(ranges);
        let request = RequestSpan {
            piece: self.pieces.len() - 1,
            start,
            first_word: self.words.len(),
            n_words: ranges.len(),
        };
        self.words.extend_from_slice(ranges);
        self.requests.push(request);
    }

    /// Takes over the input buffer that contains the last request.
    ///
    /// Copying hundreds of megabytes would take long.
    ///
    /// # Panics
    /// If there is no request.
    pub fn adopt(&mut self, input: Vec<u8>) {
        self.n_bytes += input.len();
        *self.pieces.last_mut().expect("the request has come first") = RequestPiece::Bytes(input);
    }

    /// Prepares a single request's long word for a takeover by an entry.
    ///
    /// It does so if the request is little more than that word. This takes as long as a copy, but no memory.
    pub fn prepare_handover(&mut self) {
        if let [request] = &mut self.requests[..]
            && let piece @ RequestPiece::Bytes(_) = &mut self.pieces[request.piece]
        {
            let RequestPiece::Bytes(bytes) = std::mem::replace(piece, RequestPiece::Bytes(Vec::new())) else {
                unreachable!("it is none yet")
            };
            let words = &mut self.words[request.first_word..request.first_word + request.n_words];
            match Handover::new(bytes, request.start, words) {
                Ok(handover) => {
                    request.start = 0;
                    *piece = RequestPiece::Handover(handover);
                }
                Err(bytes) => *piece = RequestPiece::Bytes(bytes),
            }
        }
    }

    /// Runs a function with the words of a request.
    ///
    /// An entry that the function creates takes over the long word, if that was
    /// [prepared](Requests::prepare_handover).
    #[inline]
    pub fn handing_over<T>(&self, nth: usize, run: impl FnOnce(Words<'_>) -> T) -> T {
        match &self.pieces[self.requests[nth].piece] {
            RequestPiece::Bytes(_) => run(self.get(nth)),
            RequestPiece::Handover(handover) => handover.offer(|| run(self.get(nth))),
        }
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the number of words of all requests together.
    pub fn n_words(&self) -> usize {
        self.words.len()
    }

    /// Returns the bytes that the requests take.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Returns the words of a request.
    ///
    /// # Panics
    /// If there is no request with this number.
    pub fn get(&self, nth: usize) -> Words<'_> {
        let RequestSpan { piece, start, first_word, n_words } = self.requests[nth];
        Words::new(&self.pieces[piece].bytes()[start..], &self.words[first_word..first_word + n_words])
    }

    /// Returns the requests from number `first` on.
    pub fn iter_from(&self, first: usize) -> impl Iterator<Item = Words<'_>> + Clone {
        (first..self.len()).map(|nth| self.get(nth))
    }

    /// Replaces some of the last words of a request.
    pub fn replace_last_words(&mut self, nth: usize, last: Vec<Option<Vec<u8>>>) {
        if last.is_empty() {
            return;
        }
        let words = self.get(nth);
        let n_kept = words.len() - last.len();
        let mut bytes = Vec::new();
        let mut ranges = Vec::with_capacity(words.len());
        for (at, word) in words.iter().enumerate() {
            let other = at.checked_sub(n_kept).and_then(|at| last[at].as_deref());
            let word = other.unwrap_or(word);
            // Without its headers the request is shorter than before, and the new words are short.
            let start = u32::try_from(bytes.len()).expect("a request is shorter than 4 GiB");
            ranges.push(Arg { start, len: word.len() as u32 });
            bytes.extend_from_slice(word);
        }
        let request = &mut self.requests[nth];
        self.words[request.first_word..request.first_word + ranges.len()].copy_from_slice(&ranges);
        (request.piece, request.start) = (self.pieces.len(), 0);
        self.n_bytes += bytes.len();
        self.pieces.push(RequestPiece::Bytes(bytes));
    }

    /// Removes all requests. It keeps at most `kept_bytes` of the memory of each kind.
    pub fn clear(&mut self, kept_bytes: usize) {
        self.discard_pieces(kept_bytes);
        if self.words.capacity() * size_of::<Arg>() > kept_bytes {
            self.words = Vec::new();
        }
        if self.requests.capacity() * size_of::<RequestSpan>() > kept_bytes {
            self.requests = Vec::new();
        }
        self.words.clear();
        self.requests.clear();
        self.n_bytes = 0;
    }

    /// Frees the pieces, except for a first one of at most `kept_bytes`.
    fn discard_pieces(&mut self, kept_bytes: usize) {
        let keeps_first = match self.pieces.first_mut() {
            Some(RequestPiece::Bytes(first)) if first.capacity() <= kept_bytes => {
                first.clear();
                true
            }
            _ => false,
        };
        self.pieces.drain(usize::from(keeps_first)..).for_each(RequestPiece::discard);
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.pieces.drain(..).for_each(RequestPiece::discard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words as in a request, with a header before each.
    fn request(words: &[&[u8]]) -> (Vec<u8>, Vec<Arg>) {
        let mut bytes = Vec::new();
        let ranges = words.iter().map(|word| {
            bytes.extend_from_slice(b"$\r\n");
            bytes.extend_from_slice(word);
            Arg { start: (bytes.len() - word.len()) as u32, len: word.len() as u32 }
        });
        let ranges = ranges.collect();
        (bytes, ranges)
    }

    fn texts(words: Words<'_>) -> Vec<Vec<u8>> {
        words.iter().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn requests_of_any_length_keep_their_words() {
        let long = vec![b'x'; 2 * PIECE_BYTES];
        let mut requests = Requests::default();
        let all: Vec<Vec<&[u8]>> = (0..5000)
            .map(|nth| vec![b"set".as_slice(), if nth % 100 == 7 { &long } else { b"short" }])
            .collect();
        for words in &all {
            let (bytes, ranges) = request(words);
            requests.push(Words::new(&bytes, &ranges));
        }
        for (nth, words) in all.iter().enumerate() {
            assert_eq!(texts(requests.get(nth)), *words);
        }
        assert_eq!((requests.len(), requests.n_words()), (5000, 10_000));
        // The pieces take little more memory than the requests.
        let allocated: usize = requests.pieces.iter().map(|piece| piece.bytes().len()).sum();
        assert!(allocated < requests.n_bytes() + 2 * PIECE_BYTES * requests.pieces.len() / 50 + PIECE_BYTES);
        requests.clear(4096);
        assert!(requests.is_empty() && requests.pieces.len() <= 1);
    }

    #[test]
    fn a_request_lies_in_its_input_where_that_is_adopted() {
        let (bytes, ranges) = request(&[b"set", b"key", &vec![b'x'; 2 * PIECE_BYTES]]);
        let input = [b"before", &bytes[..], b"after"].concat();
        let at = input.as_ptr();
        let mut requests = Requests::default();
        let (short, of_short) = request(&[b"multi"]);
        requests.push(Words::new(&short, &of_short));
        requests.push_without_bytes(Words::new(&bytes, &ranges), "before".len());
        requests.adopt(input);
        requests.push(Words::new(&short, &of_short));
        assert_eq!(texts(requests.get(1)), texts(Words::new(&bytes, &ranges)));
        assert_eq!(texts(requests.get(2)), [b"multi"]);
        assert_eq!(requests.pieces[1].bytes().as_ptr(), at, "it was copied");
    }

    #[test]
    fn a_long_word_is_prepared_to_be_handed_over_if_its_request_is_alone() {
        let long = vec![b'x'; 2 << 20];
        let (bytes, ranges) = request(&[b"set", b"key", &long, b"px", b"1000"]);
        let input = [b"before, by more than a header", &bytes[..], b"after"].concat();
        let of_input = || {
            let mut requests = Requests::default();
            requests
                .push_without_bytes(Words::new(&bytes, &ranges), input.len() - bytes.len() - "after".len());
            requests.adopt(input.clone());
            requests
        };
        let mut alone = of_input();
        alone.prepare_handover();
        assert!(matches!(alone.pieces[..], [RequestPiece::Handover(_)]));
        alone.prepare_handover();
        alone.handing_over(0, |words| assert_eq!(texts(words), texts(Words::new(&bytes, &ranges))));
        let mut with_another = of_input();
        with_another.push(Words::new(&bytes, &ranges));
        with_another.prepare_handover();
        assert!(matches!(with_another.pieces[..], [RequestPiece::Bytes(_), RequestPiece::Bytes(_)]));
        let (short, of_short) = request(&[b"get", b"key"]);
        let mut without = Requests::default();
        without.push(Words::new(&short, &of_short));
        without.prepare_handover();
        without.handing_over(0, |words| assert_eq!(texts(words), [&b"get"[..], b"key"]));
    }

    #[test]
    fn words_that_are_replaced_leave_other_requests_alone() {
        let mut requests = Requests::default();
        for nth in 0..3 {
            let (bytes, ranges) = request(&[b"xread", b"key", [b"a", b"b", b"c"][nth]]);
            requests.push(Words::new(&bytes, &ranges));
        }
        requests.replace_last_words(1, vec![None, Some(b"5-1".to_vec())]);
        assert_eq!(texts(requests.get(0)), [&b"xread"[..], b"key", b"a"]);
        assert_eq!(texts(requests.get(1)), [&b"xread"[..], b"key", b"5-1"]);
        assert_eq!(texts(requests.get(2)), [&b"xread"[..], b"key", b"c"]);
    }
}
