//! Keyspace events: the effects of writes on keys, by the names that Redis gives them.
//!
//! Every operation by which a key can change takes an [`Event`], so a write without one does not compile. An
//! event is one byte, and on a shard that nobody observes it is never looked at.

/// The class of an event: one letter of `notify-keyspace-events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventClass {
    /// `g`: events of keys of any type.
    Generic,
    /// `$`.
    String,
    /// `l`.
    List,
    /// `s`.
    Set,
    /// `h`.
    Hash,
    /// `z`.
    SortedSet,
    /// `t`.
    Stream,
    /// `x`: a key has expired.
    Expired,
    /// `e`: a key was evicted to make room.
    Evicted,
    /// `n`: a key has come into being.
    New,
    /// `m`: a key that is not there was read.
    KeyMiss,
    /// `o`: another value has replaced that of a key.
    Overwritten,
    /// `c`: the new value has another type.
    TypeChanged,
    /// Redis changes the key and publishes nothing. The event's row says why.
    Silent,
}

impl EventClass {
    /// The letter of `notify-keyspace-events`, unless nothing is ever published.
    pub const fn letter(self) -> Option<u8> {
        Some(match self {
            EventClass::Generic => b'g',
            EventClass::String => b'$',
            EventClass::List => b'l',
            EventClass::Set => b's',
            EventClass::Hash => b'h',
            EventClass::SortedSet => b'z',
            EventClass::Stream => b't',
            EventClass::Expired => b'x',
            EventClass::Evicted => b'e',
            EventClass::New => b'n',
            EventClass::KeyMiss => b'm',
            EventClass::Overwritten => b'o',
            EventClass::TypeChanged => b'c',
            EventClass::Silent => return None,
        })
    }

    /// The bit of the class in a set of classes.
    pub const fn bit(self) -> u16 {
        1 << self as u16
    }
}

macro_rules! events {
    ($($(#[$about:meta])* $event:ident = $name:literal: $class:ident,)*) => {
        /// The effect of a write on a key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Event {
            $(
                #[doc = concat!("`", $name, "`")]
                ///
                $(#[$about])*
                $event,
            )*
        }

        impl Event {
            /// All events, in the order of their numbers.
            pub const ALL: &[Event] = &[$(Event::$event),*];

            /// The name that Redis publishes; that of a silent event is for tests and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Event::$event => $name,)*
                }
            }

            /// The class that subscribers choose by.
            pub const fn class(self) -> EventClass {
                match self {
                    $(Event::$event => EventClass::$class,)*
                }
            }
        }
    };
}

events! {
    /// DEL and its kin, and every other removal of a whole key: the last element of a collection has gone, a
    /// store had no result, the new deadline has passed already.
    Del = "del": Generic,
    /// A key was given a deadline.
    Expire = "expire": Generic,
    /// A key has lost its deadline.
    Persist = "persist": Generic,
    /// RENAME, of the old name.
    RenameFrom = "rename_from": Generic,
    /// RENAME, of the new name.
    RenameTo = "rename_to": Generic,
    /// MOVE, in the old database.
    MoveFrom = "move_from": Generic,
    /// MOVE, in the new database.
    MoveTo = "move_to": Generic,
    /// COPY, of the new key.
    CopyTo = "copy_to": Generic,
    /// RESTORE.
    Restore = "restore": Generic,
    /// A string was written whole. BITOP counts as that, too.
    Set = "set": String,
    /// SETRANGE.
    SetRange = "setrange": String,
    /// APPEND.
    Append = "append": String,
    /// INCR, DECR, INCRBY and DECRBY.
    IncrBy = "incrby": String,
    /// INCRBYFLOAT.
    IncrByFloat = "incrbyfloat": String,
    /// SETBIT and BITFIELD.
    SetBit = "setbit": String,
    /// PFADD and PFMERGE.
    PfAdd = "pfadd": String,
    /// An element was added at the left.
    LPush = "lpush": List,
    /// An element was added at the right.
    RPush = "rpush": List,
    /// An element was taken from the left.
    LPop = "lpop": List,
    /// An element was taken from the right.
    RPop = "rpop": List,
    /// LINSERT.
    LInsert = "linsert": List,
    /// LSET.
    LSet = "lset": List,
    /// LREM.
    LRem = "lrem": List,
    /// LTRIM.
    LTrim = "ltrim": List,
    /// SORT with STORE.
    SortStore = "sortstore": List,
    /// SADD, and SMOVE in its destination.
    SAdd = "sadd": Set,
    /// SREM, and SMOVE in its source.
    SRem = "srem": Set,
    /// SPOP.
    SPop = "spop": Set,
    /// SINTERSTORE.
    SInterStore = "sinterstore": Set,
    /// SUNIONSTORE.
    SUnionStore = "sunionstore": Set,
    /// SDIFFSTORE.
    SDiffStore = "sdiffstore": Set,
    /// Fields were set.
    HSet = "hset": Hash,
    /// HINCRBY.
    HIncrBy = "hincrby": Hash,
    /// HINCRBYFLOAT.
    HIncrByFloat = "hincrbyfloat": Hash,
    /// Fields were removed by a client.
    HDel = "hdel": Hash,
    /// Fields were given deadlines.
    HExpire = "hexpire": Hash,
    /// Fields have lost their deadlines.
    HPersist = "hpersist": Hash,
    /// Fields were removed because their deadline had passed.
    HExpired = "hexpired": Hash,
    /// Members were added, or their scores set: ZADD and GEOADD.
    ZAdd = "zadd": SortedSet,
    /// ZINCRBY, and ZADD with INCR.
    ZIncr = "zincr": SortedSet,
    /// ZREM.
    ZRem = "zrem": SortedSet,
    /// ZREMRANGEBYRANK.
    ZRemRangeByRank = "zremrangebyrank": SortedSet,
    /// ZREMRANGEBYSCORE.
    ZRemRangeByScore = "zremrangebyscore": SortedSet,
    /// ZREMRANGEBYLEX.
    ZRemRangeByLex = "zremrangebylex": SortedSet,
    /// A member was taken from the low end.
    ZPopMin = "zpopmin": SortedSet,
    /// A member was taken from the high end.
    ZPopMax = "zpopmax": SortedSet,
    /// ZUNIONSTORE.
    ZUnionStore = "zunionstore": SortedSet,
    /// ZINTERSTORE.
    ZInterStore = "zinterstore": SortedSet,
    /// ZDIFFSTORE.
    ZDiffStore = "zdiffstore": SortedSet,
    /// ZRANGESTORE.
    ZRangeStore = "zrangestore": SortedSet,
    /// GEOSEARCHSTORE.
    GeoSearchStore = "geosearchstore": SortedSet,
    /// GEORADIUS and GEORADIUSBYMEMBER with STORE or STOREDIST.
    GeoRadiusStore = "georadiusstore": SortedSet,
    /// XADD.
    XAdd = "xadd": Stream,
    /// XTRIM, and XADD that trims.
    XTrim = "xtrim": Stream,
    /// Entries were deleted.
    XDel = "xdel": Stream,
    /// XSETID.
    XSetId = "xsetid": Stream,
    /// XGROUP CREATE.
    XGroupCreate = "xgroup-create": Stream,
    /// XGROUP SETID.
    XGroupSetId = "xgroup-setid": Stream,
    /// XGROUP DESTROY.
    XGroupDestroy = "xgroup-destroy": Stream,
    /// A consumer was created, whichever command named it first.
    XGroupCreateConsumer = "xgroup-createconsumer": Stream,
    /// XGROUP DELCONSUMER.
    XGroupDelConsumer = "xgroup-delconsumer": Stream,
    /// A key was removed because its deadline had passed.
    Expired = "expired": Expired,
    /// A key was removed to make room.
    Evicted = "evicted": Evicted,
    /// A key was created. The event of the command that created it follows.
    New = "new": New,
    /// A key that is not there was read.
    KeyMiss = "keymiss": KeyMiss,
    /// The value of a key was replaced whole.
    Overwritten = "overwritten": Overwritten,
    /// The value that replaced it has another type.
    TypeChanged = "type_changed": TypeChanged,
    /// FLUSHDB and FLUSHALL: a change of a database and not of a key, for which Redis has no event.
    Flushed = "flushed": Silent,
    /// SWAPDB: the same.
    Swapped = "swapped": Silent,
    /// A key may be written again. Its value is unchanged; only waiting nodes are told.
    Unpinned = "unpinned": Silent,
    /// The table of tracked keys was full and has forgotten the readers of this one. Its value is unchanged.
    Forgotten = "forgotten": Silent,
    /// A group has delivered entries: Redis propagates that and publishes nothing.
    Delivered = "delivered": Silent,
    /// Entries were acknowledged: the same.
    Acknowledged = "acknowledged": Silent,
    /// Pending entries have changed hands: the same.
    Claimed = "claimed": Silent,
    /// PFCOUNT has kept the cardinality in the value, and PFDEBUG has made it dense: other bytes that mean
    /// the same.
    Recounted = "recounted": Silent,
    /// DEBUG POPULATE, of which Redis publishes only that there are new keys.
    Populated = "populated": Silent,
    /// BITFIELD has lengthened a string, and all its writes were refused (OVERFLOW FAIL).
    Lengthened = "lengthened": Silent,
    /// A value that is made or copied on a shard of its own, where nobody can see it.
    Made = "made": Silent,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn events_are_a_byte_and_have_names_of_their_own() {
        assert_eq!((size_of::<Event>(), size_of::<Option<Event>>()), (1, 1));
        let names: HashSet<&str> = Event::ALL.iter().map(|event| event.name()).collect();
        assert_eq!(names.len(), Event::ALL.len());
    }

    #[test]
    fn classes_have_the_letters_of_redis() {
        let letters: HashSet<u8> = Event::ALL.iter().filter_map(|event| event.class().letter()).collect();
        assert_eq!(letters, b"g$lshztxenmoc".iter().copied().collect());
        let bits: HashSet<u16> = Event::ALL.iter().map(|event| event.class().bit()).collect();
        assert_eq!(bits.len(), letters.len() + 1, "and the silent ones");
    }
}
