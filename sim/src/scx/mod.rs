// SPDX-License-Identifier: GPL-2.0-only
//! sched_ext as `kernel/sched/ext/ext.c` does it: a scheduler's callbacks, dispatch queues, and
//! which kfunc may be called where. The scheduler is the BPF source itself, compiled natively.

#[macro_use]
mod call;
mod baton;
pub mod counters;
mod ffi;
mod idle;
mod kfuncs;
mod load;
mod probes;
mod queues;
mod run;
mod state;
mod tasks;

use anyhow::{Result, bail};

use self::baton::Baton;
use self::counters::WALK;
use self::ffi::*;
use self::load::Loaded;
pub use self::load::{BATON, FIFO, VTIME, compiled};
use self::probes::Probes;
pub use self::state::current_callback;
use self::state::{At, CALLBACK, In, Inner};
use crate::machine::{Group, Heeds, KvmEvent, Machine, NONE, Ns, Quota, Scheduler, State, Task};

/// `SCX_WATCHDOG_MAX_TIMEOUT`, also what counts if the scheduler does not say.
const WATCHDOG_MAX_NS: Ns = 30_000_000_000;

/// In place of the address of a timer: the kernel's watchdog.
const WATCHDOG: u64 = 0;

/// `SCX_DSP_DFL_MAX_BATCH`.
const DISPATCH_BATCH: u32 = 32;

/// `SCX_DSP_MAX_LOOPS`.
const DISPATCH_LOOPS: u32 = 32;

#[expect(clippy::vec_box, reason = "addresses must stay")]
pub struct Scx {
    ops: *const Ops,
    shim: Box<Shim>,
    /// What the scheduler's clock is ahead by.
    ahead: i64,
    state: Box<Inner>,
    probes: Probes,
    /// If it is Baton.
    baton: Option<Baton>,
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

/// As the kernel gives it: the period, the quota and the burst.
fn bandwidth(quota: Option<Quota>) -> (u64, u64, u64) {
    quota.map_or((100_000, u64::MAX, 0), |q| (q.period_us, q.quota_us, q.burst_us))
}

impl Scx {
    /// Loads and initializes a scheduler for this machine; `yield_policy` is for scx_baton alone,
    /// empty: what it has by default.
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
        let mut state = Box::new(Inner::new(m, groups, seed));
        let shim = Box::new(kfuncs::shim(&mut state, cpus as u32, CpuMask::of(&m.online)));
        let baton = Baton::of(&loaded)?;
        let follows_ipis = baton.as_ref().is_some_and(|baton| baton.follows_ipis(yield_policy));
        if let Some(baton) = &baton {
            baton.configure(&loaded, m, yield_policy);
        }
        let mut scx = Scx {
            ops: std::ptr::null(),
            shim,
            ahead: 0,
            state,
            probes: Probes::of(&loaded, follows_ipis),
            baton,
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
        let (batch, timeout_ms) = unsafe { ((*scx.ops).dispatch_max_batch, (*scx.ops).timeout_ms) };
        if batch > 0 {
            scx.state.most_inserts = batch;
        }
        let timeout = Ns::from(timeout_ms) * 1_000_000;
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
        scx.init_cgroups(m, groups)?;
        if let Some(why) = scx.state.failure.clone() {
            bail!(why);
        }
        Ok(scx)
    }

    /// The scheduler hears of the cgroups from the root down.
    fn init_cgroups(&mut self, m: &mut Machine, groups: &[Group]) -> Result<()> {
        let mut order: Vec<usize> = (0..self.state.cgroups.len()).collect();
        order.sort_by_key(|index| self.state.cgroups[*index].level);
        for index in order {
            let root = Group { weight: 100, quota: None, parent: None };
            let group = if index == 0 { &root } else { &groups[index - 1] };
            let (period_us, quota_us, burst_us) = bandwidth(group.quota);
            let weight = group.weight;
            let mut args = CgroupInitArgs {
                weight,
                bw_period_us: period_us,
                bw_quota_us: quota_us,
                bw_burst_us: burst_us,
            };
            let cgroup = &raw mut *self.state.cgroups[index];
            let error = call!(self, m, In::Unlocked, 0, cgroup_init(cgroup, &raw mut args));
            if let Some(error) = error.filter(|error| *error != 0) {
                bail!("the scheduler's cgroup_init() failed: {error}");
            }
        }
        Ok(())
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
            self.shim.callback = callback.as_ptr().cast();
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
}

impl Scheduler for Scx {
    fn add(&mut self, m: &mut Machine, task: u32) {
        self.comes(m, task, false);
    }

    fn fork(&mut self, m: &mut Machine, task: u32) {
        self.comes(m, task, true);
    }

    fn remove(&mut self, m: &mut Machine, task: u32) {
        self.goes(m, task);
    }

    fn wake(&mut self, m: &mut Machine, task: u32, waker: u32) {
        self.wakes(m, task, waker);
    }

    fn pick(&mut self, m: &mut Machine, cpu: u32, prev: Option<(u32, bool)>) -> Option<u32> {
        self.next(m, cpu, prev)
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
            self.state.entry(curr).p.flags |= PF_VCPU as u32;
        }
        call!(self, m, In::Locked, cpu, tick(p));
        self.state.entry(curr).p.flags &= !PF_VCPU as u32;
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
        self.may_run_elsewhere(m, task);
    }

    fn cpu_changed(&mut self, m: &mut Machine, cpu: u32, online: bool) {
        self.hotplug(m, cpu, online);
    }

    fn kvm(&mut self, m: &mut Machine, cpu: u32, task: u32, event: KvmEvent) {
        self.kvm_event(m, cpu, task, event);
    }

    fn exits(&mut self, task: u32) {
        self.state.entry(task).p.flags |= PF_EXITING as u32;
    }

    fn leaves_guest(&mut self, vm: u32) {
        self.outside[vm as usize] = true;
    }

    fn vm_ends(&mut self, m: &mut Machine, vm: u32) {
        self.vm_destroyed(m, vm);
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
        let cpus = self.state.local.len();
        let baton = self.baton.as_ref();
        let mut counters = baton.map_or(Vec::new(), |baton| baton.counters(&self.loaded, cpus));
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
