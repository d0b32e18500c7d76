// SPDX-License-Identifier: GPL-2.0-only
//! Tasks, cgroups, timers, and the scheduler's own end.

use std::ffi::{CStr, c_char, c_void};

use rand_core::RngCore;

use crate::machine::NONE;
use crate::scx::ffi::*;
use crate::scx::state::Inner;

pub unsafe extern "C" fn from_pid(sim: *mut c_void, pid: i32) -> *mut TaskStruct {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    let entry = usize::try_from(pid - 1).ok().and_then(|task| state.entries.get_mut(task));
    match entry {
        Some(Some(entry)) if entry.p.pid == pid => &raw mut *entry.p,
        _ => std::ptr::null_mut(),
    }
}

pub unsafe extern "C" fn curr(sim: *mut c_void, cpu: i32) -> *mut TaskStruct {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    let task =
        usize::try_from(cpu).ok().and_then(|cpu| state.m().cpus.get(cpu)).map(|cpu| cpu.curr);
    match task {
        Some(task) if task != NONE => &raw mut *state.entry(task).p,
        // The pCPU's idle task.
        Some(_) => &raw mut *state.idle_task,
        None => std::ptr::null_mut(),
    }
}

pub unsafe extern "C" fn ancestor(
    _sim: *mut c_void,
    cgroup: *mut Cgroup,
    level: i32,
) -> *mut Cgroup {
    let mut above = cgroup;
    // SAFETY: cgroups and their parents stay as long as the simulation does.
    unsafe {
        while !above.is_null() && (*above).level != level {
            above = (*above).parent;
        }
    }
    above
}

pub unsafe extern "C" fn exit(sim: *mut c_void, code: i64, message: *const c_char, error: bool) {
    // SAFETY: as above; the message is a C string of the shim.
    let (state, words) = unsafe { (Inner::of(sim), text(message)) };
    let how = if error { "scx_bpf_error()".into() } else { format!("scx_bpf_exit({code})") };
    state.fail(format!("the scheduler ended by {how}: {words}"));
}

pub unsafe extern "C" fn timer_start(sim: *mut c_void, timer: *mut Timer, ns: u64) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    // SAFETY: a timer in one of the scheduler's maps.
    if unsafe { (*timer).callback }.is_none() {
        return -libc::EINVAL;
    }
    let at = state.m().now.saturating_add(ns);
    // Started again, it runs out once.
    state.armed.insert(timer as u64, at);
    state.timers.push((at, timer as u64));
    0
}

pub unsafe extern "C" fn random(sim: *mut c_void) -> u32 {
    // SAFETY: as above.
    unsafe { Inner::of(sim) }.random.next_u32()
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
