//! Properties of the reader for files of any bytes.
//!
//! Reading ends, and it allocates in proportion to the file. The intact part reads again as the same.

use proptest::{collection::vec, prelude::*, sample::select};

use super::tests::{command, framed, transaction};
use super::*;
use crate::{check::check, manifest::Manifest};
use std::io::Cursor;

/// A change of a file. Positions are taken modulo its length.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Cut(usize),
    /// Fills bytes with zeros, as a disk leaves unwritten ones after a crash.
    Hole(usize, usize),
    Insert(usize, Vec<u8>),
    /// Repeats a piece of the file at another position.
    Again(usize, usize, usize),
}

/// Returns the pieces of which files consist, and bytes that resemble them.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let known: Vec<Vec<u8>> = vec![
        b"*1\r\n".to_vec(),
        b"*3\r\n$3\r\nSET\r\n".to_vec(),
        b"$18446744073709551615\r\n".to_vec(),
        b"*4294967295\r\n".to_vec(),
        b"#BRAID:1 ".to_vec(),
        b"#BRAID:1 len=40 off=0 safe=99 prev=00000000 crc=00000000\r\n".to_vec(),
        b"#BRAID:1 len=18446744073709551615 off=0 safe=0 prev=00000000 crc=00000000\r\n".to_vec(),
        b"#TS:2\r\n".to_vec(),
        b"#TS:\r\n".to_vec(),
        b"\r\n".to_vec(),
        vec![b'#'; 70_000],
        command(&["MULTI"]),
        command(&["exec"]),
        transaction(),
        framed(4, 1).0,
    ];
    prop_oneof![select(known), vec(any::<u8>(), 0..20)]
}

fn changes() -> impl Strategy<Value = Vec<Damage>> {
    let at = any::<usize>;
    vec(
        prop_oneof![
            (at(), 1u8..).prop_map(|(at, mask)| Damage::Flip(at, mask)),
            at().prop_map(Damage::Cut),
            (at(), 0usize..64).prop_map(|(at, n)| Damage::Hole(at, n)),
            (at(), pieces()).prop_map(|(at, piece)| Damage::Insert(at, piece)),
            (at(), at(), 0usize..200).prop_map(|(from, to, n)| Damage::Again(from, to, n)),
        ],
        0..6,
    )
}

fn apply(file: &mut Vec<u8>, change: Damage) {
    let n_bytes = file.len();
    match change {
        Damage::Flip(at, mask) if n_bytes > 0 => file[at % n_bytes] ^= mask,
        Damage::Flip(..) => {}
        Damage::Cut(at) => file.truncate(at % (n_bytes + 1)),
        Damage::Hole(at, n) => {
            let at = at % (n_bytes + 1);
            file[at..(at + n).min(n_bytes)].fill(0);
        }
        Damage::Insert(at, piece) => {
            let at = at % (n_bytes + 1);
            file.splice(at..at, piece);
        }
        Damage::Again(from, to, n) => {
            let (from, to) = (from % (n_bytes + 1), to % (n_bytes + 1));
            let piece = file[from..(from + n).min(n_bytes)].to_vec();
            file.splice(to..to, piece);
        }
    }
}

fn files() -> impl Strategy<Value = Vec<u8>> {
    (vec(pieces(), 0..8), changes()).prop_map(|(pieces, changes)| {
        let mut file = pieces.concat();
        changes.into_iter().for_each(|change| apply(&mut file, change));
        file
    })
}

/// Returns all units of a file, its fault, and the length of its intact part.
fn read(file: &[u8]) -> (Vec<u8>, Option<Broken>, usize) {
    let mut reader = Reader::new(Cursor::new(file)).expect("memory can be read");
    let mut all = Vec::new();
    let broken = loop {
        match reader.next_units() {
            Ok(Some(units)) => all.extend_from_slice(units),
            Ok(None) => break None,
            Err(broken) => break Some(broken),
        }
    };
    // A growing vector doubles its capacity.
    let room = 2 * (file.len() + LINE_MAX as usize);
    assert!(
        reader.unit.capacity() <= room && reader.line.capacity() <= room,
        "{} bytes",
        reader.unit.capacity()
    );
    (all, broken, reader.whole_bytes() as usize)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn what_is_whole_of_any_file_is_read_again_and_nothing_else(file in files()) {
        let (units, broken, n_whole) = read(&file);
        prop_assert!(n_whole <= file.len());
        if let Some(Broken::Torn { at }) = broken {
            prop_assert_eq!(at as usize, n_whole);
        }
        let (again, broken_again, n_whole_again) = read(&file[..n_whole]);
        prop_assert!(broken_again.is_none(), "what is whole {broken_again:?}");
        prop_assert_eq!((again, n_whole_again), (units, n_whole));
    }

    #[test]
    fn a_check_of_any_file_agrees_with_the_reader(file in files(), until in 0u64..4) {
        let (_, broken, n_whole) = read(&file);
        let checked = check(Cursor::new(&file), 0, None).expect("memory can be read");
        prop_assert_eq!(checked.whole_bytes as usize, n_whole);
        prop_assert_eq!(checked.broken.is_some(), broken.is_some());
        let checked = check(Cursor::new(&file), 0, Some(until)).expect("memory can be read");
        prop_assert!(checked.whole_bytes as usize <= n_whole);
    }

    #[test]
    fn any_manifest_is_refused_or_read_back_as_it_is_written(
        lines in vec(("(file|seq|type|#|later)?", "[ -~]{0,8}|\"[ -~]*\"", 0u64..4, "[bih]?"), 0..4),
        change in any::<Option<(usize, u8)>>(),
    ) {
        let mut text: Vec<u8> = lines
            .iter()
            .flat_map(|(first, name, seq, kind)| format!("{first} {name} seq {seq} type {kind}\n").into_bytes())
            .collect();
        if let (Some((at, mask)), false) = (change, text.is_empty()) {
            let at = at % text.len();
            text[at] ^= mask;
        }
        if let Ok(manifest) = Manifest::read(&text)
            && !manifest.text().is_empty()
        {
            prop_assert_eq!(Manifest::read(&manifest.text()), Ok(manifest));
        }
    }
}
