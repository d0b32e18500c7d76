// SPDX-License-Identifier: GPL-2.0-only
//! sched_ext as `kernel/sched/ext/ext.c` does it: a scheduler's callbacks, dispatch queues, and which
//! kfunc may be called where. The scheduler is the BPF source itself, compiled natively.

pub mod counters;
mod ffi;
mod kfuncs;
mod load;

use std::cell::Cell;
use std::ffi::CStr;

use anyhow::{Result, bail};
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustc_hash::FxHashMap;

use self::counters::{COUNTERS, VM_TIMES, WALK};
use self::ffi::*;
use self::load::Loaded;
pub use self::load::object;
use crate::machine::{CpuSet, Heeds, Machine, NONE, Ns, Quota, Scheduler, State, Task};

const LOCAL: u64 = 1 << 63 | 2;
const GLOBAL: u64 = 1 << 63 | 1;
const LOCAL_ON: u64 = 1 << 63 | 1 << 62;

const ENQ_WAKEUP: u64 = 1;
const ENQ_HEAD: u64 = 1 << 4;
const ENQ_CPU_SELECTED: u64 = 1 << 10;
const ENQ_PREEMPT: u64 = 1 << 32;
const ENQ_LAST: u64 = 1 << 41;
const OPS_ENQ_LAST: u64 = 2;
const OPS_ENQ_EXITING: u64 = 4;
const TASK_QUEUED: u32 = 1;
/// Of scx_baton/bpf/intf.h.
const YIELD_IPI: u32 = 1;
const YIELD_SENT: u32 = 3;
/// MAX_CPUS of scx_baton/bpf/intf.h.
const BATON_MAX_CPUS: usize = 1024;
const PF_KTHREAD: u32 = 0x0020_0000;
const PF_EXITING: u32 = 4;
const PF_VCPU: u32 = 1;
const PICK_IDLE_CORE: u64 = 1;
const DEQ_SCHED_CHANGE: u64 = 1 << 33;

/// `SCX_WATCHDOG_MAX_TIMEOUT`, also what counts if the scheduler does not say.
const WATCHDOG_MAX_NS: Ns = 30_000_000_000;

/// In place of the address of a timer: the kernel's watchdog.
const WATCHDOG: u64 = 0;

const SLICE_DFL: u64 = 20_000_000;
const SLICE_INF: u64 = u64::MAX;

/// `SCX_DSP_DFL_MAX_BATCH`.
const DISPATCH_BATCH: u32 = 32;

/// `SCX_DSP_MAX_LOOPS`.
const DISPATCH_LOOPS: u32 = 32;

/// Callbacks, as the rules for kfuncs distinguish them (`scx_kf_allowed_if_unlocked()` and the
/// sets of kfuncs in ext.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    Nothing,
    SelectCpu,
    Enqueue,
    Dispatch,
    /// Those with the runqueue locked: running, stopping, tick, yield and so on.
    Locked,
    /// Those that may sleep: init, init_task, cgroup_init, exit; and timers.
    Unlocked,
}

/// Where a task is, from the point of view of sched_ext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It runs, sleeps, or is on its way.
    Nowhere,
    /// Given to the scheduler, which has put it into no queue (yet).
    Scheduler,
    Queue(u64),
    Local(u32),
}

struct Entry {
    p: Box<TaskStruct>,
    mask: Box<CpuMask>,
    at: At,
    /// `SCX_TASK_IN_CUSTODY`: ops.dequeue() must hear when it leaves.
    custody: bool,
    /// Of its place in a queue, which is ordered by virtual time or not.
    vtime: u64,
    seq: u64,
    ordered: bool,
    /// When it came there, in the order of all.
    queued: u64,
    /// The pCPU that counts it, or [`NONE`].
    counted: u32,
    /// Chosen in select_cpu() or enqueue(): queue and flags.
    direct: Option<(u64, u64)>,
    runs_since: Ns,
}

/// A dispatch queue: ordered by virtual time and then by arrival, or by arrival alone.
#[derive(Default)]
struct Dsq {
    order: Vec<u32>,
    by_vtime: bool,
}

/// The parts of a sched_ext scheduler that its kfuncs work on. The scheduler keeps addresses of what
/// is in boxes.
#[expect(clippy::vec_box, reason = "addresses must stay")]
struct Inner {
    /// While a callback runs, the machine; else null.
    machine: *mut Machine,
    entries: Vec<Option<Entry>>,
    dsqs: FxHashMap<u64, Dsq>,
    local: Vec<Vec<u32>>,
    global: Dsq,
    /// `scx_idle_cpumask`: those whose idleness nobody has claimed.
    idle: CpuSet,
    /// Those that were told to be idle last.
    was_idle: CpuSet,
    seq: u64,
    /// Tasks that dispatch() inserted, or moved to its pCPU's queue, so far.
    dispatched: u64,
    /// Of this dispatch(), and at most.
    inserted: u32,
    most_inserts: u32,
    /// For whom select_cpu() or enqueue() was called.
    subject: u32,
    /// Of each pCPU, tasks that wait and are counted there.
    waiting: Vec<u32>,
    idle_task: Box<TaskStruct>,
    context: In,
    callback: &'static str,
    /// The pCPU that the callback runs on.
    here: u32,
    /// Who is dispatched, and where.
    dispatching: u32,
    maps: Vec<Box<kfuncs::MapData>>,
    storages: Vec<Box<[u64]>>,
    task_maps: u32,
    cgroup_storage: FxHashMap<(i32, usize), *mut u64>,
    cgroups: Vec<Box<Cgroup>>,
    /// Tasks that ops.dequeue() must still hear of, with its flags.
    left: Vec<(u32, u64)>,
    failure: Option<String>,
    /// Tasks of queues that the callback under way has looked at, and the most of any.
    looked: u64,
    longest_walk: u64,
    timers: Vec<(Ns, u64)>,
    /// When each timer runs out.
    armed: FxHashMap<u64, Ns>,
    random: Xoshiro256PlusPlus,
}

thread_local! {
    /// For signal handlers: what [`Inner::callback`] says.
    static CALLBACK: Cell<&'static str> = const { Cell::new("") };
}

/// The scheduler's callback that this thread is in; empty: none. A signal handler may ask.
pub fn current_callback() -> &'static str {
    CALLBACK.get()
}

type LoadFn = unsafe extern "C" fn(*mut KvmVcpu, i32) -> i32;
type VcpuFn = unsafe extern "C" fn(*mut KvmVcpu) -> i32;
type AcceptFn = unsafe extern "C" fn(u32, u16, u16, u8) -> i32;
type VmFn = unsafe extern "C" fn(*mut Kvm) -> i32;

/// Probes into KVM, if the scheduler has any (scx_baton's).
struct Probes {
    load: Option<LoadFn>,
    spin: Option<VcpuFn>,
    spun: Option<VcpuFn>,
    accept: Option<AcceptFn>,
    halt: Option<VcpuFn>,
    halted: Option<VcpuFn>,
    destroy: Option<VmFn>,
}

#[expect(clippy::vec_box, reason = "addresses must stay")]
pub struct Scx {
    ops: *const Ops,
    shim: Box<Shim>,
    /// What the scheduler's clock is ahead by.
    ahead: i64,
    state: Box<Inner>,
    probes: Probes,
    /// How long a task may wait for a pCPU.
    timeout: Ns,
    kvms: Vec<Box<Kvm>>,
    /// VMs whose threads do not enter the guest any more.
    outside: Vec<bool>,
    /// The first vCPU of each VM.
    first: Vec<u32>,
    vcpus: Vec<Option<Box<KvmVcpu>>>,
    loaded: Loaded,
}

/// A cgroup. Those of VMs come first, in their order.
pub struct Group {
    pub weight: u32,
    pub quota: Option<Quota>,
    /// The place of its parent among them; `None`: the root.
    pub parent: Option<usize>,
}

/// As the kernel gives it: the period, the quota and the burst.
fn bandwidth(quota: Option<Quota>) -> (u64, u64, u64) {
    quota.map_or((100_000, u64::MAX, 0), |q| (q.period_us, q.quota_us, q.burst_us))
}

macro_rules! call {
    ($self:ident, $m:ident, $context:expr, $cpu:expr, $op:ident ( $($arg:expr),* )) => {{
        // SAFETY: the ops are the scheduler's, and the library stays loaded as long as `self`.
        let op = unsafe { (*$self.ops).$op };
        op.map(|op| {
            let name = stringify!($op).trim_end_matches('_');
            let before = $self.enter($m, $context, $cpu, name);
            // SAFETY: arguments are as the shim's headers say, and stay alive for the call.
            let result = unsafe { op($($arg),*) };
            $self.leave(before);
            result
        })
    }};
}

impl Scx {
    /// Loads and initializes a scheduler for this machine; `yield_policy` is for scx_baton alone, empty:
    /// what it has by default.
    ///
    /// Errors: it cannot be loaded, or its init() fails.
    pub fn new(
        object: &[u8],
        m: &mut Machine,
        groups: &[Group],
        yield_policy: &[u32],
        seed: u64,
    ) -> Result<Self> {
        let loaded = Loaded::new(object)?;
        let cpus = m.cpus.len();
        if cpus > CPU_WORDS * 64 {
            bail!("{cpus} pCPUs are too many for sched_ext here; at most {}", CPU_WORDS * 64);
        }
        let mut state = Box::new(Inner {
            machine: std::ptr::null_mut(),
            entries: Vec::new(),
            dsqs: FxHashMap::default(),
            local: vec![Vec::new(); cpus],
            global: Dsq::default(),
            idle: m.online.clone(),
            was_idle: m.online.clone(),
            seq: 1 << 32,
            dispatched: 0,
            inserted: 0,
            most_inserts: DISPATCH_BATCH,
            subject: NONE,
            waiting: vec![0; cpus],
            idle_task: Box::new(idle_task()),
            context: In::Nothing,
            callback: "",
            here: 0,
            dispatching: 0,
            maps: Vec::new(),
            storages: Vec::new(),
            task_maps: 0,
            cgroup_storage: FxHashMap::default(),
            cgroups: Vec::new(),
            left: Vec::new(),
            failure: None,
            looked: 0,
            longest_walk: 0,
            timers: Vec::new(),
            armed: FxHashMap::default(),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
        });
        for index in 0..=groups.len() as i32 {
            let (storage, parent) = (std::ptr::null_mut(), std::ptr::null_mut());
            state.cgroups.push(Box::new(Cgroup { level: 0, index, storage, parent }));
        }
        for (place, group) in groups.iter().enumerate() {
            let parent = &raw mut *state.cgroups[group.parent.map_or(0, |parent| parent + 1)];
            let above = |group: &Group| group.parent.map(|parent| &groups[parent]);
            let level = 1 + std::iter::successors(above(group), |group| above(group)).count();
            let cgroup = &mut state.cgroups[place + 1];
            (cgroup.parent, cgroup.level) = (parent, level as i32);
        }
        let shim = Box::new(kfuncs::shim(&mut state, cpus as u32, CpuMask::of(&m.online)));
        // As the loader does.
        let follows_ipis = yield_policy.is_empty()
            || yield_policy.iter().any(|reason| [YIELD_IPI, YIELD_SENT].contains(reason));
        let probes = Probes {
            load: loaded.symbol("baton_vcpu_load"),
            spin: loaded.symbol("baton_on_spin"),
            spun: loaded.symbol("baton_spun"),
            accept: loaded.symbol("baton_accept_irq").filter(|_: &AcceptFn| follows_ipis),
            halt: loaded.symbol("baton_halt"),
            halted: loaded.symbol("baton_halted"),
            destroy: loaded.symbol("baton_destroy_vm"),
        };
        let llcs = m.cpus.iter().map(|cpu| cpu.llc).max().unwrap_or(0) + 1;
        // Baton's, whose sizes are known; it refuses more pCPUs itself.
        if probes.load.is_some() {
            for (place, reason) in yield_policy.iter().enumerate() {
                loaded.set("yield_policy", place, *reason);
            }
            loaded.set("nr_llcs", 0, llcs);
            loaded.set("smt_active", 0, m.cpus.iter().any(|cpu| cpu.sibling != NONE));
            let mut by_llc: Vec<usize> = (0..m.cpus.len().min(BATON_MAX_CPUS)).collect();
            by_llc.sort_by_key(|cpu| m.cpus[*cpu].llc);
            for (place, &cpu) in by_llc.iter().enumerate() {
                loaded.set("llc_cpus", place, cpu as u16);
                loaded.set("cpu_place", cpu, place as u16);
                loaded.set("llc_first", m.cpus[cpu].llc as usize + 1, place as u16 + 1);
            }
            for (cpu, at) in m.cpus.iter().enumerate().take(BATON_MAX_CPUS) {
                loaded.set("cpu_llc", cpu, at.llc as u16);
                let sibling = if at.sibling == NONE { cpu as u32 } else { at.sibling };
                loaded.set("cpu_sibling", cpu, sibling as u16);
            }
        }
        let mut scx = Scx {
            ops: std::ptr::null(),
            shim,
            ahead: 0,
            state,
            probes,
            timeout: WATCHDOG_MAX_NS,
            kvms: (0..groups.len()).map(|_| Box::new(Kvm { index: 0 })).collect(),
            outside: vec![false; groups.len()],
            first: vec![NONE; groups.len()],
            vcpus: Vec::new(),
            loaded,
        };
        // SAFETY: the shim is in a box that `scx` keeps.
        scx.ops = unsafe { scx.loaded.connect(&raw mut *scx.shim)? };
        // SAFETY: as in `call!`.
        let batch = unsafe { (*scx.ops).dispatch_max_batch };
        if batch > 0 {
            scx.state.most_inserts = batch;
        }
        // SAFETY: as in `call!`.
        let timeout = Ns::from(unsafe { (*scx.ops).timeout_ms }) * 1_000_000;
        if timeout > WATCHDOG_MAX_NS {
            bail!("the scheduler's timeout_ms is above 30,000");
        }
        if timeout > 0 {
            scx.timeout = timeout;
        }
        scx.state.timers.push((scx.timeout / 2, WATCHDOG));
        if let Some(error) = call!(scx, m, In::Unlocked, 0, init()).filter(|error| *error != 0) {
            bail!("the scheduler's init() failed: {error}");
        }
        let mut order: Vec<usize> = (0..scx.state.cgroups.len()).collect();
        order.sort_by_key(|index| scx.state.cgroups[*index].level);
        for index in order {
            let root = Group { weight: 100, quota: None, parent: None };
            let group = if index == 0 { &root } else { &groups[index - 1] };
            let (period_us, quota_us, burst_us) = bandwidth(group.quota);
            let weight = group.weight;
            let mut args = CgroupInitArgs { weight, period_us, quota_us, burst_us };
            let cgroup = &raw mut *scx.state.cgroups[index];
            let error = call!(scx, m, In::Unlocked, 0, cgroup_init(cgroup, &raw mut args));
            if let Some(error) = error.filter(|error| *error != 0) {
                bail!("the scheduler's cgroup_init() failed: {error}");
            }
        }
        if let Some(why) = scx.state.failure.clone() {
            bail!(why);
        }
        Ok(scx)
    }

    fn enter(
        &mut self,
        m: &mut Machine,
        context: In,
        cpu: u32,
        callback: &'static str,
    ) -> (In, &'static str) {
        self.shim.now = m.now.wrapping_add_signed(self.ahead);
        self.shim.cpu = cpu as i32;
        let state = &mut *self.state;
        state.machine = m;
        state.here = cpu;
        let before = (state.context, state.callback);
        if before.0 == In::Nothing {
            state.looked = 0;
            self.shim.call += 1;
            self.shim.callback = callback.as_ptr();
            self.shim.callback_len = callback.len() as u64;
        }
        (state.context, state.callback) = (context, callback);
        CALLBACK.set(callback);
        before
    }

    /// ops.dequeue() hears of those that left the scheduler's custody in a callback as soon as that
    /// ends; the kernel calls it in between.
    fn leave(&mut self, before: (In, &'static str)) {
        while let Some((task, flags)) = self.state.left.pop() {
            let p = self.p(task);
            (self.state.context, self.state.callback) = (In::Locked, "dequeue");
            // SAFETY: as in `call!`.
            if let Some(dequeue) = unsafe { (*self.ops).dequeue } {
                // SAFETY: as in `call!`.
                unsafe { dequeue(p, flags) };
            }
        }
        (self.state.context, self.state.callback) = before;
        CALLBACK.set(before.1);
        if before.0 == In::Nothing {
            self.state.machine = std::ptr::null_mut();
        }
    }

    fn p(&mut self, task: u32) -> *mut TaskStruct {
        &raw mut *self.state.entry(task).p
    }

    /// `update_curr_scx()`.
    fn update_curr(&mut self, m: &Machine, task: u32) {
        let entry = self.state.entry(task);
        let ran = m.now - entry.runs_since;
        entry.runs_since = m.now;
        if entry.p.scx.slice != SLICE_INF {
            entry.p.scx.slice = entry.p.scx.slice.saturating_sub(ran);
        }
    }

    /// `do_enqueue_task()`.
    fn enqueue(&mut self, m: &mut Machine, task: u32, flags: u64, on: u32) {
        if self.state.entry(task).direct.is_none() {
            // SAFETY: as in `call!`.
            let enq_exiting = unsafe { (*self.ops).flags } & OPS_ENQ_EXITING != 0;
            if self.state.entry(task).p.flags & PF_EXITING != 0 && !enq_exiting {
                // On a pCPU that has nobody else and goes idle now, rq->curr is still this one.
                self.state.entry(task).p.scx.slice = SLICE_DFL;
                let own = m.task(task).cpu;
                if !m.may_run(task, own)
                    && let Some(cpu) = self.state.fallback(m, task)
                {
                    // migration_cpu_stop() has moved it.
                    m.tasks[task as usize].cpu = cpu;
                    self.state.entry(task).p.cpu = cpu as i32;
                    m.resched(cpu);
                }
                let own = m.task(task).cpu;
                return self.state.put_local(task, own, false);
            }
            self.state.entry(task).at = At::Scheduler;
            self.state.subject = task;
            let p = self.p(task);
            if call!(self, m, In::Enqueue, on, enqueue(p, flags)).is_none() {
                self.state.entry(task).ordered = false;
                self.state.entry(task).p.scx.slice = SLICE_DFL;
                self.state.entry(task).direct = Some((GLOBAL, flags));
            }
        }
        match self.state.entry(task).direct.take() {
            Some((dsq, flags)) => {
                self.state.put(m, task, dsq, flags);
                let before = self.enter(m, In::Locked, on, "dequeue");
                self.leave(before);
            }
            None => self.state.entry(task).custody |= self.state.entry(task).at == At::Scheduler,
        }
    }

    /// `balance_one()` and `pick_task_scx()`: who is next. `true`: the one that has just run.
    /// `last` has run until now, whether it goes on being runnable (`prev`) or not.
    fn choose(
        &mut self,
        m: &mut Machine,
        cpu: u32,
        prev: Option<u32>,
        last: Option<u32>,
    ) -> (Option<u32>, bool) {
        let slice = |scx: &mut Scx, task: u32| scx.state.entry(task).p.scx.slice;
        if let Some(prev) = prev
            && slice(self, prev) > 0
        {
            return (Some(prev), true);
        }
        for _ in 0..DISPATCH_LOOPS {
            let state = &mut *self.state;
            if state.first_local(m, cpu).is_some() || state.take_global(m, cpu) {
                break;
            }
            let before = state.dispatched;
            let p = last.map_or(std::ptr::null_mut(), |last| self.p(last));
            self.state.dispatching = cpu;
            self.state.inserted = 0;
            call!(self, m, In::Dispatch, cpu, dispatch(cpu as i32, p));
            if let Some(prev) = prev
                && slice(self, prev) > 0
            {
                return (Some(prev), true);
            }
            let state = &mut *self.state;
            let local = state.first_local(m, cpu).is_some() || state.take_global(m, cpu);
            // Nothing came from it, not even for another pCPU.
            if local || state.dispatched == before {
                break;
            }
        }
        if let Some(next) = self.state.first_local(m, cpu) {
            return (Some(next), false);
        }
        // SAFETY: as in `call!`.
        let enq_last = unsafe { (*self.ops).flags } & OPS_ENQ_LAST != 0;
        match prev {
            Some(prev) if !enq_last => {
                self.state.entry(prev).p.scx.slice = SLICE_DFL;
                (Some(prev), true)
            }
            _ => (None, false),
        }
    }

    fn vcpu(&mut self, m: &Machine, task: u32) -> *mut KvmVcpu {
        let at = task as usize;
        if self.vcpus.len() <= at {
            self.vcpus.resize_with(at + 1, || None);
        }
        let vm = m.task(task).vm as usize;
        let vcpu_id = (task - self.first[vm]) as i32;
        let kvm = &raw mut *self.kvms[vm];
        &raw mut **self.vcpus[at].get_or_insert_with(|| {
            Box::new(KvmVcpu {
                kvm,
                vcpu_id,
                wants_to_run: true,
                preempted: false,
                ready: false,
                halt_poll_ns: 0,
                exits: 0,
            })
        })
    }

    /// The scheduler's own counters, if it is Baton.
    fn stat(&self) -> Vec<(&'static str, u64)> {
        let handle = self.loaded.symbol::<*const *const Map>("stats");
        let times = self.loaded.symbol::<extern "C" fn(u32) -> u64>("shim_vm_times");
        let (Some(handle), Some(times)) = (handle, times) else {
            return Vec::new();
        };
        // SAFETY: the map of this name holds one record of as many counters; its handle is null
        // until it is first used.
        unsafe {
            if self.probes.load.is_none() || (*handle).is_null() {
                return Vec::new();
            }
            let record = (**handle).value_size as usize / 8;
            let counts = (**handle).values.cast::<u64>();
            let cpus = self.state.local.len();
            let sum = |i: usize| (0..cpus).map(|cpu| counts.add(cpu * record + i).read()).sum();
            let counts = COUNTERS.iter().enumerate().map(|(i, (name, _))| (*name, sum(i)));
            let times = (0..).zip(VM_TIMES).map(|(i, (name, _))| (name, times(i)));
            counts.chain(times).collect()
        }
    }
}

impl Scheduler for Scx {
    fn add(&mut self, m: &mut Machine, task: u32) {
        let t = m.task(task);
        let mask = Box::new(CpuMask::of(&t.allowed));
        if t.vm != NONE {
            let first = &mut self.first[t.vm as usize];
            *first = task.min(*first);
        }
        let group = t.group.map_or(0, |group| group as usize + 1);
        let name = if t.vm == NONE { format!("host-{task}") } else { format!("CPU {task}/KVM") };
        let mut comm = [0; 16];
        let n = name.len().min(15);
        comm[..n].copy_from_slice(&name.as_bytes()[..n]);
        let mut p = Box::new(TaskStruct {
            pid: task as i32 + 1,
            tgid: task as i32 + 1,
            flags: if t.kernel { PF_KTHREAD } else { 0 },
            nr_cpus_allowed: t.allowed.len() as i32,
            scx: Entity {
                slice: SLICE_DFL,
                dsq_vtime: 0,
                weight: t.weight,
                flags: 0,
                disallow: false,
                ddsp_dsq_id: 0,
            },
            cpus_ptr: &raw const *mask,
            cpu: t.cpu as i32,
            static_prio: 120,
            cgroup: &raw mut *self.state.cgroups[group],
            storage: [std::ptr::null_mut(); STORAGES],
            comm,
        });
        let mut args = InitTaskArgs { fork: false, cgroup: p.cgroup };
        let raw = &raw mut *p;
        let at = task as usize;
        if self.state.entries.len() <= at {
            self.state.entries.resize_with(at + 1, || None);
        }
        let entry = Entry {
            p,
            mask,
            at: At::Nowhere,
            custody: false,
            vtime: 0,
            seq: 0,
            ordered: false,
            queued: 0,
            counted: NONE,
            direct: None,
            runs_since: 0,
        };
        self.state.entries[at] = Some(entry);
        if let Some(error) = call!(self, m, In::Unlocked, 0, init_task(raw, &raw mut args))
            && error != 0
        {
            self.state.fail(format!("init_task() failed: {error}"));
        }
        call!(self, m, In::Locked, 0, enable(raw));
    }

    fn remove(&mut self, m: &mut Machine, task: u32) {
        let p = self.p(task);
        self.state.take(task);
        call!(self, m, In::Locked, 0, disable(p));
        let mut args = ExitTaskArgs { cancelled: false };
        call!(self, m, In::Unlocked, 0, exit_task(p, &raw mut args));
        // Its memory stays: the scheduler may have kept its pid, not the task.
        self.state.entry(task).at = At::Nowhere;
        self.state.entry(task).p.pid = 0;
    }

    fn wake(&mut self, m: &mut Machine, task: u32, waker: u32) {
        let mut flags = ENQ_WAKEUP;
        let prev = m.task(task).cpu;
        let p = self.p(task);
        self.state.entry(task).direct = None;
        self.state.entry(task).p.cpu = prev as i32;
        self.state.subject = task;
        if self.state.entry(task).p.nr_cpus_allowed > 1 {
            // No ops.select_cpu(): the kernel's own choice.
            let chosen = call!(self, m, In::SelectCpu, waker, select_cpu(p, prev as i32, 0));
            let cpu = match chosen {
                Some(cpu) => cpu,
                None => {
                    let (cpu, idle) = self.state.select(m, task, prev, None, 0);
                    if idle {
                        self.state.entry(task).p.scx.slice = SLICE_DFL;
                        self.state.entry(task).direct = Some((LOCAL, 0));
                    }
                    cpu as i32
                }
            };
            if cpu < 0 || cpu as usize >= m.cpus.len() {
                return self
                    .state
                    .fail(format!("select_cpu() chose CPU {cpu}, which does not exist"));
            }
            self.move_to(m, task, cpu as u32);
            flags |= ENQ_CPU_SELECTED;
        } else {
            self.move_to(m, task, prev);
        }
        self.state.entry(task).p.scx.flags |= TASK_QUEUED;
        call!(self, m, In::Locked, waker, runnable(p, flags));
        let cpu = m.task(task).cpu;
        self.enqueue(m, task, flags, waker);
        // wakeup_preempt(): any task goes before the idle task.
        if m.cpus[cpu as usize].curr == NONE {
            m.resched(cpu);
        }
    }

    fn pick(&mut self, m: &mut Machine, cpu: u32, prev: Option<(u32, bool)>) -> Option<u32> {
        let runnable = prev.filter(|prev| prev.1).map(|prev| prev.0);
        if let Some((task, runnable)) = prev {
            self.update_curr(m, task);
            if !runnable {
                // dequeue_task_scx()
                let p = self.p(task);
                call!(self, m, In::Locked, cpu, stopping(p, false));
                call!(self, m, In::Locked, cpu, quiescent(p, 0));
                self.state.entry(task).p.scx.flags &= !TASK_QUEUED;
                self.state.entry(task).at = At::Nowhere;
            }
        }
        let (next, keeps) = match m.cpus[cpu as usize].online {
            true => self.choose(m, cpu, runnable, prev.map(|prev| prev.0)),
            false => (None, false),
        };
        if keeps {
            return next;
        }
        if let Some(prev) = runnable {
            // put_prev_task_scx()
            let p = self.p(prev);
            call!(self, m, In::Locked, cpu, stopping(p, true));
            m.cpus[cpu as usize].curr = NONE;
            if self.state.entry(prev).p.scx.slice > 0 {
                self.state.entry(prev).direct = Some((LOCAL, ENQ_HEAD));
            }
            let last = next.is_none();
            self.enqueue(m, prev, if last { ENQ_LAST } else { 0 }, cpu);
        }
        if let Some(next) = next {
            self.state.take(next);
            self.state.entry(next).runs_since = m.now;
            self.set_idle(m, cpu, false);
        } else if m.cpus[cpu as usize].online {
            self.set_idle(m, cpu, true);
        }
        next
    }

    fn started(&mut self, m: &mut Machine, cpu: u32, task: u32) {
        self.state.entry(task).runs_since = m.now;
        self.state.entry(task).p.cpu = cpu as i32;
        let p = self.p(task);
        call!(self, m, In::Locked, cpu, running(p));
    }

    fn tick(&mut self, m: &mut Machine, cpu: u32) {
        let curr = m.cpus[cpu as usize].curr;
        if curr == NONE {
            return;
        }
        self.update_curr(m, curr);
        let p = self.p(curr);
        let in_guest = m.task(curr).vm != NONE && !self.outside[m.task(curr).vm as usize];
        if in_guest {
            self.state.entry(curr).p.flags |= PF_VCPU;
        }
        call!(self, m, In::Locked, cpu, tick(p));
        self.state.entry(curr).p.flags &= !PF_VCPU;
        if self.state.entry(curr).p.scx.slice == 0 {
            m.resched(cpu);
        }
    }

    fn yield_to(&mut self, m: &mut Machine, cpu: u32, from: u32, to: u32) -> bool {
        self.update_curr(m, from);
        let (p, target) = (self.p(from), self.p(to));
        let yielded = call!(self, m, In::Locked, cpu, yield_(p, target)).unwrap_or(false);
        if yielded && m.task(to).cpu != cpu {
            // yield_to() asks the other runqueue, too.
            m.resched(m.task(to).cpu);
        }
        yielded
    }

    /// A task in a user queue counts where it was enqueued.
    fn nr_running(&self, m: &Machine, cpu: u32) -> usize {
        let waiting = self.state.waiting[cpu as usize] as usize;
        waiting + usize::from(m.cpus[cpu as usize].curr != NONE)
    }

    fn give_way(&mut self, m: &mut Machine, cpu: u32, task: u32) {
        let p = self.p(task);
        let none = std::ptr::null_mut();
        if call!(self, m, In::Locked, cpu, yield_(p, none)).is_none() {
            self.state.entry(task).p.scx.slice = 0;
        }
    }

    fn affinity_changed(&mut self, m: &mut Machine, task: u32) {
        let allowed = m.task(task).allowed.clone();
        let entry = self.state.entry(task);
        *entry.mask = CpuMask::of(&allowed);
        entry.p.nr_cpus_allowed = allowed.len() as i32;
        let (p, mask) = (&raw mut *entry.p, &raw const *entry.mask);
        // do_set_cpus_allowed() takes a task out of its queue and puts it back.
        let waits = m.task(task).state == State::Runnable;
        if waits {
            self.state.take(task);
            if std::mem::take(&mut self.state.entry(task).custody) {
                call!(self, m, In::Locked, 0, dequeue(p, DEQ_SCHED_CHANGE));
            }
        }
        call!(self, m, In::Locked, 0, set_cpumask(p, mask));
        let cpu = m.task(task).cpu;
        if waits {
            if !m.may_run(task, cpu)
                && let Some(cpu) = self.state.fallback(m, task)
            {
                m.tasks[task as usize].cpu = cpu;
                self.state.entry(task).p.cpu = cpu as i32;
            }
            self.enqueue(m, task, 0, m.task(task).cpu);
            // One that exits is on a local queue now: local_dsq_post_enq().
            let cpu = m.task(task).cpu;
            if m.cpus[cpu as usize].curr == NONE && self.state.first_local(m, cpu).is_some() {
                m.resched(cpu);
            }
        } else if m.task(task).state == State::Running && !m.may_run(task, cpu) {
            m.resched(cpu);
        }
    }

    fn cpu_changed(&mut self, m: &mut Machine, cpu: u32, online: bool) {
        self.shim.online = CpuMask::of(&m.online);
        // SAFETY: as in `call!`.
        let handles =
            unsafe { (*self.ops).cpu_online.is_some() || (*self.ops).cpu_offline.is_some() };
        if !handles {
            let why = "CPU hotplug ends a scheduler without cpu_online() and cpu_offline()";
            return self.state.fail(why.into());
        }
        if online {
            call!(self, m, In::Unlocked, cpu, cpu_online(cpu as i32));
            return m.resched(cpu);
        }
        self.state.idle.remove(cpu);
        call!(self, m, In::Unlocked, cpu, cpu_offline(cpu as i32));
        // Who waits on its runqueue is pushed away (`balance_push()`), and whoever can run nowhere
        // else may run anywhere (`select_fallback_rq()`); the engine has seen to that.
        for task in self.state.local[cpu as usize].clone() {
            self.state.take(task);
            self.state.entry(task).p.scx.flags &= !TASK_QUEUED;
            self.wake(m, task, cpu);
        }
    }

    fn vcpu_loaded(&mut self, m: &mut Machine, cpu: u32, task: u32) {
        if self.outside[m.task(task).vm as usize] {
            return;
        }
        let vcpu = self.vcpu(m, task);
        // SAFETY: the record is in a box that stays.
        unsafe { (*vcpu).exits += 1 };
        if let Some(load) = self.probes.load {
            let before = self.enter(m, In::Locked, cpu, "fentry/kvm_arch_vcpu_load");
            // SAFETY: the record is in a box that stays.
            unsafe { load(vcpu, cpu as i32) };
            self.leave(before);
        }
    }

    fn vcpu_spins(&mut self, m: &mut Machine, cpu: u32, task: u32) {
        let vcpu = self.vcpu(m, task);
        if let Some(spin) = self.probes.spin {
            let before = self.enter(m, In::Locked, cpu, "fentry/kvm_vcpu_on_spin");
            // SAFETY: as above.
            unsafe { spin(vcpu) };
            self.leave(before);
        }
    }

    fn vcpu_spun(&mut self, m: &mut Machine, cpu: u32, task: u32) {
        let vcpu = self.vcpu(m, task);
        if let Some(spun) = self.probes.spun {
            let before = self.enter(m, In::Locked, cpu, "fexit/kvm_vcpu_on_spin");
            // SAFETY: as above.
            unsafe { spun(vcpu) };
            self.leave(before);
        }
    }

    fn ipi_sent(&mut self, m: &mut Machine, cpu: u32, to: u32) {
        if let Some(accept) = self.probes.accept {
            let before = self.enter(m, In::Locked, cpu, "tp_btf/kvm_apic_accept_irq");
            // SAFETY: plain numbers; a fixed, edge-triggered interrupt.
            unsafe { accept(to, 0, 0, 0xfd) };
            self.leave(before);
        }
    }

    fn vcpu_halts(&mut self, m: &mut Machine, cpu: u32, task: u32, poll_ns: Ns) {
        let vcpu = self.vcpu(m, task);
        if let Some(halt) = self.probes.halt {
            let before = self.enter(m, In::Locked, cpu, "fentry/kvm_vcpu_halt");
            // SAFETY: as above; the record is the simulator's own.
            unsafe {
                (*vcpu).halt_poll_ns = u32::try_from(poll_ns).unwrap_or(u32::MAX);
                halt(vcpu)
            };
            self.leave(before);
        }
    }

    fn vcpu_halted(&mut self, m: &mut Machine, cpu: u32, task: u32) {
        let vcpu = self.vcpu(m, task);
        if let Some(halted) = self.probes.halted {
            let before = self.enter(m, In::Locked, cpu, "fexit/kvm_vcpu_halt");
            // SAFETY: as above.
            unsafe { halted(vcpu) };
            self.leave(before);
        }
    }

    fn exits(&mut self, task: u32) {
        self.state.entry(task).p.flags |= PF_EXITING;
    }

    fn leaves_guest(&mut self, vm: u32) {
        self.outside[vm as usize] = true;
    }

    fn vm_ends(&mut self, m: &mut Machine, vm: u32) {
        let kvm = &raw mut *self.kvms[vm as usize];
        if let Some(destroy) = self.probes.destroy {
            let before = self.enter(m, In::Unlocked, 0, "fentry/kvm_arch_destroy_vm");
            // SAFETY: as above.
            unsafe { destroy(kvm) };
            self.leave(before);
        }
    }

    fn weight_changes(&mut self, m: &mut Machine, vm: u32, weight: u32) {
        let cgroup = &raw mut *self.state.cgroups[vm as usize + 1];
        call!(self, m, In::Locked, 0, cgroup_set_weight(cgroup, weight));
    }

    fn quota_changes(&mut self, m: &mut Machine, vm: u32, quota: Option<Quota>) {
        let cgroup = &raw mut *self.state.cgroups[vm as usize + 1];
        let (period, quota, burst) = bandwidth(quota);
        call!(self, m, In::Unlocked, 0, cgroup_set_bandwidth(cgroup, period, quota, burst));
    }

    fn clock_jumps(&mut self, ns: i64) {
        self.ahead += ns;
    }

    fn timer(&mut self, m: &mut Machine, timer: u64) {
        if timer == WATCHDOG {
            return self.watchdog(m);
        }
        if self.state.armed.get(&timer) != Some(&m.now) {
            return;
        }
        self.state.armed.remove(&timer);
        let timer = timer as *mut Timer;
        // SAFETY: the address of a timer in one of the scheduler's maps, which stay.
        let Some(callback) = (unsafe { (*timer).callback }) else { return };
        let before = self.enter(m, In::Unlocked, 0, "bpf_timer");
        // SAFETY: a callback of BPF: map, key, value.
        unsafe { callback(std::ptr::null_mut(), std::ptr::null_mut(), timer.cast()) };
        self.leave(before);
    }

    fn wants_attention(&self) -> bool {
        !self.state.timers.is_empty() || self.state.failure.is_some()
    }

    fn timers(&mut self) -> Vec<(Ns, u64)> {
        std::mem::take(&mut self.state.timers)
    }

    fn failure(&self) -> Option<String> {
        self.state.failure.clone()
    }

    /// A scheduler without callbacks for cgroups knows nothing of them; what it does with those
    /// that it has cannot be seen.
    fn heeds(&self) -> Heeds {
        // SAFETY: as in `call!`.
        let ops = unsafe { &*self.ops };
        Heeds {
            weights: ops.cgroup_init.is_some() || ops.cgroup_set_weight.is_some(),
            quotas: ops.cgroup_set_bandwidth.is_some(),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.stat();
        counters.push((WALK.0, self.state.longest_walk));
        counters
    }

    fn lost(&self, m: &Machine) -> Option<u32> {
        (0..).zip(&m.tasks).find_map(|(task, t)| {
            let entry = self.state.entries.get(task as usize)?.as_ref()?;
            // Schedulers may keep tasks in a queue of their own.
            (t.state == State::Runnable && entry.at == At::Nowhere).then_some(task)
        })
    }
}

impl Scx {
    /// `scx_watchdog_workfn()`, twice in the time that a task may wait.
    fn watchdog(&mut self, m: &Machine) {
        let waits = |t: &Task| (t.state == State::Runnable).then(|| m.now - t.since);
        let stalled =
            (0..).zip(&m.tasks).find(|(_, t)| waits(t).is_some_and(|ns| ns > self.timeout));
        if let Some((task, t)) = stalled {
            let waited = (m.now - t.since) as f64 / 1e9;
            self.state
                .fail(format!("runnable task stall (task {task} failed to run for {waited:.3}s)"));
        }
        self.state.timers.push((m.now + self.timeout / 2, WATCHDOG));
    }

    /// A CPU that it may not use is replaced by one that it may (`select_task_rq()`).
    fn move_to(&mut self, m: &mut Machine, task: u32, cpu: u32) {
        let usable = m.may_run(task, cpu);
        let cpu = if usable { cpu } else { self.state.fallback(m, task).unwrap_or(cpu) };
        m.tasks[task as usize].cpu = cpu;
        self.state.entry(task).p.cpu = cpu as i32;
    }

    fn set_idle(&mut self, m: &mut Machine, cpu: u32, idle: bool) {
        let was = self.state.was_idle.contains(cpu);
        if idle {
            self.state.idle.insert(cpu);
            self.state.was_idle.insert(cpu);
        } else {
            self.state.idle.remove(cpu);
            self.state.was_idle.remove(cpu);
        }
        if was != idle {
            call!(self, m, In::Locked, cpu, update_idle(cpu as i32, idle));
        }
    }
}

impl Drop for Scx {
    fn drop(&mut self) {
        let mut info = ExitInfo {
            kind: 64,
            exit_code: 0,
            reason: c"unregistered from user space".as_ptr(),
            msg: c"".as_ptr(),
        };
        // SAFETY: as in `call!`; exit() only records why.
        unsafe {
            if !self.ops.is_null()
                && let Some(exit) = (*self.ops).exit
            {
                exit(&raw mut info);
            }
        }
    }
}

/// PF_IDLE; in no queue, with nothing of the scheduler's.
fn idle_task() -> TaskStruct {
    TaskStruct {
        pid: 0,
        tgid: 0,
        flags: 2,
        nr_cpus_allowed: 1,
        scx: Entity {
            slice: SLICE_INF,
            dsq_vtime: 0,
            weight: 1,
            flags: 0,
            disallow: true,
            ddsp_dsq_id: 0,
        },
        cpus_ptr: std::ptr::null(),
        cpu: 0,
        static_prio: 140,
        cgroup: std::ptr::null_mut(),
        storage: [std::ptr::null_mut(); STORAGES],
        comm: [0; 16],
    }
}

/// What a C string says.
///
/// # Safety
///
/// It must be one, or null.
unsafe fn text(words: *const std::ffi::c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}
