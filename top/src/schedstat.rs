// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel counts of a thread, whatever schedules it.

use baton_hostinfo::Host;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A thread's /proc/PID/task/TID/schedstat, kept open: to open it takes longer than to read it.
pub struct Schedstat(File);

impl Schedstat {
    /// `None`: the thread has ended, or there are too many open files.
    pub fn open(host: &Host, pid: i32, tid: i32) -> Option<Schedstat> {
        let path = format!("/proc/{pid}/task/{tid}/schedstat");
        File::open(host.path(&path)).ok().map(Schedstat)
    }

    /// Milliseconds for which it ran, and for which it waited for a CPU. `None`: it has ended.
    pub fn read(&self) -> Option<(f64, f64)> {
        let mut text = [0; 128];
        let read = self.0.read_at(&mut text, 0).ok()?;
        let mut numbers = text[..read].split(u8::is_ascii_whitespace);
        let mut ms = || Some(number(numbers.next()?)? as f64 / 1e6);
        Some((ms()?, ms()?))
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let add = |sum: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    };
    (!digits.is_empty()).then(|| digits.iter().try_fold(0, add))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn two_numbers_are_read_and_nothing_else() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let directory = root.path().join("proc/7/task/8");
        fs::create_dir_all(&directory)?;
        let read = |text: &str| {
            fs::write(directory.join("schedstat"), text)?;
            Ok::<_, std::io::Error>(Schedstat::open(&Host::at(root.path()), 7, 8).map(|s| s.read()))
        };
        assert_eq!(read("2000000 500000 7\n")?, Some(Some((2.0, 0.5))));
        let most = format!("{} 0 1", u64::MAX);
        assert_eq!(read(&most)?, Some(Some((u64::MAX as f64 / 1e6, 0.0))));
        for wrong in ["", "x y z", "1", "1 ", "-1 2", "1 2x", "99999999999999999999 1 1"] {
            assert_eq!(read(wrong)?, Some(None), "{wrong}");
        }
        assert!(Schedstat::open(&Host::at(root.path()), 7, 9).is_none());
        Ok(())
    }
}
