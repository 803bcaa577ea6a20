//! The commands of generated scripts.

use super::generator::{Generator, Kind};
use super::known;

/// The commands with right arguments.
///
/// Small letters stand for a key, a value, a field, a number and an index.
const COMMANDS: &str = "\
    SET k v; SET k v; SET k v GET; SET k v NX; GET k; GET k; GETSET k v; GETDEL k; APPEND k v; STRLEN k; GETRANGE k i i; \
    SETRANGE k 3 v; INCR k; INCRBY k i; INCRBYFLOAT k n; DECR k; MSET k v k v; MGET k k k; DEL k; EXISTS k k; TYPE k; RENAME k k; \
    COPY k k; HSET k f v; HSET k f v f v; HSET k f v; HGET k f; HGETALL k; HMGET k f f; HDEL k f; HLEN k; HINCRBY k f i; \
    HINCRBYFLOAT k f n; HKEYS k; HVALS k; HEXISTS k f; HSTRLEN k f; HSCAN k 0; LPUSH k v; RPUSH k v v v; RPUSH k v v; \
    LRANGE k 0 -1; LLEN k; LINDEX k i; LSET k i v; LREM k 0 v; LPOP k; LPOP k 2; RPOP k; LINSERT k BEFORE v v; LPOS k v; \
    LMOVE k k LEFT RIGHT; LTRIM k 0 1; RPOPLPUSH k k; SADD k m m; SADD k 1 2 3; SMEMBERS k; SCARD k; SISMEMBER k v; \
    SMISMEMBER k v v; SREM k v; SINTER k k; SUNION k k; SDIFF k k; ZADD k n f; ZADD k n f n f; ZADD k 1.5 a 2 b; ZADD k INCR n f; \
    ZSCORE k f; ZMSCORE k f f; ZRANGE k 0 -1; ZRANGE k 0 -1 WITHSCORES; ZRANK k f; ZINCRBY k n f; ZCARD k; ZCOUNT k -inf +inf; \
    ZRANGEBYSCORE k -inf (5; ZPOPMIN k; ZREM k f; ZUNION 2 k k WITHSCORES; ZDIFF 2 k k; XADD k 1-1 f v; XADD k 2-0 f v f v; \
    XRANGE k - +; XLEN k; XREAD COUNT 2 STREAMS k 0; XINFO STREAM k; XGROUP CREATE k g 0; SETBIT k 7 1; GETBIT k i; BITCOUNT k; \
    BITPOS k 1; BITFIELD k SET u8 0 200 GET u8 4; BITFIELD k OVERFLOW FAIL INCRBY u2 0 3; ECHO v; PING; PING v; DBSIZE; \
    OBJECT ENCODING k; OBJECT HELP; EXPIRE k 1000; PERSIST k; SORT k ALPHA; PFADD k v v; PFCOUNT k; GEOADD k 13.3 38.1 f; \
    GEODIST k f f; LCS k k IDX; LCS k k; DUMP k; PUBLISH f v; SCAN 0";

impl Generator<'_> {
    /// The name and the arguments of a command.
    pub fn command(&mut self) -> String {
        if self.one_in(25) {
            return self.fill(
                "`'NOSUCH', 'x'|'get'|{}||nil|'SET', nil, 1|1, 2|'', ''|true|'\\0'|'get', 'k1', 'k2'`",
                0,
            );
        }
        let commands: Vec<&str> = COMMANDS.split("; ").collect();
        let template = self.pick(&commands);
        let mut words: Vec<String> = template.split(' ').map(|word| self.word(word)).collect();
        if self.one_in(6) {
            words[0] = words[0].to_lowercase();
        }
        if self.one_in(25) {
            words.pop();
        }
        if self.one_in(40) && !words.is_empty() {
            let at = 1 + self.below(words.len());
            let odd = self.odd();
            words.insert(at, odd);
        }
        words.join(", ")
    }

    fn word(&mut self, word: &str) -> String {
        match word {
            "k" => match self.element() {
                Some(element) if self.one_in(3) => element,
                _ => self.pick(&["'k1'", "'k1'", "'k2'", "'k3'"]).to_owned(),
            },
            "v" if self.one_in(2) => self.pick(&["1", "'x'", "'10'", "3.5", "'text'", "0.25"]).to_owned(),
            "v" if self.one_in(2) => known::argument(&self.expression(Kind::Number, 1)),
            "v" => self.expression(Kind::Text, 1),
            "m" => known::short(&self.expression(Kind::Text, 1)),
            "f" => self.pick(&["'a'", "'b'", "'c'", "1"]).to_owned(),
            "n" if self.one_in(4) => known::argument(&self.expression(Kind::Number, 1)),
            "n" => self.pick(&["1", "2.5", "-1", "0.25", "1/0", "1e10", "3"]).to_owned(),
            // A function has one constant for 0 and -0, the one that comes first. So a number 0 may be -0.
            "i" => self.pick(&["'0'", "1", "-1", "2", "1.5", "10", "'x'"]).to_owned(),
            word => format!("'{word}'"),
        }
    }

    /// A call that runs a command.
    pub fn command_call(&mut self) -> String {
        let function = self.pick(&["redis.call", "redis.call", "redis.pcall"]);
        format!("{function}({})", self.command())
    }
}
