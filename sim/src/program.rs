// SPDX-License-Identifier: GPL-2.0-only
//! Programs of guests' tasks, in words: each entry is a step, and behind the last one the program
//! begins again.

use std::fmt;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::guest::Op;
use crate::machine::Ns;

/// Locks, mutexes and futexes are numbered apart, below this; each VM has its own.
const MOST_NUMBERS: u32 = 10_000;

/// What each step takes, and what it does.
pub const STEPS: [(&str, &str, &str); 13] = [
    ("compute", "TIME [±N%] [kernel]", "computes, in user mode or in the guest's kernel"),
    ("lock", "N", "takes spinlock N of the VM"),
    ("unlock", "N", "gives it back"),
    ("mutex", "N", "takes mutex N; who waits spins while its holder runs, else sleeps"),
    ("release", "N", "gives it back"),
    ("call", "", "interrupts all other busy vCPUs of the VM, and waits for them"),
    ("call-one", "", "interrupts one other vCPU, and waits for it"),
    ("barrier", "[pause]", "spins until all tasks of the VM are here; with PAUSE or without"),
    ("post", "N", "wakes a task that waits at futex N, or the next one that comes"),
    ("wait", "N", "sleeps until there is a post for it at futex N"),
    ("sleep", "TIME [±N%]", "sleeps until a timer"),
    ("io", "TIME", "sleeps until a device has done a request"),
    ("done", "", "counts one unit of work"),
];

/// `100us`, `1.5ms`, `2s`, `300ns`.
fn time(text: &str) -> Result<Ns> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let unit = match &text[digits.len()..] {
        "ns" => 1.0,
        // The micro sign, and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => bail!("\"{text}\" is no time; write 300ns, 100us, 1.5ms or 2s"),
    };
    let value: f64 = digits.parse().map_err(|_| anyhow!("\"{text}\" is no time"))?;
    ensure!((0.0..=1e6).contains(&value), "\"{text}\" is no time from 0 to 1,000,000");
    Ok((value * unit) as Ns)
}

/// `±20%`.
fn spread(word: &str) -> Result<f64> {
    let percent = word.strip_prefix('±').and_then(|word| word.strip_suffix('%'));
    let value: f64 = percent
        .and_then(|percent| percent.parse().ok())
        .with_context(|| format!("\"{word}\" is no spread; write ±20%"))?;
    ensure!((0.0..=100.0).contains(&value), "a spread is from 0 to 100 %");
    Ok(value / 100.0)
}

fn number(word: &str) -> Result<u32> {
    let value: u32 = word.parse().map_err(|_| anyhow!("\"{word}\" is no number"))?;
    ensure!(value < MOST_NUMBERS, "numbers go to {}", MOST_NUMBERS - 1);
    Ok(value)
}

/// One step.
///
/// Errors: it is none; with what the step takes.
pub fn step(text: &str) -> Result<Op> {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let words: Vec<&str> = words.collect();
    let known = STEPS.iter().find(|(known, ..)| *known == name);
    let Some((_, takes, _)) = known else {
        let names: Vec<&str> = STEPS.iter().map(|(name, ..)| *name).collect();
        bail!("\"{text}\" is no step; there are {}", names.join(", "));
    };
    let usage = || match *takes {
        "" => format!("\"{text}\": {name} stands alone"),
        takes => format!("\"{text}\": {name} takes {takes}"),
    };
    arguments(name, &words).with_context(usage)?.with_context(usage)
}

/// `None` if there are too many words, or too few.
fn arguments(name: &str, words: &[&str]) -> Result<Option<Op>> {
    // Behind the time; the order does not matter.
    let (mut apart, mut kernel) = (None, false);
    if let ("compute" | "sleep", [_, options @ ..]) = (name, words) {
        for word in options {
            match *word {
                "kernel" if name == "compute" && !kernel => kernel = true,
                word if word.starts_with('±') && apart.is_none() => apart = Some(spread(word)?),
                word => bail!("\"{word}\" is left over"),
            }
        }
    }
    let apart = apart.unwrap_or(0.0);
    Ok(Some(match (name, words) {
        ("compute", [mean, ..]) => Op::Compute { mean: time(mean)?, spread: apart, kernel },
        ("sleep", [mean, ..]) => Op::Sleep { mean: time(mean)?, spread: apart },
        ("io", [mean]) => Op::Io { mean: time(mean)? },
        ("lock", [n]) => Op::Lock(number(n)?),
        ("unlock", [n]) => Op::Unlock(number(n)?),
        ("mutex", [n]) => Op::Mutex(number(n)?),
        ("release", [n]) => Op::Release(number(n)?),
        ("post", [n]) => Op::Post(number(n)?),
        ("wait", [n]) => Op::Wait(number(n)?),
        ("barrier", []) => Op::Barrier { pause: false },
        ("barrier", ["pause"]) => Op::Barrier { pause: true },
        ("call", []) => Op::Call,
        ("call-one", []) => Op::CallOne,
        ("done", []) => Op::Done,
        _ => return Ok(None),
    }))
}

/// A time in the words of a program.
pub fn time_in_words(ns: Ns) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    match units.iter().find(|(unit, _)| ns >= *unit) {
        Some((unit, name)) => format!("{}{name}", ns as f64 / *unit as f64),
        None => format!("{ns}ns"),
    }
}

/// As one writes it.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let apart = |spread: f64| match spread {
            0.0 => String::new(),
            spread => format!(" ±{}%", (spread * 1e6).round() / 1e4),
        };
        match *self {
            Op::Compute { mean, spread, kernel } => {
                let kernel = if kernel { " kernel" } else { "" };
                write!(f, "compute {}{}{kernel}", time_in_words(mean), apart(spread))
            }
            Op::Lock(n) => write!(f, "lock {n}"),
            Op::Unlock(n) => write!(f, "unlock {n}"),
            Op::Mutex(n) => write!(f, "mutex {n}"),
            Op::Release(n) => write!(f, "release {n}"),
            Op::Call => f.write_str("call"),
            Op::CallOne => f.write_str("call-one"),
            Op::Barrier { pause: false } => f.write_str("barrier"),
            Op::Barrier { pause: true } => f.write_str("barrier pause"),
            Op::Post(n) => write!(f, "post {n}"),
            Op::Wait(n) => write!(f, "wait {n}"),
            Op::Sleep { mean, spread } => {
                write!(f, "sleep {}{}", time_in_words(mean), apart(spread))
            }
            Op::Io { mean } => write!(f, "io {}", time_in_words(mean)),
            Op::Done => f.write_str("done"),
        }
    }
}

/// Whether a task can do this for ever: it takes time, locks are held one after the other or one in
/// another, not over a sleep, and not when it begins again; mutexes may be, over sleeps.
///
/// Errors: it cannot, and why.
pub fn check(ops: &[Op]) -> Result<()> {
    let passes = |op: &Op| match op {
        Op::Compute { mean, .. } | Op::Sleep { mean, .. } | Op::Io { mean } => *mean > 0,
        Op::Wait(_) => true,
        _ => false,
    };
    ensure!(ops.iter().any(passes), "a program takes no time: it needs a compute or sleep");
    let (mut held, mut mutexes) = (Vec::new(), Vec::new());
    for op in ops {
        match op {
            Op::Lock(lock) => {
                ensure!(!held.contains(lock), "lock {lock} is taken while it is held");
                held.push(*lock);
            }
            Op::Unlock(lock) => {
                ensure!(held.contains(lock), "unlock {lock} without a lock {lock} before it");
                held.retain(|other| other != lock);
            }
            Op::Mutex(mutex) => {
                ensure!(held.is_empty(), "a program waits while it holds lock {}", held[0]);
                ensure!(!mutexes.contains(mutex), "mutex {mutex} is taken while it is held");
                mutexes.push(*mutex);
            }
            Op::Release(mutex) => {
                let holds = mutexes.contains(mutex);
                ensure!(holds, "release {mutex} without a mutex {mutex} before it");
                mutexes.retain(|other| other != mutex);
            }
            Op::Wait(_) | Op::Sleep { .. } | Op::Io { .. } | Op::Barrier { .. } => {
                ensure!(held.is_empty(), "a program waits while it holds lock {}", held[0]);
            }
            _ => {}
        }
    }
    ensure!(held.is_empty(), "a program ends with lock {} held", held[0]);
    ensure!(mutexes.is_empty(), "a program ends with mutex {} held", mutexes[0]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_printed_as_it_is_written() {
        for text in [
            "compute 100us ±20% kernel",
            "compute 1.5ms",
            "compute 300ns ±0.5%",
            "sleep 2s ±5%",
            "io 80us",
            "lock 0",
            "unlock 9999",
            "mutex 1",
            "release 1",
            "post 3",
            "wait 3",
            "barrier",
            "barrier pause",
            "call",
            "call-one",
            "done",
        ] {
            assert_eq!(step(text).unwrap().to_string(), text);
        }
        assert_eq!(step("compute 1us kernel ±5%").unwrap().to_string(), "compute 1us ±5% kernel");
        assert_eq!(step("sleep 10µs").unwrap().to_string(), "sleep 10us");
    }

    #[test]
    fn words_left_over_and_missing_ones_are_refused_with_what_the_step_takes() {
        for (text, why) in [
            ("compute 1us foo", "compute takes TIME [±N%] [kernel]: \"foo\" is left over"),
            ("compute 1us kernel kernel", "\"kernel\" is left over"),
            ("compute 1us ±1% ±2%", "\"±2%\" is left over"),
            ("sleep 1us kernel", "sleep takes TIME [±N%]: \"kernel\" is left over"),
            ("compute", "compute takes TIME [±N%] [kernel]"),
            ("io 1us ±5%", "io takes TIME"),
            ("lock", "lock takes N"),
            ("lock 1 2", "lock takes N"),
            ("lock 10000", "numbers go to 9999"),
            ("done now", "done stands alone"),
            ("barrier hard", "barrier takes [pause]"),
            ("compute 10", "is no time; write 300ns"),
            ("compute 1us ±200%", "from 0 to 100 %"),
            ("dance", "is no step; there are compute, lock"),
            ("", "is no step"),
        ] {
            let error = format!("{:#}", step(text).unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
