// SPDX-License-Identifier: GPL-2.0-only
//! Memory settings that take CPU time.

use crate::finding::{Finding, Level};
use crate::fix::{Fix, Write};
use crate::scene::Scene;
use crate::text::{chosen, commas};

pub const FINDINGS: &[Finding] = &[
    Finding {
        id: "numa-bal",
        level: Level::Cost,
        title: "automatic NUMA balancing is on, and will not see vCPUs",
        cost: "Under sched_ext the kernel does not scan a vCPU thread's memory: a VM's pages no \
               longer follow it, and what other threads' scans cost buys less. Not measured.",
        mend: "sysctl kernel.numa_balancing=0, and bind VMs to a node (libvirt: <numatune> and \
               <vcpu cpuset=…>; Proxmox: numa: 1 with affinity)",
        explain: "/proc/sys/kernel/numa_balancing is not 0, and the host has more than one node. \
                  The scans hang on the fair scheduler's tick (task_tick_fair()), which threads of \
                  sched_ext do not have.",
        look: |scene| {
            let nodes = nodes(scene);
            let mode = scene.number(NUMA_BALANCING).unwrap_or(0);
            if mode == 0 || nodes < 2 {
                return vec![];
            }
            vec![format!("numa_balancing = {mode}, {nodes} nodes")]
        },
        fix: Some(Fix { writes: |_| vec![Write::new(NUMA_BALANCING, "0")] }),
    },
    Finding {
        id: "ksm",
        level: Level::Cost,
        title: "KSM merges pages",
        cost: "Its thread takes CPU time, and a guest that writes to a merged page waits for a \
               copy. Not measured.",
        mend: "echo 0 > /sys/kernel/mm/ksm/run keeps what is merged, echo 2 undoes it, if memory \
               suffices; systemctl disable --now ksmtuned ksm, where they set it",
        explain: "/sys/kernel/mm/ksm/run is 1: the thread ksmd looks for equal pages of guests.",
        look: |scene| {
            let sharing = scene.number("/sys/kernel/mm/ksm/pages_sharing").unwrap_or(0);
            let runs = scene.number(KSM_RUN) == Some(1);
            let line = || format!("ksm/run = 1, {} pages saved", commas(sharing));
            if runs { vec![line()] } else { vec![] }
        },
        fix: Some(Fix { writes: |_| vec![Write::new(KSM_RUN, "0")] }),
    },
    Finding {
        id: "thp",
        level: Level::Cost,
        title: "transparent huge pages are off, or waited for",
        cost: "Off: a guest's TLB misses walk more levels. defrag=always: a vCPU whose page fault \
               finds no huge page waits for compaction. Not measured.",
        mend: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; the same for defrag",
        explain: "enabled is [never], or defrag is [always], in \
                  /sys/kernel/mm/transparent_hugepage. QEMU asks for huge pages by madvise(); VMs \
                  whose memory is in hugetlbfs need none of this.",
        look: |scene| {
            let line = |(path, _): (&str, &str)| {
                let value = scene.read(path)?;
                let name = path.rsplit('/').next()?;
                Some(format!("transparent_hugepage/{name} = {}", chosen(&value)))
            };
            pages(scene).into_iter().filter_map(line).collect()
        },
        fix: Some(Fix {
            writes: |scene| {
                let those = pages(scene).into_iter();
                those.map(|(path, value)| Write::new(path, value)).collect()
            },
        }),
    },
];

const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";
const KSM_RUN: &str = "/sys/kernel/mm/ksm/run";

/// What is set badly, and what would be better.
fn pages(scene: &Scene) -> Vec<(&'static str, &'static str)> {
    let files = [
        ("/sys/kernel/mm/transparent_hugepage/enabled", "never"),
        ("/sys/kernel/mm/transparent_hugepage/defrag", "always"),
    ];
    let is_bad =
        |(path, bad): &(&str, &str)| scene.read(path).is_some_and(|value| chosen(&value) == *bad);
    files.into_iter().filter(is_bad).map(|(path, _)| (path, "madvise")).collect()
}

fn nodes(scene: &Scene) -> usize {
    let names = scene.host.list("/sys/devices/system/node");
    let is_node = |name: &&String| {
        let number = name.strip_prefix("node");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    names.iter().filter(is_node).count()
}
