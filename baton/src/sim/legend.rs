// SPDX-License-Identifier: GPL-2.0-only
//! What the columns of the simulator's tables mean, for `--help`; docs/sim.md says the same.

macro_rules! column {
    (work) => {
        "
  work/s       units of work a second: what the program's step 'done' counts, of all its tasks"
    };
    (first) => {
        "
  × first      work/s, times the first row's, paired by seed; in brackets its 95 % interval"
    };
    (spread) => {
        "
  spread       half of the distance between least and most work/s, as part of the median"
    };
    (jain) => {
        "
  Jain         fairness of work/s among VMs: 1 is equal, 1/n is one VM alone"
    };
    (ple) => {
        "
  PLE/s        PAUSE-loop exits a second"
    };
    (yields) => {
        "
  yields/s     directed yields a second that the scheduler accepted"
    };
    (ipis) => {
        "
  IPIs/s       interrupts between vCPUs a second, each receiver counted"
    };
    (longest) => {
        "
  longest wait the longest that any thread was runnable and did not run"
    };
    (of_vms) => {
        "
  used         pCPUs that the VM's vCPUs used (1.5: one and a half all the time)
  ready        pCPUs that they waited for, runnable
  spin         pCPUs that they spun on for a lock, an interrupt's receiver or a barrier"
    };
    (halts) => {
        "
  halts/s      HLT exits a second
  polls        pCPUs that KVM polled on at HLT for them
  late p50 µs  how late tasks ran after their timer: the median, and p99"
    };
}

macro_rules! since {
    () => {
        "Columns, all since the warm-up:"
    };
}

macro_rules! files {
    () => {
        "
--json, --csv and --svg are written when all is done; --json holds everything, in the units of the \
columns (time in ns or ms where a key says so). What 'speed' in it says differs from run to run, \
all else is the same bytes. On /dev/stdout it comes behind the table; --json >(jq .) has it alone.

"
    };
}

macro_rules! footer {
    () => {
        "Needs no root and changes nothing on the host. docs/sim.md has all keys of a scenario; \
'baton sim show two-barriers' prints one to begin with."
    };
}

pub const RUN: &str = concat!(
    since!(),
    column!(work),
    column!(of_vms),
    column!(ple),
    column!(yields),
    column!(ipis),
    column!(halts),
    column!(jain),
    "\n'baton sim list' explains the counters that are printed below the table.\n",
    files!(),
    "Example: baton sim run two-barriers --set scheduler=scx_baton --json F\n\n",
    footer!()
);
pub const COMPARE: &str = concat!(
    since!(),
    column!(work),
    column!(spread),
    column!(first),
    column!(jain),
    column!(ple),
    column!(yields),
    column!(ipis),
    column!(longest),
    "\n",
    files!(),
    "Example: baton sim compare two-barriers --vary scheduler=eevdf,scx_baton --vary vm.vcpus=4,8
\n",
    footer!()
);
pub const SWEEP: &str = concat!(
    since!(),
    column!(work),
    column!(jain),
    column!(ple),
    column!(longest),
    "\n",
    "
--svg draws the work over the first key. --json is an array with an entry for each point: \
{\"point\", \"outcome\"}, or \"error\" instead of the outcome; the outcome of a point that was not \
simulated is null. It is written now and then, and after Ctrl-C: --resume FILE goes on with it.

",
    "Example: baton sim sweep two-barriers --vary vm.vcpus=2,4,8 --vary scheduler=eevdf,scx_baton \
--csv F\n\n",
    footer!()
);
pub const FUZZ: &str = "\
What breaks an invariant is made smaller as long as it does so, and written to fuzz-SEED.toml in \
the current directory (an older one is replaced); 'baton sim run fuzz-SEED.toml' shows it again. \
Invariants: no runnable task is lost or waits too long, no vCPU runs twice or where it may not, \
quotas and shares hold.";

pub const NEIGHBOURS: &str = "\
The due of a VM, or of a host thread, is the smaller of what it uses alone and its share by \
weight of the pCPUs where it may run. Bounds: work up to the due is at least 0.95 of that under \
EEVDF, with or without PAUSE exits, whichever is more; the thread of a table that does least \
does at least 0.8 of their mean; of a VM below its due the median and the 99th percentile of \
lateness are at most EEVDF's and 10 us. A mixture that breaks one is written to \
neighbours-SEED.toml in the current directory (an older one is replaced); 'baton sim run \
neighbours-SEED.toml --set scheduler=eevdf', and scx_baton, show each VM.";
