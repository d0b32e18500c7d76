// SPDX-License-Identifier: GPL-2.0-only
//! When a trial ends early, so that it harms nobody.

use std::collections::BTreeMap;

use baton_report::stats::median;
use baton_testbed::kernel_log::KernelLog;

use crate::bundle::Sample;
use crate::plan::Who;

/// A VM may wait under Baton three times as long as its median under the kernel's scheduler, and
/// at any rate for a tenth of its time; longer than that in five seconds ends the trial.
const TIMES: f64 = 3.0;
const LEAST: f64 = 10.0;
const SECONDS: f64 = 5.0;

/// What each VM waited.
#[derive(Default)]
pub struct ReadyLimit {
    /// Under the kernel's scheduler, second by second, in %.
    kernel: BTreeMap<u32, Vec<f64>>,
    /// Since the slot began: when, and what it had waited by then, in ms.
    slot: BTreeMap<u32, Vec<(f64, f64)>>,
}

impl ReadyLimit {
    /// Another slot begins.
    pub fn begin(&mut self) {
        self.slot.clear();
    }

    /// `open` has what the VMs wait for by now, of waits that are not over. The VM that has waited
    /// too long, what it waited in the last five seconds, and its usual share, in % of its vCPUs'
    /// time.
    pub fn look(
        &mut self,
        who: Who,
        now: &Sample,
        open: &BTreeMap<u32, f64>,
    ) -> Option<(u32, f64, f64)> {
        let anybodys = median(&self.kernel.values().flatten().copied().collect::<Vec<_>>());
        for vm in &now.vms {
            let waited = vm.3 + open.get(&vm.0).unwrap_or(&0.0);
            let before = self.slot.entry(vm.0).or_default();
            before.push((now.at_s, waited));
            let percent = |(then_s, then): (f64, f64)| {
                (waited - then) / (f64::from(vm.1) * (now.at_s - then_s) * 10.0)
            };
            if who == Who::Kernel {
                if let [.., last, _] = before[..]
                    && now.at_s > last.0
                {
                    self.kernel.entry(vm.0).or_default().push(percent(last));
                }
                continue;
            }
            // A VM that has come since has no median of its own.
            let own = self.kernel.get(&vm.0).and_then(|all| median(all));
            let usual = own.or(anybodys).unwrap_or(0.0);
            let first = before.iter().rev().find(|(then_s, _)| now.at_s - then_s >= SECONDS);
            let percent = first.map(|first| percent(*first));
            if let Some(percent) = percent.filter(|it| *it > LEAST.max(TIMES * usual)) {
                return Some((vm.0, percent, usual));
            }
        }
        None
    }
}

/// Of syslog(2): emergency, alert, critical, error, warning.
const WARNING: u32 = 4;

/// What a scheduler can bring about: its own errors, stalls and soft lockups, kernel threads that
/// do not run, a kernel that finds itself broken. Firewalls, disks and guests' MSRs are logged as
/// warnings, too.
const OURS: [&str; 11] = [
    "sched_ext",
    "scx_",
    "warning: cpu",
    "bug: ",
    "oops",
    "rcu: ",
    "lockup",
    "blocked for more than",
    "scheduling while atomic",
    "workqueue",
    "watchdog",
];

/// The first warning, or worse, since the last look that a scheduler can bring about.
pub fn warning(log: &mut KernelLog) -> Option<String> {
    log.records().iter().find_map(|record| warning_in(record))
}

/// `PRIORITY,SEQUENCE,TIME,FLAGS;TEXT`, where the priority holds the facility, 0 for the kernel
/// (Documentation/ABI/testing/dev-kmsg).
fn warning_in(record: &str) -> Option<String> {
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let line = text.lines().next().unwrap_or_default();
    let lower = line.to_lowercase();
    let ours = OURS.iter().any(|words| lower.contains(words));
    (priority <= WARNING && ours)
        .then(|| line.chars().filter(|c| !c.is_control()).take(200).collect())
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
        let none = BTreeMap::new();
        samples(percents).iter().any(|sample| limit.look(who, sample, &none).is_some())
    }

    #[test]
    fn a_vm_that_waits_thrice_its_usual_time_for_five_seconds_ends_it() {
        let mut limit = ReadyLimit::default();
        assert!(!look(&mut limit, Who::Kernel, &[4.0, 5.0, 90.0, 5.0, 5.0]));
        assert!(!look(&mut limit, Who::Baton, &[16.0; 4]));
        assert!(!look(&mut limit, Who::Baton, &[16.0; 4]), "seconds of another slot");
        assert!(!look(&mut limit, Who::Baton, &[14.0; 9]));
        assert!(look(&mut limit, Who::Baton, &[16.0; 5]));
        assert!(look(&mut limit, Who::Baton, &[0.0, 0.0, 0.0, 0.0, 80.0]), "one long wait");
        assert!(!look(&mut limit, Who::Kernel, &[90.0; 9]), "that is the kernel's doing");
    }

    #[test]
    fn a_tenth_of_its_time_a_vm_may_always_wait() {
        let mut limit = ReadyLimit::default();
        look(&mut limit, Who::Kernel, &[0.1; 9]);
        assert!(!look(&mut limit, Who::Baton, &[9.9; 9]));
        assert!(look(&mut limit, Who::Baton, &[10.1; 5]));
        // Who has come since may wait as long as others usually do.
        let mut limit = ReadyLimit::default();
        look(&mut limit, Who::Kernel, &[20.0; 9]);
        limit.kernel = BTreeMap::from([(7, limit.kernel[&1].clone())]);
        assert!(!look(&mut limit, Who::Baton, &[59.0; 9]));
        assert!(look(&mut limit, Who::Baton, &[61.0; 9]));
    }

    /// The kernel counts a wait when it is over: of a vCPU that starves it counts nothing.
    #[test]
    fn a_vm_that_starves_ends_it() {
        let mut limit = ReadyLimit::default();
        look(&mut limit, Who::Kernel, &[5.0; 9]);
        limit.begin();
        let found = samples(&[0.0; 9]).iter().any(|sample| {
            let open = BTreeMap::from([(1, sample.at_s * 1e3)]);
            limit.look(Who::Baton, sample, &open).is_some()
        });
        assert!(found);
    }

    #[test]
    fn warnings_are_told_from_what_else_is_logged() {
        for (record, expected) in [
            ("4,1017,1234,-;WARNING: CPU: 1 PID: 2\n SUBSYSTEM=x", Some("WARNING: CPU: 1 PID: 2")),
            ("3,1,2,c;rcu: INFO: stall", Some("rcu: INFO: stall")),
            ("6,1,2,-;sched_ext: BPF scheduler \"baton\" enabled", None),
            ("4,1,2,-;[UFW BLOCK] IN=eth0 OUT= MAC=52:54:00 SRC=192.0.2.1 DST=192.0.2.2", None),
            ("3,1,2,-;kvm [812]: vcpu0, guest rIP: 0xffff ignored rdmsr: 0x122", None),
            ("4,1,2,-;x86/split lock detection: #AC: CPU 0/KVM/812 took a split_lock trap", None),
            (
                "3,1,2,-;INFO: task kworker/1:2 blocked for more than 122 seconds.",
                Some("INFO: task kworker/1:2 blocked for more than 122 seconds."),
            ),
            // A daemon's: facility 3.
            ("27,1,2,-;systemd[1]: failed", None),
            ("x;y", None),
            ("", None),
        ] {
            assert_eq!(warning_in(record).as_deref(), expected, "{record}");
        }
    }
}
