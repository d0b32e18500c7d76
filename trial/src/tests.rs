// SPDX-License-Identifier: GPL-2.0-only
//! Bundles of hosts that are not there.

use std::time::Duration;

use anyhow::Result;

use crate::bundle::{Bundle, HostFacts, Probed, Sample, Slot, VmTimes};
use crate::plan::{Measure, Plan, Who};

/// A host with one VM of two vCPUs, which wait for `value` % of slot `place`; a probe prints that
/// and synthetic VMs do it, too.
pub fn bundle(measure: Measure, blocks: u64, value: impl Fn(Who, usize) -> f64) -> Result<Bundle> {
    let slot = Duration::from_secs(30);
    let plan = Plan::new(slot * 4 * blocks as u32, slot, 5, measure, false);
    let order = plan.order.clone();
    let mut bundle = Bundle::new(HostFacts::default(), plan);
    let (mut ready, mut done) = (0.0, 0.0);
    for (place, who) in order.into_iter().enumerate() {
        let value = value(who, place);
        let samples = (0..=30).map(|second| {
            let percent = if second == 0 { 0.0 } else { value };
            ready += percent * 20.0;
            done += percent;
            let vms = vec![VmTimes(1, 2, ready, ready)];
            let (at_s, work) = (f64::from(second), Some(done));
            Sample { at_s, busy: 2, idle: 1, pressure_us: None, vms, work }
        });
        let samples = samples.collect();
        let probe = vec![Probed { from_s: 5.5, to_s: 20.0, value }];
        let (before, began_s) = (bundle.last_hash()?, place as f64 * 30.0);
        bundle.push(Slot { before, who, began_s, samples, probe });
    }
    bundle.finish(None)?;
    Ok(bundle)
}
