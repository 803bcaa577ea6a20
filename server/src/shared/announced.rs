//! The server that Braid says it is (`announce-as`).

use crate::config::{AnnounceAs, REDIS_VERSION, Settings};

/// The names and versions that clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncedServer {
    /// The server in HELLO.
    pub server: &'static str,
    /// The version in HELLO.
    pub version: &'static str,
    /// The version of Redis in INFO.
    pub redis_version: &'static str,
    /// The version of Valkey in INFO; `None` for Redis.
    pub valkey_version: Option<&'static str>,
    /// The line of LOLWUT.
    pub lolwut: &'static str,
}

const REDIS_7_4: AnnouncedServer = AnnouncedServer {
    server: "redis",
    version: REDIS_VERSION,
    redis_version: REDIS_VERSION,
    valkey_version: None,
    lolwut: "Redis ver. 7.4.0",
};

const REDIS_8_2: AnnouncedServer =
    AnnouncedServer { version: "8.2.3", redis_version: "8.2.3", lolwut: "Redis ver. 8.2.3", ..REDIS_7_4 };

/// Valkey tells the version of Redis from which it was forked, for clients that know only that field.
const VALKEY_9_1: AnnouncedServer = AnnouncedServer {
    server: "valkey",
    version: "9.1.2",
    redis_version: "7.2.4",
    valkey_version: Some("9.1.2"),
    lolwut: "Valkey ver.9.1.2",
};

impl AnnouncedServer {
    /// Returns the names and versions to tell.
    ///
    /// Under `extended-redis-compatibility`, Valkey names Redis and its version wherever a client may look.
    pub fn of(config: &Settings) -> AnnouncedServer {
        match config.announce_as {
            AnnounceAs::Redis74 => REDIS_7_4,
            AnnounceAs::Redis82 => REDIS_8_2,
            AnnounceAs::Valkey91 if config.extended_redis_compatibility => AnnouncedServer {
                server: "redis",
                version: VALKEY_9_1.redis_version,
                lolwut: "Redis ver.7.2.4",
                ..VALKEY_9_1
            },
            AnnounceAs::Valkey91 => VALKEY_9_1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_version_whose_replies_are_followed() {
        assert_eq!(AnnouncedServer::of(&Settings::default()), REDIS_7_4);
        assert!(REDIS_7_4.lolwut.ends_with(REDIS_VERSION));
    }
}
