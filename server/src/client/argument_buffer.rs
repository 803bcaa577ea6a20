//! Room for an argument of megabytes, made where no socket waits.
//!
//! To move what has come of such an argument to where there is room takes milliseconds. So does the first
//! write to a page of the new room, if pages are huge or the machine is virtual: the system has to find that
//! memory and to clear it. So a heavy-work thread takes the room and writes to the pages that will be needed
//! next.

/// An argument is long that lacks at least so many bytes.
const LONG_BYTES: usize = 1 << 20;

/// An announced length is believed once so many bytes have come, and up to so many times what has come: room
/// that nobody has written to costs addresses only, but counts as memory that is used.
const TRUSTED_BYTES: usize = 256 * 1024;
const TRUSTED_MAX_PART: usize = 16;

/// The most bytes that are written to ahead of what has come, and how many times what has come they are at
/// most: a client that announces much and sends little takes little memory.
const READY_MAX_BYTES: usize = 16 << 20;
const READY_MAX_PART: usize = 4;

/// What has come of a long argument, and the room for the rest.
pub struct Room {
    bytes: Vec<u8>,
    /// How many bytes may still come: those that the argument lacks, and what one read brings beyond its end.
    n_wanted: usize,
    /// Up to where it has been written to.
    n_ready: usize,
}

impl Room {
    /// Whether what has come, and one more read, needs room that is to be made elsewhere. `n_ready` is what
    /// [`Room::into_parts`] gave last: the buffer may be another one now.
    pub fn is_wanted(bytes: &Vec<u8>, n_ready: usize, n_lacking: usize, read_bytes: usize) -> bool {
        n_lacking >= LONG_BYTES
            && bytes.len() >= TRUSTED_BYTES
            && bytes.len() + read_bytes > n_ready.min(bytes.capacity())
    }

    /// Asks for room behind what has come.
    pub fn behind(bytes: Vec<u8>, n_lacking: usize, read_bytes: usize) -> Self {
        Room { bytes, n_wanted: n_lacking + read_bytes, n_ready: 0 }
    }

    /// Makes the room, all of it if that is believed, and writes to what is needed next.
    pub fn make(&mut self) {
        let len = self.bytes.len();
        let n_believed = TRUSTED_MAX_PART * len;
        // A rest for which no room would be asked for comes with what is before it.
        let n_reserved =
            if self.n_wanted <= n_believed + 2 * LONG_BYTES { self.n_wanted } else { n_believed };
        // Without so many addresses it is made as it is needed.
        let _ = self.bytes.try_reserve_exact(n_reserved);
        self.n_ready = len + self.n_wanted.min(READY_MAX_BYTES).min(READY_MAX_PART * len);
        self.bytes.resize(self.n_ready, 0);
        self.bytes.truncate(len);
    }

    /// What has come, with the room behind it, and up to where that has been written to.
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
