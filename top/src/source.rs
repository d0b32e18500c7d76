// SPDX-License-Identifier: GPL-2.0-only
//! Where samples come from: scx_baton if it runs, else the kernel.

use crate::baton::Baton;
use crate::host;
use crate::kernel::Kernel;
use crate::sample::{Sample, VmSample, Yields};
use baton_hostinfo::Host;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub struct Source {
    host: Host,
    began: Instant,
    baton: Option<Baton>,
    kernel: Kernel,
}

impl Source {
    pub fn here() -> Source {
        let (host, kernel) = (Host::here(), Kernel::default());
        Source { host, began: Instant::now(), baton: None, kernel }
    }

    /// What is known now; of vCPUs only where they are asked for, or cost nothing.
    pub fn sample(&mut self, vcpus: bool) -> Sample {
        let host = host::sample(&self.host);
        let told = match host.scheduler.as_str() {
            "baton" => self.ask(vcpus),
            _ => Err("scx_baton does not run: of co-stop, spinning and boosts nothing is known"
                .to_owned()),
        };
        let at_s = self.began.elapsed().as_secs_f64();
        let wall_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let (baton, vms) = match told {
            Ok((yields, vms)) => (Ok(yields), vms),
            Err(why) => {
                self.baton = None;
                (Err(why), self.kernel.sample(&self.host))
            }
        };
        Sample { at_s, wall_s, host, baton, vms }
    }

    fn ask(&mut self, vcpus: bool) -> Result<(Yields, Vec<VmSample>), String> {
        if self.baton.is_none() {
            self.baton = Some(Baton::connect().map_err(|why| format!("{why:#}"))?);
        }
        match &mut self.baton {
            Some(baton) => baton.ask(vcpus).map_err(|why| format!("{why:#}")),
            None => Err("scx_baton has gone".to_owned()),
        }
    }
}
