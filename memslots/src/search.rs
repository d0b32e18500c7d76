// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hint::select_unpredictable;

/// Where a caller found its last frame. Each caller keeps its own (KVM: one in each vCPU), so
/// that no reader writes what another reads. One that is out of date costs a search, no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint(pub(crate) usize);

/// Up to here, comparing with all numbers is the fastest.
const FEW: usize = 4;

/// Finds the last of ascending numbers that is not above a given one.
///
/// An index by leading bits tells where in the numbers to begin; from there a binary search takes
/// always the same few steps, each a conditional move: a branch that goes either way half of the
/// time costs more than all else. Numbers that are spread evenly need one or two steps; the worst
/// case is a binary search of all.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    len: usize,
    /// Those behind the first one, if there are few; filled up with the largest there is.
    few: [u64; FEW - 1],
    /// The smallest number.
    first: u64,
    /// What is below this many bits of a number's distance from the first does not matter to the
    /// index.
    shift: u32,
    /// For each range of `1 << shift` numbers, the place of the last one that is not above its
    /// beginning.
    index: Box<[u32]>,
    /// Of the binary search: `1 << steps` is more than there are numbers in any range.
    steps: u32,
    /// Filled up with the largest there is, so that a search may look behind the end.
    numbers: Box<[u64]>,
}

impl Search {
    /// Of numbers that ascend.
    pub(crate) fn of(numbers: impl Iterator<Item = u64>) -> Self {
        let mut numbers: Vec<u64> = numbers.collect();
        let len = numbers.len();
        let first = numbers.first().copied().unwrap_or(0);
        let mut few = [u64::MAX; FEW - 1];
        let mut best = Index { shift: 0, places: Box::new([0]), steps: 0 };
        if len <= FEW {
            few.iter_mut().zip(numbers.iter().skip(1)).for_each(|(few, number)| *few = *number);
        } else {
            // Up to eight ranges for each number, the fewest steps, then the fewest ranges.
            let span = numbers[len - 1] - first;
            let finest = (span / (4 * len as u64)).checked_ilog2().map_or(0, |bits| bits + 1);
            let indexes = (0..4).map(|coarser| Index::of(&numbers, (finest + coarser).min(63)));
            best = indexes.rev().min_by_key(|index| index.steps).unwrap_or(best);
        }
        numbers.resize(len + (1 << best.steps), u64::MAX);
        Search {
            len,
            few,
            first,
            shift: best.shift,
            index: best.places,
            steps: best.steps,
            numbers: numbers.into(),
        }
    }

    /// The place of the last number that is not above `x`; 0 if all are, or if there are none.
    /// `x` is not the largest there is.
    ///
    /// Why it is right: the place sought, if it exists, is always less than `1 << left` from `at`
    /// on, where `left` steps are left. So it is at first, as the index was made. In a step, if
    /// the number in the middle is not above `x`, neither are those before it; else all from there
    /// on are above.
    #[inline]
    pub(crate) fn last_at_or_below(&self, x: u64) -> usize {
        if self.len <= FEW {
            return self.few.iter().map(|number| usize::from(*number <= x)).sum();
        }
        let range = (x.saturating_sub(self.first) >> self.shift) as usize;
        let mut at = self.index[range.min(self.index.len() - 1)] as usize;
        for left in (0..self.steps).rev() {
            let middle = at + (1 << left);
            at = select_unpredictable(self.numbers[middle] <= x, middle, at);
        }
        at
    }
}

struct Index {
    shift: u32,
    places: Box<[u32]>,
    steps: u32,
}

impl Index {
    /// `numbers` is not empty.
    fn of(numbers: &[u64], shift: u32) -> Self {
        let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
        let ranges = ((last - first) >> shift) + 1;
        let (mut place, mut most) = (0, 0);
        let mut places = Vec::with_capacity(ranges as usize);
        for range in 0..ranges {
            let before = place;
            while numbers.get(place + 1).is_some_and(|next| *next <= first + (range << shift)) {
                place += 1;
            }
            places.push(place as u32);
            most = most.max(place - before);
        }
        // Those in the last range.
        most = most.max(numbers.len() - 1 - place);
        Index { shift, places: places.into(), steps: usize::BITS - most.leading_zeros() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(numbers: &[u64]) {
        let search = Search::of(numbers.iter().copied());
        let ends = numbers.iter().flat_map(|n| [n.saturating_sub(1), *n, n.saturating_add(1)]);
        for x in ends.chain([0, 1 << 52, u64::MAX - 1]).filter(|x| *x != u64::MAX) {
            let naive = numbers.partition_point(|number| *number <= x).saturating_sub(1);
            assert_eq!(search.last_at_or_below(x), naive, "{x} in {numbers:x?}");
        }
    }

    /// Evenly spread, in heaps far from each other, ever sparser, all at the end: the index suits
    /// some of them badly.
    #[test]
    fn search_agrees_with_the_obvious() {
        // Miri takes a thousand times as long.
        let few: u64 = if cfg!(miri) { 20 } else { 100 };
        for len in (0..few).chain([5 * few, 40 * few].into_iter().filter(|_| !cfg!(miri))) {
            check(&(0..len).collect::<Vec<_>>());
            check(&(0..len).map(|i| 3 + 5 * i).collect::<Vec<_>>());
            check(&(0..len).map(|i| (i / 7) << 40 | i).collect::<Vec<_>>());
            check(&(0..len).map(|i| u64::MAX - len + i).collect::<Vec<_>>());
            check(&(0..len).map(|i| i * i * i).collect::<Vec<_>>());
            check(&(0..len.min(60)).map(|i| 1 << i).collect::<Vec<_>>());
        }
        check(&[0, 1, 2, 3, 4, 5, u64::MAX - 1, u64::MAX]);
    }

    #[test]
    fn evenly_spread_numbers_need_one_step() {
        let search = Search::of((0..1000).map(|i| 0x100 + i * 0x40));
        assert_eq!(search.steps, 1);
        assert!(search.index.len() <= 8 * 1000 + 1);
    }
}
