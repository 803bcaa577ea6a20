//! How the format's parts are written.

use braid_protocol::number;

use super::codes::{encoded, length};
use crate::types::packed::Element;

/// The longest text that may be that of an integer of 32 bits.
const INT_32_TEXT_BYTES: usize = 11;

/// Writes an element of a value as a string.
pub fn element(out: &mut Vec<u8>, element: Element<'_>) {
    element.with_text(|text| string(out, text));
}

/// Writes a string; the text of a short integer in fewer bytes.
pub fn string(out: &mut Vec<u8>, text: &[u8]) {
    if text.len() <= INT_32_TEXT_BYTES
        && let Some(value) = number::parse_i64(text)
        && short_integer(out, value)
    {
        return;
    }
    number_of(out, text.len());
    out.extend_from_slice(text);
}

/// Writes an integer if it has no more than 32 bits.
fn short_integer(out: &mut Vec<u8>, value: i64) -> bool {
    if let Ok(value) = i8::try_from(value) {
        out.push(encoded::INT_8);
        out.extend_from_slice(&value.to_le_bytes());
    } else if let Ok(value) = i16::try_from(value) {
        out.push(encoded::INT_16);
        out.extend_from_slice(&value.to_le_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        out.push(encoded::INT_32);
        out.extend_from_slice(&value.to_le_bytes());
    } else {
        return false;
    }
    true
}

/// Writes how many there are of something.
pub fn number_of(out: &mut Vec<u8>, n: usize) {
    len(out, n as u64);
}

/// Writes a length.
pub fn len(out: &mut Vec<u8>, n: u64) {
    if n < 1 << 6 {
        out.push(length::IN_6_BITS << 6 | n as u8);
    } else if n < 1 << 14 {
        out.push(length::IN_14_BITS << 6 | (n >> 8) as u8);
        out.push(n as u8);
    } else if let Ok(n) = u32::try_from(n) {
        out.push(length::IN_32_BITS);
        out.extend_from_slice(&n.to_be_bytes());
    } else {
        out.push(length::IN_64_BITS);
        out.extend_from_slice(&n.to_be_bytes());
    }
}
