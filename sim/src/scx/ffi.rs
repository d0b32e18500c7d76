// SPDX-License-Identifier: GPL-2.0-only
//! What the shim's headers describe, made from them by bindgen.

mod headers {
    #![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code)]
    #![allow(clippy::all, clippy::pedantic, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/shim.rs"));
}

use crate::machine::CpuSet;

pub use self::headers::{
    bpf_timer as Timer, cgroup as Cgroup, cpumask as CpuMask, kvm as Kvm,
    kvm_spin_loop as KvmSpinLoop, kvm_vcpu as KvmVcpu, kvm_vcpu_stat as KvmVcpuStat,
    sched_ext_entity as Entity, sched_ext_ops as Ops, scx_cgroup_init_args as CgroupInitArgs,
    scx_exit_info as ExitInfo, scx_exit_task_args as ExitTaskArgs,
    scx_init_task_args as InitTaskArgs, shim as Shim, shim_counter as Place, shim_intf as Intf,
    shim_iter as Iter, shim_map as Map, task_struct as TaskStruct, *,
};

pub const CPU_WORDS: usize = SHIM_CPU_WORDS as usize;
pub const STORAGES: usize = SHIM_STORAGES as usize;

impl CpuMask {
    /// Of at most `CPU_WORDS` times 64 pCPUs.
    pub fn of(set: &CpuSet) -> Self {
        let mut bits = [0; CPU_WORDS];
        bits[..set.0.len()].copy_from_slice(&set.0);
        CpuMask { bits }
    }
}
