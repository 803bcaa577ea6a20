//! `redis://[[user]:password@][host][:port][/db]`, the URI that redis-benchmark's `-u` takes.

use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::Url;

/// The parts of a server's URI. Other options supply the missing ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Uri {
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) db: Option<u32>,
}

impl FromStr for Uri {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        match url.scheme() {
            "redis" => {}
            "rediss" => return Err(super::NO_TLS.to_owned()),
            _ => return Err(String::from("Invalid URI scheme")),
        }
        let (user, password) = match url.password() {
            Some(password) => (named(url.username())?, named(password)?),
            // A name alone is the password, as clients of servers without users write it.
            None => (None, named(url.username())?),
        };
        let db = url.path().trim_matches('/');
        let db = match db {
            "" => None,
            db => Some(db.parse().map_err(|_| format!("{db} is no number of a database"))?),
        };
        let host = url.host_str().filter(|host| !host.is_empty()).map(str::to_owned);
        Ok(Self { host, port: url.port(), user, password, db })
    }
}

/// Returns a part with its escapes resolved; `None` where it is empty.
fn named(part: &str) -> Result<Option<String>, String> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| format!("{part} is no UTF-8"))?;
    Ok((!text.is_empty()).then(|| text.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn every_part_may_be_there_or_not() {
        let whole = Uri { host: some("h"), port: Some(7), user: some("u"), password: some("p"), db: Some(3) };
        assert_eq!(uri("redis://u:p@h:7/3"), whole);
        assert_eq!(uri("redis://h"), Uri { host: some("h"), ..Uri::default() });
        assert_eq!(uri("redis://h/"), uri("REDIS://h"));
        assert_eq!(uri("redis:///3"), Uri { db: Some(3), ..Uri::default() });
        assert_eq!(uri("redis://"), Uri::default());
        assert_eq!(uri("redis://[::1]:7").host, some("[::1]"));
    }

    #[test]
    fn a_password_stands_alone_or_behind_a_colon_and_may_be_escaped() {
        let password = Uri { host: some("h"), password: some("p:@/"), ..Uri::default() };
        assert_eq!(uri("redis://p%3A%40%2F@h"), password);
        assert_eq!(uri("redis://:p%3A%40%2F@h"), password);
    }

    #[test]
    fn other_schemes_and_databases_without_a_number_are_refused() {
        for (text, why) in [
            ("http://h", "Invalid URI scheme"),
            ("rediss://h", "TLS is not supported"),
            ("redis://h/first", "first is no number of a database"),
            ("redis://h:port", "invalid port number"),
        ] {
            let error = text.parse::<Uri>().expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
