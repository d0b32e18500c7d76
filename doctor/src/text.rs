// SPDX-License-Identifier: GPL-2.0-only
//! Small readers and writers of text.

use std::collections::BTreeSet;

/// What comes from a host's files does no harm to a terminal, and fills none.
pub fn plain(line: &str) -> String {
    line.chars().take(300).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `1 VM`, `2 VMs`; thousands have a comma.
pub fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", commas(number), if number == 1 { "" } else { "s" })
}

pub fn commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `0-3,8` as the kernel writes sets of CPUs. `None`: it is none, or names a CPU that no kernel
/// has room for.
pub fn cpus(list: &str) -> Option<BTreeSet<u32>> {
    const MOST: u32 = 65_536;
    let mut set = BTreeSet::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if last >= MOST || first > last {
            return None;
        }
        set.extend(first..=last);
    }
    Some(set)
}

/// A set of CPUs as the kernel writes it.
pub fn ranges(cpus: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

/// `5`, `5 and 6`, `5, 6 and 7`.
pub fn and(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The word in brackets, as in `always [madvise] never`; else all of it.
pub fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_cpus_are_read_and_written() {
        for list in ["0", "0-3,8", "1,3,5-7", ""] {
            assert_eq!(cpus(list).map(|set| ranges(&set)).as_deref(), Some(list));
        }
        for wrong in ["x", "3-1", "-1", "0-4294967295", "1-", "99999999999999999999"] {
            assert_eq!(cpus(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn words_and_numbers_are_put_as_people_do() {
        assert_eq!(
            (count(1, "VM"), count(1_234_567, "VM")),
            ("1 VM".into(), "1,234,567 VMs".into())
        );
        let words = ["5", "6", "7"].map(str::to_owned);
        assert_eq!((and(&words[..1]), and(&words)), ("5".into(), "5, 6 and 7".into()));
        assert_eq!((chosen("always [madvise] never"), chosen(" 1\n")), ("madvise", "1"));
    }
}
