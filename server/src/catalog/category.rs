//! The categories of access control.

macro_rules! categories {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $word:literal;)*) => {
        /// A set of categories of commands, such as `@read`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Categories(u32);

        impl Categories {
            $($(#[$doc])* pub const $name: Categories = Categories(1 << $bit);)*

            /// Each category with its name, in Redis's order.
            pub const NAMES: &[(Categories, &'static str)] = &[$((Categories::$name, $word)),*];
        }
    };
}

categories! {
    /// Keys of any type.
    KEYSPACE = 0, "keyspace";
    /// Reads keys.
    READ = 1, "read";
    /// Writes keys.
    WRITE = 2, "write";
    /// Sets.
    SET = 3, "set";
    /// Sorted sets.
    SORTEDSET = 4, "sortedset";
    /// Lists.
    LIST = 5, "list";
    /// Hashes.
    HASH = 6, "hash";
    /// Strings.
    STRING = 7, "string";
    /// Bitmaps.
    BITMAP = 8, "bitmap";
    /// HyperLogLogs.
    HYPERLOGLOG = 9, "hyperloglog";
    /// Geospatial indexes.
    GEO = 10, "geo";
    /// Streams.
    STREAM = 11, "stream";
    /// Publish and subscribe.
    PUBSUB = 12, "pubsub";
    /// Administration.
    ADMIN = 13, "admin";
    /// Constant or logarithmic time.
    FAST = 14, "fast";
    /// Not fast.
    SLOW = 15, "slow";
    /// May wait for keys.
    BLOCKING = 16, "blocking";
    /// May harm the data or the server's other users.
    DANGEROUS = 17, "dangerous";
    /// The connection.
    CONNECTION = 18, "connection";
    /// MULTI and related commands.
    TRANSACTION = 19, "transaction";
    /// Scripts and functions.
    SCRIPTING = 20, "scripting";
}

impl Categories {
    /// No category.
    pub const NONE: Categories = Categories(0);

    /// Returns both sets together.
    pub const fn and(self, other: Categories) -> Categories {
        Categories(self.0 | other.0)
    }

    /// Whether all of `other` are in `self`.
    pub const fn has(self, other: Categories) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the category with this name, in either case.
    pub fn named(name: &[u8]) -> Option<Categories> {
        let found = Self::NAMES.iter().find(|(_, word)| word.as_bytes().eq_ignore_ascii_case(name));
        found.map(|&(category, _)| category)
    }

    /// Returns the names of the categories in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().filter(move |(category, _)| self.has(*category)).map(|&(_, word)| word)
    }
}
