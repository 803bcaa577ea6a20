//! Filling lists, sets, hashes and sorted sets, several members in a request.

use std::net::SocketAddr;

use crate::bars::client::{Client, wrong};
use crate::bars::keys;
use crate::bars::resp::{self, Kind};
use crate::error::BenchError;

/// Members that one request adds at most.
const N_PER_REQUEST: u64 = 20;

/// The type of a value that is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// Fields with values of 8 bytes.
    Hash,
    /// Elements.
    List,
    /// Members.
    Set,
    /// Members with scores in no order, each below 2^20.
    SortedSet,
}

impl ValueType {
    fn add_command(self) -> &'static [u8] {
        match self {
            Self::Hash => b"HSET",
            Self::List => b"RPUSH",
            Self::Set => b"SADD",
            Self::SortedSet => b"ZADD",
        }
    }

    fn count_command(self) -> &'static [u8] {
        match self {
            Self::Hash => b"HLEN",
            Self::List => b"LLEN",
            Self::Set => b"SCARD",
            Self::SortedSet => b"ZCARD",
        }
    }

    fn n_arguments(self) -> u64 {
        match self {
            Self::Hash | Self::SortedSet => 2,
            Self::List | Self::Set => 1,
        }
    }

    fn append_member(self, index: u64, member: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Hash => {
                resp::append_argument(out, member);
                resp::append_argument(out, &eight_bytes(b'v', index));
            }
            Self::List | Self::Set => resp::append_argument(out, member),
            Self::SortedSet => {
                resp::append_argument(out, scrambled(index).to_string().as_bytes());
                resp::append_argument(out, member);
            }
        }
    }
}

/// Values to fill: so many keys of one type with so many members each.
#[derive(Debug)]
pub struct Filling<Key, Member> {
    /// The type of each value.
    pub value_type: ValueType,
    /// How many keys.
    pub n_keys: u64,
    /// Members of each value.
    pub n_members: u64,
    /// Names the key of an index.
    pub key: Key,
    /// Names the member of an index; members are counted through all keys.
    pub member: Member,
}

impl<Key: AsRef<[u8]>, Member: AsRef<[u8]>, K: Fn(u64) -> Key, M: Fn(u64) -> Member> Filling<K, M> {
    /// Adds the members over several connections, and checks that the last key has as many as it should.
    ///
    /// # Errors
    /// When an addition is refused or the count disagrees.
    pub fn fill(&self, address: SocketAddr) -> Result<(), BenchError> {
        let n_parts = self.n_members.div_ceil(N_PER_REQUEST);
        keys::pipeline(address, self.n_keys * n_parts, |request, out| {
            self.append_part(request / n_parts, request % n_parts, out);
        })?;
        let last = (self.key)(self.n_keys - 1);
        let count = [self.value_type.count_command(), last.as_ref()];
        let reply = Client::connect(address)?.call(&count)?;
        if reply.kind == Kind::Integer(self.n_members as i64) { Ok(()) } else { Err(wrong(&count, &reply)) }
    }

    fn append_part(&self, key: u64, part: u64, out: &mut Vec<u8>) {
        let first = part * N_PER_REQUEST;
        let n_members = N_PER_REQUEST.min(self.n_members - first);
        resp::append_header(out, (2 + n_members * self.value_type.n_arguments()) as usize);
        resp::append_argument(out, self.value_type.add_command());
        resp::append_argument(out, (self.key)(key).as_ref());
        for index in (key * self.n_members + first..).take(n_members as usize) {
            self.value_type.append_member(index, (self.member)(index).as_ref(), out);
        }
    }
}

/// A letter and seven digits: nothing that a server can keep as an integer.
pub fn eight_bytes(letter: u8, index: u64) -> [u8; 8] {
    let mut name = [letter; 8];
    keys::write_digits(&mut name[1..], index);
    name
}

/// A number below 2^20 that looks random and is the same in every run.
pub fn scrambled(index: u64) -> u64 {
    index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_counted_through_all_keys() {
        let filling = Filling {
            value_type: ValueType::Set,
            n_keys: 3,
            n_members: N_PER_REQUEST + 1,
            key: |index: u64| format!("k{index}"),
            member: |index| eight_bytes(b'm', index),
        };
        let mut out = Vec::new();
        filling.append_part(2, 1, &mut out);
        assert_eq!(out, b"*3\r\n$4\r\nSADD\r\n$2\r\nk2\r\n$8\r\nm0000062\r\n");
    }

    #[test]
    fn hashes_and_sorted_sets_take_two_arguments_a_member() {
        for value_type in [ValueType::Hash, ValueType::SortedSet] {
            let mut out = Vec::new();
            value_type.append_member(1, b"m", &mut out);
            assert_eq!(out.iter().filter(|&&byte| byte == b'$').count() as u64, value_type.n_arguments());
        }
    }
}
