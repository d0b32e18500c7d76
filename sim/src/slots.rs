// SPDX-License-Identifier: GPL-2.0-only
//! Memory slots on a vCPU's way out of the guest: whatever KVM reads of the guest's memory there,
//! it looks a frame's slot up first (`gfn_to_memslot()`; Mammedov 2014).

use memslots::{Flags, Hint, Slot, Snapshot};
use rand_core::RngCore;
use serde::Deserialize;

use crate::machine::{Costs, Ns};

/// How KVM finds a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lookup {
    /// A walk, the largest slot first (before Mammedov 2014).
    Linear,
    /// The slot that was found last, else a walk.
    LinearLast,
    /// The same, else a search by frame (Mammedov 2014, Linux 3.19; the memslots crate).
    Search,
}

/// Of a VM: what [`Slot::backing`] holds is the slot's place in the order of sizes.
pub struct Slots {
    snapshot: Snapshot<u32>,
    /// First frames of those in use.
    used: Vec<u64>,
}

/// One look-up in so many may be of another slot than the one before ("mostly the same", Mammedov
/// 2014).
const ANOTHER: u64 = 10;

impl Slots {
    /// `n` slots, at least one, of which the `used` largest are in use.
    pub fn new(n: u32, used: u32) -> Self {
        let mut base_gfn = 0;
        let slots = (0..n).map(|id| {
            let npages = u64::from(n - id) * 16;
            let slot = Slot { id, flags: Flags::NONE, base_gfn, npages, backing: id };
            base_gfn += npages;
            slot
        });
        let slots: Vec<Slot<u32>> = slots.collect();
        let used = slots.iter().take(used as usize).map(|slot| slot.base_gfn).collect();
        Slots { snapshot: Snapshot::try_from(slots).expect("slots side by side"), used }
    }

    /// What one look-up of a vCPU takes that keeps this `hint` and last looked for `gfn`.
    pub fn look_up(
        &self,
        lookup: Lookup,
        costs: &Costs,
        random: &mut impl RngCore,
        gfn: &mut u64,
        hint: &mut Hint,
    ) -> Ns {
        if random.next_u64().is_multiple_of(ANOTHER) {
            *gfn = self.used[random.next_u64() as usize % self.used.len()];
        }
        let before = *hint;
        let Some(slot) = self.snapshot.find_near(*gfn, hint) else { return 0 };
        let walk = f64::from(slot.backing + 1) * costs.slot_step_ns;
        let ns = match lookup {
            Lookup::Linear => walk,
            _ if before == *hint => costs.slot_step_ns,
            Lookup::LinearLast => walk,
            Lookup::Search => costs.slot_search_ns,
        };
        ns.round() as Ns
    }
}
