// SPDX-License-Identifier: GPL-2.0-only
//! Polling at HLT: what the scheduler has counted goes to the governor, and its decisions to KVM.

use crate::bpf_intf::vm_ctx;
use anyhow::{Result, bail};
use baton_haltpoll::{BUCKETS, Governor, Halts, Parameters};
use log::{debug, info};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// What `--halt-poll` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaltPoll {
    Auto,
    /// `halt_poll_ns`; 0: never.
    Fixed(u64),
}

/// A second of polling for one HLT would be a joke; KVM itself knows no limit.
const MOST_NS: u64 = 10_000_000;

impl FromStr for HaltPoll {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(HaltPoll::Auto),
            "off" => Ok(HaltPoll::Fixed(0)),
            _ => match text.parse() {
                Ok(ns) if ns <= MOST_NS => Ok(HaltPoll::Fixed(ns)),
                _ => Err("give auto, off, or nanoseconds from 0 to 10000000".into()),
            },
        }
    }
}

/// `1%` as 0.01.
pub fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("give a share of the host's CPU time, from 0% to 100%".into()),
    }
}

/// Decisions are made so often.
const EVERY: Duration = Duration::from_secs(1);

/// In charge of KVM's parameters until it is dropped.
pub struct Polling {
    parameters: Parameters,
    governor: Option<Governor>,
    /// What was counted of each VM before, by slot and generation.
    before: BTreeMap<(u32, u64), Halts>,
    at: Instant,
}

impl Polling {
    /// KVM is loaded.
    pub fn begin(how: HaltPoll, budget: f64, pcpus: usize) -> Result<Self> {
        let parameters = Parameters::of_kvm()?;
        let governor = match how {
            HaltPoll::Fixed(ns) => {
                parameters.set(ns)?;
                info!("halt_poll_ns={ns}, as asked for; it was {}", parameters.found_ns());
                None
            }
            HaltPoll::Auto => Some(Governor::new(budget, pcpus, parameters.found_ns())),
        };
        Ok(Polling { parameters, governor, before: BTreeMap::new(), at: Instant::now() })
    }

    /// By what HLTs are seen, not by a number of the operator's.
    pub fn is_governed(&self) -> bool {
        self.governor.is_some()
    }

    /// Looks at the VMs that there are, once a second.
    pub fn govern(&mut self, vms: &[(u32, vm_ctx)]) -> Result<()> {
        let Some(governor) = &mut self.governor else { return Ok(()) };
        let passed = self.at.elapsed();
        if passed < EVERY {
            return Ok(());
        }
        self.at = Instant::now();
        let mut all = Halts::default();
        let mut seen = BTreeMap::new();
        let mut others = 0;
        for (slot, vm) in vms {
            if vm.halt.lengths.len() != BUCKETS {
                bail!("{} buckets of halt lengths, {BUCKETS} expected", vm.halt.lengths.len());
            }
            // Those poll by rules of their own, whatever the host's limit is.
            if vm.own_limit != 0 || vm.guest_polls != 0 {
                others += 1;
                continue;
            }
            let polled_ns = Some(vm.halt.polled_ns + vm.halt.vain_ns);
            let now = Halts { lengths: vm.halt.lengths, wakeups: vm.halt.wakeups, polled_ns };
            let none = Halts::default();
            let before = self.before.get(&(*slot, vm.gen_)).unwrap_or(&none);
            let add = |sum: &mut [u64; BUCKETS], now: &[u64; BUCKETS], before: &[u64; BUCKETS]| {
                for ((sum, now), before) in sum.iter_mut().zip(now).zip(before) {
                    *sum += now.saturating_sub(*before);
                }
            };
            add(&mut all.lengths, &now.lengths, &before.lengths);
            add(&mut all.wakeups, &now.wakeups, &before.wakeups);
            let of = |halts: &Halts| halts.polled_ns.unwrap_or(0);
            all.polled_ns = Some(of(&all) + of(&now).saturating_sub(of(before)));
            seen.insert((*slot, vm.gen_), now);
        }
        self.before = seen;
        if others > 0 {
            debug!("{others} VMs poll by a limit of their VMM or in the guest, and are left alone");
        }
        if let Some(decision) = governor.decide(&all, passed.as_secs_f64()) {
            self.parameters.set(decision.limit_ns)?;
            info!("halt_poll_ns={}: {}", decision.limit_ns, decision.reason);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        assert_eq!("auto".parse(), Ok(HaltPoll::Auto));
        assert_eq!("off".parse(), Ok(HaltPoll::Fixed(0)));
        assert_eq!("50000".parse(), Ok(HaltPoll::Fixed(50_000)));
        for wrong in ["", "-1", "1s", "on", "20000000"] {
            assert!(wrong.parse::<HaltPoll>().is_err(), "{wrong}");
        }
        assert_eq!((share("1%"), share("2.5")), (Ok(0.01), Ok(0.025)));
        for wrong in ["", "x", "-1%", "101", "NaN"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
