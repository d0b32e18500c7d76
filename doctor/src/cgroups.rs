// SPDX-License-Identifier: GPL-2.0-only
//! Shares and quotas of VMs.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::{Finding, Level};
use crate::scene::{Scene, SeenVm};
use crate::text::{commas, count};

pub const FINDINGS: &[Finding] = &[
    Finding {
        id: "quota-kernel",
        level: Level::Blocker,
        title: "a VM has a quota that this kernel does not tell a scheduler of",
        cost: "scx_baton leaves when it sees such a VM: it could not keep the quota.",
        mend: "remove the quota (echo max > FILE; virsh schedinfo VM --set vcpu_quota=-1; qm set \
               ID --delete cpulimit), or boot Linux 6.17 or later",
        explain: "From Linux 6.17 on the kernel tells a sched_ext scheduler of cpu.max \
                  (ops.cgroup_set_bandwidth), and Baton enforces it. Before, quotas are nobody's \
                  under sched_ext. Seen in cpu.max of each cgroup from a VM's threads upwards.",
        look: |scene| {
            let told = scene.version().is_none_or(|(major, minor, _)| (major, minor) >= (6, 17));
            let quotas = if told { vec![] } else { quotas(scene) };
            quotas
                .into_iter()
                .map(|(path, vms, quota)| format!("{vms}: {quota} in {path}"))
                .collect()
        },
        fix: None,
    },
    Finding {
        id: "cpu-ctl",
        level: Level::Cost,
        title: "a VM has no cpu.weight of its own",
        cost: "Baton shares the host by cpu.weight: without it a VM weighs as its slice or the \
               whole host does, however many others are in there. Not measured.",
        mend: "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1) if it is v1; else let \
               systemd enable the controller: systemctl set-property UNIT CPUWeight=100",
        explain: "The cgroup of the VM's unit (…scope or …service; else that of its process) has \
                  no file cpu.weight: the controller 'cpu' is missing in cgroup.subtree_control of \
                  the one above, or belongs to a hierarchy of cgroup v1.",
        look: |scene| scene.vms.iter().filter_map(|vm| weightless(scene, vm)).collect(),
        fix: None,
    },
    Finding {
        id: "throttle",
        level: Level::Cost,
        title: "a VM has been throttled by its quota",
        cost: "A throttled vCPU stands still for the rest of its period, with any lock that its \
               guest holds, while others spin for it. Not measured.",
        mend: "raise or remove the quota: echo max > /sys/fs/cgroup/PATH/cpu.max; use cpu.weight \
               to share",
        explain: "cpu.max has a limit, and cpu.stat beside it counts nr_throttled of nr_periods \
                  periods, since the cgroup was made. Under sched_ext the kernel's counters stand \
                  still.",
        look: throttled,
        fix: None,
    },
];

const CGROUPS: &str = "/sys/fs/cgroup";

/// The cgroup itself and those above, but for the root, which has neither weight nor quota.
fn upwards(path: &str) -> Vec<&str> {
    let mut rest = path.trim_end_matches('/');
    let mut all = Vec::new();
    while let Some((above, _)) = rest.rsplit_once('/') {
        all.push(rest);
        rest = above;
    }
    all
}

/// Quotas in force: the file, whose they are, and the limit.
fn quotas(scene: &Scene) -> Vec<(String, String, String)> {
    let mut users: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for vm in &scene.vms {
        for path in vm.cgroups.iter().flat_map(|path| upwards(path)) {
            let file = format!("{CGROUPS}{path}/cpu.max");
            users.entry(file).or_default().insert(&vm.name);
        }
    }
    let limited = |(file, vms): (String, BTreeSet<&str>)| {
        let quota = scene.read(&file)?;
        let limit = quota.split_whitespace().next()?;
        let who = match vms.len() {
            1..=3 => vms.into_iter().collect::<Vec<_>>().join(", "),
            many => count(many as u64, "VM"),
        };
        (limit != "max").then_some((file, who, quota))
    };
    users.into_iter().filter_map(limited).collect()
}

fn throttled(scene: &Scene) -> Vec<String> {
    let line = |(file, vms, quota): (String, String, String)| {
        let stat = scene.read(&file.replace("cpu.max", "cpu.stat"))?;
        let field = |key: &str| -> u64 {
            let of = |line: &str| line.strip_prefix(key)?.trim().parse().ok();
            stat.lines().find_map(of).unwrap_or(0)
        };
        let (times, periods) = (field("nr_throttled "), field("nr_periods "));
        let (times, periods) = (commas(times), (times > 0).then(|| commas(periods))?);
        Some(format!("{vms}: throttled in {times} of {periods} periods, {quota} in {file}"))
    };
    quotas(scene).into_iter().filter_map(line).collect()
}

fn weightless(scene: &Scene, vm: &SeenVm) -> Option<String> {
    if let Some(path) = &vm.cgroup_v1 {
        return Some(format!("{}: its controller 'cpu' is one of cgroup v1 ({path})", vm.name));
    }
    let path = vm.cgroups.first()?;
    let is_unit = |path: &&str| path.ends_with(".scope") || path.ends_with(".service");
    let own = upwards(path).into_iter().find(is_unit).unwrap_or(path).trim_end_matches('/');
    let has = scene.host.exists(&format!("{CGROUPS}{own}/cpu.weight"));
    (!has).then(|| format!("{}: no cpu.weight in {CGROUPS}{own}", vm.name))
}
