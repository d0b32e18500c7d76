// SPDX-License-Identifier: GPL-2.0-only
//! When a trial ends early, so that it harms nobody.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use baton_testbed::stats::median;

use crate::bundle::Sample;
use crate::plan::Who;

/// A VM may wait under Baton three times as long as its median under the kernel's scheduler, and
/// at any rate for a tenth of its time; longer than that for five seconds ends the trial.
const TIMES: f64 = 3.0;
const LEAST: f64 = 10.0;
const SECONDS: f64 = 5.0;

/// What each VM waited, second by second.
#[derive(Default)]
pub struct ReadyLimit {
    kernel: BTreeMap<u32, Vec<f64>>,
    /// For how long by now.
    over: BTreeMap<u32, f64>,
}

impl ReadyLimit {
    /// Another slot begins: seconds in a row are those of one slot.
    pub fn begin(&mut self) {
        self.over.clear();
    }

    /// Of two samples, one after the other. The VM that has waited too long, what it waited in the
    /// last second, and its median before, in % of its vCPUs' time.
    pub fn look(&mut self, who: Who, before: &Sample, now: &Sample) -> Option<(u32, f64, f64)> {
        let seconds = now.at_s - before.at_s;
        if seconds <= 0.0 {
            return None;
        }
        for vm in &now.vms {
            let Some(then) = before.vms.iter().find(|then| then.0 == vm.0) else { continue };
            let percent = (vm.3 - then.3) / (f64::from(vm.1) * seconds * 10.0);
            if who == Who::Kernel {
                self.kernel.entry(vm.0).or_default().push(percent);
                continue;
            }
            // A VM that has come since has no median: it may wait as long as the others may.
            let usual = self.kernel.get(&vm.0).and_then(|all| median(all));
            let Some(usual) = usual else { continue };
            let over = self.over.entry(vm.0).or_default();
            *over = if percent > LEAST && percent > TIMES * usual { *over + seconds } else { 0.0 };
            if *over >= SECONDS {
                return Some((vm.0, percent, usual));
            }
        }
        None
    }
}

/// /dev/kmsg: one record a read.
pub struct KernelLog(File);

/// Of syslog(2): emergency, alert, critical, error, warning.
const WARNING: u32 = 4;

impl KernelLog {
    /// From now on. `None` without permission.
    pub fn open() -> Option<KernelLog> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(KernelLog(file))
    }

    /// The first warning, or worse, since the last look.
    pub fn warning(&mut self) -> Option<String> {
        let mut record = vec![0; 8192]; // CONSOLE_EXT_LOG_MAX, printk's longest record
        let mut first = None;
        loop {
            match self.0.read(&mut record) {
                Ok(length) if length > 0 => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    first = first.or_else(|| warning_in(&text));
                }
                // EPIPE: records were lost; the next read goes on behind them.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                _ => return first,
            }
        }
    }
}

/// `PRIORITY,SEQUENCE,TIME,FLAGS;TEXT`, where the priority holds the facility, 0 for the kernel
/// (Documentation/ABI/testing/dev-kmsg).
fn warning_in(record: &str) -> Option<String> {
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let line = text.lines().next().unwrap_or_default();
    (priority <= WARNING).then(|| line.chars().filter(|c| !c.is_control()).take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::VmTimes;

    /// A VM of two vCPUs that waits for these shares of its seconds.
    fn samples(percents: &[f64]) -> Vec<Sample> {
        let mut ready = 0.0;
        let mut sample = |(at, percent): (usize, &f64)| {
            ready += percent * 20.0;
            Sample { at_s: at as f64, vms: vec![VmTimes(1, 2, 0.0, ready)], ..Sample::default() }
        };
        [0.0].iter().chain(percents).enumerate().map(&mut sample).collect()
    }

    fn look(limit: &mut ReadyLimit, who: Who, percents: &[f64]) -> bool {
        limit.begin();
        let samples = samples(percents);
        samples.windows(2).any(|pair| limit.look(who, &pair[0], &pair[1]).is_some())
    }

    #[test]
    fn a_vm_that_waits_thrice_its_usual_time_for_five_seconds_ends_it() {
        let mut limit = ReadyLimit::default();
        assert!(!look(&mut limit, Who::Baton, &[90.0; 9]), "nothing is usual yet");
        assert!(!look(&mut limit, Who::Kernel, &[4.0, 5.0, 90.0, 5.0, 5.0]));
        assert!(!look(&mut limit, Who::Baton, &[16.0; 4]));
        assert!(!look(&mut limit, Who::Baton, &[16.0; 4]), "seconds of another slot");
        assert!(!look(&mut limit, Who::Baton, &[16.0, 16.0, 16.0, 16.0, 14.0, 16.0]));
        assert!(!look(&mut limit, Who::Baton, &[14.0; 9]));
        assert!(look(&mut limit, Who::Baton, &[16.0; 5]));
        assert!(!look(&mut limit, Who::Kernel, &[90.0; 9]), "that is the kernel's doing");
    }

    #[test]
    fn a_tenth_of_its_time_a_vm_may_always_wait() {
        let mut limit = ReadyLimit::default();
        look(&mut limit, Who::Kernel, &[0.1; 9]);
        assert!(!look(&mut limit, Who::Baton, &[9.9; 9]));
        assert!(look(&mut limit, Who::Baton, &[10.1; 5]));
    }

    #[test]
    fn warnings_are_told_from_what_else_is_logged() {
        for (record, expected) in [
            ("4,1017,1234,-;WARNING: CPU: 1 PID: 2\n SUBSYSTEM=x", Some("WARNING: CPU: 1 PID: 2")),
            ("3,1,2,c;rcu: INFO: stall", Some("rcu: INFO: stall")),
            ("6,1,2,-;sched_ext: BPF scheduler \"baton\" enabled", None),
            // A daemon's: facility 3.
            ("27,1,2,-;systemd[1]: failed", None),
            ("x;y", None),
            ("", None),
        ] {
            assert_eq!(warning_in(record).as_deref(), expected, "{record}");
        }
    }
}
