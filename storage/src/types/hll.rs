//! HyperLogLogs, stored as Redis stores them: strings that a client may GET, SET and move between servers.
//!
//! An element's hash chooses one of 2¹⁴ registers by its low 14 bits. The rank of the rest is the number of
//! its trailing zeros, plus one. A register holds the highest rank that it has met.
//!
//! The number of distinct elements is estimated from the number of registers of each rank. The method is by
//! Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog sketches", arXiv:1702.01284, whose
//! sigma and tau are used.
//!
//! ```text
//! "HYLL" | encoding 1 | unused 3 | cardinality 8, little endian, highest bit: out of date | registers
//! ```
//!
//! *Dense* registers have 6 bits each, the first in the lowest bits of the first byte: 12,288 bytes. *Sparse*
//! ones are runs of equal registers:
//!
//! | bits | is |
//! |---|---|
//! | `00llllll` | `l + 1` registers of rank 0 |
//! | `01llllll llllllll` | `l + 1` registers of rank 0, the higher bits of `l` first |
//! | `1rrrrrll` | `l + 1` registers of rank `r + 1` |
//!
//! A sparse one becomes dense when it would grow beyond `hll-sparse-max-bytes`, or when a rank is above 32.
//! The division into runs after a change is part of the representation, as replicas and tests compare bytes:
//! see `raise_sparse`.
//!
//! Any bytes may claim to be a HyperLogLog. [`Hll::new`] checks the header, and code that walks the runs
//! checks whether they make 2¹⁴ registers.

use smallvec::SmallVec;

/// The number of registers.
pub const N_REGISTERS: usize = 1 << INDEX_BITS;

/// The length of the dense representation.
pub const DENSE_BYTES: usize = HEADER_BYTES + N_REGISTERS * REGISTER_BITS / 8;

const INDEX_BITS: u32 = 14;
const REGISTER_BITS: usize = 6;
/// The highest rank that a hash can have.
const RANK_MAX: usize = 64 - INDEX_BITS as usize + 1;
/// The values that 6 bits can have: a string that a client made may hold ranks that no hash has.
const N_RANKS: usize = 1 << REGISTER_BITS;
const HEADER_BYTES: usize = 16;
const MAGIC: &[u8; 4] = b"HYLL";
const ENCODING_AT: usize = 4;
const CARDINALITY_AT: usize = 8;
/// The position of the bit that says that the cardinality is out of date.
const STALE_AT: usize = 15;
const STALE: u8 = 0x80;
const DENSE: u8 = 0;
const SPARSE: u8 = 1;

const ZEROS_MAX: usize = 64;
const SPARSE_RANK_MAX: u8 = 32;
const RANKED_MAX: usize = 4;

/// A sparse HyperLogLog of no elements.
const EMPTY: [u8; HEADER_BYTES + 2] = *b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\0\x7f\xff";

/// The error for runs of a sparse HyperLogLog that do not make 2¹⁴ registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// The storage of the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HllEncoding {
    /// 6 bits each.
    Dense,
    /// In runs.
    Sparse,
}

/// A stored HyperLogLog; only its header and its length are checked.
#[derive(Clone, Copy, Debug)]
pub struct Hll<'a> {
    bytes: &'a [u8],
    encoding: HllEncoding,
}

impl<'a> Hll<'a> {
    /// Takes a string for a HyperLogLog, if it has the header of one and, if dense, its length.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() < HEADER_BYTES || !bytes.starts_with(MAGIC) {
            return None;
        }
        let encoding = match bytes[ENCODING_AT] {
            DENSE if bytes.len() == DENSE_BYTES => HllEncoding::Dense,
            SPARSE => HllEncoding::Sparse,
            _ => return None,
        };
        Some(Hll { bytes, encoding })
    }

    /// The storage of its registers.
    pub fn encoding(self) -> HllEncoding {
        self.encoding
    }

    /// The cardinality, if it has been stored since the last change.
    pub fn stored_cardinality(self) -> Option<u64> {
        if self.bytes[STALE_AT] & STALE != 0 {
            return None;
        }
        let (words, _) = self.bytes[CARDINALITY_AT..].as_chunks::<8>();
        Some(u64::from_le_bytes(words[0]))
    }

    /// Estimates the number of distinct elements.
    ///
    /// # Errors
    /// If the registers cannot be read.
    pub fn cardinality(self) -> Result<u64, Corrupt> {
        let mut histogram = [0; N_RANKS];
        match self.encoding {
            HllEncoding::Dense => {
                for_each_dense(self.registers_part(), |_, rank| histogram[usize::from(rank)] += 1);
            }
            HllEncoding::Sparse => {
                self.for_each_run(|_, run| histogram[usize::from(run.rank)] += run.len as u32)?
            }
        }
        Ok(estimate(&histogram))
    }

    /// The runs of a sparse one, up to its end or to invalid bytes.
    pub fn runs(self) -> impl Iterator<Item = Run> + 'a {
        let mut rest = if self.encoding == HllEncoding::Sparse { self.registers_part() } else { &[] };
        std::iter::from_fn(move || {
            let run = Run::read(rest)?;
            rest = &rest[run.n_bytes..];
            Some(run)
        })
    }

    /// Computes the change that adds elements.
    ///
    /// # Errors
    /// If a register cannot be found.
    pub fn with_elements<'e>(
        self,
        elements: impl Iterator<Item = &'e [u8]>,
        sparse_max_bytes: usize,
    ) -> Result<HllChange, Corrupt> {
        let seen = elements.map(Observation::of);
        if self.encoding == HllEncoding::Dense {
            let registers = self.registers_part();
            let is_news = |seen: &Observation| dense_rank(registers, seen.index) < seen.rank;
            let news: SmallVec<_> = seen.filter(is_news).collect();
            return Ok(if news.is_empty() { HllChange::None } else { HllChange::Raise(Raise(news)) });
        }
        let mut bytes = self.bytes.to_vec();
        let mut is_changed = false;
        for seen in seen {
            is_changed |= raise(&mut bytes, seen, sparse_max_bytes)?;
        }
        Ok(if is_changed { HllChange::Rewrite(bytes) } else { HllChange::None })
    }

    /// Its dense representation.
    ///
    /// # Errors
    /// If the registers cannot be read.
    pub fn to_dense(self) -> Result<Vec<u8>, Corrupt> {
        let mut registers = Registers::default();
        registers.merge(self)?;
        Ok(registers.to_dense(self.header()))
    }

    fn header(self) -> &'a [u8; HEADER_BYTES] {
        self.bytes.first_chunk().expect("`new` has looked at the length")
    }

    fn registers_part(self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// Calls `each` with the first register of every run, and the run.
    fn for_each_run(self, mut each: impl FnMut(usize, Run)) -> Result<(), Corrupt> {
        let (mut n_registers, mut n_bytes) = (0, 0);
        for run in self.runs() {
            if run.len > N_REGISTERS - n_registers {
                return Err(Corrupt);
            }
            each(n_registers, run);
            n_registers += run.len;
            n_bytes += run.n_bytes;
        }
        let is_whole = n_registers == N_REGISTERS && n_bytes == self.registers_part().len();
        if is_whole { Ok(()) } else { Err(Corrupt) }
    }
}

/// The change of a stored HyperLogLog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HllChange {
    /// Nothing.
    None,
    /// Registers are raised where they are.
    Raise(Raise),
    /// It is another string.
    Rewrite(Vec<u8>),
}

/// Registers of a dense HyperLogLog that must be raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raise(SmallVec<[Observation; 8]>);

impl Raise {
    /// Raises the registers.
    ///
    /// # Panics
    /// If the bytes are not those that the change was made for.
    pub fn apply(&self, bytes: &mut [u8]) {
        for seen in &self.0 {
            raise_dense(&mut bytes[HEADER_BYTES..], *seen);
        }
        bytes[STALE_AT] |= STALE;
    }
}

/// Stores the cardinality of a HyperLogLog in its header.
///
/// # Panics
/// If the bytes are too short to have one.
pub fn store_cardinality(bytes: &mut [u8], cardinality: u64) {
    bytes[CARDINALITY_AT..HEADER_BYTES].copy_from_slice(&cardinality.to_le_bytes());
}

/// A HyperLogLog of these elements.
pub fn of<'e>(elements: impl Iterator<Item = &'e [u8]>, sparse_max_bytes: usize) -> Vec<u8> {
    let mut bytes = EMPTY.to_vec();
    // As in Redis, the cardinality of a new one counts as out of date even if it has no elements.
    bytes[STALE_AT] |= STALE;
    for seen in elements.map(Observation::of) {
        raise(&mut bytes, seen, sparse_max_bytes).expect("every register is in a run");
    }
    bytes
}

/// The observation of an element: a register and the least rank that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Observation {
    index: usize,
    rank: u8,
}

impl Observation {
    fn of(element: &[u8]) -> Self {
        let hash = murmur_hash_64a(element, 0xadc8_3b19);
        let (index, rest) = (hash as usize % N_REGISTERS, hash >> INDEX_BITS);
        // The bit after the last one bounds the rank.
        let rank = (rest | 1 << (64 - INDEX_BITS)).trailing_zeros() + 1;
        Observation { index, rank: rank as u8 }
    }
}

/// MurmurHash64A, by Austin Appleby, in the public domain. Bytes are taken as little endian on all machines.
fn murmur_hash_64a(bytes: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(M);
    for word in words {
        let word = u64::from_le_bytes(*word).wrapping_mul(M);
        hash = (hash ^ (word ^ word >> R).wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let rest = rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        hash = (hash ^ rest).wrapping_mul(M);
    }
    hash = (hash ^ hash >> R).wrapping_mul(M);
    hash ^ hash >> R
}

/// Registers as bytes, to merge HyperLogLogs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers(Box<[u8; N_REGISTERS]>);

impl Default for Registers {
    fn default() -> Self {
        Registers(Box::new([0; N_REGISTERS]))
    }
}

impl Registers {
    /// Raises each register to that of another HyperLogLog.
    ///
    /// # Errors
    /// If the registers cannot be read. Some may have been raised.
    pub fn merge(&mut self, hll: Hll<'_>) -> Result<(), Corrupt> {
        let registers = &mut self.0;
        match hll.encoding {
            HllEncoding::Dense => {
                for_each_dense(hll.registers_part(), |at, rank| registers[at] = registers[at].max(rank));
                Ok(())
            }
            HllEncoding::Sparse => hll.for_each_run(|first, run| {
                if run.rank > 0 {
                    let covered = &mut registers[first..first + run.len];
                    covered.iter_mut().for_each(|register| *register = (*register).max(run.rank));
                }
            }),
        }
    }

    /// The ranks, in the order of the registers.
    pub fn ranks(&self) -> &[u8] {
        &self.0[..]
    }

    /// Estimates the number of distinct elements.
    pub fn cardinality(&self) -> u64 {
        let mut histogram = [0; N_RANKS];
        self.0.iter().for_each(|rank| histogram[usize::from(*rank)] += 1);
        estimate(&histogram)
    }

    /// Raises a HyperLogLog to these registers, which are nowhere below its own. In place of none, an empty
    /// one is raised. It stays sparse, if it is and may be.
    ///
    /// # Errors
    /// If a register cannot be found.
    pub fn merged_into(
        &self,
        hll: Option<Hll<'_>>,
        wanted: HllEncoding,
        sparse_max_bytes: usize,
    ) -> Result<Vec<u8>, Corrupt> {
        let hll = hll.unwrap_or(Hll { bytes: &EMPTY, encoding: HllEncoding::Sparse });
        let may_be_sparse = wanted == HllEncoding::Sparse && hll.encoding == HllEncoding::Sparse;
        let sparse = if may_be_sparse { self.merged_into_sparse(hll.bytes, sparse_max_bytes)? } else { None };
        let mut bytes = sparse.unwrap_or_else(|| self.to_dense(hll.header()));
        bytes[STALE_AT] |= STALE;
        Ok(bytes)
    }

    /// Raises the registers of a sparse HyperLogLog one by one. Returns `None` if the result must be dense.
    fn merged_into_sparse(&self, old: &[u8], sparse_max_bytes: usize) -> Result<Option<Vec<u8>>, Corrupt> {
        let mut bytes = old.to_vec();
        let mut walk = RunSearch::START;
        for (index, &rank) in self.0.iter().enumerate().filter(|(_, rank)| **rank > 0) {
            let seen = Observation { index, rank };
            if raise_sparse(&mut bytes, &mut walk, seen, sparse_max_bytes)? == Raised::TooLarge {
                return Ok(None);
            }
        }
        Ok(Some(bytes))
    }

    /// Makes a dense representation with this header, except its encoding.
    fn to_dense(&self, header: &[u8; HEADER_BYTES]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(DENSE_BYTES);
        bytes.extend_from_slice(header);
        bytes[ENCODING_AT] = DENSE;
        let (groups, _) = self.0.as_chunks::<4>();
        for group in groups {
            let word = group.iter().rev().fold(0, |word, &rank| word << REGISTER_BITS | u32::from(rank));
            bytes.extend_from_slice(&word.to_le_bytes()[..3]);
        }
        bytes
    }
}

/// Calls `each` with every register's index and rank: four registers are three bytes.
#[inline(always)]
fn for_each_dense(registers: &[u8], mut each: impl FnMut(usize, u8)) {
    let (groups, _) = registers.as_chunks::<3>();
    for (group, &[low, middle, high]) in groups.iter().enumerate() {
        let word = u32::from_le_bytes([low, middle, high, 0]);
        for n in 0..4 {
            each(group * 4 + n, (word >> (n * REGISTER_BITS)) as u8 % N_RANKS as u8);
        }
    }
}

/// The place of a dense register's bits: the first byte, and the bit there.
fn dense_place(index: usize) -> (usize, usize) {
    let bit = index * REGISTER_BITS;
    (bit / 8, bit % 8)
}

/// The two bytes that hold a dense register. Only the last register has no second byte, and does not need it.
fn dense_pair(registers: &[u8], byte: usize) -> u16 {
    u16::from_le_bytes([registers[byte], registers.get(byte + 1).copied().unwrap_or(0)])
}

fn dense_rank(registers: &[u8], index: usize) -> u8 {
    let (byte, bit) = dense_place(index);
    (dense_pair(registers, byte) >> bit) as u8 % N_RANKS as u8
}

/// Raises a dense register; returns whether it was lower.
fn raise_dense(registers: &mut [u8], seen: Observation) -> bool {
    if dense_rank(registers, seen.index) >= seen.rank {
        return false;
    }
    let (byte, bit) = dense_place(seen.index);
    let others = dense_pair(registers, byte) & !((N_RANKS as u16 - 1) << bit);
    let [low, high] = (others | u16::from(seen.rank) << bit).to_le_bytes();
    registers[byte] = low;
    if let Some(byte) = registers.get_mut(byte + 1) {
        *byte = high;
    }
    true
}

/// Raises a register of a HyperLogLog that is sparse or has just become dense; returns whether it was lower.
fn raise(bytes: &mut Vec<u8>, seen: Observation, sparse_max_bytes: usize) -> Result<bool, Corrupt> {
    let hll = Hll::new(bytes).ok_or(Corrupt)?;
    if hll.encoding == HllEncoding::Sparse {
        let mut walk = RunSearch::START;
        match raise_sparse(bytes, &mut walk, seen, sparse_max_bytes)? {
            Raised::No => return Ok(false),
            Raised::Yes => {
                bytes[STALE_AT] |= STALE;
                return Ok(true);
            }
            Raised::TooLarge => *bytes = Hll::new(bytes).ok_or(Corrupt)?.to_dense()?,
        }
    }
    let raised = raise_dense(&mut bytes[HEADER_BYTES..], seen);
    if raised {
        bytes[STALE_AT] |= STALE;
    }
    Ok(raised)
}

/// Registers of the same rank, stored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The rank of the registers.
    pub rank: u8,
    /// The number of registers.
    pub len: usize,
    /// The number of bytes that the run takes.
    pub n_bytes: usize,
}

impl Run {
    /// Reads the run that bytes begin with.
    fn read(bytes: &[u8]) -> Option<Run> {
        let &first = bytes.first()?;
        Some(match first >> 6 {
            0 => Run { rank: 0, len: usize::from(first) + 1, n_bytes: 1 },
            1 => {
                let len = usize::from(first & 0x3f) << 8 | usize::from(*bytes.get(1)?);
                Run { rank: 0, len: len + 1, n_bytes: 2 }
            }
            _ => Run { rank: (first >> 2 & 0x1f) + 1, len: usize::from(first & 3) + 1, n_bytes: 1 },
        })
    }

    /// Appends registers, if any, as one run.
    fn write(rank: u8, len: usize, out: &mut SmallVec<[u8; 8]>) {
        let below = len.wrapping_sub(1);
        match (rank, len) {
            (_, 0) => {}
            (0, ..=ZEROS_MAX) => out.push(below as u8),
            (0, _) => out.extend_from_slice(&[0x40 | (below >> 8) as u8, below as u8]),
            _ => out.push(ranked(rank, len)),
        }
    }
}

/// A run of at most four registers that are not zero.
fn ranked(rank: u8, len: usize) -> u8 {
    0x80 | (rank - 1) << 2 | (len - 1) as u8
}

/// The start of a run: its first byte and its first register.
#[derive(Clone, Copy, Debug)]
struct RunStart {
    byte: usize,
    register: usize,
}

/// The start of a search for a register: from the run at `at` on. The run before it is at `before`, unless it
/// is the first.
#[derive(Clone, Debug)]
struct RunSearch {
    before: Option<RunStart>,
    at: RunStart,
}

impl RunSearch {
    const START: RunSearch = RunSearch { before: None, at: RunStart { byte: HEADER_BYTES, register: 0 } };
}

/// The result of raising a sparse register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Raised {
    /// It was as high already.
    No,
    /// It was lower.
    Yes,
    /// The representation cannot hold it, or would become too long.
    TooLarge,
}

/// Raises a register of a sparse HyperLogLog.
///
/// The result is Redis's to the byte. The run that contains the register is split in up to three. Then
/// neighbours of equal rank are joined in five steps from the run before it on, and a join is a step, too.
///
/// Moves the walk to the start of the search for the next register, if that is a higher one.
fn raise_sparse(
    bytes: &mut Vec<u8>,
    walk: &mut RunSearch,
    seen: Observation,
    max_bytes: usize,
) -> Result<Raised, Corrupt> {
    if seen.rank > SPARSE_RANK_MAX {
        return Ok(Raised::TooLarge);
    }
    let RunSearch { mut before, mut at } = walk.clone();
    let mut before_that = None;
    let mut run = Run::read(&bytes[at.byte..]).ok_or(Corrupt)?;
    while seen.index >= at.register + run.len {
        let next = RunStart { byte: at.byte + run.n_bytes, register: at.register + run.len };
        (before_that, before, at) = (before, Some(at), next);
        run = Run::read(&bytes[at.byte..]).ok_or(Corrupt)?;
    }
    // Joining may take away a run's beginning from the run before this one on, but not that one's own.
    *walk = match before {
        Some(before) if before_that.is_some() || before.register == 0 => {
            RunSearch { before: before_that, at: before }
        }
        _ => RunSearch::START,
    };
    if run.rank >= seen.rank {
        return Ok(Raised::No);
    }
    let mut split = SmallVec::new();
    let n_before = seen.index - at.register;
    Run::write(run.rank, n_before, &mut split);
    Run::write(seen.rank, 1, &mut split);
    Run::write(run.rank, run.len - n_before - 1, &mut split);
    if split.len() > run.n_bytes && bytes.len() + split.len() - run.n_bytes > max_bytes {
        return Ok(Raised::TooLarge);
    }
    bytes.splice(at.byte..at.byte + run.n_bytes, split);
    join(bytes, before.map_or(HEADER_BYTES, |before| before.byte));
    Ok(Raised::Yes)
}

/// Joins neighbours of equal rank, in five steps from a run on.
fn join(bytes: &mut Vec<u8>, mut at: usize) {
    for _ in 0..5 {
        let Some(run) = Run::read(&bytes[at..]) else { return };
        let next = Run::read(&bytes[at + run.n_bytes..]);
        match next {
            Some(next) if run.rank > 0 && next.rank == run.rank && run.len + next.len <= RANKED_MAX => {
                bytes[at] = ranked(run.rank, run.len + next.len);
                bytes.remove(at + 1);
            }
            _ => at += run.n_bytes,
        }
    }
}

/// Estimates the number of distinct elements from the number of registers of each rank.
fn estimate(histogram: &[u32; N_RANKS]) -> u64 {
    /// The limit of the bias correction for many registers: 0.5 / ln 2.
    const ALPHA: f64 = 0.721_347_520_444_481_7;
    let m = N_REGISTERS as f64;
    let mut z = m * tau((m - f64::from(histogram[RANK_MAX])) / m);
    for n in histogram[1..RANK_MAX].iter().rev() {
        z = (z + f64::from(*n)) * 0.5;
    }
    z += m * sigma(f64::from(histogram[0]) / m);
    // Registers that no hash makes can take z to 0; the integer of a reply is the bound then.
    (ALPHA * m * m / z).round() as i64 as u64
}

/// Ertl's sigma: the contribution of registers that are still zero.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// Ertl's tau: the contribution of registers that are full.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

/// A fault that a self-test found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A dense register does not hold the stored rank.
    Register {
        /// The register's index.
        index: usize,
        /// The stored rank.
        stored: u8,
        /// The rank that it holds.
        found: u8,
    },
    /// The two representations of the same elements have different estimates.
    Encodings,
    /// The estimate is too far from the truth.
    Estimate {
        /// The number of elements.
        n_elements: u64,
        /// The error of the estimate.
        error: u64,
    },
}

/// Elements of a self-test. Other clients wait meanwhile, so it must take no more than about a millisecond.
const N_TEST_ELEMENTS: u64 = 10_000;

/// Tests whether registers hold the stored ranks, the representations agree, and estimates are near the
/// truth.
///
/// # Errors
/// The first fault that was found.
pub fn self_test() -> Result<(), Fault> {
    test_registers()?;
    let (mut dense, mut sparse) = (Registers::default().to_dense(&header_of(&EMPTY)), EMPTY.to_vec());
    let mut checkpoint = 1;
    for n in 1..=N_TEST_ELEMENTS {
        let seen = Observation::of(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
        raise_dense(&mut dense[HEADER_BYTES..], seen);
        // Past the first checkpoints it is dense as well.
        raise(&mut sparse, seen, 3000).map_err(|Corrupt| Fault::Encodings)?;
        if n == checkpoint {
            test_estimate(n, &dense, &sparse)?;
            checkpoint *= 10;
        }
    }
    Ok(())
}

fn header_of(bytes: &[u8; EMPTY.len()]) -> [u8; HEADER_BYTES] {
    *bytes.first_chunk().expect("an empty one has a header")
}

/// Stores ranks in all registers, in an order in which every register's neighbours change around it.
fn test_registers() -> Result<(), Fault> {
    let mut registers = vec![0; DENSE_BYTES - HEADER_BYTES];
    let rank_of = |index: usize| (index * 29 % (N_RANKS - 1)) as u8 + 1;
    for parity in [0, 1] {
        for index in (parity..N_REGISTERS).step_by(2) {
            raise_dense(&mut registers, Observation { index, rank: rank_of(index) });
        }
    }
    for index in 0..N_REGISTERS {
        let (stored, found) = (rank_of(index), dense_rank(&registers, index));
        if stored != found {
            return Err(Fault::Register { index, stored, found });
        }
    }
    Ok(())
}

/// Compares the estimates with each other and with the truth: four standard errors are allowed, and two
/// elements.
fn test_estimate(n_elements: u64, dense: &[u8], sparse: &[u8]) -> Result<(), Fault> {
    let cardinality = |bytes| Hll::new(bytes).ok_or(Corrupt).and_then(Hll::cardinality);
    let (Ok(of_dense), Ok(of_sparse)) = (cardinality(dense), cardinality(sparse)) else {
        return Err(Fault::Encodings);
    };
    if of_dense != of_sparse {
        return Err(Fault::Encodings);
    }
    let error = of_dense.abs_diff(n_elements);
    let allowed = 4.0 * 1.04 / (N_REGISTERS as f64).sqrt() * n_elements as f64 + 2.0;
    if error as f64 > allowed { Err(Fault::Estimate { n_elements, error }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
