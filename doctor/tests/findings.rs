// SPDX-License-Identifier: GPL-2.0-only
//! Each finding: not on a healthy host, and on one that has just that changed.

mod common;

use std::collections::BTreeSet;

use baton_doctor::report::Report;
use baton_doctor::{Found, Level, blockers, examine, findings};
use common::{Tree, WEB};

const SMT: &str = "/sys/devices/system/cpu/smt/active";
const RELEASE: &str = "/proc/sys/kernel/osrelease";
const CMDLINE: &str = "/proc/cmdline";
const DEBUGFS: &str = "/sys/kernel/debug/kvm";
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// What makes a host show a finding, and what its evidence says.
type Case = (&'static str, fn(&mut Tree), &'static str);

/// What does not.
type Near = (&'static str, fn(&mut Tree));

fn quota(tree: &Tree) {
    tree.put(&format!("/sys/fs/cgroup{WEB}/cpu.max"), "150000 100000");
}

fn cpu(options: &'static str) -> impl Fn(&Tree) {
    move |tree| tree.options(4100, "web", &format!("-cpu host,{options}"))
}

const CASES: &[Case] = &[
    ("sched-ext", |t| t.remove("/sys/kernel/sched_ext"), "Linux 6.17.2: no /sys/kernel/sched_ext"),
    ("kernel-bug", |t| t.put(RELEASE, "7.1.2-1-amd64"), "scx/issues/3716"),
    (
        "isolcpus",
        |t| {
            t.put(CMDLINE, "quiet isolcpus=domain,managed_irq,2-5");
            t.put("/sys/devices/system/cpu/isolated", "2-5");
        },
        "isolcpus=domain,managed_irq,2-5",
    ),
    (
        "isolcpus",
        |t| {
            t.put(CMDLINE, "isolcpus=2");
            t.put("/sys/devices/system/cpu/isolated", "2");
        },
        "isolcpus=2",
    ),
    (
        "lockdown",
        |t| t.put("/sys/kernel/security/lockdown", "none integrity [confidentiality]"),
        "[confidentiality]",
    ),
    ("btf", |t| t.remove("/sys/kernel/btf/vmlinux"), "vmlinux"),
    ("btf", |t| t.remove("/sys/kernel/btf/kvm"), "KVM is a module"),
    ("panic-knob", |t| t.put("/proc/sys/kernel/hung_task_panic", "1"), "hung_task_panic = 1"),
    (
        "rival",
        |t| {
            t.put("/sys/kernel/sched_ext/state", "enabled");
            t.put("/sys/kernel/sched_ext/root/ops", "lavd_1.1.2");
        },
        "lavd_1.1.2 is enabled",
    ),
    (
        "rival",
        |t| t.put("/sys/kernel/sched_ext/state", "enabling"),
        "a scheduler without a name is enabling",
    ),
    (
        "rival-unit",
        |t| t.put("/etc/systemd/system/multi-user.target.wants/scx.service", ""),
        "scx.service is enabled",
    ),
    ("left", |t| t.put("/run/scx_baton.halt-poll.json", "{}"), "an scx_baton that was killed"),
    (
        "quota-kernel",
        |t| {
            t.put(RELEASE, "6.16.12-amd64");
            quota(t);
        },
        "web: 150000 100000 in /sys/fs/cgroup/machine.slice/",
    ),
    (
        "quota-kernel",
        |t| {
            t.put(RELEASE, "6.12.1");
            t.put("/sys/fs/cgroup/machine.slice/cpu.max", "800000 100000");
        },
        "web, win: 800000 100000 in /sys/fs/cgroup/machine.slice/cpu.max",
    ),
    (
        "cpu-ctl",
        |t| t.remove(&format!("/sys/fs/cgroup{WEB}/cpu.weight")),
        "web: no cpu.weight in /sys/fs/cgroup/machine.slice",
    ),
    (
        "cpu-ctl",
        |t| t.put("/proc/4100/task/4101/cgroup", "3:cpuset:/x\n2:cpu,cpuacct:/machine/web"),
        "web: its controller 'cpu' is one of cgroup v1 (/machine/web)",
    ),
    (
        "throttle",
        |t| {
            quota(t);
            let stat = "usage_usec 9\nnr_periods 4000\nnr_throttled 1200\nthrottled_usec 5";
            t.put(&format!("/sys/fs/cgroup{WEB}/cpu.stat"), stat);
        },
        "web: throttled in 1,200 of 4,000 periods, 150000 100000 in",
    ),
    (
        "core-cookie",
        |t| t.cookies.extend([(4101, 0xdead_beef), (4102, 0xdead_beef)]),
        "web: 2 of 4 vCPUs with a cookie",
    ),
    ("rt-vcpu", |t| t.policy(4100, 4103, 1), "web: SCHED_FIFO: vCPU 2"),
    (
        "rt-vcpu",
        |t| {
            t.policy(4100, 4101, 2);
            t.put("/proc/sys/kernel/sched_rt_runtime_us", "-1");
        },
        "they have no limit",
    ),
    (
        "vcpu-stack",
        |t| {
            t.allow(4100, 4102, "12");
            t.allow(4100, 4103, "12");
        },
        "web: vCPUs 1 and 2 may run on CPU 12 alone",
    ),
    (
        "oversize",
        |t| (4201..4205).for_each(|tid| t.allow(4200, tid, "3-5")),
        "win: 4 vCPUs on 3 CPUs (3-5)",
    ),
    ("cpu-pm", |t| t.options(4100, "web", "-overcommit cpu-pm=on"), "web: -overcommit cpu-pm=on"),
    (
        "hv-spin",
        |t| t.options(4200, "win", "-cpu host,hv_relaxed,hv_vapic"),
        "win: Hyper-V features without hv-spinlocks",
    ),
    (
        "hv-spin",
        |t| t.options(4200, "win", "-cpu host,hv-relaxed=on,hv-spinlocks=0xffffffff"),
        "never notify",
    ),
    ("pv-off", |t| cpu("kvm=off")(t), "web: kvm=off"),
    (
        "pv-off",
        |t| cpu("-kvm_pv_unhalt,kvm-hint-dedicated=on")(t),
        "web: kvm-pv-unhalt=off, kvm-hint-dedicated=on",
    ),
    ("fast-path", |t| cpu("x2apic=off")(t), "web: x2apic=off"),
    ("fast-path", |t| cpu("-tsc-deadline")(t), "web: tsc-deadline=off"),
    (
        "ple-off",
        |t| t.put("/sys/module/kvm_intel/parameters/ple_gap", "0"),
        "kvm_intel.ple_gap = 0",
    ),
    (
        "ple-off",
        |t| t.put("/sys/module/kvm_amd/parameters/pause_filter_count", "0"),
        "kvm_amd.pause_filter_count = 0",
    ),
    (
        "halt-poll",
        |t| t.put("/sys/module/kvm/parameters/halt_poll_ns", "5000000"),
        "halt_poll_ns = 5000000",
    ),
    (
        "halt-poll",
        |t| t.put(&format!("{DEBUGFS}/halt_poll_fail_ns"), "80000000000000"),
        "polled in vain for 80,000 s, 5.0 % of all CPU time, with success for 9 s",
    ),
    (
        "guest-poll",
        |t| t.put(&format!("{DEBUGFS}/4200-12/halt_attempted_poll"), "0"),
        "win: 250,000 halts, none polled by KVM",
    ),
    (
        "guest-poll",
        |t| t.put("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll"),
        "idle driver is haltpoll",
    ),
    (
        "ipiv",
        |t| t.put("/sys/module/kvm_intel/parameters/enable_ipiv", "Y"),
        "kvm_intel.enable_ipiv = Y",
    ),
    ("ipiv", |t| t.put("/sys/module/kvm_amd/parameters/avic", "Y"), "kvm_amd.avic = Y"),
    (
        "l1tf",
        |t| {
            let text = "Mitigation: PTE Inversion; VMX: conditional cache flushes, SMT vulnerable";
            t.put("/sys/devices/system/cpu/vulnerabilities/l1tf", text);
        },
        "VMX: conditional cache flushes",
    ),
    ("msrs", |t| t.put("/sys/module/kvm/parameters/ignore_msrs", "Y"), "kvm.ignore_msrs = Y"),
    (
        "clock",
        |t| {
            let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            t.put(clock, "hpet");
        },
        "hpet, of tsc hpet acpi_pm",
    ),
    (
        "governor",
        |t| {
            for cpu in [2, 3, 4, 9] {
                let file = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
                t.put(&file, "powersave");
            }
        },
        "powersave, by acpi-cpufreq: CPUs 2-4,9",
    ),
    ("nohz-full", |t| t.put("/sys/devices/system/cpu/nohz_full", "2-7"), "CPUs 2-7"),
    ("steal", |t| t.put("/proc/stat", "cpu  400 0 90 450 0 0 0 60 0 0"), "steal: 6.0 % since boot"),
    (
        "wait-metric",
        |t| t.put("/proc/812/comm", "libvirt_exporte"),
        "process 812 (libvirt_exporte)",
    ),
    ("numa-bal", |t| t.put("/proc/sys/kernel/numa_balancing", "1"), "numa_balancing = 1, 2 nodes"),
    ("ksm", |t| t.put("/sys/kernel/mm/ksm/run", "1"), "ksm/run = 1"),
    (
        "thp",
        |t| t.put(&format!("{THP}/enabled"), "always madvise [never]"),
        "transparent_hugepage/enabled = never",
    ),
    (
        "thp",
        |t| t.put(&format!("{THP}/defrag"), "[always] defer defer+madvise madvise never"),
        "transparent_hugepage/defrag = always",
    ),
];

/// What is near a finding and is none.
const NONE: &[Near] = &[
    ("kernel-bug", |t| t.put(RELEASE, "7.1.4")),
    ("kernel-bug", |t| t.put(RELEASE, "7.0.3")),
    ("isolcpus", |t| {
        t.put(CMDLINE, "isolcpus=nohz,managed_irq,2-5 xisolcpus=3");
        t.remove("/sys/devices/system/cpu/isolated");
    }),
    // A list of CPUs that the kernel did not take.
    ("isolcpus", |t| t.put(CMDLINE, "isolcpus=99-")),
    // A KVM that is built in.
    ("btf", |t| {
        t.remove("/sys/kernel/btf/kvm");
        t.remove("/sys/module/kvm/refcnt");
    }),
    ("rival", |t| {
        t.put("/sys/kernel/sched_ext/state", "enabled");
        t.put("/sys/kernel/sched_ext/root/ops", "baton_0.1.0");
    }),
    ("rival-unit", |t| {
        t.put("/etc/systemd/system/multi-user.target.wants/scx.service", "");
        t.put("/etc/default/scx", "SCX_SCHEDULER=\"scx_baton\"");
    }),
    ("left", |t| {
        t.put("/run/scx_baton.halt-poll.json", "{}");
        t.put("/sys/kernel/sched_ext/root/ops", "baton_0.1.0");
    }),
    ("quota-kernel", |t| quota(t)),
    ("quota-kernel", |t| {
        t.put(RELEASE, "6.12.1");
        t.put("/sys/fs/cgroup/system.slice/cpu.max", "1000 100000");
    }),
    ("throttle", |t| quota(t)),
    ("core-cookie", |t| {
        t.cookies.insert(4101, 7);
        t.put(SMT, "0");
    }),
    // Of different VMs.
    ("vcpu-stack", |t| {
        t.allow(4100, 4101, "12");
        t.allow(4200, 4201, "12");
    }),
    ("oversize", |t| (4201..4205).for_each(|tid| t.allow(4200, tid, "3-6"))),
    ("hv-spin", |t| t.options(4200, "win", "-cpu host,hv-passthrough")),
    ("halt-poll", |t| {
        t.put("/sys/module/kvm/parameters/halt_poll_ns", "0");
        t.put(&format!("{DEBUGFS}/halt_poll_fail_ns"), "80000000000000");
    }),
    ("guest-poll", |t| {
        t.put(&format!("{DEBUGFS}/4200-12/halt_attempted_poll"), "0");
        t.put(&format!("{DEBUGFS}/4200-12/halt_exits"), "900");
    }),
    ("governor", |t| {
        t.put("/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave");
        t.put("/sys/devices/system/cpu/cpu2/cpufreq/scaling_driver", "intel_pstate");
    }),
    ("numa-bal", |t| {
        t.put("/proc/sys/kernel/numa_balancing", "1");
        t.remove("/sys/devices/system/node/node1");
    }),
];

fn ids(found: &[Found]) -> Vec<&'static str> {
    found.iter().map(|found| found.finding.id).collect()
}

#[test]
fn a_healthy_host_shows_nothing() {
    let tree = Tree::healthy();
    let scene = tree.scene();
    assert_eq!(scene.vms.len(), 2);
    assert!(scene.vms.iter().all(|vm| vm.vcpus.len() == 4 && vm.cgroups.len() == 5));
    let report = Report::of(&scene);
    assert_eq!(ids(&report.found), Vec::<&str>::new());
    assert_eq!((report.status(), &report.unreadable[..]), (0, &[][..]));
    let head = "Linux 6.17.2, 16 CPUs, 2 VMs, 8 vCPUs: nothing found";
    assert!(report.text(None).starts_with(head) && report.text(None).lines().count() == 1);
}

#[test]
fn every_finding_is_seen_where_it_is_and_nowhere_else() {
    for (id, change, words) in CASES {
        let mut tree = Tree::healthy();
        change(&mut tree);
        let found = examine(&tree.scene());
        assert_eq!(ids(&found), [*id], "{found:?}");
        let evidence = found[0].evidence.join("\n");
        assert!(evidence.contains(words), "{id}: {evidence}");
    }
    for (id, change) in NONE {
        let mut tree = Tree::healthy();
        change(&mut tree);
        let found = examine(&tree.scene());
        assert!(!ids(&found).contains(id), "{found:?}");
    }
    let tested: BTreeSet<&str> = CASES.iter().map(|(id, _, _)| *id).collect();
    let all: BTreeSet<&str> = findings().iter().map(|finding| finding.id).collect();
    assert_eq!(tested, all);
    assert!(all.len() >= 33);
}

#[test]
fn statuses_are_of_the_worst_that_is_found() {
    for (id, change, _) in CASES {
        let mut tree = Tree::healthy();
        change(&mut tree);
        let scene = tree.scene();
        let level = baton_doctor::find(id).expect("one of ours").level;
        let status = Report::of(&scene).status();
        assert_eq!(status, [2, 1, 0][level as usize], "{id}");
        assert_eq!(blockers(&scene).len(), usize::from(level == Level::Blocker), "{id}");
    }
    // A directory in place of a file cannot be read, whoever asks.
    let tree = Tree::healthy();
    tree.remove("/proc/cmdline");
    tree.put("/proc/cmdline/x", "");
    let report = Report::of(&tree.scene());
    assert_eq!((report.status(), report.unreadable.len()), (74, 1));
    assert!(report.text(None).contains("Not read:\n  /proc/cmdline: "), "{}", report.text(None));
    tree.put("/sys/kernel/mm/ksm/run", "1");
    assert_eq!(Report::of(&tree.scene()).status(), 1);
}

/// '--fix halt-poll' was said to mend what it refused to: halt_poll_ns is low, and polls fail.
#[test]
fn a_fix_is_offered_where_it_has_something_to_write() {
    let tree = Tree::healthy();
    tree.put(&format!("{DEBUGFS}/halt_poll_fail_ns"), "80000000000000");
    let offered = |tree: &Tree| {
        let report = Report::of(&tree.scene());
        let found = report.found.iter().find(|found| found.finding.id == "halt-poll");
        (found.expect("it is found").fixable, report.text(None).contains("mends halt-poll"))
    };
    assert_eq!(offered(&tree), (false, false));
    tree.put("/sys/module/kvm/parameters/halt_poll_ns", "5000000");
    assert_eq!(offered(&tree), (true, true));
}
