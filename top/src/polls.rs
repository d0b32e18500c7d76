// SPDX-License-Identifier: GPL-2.0-only
//! For how long KVM polls at HLTs, as it counts itself: debugfs, for root. Of what Baton counts
//! that is all that KVM has; it counts no PAUSE exits, and of directed yields those alone that
//! guests ask for by hypercall.

use crate::sample::VmSample;
use baton_hostinfo::Host;
use std::collections::BTreeMap;
use std::time::Instant;

/// VMs of which it is read for a sample. An open file would hold the VM after its end, so that each
/// is opened again, which takes ten times as long as to read one; many VMs take turns.
const EACH: usize = 50;

#[derive(Default)]
pub struct Polls {
    /// By directory.
    known: BTreeMap<String, Known>,
    /// Place of the first one whose turn it is.
    next: usize,
}

struct Known {
    at: Instant,
    ms: f64,
    /// Percent of the time of all vCPUs; `None`: it was read once.
    part: Option<f64>,
}

impl Polls {
    /// To VMs whose directories are these, in the same order.
    pub fn add<'a>(
        &mut self,
        host: &Host,
        directories: impl Iterator<Item = Option<&'a str>>,
        vms: &mut [VmSample],
    ) {
        let mut those: Vec<(&str, &mut VmSample)> =
            directories.zip(vms).filter_map(|(directory, vm)| Some((directory?, vm))).collect();
        let count = those.len();
        self.next = if self.next < count { self.next } else { 0 };
        for turn in 0..count.min(EACH) {
            let (directory, vm) = &those[(self.next + turn) % count];
            self.read(host, directory, vm.nr_vcpus);
        }
        self.next += EACH;
        for (directory, vm) in &mut those {
            vm.poll = self.known.get(*directory).and_then(|known| known.part);
        }
        if self.known.len() > count {
            self.known.retain(|known, _| those.iter().any(|(directory, _)| known == directory));
        }
    }

    fn read(&mut self, host: &Host, directory: &str, nr_vcpus: u32) {
        let ns = |file: &str| host.read(&format!("{directory}/{file}"))?.parse::<u64>().ok();
        let both = ns("halt_poll_success_ns").zip(ns("halt_poll_fail_ns"));
        let Some((hit, vain)) = both else {
            self.known.remove(directory);
            return;
        };
        let (at, ms) = (Instant::now(), (hit as f64 + vain as f64) / 1e6);
        let part = self.known.get(directory).map(|before| {
            let all = (at - before.at).as_secs_f64() * 1e3 * f64::from(nr_vcpus.max(1));
            100.0 * (ms - before.ms).max(0.0) / all.max(1e-3)
        });
        self.known.insert(directory.to_owned(), Known { at, ms, part });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Result;
    use std::thread::sleep;
    use std::time::Duration;

    #[test]
    fn polling_is_known_from_the_second_time_on() -> Result<()> {
        let root = tempfile::tempdir()?;
        let host = Host::at(root.path());
        let put = |vm: usize, hit: u64, vain: &str| {
            let directory = root.path().join(format!("kvm/{vm}"));
            fs::create_dir_all(&directory)?;
            fs::write(directory.join("halt_poll_success_ns"), hit.to_string())?;
            fs::write(directory.join("halt_poll_fail_ns"), vain)
        };
        let names: Vec<String> = (0..120).map(|vm| format!("/kvm/{vm}")).collect();
        let mut polls = Polls::default();
        let mut sample = |count: usize| {
            let mut vms = vec![VmSample { nr_vcpus: 2, ..VmSample::default() }; count + 1];
            let names = names.iter().take(count).map(|name| Some(name.as_str()));
            polls.add(&host, [None].into_iter().chain(names), &mut vms);
            vms.iter().map(|vm| vm.poll).collect::<Vec<_>>()
        };
        put(0, 5_000_000, "1000000")?;
        put(1, 5_000_000, "x")?;
        assert_eq!(sample(2), [None, None, None]);
        sleep(Duration::from_millis(20));
        // 12 ms of the 40 ms that the two vCPUs had, or of more.
        put(0, 10_000_000, "8000000")?;
        let [None, Some(part), None] = sample(2)[..] else { panic!("of one it is known") };
        assert!((1.0..=30.0).contains(&part), "{part}");
        // Less than before: others have its number.
        put(0, 0, "0")?;
        assert_eq!(sample(2), [None, Some(0.0), None]);
        // 120 take turns, three to see all of them, and three more.
        (0..120).try_for_each(|vm| put(vm, 7, "0"))?;
        let known = |parts: Vec<Option<f64>>| parts.iter().flatten().count();
        let counts: Vec<usize> = (0..6).map(|_| known(sample(120))).collect();
        assert!(counts[1] < 60 && counts[5] == 120, "{counts:?}");
        assert_eq!(known(sample(0)), 0);
        Ok(())
    }
}
