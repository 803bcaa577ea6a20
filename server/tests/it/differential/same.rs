//! The comparison of replies.

use crate::support::{PATIENCE, Reply};

/// The way to compare the replies of two servers to one command. Errors are always compared to the letter,
/// and two IDs that servers have made from their clocks are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Same {
    /// To the letter. RESP3's sets and maps have no order, and its doubles are numbers, not digits.
    Letter,
    /// As above, or one of these errors of later versions for a command that 7.0 accepts.
    LetterOr(&'static [&'static str]),
    /// An encoding: later versions also pack small lists and sets.
    Encoding,
    /// As above, but strings that are numbers are compared as numbers: scores look like that in RESP2.
    Numbers,
    /// The elements of the outermost collection come in any order.
    AnyOrder,
    /// The same for fields with their values, which RESP2 has in one array.
    AnyOrderPairs,
    /// Left to chance: the same kind of reply, with the same number of elements.
    Random,
    /// Integers may differ by this much, because time has passed.
    Near(i64),
    /// A cursor at this argument, and elements. The results of a whole iteration are compared.
    Cursor(usize),
    /// The times for which entries have been pending differ.
    Pending,
    /// Points in time, and figures about a server's own structure, differ.
    Clocks,
}

/// The longest time between the same command on the two servers, which run it in turn. A test waits no longer
/// for a reply.
pub const SECONDS: i64 = PATIENCE.as_secs() as i64;
/// The same time in milliseconds.
pub const MILLIS: i64 = 1000 * SECONDS;

/// Fields of streams' descriptions that differ between servers, or that later versions have added. After
/// deletions, later versions also compute the progress of a group in another way.
const CLOCK_FIELDS: &[&str] = &[
    "idle",
    "inactive",
    "seen-time",
    "active-time",
    "radix-tree-keys",
    "radix-tree-nodes",
    "entries-read",
    "lag",
];

impl Same {
    /// Whether two replies are the same.
    pub fn holds(self, ours: &Reply, theirs: &Reply) -> bool {
        if let (Same::LetterOr(newer), Reply::Error(ours)) = (self, ours)
            && newer.iter().any(|error| error.as_bytes() == ours)
        {
            return true;
        }
        if let (Reply::Error(ours), Reply::Error(theirs)) = (ours, theirs) {
            // Braid writes U+FFFD for invalid UTF-8 in a word that it repeats.
            return String::from_utf8_lossy(ours) == String::from_utf8_lossy(theirs);
        }
        if ours.is_error() || theirs.is_error() {
            return false;
        }
        match self {
            Same::Letter | Same::LetterOr(_) => letter(ours, theirs),
            Same::Encoding => letter(ours, theirs) || is_packed_by_now(ours, theirs),
            Same::Numbers => {
                alike(ours, theirs, &|ours, theirs| letter(ours, theirs) || numbers(ours, theirs))
            }
            Same::AnyOrder => match (elements(ours), elements(theirs)) {
                (Some(ours), Some(theirs)) => any_order(ours, theirs),
                _ => letter(ours, theirs),
            },
            Same::AnyOrderPairs => match (ours, theirs) {
                (Reply::Array(ours), Reply::Array(theirs)) => any_order(&pairs(ours), &pairs(theirs)),
                _ => letter(ours, theirs),
            },
            Same::Random => kind(ours) == kind(theirs),
            Same::Near(tolerance) => alike(ours, theirs, &|ours, theirs| match (ours, theirs) {
                (Reply::Integer(ours), Reply::Integer(theirs)) => near(*ours, *theirs, tolerance),
                _ => letter(ours, theirs),
            }),
            Same::Cursor(_) => kind(ours).0 == kind(theirs).0,
            Same::Pending => letter(&without_idle(ours), &without_idle(theirs)),
            Same::Clocks => letter(&without_clocks(ours), &without_clocks(theirs)),
        }
    }
}

/// Whether one server uses a listpack where the other keeps an older encoding.
fn is_packed_by_now(ours: &Reply, theirs: &Reply) -> bool {
    let is = |reply: &Reply, name: &str| matches!(reply, Reply::Bulk(text) if text == name.as_bytes());
    // A sorted set that SORT has read stays a skip list in Redis. Here a read changes nothing.
    is(ours, "listpack") && ["quicklist", "hashtable", "skiplist"].iter().any(|encoding| is(theirs, encoding))
}

/// Whether two times are near. A negative number means that there is no time at all.
fn near(ours: i64, theirs: i64, tolerance: i64) -> bool {
    ours == theirs || (ours >= 0 && theirs >= 0 && ours.abs_diff(theirs) <= tolerance as u64)
}

fn letter(ours: &Reply, theirs: &Reply) -> bool {
    alike(ours, theirs, &|ours, theirs| match (ours, theirs) {
        (Reply::Double(ours), Reply::Double(theirs)) => number(ours) == number(theirs),
        (Reply::Bulk(ours), Reply::Bulk(theirs)) => ours == theirs || are_of_clocks(ours, theirs),
        _ => ours == theirs,
    })
}

/// Compares the leaves of two replies of one shape.
fn alike(ours: &Reply, theirs: &Reply, leaf: &dyn Fn(&Reply, &Reply) -> bool) -> bool {
    match (ours, theirs) {
        (Reply::Array(ours), Reply::Array(theirs)) | (Reply::Push(ours), Reply::Push(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(ours, theirs)| alike(ours, theirs, leaf))
        }
        (Reply::Set(ours), Reply::Set(theirs)) => any_order(ours, theirs),
        (Reply::Map(ours), Reply::Map(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().all(|(name, ours)| {
                    theirs.iter().any(|(other, theirs)| name == other && alike(ours, theirs, leaf))
                })
        }
        _ => leaf(ours, theirs),
    }
}

/// Whether both are IDs that XADD has made from the time. The servers' clocks may be a millisecond apart. So
/// entries of one millisecond here, which are numbered, may be in two there.
fn are_of_clocks(ours: &[u8], theirs: &[u8]) -> bool {
    let millis = |id: &[u8]| -> Option<i64> {
        let (millis, number) = std::str::from_utf8(id).ok()?.split_once('-')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        millis.parse().ok().filter(|millis| is_number && *millis > THIS_CENTURY)
    };
    millis(ours).zip(millis(theirs)).is_some_and(|(ours, theirs)| near(ours, theirs, MILLIS))
}

fn any_order(ours: &[Reply], theirs: &[Reply]) -> bool {
    let sorted = |replies: &[Reply]| {
        let mut texts: Vec<String> = replies.iter().map(|reply| format!("{reply:?}")).collect();
        texts.sort();
        texts
    };
    sorted(ours) == sorted(theirs)
}

fn pairs(flat: &[Reply]) -> Vec<Reply> {
    flat.chunks(2).map(|pair| Reply::Array(pair.to_vec())).collect()
}

fn elements(reply: &Reply) -> Option<&[Reply]> {
    match reply {
        Reply::Array(items) | Reply::Set(items) => Some(items),
        _ => None,
    }
}

fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse::<f64>().ok().filter(|number| !number.is_nan())
}

fn numbers(ours: &Reply, theirs: &Reply) -> bool {
    match (ours, theirs) {
        (Reply::Bulk(ours), Reply::Bulk(theirs)) => {
            number(ours).is_some_and(|ours| number(theirs) == Some(ours))
        }
        _ => false,
    }
}

/// Returns the kind of a reply and its number of elements.
fn kind(reply: &Reply) -> (std::mem::Discriminant<Reply>, usize) {
    let n = match reply {
        Reply::Array(items) | Reply::Set(items) => items.len(),
        Reply::Map(pairs) => pairs.len(),
        _ => 0,
    };
    (std::mem::discriminant(reply), n)
}

/// Returns rows of XPENDING without the idle time of each entry.
fn without_idle(reply: &Reply) -> Reply {
    match reply {
        Reply::Array(rows) => Reply::Array(rows.iter().map(without_idle_in_row).collect()),
        other => other.clone(),
    }
}

fn without_idle_in_row(row: &Reply) -> Reply {
    match row {
        Reply::Array(items) if items.len() == 4 => {
            Reply::Array(vec![items[0].clone(), items[1].clone(), Reply::Null, items[3].clone()])
        }
        other => other.clone(),
    }
}

fn is_clock(name: &Reply) -> bool {
    matches!(name, Reply::Bulk(name) if CLOCK_FIELDS.iter().any(|field| field.as_bytes() == name))
}

/// Milliseconds since 1970 at a past time. All other numbers in these tests are smaller.
const THIS_CENTURY: i64 = 1_000_000_000_000;

/// Returns the description of a stream without fields that differ.
fn without_clocks(reply: &Reply) -> Reply {
    match reply {
        Reply::Map(pairs) => {
            let kept = pairs.iter().filter(|(name, _)| !is_clock(name));
            Reply::Map(kept.map(|(name, value)| (name.clone(), without_clocks(value))).collect())
        }
        Reply::Array(items) => {
            let mut kept = Vec::new();
            let mut rest = items.iter();
            while let Some(item) = rest.next() {
                if is_clock(item) {
                    rest.next();
                } else {
                    kept.push(without_clocks(item));
                }
            }
            Reply::Array(kept)
        }
        // The delivery time of an entry, in milliseconds since 1970.
        Reply::Integer(time) if *time > THIS_CENTURY => Reply::Null,
        other => other.clone(),
    }
}

/// The comparison itself: one that accepts everything would find nothing.
#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.into())
    }

    fn array(items: &[&str]) -> Reply {
        Reply::Array(items.iter().map(|item| bulk(item)).collect())
    }

    #[test]
    fn order_counts_unless_it_may_not() {
        let (there, back) = (array(&["a", "b", "b", "c"]), array(&["b", "c", "a", "b"]));
        assert!(!Same::Letter.holds(&there, &back));
        assert!(Same::AnyOrder.holds(&there, &back));
        assert!(!Same::AnyOrder.holds(&array(&["a", "a"]), &array(&["a", "b"])));
        assert!(
            !Same::AnyOrderPairs.holds(&there, &array(&["b", "a", "b", "c"])),
            "fields stay with their values"
        );
        assert!(Same::AnyOrderPairs.holds(&array(&["f", "1", "g", "2"]), &array(&["g", "2", "f", "1"])));
    }

    #[test]
    fn numbers_are_compared_as_numbers_where_that_is_said() {
        assert!(!Same::Letter.holds(&bulk("0.1"), &bulk("0.10000000000000001")));
        assert!(Same::Numbers.holds(&bulk("0.1"), &bulk("0.10000000000000001")));
        assert!(!Same::Numbers.holds(&bulk("0.1"), &bulk("0.2")));
        assert!(
            Same::Letter
                .holds(&Reply::Double(b"0.1".to_vec()), &Reply::Double(b"0.10000000000000001".to_vec()))
        );
        assert!(!Same::Letter.holds(&Reply::Double(b"1".to_vec()), &bulk("1")));
    }

    #[test]
    fn chance_and_time_keep_their_shape() {
        assert!(Same::Random.holds(&array(&["a", "b"]), &array(&["c", "d"])));
        assert!(!Same::Random.holds(&array(&["a", "b"]), &array(&["c"])));
        assert!(!Same::Random.holds(&bulk("a"), &Reply::Nil));
        assert!(Same::Near(5).holds(&Reply::Integer(100), &Reply::Integer(96)));
        assert!(!Same::Near(5).holds(&Reply::Integer(100), &Reply::Integer(94)));
        assert!(!Same::Near(5).holds(&Reply::Integer(-1), &Reply::Integer(-2)));
    }

    /// `XADD *` on two servers, a millisecond apart.
    #[test]
    fn ids_of_clocks_are_alike_and_others_are_not() {
        assert!(Same::Letter.holds(&bulk("1795000000000-0"), &bulk("1795000000001-0")));
        assert!(Same::Letter.holds(&array(&["1795000000000-1"]), &array(&["1795000000001-0"])));
        assert!(!Same::Letter.holds(&bulk("1795000000000-0"), &bulk("1796000000000-0")), "not in one run");
        assert!(!Same::Letter.holds(&bulk("5-0"), &bulk("5-1")), "an ID that was given");
        assert!(!Same::Letter.holds(&bulk("1795000000000-0"), &bulk("1795000000001-x")));
        assert!(!Same::Letter.holds(&bulk("1795000000000"), &bulk("1795000000001")));
    }

    #[test]
    fn errors_are_compared_to_the_letter() {
        let error = |text: &str| Reply::Error(text.into());
        for same in [Same::Letter, Same::AnyOrder, Same::Random, Same::Near(9), Same::Cursor(1), Same::Clocks]
        {
            assert!(same.holds(&error("ERR a"), &error("ERR a")), "{same:?}");
            assert!(!same.holds(&error("ERR a"), &error("ERR b")), "{same:?}");
            assert!(!same.holds(&error("ERR a"), &Reply::Nil), "{same:?}");
        }
    }

    #[test]
    fn what_later_versions_do_is_right_as_well() {
        let error = |text: &str| Reply::Error(text.into());
        let same = Same::LetterOr(&["ERR syntax error"]);
        assert!(same.holds(&error("ERR syntax error"), &Reply::Integer(0)));
        assert!(!same.holds(&error("ERR another"), &Reply::Integer(0)));
        assert!(!same.holds(&Reply::Integer(0), &error("ERR syntax error")));
        assert!(Same::Encoding.holds(&bulk("listpack"), &bulk("quicklist")));
        assert!(!Same::Encoding.holds(&bulk("quicklist"), &bulk("listpack")));
        assert!(!Same::Letter.holds(&bulk("listpack"), &bulk("quicklist")));
    }

    #[test]
    fn what_a_stream_says_of_time_is_left_out() {
        let consumer = |idle: i64, pending: i64| {
            Reply::Array(vec![bulk("pending"), Reply::Integer(pending), bulk("idle"), Reply::Integer(idle)])
        };
        assert!(Same::Clocks.holds(&consumer(3, 1), &consumer(9, 1)));
        assert!(!Same::Clocks.holds(&consumer(3, 1), &consumer(3, 2)));
        let pending = |idle: i64, count: i64| {
            let row = vec![bulk("1-1"), bulk("alice"), Reply::Integer(idle), Reply::Integer(count)];
            Reply::Array(vec![Reply::Array(row)])
        };
        assert!(Same::Pending.holds(&pending(3, 1), &pending(9, 1)));
        assert!(!Same::Pending.holds(&pending(3, 1), &pending(3, 2)));
    }
}
