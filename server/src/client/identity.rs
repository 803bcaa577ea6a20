//! The users that a client's certificate names.
//!
//! rustls has verified the certificate by then, so its signer vouches for the names. A malformed certificate
//! has no name, and makes no client a user.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The field of a certificate that names a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateField {
    /// The common name of its subject.
    CommonName,
    /// The URIs of its alternative names.
    Uri,
}

/// Returns the names of users in a certificate, in order.
pub fn names(certificate: &CertificateDer<'_>, field: CertificateField) -> Vec<Vec<u8>> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let names: Vec<&[u8]> = match field {
        CertificateField::CommonName => common_name(certificate.subject()).into_iter().collect(),
        CertificateField::Uri => certificate.valid_uri_names().map(str::as_bytes).collect(),
    };
    // In C a name ends at a zero byte. An authority that has read `bob\0…` in this way may not have meant
    // bob.
    names.into_iter().filter(|name| !name.is_empty() && !name.contains(&0)).map(<[u8]>::to_vec).collect()
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// Texts whose bytes are characters: UTF8String, PrintableString, TeletexString, IA5String.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];
/// 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// Returns the first common name of a subject. A subject is a sequence of sets of pairs.
fn common_name(mut subject: &[u8]) -> Option<&[u8]> {
    while !subject.is_empty() {
        let mut set = content(&mut subject, SET)?;
        while !set.is_empty() {
            let mut pair = content(&mut set, SEQUENCE)?;
            if content(&mut pair, OBJECT_IDENTIFIER)? == COMMON_NAME {
                let (tag, text) = element(&mut pair)?;
                return TEXTS.contains(&tag).then_some(text);
            }
        }
    }
    None
}

/// Takes an element of a type off the front of DER, and returns its content.
fn content<'a>(der: &mut &'a [u8], expected: u8) -> Option<&'a [u8]> {
    element(der).filter(|(tag, _)| *tag == expected).map(|(_, content)| content)
}

/// Takes an element off the front of DER, and returns its tag and its content.
fn element<'a>(der: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let &[tag, length, ref rest @ ..] = *der else { return None };
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // No name has more than two bytes of length. (0x80 has none: it is BER.)
        0x81 | 0x82 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *der = rest;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    use super::*;

    fn certificate(names: &[(DnType, DnValue)], uris: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["host.example".to_owned()]).unwrap();
        params.distinguished_name = Default::default();
        for (kind, name) in names {
            params.distinguished_name.push(kind.clone(), name.clone());
        }
        params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn text(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn the_common_name_is_found_among_others_whatever_its_length() {
        let long = "x".repeat(300);
        for name in ["al", "Ärzte & Söhne", &"y".repeat(130), &long] {
            let names = [
                (DnType::CountryName, DnValue::PrintableString("DE".try_into().unwrap())),
                (DnType::OrganizationName, text("org")),
                (DnType::CommonName, text(name)),
                (DnType::LocalityName, text("town")),
            ];
            let certificate = certificate(&names, &["urn:one"]);
            assert_eq!(super::names(&certificate, CertificateField::CommonName), [name.as_bytes()]);
        }
    }

    #[test]
    fn uris_come_in_order_and_other_names_do_not_count() {
        let certificate =
            certificate(&[(DnType::OrganizationName, text("org"))], &["urn:one", "spiffe://a/b"]);
        assert_eq!(names(&certificate, CertificateField::Uri), [&b"urn:one"[..], b"spiffe://a/b"]);
        assert_eq!(names(&certificate, CertificateField::CommonName), [b""; 0]);
    }

    #[test]
    fn a_name_with_a_zero_byte_and_an_empty_one_are_none() {
        for name in ["bob\0.example", ""] {
            let certificate = certificate(&[(DnType::CommonName, text(name))], &[]);
            assert_eq!(names(&certificate, CertificateField::CommonName), [b""; 0]);
        }
        assert_eq!(names(&CertificateDer::from(&b"none"[..]), CertificateField::CommonName), [b""; 0]);
    }

    #[test]
    fn no_subject_makes_it_panic_and_what_is_cut_has_no_name() {
        let certificate =
            certificate(&[(DnType::OrganizationName, text("org")), (DnType::CommonName, text("al"))], &[]);
        let subject = EndEntityCert::try_from(&certificate).unwrap().subject().to_vec();
        assert_eq!(common_name(&subject), Some(&b"al"[..]));
        for end in 0..subject.len() {
            assert_eq!(common_name(&subject[..end]), None, "{end}");
        }
        for at in 0..subject.len() {
            for byte in 0..=u8::MAX {
                let mut changed = subject.clone();
                changed[at] = byte;
                let found = common_name(&changed);
                assert!(found.is_none_or(|name| name.len() <= changed.len()));
            }
        }
    }
}
