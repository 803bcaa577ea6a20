//! Exact arithmetic for the extended floats.
//!
//! It has the rounding of 128-bit values, and integers of any size for texts that do not fit into them.

use std::cmp::Ordering;

/// Ten to the nineteenth, the largest power of ten in 64 bits.
pub(super) const TEN_19: u64 = 10_000_000_000_000_000_000;

/// A non-negative value `bits × 2^exponent`, or slightly more if `more` is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unrounded {
    pub(super) bits: u128,
    pub(super) exponent: i64,
    pub(super) more: bool,
}

impl Unrounded {
    /// Rounds half to even to `precision` bits.
    ///
    /// It keeps fewer bits where the exponent would otherwise be less than `least_exponent`. If `more` is
    /// set, `bits` must have more than `precision` bits, because the excess would be lost otherwise.
    pub(super) fn round(self, precision: u32, least_exponent: i64) -> (u64, i64) {
        let n_bits = i64::from(u128::BITS - self.bits.leading_zeros());
        let drop = (n_bits - i64::from(precision)).max(least_exponent - self.exponent).max(0);
        if drop == 0 {
            return (self.bits as u64, self.exponent);
        }
        if drop > n_bits + 1 {
            return (0, least_exponent);
        }
        let drop = drop as u32;
        let kept = self.bits.checked_shr(drop).unwrap_or(0);
        let rest = self.bits ^ kept.checked_shl(drop).unwrap_or(0);
        let rounded = kept + u128::from(rounds_up(kept, rest, drop, self.more));
        let exponent = self.exponent + i64::from(drop);
        if rounded >> precision != 0 {
            return ((rounded >> 1) as u64, exponent + 1);
        }
        (rounded as u64, exponent)
    }
}

/// Whether `kept` rounds up after `rest` was cut from it: half goes to even.
///
/// `rest` has `drop` bits, at least one.
pub(super) fn rounds_up(kept: u128, rest: u128, drop: u32, more: bool) -> bool {
    let half = match 1u128.checked_shl(drop - 1) {
        Some(half) => half,
        None => return false,
    };
    match rest.cmp(&half) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => more || kept & 1 == 1,
    }
}

/// An unsigned integer of any size, in 64-bit limbs.
///
/// The lowest limb is first, and the highest is not zero.
#[derive(Clone, Debug)]
pub(super) struct Wide(Vec<u64>);

impl Wide {
    pub(super) fn new(value: u64) -> Self {
        let mut wide = Wide(vec![value]);
        wide.trim();
        wide
    }

    pub(super) fn power_of_ten(exponent: u32) -> Self {
        let mut power = Wide::new(1);
        power.multiply_by_power_of_ten(exponent);
        power
    }

    pub(super) fn multiply_by_power_of_ten(&mut self, exponent: u32) {
        for _ in 0..exponent / 19 {
            self.multiply_add(TEN_19, 0);
        }
        self.multiply_add(10u64.pow(exponent % 19), 0);
    }

    pub(super) fn multiply_add(&mut self, factor: u64, addend: u64) {
        let mut carry = addend;
        for limb in &mut self.0 {
            let product = u128::from(*limb) * u128::from(factor) + u128::from(carry);
            *limb = product as u64;
            carry = (product >> 64) as u64;
        }
        if carry != 0 {
            self.0.push(carry);
        }
    }

    pub(super) fn shift_left(&mut self, n_bits: u64) {
        let (limbs, bits) = ((n_bits / 64) as usize, (n_bits % 64) as u32);
        if bits != 0 {
            self.multiply_add(1 << bits, 0);
        }
        if limbs != 0 && !self.is_zero() {
            self.0.splice(0..0, std::iter::repeat_n(0, limbs));
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn n_bits(&self) -> u64 {
        match self.0.last() {
            Some(top) => self.0.len() as u64 * 64 - u64::from(top.leading_zeros()),
            None => 0,
        }
    }

    /// The highest 128 bits, and whether any bit below them is set.
    pub(super) fn top(&self) -> Unrounded {
        let n_bits = self.n_bits();
        let drop = n_bits.saturating_sub(128);
        let (limbs, shift) = ((drop / 64) as usize, (drop % 64) as u32);
        let limb = |i: usize| u128::from(self.0.get(limbs + i).copied().unwrap_or(0));
        let low = limb(0) | limb(1) << 64;
        let (bits, cut) = match shift {
            0 => (low, 0),
            _ => (low >> shift | limb(2) << (128 - shift), limb(0) << (128 - shift)),
        };
        let more = cut != 0 || self.0[..limbs.min(self.0.len())].iter().any(|&limb| limb != 0);
        Unrounded { bits, exponent: drop as i64, more }
    }

    /// Divides by `divisor` to 70 bits, of which the first may be zero. Neither number is zero.
    pub(super) fn quotient(mut self, mut divisor: Wide) -> Unrounded {
        const N_BITS: i64 = 70;
        let excess = self.n_bits() as i64 - divisor.n_bits() as i64;
        if excess < 0 {
            self.shift_left(excess.unsigned_abs());
        } else {
            divisor.shift_left(excess.unsigned_abs());
        }
        let mut bits = 0u128;
        for _ in 0..N_BITS {
            bits <<= 1;
            if self.compare(&divisor) != Ordering::Less {
                self.subtract(&divisor);
                bits |= 1;
            }
            self.multiply_add(2, 0);
        }
        Unrounded { bits, exponent: excess - (N_BITS - 1), more: !self.is_zero() }
    }

    /// The decimal digits, without leading zeros; none for zero.
    pub(super) fn into_decimal(mut self) -> String {
        let mut groups = Vec::with_capacity(self.0.len() * 64 / 63 + 1);
        while !self.is_zero() {
            groups.push(self.divide_by_ten_19());
        }
        let mut text = String::with_capacity(groups.len() * 19);
        for (i, group) in groups.iter().rev().enumerate() {
            match i {
                0 => text.push_str(itoa::Buffer::new().format(*group)),
                _ => text.push_str(&format!("{group:019}")),
            }
        }
        text
    }

    fn divide_by_ten_19(&mut self) -> u64 {
        let mut rest = 0u64;
        for limb in self.0.iter_mut().rev() {
            let value = u128::from(rest) << 64 | u128::from(*limb);
            *limb = (value / u128::from(TEN_19)) as u64;
            rest = (value % u128::from(TEN_19)) as u64;
        }
        self.trim();
        rest
    }

    fn compare(&self, other: &Wide) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Subtracts `other`, which is not larger.
    fn subtract(&mut self, other: &Wide) {
        let mut borrow = false;
        for (i, limb) in self.0.iter_mut().enumerate() {
            let subtrahend = other.0.get(i).copied().unwrap_or(0);
            let (difference, under) = limb.overflowing_sub(subtrahend);
            let (difference, under_again) = difference.overflowing_sub(u64::from(borrow));
            *limb = difference;
            borrow = under || under_again;
        }
        debug_assert!(!borrow, "the subtrahend is not larger");
        self.trim();
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}
