// SPDX-License-Identifier: GPL-2.0-only
//! Bundles of a busy host that is not there: random, and plausible.
// No test file uses all of it.
#![allow(dead_code)]

use std::time::Duration;

use anyhow::Result;

use crate::bundle::{Abort, Bundle, HostFacts, Probed, Sample, Slot, VmTimes};
use crate::plan::{Measure, Plan, Who};

/// Numbers that look random, from 0 to 1.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }

    /// Around 1, seldom further away than `width`.
    fn around(&mut self, width: f64) -> f64 {
        1.0 + width * ((0..4).map(|_| self.next()).sum::<f64>() - 2.0)
    }
}

pub struct Busy {
    pub vms: u32,
    pub blocks: u32,
    pub measure: Measure,
    pub control: bool,
    /// What Baton makes of the time that vCPUs wait.
    pub gain: f64,
}

impl Default for Busy {
    fn default() -> Busy {
        Busy { vms: 24, blocks: 3, measure: Measure::Ready, control: false, gain: 0.55 }
    }
}

/// What a VM is like.
struct Vm {
    vcpus: u32,
    ran: f64,
    ready: f64,
    /// Slots in which it is there.
    from: usize,
    to: usize,
}

impl Busy {
    pub fn bundle(&self) -> Result<Bundle> {
        let slot = Duration::from_secs(30);
        let plan = Plan::new(slot * 4 * self.blocks, slot, 5, self.measure.clone(), self.control);
        let host = HostFacts {
            baton: "0.1.0".into(),
            kernel: "6.12.57+deb13-amd64".into(),
            cpu: "AMD EPYC 9354P 32-Core Processor".into(),
            cpus: 64,
            findings: vec!["halt-poll".into(), "oversize".into()],
        };
        let mut noise = Noise(u64::from(self.vms) + 77);
        let slots = plan.order.len();
        let vms: Vec<Vm> = (1..=self.vms).map(|number| vm(number, slots, &mut noise)).collect();
        let mut bundle = Bundle::new(host, plan);
        let mut counted: Vec<(f64, f64)> = vec![(0.0, 0.0); vms.len()];
        let mut done = 0.0;
        for place in 0..slots {
            let slot = self.slot(&bundle, place, &vms, &mut counted, &mut done, &mut noise)?;
            bundle.push(slot);
        }
        bundle.finish(None)?;
        Ok(bundle)
    }

    fn slot(
        &self,
        bundle: &Bundle,
        place: usize,
        vms: &[Vm],
        counted: &mut [(f64, f64)],
        done: &mut f64,
        noise: &mut Noise,
    ) -> Result<Slot> {
        let (plan, who) = (&bundle.plan, bundle.plan.order[place]);
        let gain = if who == Who::Baton && !self.control { self.gain } else { 1.0 };
        let load = noise.around(0.08);
        let mut samples = Vec::new();
        for second in 0..=plan.slot_s as u32 {
            // Tasks settle.
            let settling = if second > 0 && second < 4 { 1.6 } else { 1.0 };
            let mut times = Vec::new();
            for (at, vm) in vms.iter().enumerate() {
                if second > 0 {
                    let wait = vm.ready * load * gain * settling * noise.around(0.3).max(0.0);
                    counted[at].0 += vm.ran * f64::from(vm.vcpus) * 1e3 * noise.around(0.1);
                    counted[at].1 += wait * f64::from(vm.vcpus) * 1e3;
                }
                if (vm.from..vm.to).contains(&place) {
                    let round = |ms: f64| (ms * 1e6).round() / 1e6;
                    let (ran, ready) = counted[at];
                    times.push(VmTimes(at as u32 + 1, vm.vcpus, round(ran), round(ready)));
                }
            }
            *done += 41_000.0 / gain.sqrt() * noise.around(0.05);
            let work = matches!(self.measure, Measure::Work { .. }).then_some(*done);
            let (busy, idle) = (u64::from(second) * 5900, u64::from(second) * 500);
            let at_s = f64::from(second);
            samples.push(Sample { at_s, busy, idle, pressure_us: None, vms: times, work });
        }
        let mut probe = Vec::new();
        let mut from_s = plan.dropped_s + 0.05;
        while matches!(self.measure, Measure::Probe { .. }) && from_s + 3.0 < plan.slot_s {
            let to_s = from_s + 2.5 * noise.around(0.2);
            probe.push(Probed { from_s, to_s, value: 1830.0 / gain.sqrt() * noise.around(0.05) });
            from_s = to_s + 0.05;
        }
        let began_s = place as f64 * (plan.slot_s + 0.4);
        Ok(Slot { before: bundle.last_hash()?, who, began_s, samples, probe })
    }
}

fn vm(number: u32, slots: usize, noise: &mut Noise) -> Vm {
    let vcpus = 1 << (noise.next() * 4.0) as u32;
    // Few wait long.
    let ready = 0.002 + 0.28 * noise.next().powi(4) + 0.03 * noise.next();
    let ran = 0.1 + 0.6 * noise.next();
    let (from, to) = match number {
        // One that is started, and one that is stopped.
        5 => (slots / 3 + 1, slots),
        9 => (0, slots * 2 / 3),
        _ => (0, slots),
    };
    Vm { vcpus, ran, ready, from, to }
}

/// It ended in the last of so many slots, after so many seconds.
pub fn cut(mut bundle: Bundle, slots: usize, seconds: usize, end: Option<Abort>) -> Result<Bundle> {
    bundle.slots.truncate(slots);
    if let Some(last) = bundle.slots.last_mut() {
        last.samples.truncate(seconds + 1);
        last.probe.retain(|run| run.to_s < seconds as f64);
    }
    bundle.end = None;
    if end.is_some() {
        bundle.finish(end)?;
    }
    Ok(bundle)
}
