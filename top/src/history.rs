// SPDX-License-Identifier: GPL-2.0-only
//! %RDY of the last minute, of VMs and their vCPUs, as a line of signs.

use crate::rates::Rates;
use std::collections::BTreeMap;

pub const SECONDS: usize = 60;

/// Each begins at twice the figure of the one before: `-` at 5, `=` at 10, where administrators
/// act.
const SIGNS: [(f32, char); 8] = [
    (80.0, '@'),
    (40.0, '#'),
    (20.0, '*'),
    (10.0, '='),
    (5.0, '-'),
    (2.5, ','),
    (1.25, '.'),
    (0.0, '_'),
];

/// Of the VMs of the last interval: what has ended is forgotten.
#[derive(Clone, Debug, Default)]
pub struct History {
    vms: BTreeMap<String, OfVm>,
}

#[derive(Clone, Debug, Default)]
pub struct OfVm {
    pub vm: Trace,
    vcpus: BTreeMap<u32, Trace>,
}

/// A figure for each second; of several, the largest.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Second s is at s % SECONDS; NaN: not known.
    figures: [f32; SECONDS],
    last: u64,
}

impl History {
    /// What happened from second `from` to second `to`.
    pub fn add(&mut self, rates: &Rates, from: f64, to: f64) {
        let mut before = std::mem::take(&mut self.vms);
        for vm in &rates.vms {
            let (key, mut known) =
                before.remove_entry(&vm.key).unwrap_or_else(|| (vm.key.clone(), OfVm::default()));
            known.vm.add(vm.parts.ready, from, to);
            for vcpu in &vm.vcpus {
                known.vcpus.entry(vcpu.id).or_default().add(vcpu.parts.ready, from, to);
            }
            // A vCPU that was unplugged, or not asked for: a minute later nothing of it is left.
            let end = known.vm.last;
            known.vcpus.retain(|_, trace| trace.last + SECONDS as u64 > end);
            self.vms.insert(key, known);
        }
    }

    pub fn of(&self, key: &str) -> Option<&OfVm> {
        self.vms.get(key)
    }
}

impl OfVm {
    pub fn vcpu(&self, id: u32) -> Option<&Trace> {
        self.vcpus.get(&id)
    }
}

impl Default for Trace {
    fn default() -> Trace {
        Trace { figures: [f32::NAN; SECONDS], last: 0 }
    }
}

impl Trace {
    fn add(&mut self, figure: f64, from: f64, to: f64) {
        // Negative ones, and what is no number, become 0.
        let (from, to) = (from as u64, to as u64);
        for second in (self.last + 1..=to).rev().take(SECONDS) {
            self.figures[place(second)] = f32::NAN;
        }
        self.last = self.last.max(to);
        for second in ((from + 1).min(to)..=to).rev().take(SECONDS) {
            let kept = &mut self.figures[place(second)];
            *kept = kept.max(figure as f32);
        }
    }

    /// The last `seconds`, the newest at the right.
    fn latest(&self, seconds: usize) -> impl Iterator<Item = f32> {
        let seconds = seconds.min(SECONDS);
        let first = (self.last + 1 + SECONDS as u64) - seconds as u64;
        (0..seconds as u64).map(move |n| self.figures[place(first + n)])
    }

    pub fn signs(&self, seconds: usize) -> String {
        self.latest(seconds).map(sign).collect()
    }

    /// `None`: nothing is known.
    pub fn most(&self, seconds: usize) -> Option<f32> {
        self.latest(seconds).filter(|figure| !figure.is_nan()).reduce(f32::max)
    }
}

fn place(second: u64) -> usize {
    (second % SECONDS as u64) as usize
}

fn sign(figure: f32) -> char {
    SIGNS.iter().find(|(from, _)| figure >= *from).map_or(' ', |(_, sign)| *sign)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{Parts, VcpuRates, VmRates};

    fn rates(ready: f64, vcpus: &[(u32, f64)]) -> Rates {
        let parts = |ready| Parts { ready, ..Parts::default() };
        let vcpu = |(id, ready): &(u32, f64)| VcpuRates {
            id: *id,
            parts: parts(*ready),
            ..VcpuRates::default()
        };
        let vcpus = vcpus.iter().map(vcpu).collect();
        let vm = VmRates { key: "a".into(), parts: parts(ready), vcpus, ..VmRates::default() };
        Rates { vms: vec![vm], ..Rates::default() }
    }

    #[test]
    fn a_sign_is_a_second() {
        let mut trace = Trace::default();
        for (second, figure) in
            [0.0, 1.3, 2.5, 4.9, 5.0, 10.0, 20.0, 40.0, 82.0].into_iter().enumerate()
        {
            // Not exactly a second apart.
            let at = second as f64 + if second % 2 == 0 { 0.01 } else { 0.99 };
            trace.add(figure, at, second as f64 + 1.5);
        }
        assert_eq!(trace.signs(10), " _.,,-=*#@");
        assert_eq!((trace.signs(3), trace.most(60)), ("*#@".into(), Some(82.0)));
        assert_eq!((trace.signs(99).len(), trace.most(0)), (60, None));
        assert_eq!((Trace::default().most(60), Trace::default().signs(2)), (None, "  ".into()));
    }

    #[test]
    fn longer_and_shorter_intervals_stay_to_scale() {
        let mut trace = Trace::default();
        trace.add(30.0, 0.0, 5.0);
        (0..10).for_each(|n| {
            let at = 5.0 + 0.1 * f64::from(n);
            trace.add(f64::from(n * 10), at, at + 0.1);
        });
        assert_eq!(trace.signs(7), " ****@@");
        // Nothing came for 3 s; then a figure for more than all that is kept.
        trace.add(1.0, 9.5, 10.5);
        assert_eq!(trace.signs(8), "**@@   _");
        trace.add(11.0, 10.5, 500.0);
        assert_eq!(trace.signs(60), "=".repeat(60));
        trace.add(f64::NAN, 500.0, 501.0);
        trace.add(7.0, f64::NAN, -1.0);
        assert_eq!(trace.signs(2), "= ");
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let mut history = History::default();
        history.add(&rates(6.0, &[(0, 1.0), (7, 90.0)]), 0.0, 1.0);
        history.add(&rates(12.0, &[(0, 50.0)]), 1.0, 2.0);
        let of = history.of("a").expect("it is known");
        assert_eq!(
            (of.vm.signs(2), of.vcpu(0).map(|t| t.signs(2))),
            ("-=".into(), Some("_#".into()))
        );
        assert_eq!(of.vcpu(7).map(|t| t.signs(1)), Some("@".into()));
        history.add(&rates(0.0, &[(0, 0.0)]), 2.0, 61.0);
        let vcpus = |history: &History| history.of("a").map(|of| of.vcpus.len());
        assert_eq!(vcpus(&history), Some(1));
        history.add(&Rates::default(), 61.0, 62.0);
        assert!(history.of("a").is_none());
    }
}
