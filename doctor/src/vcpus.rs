// SPDX-License-Identifier: GPL-2.0-only
//! vCPU threads: where they may run, and how they are scheduled.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::{Finding, Level};
use crate::scene::{Scene, SeenVm};
use crate::text::{and, count, ranges};

pub const FINDINGS: &[Finding] = &[
    Finding {
        id: "core-cookie",
        level: Level::Blocker,
        title: "vCPUs have core-scheduling cookies, and SMT is on",
        cost: "Hosts with both have been reported to hang under sched_ext schedulers, all CPUs at \
               once, without a message (https://github.com/sched-ext/scx/issues/3715).",
        mend: "switch core scheduling off in the VMM (Cloud Hypervisor, whose default it is: \
               --cpus boot=N,core_scheduling=off), or switch SMT off (echo off > \
               /sys/devices/system/cpu/smt/control)",
        explain: "A VMM can ask the kernel, by prctl(PR_SCHED_CORE), that only threads with the \
                  same cookie run on the siblings of a core. Asked here of each vCPU's thread \
                  (PR_SCHED_CORE_GET); that needs root. /sys/devices/system/cpu/smt/active is 1. \
                  Which kernels are free of it is not known to doctor.",
        look: cookies,
        fix: None,
    },
    Finding {
        id: "rt-vcpu",
        level: Level::Cost,
        title: "vCPUs have a real-time policy",
        cost: "They run before every thread of Baton's and are never preempted by it: it neither \
               schedules nor boosts them, and what waits behind one that spins waits. Not \
               measured.",
        mend: "chrt --other --pid 0 TID; in libvirt, remove <vcpusched> from <cputune>",
        explain: "Policy 1 (SCHED_FIFO), 2 (SCHED_RR) or 6 (SCHED_DEADLINE) in /proc/PID/task/TID/\
                  stat. /proc/sys/kernel/sched_rt_runtime_us = -1 switches the \
                  kernel's limit for such threads off.",
        look: real_time,
        fix: None,
    },
    Finding {
        id: "vcpu-stack",
        level: Level::Cost,
        title: "two vCPUs of a VM may run on one single CPU",
        cost: "They never run at once: one that waits for the other, spinning, spins until its \
               slice ends. Not measured.",
        mend: "let them go: virsh vcpupin VM VCPU 0-LAST --live, taskset --cpu-list --pid \
               0-LAST TID",
        explain: "Cpus_allowed_list in /proc/PID/task/TID/status has one CPU, and the same one, \
                  for several vCPUs of a VM. No scheduler can place them better.",
        look: stacked,
        fix: None,
    },
    Finding {
        id: "oversize",
        level: Level::Cost,
        title: "a VM has more vCPUs than CPUs that it may run on",
        cost: "Its vCPUs can never all run at once, whatever the others do. Not measured.",
        mend: "give it more CPUs (virsh vcpupin, AllowedCPUs= of its unit) or fewer vCPUs (virsh \
               setvcpus VM N)",
        explain: "Counts the CPUs that are online in the Cpus_allowed_list of its vCPUs' threads, \
                  all together. Baton runs such a VM in turns.",
        look: |scene| scene.vms.iter().filter_map(|vm| oversized(scene, vm)).collect(),
        fix: None,
    },
];

fn cookies(scene: &Scene) -> Vec<String> {
    if scene.read("/sys/devices/system/cpu/smt/active").as_deref() != Some("1") {
        return vec![];
    }
    let line = |vm: &SeenVm| {
        let have = vm.vcpus.iter().filter(|vcpu| scene.cookie(vcpu.tid).is_some()).count();
        let all = count(vm.vcpus.len() as u64, "vCPU");
        (have > 0).then(|| format!("{}: {have} of {all} with a cookie", vm.name))
    };
    scene.vms.iter().filter_map(line).collect()
}

fn real_time(scene: &Scene) -> Vec<String> {
    let policies = [(1, "SCHED_FIFO"), (2, "SCHED_RR"), (6, "SCHED_DEADLINE")];
    let mut lines = Vec::new();
    for vm in &scene.vms {
        for (number, name) in policies {
            let those = vm.vcpus.iter().filter(|vcpu| vcpu.policy == Some(number));
            let ids: Vec<String> = those.map(|vcpu| vcpu.id.to_string()).collect();
            if !ids.is_empty() {
                lines.push(format!("{}: {name}: vCPU {}", vm.name, and(&ids)));
            }
        }
    }
    let unlimited = scene.read("/proc/sys/kernel/sched_rt_runtime_us").as_deref() == Some("-1");
    if unlimited && !lines.is_empty() {
        lines.push("sched_rt_runtime_us = -1: they have no limit".into());
    }
    lines
}

fn stacked(scene: &Scene) -> Vec<String> {
    let mut lines = Vec::new();
    for vm in &scene.vms {
        let mut on: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for vcpu in &vm.vcpus {
            let Some(allowed) = vcpu.allowed.as_ref().filter(|set| set.len() == 1) else {
                continue;
            };
            for &cpu in allowed {
                on.entry(cpu).or_default().push(vcpu.id.to_string());
            }
        }
        let several = on.iter().filter(|(_, vcpus)| vcpus.len() > 1);
        lines.extend(several.map(|(cpu, vcpus)| {
            format!("{}: vCPUs {} may run on CPU {cpu} alone", vm.name, and(vcpus))
        }));
    }
    lines
}

fn oversized(scene: &Scene, vm: &SeenVm) -> Option<String> {
    let mut may: BTreeSet<u32> = BTreeSet::new();
    for vcpu in &vm.vcpus {
        may.extend(vcpu.allowed.as_ref()?);
    }
    if !scene.online.is_empty() {
        may.retain(|cpu| scene.online.contains(cpu));
    }
    let (vcpus, cpus) = (vm.vcpus.len() as u64, may.len() as u64);
    let line = || {
        let (vcpus, cpus) = (count(vcpus, "vCPU"), count(cpus, "CPU"));
        format!("{}: {vcpus} on {cpus} ({})", vm.name, ranges(&may))
    };
    (cpus > 0 && vcpus > cpus).then(line)
}
