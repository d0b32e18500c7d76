// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel's side of sched_ext knows: tasks, queues, idle pCPUs, and the callback under
//! way.

use std::cell::Cell;
use std::ffi::c_void;

use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustc_hash::FxHashMap;

use super::DISPATCH_BATCH;
use super::ffi::*;
use super::kfuncs::MapData;
use crate::locks::Lock;
use crate::machine::{CpuSet, Group, Machine, NONE, Ns};

/// Callbacks, as the rules for kfuncs distinguish them (`scx_kf_allowed_if_unlocked()` and the
/// sets of kfuncs in ext.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum In {
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
pub enum At {
    /// It runs, sleeps, or is on its way.
    Nowhere,
    /// Given to the scheduler, which has put it into no queue (yet).
    Scheduler,
    Queue(u64),
    Local(u32),
}

pub struct Entry {
    pub p: Box<TaskStruct>,
    pub mask: Box<CpuMask>,
    pub at: At,
    /// `SCX_TASK_IN_CUSTODY`: ops.dequeue() must hear when it leaves.
    pub custody: bool,
    /// Of its place in a queue, which is ordered by virtual time or not.
    pub vtime: u64,
    pub seq: u64,
    pub ordered: bool,
    /// When it came there, in the order of all.
    pub queued: u64,
    /// The pCPU that counts it, or [`NONE`].
    pub counted: u32,
    /// Chosen in select_cpu() or enqueue(): queue and flags.
    pub direct: Option<(u64, u64)>,
    pub runs_since: Ns,
}

/// A dispatch queue: ordered by virtual time and then by arrival, or by arrival alone.
#[derive(Default)]
pub struct Dsq {
    pub order: Vec<u32>,
    pub by_vtime: bool,
}

/// The parts of a sched_ext scheduler that its kfuncs work on. The scheduler keeps addresses of
/// what is in boxes.
#[expect(clippy::vec_box, reason = "addresses must stay")]
pub struct Inner {
    /// While a callback runs, the machine; else null.
    pub machine: *mut Machine,
    pub entries: Vec<Option<Entry>>,
    pub dsqs: FxHashMap<u64, Dsq>,
    pub local: Vec<Vec<u32>>,
    pub global: Dsq,
    /// `scx_idle_cpumask`: those whose idleness nobody has claimed.
    pub idle: CpuSet,
    /// Those that were told to be idle last.
    pub was_idle: CpuSet,
    pub seq: u64,
    /// Tasks that dispatch() inserted, or moved to its pCPU's queue, so far.
    pub dispatched: u64,
    /// Of this dispatch(), and at most.
    pub inserted: u32,
    pub most_inserts: u32,
    /// For whom select_cpu() or enqueue() was called.
    pub subject: u32,
    /// Of each pCPU, tasks that wait and are counted there.
    pub waiting: Vec<u32>,
    pub idle_task: Box<TaskStruct>,
    pub context: In,
    pub callback: &'static str,
    /// The pCPU that the callback runs on.
    pub here: u32,
    /// Who is dispatched, and where.
    pub dispatching: u32,
    pub maps: Vec<Box<MapData>>,
    pub storages: Vec<Box<[u64]>>,
    pub task_maps: u32,
    pub cgroup_storage: FxHashMap<(i32, usize), *mut u64>,
    pub cgroups: Vec<Box<Cgroup>>,
    /// Tasks that ops.dequeue() must still hear of, with its flags.
    pub left: Vec<(u32, u64)>,
    pub failure: Option<String>,
    /// Tasks of queues that the callback under way has looked at, and the most of any.
    pub looked: u64,
    pub longest_walk: u64,
    pub timers: Vec<(Ns, u64)>,
    /// When each timer runs out.
    pub armed: FxHashMap<u64, Ns>,
    pub random: Xoshiro256PlusPlus,
}

thread_local! {
    /// For signal handlers: what [`Inner::callback`] says.
    pub static CALLBACK: Cell<&'static str> = const { Cell::new("") };
}

/// The scheduler's callback that this thread is in; empty: none. A signal handler may ask.
pub fn current_callback() -> &'static str {
    CALLBACK.get()
}

impl Inner {
    /// Of a machine, before any task comes.
    pub fn new(m: &Machine, groups: &[Group], seed: u64) -> Self {
        let cpus = m.cpus.len();
        Inner {
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
            left: Vec::new(),
            failure: None,
            looked: 0,
            longest_walk: 0,
            timers: Vec::new(),
            armed: FxHashMap::default(),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            cgroups: cgroups(groups),
        }
    }

    /// # Safety
    ///
    /// `sim` is what [`shim`] has put there.
    pub unsafe fn of<'a>(sim: *mut c_void) -> &'a mut Inner {
        // SAFETY: it outlives every callback, and callbacks run one at a time.
        unsafe { &mut *sim.cast::<Inner>() }
    }

    /// The machine, while a callback runs.
    pub fn m<'a>(&self) -> &'a mut Machine {
        assert!(!self.machine.is_null(), "a kfunc outside of any callback");
        // SAFETY: set for the time of the callback by `enter`, whose caller holds the machine
        // exclusively and does not touch it before the callback returns.
        unsafe { &mut *self.machine }
    }

    /// Something is done under the lock of a dispatch queue.
    pub fn lock(&mut self, dsq: u64) {
        self.m().lock(Lock::Queue(dsq), self.here);
    }

    pub fn entry(&mut self, task: u32) -> &mut Entry {
        self.entries[task as usize].as_mut().expect("every task was added")
    }

    /// The task storage of one that had this number, if one had, empty.
    pub fn storage_again(&mut self, task: u32) -> [*mut c_void; STORAGES] {
        let Some(Some(entry)) = self.entries.get(task as usize) else {
            return [std::ptr::null_mut(); STORAGES];
        };
        let storage = entry.p.storage;
        for words in &mut self.storages {
            let range = words.as_ptr_range();
            if storage.iter().any(|at| range.contains(&at.cast_const().cast())) {
                words.fill(0);
            }
        }
        storage
    }

    pub fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    pub fn allowed(&mut self, kfunc: &str, contexts: &[In]) -> bool {
        let fine = contexts.contains(&self.context);
        if !fine {
            let callback = self.callback;
            self.fail(format!("{kfunc} may not be called from {callback}()"));
        }
        fine
    }

    /// A CPU that a scheduler names.
    pub fn cpu(&mut self, cpu: i32) -> Option<u32> {
        let known = u32::try_from(cpu).ok().filter(|cpu| (*cpu as usize) < self.local.len());
        if known.is_none() {
            self.fail(format!("{}() names CPU {cpu}, which does not exist", self.callback));
        }
        known
    }

    /// Task number; the simulator's pids are one more.
    pub unsafe fn task(&mut self, p: *mut TaskStruct) -> Option<u32> {
        if p.is_null() {
            self.fail(format!("{}() passes a task that is NULL", self.callback));
            return None;
        }
        // SAFETY: schedulers have no tasks but ours.
        Some(unsafe { (*p).pid as u32 - 1 })
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
            slice: SCX_SLICE_INF,
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

/// The root's record, and one for each group.
#[expect(clippy::vec_box, reason = "addresses must stay")]
fn cgroups(groups: &[Group]) -> Vec<Box<Cgroup>> {
    let mut cgroups = Vec::new();
    for index in 0..=groups.len() as i32 {
        let (storage, parent) = (std::ptr::null_mut(), std::ptr::null_mut());
        cgroups.push(Box::new(Cgroup { level: 0, index, storage, parent }));
    }
    for (place, group) in groups.iter().enumerate() {
        let parent = &raw mut *cgroups[group.parent.map_or(0, |parent| parent + 1)];
        let above = |group: &Group| group.parent.map(|parent| &groups[parent]);
        let level = 1 + std::iter::successors(above(group), |group| above(group)).count();
        let cgroup = &mut cgroups[place + 1];
        (cgroup.parent, cgroup.level) = (parent, level as i32);
    }
    cgroups
}
