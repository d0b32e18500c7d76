// SPDX-License-Identifier: GPL-2.0-only
//! The machine's CPUs and clocks, and who watches them.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::{Finding, Level};
use crate::fix::{Fix, Write};
use crate::scene::Scene;
use crate::text::ranges;

pub const FINDINGS: &[Finding] = &[
    Finding {
        id: "clock",
        level: Level::Cost,
        title: "the host's clock is slow to read",
        cost: "Every reading is an access to a device, and guests' kvm-clock works without system \
               calls only on a host whose clock is the TSC. Not measured.",
        mend: "dmesg | grep -i -e tsc -e clocksource says why the kernel gave the TSC up; if it is \
               available again: echo tsc > \
               /sys/devices/system/clocksource/clocksource0/current_clocksource",
        explain: "current_clocksource is hpet, acpi_pm, jiffies or refined-jiffies. The kernel \
                  falls back to these when its watchdog finds the TSC unstable.",
        look: |scene| {
            let directory = "/sys/devices/system/clocksource/clocksource0";
            let clock = scene.read(&format!("{directory}/current_clocksource")).unwrap_or_default();
            let slow = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"].contains(&&*clock);
            let all = scene.read(&format!("{directory}/available_clocksource"));
            let line = || format!("{clock}, of {}", all.unwrap_or_default());
            if slow { vec![line()] } else { vec![] }
        },
        fix: None,
    },
    Finding {
        id: "governor",
        level: Level::Cost,
        title: "CPUs are kept at their lowest frequency",
        cost: "All that runs is slower by as much as the clock. Not measured.",
        mend: "cpupower frequency-set -g schedutil, or performance",
        explain: "scaling_governor is powersave, and the driver is not one to which that word \
                  means something else (intel_pstate and amd-pstate-epp raise the frequency with \
                  load under the same name). --fix takes schedutil where there is one, else \
                  performance.",
        look: |scene| {
            let mut by: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
            for (cpu, driver) in slow_cpus(scene) {
                by.entry(driver).or_default().insert(cpu);
            }
            let line = |(driver, cpus): (&String, &BTreeSet<u32>)| {
                format!("powersave, by {driver}: CPUs {}", ranges(cpus))
            };
            by.iter().map(line).collect()
        },
        fix: Some(Fix {
            writes: |scene| {
                let write = |(cpu, _): (u32, String)| {
                    let all = scene.read(&cpufreq(cpu, "scaling_available_governors"))?;
                    let has = |name: &&str| all.split_whitespace().any(|word| word == *name);
                    let best = ["schedutil", "performance"].into_iter().find(has)?;
                    Some(Write::new(cpufreq(cpu, "scaling_governor"), best))
                };
                slow_cpus(scene).into_iter().filter_map(write).collect()
            },
        }),
    },
    Finding {
        id: "nohz-full",
        level: Level::Note,
        title: "CPUs are meant to run without a tick (nohz_full)",
        cost: "Under Baton their tick stays: each slice ends, so that a waiting VM is seen. Not \
               measured.",
        mend: "nothing; if those CPUs are for pinned vCPUs alone, do not expect them to be without \
               interruption",
        explain: "/sys/devices/system/cpu/nohz_full names CPUs. docs/kernels.md.",
        look: |scene| {
            let list = scene.read("/sys/devices/system/cpu/nohz_full").unwrap_or_default();
            let some = list.starts_with(|c: char| c.is_ascii_digit());
            if some { vec![format!("nohz_full: CPUs {list}")] } else { vec![] }
        },
        fix: None,
    },
    Finding {
        id: "steal",
        level: Level::Cost,
        title: "this host is a VM, and waits for CPUs itself",
        cost: "A vCPU that Baton runs may not run, and no scheduler here can tell. Not measured.",
        mend: "more CPU for this host where it runs",
        explain: "The column steal of /proc/stat is 1 % or more of all CPU time since the host was \
                  booted.",
        look: |scene| steal(scene).into_iter().collect(),
        fix: None,
    },
    Finding {
        id: "wait-metric",
        level: Level::Note,
        title: "an exporter reads libvirt's vcpu.N.wait",
        cost: "Under sched_ext that counter stands still: panels and alerts made of it show no \
               waiting.",
        mend: "use vcpu.N.delay (libvirt_domain_vcpu_delay_seconds_total, \
               kubevirt_vmi_vcpu_delay_seconds_total), which goes on",
        explain: "wait is the kernel's wait_sum, which the fair scheduler keeps; delay is \
                  run_delay of /proc/PID/schedstat, which the kernel keeps for every class. Seen \
                  by the names of processes: libvirt's exporters, KubeVirt's virt-handler.",
        look: exporters,
        fix: None,
    },
];

fn cpufreq(cpu: u32, file: &str) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{file}")
}

/// CPUs whose governor keeps them slow, and their driver.
fn slow_cpus(scene: &Scene) -> Vec<(u32, String)> {
    let slow = |&cpu: &u32| {
        let governor = scene.read(&cpufreq(cpu, "scaling_governor"))?;
        let driver = scene.read(&cpufreq(cpu, "scaling_driver")).unwrap_or_default();
        let active = ["intel_pstate", "amd-pstate-epp"].contains(&&*driver);
        (governor == "powersave" && !active).then_some((cpu, driver))
    };
    scene.online.iter().filter_map(slow).collect()
}

fn steal(scene: &Scene) -> Option<String> {
    let text = scene.read("/proc/stat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times = line.split_whitespace().take(8).map(|field| field.parse::<f64>().ok());
    let times: Vec<f64> = times.collect::<Option<_>>()?;
    let percent = times.get(7)? / times.iter().sum::<f64>() * 100.0;
    (percent.is_finite() && percent >= 1.0).then(|| format!("steal: {percent:.1} % since boot"))
}

fn exporters(scene: &Scene) -> Vec<String> {
    // The kernel cuts names after 15 bytes.
    const NAMES: [&str; 4] =
        ["libvirt-exporte", "libvirt_exporte", "prometheus-libv", "virt-handler"];
    let mut lines = Vec::new();
    for pid in scene.host.list("/proc") {
        if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let comm = scene.read(&format!("/proc/{pid}/comm")).unwrap_or_default();
        if NAMES.contains(&&*comm) {
            lines.push(format!("process {pid} ({comm})"));
        }
    }
    lines
}
