use super::*;

/// Texts at every boundary of the codes and of the lengths behind them.
fn texts() -> Vec<Vec<u8>> {
    let integers = [
        0,
        1,
        127,
        128,
        -1,
        4095,
        4096,
        -4096,
        -4097,
        32767,
        32768,
        -32768,
        -32769,
        8388607,
        8388608,
        -8388608,
        -8388609,
        2147483647,
        2147483648,
        -2147483648,
        -2147483649,
        i64::MAX,
        i64::MIN,
    ];
    let lengths = [
        0, 1, 62, 63, 64, 65, 125, 126, 127, 128, 4093, 4094, 4095, 4096, 4097, 16376, 16377, 16378, 16383,
        16384,
    ];
    let mut texts: Vec<Vec<u8>> = integers.iter().map(|n: &i64| n.to_string().into_bytes()).collect();
    texts.extend(lengths.iter().map(|&len| vec![b'x'; len]));
    texts.extend(
        ["007", "-0", "+1", " 1", "9223372036854775808", "\0\u{ff}"].map(|text| text.as_bytes().to_vec()),
    );
    texts
}

fn packed_of(texts: &[Vec<u8>]) -> Vec<u8> {
    let mut buffer = EMPTY.to_vec();
    texts.iter().for_each(|text| push(&mut buffer, text));
    buffer
}

fn texts_of(buffer: &[u8]) -> Vec<Vec<u8>> {
    Packed::check(buffer).expect("well formed").iter().map(Element::to_vec).collect()
}

#[test]
fn every_text_comes_back_from_both_ends() {
    let texts = texts();
    let buffer = packed_of(&texts);
    assert_eq!(texts_of(&buffer), texts);
    let mut backwards: Vec<_> = Packed::new(&buffer).iter().rev().map(Element::to_vec).collect();
    backwards.reverse();
    assert_eq!(backwards, texts);
}

#[test]
fn elements_are_found_by_index_and_by_text() {
    let texts = texts();
    let buffer = packed_of(&texts);
    let packed = Packed::new(&buffer);
    for (index, text) in texts.iter().enumerate() {
        let at = packed.nth(index as i64).expect("in range");
        assert_eq!(packed.get(at).to_vec(), *text);
        assert_eq!(packed.nth(index as i64 - texts.len() as i64), Some(at));
        assert_eq!(packed.find(packed.first().unwrap(), text, 1), Some(at));
    }
    assert_eq!(packed.nth(texts.len() as i64), None);
    assert_eq!(packed.nth(-1 - texts.len() as i64), None);
    assert_eq!(packed.find(packed.first().unwrap(), b"absent", 1), None);
    assert_eq!(packed.find(packed.first().unwrap(), &texts[1], 2), None, "an odd index");
    assert_eq!(packed.find(packed.first().unwrap(), &texts[4], 2), packed.nth(4));
}

#[test]
fn edits_do_what_a_vector_does() {
    let texts = texts();
    let mut model: Vec<Vec<u8>> = Vec::new();
    let mut buffer = EMPTY.to_vec();
    let mut random = 1u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % below
    };
    for _ in 0..4000 {
        let text = &texts[draw(texts.len())];
        let index = draw(model.len() + 1);
        let packed = Packed::new(&buffer);
        let at = packed.nth(index as i64).unwrap_or(packed.end());
        match draw(5) {
            0 | 1 => {
                insert(&mut buffer, at, text);
                model.insert(index, text.clone());
            }
            2 => {
                push_front(&mut buffer, text);
                model.insert(0, text.clone());
            }
            3 if index < model.len() => {
                replace(&mut buffer, at, text);
                model[index] = text.clone();
            }
            _ => {
                let n = draw(4);
                let end = (index + n).min(model.len());
                assert_eq!(remove(&mut buffer, at, n), model.drain(index..end).count());
            }
        }
        assert_eq!(Packed::new(&buffer).len(), model.len());
    }
    assert_eq!(texts_of(&buffer), model);
}

#[test]
fn elements_are_kept_by_what_they_are() {
    let texts = texts();
    for modulus in 1..5 {
        let mut buffer = packed_of(&texts);
        let mut nth = 0;
        let n_removed = retain(&mut buffer, |element| {
            assert_eq!(element.to_vec(), texts[nth]);
            nth += 1;
            nth % modulus != 0
        });
        let kept: Vec<_> = texts
            .iter()
            .enumerate()
            .filter(|(at, _)| (at + 1) % modulus != 0)
            .map(|(_, t)| t.clone())
            .collect();
        assert_eq!(texts_of(&buffer), kept);
        assert_eq!(n_removed, texts.len() - kept.len());
    }
}

#[test]
fn two_packed_values_become_one() {
    let texts = texts();
    for n in [0, 1, texts.len()] {
        let (mut buffer, other) = (packed_of(&texts[..n]), packed_of(&texts));
        extend(&mut buffer, Packed::new(&other));
        assert_eq!(texts_of(&buffer), [&texts[..n], &texts].concat());
        extend(&mut buffer, Packed::new(EMPTY));
        assert_eq!(texts_of(&buffer).len(), n + texts.len());
    }
}

#[test]
fn more_than_65534_elements_are_counted() {
    let mut buffer = EMPTY.to_vec();
    for _ in 0..65_540 {
        push(&mut buffer, b"7");
    }
    assert_eq!(Packed::new(&buffer).len(), 65_540);
    remove(&mut buffer, At(HEADER_BYTES), 10);
    assert_eq!(Packed::check(&buffer).expect("well formed").len(), 65_530);
    assert_eq!(u16::from_le_bytes([buffer[4], buffer[5]]), 65_530, "few enough to be noted again");
}

#[test]
fn the_layout_is_that_of_redis() {
    // What DUMP of redis-server 7.0.15 holds for RPUSH l a 1 -1 300 70000 (behind the type, the node's kind
    // and its length).
    let expected = b"\x1a\0\0\0\x05\0\x81a\x02\x01\x01\xdf\xff\x02\xc1\x2c\x02\xf2\x70\x11\x01\x04\xff";
    let buffer = packed_of(&["a", "1", "-1", "300", "70000"].map(|text| text.as_bytes().to_vec()));
    assert_eq!(buffer[4..], expected[4..]);
    assert_eq!(buffer[0] as usize, buffer.len());
}

#[test]
fn malformed_bytes_are_refused() {
    let good = packed_of(&["field", "1234567", "", "-5"].map(|text| text.as_bytes().to_vec()));
    assert!(Packed::check(&good).is_some());
    for len in 0..good.len() {
        assert!(Packed::check(&good[..len]).is_none(), "cut to {len}");
    }
    // Whatever one byte is changed to, what passes can be read from both ends without a panic.
    for at in 0..good.len() {
        for byte in 0..=255 {
            let mut bad = good.clone();
            bad[at] = byte;
            if let Some(packed) = Packed::check(&bad) {
                assert_eq!(packed.iter().count(), packed.iter().rev().count());
                assert_eq!(packed.iter().count(), packed.len());
            }
        }
    }
}
