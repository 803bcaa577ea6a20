//! Compressed strings: what is compressed comes back, and takes no more than it may.

use proptest::prelude::*;

use crate::rdb::lzf::{Compressor, decompress};

fn assert_comes_back(compressor: &mut Compressor, text: &[u8]) -> Option<usize> {
    if text.len() < 5 {
        return None;
    }
    let compressed = compressor.compress(text, text.len().saturating_sub(4))?;
    assert!(compressed.len() + 4 <= text.len());
    assert_eq!(decompress(compressed, text.len()).as_deref(), Some(text));
    Some(compressed.len())
}

#[test]
fn what_repeats_is_compressed() {
    let mut compressor = Compressor::default();
    for n in [21, 32, 33, 100, 263, 264, 265, 266, 300, 10_000, 1_000_000] {
        let n_bytes = assert_comes_back(&mut compressor, &vec![b'x'; n]).expect("it repeats");
        assert!(n_bytes <= 6 + n / 80, "{n} bytes became {n_bytes}");
    }
    // A repetition that starts as far back as one may, and one that would have to start further back.
    let text: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let far = |back: usize| [text, &vec![b'x'; back - text.len()], text].concat();
    let n_bytes =
        |back| assert_comes_back(&mut Compressor::default(), &far(back)).expect("the middle repeats");
    assert_eq!(n_bytes((1 << 13) + 1) - n_bytes(1 << 13), text.len() + 2 - 3);
}

#[test]
fn what_does_not_repeat_is_left_as_it_is() {
    let mut compressor = Compressor::default();
    assert_eq!(assert_comes_back(&mut compressor, b"0123456789abcdefghijklmnopqrstuvwxyz"), None);
    assert_eq!(assert_comes_back(&mut compressor, b""), None);
    assert_eq!(compressor.compress(b"abc", 2), None);
}

/// An earlier string is no part of a later one, also when places have been counted to the end and begin anew.
#[test]
fn strings_are_compressed_each_for_itself() {
    let mut compressor = Compressor::default();
    let text = b"a text that does not repeat: 0123456789";
    for _ in 0..3 {
        assert_eq!(assert_comes_back(&mut compressor, text), None);
    }
    compressor.begin_at(u32::MAX - 100);
    for _ in 0..10 {
        assert_comes_back(&mut compressor, &[b'x'; 60]).expect("it repeats");
        assert_eq!(assert_comes_back(&mut compressor, text), None);
    }
}

proptest! {
    #[test]
    fn any_text_comes_back(
        texts in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                prop::collection::vec(0u8..4, 0..5000),
                (prop::collection::vec(any::<u8>(), 1..40), 1usize..400).prop_map(|(text, n)| text.repeat(n)),
            ],
            1..5,
        )
    ) {
        let mut compressor = Compressor::default();
        for text in &texts {
            assert_comes_back(&mut compressor, text);
        }
        assert_comes_back(&mut compressor, &texts.concat());
    }
}

#[test]
fn short_strings_that_never_become_shorter_are_hardly_tried_until_one_does() {
    let mut compressor = Compressor::default();
    let mut is_compressed = |text: &[u8]| compressor.try_compress(text, text.len() - 4).is_some();
    let dull = [b'a'; 100];
    let random: Vec<u8> = (0..100_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert!(!is_compressed(&random));
    assert!(is_compressed(&dull), "one in vain is no sign");
    (0..1000).for_each(|_| assert!(!is_compressed(&random)));
    assert!(is_compressed(&[b'a'; 2000]), "a long one is always tried");
    let n_until_tried = (1..).find(|_| is_compressed(&dull)).expect("it goes on for ever");
    assert!((2..=8).contains(&n_until_tried), "{n_until_tried}");
    assert!((0..10).all(|_| is_compressed(&dull)));
}
