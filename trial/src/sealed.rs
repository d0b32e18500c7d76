// SPDX-License-Identifier: GPL-2.0-only
//! The end of a bundle, and whether all of it is as the trial wrote it.

use anyhow::{Result, ensure};

use crate::bundle::{Abort, Bundle, End, Sample, hash_of};
use crate::verdict::Verdict;

impl Bundle {
    /// Ends it; the verdict is computed from what there is.
    pub fn finish(&mut self, aborted: Option<Abort>) -> Result<()> {
        let (before, verdict) = (self.last_hash()?, Verdict::of(self, aborted));
        self.end = Some(End { before, aborted, verdict });
        Ok(())
    }

    /// Errors: what was changed after the trial.
    pub fn verify(&self) -> Result<()> {
        ensure!(self.plan.is_of_its_seed(), "its order of slots is not that of its seed");
        ensure!(self.slots.len() <= self.plan.order.len(), "it has more slots than its plan");
        let mut before = self.head_hash()?;
        for (place, slot) in self.slots.iter().enumerate() {
            ensure!(
                slot.before == before,
                "what comes before slot {} is not what the trial wrote",
                place + 1
            );
            ensure!(slot.who == self.plan.order[place], "slot {} is not as planned", place + 1);
            let forward = |pair: &[Sample]| pair[0].at_s <= pair[1].at_s;
            ensure!(slot.samples.windows(2).all(forward), "time in slot {} goes back", place + 1);
            before = hash_of(slot)?;
        }
        let plan = &self.plan;
        ensure!((plan.dropped_s - plan.slot_s / 6.0).abs() < 1e-9, "it drops other seconds");
        if let Some(end) = &self.end {
            ensure!(end.before == before, "what comes before its end is not what the trial wrote");
            ensure!(
                end.aborted.is_some() || self.slots.len() == plan.order.len(),
                "slots are missing of a trial that was not ended early"
            );
            let verdict = Verdict::of(self, end.aborted);
            ensure!(end.verdict.is_like(&verdict), "its verdict is not that of its samples");
        }
        Ok(())
    }
}
