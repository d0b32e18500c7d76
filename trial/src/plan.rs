// SPDX-License-Identifier: GPL-2.0-only
//! What a trial does, fixed before it begins.

use std::time::Duration;

use baton_testbed::hash;
use serde::{Deserialize, Serialize};

/// Slots of a block: ABBA or BAAB, so that a load that grows steadily counts for both alike.
pub const BLOCK: usize = 4;

/// A t-interval of fewer than six pairs is too wide for any effect that one would expect.
pub const CLAIM_BLOCKS: usize = 3;

/// Who schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    Kernel,
    Baton,
}

impl Who {
    pub fn word(self) -> &'static str {
        match self {
            Who::Kernel => "kernel",
            Who::Baton => "baton",
        }
    }
}

/// What is compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Measure {
    /// The share of their time for which vCPUs wait for a pCPU: run_delay of /proc/PID/schedstat.
    Ready,
    /// What the user's command prints.
    Probe { lower_is_better: bool },
    /// Work of VMs that the trial itself runs, a second.
    Work { test: String, vms: u32, vcpus: u32 },
}

impl Measure {
    pub fn lower_is_better(&self) -> bool {
        matches!(self, Measure::Ready | Measure::Probe { lower_is_better: true })
    }

    /// What one says of a slot, for people.
    pub fn words(&self) -> String {
        match self {
            Measure::Ready => "time that vCPUs wait for a CPU, in % (%RDY)".into(),
            Measure::Probe { lower_is_better } => {
                let better = if *lower_is_better { "lower" } else { "higher" };
                format!("what the probe prints, {better} is better")
            }
            Measure::Work { test, vms, vcpus } => {
                format!(
                    "work of {vms} synthetic VMs of {vcpus} vCPUs, {test} of 'baton bench list'"
                )
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub seed: u64,
    /// Seconds of a slot, and those at its beginning that are dropped: tasks settle on their
    /// queues.
    pub slot_s: f64,
    pub dropped_s: f64,
    pub order: Vec<Who>,
    pub measure: Measure,
    /// The kernel schedules in the slots that are called Baton's, too: what noise alone gives.
    pub control: bool,
}

impl Plan {
    /// As many whole blocks as fit in `time`.
    pub fn new(time: Duration, slot: Duration, seed: u64, measure: Measure, control: bool) -> Plan {
        let slot_s = slot.as_secs_f64();
        let blocks = (time.as_secs_f64() / slot_s / BLOCK as f64 + 1e-9) as usize;
        // 5 s of 30.
        let dropped_s = slot_s / 6.0;
        Plan { seed, slot_s, dropped_s, order: order(seed, blocks), measure, control }
    }

    pub fn blocks(&self) -> usize {
        self.order.len() / BLOCK
    }

    /// Whether this order is the one of its seed.
    pub fn is_of_its_seed(&self) -> bool {
        self.order.len().is_multiple_of(BLOCK) && self.order == order(self.seed, self.blocks())
    }
}

/// The first block begins with the kernel, since how long vCPUs wait under it bounds what they may
/// wait under Baton; the others begin with either at random.
fn order(seed: u64, blocks: usize) -> Vec<Who> {
    use Who::{Baton, Kernel};
    let block = |place: usize| {
        let hash = hash::texts(&[seed.to_string(), place.to_string()]);
        match place > 0 && hash.starts_with(['8', '9', 'a', 'b', 'c', 'd', 'e', 'f']) {
            true => [Baton, Kernel, Kernel, Baton],
            false => [Kernel, Baton, Baton, Kernel],
        }
    };
    (0..blocks).flat_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seconds: u64, seed: u64) -> Plan {
        let (time, slot) = (Duration::from_secs(seconds), Duration::from_secs(30));
        Plan::new(time, slot, seed, Measure::Ready, false)
    }

    #[test]
    fn blocks_are_balanced_and_random() {
        let plans: Vec<Plan> = (0..64).map(|seed| plan(360, seed)).collect();
        for plan in &plans {
            assert_eq!((plan.order.len(), plan.dropped_s), (12, 5.0));
            assert!(plan.is_of_its_seed());
            assert_eq!(plan.order[0], Who::Kernel);
            for pair in plan.order.chunks(2) {
                assert_ne!(pair[0], pair[1]);
            }
            for block in plan.order.chunks(BLOCK) {
                assert_eq!((block[0], block[1]), (block[3], block[2]));
            }
        }
        let second = plans.iter().filter(|plan| plan.order[4] == Who::Baton).count();
        assert!((16..48).contains(&second), "{second} of 64");
        let edited = Plan { seed: 1, order: plan(360, 0).order, ..plan(120, 1) };
        assert!(plans.iter().any(|plan| plan.order != edited.order));
    }

    #[test]
    fn only_whole_blocks_fit() {
        let slots = |seconds| plan(seconds, 7).order.len();
        assert_eq!((slots(119), slots(120), slots(239), slots(240)), (0, 4, 4, 8));
        let short = Plan { order: vec![Who::Kernel; 3], ..plan(120, 7) };
        assert!(!short.is_of_its_seed());
    }
}
