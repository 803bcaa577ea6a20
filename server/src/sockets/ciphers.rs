//! Cipher suites and versions of TLS by OpenSSL's names, because redis.conf uses those.

use rustls::{
    ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion,
    crypto::ring::{ALL_CIPHER_SUITES, cipher_suite},
    version::{TLS12, TLS13},
};

/// A suite of TLS 1.2, with OpenSSL's words for its groups. The first word is its own name.
struct NamedSuite {
    suite: SupportedCipherSuite,
    words: &'static [&'static str],
}

/// OpenSSL's words for groups that contain all suites of TLS 1.2 here.
const COMMON: &[&str] = &["ALL", "DEFAULT", "HIGH", "ECDHE", "EECDH", "KECDHE", "KEECDH", "TLSV1.2"];

/// The suites of TLS 1.2, in the order of rustls, the best first.
const NAMED: &[NamedSuite] = &[
    NamedSuite {
        suite: cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        words: &["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDSA", "AECDSA", "AES256", "AES", "AESGCM", "SHA384"],
    },
    NamedSuite {
        suite: cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        words: &["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDSA", "AECDSA", "AES128", "AES", "AESGCM", "SHA256"],
    },
    NamedSuite {
        suite: cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        words: &["ECDHE-ECDSA-CHACHA20-POLY1305", "ECDSA", "AECDSA", "CHACHA20"],
    },
    NamedSuite {
        suite: cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        words: &["ECDHE-RSA-AES256-GCM-SHA384", "RSA", "ARSA", "AES256", "AES", "AESGCM", "SHA384"],
    },
    NamedSuite {
        suite: cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        words: &["ECDHE-RSA-AES128-GCM-SHA256", "RSA", "ARSA", "AES128", "AES", "AESGCM", "SHA256"],
    },
    NamedSuite {
        suite: cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        words: &["ECDHE-RSA-CHACHA20-POLY1305", "RSA", "ARSA", "CHACHA20"],
    },
];

/// Reads `tls-protocols`.
///
/// # Errors
/// The fault, and a correct form.
pub fn versions(directive: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let mut versions = Vec::new();
    for word in directive.split_ascii_whitespace() {
        match word.to_ascii_lowercase().as_str() {
            "tlsv1.2" => versions.push(&TLS12),
            "tlsv1.3" => versions.push(&TLS13),
            "tlsv1" | "tlsv1.1" => {
                return Err(format!(
                    "tls-protocols: {word} is not safe and not supported. Use 'TLSv1.2', 'TLSv1.3' or both"
                ));
            }
            _ => {
                return Err(format!(
                    "tls-protocols: '{word}' is unknown. Use a combination of 'TLSv1.2' and 'TLSv1.3'"
                ));
            }
        }
    }
    if versions.is_empty() {
        versions = vec![&TLS13, &TLS12];
    }
    Ok(versions)
}

/// Reads `tls-ciphers` and `tls-ciphersuites`. The suites of TLS 1.3 come first.
///
/// # Errors
/// The fault, and a correct form.
pub fn suites(ciphers: &str, ciphersuites: &str) -> Result<Vec<SupportedCipherSuite>, String> {
    let mut suites = suites_of_tls_1_3(ciphersuites)?;
    suites.extend(suites_of_tls_1_2(ciphers)?.into_iter().map(|named| named.suite));
    Ok(suites)
}

fn suites_of_tls_1_3(directive: &str) -> Result<Vec<SupportedCipherSuite>, String> {
    let all = || {
        let is_of_1_3 = |suite: &&SupportedCipherSuite| suite.version().version == ProtocolVersion::TLSv1_3;
        ALL_CIPHER_SUITES.iter().filter(is_of_1_3).copied()
    };
    // rustls calls them TLS13_AES_256_GCM_SHA384, others TLS_AES_256_GCM_SHA384.
    let name = |suite: SupportedCipherSuite| format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
    let mut suites = Vec::new();
    for word in words(directive) {
        let Some(suite) = all().find(|&suite| name(suite).eq_ignore_ascii_case(word)) else {
            let names: Vec<String> = all().map(name).collect();
            return Err(format!(
                "tls-ciphersuites: '{word}' is not supported. Those of TLS 1.3 are {}",
                names.join(":")
            ));
        };
        if !suites.contains(&suite) {
            suites.push(suite);
        }
    }
    if suites.is_empty() {
        suites = all().collect();
    }
    Ok(suites)
}

/// Reads a list in the form of OpenSSL.
///
/// A `+` is between words that must all match. `!` or `-` precedes excluded suites, and `+` suites that come
/// last.
fn suites_of_tls_1_2(directive: &str) -> Result<Vec<&'static NamedSuite>, String> {
    let mut suites: Vec<&NamedSuite> = Vec::new();
    let mut is_empty = true;
    for item in words(directive) {
        is_empty = false;
        if item.eq_ignore_ascii_case("@STRENGTH") {
            continue;
        }
        if let Some(words) = item.strip_prefix(['!', '-']) {
            // An unknown suite is absent, whatever the rest of the list says.
            suites.retain(|named| !named.fits(words));
            continue;
        }
        let words = item.strip_prefix('+').unwrap_or(item);
        let found: Vec<&NamedSuite> = NAMED.iter().filter(|named| named.fits(words)).collect();
        if found.is_empty() {
            return Err(no_such_suite(item));
        }
        if words != item {
            let (last, first): (Vec<&NamedSuite>, Vec<_>) =
                suites.iter().partition(|named| named.fits(words));
            suites = [first, last].concat();
            continue;
        }
        for named in found {
            if !suites.iter().any(|known| std::ptr::eq(*known, named)) {
                suites.push(named);
            }
        }
    }
    match (suites.is_empty(), is_empty) {
        (true, true) => Ok(NAMED.iter().collect()),
        (true, false) => Err(no_such_suite(directive)),
        (false, _) => Ok(suites),
    }
}

fn words(directive: &str) -> impl Iterator<Item = &str> {
    directive.split([':', ',', ' ']).filter(|word| !word.is_empty())
}

fn no_such_suite(item: &str) -> String {
    let names: Vec<&str> = NAMED.iter().map(|named| named.words[0]).collect();
    format!(
        "tls-ciphers: '{item}' is weak, unknown or nothing. Those of TLS 1.2 are {}; 'DEFAULT' stands for all",
        names.join(":")
    )
}

impl NamedSuite {
    fn fits(&self, words: &str) -> bool {
        let is_of = |word: &str| {
            let all = self.words.iter().chain(COMMON);
            all.into_iter().any(|known| known.eq_ignore_ascii_case(word))
                || format!("{:?}", self.suite.suite()).eq_ignore_ascii_case(word)
        };
        words.split('+').all(is_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directive: &str) -> Vec<&'static str> {
        suites_of_tls_1_2(directive).unwrap().into_iter().map(|named| named.words[0]).collect()
    }

    #[test]
    fn each_suite_has_one_name() {
        assert_eq!(NAMED.len() + 3, ALL_CIPHER_SUITES.len());
        for named in NAMED {
            assert_eq!(names(named.words[0]), [named.words[0]]);
            assert_eq!(names(&format!("{:?}", named.suite.suite())), [named.words[0]]);
        }
    }

    #[test]
    fn lists_are_read_as_openssl_reads_them() {
        assert_eq!(names(""), names("DEFAULT"));
        assert_eq!(names("HIGH:!aNULL:!MD5"), names("ALL"));
        assert_eq!(names("DEFAULT:-AES128-SHA256"), names("DEFAULT"));
        let rsa = ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"];
        assert_eq!(names("ecdhe+aesgcm:!ECDSA"), rsa);
        assert_eq!(names("AESGCM+aRSA:+AES256:@STRENGTH"), [rsa[1], rsa[0]]);
        assert_eq!(names("ECDHE-RSA-AES128-GCM-SHA256,ALL")[0], rsa[1]);
    }

    #[test]
    fn what_is_weak_or_unknown_is_refused() {
        for list in ["AES128-SHA256", "RC4", "DEFAULT:!ALL", "!DEFAULT", "ECDHE+RC4", "DEFAULT:@SECLEVEL=0"] {
            let why = suites(list, "").unwrap_err();
            assert!(why.contains("ECDHE-RSA-AES256-GCM-SHA384"), "{list}: {why}");
        }
        let why = suites("", "TLS_AES_128_CCM_SHA256").unwrap_err();
        assert!(why.contains("TLS_AES_256_GCM_SHA384"), "{why}");
        for (list, named) in [("TLSv1.1", "not safe"), ("TLSv1.2 tlsv1", "not safe"), ("SSLv3", "unknown")] {
            assert!(versions(list).unwrap_err().contains(named), "{list}");
        }
    }

    #[test]
    fn suites_of_tls_1_3_keep_their_order() {
        let suites = suites("DEFAULT", "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256").unwrap();
        assert_eq!(suites[0], cipher_suite::TLS13_CHACHA20_POLY1305_SHA256);
        assert_eq!(suites[1], cipher_suite::TLS13_AES_128_GCM_SHA256);
        assert_eq!(suites.len(), 2 + NAMED.len());
    }

    #[test]
    fn versions_are_named_in_any_case() {
        assert_eq!(versions("tlsv1.2").unwrap(), [&TLS12]);
        assert_eq!(versions("").unwrap().len(), 2);
        assert_eq!(versions("TLSv1.3 TLSv1.2").unwrap().len(), 2);
    }
}
