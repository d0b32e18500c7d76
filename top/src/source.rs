// SPDX-License-Identifier: GPL-2.0-only
//! Where samples come from: scx_baton if it runs, else the kernel.

use crate::kernel::Kernel;
use crate::sample::Sample;
use crate::{baton, host};
use baton_counters::{Client, Metrics};
use baton_hostinfo::Host;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub struct Source {
    host: Host,
    began: Instant,
    client: Option<Client>,
    kernel: Kernel,
}

impl Source {
    pub fn here() -> Source {
        let (host, kernel) = (Host::here(), Kernel::default());
        Source { host, began: Instant::now(), client: None, kernel }
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
            Ok(told) => (Ok(baton::yields(&told)), baton::vms(told)),
            Err(why) => {
                self.client = None;
                (Err(why), self.kernel.sample(&self.host))
            }
        };
        Sample { at_s, wall_s, host, baton, vms }
    }

    fn ask(&mut self, vcpus: bool) -> Result<Metrics, String> {
        let connect = || Client::connect(Path::new(Client::SOCKET));
        let mut client = self.client.take().map_or_else(connect, Ok);
        let told = client.as_mut().map_or_else(
            |why| Err(format!("{why:#}")),
            |client| client.totals(vcpus).map_err(|why| format!("{why:#}")),
        );
        self.client = client.ok();
        told
    }
}
