// SPDX-License-Identifier: GPL-2.0-only
//! What a trial shows: computed from a bundle alone, so that anybody can do it again.

use std::collections::BTreeMap;

use baton_report::stats::median;

use crate::bundle::{Abort, Bundle, Slot, VmTimes};
pub use crate::claim::{Claim, Interval, Pair, Verdict};
use crate::plan::{BLOCK, CLAIM_BLOCKS, Measure, Plan, Who};

/// Where vCPUs that want a CPU wait for less than this share of the time, there is nothing to gain.
const LEAST_WAITING: f64 = 0.01;

/// A share of waiting below this one, in %, counts as this one: nothing has a logarithm.
pub const FLOOR_READY: f64 = 0.01;

impl Verdict {
    pub fn of(bundle: &Bundle, aborted: Option<Abort>) -> Verdict {
        let (plan, slots) = (&bundle.plan, &bundle.slots);
        let whole = slots.iter().take_while(|slot| slot.is_whole(plan)).count();
        let pairs: Vec<Pair> = (0..whole / 2).map(|at| pair(plan, slots, at * 2)).collect();
        let both = |pair: &Pair| pair.baton.zip(pair.kernel);
        let values: Vec<(f64, f64)> = pairs.iter().filter_map(both).collect();
        let ratio = Interval::of(&values);
        let control = Interval::of(&controls(plan, &slots[..whole]));
        let claim = if aborted.is_some() {
            Claim::Aborted
        } else if values.len() < CLAIM_BLOCKS * BLOCK / 2 {
            Claim::TooShort
        } else if plan.measure == Measure::Ready
            && [Who::Kernel, Who::Baton]
                .into_iter()
                .all(|who| waiting(plan, &slots[..whole], who) < LEAST_WAITING)
        {
            Claim::Idle
        } else if ratio.is_none() {
            Claim::Nothing
        } else if control.is_some_and(|control| control.tells()) {
            Claim::Drift
        } else {
            claim(ratio, plan.measure.lower_is_better())
        };
        Verdict { claim, ratio, control, pairs }
    }

    /// For people: what was shown, and what was not.
    pub fn words(&self, plan: &Plan) -> String {
        let what = match &plan.measure {
            _ if plan.control => "what was measured in the kernel's other slots was {} that",
            Measure::Ready => "vCPUs waited {} as long for a CPU with Baton",
            Measure::Probe { .. } => "with Baton the probe printed {} what it printed without it",
            Measure::Work { .. } => "the synthetic VMs did {} as much work with Baton",
        };
        let figure =
            self.ratio.map(|ratio| what.replace("{}", &format!("{} times", ratio.words())));
        let figure = figure.unwrap_or_else(|| "nothing could be compared".into());
        let verdict = match self.claim {
            Claim::Better => format!("Better: {figure}."),
            Claim::Worse => format!("Worse: {figure}."),
            Claim::NotShown => format!("No difference shown: {figure}."),
            Claim::Nothing => "No claim, since a slot has no value above 0.".to_owned(),
            Claim::Aborted => format!("No claim, since the trial ended early: {figure}."),
            Claim::TooShort => format!(
                "No claim, since that takes {} pairs of slots: {figure}.",
                CLAIM_BLOCKS * BLOCK / 2
            ),
            Claim::Drift => format!(
                "No claim, since the kernel's own slots differ: the load changed. {}{}.",
                figure[..1].to_uppercase(),
                &figure[1..]
            ),
            Claim::Idle => format!(
                "No claim, since vCPUs that want a CPU wait for less than {} % of the time: there \
                 is nothing to gain.",
                100.0 * LEAST_WAITING
            ),
        };
        match plan.measure {
            Measure::Ready if !plan.control => {
                format!("{verdict} This is about waiting, not about work: --probe measures that.")
            }
            _ => verdict,
        }
    }
}

fn claim(ratio: Option<Interval>, lower_is_better: bool) -> Claim {
    match ratio {
        Some(ratio) if ratio.tells() && (ratio.ratio < 1.0) == lower_is_better => Claim::Better,
        Some(ratio) if ratio.tells() => Claim::Worse,
        _ => Claim::NotShown,
    }
}

/// Of the time for which vCPUs wanted a CPU in one's slots, the share that they waited.
fn waiting(plan: &Plan, slots: &[Slot], who: Who) -> f64 {
    let its = slots.iter().filter(|slot| slot.who == who);
    let (ready, ran) = its
        .flat_map(|slot| waits(plan, slot).into_values())
        .fold((0.0, 0.0), |(ready, ran), wait| (ready + wait.ready_ms, ran + wait.ran_ms));
    if ready > 0.0 { ready / (ready + ran) } else { 0.0 }
}

fn pair(plan: &Plan, slots: &[Slot], at: usize) -> Pair {
    let (first, second) = (&slots[at], &slots[at + 1]);
    let (kernel, baton) = match first.who {
        Who::Kernel => values(plan, first, second),
        Who::Baton => {
            let (baton, kernel) = values(plan, first, second);
            (kernel, baton)
        }
    };
    Pair { slot: at as u32, kernel, baton }
}

/// Of each block, the kernel's later slot beside its earlier one.
fn controls(plan: &Plan, slots: &[Slot]) -> Vec<(f64, f64)> {
    let of_block = |block: &[Slot]| {
        let mut kernels = block.iter().filter(|slot| slot.who == Who::Kernel);
        let (earlier, later) = values(plan, kernels.next()?, kernels.next()?);
        later.zip(earlier)
    };
    slots.chunks_exact(BLOCK).filter_map(of_block).collect()
}

/// The measure of two slots, of what was there in both.
fn values(plan: &Plan, a: &Slot, b: &Slot) -> (Option<f64>, Option<f64>) {
    match plan.measure {
        Measure::Ready => {
            let (of_a, of_b) = (waits(plan, a), waits(plan, b));
            let common = |of: &BTreeMap<u32, Wait>, other: &BTreeMap<u32, Wait>| {
                let both = of.iter().filter(|(vm, _)| other.contains_key(vm));
                let (ready, time) = both.fold((0.0, 0.0), |(ready, time), (_, wait)| {
                    (ready + wait.ready_ms, time + wait.vcpu_ms)
                });
                (time > 0.0).then(|| (100.0 * ready / time).max(FLOOR_READY))
            };
            (common(&of_a, &of_b), common(&of_b, &of_a))
        }
        Measure::Probe { .. } => (probed(plan, a), probed(plan, b)),
        Measure::Work { .. } => (work(plan, a), work(plan, b)),
    }
}

/// Of a VM in a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    pub ran_ms: f64,
    pub ready_ms: f64,
    /// Time that its vCPUs had together.
    pub vcpu_ms: f64,
}

/// Of each VM that was there when what counts began, and when it ended.
pub fn waits(plan: &Plan, slot: &Slot) -> BTreeMap<u32, Wait> {
    let kept = slot.kept(plan);
    let (Some(first), Some(last)) = (kept.first(), kept.last()) else { return BTreeMap::new() };
    let seconds = last.at_s - first.at_s;
    let before: BTreeMap<u32, &VmTimes> = first.vms.iter().map(|vm| (vm.0, vm)).collect();
    let wait = |vm: &VmTimes| {
        let then = before.get(&vm.0)?;
        let (ran_ms, ready_ms) = (vm.2 - then.2, vm.3 - then.3);
        let vcpu_ms = f64::from(vm.1) * seconds * 1e3;
        // Another VM with the same number cannot be, but a bundle can say anything.
        let forward = ran_ms >= 0.0 && ready_ms >= 0.0;
        forward.then_some((vm.0, Wait { ran_ms, ready_ms, vcpu_ms }))
    };
    last.vms.iter().filter_map(wait).collect()
}

fn probed(plan: &Plan, slot: &Slot) -> Option<f64> {
    let kept = slot.probe.iter().filter(|one| one.from_s >= plan.dropped_s);
    median(&kept.map(|one| one.value).collect::<Vec<_>>())
}

/// A second.
fn work(plan: &Plan, slot: &Slot) -> Option<f64> {
    let (first, last) = (slot.kept(plan).first()?, slot.kept(plan).last()?);
    let seconds = last.at_s - first.at_s;
    (seconds > 0.0).then_some((last.work? - first.work?) / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::bundle;
    use anyhow::{Context, Result};

    /// Numbers that look random, from 0 to 1.
    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        }
    }

    fn verdict(measure: Measure, blocks: u64, seed: u64, gain: f64, drift: f64) -> Result<Verdict> {
        let mut noise = noise(seed);
        // Sum of four: close to the normal distribution.
        let noises: Vec<f64> = (0..4 * blocks)
            .map(|_| 1.0 + 0.1 * ((0..4).map(|_| noise()).sum::<f64>() - 2.0))
            .collect();
        let bundle = bundle(measure, blocks, |who, place| {
            let load = 20.0 * noises[place] * (1.0 + drift * place as f64);
            if who == Who::Baton { load * gain } else { load }
        })?;
        Ok(bundle.end.map(|end| end.verdict).expect("finished"))
    }

    fn measures() -> [Measure; 4] {
        [
            Measure::Ready,
            Measure::Probe { lower_is_better: true },
            Measure::Probe { lower_is_better: false },
            Measure::Work { test: "barrier".into(), vms: 2, vcpus: 2 },
        ]
    }

    #[test]
    fn an_effect_is_found_and_its_size_is_in_the_interval() -> Result<()> {
        for measure in measures() {
            for (gain, falls) in [(0.5, true), (2.0, false)] {
                let right =
                    if falls == measure.lower_is_better() { Claim::Better } else { Claim::Worse };
                let found = verdict(measure.clone(), 3, 7, gain, 0.0)?;
                assert_eq!(found.claim, right, "{measure:?} {gain}");
                let ratio = found.ratio.expect("six pairs");
                let (low, high) = ratio.low.zip(ratio.high).expect("six pairs");
                assert!(low < gain && gain < high, "{ratio:?}");
            }
        }
        Ok(())
    }

    /// At a confidence of 99 %, with a steady load and one that grows by 3 % from slot to slot.
    #[test]
    fn where_there_is_no_effect_something_is_found_in_one_of_twenty_at_most() -> Result<()> {
        for drift in [0.0, 0.03] {
            let mut found = 0;
            for seed in 0..1000 {
                let claim = verdict(Measure::Ready, 3, seed, 1.0, drift)?.claim;
                assert!(
                    [Claim::Better, Claim::Worse, Claim::NotShown, Claim::Drift].contains(&claim)
                );
                found += u32::from(matches!(claim, Claim::Better | Claim::Worse));
            }
            assert!(found <= 50, "{found} of 1000 with a drift of {drift}");
        }
        Ok(())
    }

    /// As a job does that begins in the middle of each block.
    #[test]
    fn a_load_that_changes_with_the_slots_makes_no_claim() -> Result<()> {
        let found = bundle(Measure::Ready, 3, |who, place| {
            let load = if place % 4 < 2 { 20.0 } else { 40.0 + place as f64 };
            if who == Who::Baton { load / 2.0 } else { load }
        })?;
        assert_eq!(Verdict::of(&found, None).claim, Claim::Drift, "{:?}", found.end);
        Ok(())
    }

    #[test]
    fn what_is_short_idle_or_aborted_makes_no_claim() -> Result<()> {
        assert_eq!(verdict(Measure::Ready, 2, 7, 0.5, 0.0)?.claim, Claim::TooShort);
        let mut idle = bundle(Measure::Ready, 3, |_, _| 0.0)?;
        assert_eq!(Verdict::of(&idle, None).claim, Claim::Idle);
        assert_eq!(Verdict::of(&idle, Some(Abort::User)).claim, Claim::Aborted);
        // A slot that has no end has no value, and what comes behind it neither.
        idle.slots[3].samples.truncate(20);
        assert_eq!(Verdict::of(&idle, None).pairs.len(), 1);
        Ok(())
    }

    /// vCPUs that wait for 0.5 % of the time under the kernel, and for 5 % under Baton.
    #[test]
    fn harm_is_told_where_nothing_was_to_be_gained() -> Result<()> {
        let mut noise = noise(3);
        let noises: Vec<f64> = (0..12).map(|_| 1.0 + 0.1 * noise()).collect();
        let mut calm = bundle(Measure::Ready, 3, |who, place| {
            noises[place] * if who == Who::Baton { 5.0 } else { 0.5 }
        })?;
        for sample in calm.slots.iter_mut().flat_map(|slot| &mut slot.samples) {
            sample.vms[0].2 = sample.at_s * 1900.0;
        }
        assert_eq!(Verdict::of(&calm, None).claim, Claim::Worse);
        let none = bundle(Measure::Probe { lower_is_better: false }, 3, |who, _| {
            if who == Who::Baton { 0.0 } else { 5.0 }
        })?;
        assert_eq!(Verdict::of(&none, None).claim, Claim::Nothing);
        Ok(())
    }

    /// Only what was there in both slots of a pair is compared.
    #[test]
    fn a_vm_that_comes_or_goes_does_not_count() -> Result<()> {
        let mut bundle = bundle(Measure::Ready, 3, |_, _| 20.0)?;
        let before = Verdict::of(&bundle, None);
        for sample in &mut bundle.slots[1].samples {
            sample.vms.push(VmTimes(2, 8, 0.0, sample.at_s * 8000.0));
        }
        for sample in bundle.slots[2].samples.iter_mut().skip(10) {
            sample.vms.push(VmTimes(3, 8, 0.0, sample.at_s * 8000.0));
        }
        assert_eq!(Verdict::of(&bundle, None), before);
        Ok(())
    }

    /// JSON would have null in their place, and nobody could read the bundle.
    #[test]
    fn values_that_are_too_large_have_no_ratio() {
        let most = f64::INFINITY;
        assert_eq!(Interval::of(&[(most, most), (1.0, 2.0)]), None);
        assert_eq!(Interval::of(&[(most, 1.0)]), None);
        let wide = Interval::of(&[(1e308, 1.0), (1.0, 1e308)]).expect("they have a ratio");
        assert!(wide.low.is_none() && wide.high.is_none() && wide.ratio == 1.0, "{wide:?}");
    }

    #[test]
    fn bounds_that_say_nothing_are_not_printed() -> Result<()> {
        let two = Interval::of(&[(1.0, 2.0), (4.0, 1.0)]).context("it has a ratio")?;
        assert_eq!(two.words(), "1.41 (too few pairs for bounds)");
        let one = Interval::of(&[(1.0, 2.0)]).context("it has a ratio")?;
        assert_eq!(one.words(), "0.50");
        let four = [(1.0, 1.0), (1.0, 1.1), (1.0, 0.9), (1.0, 1.0)];
        let four = Interval::of(&four).context("it has a ratio")?;
        assert!(four.words().starts_with("1.00 (0."), "{}", four.words());
        Ok(())
    }

    #[test]
    fn every_verdict_is_a_sentence() -> Result<()> {
        for measure in measures() {
            for (gain, drift, blocks) in
                [(0.5, 0.0, 3), (1.0, 0.0, 3), (2.0, 0.5, 3), (1.0, 0.0, 1)]
            {
                let found = bundle(measure.clone(), blocks, |who, place| {
                    let load = 20.0 * (1.0 + drift * place as f64);
                    if who == Who::Baton { load * gain } else { load }
                })?;
                let words = found.end.as_ref().expect("finished").verdict.words(&found.plan);
                assert!(words.ends_with('.') && !words.contains("NaN"), "{words}");
                assert!(!words.contains("{}") && !words.contains(".."), "{words}");
            }
        }
        Ok(())
    }
}
