//! Numbers as they are written in tables.

use std::cmp::Ordering;

/// A finite decimal number. Whole ones are exact up to 38 digits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Number {
    /// Its value, or the float next to it.
    pub(crate) float: f64,
    /// The whole number, when it is written as one.
    pub(crate) whole: Option<i128>,
}

impl Number {
    /// Reads a number such as `-12`, `0.5` or `1e9`, with white space around it. No grouping, no `NaN`, no hex.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let text = text.trim_ascii();
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        // Most cells that are no numbers end here.
        if !digits.bytes().next().is_some_and(|byte| byte.is_ascii_digit() || byte == b'.') {
            return None;
        }
        if digits.bytes().all(|byte| byte.is_ascii_digit())
            && let Ok(whole) = text.parse::<i128>()
        {
            return Some(Self { float: whole as f64, whole: Some(whole) });
        }
        // Now `inf` and `nan` cannot come, since they start with letters.
        let float: f64 = text.parse().ok().filter(|float: &f64| float.is_finite())?;
        // There is no negative zero in a table.
        Some(Self { float: float + 0.0, whole: None })
    }

    /// What tells apart whole numbers that have the same float next to them.
    fn exact(self) -> i128 {
        self.whole.unwrap_or(self.float as i128)
    }

    /// Bytes that sort as numbers do.
    pub(crate) fn ordered(self) -> [u8; 24] {
        let bits = self.float.to_bits();
        // The order of floats is that of their bits, once the sign is dealt with.
        let float = if self.float.is_sign_negative() { !bits } else { bits | (1 << 63) };
        let exact = self.exact().cast_unsigned() ^ (1 << 127);
        let mut bytes = [0; 24];
        let (head, tail) = bytes.split_at_mut(8);
        head.copy_from_slice(&float.to_be_bytes());
        tail.copy_from_slice(&exact.to_be_bytes());
        bytes
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.ordered().cmp(&other.ordered()))
    }
}

/// A sum that is exact while all of it is whole, and otherwise off by little more than its last rounding (Neumaier's).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sum {
    pub(crate) whole: i128,
    pub(crate) float: f64,
    pub(crate) rest: f64,
    /// How many numbers there were.
    pub(crate) count: u64,
    /// Whether some were not whole, so that `float` counts.
    pub(crate) broken: bool,
}

impl Sum {
    pub(crate) fn add(&mut self, number: Number) {
        self.count += 1;
        match number.whole.and_then(|whole| self.whole.checked_add(whole)) {
            Some(sum) => self.whole = sum,
            None => {
                self.broken = true;
                self.add_float(number.float);
            }
        }
    }

    fn add_float(&mut self, float: f64) {
        let sum = self.float + float;
        let (large, small) = if self.float.abs() >= float.abs() { (self.float, float) } else { (float, self.float) };
        self.rest += (large - sum) + small;
        self.float = sum;
    }

    /// Adds all that another sum has.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.broken |= other.broken;
        match self.whole.checked_add(other.whole) {
            Some(sum) => self.whole = sum,
            None => {
                self.broken = true;
                self.add_float(other.whole as f64);
            }
        }
        self.add_float(other.float);
        self.add_float(other.rest);
    }

    fn total(&self) -> f64 {
        let mut all = *self;
        all.add_float(self.whole as f64);
        all.float + all.rest
    }

    /// The sum as text; empty when there were no numbers.
    pub(crate) fn shown(&self) -> String {
        match (self.count, self.broken) {
            (0, _) => String::new(),
            (_, false) => self.whole.to_string(),
            (_, true) => self.total().to_string(),
        }
    }

    /// The mean as text; empty when there were no numbers.
    pub(crate) fn mean(&self) -> String {
        if self.count == 0 { String::new() } else { (self.total() / self.count as f64).to_string() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_a_number() {
        for (text, float) in [("0", 0.0), (" 12 ", 12.0), ("-3.5", -3.5), ("+.5", 0.5), ("1.", 1.0), ("2E-2", 0.02)] {
            assert_eq!(Number::read(text).map(|number| number.float), Some(float), "{text:?}");
        }
        for text in ["", " ", "-", ".", "e5", "0x10", "1,000", "1 2", "inf", "-NaN", "1e999", "12kg", "--1", "١"] {
            assert_eq!(Number::read(text), None, "{text:?}");
        }
    }

    #[test]
    fn whole_numbers_are_summed_exactly() {
        let mut sum = Sum::default();
        for text in ["9007199254740993", "1", "9007199254740993"] {
            sum.add(Number::read(text).unwrap());
        }
        assert_eq!(sum.shown(), "18014398509481987");
    }

    #[test]
    fn a_sum_too_large_to_be_exact_is_still_a_sum() {
        let mut sum = Sum::default();
        let largest = i128::MAX.to_string();
        sum.add(Number::read(&largest).unwrap());
        sum.add(Number::read(&largest).unwrap());
        assert_eq!(sum.shown().parse::<f64>().unwrap(), i128::MAX as f64 * 2.0);
    }

    #[test]
    fn small_fractions_do_not_drift() {
        let mut sum = Sum::default();
        (0..10).for_each(|_| sum.add(Number::read("0.1").unwrap()));
        assert_eq!((sum.shown().as_str(), sum.mean().as_str()), ("1", "0.1"));
        assert_eq!((Sum::default().shown().as_str(), Sum::default().mean().as_str()), ("", ""));
    }

    proptest! {
        #[test]
        fn parts_of_a_sum_are_the_sum(numbers in prop::collection::vec(-1_000_000i64..1_000_000, 0..40), at in 0usize..40) {
            let add = |sum: &mut Sum, number: &i64| sum.add(Number::read(&number.to_string()).unwrap());
            let (first, second) = numbers.split_at(at.min(numbers.len()));
            let (mut whole, mut left, mut right) = (Sum::default(), Sum::default(), Sum::default());
            numbers.iter().for_each(|number| add(&mut whole, number));
            first.iter().for_each(|number| add(&mut left, number));
            second.iter().for_each(|number| add(&mut right, number));
            left.merge(&right);
            prop_assert_eq!(left.shown(), whole.shown());
        }
    }
}
