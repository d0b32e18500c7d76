// SPDX-License-Identifier: GPL-2.0-only
//! pCPUs and threads: what host schedulers see and decide about.

use serde::Deserialize;

use crate::locks::{Lock, Locks};

/// Nanoseconds of simulated time, or of CPU time.
pub type Ns = u64;

/// In place of an index: nobody.
pub const NONE: u32 = u32::MAX;

/// A set of pCPUs, or of a VM's vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(pub Vec<u64>);

impl CpuSet {
    pub fn empty(cpus: usize) -> Self {
        CpuSet(vec![0; cpus.div_ceil(64)])
    }

    pub fn all(cpus: usize) -> Self {
        let mut set = CpuSet::empty(cpus);
        (0..cpus as u32).for_each(|cpu| set.insert(cpu));
        set
    }

    pub fn insert(&mut self, cpu: u32) {
        self.0[cpu as usize / 64] |= 1 << (cpu % 64);
    }

    pub fn remove(&mut self, cpu: u32) {
        self.0[cpu as usize / 64] &= !(1 << (cpu % 64));
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Keeps what is in the other one, too.
    pub fn retain(&mut self, other: &CpuSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
    }

    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.0).flat_map(|(place, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    place * 64 + bit
                })
            })
        })
    }

    /// The first, at `from` or behind it, counted round.
    pub fn first(&self, from: u32) -> Option<u32> {
        self.first_common(self, from)
    }

    /// The first that is in both, at `from` or behind it, counted round.
    pub fn first_common(&self, other: &CpuSet, from: u32) -> Option<u32> {
        let words = self.0.len().min(other.0.len());
        let start = from as usize / 64;
        for step in 0..=words {
            let place = (start + step) % words;
            let mut both = self.0[place] & other.0[place];
            if step == 0 {
                both &= !0 << (from % 64);
            }
            if step == words {
                both &= !(!0 << (from % 64));
            }
            if both != 0 {
                return Some(place as u32 * 64 + both.trailing_zeros());
            }
        }
        None
    }
}

/// What things take on one kind of machine. Every field has its source in the machine's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// From one thread to another, caches and the vCPU's state included.
    pub switch_ns: Ns,
    /// What sched_ext and the callbacks of its scheduler add to a switch and to what led to it. The
    /// kernel's own schedulers do without.
    #[serde(default)]
    pub sched_ext_ns: Ns,
    /// What they add to a PAUSE exit that yields, beside what its switch takes.
    #[serde(default)]
    pub sched_ext_spin_ns: Ns,
    /// What a vCPU waits that starts on another pCPU than before, until its VMCS is cleared there
    /// by an IPI, for which a guest there exits (`vmx_vcpu_load_vmcs()`). 0: not so, as on AMD.
    #[serde(default)]
    pub migrate_ns: Ns,
    /// What caches cost a thread at most that starts on another pCPU than before: of its core, of
    /// its last-level cache, of its node, of another node. One that ran for less since it moved
    /// last had less in them, and pays as much as it ran.
    #[serde(default)]
    pub move_ns: [Ns; 4],
    /// A PAUSE, with the loop around it.
    pub pause_ns: Ns,
    /// What an interrupt costs a guest whose pCPU chooses again, and chooses the same thread.
    #[serde(default)]
    pub resched_ns: Ns,
    /// From a wake-up on one pCPU until another one, idle, begins to switch.
    pub wake_ns: Ns,
    /// What a pCPU that was idle needs beside that: for each idle state from how long on it is
    /// used, and what leaving it takes. The kernel's governor is taken to guess right.
    pub idle_exits: Vec<(Ns, Ns)>,
    /// An exit and the entry behind it, with the least handler.
    pub exit_ns: Ns,
    /// What halting costs beside that: until the thread sleeps, or KVM polls.
    pub halt_ns: Ns,
    /// Handling a PAUSE-loop exit, and each vCPU that is looked at.
    pub spin_exit_ns: Ns,
    pub spin_scan_ns: Ns,
    /// One directed yield, and the runqueue locks alone, of one that finds its target running.
    pub yield_ns: Ns,
    pub yield_fails_ns: Ns,
    /// What the sender of an IPI pays: the whole exit, and what KVM's fast path saves of it.
    pub icr_ns: Ns,
    pub icr_fast_saves_ns: Ns,
    /// Each further destination of one ICR write, or of a PV IPI.
    pub icr_more_ns: Ns,
    /// With AVIC: the doorbell of one IPI, and each destination of a multicast.
    pub avic_ns: Ns,
    pub avic_more_ns: Ns,
    /// What a request to a device costs in the VMM, beside the exit and the device itself.
    pub io_path_ns: Ns,
    /// What an interrupt costs the vCPU that runs: exit and injection, or posted.
    pub interrupt_ns: Ns,
    /// Arming the TSC-deadline timer: the whole exit, and what the fast path saves.
    pub timer_ns: Ns,
    pub timer_fast_saves_ns: Ns,
    /// The guest's handler of an IPI (TLB flush, reschedule) with its EOI.
    pub handler_ns: Ns,
    /// How long it takes until a lock that is freed is seen by one that spins.
    pub transfer_ns: Ns,
    /// The guest's own switch between two of its tasks.
    pub guest_switch_ns: Ns,
    /// Of a look-up of a memory slot: each slot that is looked at, and a search. The default is
    /// what memslots/README.md measures for 117 slots in warm caches: 32 ns a walk, 10 ns a search.
    #[serde(default = "slot_step_ns")]
    pub slot_step_ns: f64,
    #[serde(default = "slot_search_ns")]
    pub slot_search_ns: f64,
    /// For how long an operation holds the lock of a runqueue or of a dispatch queue: where the
    /// pCPU had it last, where another one of its last-level cache had, where any other had. 0:
    /// nobody waits for locks; what one pCPU alone needs under them is part of the other costs.
    #[serde(default)]
    pub lock_ns: [Ns; 3],
    /// Speed of a hyper-thread while its sibling runs, as share of that alone.
    pub smt_share: f64,
}

fn slot_step_ns() -> f64 {
    0.3
}
fn slot_search_ns() -> f64 {
    10.0
}

/// A `cpu.max`, with what may be saved up, µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Quota {
    pub quota_us: u64,
    #[serde(default = "period_us")]
    pub period_us: u64,
    #[serde(default)]
    pub burst_us: u64,
}

fn period_us() -> u64 {
    100_000
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Blocked,
    /// Waits for a pCPU.
    Runnable,
    Running,
    /// Has ended, or is not yet there.
    Gone,
}

/// A thread of the host.
#[derive(Clone, Debug)]
pub struct Task {
    pub state: State,
    /// Where it runs, or ran last.
    pub cpu: u32,
    pub allowed: CpuSet,
    pub weight: u32,
    /// The VM whose vCPU it is, or [`NONE`].
    pub vm: u32,
    /// Where it ran last, or [`NONE`]: not yet. A task in a queue may have another `cpu`.
    pub ran_on: u32,
    /// Its CPU time when it started there.
    pub moved_at: Ns,
    /// Its cgroup, by its place; `None`: the root.
    pub group: Option<u32>,
    /// A thread of the kernel.
    pub kernel: bool,
    /// Its policy is SCHED_IDLE.
    pub idle: bool,
    /// It has been made, and has not been woken.
    pub new: bool,
    /// CPU time so far.
    pub ran: Ns,
    /// Since when it runs, or waits for a pCPU.
    pub since: Ns,
    /// Time it waited for a pCPU, and the longest single wait.
    pub waited: Ns,
    pub longest_wait: Ns,
}

#[derive(Clone, Debug)]
pub struct Cpu {
    /// Who runs, or [`NONE`].
    pub curr: u32,
    pub online: bool,
    pub resched: bool,
    /// The other hyper-thread of the core, or [`NONE`].
    pub sibling: u32,
    pub llc: u32,
    pub node: u32,
}

/// The host, as its scheduler sees it.
pub struct Machine {
    pub now: Ns,
    pub cpus: Vec<Cpu>,
    pub tasks: Vec<Task>,
    pub online: CpuSet,
    pub tick_ns: Ns,
    /// The pCPUs do not tick at once.
    pub staggered_ticks: bool,
    /// pCPUs that must choose again, in the order in which that was found out.
    pub to_resched: Vec<u32>,
    pub locks: Locks,
}

impl Machine {
    /// pCPU `cpu` must choose again as soon as it can.
    pub fn resched(&mut self, cpu: u32) {
        let at = &mut self.cpus[cpu as usize];
        if !at.resched && at.online {
            at.resched = true;
            self.to_resched.push(cpu);
        }
    }

    /// pCPU `by` does something under a lock.
    pub fn lock(&mut self, lock: Lock, by: u32) {
        let (cpus, llc) = (&self.cpus, self.cpus[by as usize].llc);
        self.locks.take(lock, by, self.now, |other| cpus[other as usize].llc == llc);
    }

    /// What two pCPUs share: 0: a core, 1: only the last-level cache, 2: only the node, 3: none of
    /// them.
    pub fn distance(&self, from: u32, to: u32) -> usize {
        let (a, b) = (&self.cpus[from as usize], &self.cpus[to as usize]);
        match (from == to || a.sibling == to, a.llc == b.llc, a.node == b.node) {
            (true, ..) => 0,
            (_, true, _) => 1,
            (_, _, true) => 2,
            _ => 3,
        }
    }

    pub fn task(&self, task: u32) -> &Task {
        &self.tasks[task as usize]
    }

    /// pCPUs that a task may run on now.
    pub fn may_run(&self, task: u32, cpu: u32) -> bool {
        self.cpus[cpu as usize].online && self.tasks[task as usize].allowed.contains(cpu)
    }
}

/// A cgroup. Those of VMs come first, in their order.
pub struct Group {
    pub weight: u32,
    pub quota: Option<Quota>,
    /// The place of its parent among them; `None`: the root.
    pub parent: Option<usize>,
}

/// What KVM does with a vCPU, where a probe can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvmEvent {
    /// Its thread is on a pCPU (`kvm_arch_vcpu_load()`).
    VcpuLoaded,
    /// A PAUSE exit begins (`kvm_vcpu_on_spin()`), and ends.
    Spins,
    Spun,
    /// It interrupts another vCPU of its VM, by that one's number there.
    IpiSent {
        to: u32,
    },
    /// HLT begins, with at most so long a polling, and ends (`kvm_vcpu_halt()`).
    Halts {
        poll_ns: Ns,
    },
    Halted,
}

/// Which keys of cgroups a scheduler heeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heeds {
    pub weights: bool,
    pub quotas: bool,
}

/// A host's scheduler. A pCPU that must choose calls `pick`; who becomes runnable is brought by
/// `wake`. Both may make other pCPUs choose again ([`Machine::resched`]).
pub trait Scheduler {
    fn add(&mut self, m: &mut Machine, task: u32);
    /// A new process takes the number of one that was removed: its parent makes it, and wakes it.
    fn fork(&mut self, m: &mut Machine, task: u32) {
        self.add(m, task);
    }
    /// A task that is blocked ends.
    fn remove(&mut self, m: &mut Machine, task: u32);
    /// A task becomes runnable, by something that happened on `waker`.
    fn wake(&mut self, m: &mut Machine, task: u32, waker: u32);
    /// Who runs on `cpu` now? `prev` has run there until now, and may go on if it is `runnable`.
    fn pick(&mut self, m: &mut Machine, cpu: u32, prev: Option<(u32, bool)>) -> Option<u32>;
    /// The task that was picked has begun to run.
    fn started(&mut self, m: &mut Machine, cpu: u32, task: u32);
    /// Every tick of a pCPU that is not idle.
    fn tick(&mut self, m: &mut Machine, cpu: u32);
    /// KVM's directed yield: `from`, which runs on `cpu`, for `to`. Whether `from` gives way.
    fn yield_to(&mut self, m: &mut Machine, cpu: u32, from: u32, to: u32) -> bool;
    /// A plain yield(): whoever else waits there goes first.
    fn give_way(&mut self, m: &mut Machine, cpu: u32, task: u32);
    /// Tasks that this pCPU has to run, the running one included (`rq->nr_running`).
    fn nr_running(&self, m: &Machine, cpu: u32) -> usize;
    fn affinity_changed(&mut self, m: &mut Machine, task: u32);
    fn cpu_changed(&mut self, m: &mut Machine, cpu: u32, online: bool);
    /// Something that KVM does for the vCPU `task` on `cpu`.
    fn kvm(&mut self, _m: &mut Machine, _cpu: u32, _task: u32, _event: KvmEvent) {}
    /// The `cpu.weight` of a VM's cgroup changes.
    fn weight_changes(&mut self, _m: &mut Machine, _vm: u32, _weight: u32) {}
    /// The `cpu.max` of a VM's cgroup changes.
    fn quota_changes(&mut self, _m: &mut Machine, _vm: u32, _quota: Option<Quota>) {}
    /// Its clock jumps, by so many ns.
    fn clock_jumps(&mut self, _ns: i64) {}
    /// It is in do_exit() from now on.
    fn exits(&mut self, _task: u32) {}
    fn vm_ends(&mut self, _m: &mut Machine, _vm: u32) {}
    /// What a VM's vCPU threads do from now on is not done in the guest.
    fn leaves_guest(&mut self, _vm: u32) {}
    /// A timer that it has started itself has run out.
    fn timer(&mut self, _m: &mut Machine, _timer: u64) {}
    /// Whether `timers` or `failure` have anything to say: asked after every event.
    fn wants_attention(&self) -> bool {
        false
    }
    /// Timers started since the last call: when, and which.
    fn timers(&mut self) -> Vec<(Ns, u64)> {
        Vec::new()
    }
    /// What it did wrong, if it did.
    fn failure(&self) -> Option<String> {
        None
    }
    /// What it heeds of `cpu.weight` and `cpu.max`, as far as that can be known.
    fn heeds(&self) -> Heeds {
        Heeds::default()
    }
    /// Counters of its own, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// A task that is runnable and neither runs nor waits in any queue.
    fn lost(&self, _m: &Machine) -> Option<u32> {
        None
    }
}
