// SPDX-License-Identifier: GPL-2.0-only
//! A host that is emulated instruction by instruction, by Bochs: virtual time passes by
//! instructions alone, so that the same inputs give the same run on any machine. A host is booted
//! once, saved, and restored for each run.

mod bochs;
mod conduct;
mod machine;
mod medium;
mod profile;
mod ready;
mod saved;

use std::fmt;

use clap::ValueEnum;

use bochs::Bochs;
pub use conduct::conduct;
pub(crate) use machine::saved;
use machine::{Machine, Start};
use medium::Tools;
pub use profile::{Counted, Profile, by_symbol};
pub use ready::Ready;
pub use saved::Inputs;

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
    fn model(self) -> &'static str {
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

/// The host kernel's. The emulated TSC counts instructions, on all pCPUs: its frequency is the speed
/// of the emulation, whatever CPUID of the emulated model says. Addresses that are not random keep
/// profiles readable.
fn command_line(mips: u32, more: &str) -> String {
    let khz = u64::from(mips) * 1000;
    let fixed =
        "console=ttyS0 panic=-1 mitigations=off tsc=reliable nokaslr no_timer_check loglevel=5";
    format!("{fixed} tsc_early_khz={khz} {more}").trim_end().to_string()
}
