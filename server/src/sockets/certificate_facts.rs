//! The serial number and the validity of a certificate.
//!
//! They are read from its DER form: a value is a tag, a length and that many bytes (X.690). Only the way to
//! these fields is understood (RFC 5280, 4.1).

use time::{Date, Month, Time};

/// Tags of DER values.
mod tag {
    pub const INTEGER: u8 = 0x02;
    pub const UTC_TIME: u8 = 0x17;
    pub const GENERALIZED_TIME: u8 = 0x18;
    pub const SEQUENCE: u8 = 0x30;
    pub const VERSION: u8 = 0xa0;
}

/// Facts about a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The serial number in hexadecimal digits.
    pub serial: String,
    /// The first second of its validity, in Unix time; 0 if that is before 1970.
    pub not_before: u64,
    /// The last second of its validity, in Unix time; 0 if that is before 1970.
    pub not_after: u64,
}

impl CertificateFacts {
    /// Reads them from a certificate, unless it has another form than RFC 5280 says.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (mut outer, _) = value(der, tag::SEQUENCE)?;
        let mut rest = take(&mut outer, tag::SEQUENCE)?;
        // The version is absent in certificates of the first version.
        if rest.first() == Some(&tag::VERSION) {
            take(&mut rest, tag::VERSION)?;
        }
        let serial = take(&mut rest, tag::INTEGER)?;
        let (_algorithm, _issuer) = (take(&mut rest, tag::SEQUENCE)?, take(&mut rest, tag::SEQUENCE)?);
        let mut validity = take(&mut rest, tag::SEQUENCE)?;
        let mut time = || take_time(&mut validity).map(|time| u64::try_from(time).unwrap_or_default());
        let (not_before, not_after) = (time()?, time()?);
        Some(Self { serial: digits(serial), not_before, not_after })
    }
}

/// Splits bytes after a value with this tag. Returns its contents, and the rest.
fn value(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
        length = bytes
            .iter()
            .try_fold(0_usize, |length, &byte| length.checked_mul(256)?.checked_add(byte.into()))?;
        rest = after;
    }
    if found != tag { None } else { rest.split_at_checked(length) }
}

fn take<'d>(rest: &mut &'d [u8], tag: u8) -> Option<&'d [u8]> {
    let (contents, after) = value(rest, tag)?;
    *rest = after;
    Some(contents)
}

/// Takes a time, and returns its Unix time in seconds.
fn take_time(rest: &mut &[u8]) -> Option<i64> {
    let tag = *rest.first()?;
    let text = std::str::from_utf8(take(rest, tag)?).ok()?;
    let (year, text) = match tag {
        // Two digits of the year stand for 1950 to 2049.
        tag::UTC_TIME => {
            let year: i32 = text.get(..2)?.parse().ok()?;
            (year + if year < 50 { 2000 } else { 1900 }, text.get(2..)?)
        }
        tag::GENERALIZED_TIME => (text.get(..4)?.parse().ok()?, text.get(4..)?),
        _ => return None,
    };
    let two = |at: usize| -> Option<u8> { text.get(at..at + 2)?.parse().ok() };
    let date = Date::from_calendar_date(year, Month::try_from(two(0)?).ok()?, two(2)?).ok()?;
    let time = Time::from_hms(two(4)?, two(6)?, two(8)?).ok()?;
    (text.get(10..)? == "Z").then(|| date.with_time(time).assume_utc().unix_timestamp())
}

/// Returns a number in hexadecimal digits, two for a byte, without the zero that only says that it is
/// positive.
fn digits(number: &[u8]) -> String {
    let number = if number.len() > 1 && number[0] == 0 { &number[1..] } else { number };
    number.iter().map(|byte| format!("{byte:02X}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
        let length = contents.len();
        let head = if length < 0x80 {
            vec![tag, length as u8]
        } else {
            vec![tag, 0x82, (length >> 8) as u8, length as u8]
        };
        [head, contents.to_vec()].concat()
    }

    fn certificate(version: &[u8], serial: &[u8], times: [(u8, &str); 2]) -> Vec<u8> {
        let times = times.map(|(tag, text)| der(tag, text.as_bytes())).concat();
        let (algorithm, issuer) = (der(tag::SEQUENCE, b"a"), der(tag::SEQUENCE, &[b'i'; 200]));
        let parts =
            [version, &der(tag::INTEGER, serial), &algorithm, &issuer, &der(tag::SEQUENCE, &times), b"rest"];
        der(tag::SEQUENCE, &[der(tag::SEQUENCE, &parts.concat()), b"signature".to_vec()].concat())
    }

    #[test]
    fn serial_and_end_are_read_in_both_forms_of_time() {
        let version = der(tag::VERSION, &der(tag::INTEGER, &[2]));
        let times = [(tag::UTC_TIME, "240101000000Z"), (tag::UTC_TIME, "491231235959Z")];
        let facts = CertificateFacts::read(&certificate(&version, &[0, 0x81, 0x0a], times));
        let serial = "810A".to_owned();
        let expected = CertificateFacts { serial, not_before: 1_704_067_200, not_after: 2_524_607_999 };
        assert_eq!(facts, Some(expected));
        let times = [(tag::UTC_TIME, "500101000000Z"), (tag::GENERALIZED_TIME, "20500101000000Z")];
        let facts = CertificateFacts::read(&certificate(&[], &[0], times));
        let expected = CertificateFacts { serial: "00".to_owned(), not_before: 0, not_after: 2_524_608_000 };
        assert_eq!(facts, Some(expected));
    }

    #[test]
    fn a_damaged_certificate_has_no_facts() {
        let times = [(tag::UTC_TIME, "240101000000Z"), (tag::UTC_TIME, "250101000000Z")];
        let whole = certificate(&[], &[1], times);
        assert!(CertificateFacts::read(&whole).is_some());
        for n_left in 0..whole.len() {
            assert_eq!(CertificateFacts::read(&whole[..n_left]), None, "{n_left} bytes");
        }
        for end in ["251301000000Z", "250132000000Z", "2501010000", "250101000000+"] {
            let times = [(tag::UTC_TIME, "240101000000Z"), (tag::UTC_TIME, end)];
            assert_eq!(CertificateFacts::read(&certificate(&[], &[1], times)), None, "{end}");
        }
    }
}
