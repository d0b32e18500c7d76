// SPDX-License-Identifier: GPL-2.0-only
//! pCPUs: which is idle, which is kicked.

use std::ffi::c_void;

use crate::machine::NONE;
use crate::scx::ffi::*;
use crate::scx::state::{In, Inner};

pub unsafe extern "C" fn kick(sim: *mut c_void, cpu: i32, flags: u64) {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    if state.machine.is_null() {
        // From exit(): nothing is scheduled any more.
        return;
    }
    let m = state.m();
    if cpu < 0 || cpu as usize >= m.cpus.len() {
        let callback = state.callback;
        return state.fail(format!("{callback}() kicks CPU {cpu}, which does not exist"));
    }
    let running = m.cpus[cpu as usize].curr;
    if flags & u64::from(SCX_KICK_IDLE) != 0 && running != NONE {
        return;
    }
    if flags & u64::from(SCX_KICK_PREEMPT) != 0 && running != NONE {
        state.entry(running).p.scx.slice = 0;
    }
    m.resched(cpu as u32);
}

pub unsafe extern "C" fn select_cpu_dfl(
    sim: *mut c_void,
    p: *mut TaskStruct,
    prev: i32,
    _: u64,
    idle: *mut bool,
) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    if !state.allowed("scx_bpf_select_cpu_dfl", &[In::SelectCpu, In::Enqueue, In::Unlocked]) {
        return prev;
    }
    // SAFETY: as above.
    let Some(task) = (unsafe { state.task(p) }) else { return prev };
    let Some(prev) = state.cpu(prev) else { return 0 };
    let (cpu, found) = state.select(state.m(), task, prev, None, 0);
    // SAFETY: a variable of the scheduler.
    unsafe { *idle = found };
    cpu as i32
}

pub unsafe extern "C" fn select_cpu_and(
    sim: *mut c_void,
    p: *mut TaskStruct,
    prev: i32,
    _: u64,
    mask: *const CpuMask,
    flags: u64,
) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    if !state.allowed("scx_bpf_select_cpu_and", &[In::SelectCpu, In::Enqueue, In::Unlocked]) {
        return -EBUSY;
    }
    // SAFETY: as above.
    let Some(task) = (unsafe { state.task(p) }) else { return -EBUSY };
    let Some(prev) = state.cpu(prev) else { return -EBUSY };
    // SAFETY: a mask of a task or of the scheduler, or NULL.
    match state.select(state.m(), task, prev, unsafe { mask.as_ref() }, flags) {
        (cpu, true) => cpu as i32,
        _ => -EBUSY,
    }
}

pub unsafe extern "C" fn pick_idle(sim: *mut c_void, allowed: *const CpuMask, flags: u64) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    state.pick(allowed, flags).map_or(-EBUSY, |cpu| cpu as i32)
}

pub unsafe extern "C" fn pick_any(sim: *mut c_void, allowed: *const CpuMask, flags: u64) -> i32 {
    // SAFETY: as above.
    let idle = unsafe { pick_idle(sim, allowed, flags) };
    if idle >= 0 {
        return idle;
    }
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    let online = state.m().online.clone();
    // SAFETY: as in `Inner::pick`.
    let words = unsafe { &(*allowed).bits };
    online
        .iter()
        .find(|cpu| words[*cpu as usize / 64] >> (cpu % 64) & 1 == 1)
        .map_or(-EBUSY, |cpu| cpu as i32)
}

pub unsafe extern "C" fn test_and_clear_idle(sim: *mut c_void, cpu: i32) -> bool {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    let idle = cpu >= 0 && state.idle.contains(cpu as u32);
    if idle {
        state.idle.remove(cpu as u32);
    }
    idle
}
