//! The longest common subsequence of two strings.

/// A substring that two strings share, as inclusive positions in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// First and last position in the first string.
    pub(super) in_a: (usize, usize),
    /// First and last position in the second string.
    pub(super) in_b: (usize, usize),
}

impl Match {
    /// Returns its length in bytes.
    pub(in crate::command) fn len(self) -> usize {
        self.in_a.1 - self.in_a.0 + 1
    }
}

/// Returns the bytes that [`Lcs::new`] allocates for these lengths, or `None` if they overflow.
pub(super) fn table_bytes(a_len: usize, b_len: usize) -> Option<usize> {
    a_len.checked_add(1)?.checked_mul(b_len.checked_add(1)?)?.checked_mul(size_of::<u32>())
}

/// The lengths of the longest common subsequences of all pairs of prefixes of two strings.
///
/// If several subsequences are longest, the walk from the ends chooses as Redis does. It takes equal bytes,
/// and otherwise shortens the first string only if that is strictly better.
pub(super) struct Lcs<'a> {
    a: &'a [u8],
    b: &'a [u8],
    /// One row for each prefix of `a`, the empty one first.
    lengths: Vec<u32>,
}

impl<'a> Lcs<'a> {
    /// Compares two strings, in time proportional to the product of their lengths.
    pub(super) fn new(a: &'a [u8], b: &'a [u8]) -> Self {
        let width = b.len() + 1;
        let mut lengths = vec![0; (a.len() + 1) * width];
        for (i, from_a) in a.iter().enumerate() {
            let (above, row) = lengths[i * width..(i + 2) * width].split_at_mut(width);
            for (j, from_b) in b.iter().enumerate() {
                row[j + 1] = if from_a == from_b { above[j] + 1 } else { above[j + 1].max(row[j]) };
            }
        }
        Lcs { a, b, lengths }
    }

    /// Returns the length of the subsequence.
    pub(in crate::command) fn len(&self) -> usize {
        self.length_of(self.a.len(), self.b.len())
    }

    /// Returns the subsequence.
    pub(in crate::command) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        for found in self.matches() {
            bytes.extend(self.a[found.in_a.0..=found.in_a.1].iter().rev());
        }
        bytes.reverse();
        bytes
    }

    /// Returns the substrings that form the subsequence, the last one first.
    pub(in crate::command) fn matches(&self) -> impl Iterator<Item = Match> {
        let (mut i, mut j) = (self.a.len(), self.b.len());
        std::iter::from_fn(move || {
            while i > 0 && j > 0 && self.a[i - 1] != self.b[j - 1] {
                if self.length_of(i - 1, j) > self.length_of(i, j - 1) {
                    i -= 1;
                } else {
                    j -= 1;
                }
            }
            let (end_i, end_j) = (i, j);
            while i > 0 && j > 0 && self.a[i - 1] == self.b[j - 1] {
                i -= 1;
                j -= 1;
            }
            (i < end_i).then(|| Match { in_a: (i, end_i - 1), in_b: (j, end_j - 1) })
        })
    }

    fn length_of(&self, a_len: usize, b_len: usize) -> usize {
        self.lengths[a_len * (self.b.len() + 1) + b_len] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_manual() {
        let lcs = Lcs::new(b"ohmytext", b"mynewtext");
        assert_eq!(lcs.len(), 6);
        assert_eq!(lcs.bytes(), b"mytext");
        let matches: Vec<_> = lcs.matches().collect();
        assert_eq!(matches, [Match { in_a: (4, 7), in_b: (5, 8) }, Match { in_a: (2, 3), in_b: (0, 1) }]);
        assert_eq!(matches[0].len(), 4);
    }

    #[test]
    fn empty_and_disjoint_strings_share_nothing() {
        for (a, b) in [("", ""), ("", "abc"), ("abc", ""), ("abc", "xyz")] {
            let lcs = Lcs::new(a.as_bytes(), b.as_bytes());
            assert_eq!((lcs.len(), lcs.bytes(), lcs.matches().count()), (0, vec![], 0));
        }
    }

    #[test]
    fn a_subsequence_is_one_of_both_strings_and_none_is_longer() {
        let is_subsequence = |of: &[u8], bytes: &[u8]| {
            let mut of = of.iter();
            bytes.iter().all(|byte| of.any(|other| other == byte))
        };
        // By recursion over the last bytes, without a table.
        fn longest(a: &[u8], b: &[u8]) -> usize {
            match (a, b) {
                ([], _) | (_, []) => 0,
                ([a @ .., x], [b @ .., y]) if x == y => longest(a, b) + 1,
                ([a_rest @ .., _], [b_rest @ .., _]) => longest(a_rest, b).max(longest(a, b_rest)),
            }
        }
        let mut random = 0x2545_f491_4f6c_dd1du64;
        for _ in 0..500 {
            let mut text = || {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let len = random >> 61;
                (0..len).map(|i| b'a' + (random >> (20 + 2 * i) & 3) as u8).collect::<Vec<_>>()
            };
            let (a, b) = (text(), text());
            let lcs = Lcs::new(&a, &b);
            let bytes = lcs.bytes();
            assert_eq!(bytes.len(), lcs.len());
            assert_eq!(lcs.len(), longest(&a, &b), "{a:?} {b:?}");
            assert!(is_subsequence(&a, &bytes) && is_subsequence(&b, &bytes), "{a:?} {b:?}");
            assert_eq!(lcs.matches().map(Match::len).sum::<usize>(), lcs.len());
        }
    }

    #[test]
    fn tables_that_cannot_be_addressed_have_no_size() {
        assert_eq!(table_bytes(8, 9), Some(9 * 10 * 4));
        assert_eq!(table_bytes(usize::MAX, 1), None);
        assert_eq!(table_bytes(1 << 40, 1 << 40), None);
    }
}
