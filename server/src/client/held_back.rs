//! Notifications that wait until the reply to the connection's command under way is written.
//!
//! The command may change the RESP version (HELLO within EXEC). So notifications that depend on it are kept
//! in both versions until the reply is written.

use braid_protocol::reply::Resp;

/// Bytes that follow a reply, in the order in which they came.
#[derive(Debug, Default)]
pub struct HeldBack {
    bytes: Vec<u8>,
    /// The length of each part with its RESP version, in order. None stands for both versions.
    parts: Vec<(Option<Resp>, usize)>,
}

impl HeldBack {
    /// Adds bytes for clients of one RESP version, or for all.
    pub fn push(&mut self, of: Option<Resp>, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        match self.parts.last_mut() {
            Some((last, len)) if *last == of => *len += bytes.len(),
            _ => self.parts.push((of, bytes.len())),
        }
    }

    /// The number of bytes.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Iterates over the bytes for a client of a RESP version.
    pub fn in_dialect(&self, version: Resp) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        self.parts.iter().filter_map(move |&(of, len)| {
            let (part, behind) = rest.split_at(len);
            rest = behind;
            of.is_none_or(|of| of == version).then_some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_gets_its_own_and_what_is_for_both_in_order() {
        let mut held_back = HeldBack::default();
        for (of, bytes) in [
            (Some(Resp::V2), "*3\r\n"),
            (Some(Resp::V3), ">3\r\n"),
            (None, "body"),
            (None, " and more"),
            (Some(Resp::V3), ">2\r\n"),
        ] {
            held_back.push(of, bytes.as_bytes());
        }
        let told = |version| held_back.in_dialect(version).collect::<Vec<_>>().concat();
        assert_eq!(told(Resp::V2), b"*3\r\nbody and more");
        assert_eq!(told(Resp::V3), b">3\r\nbody and more>2\r\n");
    }
}
