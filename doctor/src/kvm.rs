// SPDX-License-Identifier: GPL-2.0-only
//! KVM's module parameters and statistics.

use baton_haltpoll::STATE;

use crate::finding::{Finding, Level};
use crate::fix::{Fix, Write};
use crate::scene::Scene;
use crate::text::commas;

pub const FINDINGS: &[Finding] = &[
    Finding {
        id: "ple-off",
        level: Level::Cost,
        title: "PAUSE-loop exits are off",
        cost: "KVM does not notice that a vCPU spins, so no directed yield comes of it: lost are \
               the yields of --yield-policy kvm and ipi. Not measured.",
        mend: "with all VMs stopped: modprobe -r kvm_intel && modprobe kvm_intel ple_gap=128, or \
               modprobe -r kvm_amd && modprobe kvm_amd pause_filter_count=3000; see \
               /etc/modprobe.d for who switched it off",
        explain: "ple_gap of kvm_intel or pause_filter_count of kvm_amd is 0: by an option of the \
                  module, or because the CPU (or the hypervisor below, if this host is a VM) has \
                  no PAUSE-loop exiting.",
        look: |scene| {
            let files = [("kvm_intel", "ple_gap"), ("kvm_amd", "pause_filter_count")];
            let line = |(module, name): (&str, &str)| {
                let off = scene.number(&parameter(module, name)) == Some(0);
                off.then(|| format!("{module}.{name} = 0"))
            };
            files.into_iter().filter_map(line).collect()
        },
        fix: None,
    },
    Finding {
        id: "halt-poll",
        level: Level::Cost,
        title: "KVM polls at HLT in vain",
        cost: "What polls holds a CPU that others may want. Measured here, simulated: KVM's \
               default polls 0.72 of 12 CPUs away for 10,543 instead of 9,244 synchronous writes \
               a second (docs/halt-polling.md).",
        mend: "scx_baton --halt-poll auto, which sets the limit by what halts there are; or echo \
               200000 > /sys/module/kvm/parameters/halt_poll_ns (KVM's default), or less",
        explain: "halt_poll_ns is above a millisecond, or more time was polled in vain \
                  (halt_poll_fail_ns in /sys/kernel/debug/kvm, of the VMs that run now) than with \
                  success, and that was more than 1 % of all CPU time since the host was booted. \
                  Under Baton polling ends at once when a vCPU waits for the CPU. --fix sets a \
                  limit above a millisecond to 200,000 ns.",
        look: polling,
        fix: Some(Fix {
            writes: |scene| {
                // It is scx_baton's while that governs it, and put back by --restore if it was
                // killed.
                if limit(scene) <= LONG_NS || scene.host.exists(STATE) {
                    return vec![];
                }
                vec![Write::new(parameter("kvm", "halt_poll_ns"), "200000")]
            },
        }),
    },
    Finding {
        id: "guest-poll",
        level: Level::Note,
        title: "halts are polled by others than this KVM",
        cost: "Not measured. Baton's governor of halt polling leaves such VMs alone.",
        mend: "nothing, if it is meant; else: in the guest, another cpuidle governor than haltpoll",
        explain: "A VM has halted 100,000 times and KVM polled not once, with halt_poll_ns above \
                  0: its VMM has set a limit of its own (KVM_CAP_HALT_POLL), or its guest polls \
                  itself (cpuidle-haltpoll) and has told KVM not to. Or this host is itself a VM \
                  whose idle driver is haltpoll: while its CPUs are idle, they poll.",
        look: polled_by_others,
        fix: None,
    },
    Finding {
        id: "ipiv",
        level: Level::Note,
        title: "the CPU delivers guests' IPIs itself",
        cost: "Baton sees only part of the IPIs (AMD: those to vCPUs that do not run) or none \
               (Intel): --yield-policy sent and ipi do less. Not measured: no such hardware has \
               run it.",
        mend: "nothing: it is faster for guests whose vCPUs run. To try without: modprobe \
               kvm_intel enable_ipiv=0, modprobe kvm_amd avic=0",
        explain: "enable_ipiv of kvm_intel or avic of kvm_amd is Y, in /sys/module/…/parameters.",
        look: |scene| {
            let files = [("kvm_intel", "enable_ipiv"), ("kvm_amd", "avic")];
            let line = |(module, name): (&str, &str)| {
                let on = is_yes(scene, module, name);
                on.then(|| format!("{module}.{name} = Y"))
            };
            files.into_iter().filter_map(line).collect()
        },
        fix: None,
    },
    Finding {
        id: "l1tf",
        level: Level::Note,
        title: "KVM flushes the L1 data cache when it enters a guest",
        cost: "Each switch between vCPUs costs more. Not measured.",
        mend: "nothing, where guests are not trusted: Documentation/admin-guide/hw-vuln/l1tf.rst \
               of the kernel says what kvm-intel.vmentry_l1d_flush= decides",
        explain: "/sys/devices/system/cpu/vulnerabilities/l1tf says 'VMX: conditional cache \
                  flushes' or 'VMX: cache flushes'. The conditional flush comes after what might \
                  have brought secrets into the cache, such as a switch to another thread.",
        look: |scene| {
            let path = "/sys/devices/system/cpu/vulnerabilities/l1tf";
            let text = scene.read(path).filter(|text| text.contains("cache flushes"));
            text.into_iter().collect()
        },
        fix: None,
    },
    Finding {
        id: "msrs",
        level: Level::Note,
        title: "KVM ignores guests' accesses to MSRs that it does not know",
        cost: "Not measured. A guest that reads 0 where it expects a feature may choose a slower \
               way, silently.",
        mend: "echo 0 > /sys/module/kvm/parameters/ignore_msrs, if no guest needs it (some of \
               macOS and Windows crash without)",
        explain: "ignore_msrs of the module kvm is Y: what should fail reads as 0 and is dropped \
                  when written.",
        look: |scene| {
            let ignores = is_yes(scene, "kvm", "ignore_msrs");
            if ignores { vec!["kvm.ignore_msrs = Y".into()] } else { vec![] }
        },
        fix: None,
    },
];

const DEBUGFS: &str = "/sys/kernel/debug/kvm";

/// Longer than a wake-up takes by far.
const LONG_NS: u64 = 1_000_000;

fn parameter(module: &str, name: &str) -> String {
    format!("/sys/module/{module}/parameters/{name}")
}

fn is_yes(scene: &Scene, module: &str, name: &str) -> bool {
    scene.read(&parameter(module, name)).is_some_and(|value| value == "Y" || value == "1")
}

fn limit(scene: &Scene) -> u64 {
    scene.number(&parameter("kvm", "halt_poll_ns")).unwrap_or(0)
}

fn polling(scene: &Scene) -> Vec<String> {
    let limit = limit(scene);
    let mut lines = Vec::new();
    if limit > LONG_NS {
        lines.push(format!("halt_poll_ns = {limit}"));
    }
    let polled = |name: &str| scene.number(&format!("{DEBUGFS}/{name}"));
    let (Some(failed), Some(hit)) = (polled("halt_poll_fail_ns"), polled("halt_poll_success_ns"))
    else {
        return lines;
    };
    let uptime = scene.read("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    let all_ns = uptime.unwrap_or(0.0) * 1e9 * scene.online.len().max(1) as f64;
    let share = failed as f64 / all_ns;
    if limit > 0 && failed > hit && share.is_finite() && share > 0.01 {
        let (failed, hit) = (commas(failed / 1_000_000_000), commas(hit / 1_000_000_000));
        let vain = format!("{failed} s, {:.1} % of all CPU time", share * 100.0);
        lines.push(format!("polled in vain for {vain}, with success for {hit} s"));
    }
    lines
}

fn polled_by_others(scene: &Scene) -> Vec<String> {
    const MANY: u64 = 100_000;
    let mut lines = Vec::new();
    let driver = scene.read("/sys/devices/system/cpu/cpuidle/current_driver");
    if driver.as_deref() == Some("haltpoll") {
        lines.push("this host's idle driver is haltpoll: it is itself a VM".into());
    }
    if limit(scene) == 0 {
        return lines;
    }
    for entry in scene.host.list(DEBUGFS) {
        let pid = entry.split_once('-').and_then(|(pid, _)| pid.parse::<i32>().ok());
        let Some(vm) = pid.and_then(|pid| scene.vms.iter().find(|vm| vm.pid == pid)) else {
            continue;
        };
        let counter = |name: &str| scene.number(&format!("{DEBUGFS}/{entry}/{name}"));
        let (halts, polls) = (counter("halt_exits"), counter("halt_attempted_poll"));
        if let (Some(halts @ MANY..), Some(0)) = (halts, polls) {
            lines.push(format!("{}: {} halts, none polled by KVM", vm.name, commas(halts)));
        }
    }
    lines
}
