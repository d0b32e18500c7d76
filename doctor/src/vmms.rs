// SPDX-License-Identifier: GPL-2.0-only
//! What VMMs offer their guests, from QEMU's command lines.

use crate::finding::{Finding, Level};
use crate::scene::{Scene, SeenVm, Vmm};

pub const FINDINGS: &[Finding] = &[
    Finding {
        id: "cpu-pm",
        level: Level::Cost,
        title: "a VM's HLT, MWAIT and PAUSE do not exit (cpu-pm)",
        cost: "An idle vCPU looks busy and keeps its CPU; one that spins is not seen. Not \
               measured.",
        mend: "take -overcommit cpu-pm=on off the VM's command line (libvirt: a <qemu:arg>)",
        explain: "With -overcommit cpu-pm=on QEMU has KVM not intercept MWAIT, HLT and PAUSE \
                  (KVM_CAP_X86_DISABLE_EXITS): the guest manages the CPU's power. QEMU's manual \
                  recommends it where CPUs are not overcommitted. Seen on the command line.",
        look: |scene| each(scene, |vmm| vmm.cpu_pm.then(|| "-overcommit cpu-pm=on".into())),
        fix: None,
    },
    Finding {
        id: "hv-spin",
        level: Level::Cost,
        title: "a Windows guest does not tell of long spins",
        cost: "When it spins for a lock it never says so; Baton sees it by PAUSE-loop exits alone. \
               Not measured.",
        mend: "add hv-spinlocks=0x1fff to its -cpu; libvirt: <hyperv><spinlocks state='on' \
               retries='8191'/></hyperv>",
        explain: "Windows notifies the hypervisor after as many attempts to take a lock as \
                  hv-spinlocks says; without it, or with 0xffffffff (QEMU's default), never. A \
                  guest is taken for Windows if its -cpu has Hyper-V's features (hv-…), so one \
                  without any of them is not seen. QEMU: docs/system/i386/hyperv.rst.",
        look: |scene| each(scene, silent),
        fix: None,
    },
    Finding {
        id: "pv-off",
        level: Level::Cost,
        title: "KVM's paravirtual features are off in a VM",
        cost: "Its guest spins in locks instead of halting, flushes TLBs and sends IPIs to vCPUs \
               that do not run. Measured here: Baton's gain over EEVDF in hackbench is 1.05 times \
               [0.98, 1.14] without them and 1.13 [1.05, 1.22] with them (docs/exact.md).",
        mend: "take kvm=off, kvm-pv-…=off and kvm-hint-dedicated=on off its -cpu; libvirt: no \
               <kvm><hidden state='on'/>, <pvspinlock state='off'/> or <hint-dedicated \
               state='on'/>",
        explain: "kvm=off hides KVM from the guest; kvm-pv-unhalt, kvm-pv-tlb-flush, kvm-pv-ipi, \
                  kvm-pv-sched-yield and kvm-steal-time switch one feature each; \
                  kvm-hint-dedicated=on has Linux leave PV spinlocks and PV TLB flushes alone. \
                  Seen on the command line. Windows guests (hv-…) do not use them and are left \
                  out.",
        look: |scene| each(scene, unparavirtual),
        fix: None,
    },
    Finding {
        id: "fast-path",
        level: Level::Cost,
        title: "a VM sends IPIs and sets timers on KVM's slow path",
        cost: "Measured here, in instructions on an emulated host: an IPI through the xAPIC costs \
               its sender 9,351, through the x2APIC 1,088 (docs/fast-paths.md).",
        mend: "take x2apic=off (-x2apic) and tsc-deadline=off (-tsc-deadline) off its -cpu; \
               libvirt: <feature policy='require' name='x2apic'/>",
        explain: "Without the x2APIC a guest writes the APIC's ICR by MMIO, two exits for an IPI, \
                  which KVM has to decode; without the TSC-deadline timer it sets the APIC's \
                  counter by MMIO. QEMU offers both unless -cpu switches them off, which is what \
                  is seen here: a CPU model without TSC-deadline is not.",
        look: |scene| {
            each(scene, |vmm| listed(&["x2apic", "tsc-deadline"].map(|name| (name, "off")), vmm))
        },
        fix: None,
    },
];

/// A line for each VM in whose options `look` sees something.
fn each(scene: &Scene, look: impl Fn(&Vmm) -> Option<String>) -> Vec<String> {
    let line = |vm: &SeenVm| look(&vm.vmm).map(|what| format!("{}: {what}", vm.name));
    scene.vms.iter().filter_map(line).collect()
}

/// Those features that are set so, as they would be written.
fn listed(features: &[(&str, &str)], vmm: &Vmm) -> Option<String> {
    let is_so = |&&(name, value): &&(&str, &str)| match value {
        "off" => vmm.is_off(name),
        _ => vmm.is_on(name),
    };
    let those = features.iter().filter(is_so).map(|(name, value)| format!("{name}={value}"));
    let those: Vec<String> = those.collect();
    (!those.is_empty()).then(|| those.join(", "))
}

fn silent(vmm: &Vmm) -> Option<String> {
    if !vmm.is_for_windows() || vmm.is_on("hv-passthrough") {
        return None;
    }
    let Some(value) = vmm.features.get("hv-spinlocks") else {
        return Some("Hyper-V features without hv-spinlocks".into());
    };
    let retries = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => value.parse(),
    };
    let never = retries == Ok(u64::from(u32::MAX));
    never.then(|| "hv-spinlocks says: never notify".into())
}

fn unparavirtual(vmm: &Vmm) -> Option<String> {
    const FEATURES: [(&str, &str); 7] = [
        ("kvm", "off"),
        ("kvm-pv-unhalt", "off"),
        ("kvm-pv-tlb-flush", "off"),
        ("kvm-pv-ipi", "off"),
        ("kvm-pv-sched-yield", "off"),
        ("kvm-steal-time", "off"),
        ("kvm-hint-dedicated", "on"),
    ];
    if vmm.is_for_windows() { None } else { listed(&FEATURES, vmm) }
}
