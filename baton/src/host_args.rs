// SPDX-License-Identifier: GPL-2.0-only
//! Options that say which host to emulate.

use std::path::PathBuf;

use baton_testbed::exact::{Cpu, Exact};
use baton_testbed::host::{HostOptions, Source};
use baton_testbed::kernel::Series;
use baton_testbed::kvm::Accel;
use clap::Args;

/// Which host to boot.
#[derive(Args)]
pub struct HostArgs {
    /// CPUs of the host [default: 2, or as the experiment says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=255))]
    pub pcpus: Option<u32>,
    /// They are hyper-threads, two a core
    #[arg(long)]
    smt: bool,
    /// Sockets that they are on, each with a last-level cache
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=16)
    )]
    sockets: u32,
    /// Memory of the host in MiB [default: 4096; 2048 of an exact host]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1024..))]
    mem: Option<u32>,
    /// Debian's kernel of this series, such as 7.3 [default: the newest with sched_ext]
    #[arg(long, value_name = "SERIES", conflicts_with = "kernel")]
    kernel_series: Option<Series>,
    /// A kernel of your own: the bzImage
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The modules of --kernel: its lib/modules/RELEASE
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// A qemu-system-x86_64 of your own, version 10 or later
    #[arg(long, value_name = "FILE")]
    pub qemu: Option<PathBuf>,
    /// One more program for the host's /bin; may be given again
    #[arg(long = "bin", value_name = "FILE")]
    bins: Vec<PathBuf>,
    /// Boot also a kernel that lacks sched_ext, BTF or KVM
    #[arg(long)]
    any_kernel: bool,
    /// Do not load KVM ('baton-agent insmod FILE' on the host does, from /lib/modules)
    #[arg(long)]
    without_kvm: bool,
    /// What executes the host's instructions
    #[arg(long, value_name = "ACCEL", value_enum, default_value_t = Accel::Tcg)]
    pub accel: Accel,
    /// Emulate the host instruction by instruction: slower, but the same run every time
    #[arg(long, conflicts_with = "qemu")]
    pub exact: bool,
    /// The exact host's CPUs
    #[arg(long, value_name = "CPU", requires = "exact", default_value = "intel")]
    cpu: Cpu,
    /// Speed of an exact host's CPU: million instructions a virtual second
    #[arg(long, value_name = "N", requires = "exact", default_value_t = Exact::default().mips, value_parser = clap::value_parser!(u32).range(10..=4000))]
    mips: u32,
    /// Show the host's console on standard error
    #[arg(short, long)]
    verbose: bool,
}

impl HostArgs {
    pub fn options(self) -> HostOptions {
        HostOptions {
            pcpus: self.pcpus.unwrap_or(2),
            smt: self.smt,
            sockets: self.sockets,
            mem_mib: self.mem.unwrap_or(if self.exact { 2048 } else { 4096 }),
            source: Source {
                series: self.kernel_series,
                kernel: self.kernel,
                modules: self.modules,
                qemu: self.qemu,
            },
            extra_bins: self.bins,
            verbose: self.verbose,
            any_kernel: self.any_kernel,
            without_kvm: self.without_kvm,
            accel: self.accel,
            exact: self.exact.then_some(Exact { cpu: self.cpu, mips: self.mips }),
        }
    }
}
