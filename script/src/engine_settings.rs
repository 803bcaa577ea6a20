//! The settings of an engine: kind of code, memory, first seed and release.

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Scripts, or functions.
    pub flavour: Flavour,
    /// The most bytes that its state may use; 0 for no limit.
    pub memory_limit: usize,
    /// The first seed of `math.random`; without one it starts as in redis-server.
    /// Engines with the same seed return the same numbers.
    pub seed: Option<i32>,
    /// The release that scripts read.
    pub version: Version,
}

/// The kind of code that an engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// The scripts of EVAL.
    Scripts,
    /// The functions of libraries.
    Functions,
}

/// The release that scripts read.
#[derive(Clone, Debug)]
pub struct Version {
    /// The text of `redis.REDIS_VERSION`.
    pub text: String,
    /// The number of `redis.REDIS_VERSION_NUM`: `0x00MMmmpp`.
    pub number: u32,
}
