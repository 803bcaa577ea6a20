//! The numbers of the format.

/// The numbers of the types of values.
pub(super) mod types {
    pub const STRING: u8 = 0;
    pub const LIST: u8 = 1;
    pub const SET: u8 = 2;
    pub const SORTED_SET_OF_TEXTS: u8 = 3;
    pub const HASH: u8 = 4;
    pub const SORTED_SET: u8 = 5;
    /// Values of modules, before and since Redis 4.0.
    pub const MODULE_EARLY: u8 = 6;
    pub const MODULE: u8 = 7;
    pub const HASH_ZIPMAP: u8 = 9;
    pub const LIST_ZIPLIST: u8 = 10;
    pub const SET_INTSET: u8 = 11;
    pub const SORTED_SET_ZIPLIST: u8 = 12;
    pub const HASH_ZIPLIST: u8 = 13;
    pub const LIST_OF_ZIPLISTS: u8 = 14;
    pub const STREAM: u8 = 15;
    pub const HASH_LISTPACK: u8 = 16;
    pub const SORTED_SET_LISTPACK: u8 = 17;
    pub const LIST_OF_LISTPACKS: u8 = 18;
    pub const STREAM_2: u8 = 19;
    pub const SET_LISTPACK: u8 = 20;
    pub const STREAM_3: u8 = 21;
    /// The release candidates of Redis 7.4 wrote hashes whose fields have deadlines in these two ways.
    /// Valkey's number 22 is [another type](HASH_OF_VALKEY).
    pub const HASH_WITH_DEADLINES_EARLY: u8 = 22;
    pub const HASH_TRIPLES_EARLY: u8 = 23;
    pub const HASH_WITH_DEADLINES: u8 = 24;
    pub const HASH_TRIPLES: u8 = 25;
    /// Streams with what Redis 8.6 keeps of idempotent producers, and those of 8.8, in which groups also have
    /// entries that were handed back (XNACK).
    pub const STREAM_4: u8 = 26;
    pub const STREAM_5: u8 = 27;
    /// Arrays, of Redis 8.8. They are not supported.
    pub const ARRAY: u8 = 28;
    /// Hashes of Redis 8.10 whose fields are named by a template: with the template, which DUMP writes, and
    /// with its number, which a file has. Their values are packed or not.
    pub const HASH_BY_TEMPLATE_PACKED: u8 = 29;
    pub const HASH_OF_TEMPLATE_PACKED: u8 = 30;
    pub const HASH_BY_TEMPLATE: u8 = 31;
    pub const HASH_OF_TEMPLATE: u8 = 32;
    /// Rate limiters, of Redis 8.8. They are not supported.
    pub const RATE_LIMITER: u8 = 33;

    /// The number that Valkey 9 gives to its hashes whose fields have deadlines.
    pub const HASH_OF_VALKEY_STATED: u8 = 22;
    /// The number that stands for that type here. It stands in no file.
    pub const HASH_OF_VALKEY: u8 = 200;

    /// The types whose values begin with elements one after the other, so that any number of them can be read
    /// first.
    pub const DIVISIBLE: &[u8] = &[
        LIST,
        LIST_OF_ZIPLISTS,
        LIST_OF_LISTPACKS,
        SET,
        HASH,
        HASH_WITH_DEADLINES,
        HASH_WITH_DEADLINES_EARLY,
        HASH_OF_VALKEY,
        SORTED_SET,
        SORTED_SET_OF_TEXTS,
        STREAM,
        STREAM_2,
        STREAM_3,
        STREAM_4,
        STREAM_5,
    ];
}

/// The codes that stand in place of a type in a whole file.
pub(super) mod opcode {
    /// The names of a template's fields, from Redis 8.10.
    pub const HASH_TEMPLATE: u8 = 242;
    /// In Redis, what modules keep about the next key, since 8.6.
    pub const KEY_METADATA: u8 = 243;
    /// In Valkey, slots of a cluster that arrive from another node, since 9.0.
    pub const SLOT_IMPORT: u8 = 243;
    /// The contents of a slot of a cluster, from Redis 7.4 and later.
    pub const SLOT_INFO: u8 = 244;
    pub const LIBRARY: u8 = 245;
    /// Functions, as the release candidates of Redis 7.0 wrote them.
    pub const LIBRARY_EARLY: u8 = 246;
    pub const MODULE_AUX: u8 = 247;
    pub const IDLE: u8 = 248;
    pub const FREQUENCY: u8 = 249;
    pub const AUX: u8 = 250;
    pub const SIZES: u8 = 251;
    pub const DEADLINE_MS: u8 = 252;
    pub const DEADLINE_SECONDS: u8 = 253;
    pub const SELECT: u8 = 254;
    pub const END: u8 = 255;
}

/// The codes with which a module's data begin.
pub(super) mod module {
    /// The end of the data.
    pub const END: u64 = 0;
    pub const SIGNED: u64 = 1;
    pub const UNSIGNED: u64 = 2;
    pub const FLOAT: u64 = 3;
    pub const DOUBLE: u64 = 4;
    pub const STRING: u64 = 5;
}

/// How a piece of a list is stored: as one long element, or as packed ones.
pub(super) mod node {
    pub const PLAIN: u64 = 1;
    pub const PACKED: u64 = 2;
}

/// The two bits that a length starts with say how long it is itself.
pub(super) mod length {
    pub const IN_6_BITS: u8 = 0;
    pub const IN_14_BITS: u8 = 1;
    pub const IN_32_BITS: u8 = 0x80;
    pub const IN_64_BITS: u8 = 0x81;
    /// No length: a string that is written in another way.
    pub const ENCODED: u8 = 3;
}

/// The codes in place of the length of a number's text.
pub(super) mod double_text {
    pub const NAN: u8 = 253;
    pub const INFINITY: u8 = 254;
    pub const NEG_INFINITY: u8 = 255;
}

/// Other ways to write a string, after [`length::ENCODED`].
pub(super) mod encoded {
    pub const INT_8: u8 = 0xc0;
    pub const INT_16: u8 = 0xc1;
    pub const INT_32: u8 = 0xc2;
    pub const LZF: u8 = 0xc3;
    /// Stands in no file: in the bytes of a record, in place of a string that was read to a place of its own.
    /// Its number follows, a little-endian `u32`.
    pub const APART: u8 = 0xc4;
}
