// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel is built and booted with.

use crate::finding::{Finding, Level};
use crate::fix::{Fix, Write};
use crate::scene::Scene;

pub const FINDINGS: &[Finding] = &[
    Finding {
        id: "sched-ext",
        level: Level::Blocker,
        title: "this kernel has no sched_ext",
        cost: "scx_baton cannot start.",
        mend: "boot Linux 6.12 or later, built with CONFIG_SCHED_CLASS_EXT=y (Debian: apt install \
               -t trixie-backports linux-image-amd64)",
        explain: "Baton is a scheduler of the class sched_ext. A kernel that has it shows the \
                  directory /sys/kernel/sched_ext; there is none here. docs/kernels.md says which \
                  kernel each feature needs.",
        look: |scene| {
            let has = scene.host.exists("/sys/kernel/sched_ext");
            let line = || format!("Linux {}: no /sys/kernel/sched_ext", scene.release);
            if has { vec![] } else { vec![line()] }
        },
        fix: None,
    },
    Finding {
        id: "kernel-bug",
        level: Level::Blocker,
        title: "this kernel has a known bug in sched_ext",
        cost: "The host can hang while a sched_ext scheduler starts or runs.",
        mend: "boot a kernel outside the range, or one whose vendor says that it has the fix",
        explain: "Compares the kernel's release with a table of bugs that harm a host, each with a \
                  public report. Kernels of distributions may have a fix under an older number: \
                  their changelog tells.",
        look: kernel_bugs,
        fix: None,
    },
    Finding {
        id: "isolcpus",
        level: Level::Blocker,
        title: "CPUs are isolated on the kernel's command line",
        cost: "The kernel refuses every sched_ext scheduler.",
        mend: "take isolcpus= off the kernel's command line and reboot; to isolate CPUs use a \
               cpuset partition (echo isolated > /sys/fs/cgroup/NAME/cpuset.cpus.partition)",
        explain: "With isolcpus= and domain isolation, which is what it does unless its flags say \
                  otherwise (isolcpus=nohz,… or managed_irq,…), the kernel says 'sched_ext: Not \
                  compatible with \"isolcpus=\" domain isolation' and returns EINVAL. Seen in \
                  /proc/cmdline; /sys/devices/system/cpu/isolated is empty if the list of CPUs was \
                  no good.",
        look: isolcpus,
        fix: None,
    },
    Finding {
        id: "lockdown",
        level: Level::Blocker,
        title: "the kernel is locked down for confidentiality",
        cost: "The kernel refuses BPF programs that read its memory, as Baton's do.",
        mend: "boot with lockdown=integrity, or without lockdown=",
        explain: "In this mode bpf_probe_read_kernel() is not available to any BPF program \
                  (LOCKDOWN_BPF_READ_KERNEL). Seen in /sys/kernel/security/lockdown. From the \
                  kernel's source; not tried. The mode 'integrity' is no obstacle.",
        look: |scene| {
            let text = scene.read("/sys/kernel/security/lockdown").unwrap_or_default();
            let locked = text.contains("[confidentiality]");
            if locked { vec![format!("/sys/kernel/security/lockdown: {text}")] } else { vec![] }
        },
        fix: None,
    },
    Finding {
        id: "btf",
        level: Level::Blocker,
        title: "the kernel or KVM has no BTF",
        cost: "scx_baton cannot be loaded, or cannot see vCPUs.",
        mend: "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, and \
               CONFIG_DEBUG_INFO_BTF_MODULES=y if KVM is a module",
        explain: "BPF programs find the kernel's structures by BTF: /sys/kernel/btf/vmlinux, and \
                  /sys/kernel/btf/kvm if KVM is a module (it has /sys/module/kvm/refcnt then). A \
                  module that was built for another configuration of the kernel has none either.",
        look: btf,
        fix: None,
    },
    Finding {
        id: "panic-knob",
        level: Level::Cost,
        title: "a stall makes the kernel panic",
        cost: "A scheduler that stalls is ended by sched_ext's watchdog after 30 s, and the host \
               goes on; with these settings it may have rebooted by then. Not measured.",
        mend: "sysctl kernel.softlockup_panic=0 kernel.hung_task_panic=0 \
               kernel.panic_on_rcu_stall=0, at least for a first trial",
        explain: "softlockup_panic: a CPU has scheduled nothing for 20 s (twice watchdog_thresh); \
                  panic_on_rcu_stall: a grace period of RCU does not end; hung_task_panic: a task \
                  has waited for 120 s. Seen in /proc/sys/kernel. Whoever wants a cluster to fence \
                  a host that hangs sets them on purpose.",
        look: |scene| {
            let is_set = |name: &&str| scene.number(&knob(name)).is_some_and(|value| value > 0);
            let line = |name: &str| Some(format!("{name} = {}", scene.number(&knob(name))?));
            KNOBS.into_iter().filter(is_set).filter_map(line).collect()
        },
        fix: Some(Fix {
            writes: |scene| {
                let zero = |name| Write::new(knob(name), "0");
                let is_set = |name: &&str| scene.number(&knob(name)).is_some_and(|value| value > 0);
                KNOBS.into_iter().filter(is_set).map(zero).collect()
            },
        }),
    },
];

/// A bug that harms a host under any sched_ext scheduler.
struct Bug {
    first: (u32, u32, u32),
    last: (u32, u32, u32),
    what: &'static str,
    report: &'static str,
}

/// Only what a public report tells, with the releases that it tells of: where the fix came in is
/// not guessed.
const BUGS: [Bug; 1] = [Bug {
    // Came in with a5b98009f16d in 7.1-rc2; on 3 August 2026, after 7.1.3, the fix (fadeedd7cfc5)
    // was still on its way to 7.2 and 7.1.y.
    first: (7, 1, 0),
    last: (7, 1, 3),
    what: "a scheduler that starts while somebody sets up a PSI trigger, as systemd does, can \
           deadlock the host",
    report: "https://github.com/sched-ext/scx/issues/3716",
}];

fn kernel_bugs(scene: &Scene) -> Vec<String> {
    let Some(version) = scene.version() else { return vec![] };
    let hit = BUGS.iter().filter(|bug| (bug.first..=bug.last).contains(&version));
    hit.map(|bug| format!("Linux {}: {} ({})", scene.release, bug.what, bug.report)).collect()
}

fn isolcpus(scene: &Scene) -> Vec<String> {
    let line = scene.read("/proc/cmdline").unwrap_or_default();
    let isolated = scene.read("/sys/devices/system/cpu/isolated");
    if isolated.as_deref() == Some("") {
        return vec![];
    }
    let isolates = |word: &&str| {
        let Some(value) = word.strip_prefix("isolcpus=") else { return false };
        let is_flag = |part: &&str| part.starts_with(|c: char| c.is_ascii_alphabetic());
        let mut flags = value.split(',').take_while(is_flag).peekable();
        flags.peek().is_none() || flags.any(|flag| flag == "domain")
    };
    line.split_whitespace().filter(isolates).map(str::to_owned).collect()
}

fn btf(scene: &Scene) -> Vec<String> {
    let host = &scene.host;
    if !host.exists("/sys/kernel/btf/vmlinux") {
        return vec!["no /sys/kernel/btf/vmlinux".into()];
    }
    let is_module = host.exists("/sys/module/kvm/refcnt");
    if is_module && !host.exists("/sys/kernel/btf/kvm") {
        return vec!["KVM is a module, and there is no /sys/kernel/btf/kvm".into()];
    }
    vec![]
}

const KNOBS: [&str; 3] = ["softlockup_panic", "hung_task_panic", "panic_on_rcu_stall"];

fn knob(name: &str) -> String {
    format!("/proc/sys/kernel/{name}")
}
