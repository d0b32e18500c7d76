// SPDX-License-Identifier: GPL-2.0-only
//! A host that is emulated instruction by instruction, by Bochs: virtual time passes by
//! instructions alone, so that the same inputs give the same run on any machine. A host is booted
//! once, saved, and restored for each run.

mod bochs;
mod machine;
mod medium;
mod profile;
mod ready;
mod saved;

use bochs::Bochs;
use machine::{Machine, Start};
use medium::Tools;
pub use profile::{Counted, Profile, by_symbol};
pub use ready::Ready;
pub use saved::Inputs;

pub use crate::host::{Cpu, Exact, MAX_MIB, MAX_PCPUS};

/// The host kernel's. The emulated TSC counts instructions, on all pCPUs: its frequency is the
/// speed of the emulation, whatever CPUID of the emulated model says. Addresses that are not random
/// keep profiles readable.
fn command_line(mips: u32, more: &str) -> String {
    let khz = u64::from(mips) * 1000;
    let fixed =
        "console=ttyS0 panic=-1 mitigations=off tsc=reliable nokaslr no_timer_check loglevel=5";
    format!("{fixed} tsc_early_khz={khz} {more}").trim_end().to_string()
}
