//! Where the engine is known to differ from redis-server 7.0, and how scripts keep clear of it: each of these can go as soon as the
//! engine does as redis-server.

// `[[` within `[[ ]]`, which the engine's Lua refuses, is in no text.

/// A text that is short enough for a key of a table. redis-server's Lua hashes all of a longer text, the engine's some of it: the
/// order of their keys is another.
pub fn short(text: &str) -> String {
    format!("({text}):sub(1, 20)")
}

/// A number as a command's argument: one that all versions write alike. Like Redis since 7.2, the engine writes out integers of up to 19
/// digits, 0 without a sign, and others in the fewest digits.
pub fn argument(number: &str) -> String {
    // A function has one constant for 0 and -0, so that a sum with 0 may leave -0.
    format!("(math.floor(math.fmod({number}, 1e9) * 4) / 4 + 1 - 1)")
}

/// Doubles of replies that all versions write alike.
pub const DOUBLES: &[&str] = &["3", "0.5", "-7", "1e10", "1/0", "-1/0", "0.25", "-2.75"];

/// How deep a script's value may nest: the engine stops at 128 levels, redis-server at thousands.
pub const MAX_LEVELS: usize = 100;

/// A reply without the place of an error that has passed a callback of `string.gsub`, or comes from what `string.gmatch` returns, and that
/// nothing has caught: the engine says another.
pub fn blurred<'a>(source: &str, reply: &'a str) -> &'a str {
    let has_pattern = source.contains("gsub") || source.contains("gmatch");
    reply.rsplit_once(", on ").filter(|_| has_pattern).map_or(reply, |(text, _)| text)
}

/// Whether a run has come to the end of the machine's stack, which the engine's calls use up in other steps. What it has done until then
/// may be more, and show in later runs: as numbers of `math.random`.
pub fn is_exhausted(reply: &[u8]) -> bool {
    reply.windows(16).any(|text| text == b"C stack overflow")
}
