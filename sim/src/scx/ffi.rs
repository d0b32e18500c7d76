// SPDX-License-Identifier: GPL-2.0-only
//! The records that the shim's headers describe, with the same layout.

use std::ffi::{c_char, c_void};

use crate::machine::CpuSet;

pub const CPU_WORDS: usize = 64;
pub const STORAGES: usize = 4;

#[repr(C)]
pub struct CpuMask {
    pub bits: [u64; CPU_WORDS],
}

impl CpuMask {
    /// Of at most `CPU_WORDS` times 64 pCPUs.
    pub fn of(set: &CpuSet) -> Self {
        let mut bits = [0; CPU_WORDS];
        bits[..set.0.len()].copy_from_slice(&set.0);
        CpuMask { bits }
    }
}

#[repr(C)]
pub struct Cgroup {
    pub level: i32,
    pub index: i32,
    pub storage: *mut c_void,
    /// Null: it is the root.
    pub parent: *mut Cgroup,
}

#[repr(C)]
pub struct Entity {
    pub slice: u64,
    pub dsq_vtime: u64,
    pub weight: u32,
    pub flags: u32,
    pub disallow: bool,
    pub ddsp_dsq_id: u64,
}

#[repr(C)]
pub struct TaskStruct {
    pub pid: i32,
    pub tgid: i32,
    pub flags: u32,
    pub nr_cpus_allowed: i32,
    pub scx: Entity,
    pub cpus_ptr: *const CpuMask,
    pub cpu: i32,
    pub static_prio: i32,
    pub cgroup: *mut Cgroup,
    pub storage: [*mut c_void; STORAGES],
    pub comm: [u8; 16],
}

#[repr(C)]
pub struct Kvm {
    pub index: u64,
}

#[repr(C)]
pub struct KvmVcpu {
    pub kvm: *mut Kvm,
    pub vcpu_id: i32,
    pub wants_to_run: bool,
    pub preempted: bool,
    pub ready: bool,
    pub halt_poll_ns: u32,
    /// `stat.exits`
    pub exits: u64,
}

#[repr(C)]
pub struct InitTaskArgs {
    pub fork: bool,
    pub cgroup: *mut Cgroup,
}

#[repr(C)]
pub struct ExitTaskArgs {
    pub cancelled: bool,
}

#[repr(C)]
pub struct CgroupInitArgs {
    pub weight: u32,
    pub period_us: u64,
    pub quota_us: u64,
    pub burst_us: u64,
}

#[repr(C)]
pub struct ExitInfo {
    pub kind: i32,
    pub exit_code: i64,
    pub reason: *const c_char,
    pub msg: *const c_char,
}

type TaskFn = unsafe extern "C" fn(*mut TaskStruct);

#[repr(C)]
pub struct Ops {
    pub select_cpu: Option<unsafe extern "C" fn(*mut TaskStruct, i32, u64) -> i32>,
    pub enqueue: Option<unsafe extern "C" fn(*mut TaskStruct, u64)>,
    pub dequeue: Option<unsafe extern "C" fn(*mut TaskStruct, u64)>,
    pub dispatch: Option<unsafe extern "C" fn(i32, *mut TaskStruct)>,
    pub tick: Option<TaskFn>,
    pub runnable: Option<unsafe extern "C" fn(*mut TaskStruct, u64)>,
    pub running: Option<TaskFn>,
    pub stopping: Option<unsafe extern "C" fn(*mut TaskStruct, bool)>,
    pub quiescent: Option<unsafe extern "C" fn(*mut TaskStruct, u64)>,
    pub yield_: Option<unsafe extern "C" fn(*mut TaskStruct, *mut TaskStruct) -> bool>,
    pub set_weight: Option<unsafe extern "C" fn(*mut TaskStruct, u32)>,
    pub set_cpumask: Option<unsafe extern "C" fn(*mut TaskStruct, *const CpuMask)>,
    pub update_idle: Option<unsafe extern "C" fn(i32, bool)>,
    pub init_task: Option<unsafe extern "C" fn(*mut TaskStruct, *mut InitTaskArgs) -> i32>,
    pub exit_task: Option<unsafe extern "C" fn(*mut TaskStruct, *mut ExitTaskArgs)>,
    pub enable: Option<TaskFn>,
    pub disable: Option<TaskFn>,
    pub cgroup_init: Option<unsafe extern "C" fn(*mut Cgroup, *mut CgroupInitArgs) -> i32>,
    pub cgroup_exit: Option<unsafe extern "C" fn(*mut Cgroup)>,
    pub cgroup_move: Option<unsafe extern "C" fn(*mut TaskStruct, *mut Cgroup, *mut Cgroup)>,
    pub cgroup_set_weight: Option<unsafe extern "C" fn(*mut Cgroup, u32)>,
    pub cgroup_set_bandwidth: Option<unsafe extern "C" fn(*mut Cgroup, u64, u64, u64)>,
    pub cpu_online: Option<unsafe extern "C" fn(i32)>,
    pub cpu_offline: Option<unsafe extern "C" fn(i32)>,
    pub init: Option<unsafe extern "C" fn() -> i32>,
    pub exit: Option<unsafe extern "C" fn(*mut ExitInfo)>,
    pub flags: u64,
    pub timeout_ms: u32,
    pub dispatch_max_batch: u32,
    pub name: [u8; 128],
}

/// `struct shim_iter`.
#[repr(C)]
pub struct Iter {
    pub dsq: u64,
    pub at: u64,
    pub slice: u64,
    pub vtime: u64,
    pub set: u32,
    pub seq: u64,
}

/// `struct shim_map`.
#[repr(C)]
pub struct Map {
    pub kind: u32,
    pub entries: u32,
    pub value_size: u32,
    pub index: u32,
    pub values: *mut u8,
}

/// A timer of BPF; the simulator keeps its address.
#[repr(C)]
pub struct Timer {
    pub callback: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> i32>,
    pub map: *mut c_void,
    pub key: *mut c_void,
}

type Sim = *mut c_void;
type P = *mut TaskStruct;

/// `struct shim`: the simulator's side of the kfuncs.
#[repr(C)]
pub struct Shim {
    pub sim: Sim,
    pub now: u64,
    pub cpu: i32,
    pub nr_cpu_ids: u32,
    pub call: u64,
    pub callback: *const u8,
    pub callback_len: u64,
    pub online: CpuMask,
    pub map_new: unsafe extern "C" fn(Sim, u32, u32, u32, u32) -> *mut c_void,
    pub map_lookup: unsafe extern "C" fn(Sim, *mut c_void, *const u8) -> *mut c_void,
    pub map_update: unsafe extern "C" fn(Sim, *mut c_void, *const u8, *const u8, u64) -> i64,
    pub map_delete: unsafe extern "C" fn(Sim, *mut c_void, *const u8) -> i64,
    pub storage_new: unsafe extern "C" fn(Sim, u32) -> *mut c_void,

    pub cgroup_storage: unsafe extern "C" fn(Sim, *mut Cgroup, *mut c_void, u32, u64) -> Sim,
    pub create_dsq: unsafe extern "C" fn(Sim, u64) -> i32,
    pub destroy_dsq: unsafe extern "C" fn(Sim, u64),
    pub insert: unsafe extern "C" fn(Sim, P, u64, u64, u64),
    pub insert_vtime: unsafe extern "C" fn(Sim, P, u64, u64, u64, u64),
    pub move_to_local: unsafe extern "C" fn(Sim, u64) -> bool,
    pub move_: unsafe extern "C" fn(Sim, *mut Iter, P, u64, u64, bool) -> bool,
    pub nr_queued: unsafe extern "C" fn(Sim, u64) -> i32,
    pub peek: unsafe extern "C" fn(Sim, u64) -> P,
    pub iter_new: unsafe extern "C" fn(Sim, *mut Iter, u64, u64) -> i32,
    pub iter_next: unsafe extern "C" fn(Sim, *mut Iter) -> P,
    pub iter_destroy: unsafe extern "C" fn(Sim, *mut Iter),
    pub kick: unsafe extern "C" fn(Sim, i32, u64),
    pub select_cpu_dfl: unsafe extern "C" fn(Sim, P, i32, u64, *mut bool) -> i32,
    pub select_cpu_and: unsafe extern "C" fn(Sim, P, i32, u64, *const CpuMask, u64) -> i32,
    pub pick_idle: unsafe extern "C" fn(Sim, *const CpuMask, u64) -> i32,
    pub pick_any: unsafe extern "C" fn(Sim, *const CpuMask, u64) -> i32,
    pub test_and_clear_idle: unsafe extern "C" fn(Sim, i32) -> bool,
    pub from_pid: unsafe extern "C" fn(Sim, i32) -> P,
    pub curr: unsafe extern "C" fn(Sim, i32) -> P,
    pub ancestor: unsafe extern "C" fn(Sim, *mut Cgroup, i32) -> *mut Cgroup,

    pub exit: unsafe extern "C" fn(Sim, i64, *const c_char, bool),
    pub timer_start: unsafe extern "C" fn(Sim, *mut Timer, u64) -> i32,
    pub random: unsafe extern "C" fn(Sim) -> u32,
}
