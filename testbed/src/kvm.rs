// SPDX-License-Identifier: GPL-2.0-only
//! The host under this machine's KVM instead of emulation: whether that is possible here.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::sync::Once;

use anyhow::{Result, bail};
use baton_hostinfo::Host as Machine;
use baton_output::note;
use clap::ValueEnum;

const DEVICE: &str = "/dev/kvm";
const MODULES: &str = "/sys/module";

/// What executes the host's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// QEMU's emulator: any machine will do
    #[default]
    Tcg,
    /// This machine's KVM, nested: figures from hardware, with what docs/testbed.md says of them
    Kvm,
}

/// Which virtualization the CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Virtualization {
    Vmx,
    Svm,
}

impl Virtualization {
    /// Its name among the CPU's flags.
    fn flag(self) -> &'static str {
        match self {
            Virtualization::Vmx => "vmx",
            Virtualization::Svm => "svm",
        }
    }

    fn module(self) -> &'static str {
        match self {
            Virtualization::Vmx => "kvm_intel",
            Virtualization::Svm => "kvm_amd",
        }
    }

    /// Says once in this process what a host under KVM makes of figures.
    pub fn warn(self) {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| note(&format!("baton: {}", self.warning())));
    }

    fn warning(self) -> String {
        // nested_vmx_setup_ctls_msrs() and nested_vmcb02_prepare_control() of the kernel.
        let pauses = match self {
            Virtualization::Vmx => "it sees no PAUSE-loop exits: nobody yields to siblings",
            Virtualization::Svm => "it sees PAUSE exits as far as this machine's kernel lets it",
        };
        format!(
            "the host runs nested under KVM: its guests' exits cost several times what they cost \
             on hardware, and {pauses}; no such hardware has run this yet (docs/testbed.md)"
        )
    }
}

/// What this machine's KVM can run a KVM host with.
///
/// Errors: there is no KVM, or it may not be used, or has no nested virtualization by hardware; the
/// line says what mends it.
pub fn check(machine: &Machine) -> Result<Virtualization> {
    let opened = OpenOptions::new().read(true).write(true).open(machine.path(DEVICE));
    judge(machine, opened.map(drop))
}

fn judge(machine: &Machine, opened: io::Result<()>) -> Result<Virtualization> {
    if let Some(other) = soft_kvm(machine) {
        bail!(
            "this machine's KVM is {other}, without hardware virtualization, and cannot run a KVM \
             host: leave --accel kvm out"
        );
    }
    let Some(kind) = of_cpu(&machine.read("/proc/cpuinfo").unwrap_or_default()) else {
        bail!(
            "this machine's CPU shows neither vmx nor svm: switch virtualization on in its \
             firmware or, where it is a VM, nesting on its host; or leave --accel kvm out"
        );
    };
    let module = kind.module();
    if let Err(error) = opened {
        match error.kind() {
            ErrorKind::NotFound => bail!(
                "there is no {DEVICE}: modprobe {module} nested=1 (in a container: hand the \
                 device in), or leave --accel kvm out"
            ),
            ErrorKind::PermissionDenied => bail!(
                "no permission for {DEVICE}: join the group kvm, or run as root; or leave --accel \
                 kvm out"
            ),
            _ => bail!("cannot open {DEVICE}: {error}; leave --accel kvm out"),
        }
    }
    let nested = machine.read(&format!("{MODULES}/{module}/parameters/nested"));
    match nested.as_deref() {
        Some("Y" | "1") => Ok(kind),
        Some(off) => bail!(
            "KVM does not nest here ({module}.nested = {off}): with all VMs stopped, modprobe -r \
             {module} && modprobe {module} nested=1; or leave --accel kvm out"
        ),
        None => bail!(
            "cannot see whether KVM nests here: no {MODULES}/{module}/parameters/nested; leave \
             --accel kvm out"
        ),
    }
}

/// A kind of KVM that is neither of the two for hardware, such as kvm_pvm.
fn soft_kvm(machine: &Machine) -> Option<String> {
    let modules = machine.list(MODULES);
    let hard = |module: &String| ["kvm_intel", "kvm_amd"].contains(&module.as_str());
    if modules.iter().any(hard) {
        return None;
    }
    modules.into_iter().find(|module| module.starts_with("kvm_"))
}

fn of_cpu(cpuinfo: &str) -> Option<Virtualization> {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
    [Virtualization::Vmx, Virtualization::Svm]
        .into_iter()
        .find(|kind| flags.split_whitespace().any(|flag| flag == kind.flag()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const INTEL: (&str, &str) = ("proc/cpuinfo", "flags\t\t: fpu vmx lm\nvmx flags\t: ept\n");
    const AMD: (&str, &str) = ("proc/cpuinfo", "flags\t\t: fpu svm lm\n");
    const NEITHER: (&str, &str) = ("proc/cpuinfo", "flags\t\t: fpu lm\nvmx flags\t: ept\n");
    const DEV: (&str, &str) = ("dev/kvm", "");

    fn nested(module: &str, value: &'static str) -> (String, &'static str) {
        (format!("sys/module/{module}/parameters/nested"), value)
    }

    /// What is said of a machine with these files.
    fn said<P: AsRef<str>>(files: &[(P, &str)], more: &[(&str, &str)]) -> String {
        let root = tempfile::tempdir().unwrap();
        let files = files.iter().map(|(path, text)| (path.as_ref(), *text));
        for (path, text) in files.chain(more.iter().copied()) {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        match check(&Machine::at(root.path())) {
            Ok(kind) => kind.flag().to_string(),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn nested_kvm_is_found() {
        assert_eq!(said(&[nested("kvm_intel", "Y\n")], &[INTEL, DEV]), "vmx");
        assert_eq!(said(&[nested("kvm_amd", "1\n")], &[AMD, DEV]), "svm");
        // A module that is built in, and the other vendor's beside it.
        assert_eq!(said(&[nested("kvm_amd", "1"), nested("kvm_intel", "N")], &[AMD, DEV]), "svm");
    }

    #[test]
    fn a_refusal_is_a_line_with_a_remedy() {
        let cases = [
            (said(&[nested("kvm_intel", "Y")], &[INTEL]), "no /dev/kvm: modprobe kvm_intel"),
            (said(&[("sys/module/kvm/x", "")], &[AMD]), "no /dev/kvm: modprobe kvm_amd"),
            (
                said(&[nested("kvm_intel", "N\n")], &[INTEL, DEV]),
                "(kvm_intel.nested = N): with all VMs stopped, modprobe -r kvm_intel && modprobe \
                 kvm_intel nested=1",
            ),
            (
                said(&[nested("kvm_amd", "0\n")], &[AMD, DEV]),
                "(kvm_amd.nested = 0): with all VMs stopped, modprobe -r kvm_amd && modprobe \
                 kvm_amd nested=1",
            ),
            (said(&[nested("kvm_intel", "Y")], &[NEITHER, DEV]), "neither vmx nor svm: switch"),
            (said(&[("sys/module/kvm/x", "")], &[DEV]), "neither vmx nor svm: switch"),
            (said(&[("sys/module/kvm/x", "")], &[AMD, DEV]), "cannot see whether KVM nests"),
        ];
        for (said, expected) in cases {
            assert!(said.contains(expected), "no \"{expected}\" in: {said}");
            assert!(said.contains("leave --accel kvm out") && !said.contains('\n'), "{said}");
        }
    }

    /// Whatever flags a CPU shows beside it.
    #[test]
    fn kvm_without_hardware_virtualization_is_told_apart() {
        for cpu in [NEITHER, INTEL] {
            let said = said(&[("sys/module/kvm_pvm/x", ""), ("sys/module/kvm/x", "")], &[cpu, DEV]);
            assert!(said.contains("KVM is kvm_pvm, without hardware"), "{said}");
        }
        // Loaded, but not what serves /dev/kvm.
        let both = [("sys/module/kvm_pvm/x", ""), ("sys/module/kvm_intel/parameters/nested", "Y")];
        assert_eq!(said(&both, &[INTEL, DEV]), "vmx");
    }

    /// Root may open what it likes: the error is made here.
    #[test]
    fn permission_and_other_errors_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(root.path().join(AMD.0), AMD.1).unwrap();
        let said = |errno| {
            let opened = Err(io::Error::from_raw_os_error(errno));
            judge(&Machine::at(root.path()), opened).unwrap_err().to_string()
        };
        for errno in [libc::EACCES, libc::EPERM] {
            assert!(said(errno).contains("join the group kvm, or run as root"), "{}", said(errno));
        }
        assert!(said(libc::EBUSY).contains("cannot open /dev/kvm"), "{}", said(libc::EBUSY));
    }

    #[test]
    fn the_warning_says_what_nesting_does() {
        for kind in [Virtualization::Vmx, Virtualization::Svm] {
            let text = kind.warning();
            assert!(text.contains("exits cost") && text.contains("PAUSE"), "{text}");
            assert!(text.contains("no such hardware has run this"), "{text}");
        }
    }
}
