// SPDX-License-Identifier: GPL-2.0-only
//! What kind of host to boot.

use std::fmt;
use std::path::PathBuf;

use anyhow::bail;
use baton_hostinfo::Host as Machine;
use clap::ValueEnum;

use crate::kernel::Series;
use crate::kvm::{self, Accel, Virtualization};

/// Where kernel and programs come from: Debian's packages, unless a file is named.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Debian's kernel of this series; the newest with sched_ext if `None`.
    pub series: Option<Series>,
    /// A bzImage to use instead.
    pub kernel: Option<PathBuf>,
    /// Its lib/modules/RELEASE.
    pub modules: Option<PathBuf>,
    /// A qemu-system-x86_64 of this machine to emulate the host with.
    pub qemu: Option<PathBuf>,
}

/// What kind of host to boot.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// 1 to 255.
    pub pcpus: u32,
    /// They are hyper-threads, two a core: an even number of them.
    pub smt: bool,
    /// Sockets that they are on, each with a last-level cache: a divisor of them, or of their
    /// cores. Not of an exact host.
    pub sockets: u32,
    pub mem_mib: u32,
    pub source: Source,
    /// Programs for the host's /bin, with the libraries that they need on this machine.
    pub extra_bins: Vec<PathBuf>,
    /// The host's console goes to standard error.
    pub verbose: bool,
    /// Boot also where sched_ext, BTF or KVM is missing.
    pub any_kernel: bool,
    /// Leave KVM's modules to be loaded later, with `baton-agent insmod`.
    pub without_kvm: bool,
    /// What executes its instructions, unless it is an exact host.
    pub accel: Accel,
    /// An exact host, emulated instruction by instruction, instead of QEMU's.
    pub exact: Option<Exact>,
}

impl HostOptions {
    /// What this machine runs the host with; `None`: it is emulated.
    ///
    /// Errors: KVM is asked for, and not possible here.
    pub fn virtualization(&self) -> anyhow::Result<Option<Virtualization>> {
        match (self.accel, &self.exact) {
            (Accel::Tcg, _) => Ok(None),
            (Accel::Kvm, Some(_)) => bail!(
                "an exact host is emulated instruction by instruction: leave --exact or --accel \
                 kvm out"
            ),
            (Accel::Kvm, None) => kvm::check(&Machine::here()).map(Some),
        }
    }

    /// What the kernel's command line has more for these.
    pub(crate) fn append(&self) -> &'static str {
        if self.without_kvm { "baton.nokvm" } else { "" }
    }
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions {
            pcpus: 2,
            smt: false,
            sockets: 1,
            mem_mib: 4096,
            source: Source::default(),
            extra_bins: Vec::new(),
            verbose: false,
            any_kernel: false,
            without_kvm: false,
            accel: Accel::default(),
            exact: None,
        }
    }
}

/// The most pCPUs: more were never tried.
pub const MAX_PCPUS: u32 = 16;

/// The most memory, MiB: what the emulator's `memory: host=` takes.
pub const MAX_MIB: u32 = 2048;

/// What an exact host is, beyond what every host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    pub cpu: Cpu,
    /// Million instructions a virtual second and pCPU, 10 to 4000.
    pub mips: u32,
}

impl Default for Exact {
    fn default() -> Self {
        Exact { cpu: Cpu::Intel, mips: 1000 }
    }
}

/// A CPU that the emulator has, by what KVM makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cpu {
    /// VMX with EPT, PAUSE-loop exits and the preemption timer; no APICv (Broadwell)
    Intel,
    /// As intel, and APICv with posted interrupts (Ice Lake)
    IntelApicv,
    /// SVM with NPT and filtered PAUSE exits; no AVIC (Zen)
    Amd,
}

impl Cpu {
    /// The emulator's name for it. Broadwell has no CPUID leaf 0x15 that would claim a TSC
    /// frequency other than the emulated one.
    pub(crate) fn model(self) -> &'static str {
        match self {
            Cpu::Intel => "broadwell_ult",
            Cpu::IntelApicv => "corei7_icelake_u",
            Cpu::Amd => "ryzen",
        }
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cpu::Intel => "intel",
            Cpu::IntelApicv => "intel-apicv",
            Cpu::Amd => "amd",
        })
    }
}
