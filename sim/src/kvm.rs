// SPDX-License-Identifier: GPL-2.0-only
//! KVM's policies as the scenario chooses them: whom a spinning vCPU yields to, how long a halted
//! one polls, and which fast paths there are.

use serde::Deserialize;

use crate::machine::Ns;
use crate::slots::Lookup;

/// Who is a candidate in `kvm_vcpu_on_spin()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnSpin {
    /// The spinner just gives way (`yield()`), as KVM before 2.6.39.
    Nobody,
    /// From a random vCPU on.
    Random,
    /// From the one behind the last that was boosted (Rik van Riel, Linux 3.3).
    LastBoosted,
    /// Not those that spin themselves, except every other time (Raghavendra 2012, Linux 3.6).
    Eligible,
    /// The same with a counter: as often not as it has spun of late (Raghavendra 2012's enhancement
    /// 1).
    EligibleCounter,
    /// And of the preempted only those in the guest's kernel (Linux 4.13 on).
    Kernel,
    /// Or with an interrupt pending (W. Li's answer to Ishiguro 2021, Linux 5.13).
    PendingInterrupt,
    /// Or marked as receiver of an IPI since the last entry (S. Christopherson's answer to it).
    IpiFlag,
    /// Or receivers of an IPI that this spinner has sent (Ishiguro 2021), of the first 64
    /// vCPUs.
    IpiPairs64,
    /// The same without that limit.
    IpiPairs,
}

impl OnSpin {
    pub fn knows_eligible(self) -> bool {
        !matches!(self, OnSpin::Nobody | OnSpin::Random | OnSpin::LastBoosted)
    }

    /// Of the preempted only those in the guest's kernel. Those policies are also younger than
    /// Linux 3.9: before it, KVM tried every vCPU that was not in guest mode (PF_VCPU), since then
    /// only those that were preempted or woken (`ready`).
    pub fn wants_kernel(self) -> bool {
        self.knows_eligible() && !matches!(self, OnSpin::Eligible | OnSpin::EligibleCounter)
    }
}

/// How long KVM polls at HLT.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum HaltPoll {
    Off,
    /// Always so long, ns (Linux 4.0, Bonzini 2015).
    Fixed(Ns),
    /// Up to so long, ns, grown and shrunk by 2 from 10 µs (Linux 4.3 on).
    Adaptive(Ns),
    /// The same, with the limit that Baton's governor sets each second, within this share of the
    /// host's CPU time (docs/halt-polling.md).
    Governed(f64),
    /// Knows when the vCPU's own timers and requests end: polls if that is within so long, ns, what
    /// a sleep costs; else not at all. What others will send it is not known. No KVM does this: it
    /// is the bound for those that must guess (the optimum of a ski rental).
    Clairvoyant(Ns),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Kvm {
    /// PAUSE-loop exits.
    pub ple: bool,
    /// A spin of this length exits: 4096 cycles on Intel.
    pub ple_window_ns: Ns,
    /// After each exit the window grows by this, up to the limit; it is reset when the vCPU is
    /// scheduled in (Linux 3.18 on). 1: it stays.
    pub ple_grow: u64,
    pub ple_window_max_ns: Ns,
    /// Also in the guest's user mode (AMD).
    pub ple_user: bool,
    pub on_spin: OnSpin,
    pub halt_poll: HaltPoll,
    /// How a memory slot is found, in VMs that say how many they have.
    pub memslots: Lookup,
    pub icr_fast: bool,
    pub timer_fast: bool,
    pub avic: bool,
    /// Share of KVM's events that the scheduler's probes do not see: a fault.
    pub missed_events: f64,
    /// Interrupts reach a running vCPU without an exit (APICv).
    pub posted: bool,
}

impl Default for Kvm {
    fn default() -> Self {
        Kvm {
            ple: true,
            ple_window_ns: 1_640,
            ple_grow: 2,
            ple_window_max_ns: 10_000_000,
            ple_user: false,
            on_spin: OnSpin::PendingInterrupt,
            halt_poll: HaltPoll::Adaptive(200_000),
            memslots: Lookup::Search,
            icr_fast: true,
            timer_fast: true,
            avic: false,
            missed_events: 0.0,
            posted: true,
        }
    }
}

/// `halt_poll_ns_grow_start`, as KVM has it.
pub const GROW_START: Ns = 10_000;

/// `kvm_vcpu_halt()`: how a vCPU's time to poll changes after a halt of this length.
pub fn next_poll(now_polls: Ns, limit: Ns, start: Ns, halted: Ns) -> Ns {
    if halted <= now_polls {
        now_polls
    } else if now_polls > 0 && halted > limit {
        // shrink_halt_poll_ns()
        let less = now_polls / 2;
        if less < start { 0 } else { less }
    } else if now_polls < limit && halted < limit {
        // grow_halt_poll_ns()
        (now_polls * 2).max(start).min(limit)
    } else {
        now_polls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_grows_with_short_halts_and_shrinks_with_long_ones() {
        let mut poll = 0;
        let mut seen = Vec::new();
        for _ in 0..6 {
            poll = next_poll(poll, 200_000, GROW_START, 150_000);
            seen.push(poll);
        }
        assert_eq!(seen, [10_000, 20_000, 40_000, 80_000, 160_000, 160_000]);
        let long = |polls| next_poll(polls, 200_000, GROW_START, 1_000_000);
        assert_eq!(long(160_000), 80_000);
        assert_eq!(long(10_000), 0);
        assert_eq!(long(0), 0);
    }
}
