//! Filling lists, sets, hashes and sorted sets, several members in a request.

use std::net::SocketAddr;

use braid_protocol::Value;
use braid_protocol::request::write_request;

use crate::bars::preload;
use crate::client::{Client, wrong_reply};
use crate::error::BenchError;

/// The most members that one request adds.
const N_PER_REQUEST: u64 = 20;

/// The type of a value that is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// Fields with values of 8 bytes.
    Hash,
    /// Elements of a list.
    List,
    /// Members of a set.
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

    /// Returns the arguments that add a member.
    fn arguments(self, index: u64, member: &[u8]) -> Vec<Vec<u8>> {
        let member = member.to_vec();
        match self {
            Self::Hash => vec![member, eight_bytes(b'v', index).to_vec()],
            Self::List | Self::Set => vec![member],
            Self::SortedSet => vec![scrambled(index).to_string().into_bytes(), member],
        }
    }
}

/// Values to fill: keys of one type with equal numbers of members.
#[derive(Debug, Clone)]
pub struct Filling<Key, Member> {
    /// The type of each value.
    pub value_type: ValueType,
    /// The number of keys.
    pub n_keys: u64,
    /// The number of members of each value.
    pub n_members: u64,
    /// Returns the name of the key with an index.
    pub key: Key,
    /// Returns the name of the member with an index. Members are counted through all keys.
    pub member: Member,
}

impl<Key, Member, K, M> Filling<K, M>
where
    Key: AsRef<[u8]>,
    Member: AsRef<[u8]>,
    K: Fn(u64) -> Key + Clone + Send + Sync + 'static,
    M: Fn(u64) -> Member + Clone + Send + Sync + 'static,
{
    /// Adds the members over several connections, and checks the count of the last key.
    ///
    /// # Errors
    /// When an addition is refused or the count disagrees.
    pub fn fill(&self, address: SocketAddr) -> Result<(), BenchError> {
        let n_parts = self.n_members.div_ceil(N_PER_REQUEST);
        let filling = self.clone();
        preload::pipeline(address, self.n_keys * n_parts, move |request, out| {
            filling.append_part(request / n_parts, request % n_parts, out);
        })?;
        let last = (self.key)(self.n_keys - 1);
        let count = [self.value_type.count_command(), last.as_ref()];
        match Client::connect(address)?.call(&count)? {
            Value::Integer(n_members) if n_members == self.n_members as i64 => Ok(()),
            reply => Err(wrong_reply(&count, &reply)),
        }
    }

    fn append_part(&self, key: u64, part: u64, out: &mut Vec<u8>) {
        let first = part * N_PER_REQUEST;
        let n_members = N_PER_REQUEST.min(self.n_members - first);
        let mut argv = vec![self.value_type.add_command().to_vec(), (self.key)(key).as_ref().to_vec()];
        for index in (key * self.n_members + first..).take(n_members as usize) {
            argv.extend(self.value_type.arguments(index, (self.member)(index).as_ref()));
        }
        write_request(out, &argv);
    }
}

/// Returns a letter and seven digits, which a server cannot store as an integer.
pub fn eight_bytes(letter: u8, index: u64) -> [u8; 8] {
    let mut rest = index;
    let mut name = [letter; 8];
    for digit in name[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    name
}

/// Returns a number below 2^20 that looks random and is the same in every run.
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
        for (value_type, n_arguments) in
            [(ValueType::Hash, 2), (ValueType::SortedSet, 2), (ValueType::List, 1), (ValueType::Set, 1)]
        {
            let arguments = value_type.arguments(1, b"m");
            assert_eq!(arguments.len(), n_arguments);
            assert!(arguments.contains(&b"m".to_vec()));
        }
    }
}
