//! Room for an argument of megabytes, made where no socket waits.
//!
//! Moving the received part of such an argument to where there is room takes milliseconds. So does the first
//! write to a page of the new room, if pages are huge or the machine is virtual. The system has to find and
//! clear that memory. So a heavy-work thread allocates the room and writes to the pages that are needed next.

/// The minimum of missing bytes of a long argument.
const LONG_BYTES: usize = 1 << 20;

/// The received bytes after which an announced length is believed.
///
/// It is believed up to `TRUSTED_MAX_PART` times the received bytes.
///
/// Unwritten room costs only addresses, but counts as used memory.
const TRUSTED_BYTES: usize = 256 * 1024;
const TRUSTED_MAX_PART: usize = 16;

/// The maximum of bytes written ahead of the received bytes, and its ratio to these.
///
/// A client that announces much and sends little uses little memory.
const READY_MAX_BYTES: usize = 16 << 20;
const READY_MAX_PART: usize = 4;

/// The received part of a long argument, and room for the rest.
pub struct Room {
    bytes: Vec<u8>,
    /// The bytes that may still arrive. They are the argument's missing ones, and those that one read brings
    /// beyond its end.
    n_wanted: usize,
    /// The end of the part that has been written.
    n_ready: usize,
}

impl Room {
    /// Whether the received bytes, and one more read, need room that must be made elsewhere.
    ///
    /// `n_ready` is the last result of [`Room::into_parts`]. The buffer may be another one now.
    pub fn is_wanted(bytes: &Vec<u8>, n_ready: usize, n_lacking: usize, read_bytes: usize) -> bool {
        n_lacking >= LONG_BYTES
            && bytes.len() >= TRUSTED_BYTES
            && bytes.len() + read_bytes > n_ready.min(bytes.capacity())
    }

    /// Requests room after the received bytes.
    pub fn behind(bytes: Vec<u8>, n_lacking: usize, read_bytes: usize) -> Self {
        Room { bytes, n_wanted: n_lacking + read_bytes, n_ready: 0 }
    }

    /// Makes the room, and writes to the part that is needed next.
    ///
    /// All of it is made if the length is believed.
    pub fn make(&mut self) {
        let len = self.bytes.len();
        let n_believed = TRUSTED_MAX_PART * len;
        // A small rest, for which no room would be requested, is reserved at once.
        let n_reserved =
            if self.n_wanted <= n_believed + 2 * LONG_BYTES { self.n_wanted } else { n_believed };
        // If there are not enough addresses, room is made as it is needed.
        let _ = self.bytes.try_reserve_exact(n_reserved);
        self.n_ready = len + self.n_wanted.min(READY_MAX_BYTES).min(READY_MAX_PART * len);
        self.bytes.resize(self.n_ready, 0);
        self.bytes.truncate(len);
    }

    /// Returns the received bytes with their room, and the end of the written part.
    pub fn into_parts(self) -> (Vec<u8>, usize) {
        (self.bytes, self.n_ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_BYTES: usize = 64 * 1024;

    #[test]
    fn every_read_of_a_long_argument_finds_room() {
        for announced in [3 << 20, (5 << 20) + 300_000, (6 << 20) + 1, 20 << 20, 100 << 20] {
            let (mut bytes, mut n_ready, mut n_made) = (vec![b'x'; TRUSTED_BYTES], 0, 0);
            while bytes.len() < announced {
                let n_lacking = announced - bytes.len();
                if Room::is_wanted(&bytes, n_ready, n_lacking, READ_BYTES) {
                    let mut room = Room::behind(bytes, n_lacking, READ_BYTES);
                    room.make();
                    (bytes, n_ready) = room.into_parts();
                    n_made += 1;
                }
                let capacity = bytes.capacity();
                bytes.extend_from_slice(&[b'x'; READ_BYTES]);
                assert_eq!(bytes.capacity(), capacity, "{n_lacking} of {announced} bytes to come");
                assert!(n_lacking < LONG_BYTES || bytes.len() <= n_ready, "{n_lacking} of {announced}");
            }
            assert!(n_made > 0 && n_made < 12, "{n_made} times");
            assert!(bytes.iter().all(|&byte| byte == b'x'));
        }
    }

    #[test]
    fn an_announced_length_takes_memory_only_as_far_as_it_is_kept() {
        let few = vec![b'x'; TRUSTED_BYTES - 1];
        assert!(!Room::is_wanted(&few, 0, 512 << 20, READ_BYTES));
        let mut room = Room::behind(vec![b'x'; TRUSTED_BYTES], 512 << 20, READ_BYTES);
        room.make();
        let (bytes, n_ready) = room.into_parts();
        assert!(n_ready <= (1 + READY_MAX_PART) * TRUSTED_BYTES);
        assert!(bytes.capacity() <= (1 + TRUSTED_MAX_PART) * TRUSTED_BYTES, "{}", bytes.capacity());
    }
}
