//! The known differences from redis-server 7.0, and the ways in which scripts avoid them.
//!
//! Each of these can go when the engine does the same as redis-server.

// No text has `[[` within `[[ ]]`, which the engine's Lua refuses.

/// A text that is short enough for a key of a table.
///
/// redis-server's Lua hashes all of a longer text, the engine's only some of it. So the order of such keys
/// differs.
pub fn short(text: &str) -> String {
    format!("({text}):sub(1, 20)")
}

/// A number as a command's argument that all versions write alike.
///
/// The engine writes numbers like Redis since 7.2: integers of up to 19 digits in full, and 0 without a sign.
/// It writes others in the fewest digits.
pub fn argument(number: &str) -> String {
    // A function has one constant for 0 and -0. So a sum with 0 may leave -0.
    format!("(math.floor(math.fmod({number}, 1e9) * 4) / 4 + 1 - 1)")
}

/// The doubles of replies that all versions write alike.
pub const DOUBLES: &[&str] = &["3", "0.5", "-7", "1e10", "1/0", "-1/0", "0.25", "-2.75"];

/// The greatest depth to which a script's value nests.
///
/// The engine stops at 128 levels, redis-server at thousands.
pub const MAX_LEVELS: usize = 100;

/// A reply without an error's position, where the engine's position differs.
///
/// That is an uncaught error that has passed a callback of `string.gsub`, or that comes from the iterator of
/// `string.gmatch`.
pub fn blurred<'a>(source: &str, reply: &'a str) -> &'a str {
    let has_pattern = source.contains("gsub") || source.contains("gmatch");
    reply.rsplit_once(", on ").filter(|_| has_pattern).map_or(reply, |(text, _)| text)
}

/// Whether a run has exhausted the machine's stack.
///
/// The engine's calls use the stack in other steps. So the run may have done more before its end, which can
/// show in later runs as numbers of `math.random`.
pub fn is_exhausted(reply: &[u8]) -> bool {
    reply.windows(16).any(|text| text == b"C stack overflow")
}
