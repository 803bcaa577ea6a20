use proptest::prelude::*;

use super::*;

/// What redis-server 7.0.15 has for a key after PFADD of `a` to `h`, and of some other elements.
const CAPTURED: [(&str, &[&[u8]]); 2] = [
    (
        "48594c4c010000000000000000000080466d80560c80443c8438804dc28042ed84498c80426d80425a",
        &[b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"],
    ),
    ("48594c4c0100000000000000000000807fff", &[]),
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// FNV-1a, to compare long values by.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn facts(bytes: &[u8]) -> Facts {
    (bytes.len(), cardinality(bytes).unwrap(), fnv(bytes))
}

fn elements(prefix: &str, n: usize) -> Vec<Vec<u8>> {
    (0..n).map(|n| format!("{prefix}:{n}").into_bytes()).collect()
}

fn of_elements(elements: &[Vec<u8>], sparse_max_bytes: usize) -> Vec<u8> {
    of(elements.iter().map(Vec::as_slice), sparse_max_bytes)
}

fn cardinality(bytes: &[u8]) -> Result<u64, Corrupt> {
    Hll::new(bytes).expect("a HyperLogLog").cardinality()
}

fn registers(bytes: &[u8]) -> Registers {
    let mut registers = Registers::default();
    registers.merge(Hll::new(bytes).expect("a HyperLogLog")).expect("it is whole");
    registers
}

fn merged(of: &[&[u8]], sparse_max_bytes: usize) -> Vec<u8> {
    let mut registers = Registers::default();
    of.iter().for_each(|bytes| registers.merge(Hll::new(bytes).unwrap()).unwrap());
    registers.merged_into(Hll::new(of[0]), HllEncoding::Sparse, sparse_max_bytes).unwrap()
}

#[test]
fn bytes_are_those_of_redis() {
    for (expected, elements) in CAPTURED {
        assert_eq!(hex(&of(elements.iter().copied(), 3000)), expected);
    }
}

/// After PFADD of `e:0`, `e:1` and so on: how many, `hll-sparse-max-bytes`, and the [`Facts`] of the value
/// that redis-server 7.0.15 has then.
const LARGER: [(usize, usize, Facts); 5] = [
    (100, 3000, (279, 100, 0x4845_eccc_5ab0_06fd)),
    (1000, 3000, (1880, 995, 0xc25a_87c3_32c6_b0a8)),
    (2000, 3000, (DENSE_BYTES, 1983, 0x6fec_b3a8_c27a_99f2)),
    (100_000, 3000, (DENSE_BYTES, 100_342, 0x832e_1358_39f9_4df7)),
    (8000, 15_000, (9534, 8026, 0x7fac_548c_55db_ab89)),
];

/// After PFMERGE of `f:0` to `f:2999` into the last of those, and into no key.
const MERGED: Facts = (10_948, 11_008, 0xee76_d15f_69fb_fc40);
const MERGED_INTO_NONE: Facts = (4876, 3002, 0x368d_5cef_7be0_1597);

/// Length, cardinality and FNV-1a.
type Facts = (usize, u64, u64);

#[test]
fn larger_ones_are_those_of_redis() {
    for (n, sparse_max_bytes, expected) in LARGER {
        let bytes = of_elements(&elements("e", n), sparse_max_bytes);
        assert_eq!(facts(&bytes), expected, "{n} elements");
    }
}

#[test]
fn merging_is_that_of_redis() {
    let (mut e, f) = (of_elements(&elements("e", 8000), 15000), of_elements(&elements("f", 3000), 15000));
    // There, PFCOUNT had left its result behind, of which PFMERGE only says that it is out of date.
    store_cardinality(&mut e, 8026);
    let into_e = merged(&[&e, &f], 15000);
    assert_eq!(facts(&into_e), MERGED);
    let into_none = registers(&f).merged_into(None, HllEncoding::Sparse, 15000).unwrap();
    assert_eq!(facts(&into_none), MERGED_INTO_NONE);
    let into_dense = merged(&[&e, &f], 3000);
    assert_eq!((into_dense.len(), registers(&into_dense)), (DENSE_BYTES, registers(&into_e)));
}

/// Four standard errors, which are 1.04 / sqrt(2¹⁴) each.
#[test]
fn estimates_are_within_four_standard_errors() {
    let mut bytes = EMPTY.to_vec();
    let mut checkpoint = 1;
    for n in 1..=1_000_000u64 {
        raise(&mut bytes, Observation::of(&n.to_le_bytes()), 3000).unwrap();
        if n == checkpoint {
            let error = cardinality(&bytes).unwrap().abs_diff(n) as f64 / n as f64;
            assert!(error <= 4.0 * 1.04 / 128.0, "{n}: {error}");
            checkpoint = checkpoint * 5 / 2 + 1;
        }
    }
}

#[test]
fn the_self_test_passes() {
    assert_eq!(self_test(), Ok(()));
}

#[test]
fn a_stored_cardinality_holds_until_the_next_change() {
    let mut bytes = of_elements(&elements("e", 5), 3000);
    assert_eq!(Hll::new(&bytes).unwrap().stored_cardinality(), None);
    store_cardinality(&mut bytes, 5);
    assert_eq!(Hll::new(&bytes).unwrap().stored_cardinality(), Some(5));
    let adding = |bytes: &[u8], element: &[u8]| {
        Hll::new(bytes).unwrap().with_elements([element].into_iter(), 3000).unwrap()
    };
    assert_eq!(adding(&bytes, b"e:3"), HllChange::None);
    let HllChange::Rewrite(changed) = adding(&bytes, b"new") else { panic!("it is sparse") };
    assert_eq!(Hll::new(&changed).unwrap().stored_cardinality(), None);

    let mut dense = Hll::new(&bytes).unwrap().to_dense().unwrap();
    assert_eq!(Hll::new(&dense).unwrap().stored_cardinality(), Some(5));
    assert_eq!(adding(&dense, b"e:3"), HllChange::None);
    let HllChange::Raise(raise) = adding(&dense, b"new") else { panic!("it is dense") };
    raise.apply(&mut dense);
    assert_eq!(Hll::new(&dense).unwrap().stored_cardinality(), None);
    assert_eq!(registers(&dense), registers(&changed));
}

#[test]
fn sparse_ones_become_dense_at_the_threshold_and_above_rank_32() {
    let of_27 = of_elements(&elements("e", 3), 27);
    assert_eq!((of_27.len(), Hll::new(&of_27).unwrap().encoding()), (27, HllEncoding::Sparse));
    let of_26 = of_elements(&elements("e", 3), 26);
    assert_eq!((of_26.len(), Hll::new(&of_26).unwrap().encoding()), (DENSE_BYTES, HllEncoding::Dense));
    assert_eq!(registers(&of_26), registers(&of_27));

    let mut bytes = EMPTY.to_vec();
    raise(&mut bytes, Observation { index: 7, rank: 32 }, 3000).unwrap();
    assert_eq!(bytes.len(), EMPTY.len() + 2);
    raise(&mut bytes, Observation { index: 7, rank: 33 }, 3000).unwrap();
    assert_eq!(bytes.len(), DENSE_BYTES);
    assert_eq!(registers(&bytes).ranks()[..9], [0, 0, 0, 0, 0, 0, 0, 33, 0]);
}

#[test]
fn what_is_no_hyperloglog_is_told_from_a_corrupt_one() {
    let dense = Registers::default().to_dense(&header_of(&EMPTY));
    let mut unknown = EMPTY;
    unknown[ENCODING_AT] = 2;
    let mut sparse_as_dense = EMPTY;
    sparse_as_dense[ENCODING_AT] = DENSE;
    let others: [&[u8]; 6] =
        [b"", b"HYLL\x01", &unknown, &sparse_as_dense, &dense[1..], &dense[..DENSE_BYTES - 1]];
    others.iter().for_each(|bytes| assert!(Hll::new(bytes).is_none(), "{bytes:?}"));

    let header = &EMPTY[..HEADER_BYTES];
    let bodies: [&[u8]; 6] = [b"", b"\x7f\xfe", b"\x7f\xff\x00", b"\x7f\xff\x7f", b"\x7f\xfe\x81", b"\x7f"];
    for body in bodies {
        let bytes = [header, body].concat();
        assert_eq!(cardinality(&bytes), Err(Corrupt), "{body:?}");
        assert_eq!(Registers::default().merge(Hll::new(&bytes).unwrap()), Err(Corrupt), "{body:?}");
        assert_eq!(Hll::new(&bytes).unwrap().to_dense(), Err(Corrupt), "{body:?}");
    }
    assert_eq!(cardinality(&[header, b"\x7f\xfe\x80"].concat()), Ok(1));
}

#[test]
fn ranks_that_no_hash_has_do_not_break_the_estimate() {
    let mut registers = Registers::default();
    registers.0.fill(63);
    assert_eq!(registers.cardinality(), i64::MAX as u64);
    registers.0.fill(51);
    assert!(registers.cardinality() > 1 << 60);
}

/// Registers to raise, close together, so that runs split and join often. `high_ranks` of every 40 of those
/// that are not have ranks that only dense registers hold.
fn observations(high_ranks: u32) -> impl Strategy<Value = Vec<Observation>> {
    let near = (0..40usize, 1..5u8);
    let far = (0..N_REGISTERS, prop_oneof![40 => 1..=32u8, high_ranks => 33..=51u8]);
    let either = prop_oneof![3 => near, 1 => far];
    prop::collection::vec(either.prop_map(|(index, rank)| Observation { index, rank }), 0..200)
}

/// An empty sparse HyperLogLog after these were raised in it.
fn raised(seen: &[Observation]) -> Vec<u8> {
    let mut bytes = EMPTY.to_vec();
    for seen in seen {
        raise(&mut bytes, *seen, 3000).expect("it is whole");
    }
    bytes
}

/// Any bytes behind a header, and HyperLogLogs in which some bytes have changed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let any_body = prop::collection::vec(any::<u8>(), 0..60).prop_map(|body| [&EMPTY[..16], &body].concat());
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    let whole = (observations(0), any::<bool>()).prop_map(|(seen, make_dense)| {
        let bytes = raised(&seen);
        if make_dense { Hll::new(&bytes).unwrap().to_dense().unwrap() } else { bytes }
    });
    let changed = (whole, changes, 0..3usize).prop_map(|(mut bytes, changes, n_cut)| {
        let len = bytes.len();
        changes.iter().for_each(|(at, byte)| bytes[at.index(len)] = *byte);
        bytes.truncate(bytes.len() - n_cut);
        bytes
    });
    prop_oneof![any_body, changed]
}

proptest! {
    #[test]
    fn representations_agree_with_a_list_of_registers(seen in observations(1)) {
        let mut model = Registers::default();
        let mut sparse = EMPTY.to_vec();
        let mut dense = model.to_dense(&header_of(&EMPTY));
        for seen in seen {
            let expected = model.0[seen.index] < seen.rank;
            model.0[seen.index] = model.0[seen.index].max(seen.rank);
            prop_assert_eq!(raise(&mut sparse, seen, 3000), Ok(expected));
            prop_assert_eq!(raise(&mut dense, seen, 3000), Ok(expected));
        }
        prop_assert_eq!(&registers(&sparse), &model);
        prop_assert_eq!(&registers(&dense), &model);
        prop_assert_eq!(cardinality(&sparse), Ok(model.cardinality()));
        prop_assert_eq!(cardinality(&dense), Ok(model.cardinality()));
    }

    /// Merging remembers where it was; the bytes must be those of looking from the start each time.
    #[test]
    fn walking_on_and_starting_over_come_to_the_same_bytes(
        old in observations(0),
        added in observations(0),
        max_bytes in prop_oneof![Just(40usize), Just(3000)],
    ) {
        let (mut slow, added) = (raised(&old), raised(&added));
        let mut union = registers(&added);
        union.merge(Hll::new(&slow).unwrap()).unwrap();
        let quick = union.merged_into(Hll::new(&slow), HllEncoding::Sparse, max_bytes).unwrap();
        for (index, &rank) in union.ranks().iter().enumerate().filter(|(_, rank)| **rank > 0) {
            raise(&mut slow, Observation { index, rank }, max_bytes).unwrap();
        }
        slow[STALE_AT] |= STALE;
        prop_assert_eq!(hex(&quick), hex(&slow));
    }

    #[test]
    fn no_bytes_make_anything_panic(bytes in damaged(), element: Vec<u8>, max_bytes in 0..4000usize) {
        let Some(hll) = Hll::new(&bytes) else { return Ok(()) };
        let mut registers = Registers::default();
        let is_whole = registers.merge(hll).is_ok();
        prop_assert_eq!(hll.cardinality(), is_whole.then(|| registers.cardinality()).ok_or(Corrupt));
        prop_assert_eq!(hll.to_dense().is_ok(), is_whole);
        prop_assert!(hll.runs().count() <= bytes.len());
        let _ = registers.merged_into(Some(hll), HllEncoding::Sparse, max_bytes);
        match hll.with_elements([&element[..]].into_iter(), max_bytes) {
            Ok(HllChange::Raise(raise)) => raise.apply(&mut bytes.clone()),
            Ok(HllChange::Rewrite(bytes)) => prop_assert!(Hll::new(&bytes).is_some()),
            Ok(HllChange::None) => {}
            Err(Corrupt) => prop_assert!(!is_whole),
        }
    }
}
