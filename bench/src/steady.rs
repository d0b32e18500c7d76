// SPDX-License-Identifier: GPL-2.0-only
//! VMs that do the same work until they are dropped, for whoever measures beside them.

use anyhow::{Context, Result, bail, ensure};

use crate::measurements::Gives;
use crate::run::{Bench, done};
use crate::vcpu::Running;

pub struct Steady {
    running: Vec<Running>,
}

impl Steady {
    /// The first of the bench's tests in as many VMs as its options have.
    ///
    /// Errors: it measures no rate, or a VM does not come up.
    pub fn start(bench: &Bench) -> Result<Steady> {
        let test = bench.tests.first().context("there is no test to run")?;
        ensure!(
            matches!(test.gives, Gives::Rate(_)),
            "{} measures a latency: only work can be counted",
            test.name
        );
        if let Some(why) = test.missing(&bench.kvm) {
            bail!("{}: {why}", test.name);
        }
        let spec = bench.spec(test);
        let vms = 0..bench.options.vms;
        let running = vms.map(|vm| bench.start(vm, spec.clone(), None, bench.options.pin));
        let running = running.collect::<Result<Vec<_>>>()?;
        bench.wait_up(&running)?;
        Ok(Steady { running })
    }

    /// What they have done so far, together.
    pub fn done(&self) -> f64 {
        self.running.iter().map(|running| done(&running.vm)).sum()
    }

    /// Why one of them does nothing any more.
    pub fn failure(&self) -> Option<String> {
        self.running.iter().find_map(Running::failure)
    }
}
