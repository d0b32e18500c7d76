// SPDX-License-Identifier: GPL-2.0-only
//! How often the scheduler starts again by itself, and how soon.

use std::time::{Duration, Instant};

/// What ends it again and again is not mended by starting it.
pub const MOST: usize = 5;
pub const WITHIN: Duration = Duration::from_secs(600);

/// Before the first start of those; each one after it waits for twice as long as the one before.
const FIRST_WAIT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Restarts {
    /// Those within the last ten minutes.
    at: Vec<Instant>,
}

impl Restarts {
    /// The scheduler has ended: how long to wait before it starts again. `None`: it does not.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.at.retain(|&at| now.saturating_duration_since(at) < WITHIN);
        if self.at.len() >= MOST {
            return None;
        }
        let wait = FIRST_WAIT * (1 << self.at.len());
        self.at.push(now);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_again_a_few_times_and_then_no_more() {
        let (mut restarts, begin) = (Restarts::default(), Instant::now());
        let after = |s| begin + Duration::from_secs(s);
        let waits: Vec<_> = (0..6).map(|n| restarts.wait(after(10 * n))).collect();
        let expected = [1, 2, 4, 8, 16].map(|s| Some(Duration::from_secs(s)));
        assert_eq!(waits, [&expected[..], &[None]].concat());
        assert_eq!(restarts.wait(after(599)), None);
        // The first one is ten minutes ago.
        assert_eq!(restarts.wait(after(601)), Some(Duration::from_secs(16)));
    }
}
