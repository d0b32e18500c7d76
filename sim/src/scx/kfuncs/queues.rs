// SPDX-License-Identifier: GPL-2.0-only
//! Dispatch queues: `scx_bpf_dsq_*`.

use std::ffi::c_void;

use crate::scx::ffi::*;
use crate::scx::state::{At, Dsq, In, Inner};

pub unsafe extern "C" fn create_dsq(sim: *mut c_void, dsq: u64) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    if !state.allowed("scx_bpf_create_dsq", &[In::Unlocked]) {
        return -EPERM;
    }
    if dsq >> 63 != 0 {
        return -EINVAL;
    }
    if state.dsqs.contains_key(&dsq) {
        return -EEXIST;
    }
    state.dsqs.insert(dsq, Dsq::default());
    0
}

pub unsafe extern "C" fn destroy_dsq(sim: *mut c_void, dsq: u64) {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    if state.queue(dsq).is_some_and(|queue| !queue.order.is_empty()) {
        return state.fail(format!("DSQ {dsq:#x} is destroyed while tasks are in it"));
    }
    state.dsqs.remove(&dsq);
}

unsafe fn insert_any(
    sim: *mut c_void,
    p: *mut TaskStruct,
    dsq: u64,
    slice: u64,
    vtime: Option<u64>,
    flags: u64,
) {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    let name = if vtime.is_some() { "scx_bpf_dsq_insert_vtime" } else { "scx_bpf_dsq_insert" };
    if !state.allowed(name, &[In::SelectCpu, In::Enqueue, In::Dispatch]) {
        return;
    }
    // SAFETY: as above.
    let Some(task) = (unsafe { state.task(p) }) else { return };
    if vtime.is_some() && dsq >> 63 != 0 {
        return state.fail(format!("{name} needs a DSQ of the scheduler's own, not {dsq:#x}"));
    }
    if state.queue(dsq).is_none() && dsq >> 63 == 0 {
        return state.fail(format!("there is no DSQ {dsq:#x}"));
    }
    let context = state.context;
    let callback = state.callback;
    if context == In::Dispatch {
        state.inserted += 1;
        if state.inserted > state.most_inserts {
            let most = state.most_inserts;
            return state.fail(format!("{callback}() inserts more than {most} tasks at once"));
        }
        // finish_dispatch() drops what is not the scheduler's to dispatch.
        if state.entry(task).at != At::Scheduler {
            return;
        }
    } else if task != state.subject {
        return state.fail(format!("{callback}() inserts another task than it was called for"));
    }
    let entry = state.entry(task);
    entry.ordered = vtime.is_some();
    // SCX_SLICE of 0: the task keeps what it has, at least 1.
    entry.p.scx.slice = if slice == 0 { entry.p.scx.slice.max(1) } else { slice };
    if let Some(vtime) = vtime {
        entry.p.scx.dsq_vtime = vtime;
        entry.vtime = vtime;
    }
    if context == In::Dispatch {
        state.dispatched += 1;
        return state.put(state.m(), task, dsq, flags);
    }
    if entry.direct.is_some() {
        return state.fail(format!("{callback}() inserts a task twice"));
    }
    entry.direct = Some((dsq, flags));
}

pub unsafe extern "C" fn insert(
    sim: *mut c_void,
    p: *mut TaskStruct,
    dsq: u64,
    slice: u64,
    flags: u64,
) {
    // SAFETY: as above.
    unsafe { insert_any(sim, p, dsq, slice, None, flags) }
}

pub unsafe extern "C" fn insert_vtime(
    sim: *mut c_void,
    p: *mut TaskStruct,
    dsq: u64,
    slice: u64,
    vtime: u64,
    flags: u64,
) {
    // SAFETY: as above.
    unsafe { insert_any(sim, p, dsq, slice, Some(vtime), flags) }
}

pub unsafe extern "C" fn move_to_local(sim: *mut c_void, dsq: u64) -> bool {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    if !state.allowed("scx_bpf_dsq_move_to_local", &[In::Dispatch]) {
        return false;
    }
    if dsq >> 63 != 0 {
        let why = format!("scx_bpf_dsq_move_to_local() from {dsq:#x}, no DSQ of the scheduler");
        state.fail(why);
        return false;
    }
    let cpu = state.dispatching;
    let moved = state.consume(state.m(), dsq, cpu);
    state.dispatched += u64::from(moved);
    moved
}

pub unsafe extern "C" fn move_(
    sim: *mut c_void,
    it: *mut Iter,
    p: *mut TaskStruct,
    dsq: u64,
    flags: u64,
    by_vtime: bool,
) -> bool {
    // SAFETY: as above; the iterator is on the scheduler's stack.
    let (state, it) = unsafe { (Inner::of(sim), &mut *it) };
    // From a timer or a program of its own too, but not with a runqueue locked.
    let contexts = [In::Dispatch, In::Unlocked];
    if !state.allowed("scx_bpf_dsq_move", &contexts) {
        return false;
    }
    // SAFETY: as above.
    let Some(task) = (unsafe { state.task(p) }) else { return false };
    let set = std::mem::take(&mut it.set);
    if state.entry(task).at != At::Queue(it.dsq) {
        return false;
    }
    let m = state.m();
    let cpu = state.dispatching;
    let to = if dsq == SCX_DSQ_LOCAL { SCX_DSQ_LOCAL_ON | u64::from(cpu) } else { dsq };
    if to >> 63 == 0 && state.queue(to).is_none() {
        state.fail(format!("there is no DSQ {to:#x}"));
        return false;
    }
    state.lock(it.dsq);
    state.take(task);
    state.entry(task).ordered = by_vtime;
    let entry = state.entry(task);
    if set & 1 != 0 {
        entry.p.scx.slice = it.slice;
    }
    if by_vtime {
        if set & 2 != 0 {
            entry.p.scx.dsq_vtime = it.vtime;
        }
        entry.vtime = entry.p.scx.dsq_vtime;
    }
    state.put(m, task, to, flags);
    true
}

pub unsafe extern "C" fn nr_queued(sim: *mut c_void, dsq: u64) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    let n = match dsq {
        SCX_DSQ_LOCAL => state.local[state.dispatching as usize].len(),
        _ if dsq & SCX_DSQ_LOCAL_ON == SCX_DSQ_LOCAL_ON => {
            state.local.get(dsq as u32 as usize).map_or(0, Vec::len)
        }
        _ => match state.queue(dsq) {
            Some(queue) => queue.order.len(),
            None => return -ENOENT,
        },
    };
    n as i32
}

pub unsafe extern "C" fn peek(sim: *mut c_void, dsq: u64) -> *mut TaskStruct {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    // An iterator's step, up to Linux 6.18.
    state.lock(dsq);
    match state.queue(dsq).and_then(|queue| queue.order.first().copied()) {
        Some(task) => &raw mut *state.entry(task).p,
        None => std::ptr::null_mut(),
    }
}

pub unsafe extern "C" fn iter_new(sim: *mut c_void, it: *mut Iter, dsq: u64, _: u64) -> i32 {
    // SAFETY: as above.
    let (state, it) = unsafe { (Inner::of(sim), &mut *it) };
    *it = Iter { dsq, at: 0, slice: 0, vtime: 0, set: 0, seq: state.seq };
    if dsq >> 63 != 0 || state.queue(dsq).is_none() {
        it.dsq = u64::MAX;
        return -ENOENT;
    }
    0
}

/// The cursor is the place of the next one; whoever was moved away since then leaves it one too
/// far.
pub unsafe extern "C" fn iter_next(sim: *mut c_void, it: *mut Iter) -> *mut TaskStruct {
    // SAFETY: as above.
    let (state, it) = unsafe { (Inner::of(sim), &mut *it) };
    state.lock(it.dsq);
    let Some(queue) = state.queue(it.dsq) else { return std::ptr::null_mut() };
    // `at` is the task last returned, plus 1, in the upper half, and its place in the lower.
    let (last, place) = ((it.at >> 32) as u32, it.at as u32 as usize);
    let still_there = last != 0 && queue.order.get(place) == Some(&(last - 1));
    let next = if last == 0 {
        0
    } else if still_there {
        place + 1
    } else {
        place
    };
    // Those that came since then are not part of the walk.
    let old = |place: &usize| state.queued(queue.order[*place]) <= it.seq;
    let next = (next..queue.order.len()).find(old).unwrap_or(usize::MAX);
    match queue.order.get(next).copied() {
        Some(task) => {
            it.at = u64::from(task + 1) << 32 | next as u64;
            state.looked += 1;
            state.longest_walk = state.longest_walk.max(state.looked);
            &raw mut *state.entry(task).p
        }
        None => std::ptr::null_mut(),
    }
}

pub unsafe extern "C" fn iter_destroy(_: *mut c_void, it: *mut Iter) {
    // SAFETY: as above.
    unsafe { (*it).dsq = u64::MAX };
}
