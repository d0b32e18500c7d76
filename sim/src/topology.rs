// SPDX-License-Identifier: GPL-2.0-only
//! Which pCPUs there are, what they share, and which of them a scenario means.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::machine::{Cpu, CpuSet};

/// How pCPUs are numbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Siblings {
    /// The hyper-threads of a core one after the other.
    #[default]
    Adjacent,
    /// First one of each core of the host, then the others, as most firmware does.
    Split,
}

/// Where something may run: numbers and ranges of pCPUs ("0-7,64-71"), or "llc" or "node", of which
/// each one that is made gets the next.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Where(pub String);

impl Where {
    /// That of the one with this number, of those that there are.
    ///
    /// Errors: it is no such list, or it names a pCPU that there is not.
    pub fn of(&self, number: u32, cpus: &[Cpu]) -> Result<CpuSet> {
        let shared: fn(&Cpu) -> u32 = match self.0.as_str() {
            "llc" => |cpu| cpu.llc,
            "node" => |cpu| cpu.node,
            list => return listed(list, cpus.len() as u32),
        };
        let n = cpus.iter().map(shared).max().unwrap_or(0) + 1;
        let mut set = CpuSet::empty(cpus.len());
        let of_it = (0..).zip(cpus).filter(|(_, cpu)| shared(cpu) == number % n);
        of_it.for_each(|(cpu, _)| set.insert(cpu));
        Ok(set)
    }
}

/// Those of a list.
///
/// Errors: it is no such list, or it names a pCPU that there is not.
pub(crate) fn listed(list: &str, pcpus: u32) -> Result<CpuSet> {
    let mut set = CpuSet::empty(pcpus as usize);
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let parsed = text.trim().parse::<u32>();
            parsed.with_context(|| {
                format!("\"{list}\" is no list as \"0-3,8\", nor \"llc\" or \"node\"")
            })
        };
        let (first, last) = (number(first)?, number(last)?);
        ensure!(first <= last, "\"{range}\" ends before it begins");
        ensure!(last < pcpus, "there is no pCPU {last}; there are {pcpus}, from 0 on");
        (first..=last).for_each(|cpu| set.insert(cpu));
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::NONE;
    use crate::scenario::Host;

    fn host(text: &str) -> Host {
        let costs = include_str!("../machines/rome-192.toml");
        let costs = &costs[costs.find("[costs]").unwrap()..];
        Host::parse(&format!("hz = 250\n{text}\n{costs}")).unwrap()
    }

    #[test]
    fn split_numbers_put_siblings_half_of_the_host_apart() {
        let host = host("sockets = 2\ncores = 8\nthreads = 2\nllc-cores = 4\nsiblings = \"split\"");
        let cpus = host.cpus(32);
        assert_eq!((cpus[0].sibling, cpus[31].sibling), (16, 15));
        let llcs: Vec<u32> = cpus.iter().map(|cpu| cpu.llc).collect();
        assert_eq!(llcs[..16], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
        assert_eq!(llcs[16..], llcs[..16]);
        assert_eq!((cpus[7].node, cpus[8].node, cpus[24].node), (0, 1, 1));
        // Of fewer pCPUs none has a sibling that is not there.
        assert!(host.cpus(16).iter().all(|cpu| cpu.sibling == NONE));
    }

    #[test]
    fn adjacent_numbers_put_siblings_side_by_side() {
        let cpus = host("sockets = 1\ncores = 4\nthreads = 2\nnodes = 2").cpus(8);
        assert_eq!((cpus[0].sibling, cpus[7].sibling), (1, 6));
        assert_eq!((cpus[3].node, cpus[4].node, cpus[7].llc), (0, 1, 0));
    }

    #[test]
    fn where_names_pcpus_or_what_they_share() {
        let cpus = host("sockets = 2\ncores = 4\nthreads = 1\nllc-cores = 2").cpus(8);
        let of = |text: &str, number| Where(text.into()).of(number, &cpus);
        let all = |text: &str, number| of(text, number).unwrap().iter().collect::<Vec<_>>();
        assert_eq!(all("0-2, 6", 5), [0, 1, 2, 6]);
        assert_eq!(all("llc", 5), [2, 3]);
        assert_eq!(all("node", 3), [4, 5, 6, 7]);
        for (text, why) in [("8", "no pCPU 8"), ("3-1", "ends before"), ("cores", "no list")] {
            let error = format!("{:#}", of(text, 0).unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
