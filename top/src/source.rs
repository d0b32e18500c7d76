// SPDX-License-Identifier: GPL-2.0-only
//! Where samples come from: scx_baton if it runs, else the kernel.

use crate::kernel::Kernel;
use crate::notes::Doctor;
use crate::sample::Sample;
use crate::threads::HostThreads;
use crate::wanted::Wanted;
use crate::{baton, host};
use baton_counters::{Client, Metrics};
use baton_hostinfo::Host;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// KVM counts none of it.
const WITHOUT: &str = "scx_baton does not run: co-stop, spinning, PLE/s and boosts are not known";

pub struct Source {
    host: Host,
    began: Instant,
    client: Option<Client>,
    kernel: Kernel,
    threads: HostThreads,
    doctor: Option<Doctor>,
}

impl Source {
    pub fn here() -> Source {
        let (host, kernel) = (Host::here(), Kernel::default());
        let (began, threads) = (Instant::now(), HostThreads::default());
        Source { host, began, client: None, kernel, threads, doctor: None }
    }

    pub fn call_doctor(&mut self) {
        self.doctor = Doctor::call();
    }

    /// What is known now; of vCPUs also where they are not asked for, but cost nothing.
    pub fn sample(&mut self, wanted: &Wanted) -> Sample {
        let host = host::sample(&self.host);
        let told = match host.scheduler.as_str() {
            "baton" => self.ask(wanted.vcpus),
            _ => Err(WITHOUT.to_owned()),
        };
        let at_s = self.began.elapsed().as_secs_f64();
        let wall_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let (baton, mut vms) = match told {
            Ok(told) => (Ok(baton::yields(&told)), baton::vms(told)),
            Err(why) => {
                self.client = None;
                (Err(why), self.kernel.sample(&self.host))
            }
        };
        self.threads.sample(&self.host, &mut vms, |vm| wanted.threads_of(vm));
        let notes = self.doctor.as_ref().and_then(Doctor::told);
        Sample { at_s, wall_s, host, baton, vms, notes }
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
