// SPDX-License-Identifier: GPL-2.0-only
//! What a trial leaves: every sample, in one JSON file, without a name of anybody or anything.
//!
//! Each slot holds the hash of what comes before it, so that a slot which was changed, dropped or
//! moved shows. Whoever writes all hashes again can still forge a bundle: the last hash, which is
//! printed, tells whether it is the file of that day.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use baton_testbed::hash;
use serde::{Deserialize, Serialize};

use crate::claim::Verdict;
use crate::plan::{Plan, Who};

pub const FORMAT: &str = "baton-trial 1";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    pub format: String,
    pub host: HostFacts,
    pub plan: Plan,
    pub slots: Vec<Slot>,
    /// None: the trial was killed.
    pub end: Option<End>,
}

/// What one has to know of a host to read the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFacts {
    /// Version of these programs.
    pub baton: String,
    /// Release of the kernel.
    pub kernel: String,
    /// As /proc/cpuinfo calls it.
    pub cpu: String,
    pub cpus: u32,
    /// What 'baton doctor' found, by id.
    pub findings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// The hash of the slot before, of the first one that of the plan.
    pub before: String,
    pub who: Who,
    /// Seconds since the trial began.
    pub began_s: f64,
    pub samples: Vec<Sample>,
    /// What the probe printed, in order.
    pub probe: Vec<Probed>,
}

/// Counters of the host at one moment, and of each VM: they grow from when the trial first saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Seconds since the slot began.
    pub at_s: f64,
    /// In USER_HZ, all CPUs together, as in /proc/stat.
    pub busy: u64,
    pub idle: u64,
    /// /proc/pressure/cpu, "some".
    pub pressure_us: Option<u64>,
    pub vms: Vec<VmTimes>,
    /// What the synthetic VMs have done.
    pub work: Option<f64>,
}

/// `[VM, vCPUs, ms that they ran, ms that they waited for a CPU]`: VMs are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmTimes(pub u32, pub u32, pub f64, pub f64);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probed {
    /// Seconds since the slot began: from when on it ran, and when it ended.
    pub from_s: f64,
    pub to_s: f64,
    pub value: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    pub before: String,
    /// Why it ended before the plan did.
    pub aborted: Option<Abort>,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Abort {
    /// `q`, Ctrl-C, or a terminal that was closed.
    User,
    KernelWarning,
    Probe,
    /// A VM waited much longer for CPUs than under the kernel's scheduler.
    Ready,
    /// scx_baton did not start, or did not stay.
    Scheduler,
    /// The synthetic VMs failed.
    Synthetic,
    /// No samples were taken for a while.
    Hole,
    /// The bundle cannot be written.
    Bundle,
}

impl Abort {
    pub fn words(self) -> &'static str {
        match self {
            Abort::User => "the user ended it",
            Abort::KernelWarning => "the kernel warned of something",
            Abort::Probe => "the probe failed",
            Abort::Ready => "a VM waited too long for CPUs",
            Abort::Scheduler => "scx_baton did not start, or did not stay",
            Abort::Synthetic => "the synthetic VMs failed",
            Abort::Hole => "seconds without a sample",
            Abort::Bundle => "the bundle could not be written",
        }
    }
}

impl Slot {
    /// Whether it lasted as long as planned, and was looked at all the time: nobody knows what was
    /// in a hole.
    pub fn is_whole(&self, plan: &Plan) -> bool {
        let hole_s = plan.dropped_s.max(1.0);
        let lasted = |last: &Sample| (0.0..hole_s).contains(&(last.at_s - plan.slot_s));
        self.samples.last().is_some_and(lasted)
            && self.samples.windows(2).all(|pair| pair[1].at_s - pair[0].at_s < hole_s)
    }

    /// The samples that count.
    pub fn kept(&self, plan: &Plan) -> &[Sample] {
        let first = self.samples.partition_point(|sample| sample.at_s < plan.dropped_s);
        &self.samples[first..]
    }
}

impl Bundle {
    pub fn new(host: HostFacts, plan: Plan) -> Bundle {
        Bundle { format: FORMAT.into(), host, plan, slots: Vec::new(), end: None }
    }

    /// What the next slot, or the end, has to hold.
    pub fn last_hash(&self) -> Result<String> {
        match self.slots.last() {
            Some(slot) => hash_of(slot),
            None => self.head_hash(),
        }
    }

    pub fn head_hash(&self) -> Result<String> {
        Ok(hash::texts(&[
            self.format.clone(),
            serde_json::to_string(&self.host)?,
            serde_json::to_string(&self.plan)?,
        ]))
    }

    /// Of the whole: None before the end.
    pub fn seal(&self) -> Result<Option<String>> {
        self.end.as_ref().map(hash_of).transpose()
    }

    pub fn push(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    pub fn text(&self) -> Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Errors: no bundle, or one of another version.
    pub fn parse(text: &str) -> Result<Bundle> {
        let value: serde_json::Value = serde_json::from_str(text).context("it is no JSON")?;
        match value["format"].as_str() {
            Some(FORMAT) => {}
            Some(other) => bail!("its format is '{other}', this program reads '{FORMAT}'"),
            None => bail!("it is no bundle of 'baton trial'"),
        }
        serde_json::from_value(value).context("it is no whole bundle of 'baton trial'")
    }
}

/// The mean of what vCPUs waited between two samples, in % of their time.
pub fn ready_percent(before: &Sample, now: &Sample) -> Option<f64> {
    let then: BTreeMap<u32, f64> = before.vms.iter().map(|vm| (vm.0, vm.3)).collect();
    let pair = |vm: &VmTimes| Some((vm.3 - then.get(&vm.0)?, f64::from(vm.1)));
    let all = now.vms.iter().filter_map(pair);
    let (ready, vcpus) = all.fold((0.0, 0.0), |(ready, vcpus), (r, v)| (ready + r, vcpus + v));
    let seconds = now.at_s - before.at_s;
    (vcpus > 0.0 && seconds > 0.0).then(|| ready / (vcpus * seconds * 10.0))
}

pub fn hash_of<T: Serialize>(part: &T) -> Result<String> {
    Ok(hash::bytes(serde_json::to_string(part)?.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Measure;
    use crate::tests::bundle;

    #[test]
    fn a_bundle_is_read_as_it_was_written() -> Result<()> {
        let bundle =
            bundle(Measure::Ready, 3, |who, _| if who == Who::Kernel { 20.0 } else { 10.0 })?;
        let again = Bundle::parse(&bundle.text()?)?;
        assert_eq!(again, bundle);
        again.verify()?;
        // Killed before its end.
        Bundle { end: None, ..again }.verify()
    }

    /// Each number and each word that is changed shows.
    #[test]
    fn what_was_changed_shows() -> Result<()> {
        let bundle =
            bundle(Measure::Ready, 3, |who, _| if who == Who::Kernel { 20.0 } else { 10.0 })?;
        let text = bundle.text()?;
        let mut changed = 0;
        for (at, byte) in text.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_digit()) {
            let other = if byte == b'9' { '8' } else { char::from(byte + 1) };
            let edited = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            if let Ok(edited) = Bundle::parse(&edited)
                && edited != bundle
            {
                changed += 1;
                // The hash of the end is printed, not in the file.
                assert!(edited.verify().is_err() || edited.seal()? != bundle.seal()?, "{at}");
            }
        }
        assert!(changed > 1000, "{changed}");
        let mut dropped = bundle.clone();
        dropped.slots.remove(4);
        let mut swapped = bundle.clone();
        swapped.slots.swap(1, 2);
        let mut better = bundle.clone();
        better.end.as_mut().context("no end")?.verdict.claim = crate::claim::Claim::Worse;
        for edited in [dropped, swapped, better] {
            assert!(edited.verify().is_err());
        }
        Ok(())
    }

    /// Where it looks best.
    #[test]
    fn a_trial_cannot_be_cut_short() -> Result<()> {
        let mut bundle = bundle(Measure::Ready, 4, |_, _| 20.0)?;
        bundle.slots.truncate(12);
        bundle.finish(None)?;
        let error = bundle.verify().unwrap_err().to_string();
        assert!(error.contains("slots are missing"), "{error}");
        Ok(())
    }

    #[test]
    fn a_slot_with_a_hole_does_not_count() -> Result<()> {
        let bundle = bundle(Measure::Ready, 3, |_, _| 20.0)?;
        let plan = &bundle.plan;
        let cut = |from: usize, to: usize| {
            let mut slot = bundle.slots[0].clone();
            slot.samples.drain(from..to);
            slot.is_whole(plan)
        };
        assert!(cut(10, 13) && !cut(10, 14) && !cut(28, 31));
        let mut late = bundle.slots[0].clone();
        late.samples.iter_mut().skip(30).for_each(|sample| sample.at_s += 6.0);
        assert!(!late.is_whole(plan));
        Ok(())
    }

    #[test]
    fn what_is_no_bundle_is_told() {
        for (text, why) in [
            ("", "no JSON"),
            ("{}", "no bundle"),
            ("[]", "no bundle"),
            ("{\"format\": \"baton-trial 2\"}", "its format is 'baton-trial 2'"),
            ("{\"format\": \"baton-trial 1\"}", "no whole bundle"),
        ] {
            let error = format!("{:#}", Bundle::parse(text).unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
