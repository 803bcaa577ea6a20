//! Tests of [`Handover`].

use braid_protocol::request::Arg;

use super::{EntryBox, Handover, Moved, blob::LONG_BYTES};

/// A request as a client sends it, and its words.
fn request(words: &[&[u8]]) -> (Vec<u8>, Vec<Arg>) {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    let mut args = Vec::new();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        args.push(Arg { start: bytes.len() as u32, len: word.len() as u32 });
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.shrink_to_fit();
    (bytes, args)
}

fn long_word() -> Vec<u8> {
    (0..LONG_BYTES + 5).map(|at| (at / 100 % 251) as u8).collect()
}

fn word<'a>(handover: &'a Handover, args: &[Arg], nth: usize) -> &'a [u8] {
    &handover.bytes()[args[nth].start as usize..][..args[nth].len as usize]
}

#[test]
fn an_entry_takes_over_the_long_word_of_a_request() {
    let long = long_word();
    let words: [&[u8]; 5] = [b"SET", b"key", &long, b"PX", b"12345678"];
    let (bytes, mut args) = request(&words);
    let (before, behind) = (b"PING\r\n", b"*1\r\n");
    let bytes = [&before[..], &bytes, behind].concat();
    let handover = Handover::new(bytes, before.len(), &mut args).expect("it is long");
    for (nth, expected) in words.iter().enumerate() {
        assert_eq!(word(&handover, &args, nth), *expected);
    }
    let value = word(&handover, &args, 2);
    let mut entry = handover.offer(|| EntryBox::string(b"key", value));
    assert_eq!(entry.as_ref().bytes().map(<[u8]>::as_ptr), Some(value.as_ptr()), "it was copied");
    // As long as the request is there, the entry changes a copy.
    let shared = entry.as_ref().bytes().expect("a string").to_vec();
    let _: Moved = entry.append(b"more");
    assert_eq!(word(&handover, &args, 2), shared);
    assert_eq!(entry.as_ref().bytes().map(<[u8]>::len), Some(long.len() + 4));
}

#[test]
fn the_memory_is_the_entrys_when_the_request_is_gone() {
    let long = long_word();
    let (bytes, mut args) = request(&[b"SET", b"key", &long]);
    let handover = Handover::new(bytes, 0, &mut args).expect("it is long");
    let mut entry = handover.offer(|| EntryBox::string(b"key", word(&handover, &args, 2)));
    assert!(handover.into_buffer().is_none(), "the entry has it");
    // In its place, and then beyond.
    let _: Moved = entry.set_bytes(&long[1..]);
    assert_eq!(entry.as_ref().bytes(), Some(&long[1..]));
    for _ in 0..3 {
        let _: Moved = entry.append(&long);
    }
    assert_eq!(entry.as_ref().bytes(), Some(&[&long[1..], &long, &long, &long].concat()[..]));
}

#[test]
fn the_room_behind_the_request_is_the_entrys_too() {
    let long = long_word();
    let (mut bytes, mut args) = request(&[b"SET", b"key", &long]);
    bytes.reserve_exact(4096);
    let handover = Handover::new(bytes, 0, &mut args).expect("it is long");
    let mut entry = handover.offer(|| EntryBox::string(b"key", word(&handover, &args, 2)));
    assert!(handover.into_buffer().is_none(), "the entry has it");
    let at = entry.as_ref().bytes().map(<[u8]>::as_ptr);
    let _: Moved = entry.append(&long[..4000]);
    assert_eq!(entry.as_ref().bytes().map(<[u8]>::as_ptr), at, "it was copied although there is room");
    assert_eq!(entry.as_ref().bytes(), Some(&[&long, &long[..4000]].concat()[..]));
}

#[test]
fn what_no_entry_takes_is_a_buffer_again() {
    let (bytes, mut args) = request(&[b"SET", b"key", &long_word(), b"NX"]);
    let capacity = bytes.capacity();
    let handover = Handover::new(bytes, 0, &mut args).expect("it is long");
    drop(handover.offer(|| EntryBox::string(b"key", b"another")));
    assert_eq!(handover.into_buffer().map(|buffer| buffer.capacity()), Some(capacity));
}

#[test]
fn other_requests_stay_as_they_are() {
    let long = long_word();
    let all: [&[&[u8]]; 4] = [&[], &[b"GET", b"key"], &[b"MSET", b"a", &long, b"b", &long], &[&long]];
    for words in all {
        let (bytes, args) = request(words);
        let mut same = args.clone();
        // An argument begins behind its header, but one that has none could not be preceded by a blob's.
        let bytes = if words.len() == 1 { bytes[args[0].start as usize..].to_vec() } else { bytes };
        if words.len() == 1 {
            same[0].start = 0;
        }
        let before = (bytes.clone(), same.clone());
        let after = Handover::new(bytes, 0, &mut same).expect_err("nothing in it is long enough");
        assert_eq!((after, same), before);
    }
}

#[test]
fn nothing_is_taken_over_beside_what_is_offered() {
    let long = long_word();
    let (bytes, mut args) = request(&[b"SET", b"key", &long]);
    let handover = Handover::new(bytes, 0, &mut args).expect("it is long");
    let value = word(&handover, &args, 2);
    let alike = handover.offer(|| EntryBox::string(b"key", &long));
    assert_ne!(alike.as_ref().bytes().map(<[u8]>::as_ptr), Some(value.as_ptr()));
    let late = EntryBox::string(b"key", value);
    assert_ne!(late.as_ref().bytes().map(<[u8]>::as_ptr), Some(value.as_ptr()));
}
