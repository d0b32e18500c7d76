// SPDX-License-Identifier: GPL-2.0-only
//! What schedulers can call. A call from a callback where the kernel does not allow it ends the
//! simulation with the names of both.

use std::cmp::Ordering;
use std::ffi::{c_char, c_void};

use rand_core::RngCore;
use rustc_hash::FxHashMap;

use super::ffi::*;
use super::*;
use crate::locks::Lock;

/// A map that is no array, or the arrays' memory.
pub struct MapData {
    map: Map,
    key_size: u32,
    value_bytes: usize,
    values: Box<[u64]>,
    hash: FxHashMap<Box<[u8]>, Box<[u64]>>,
    removed: Vec<Box<[u64]>>,
}

pub fn shim(state: &mut Inner, nr_cpu_ids: u32, online: CpuMask) -> Shim {
    Shim {
        sim: (&raw mut *state).cast(),
        now: 0,
        cpu: 0,
        nr_cpu_ids,
        call: 0,
        callback: std::ptr::null(),
        callback_len: 0,
        online,
        map_new,
        map_lookup,
        map_update,
        map_delete,
        storage_new,

        cgroup_storage,
        create_dsq,
        destroy_dsq,
        insert,
        insert_vtime,
        move_to_local,
        move_,
        nr_queued,
        peek,
        iter_new,
        iter_next,
        iter_destroy,
        kick,
        select_cpu_dfl,
        select_cpu_and,
        pick_idle,
        pick_any,
        test_and_clear_idle,
        from_pid,
        curr,
        ancestor,

        exit,
        timer_start,
        random,
    }
}

fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

impl Dsq {
    fn key_order(&self, a: (u64, u64), b: (u64, u64)) -> Ordering {
        if self.by_vtime && a.0 != b.0 {
            return if before(a.0, b.0) { Ordering::Less } else { Ordering::Greater };
        }
        a.1.cmp(&b.1)
    }
}

impl Inner {
    /// # Safety
    ///
    /// `sim` is what [`shim`] has put there.
    unsafe fn of<'a>(sim: *mut c_void) -> &'a mut Inner {
        // SAFETY: it outlives every callback, and callbacks run one at a time.
        unsafe { &mut *sim.cast::<Inner>() }
    }

    /// The machine, while a callback runs.
    fn m<'a>(&self) -> &'a mut Machine {
        assert!(!self.machine.is_null(), "a kfunc outside of any callback");
        // SAFETY: set for the time of the callback by `enter`, whose caller holds the machine
        // exclusively and does not touch it before the callback returns.
        unsafe { &mut *self.machine }
    }

    /// Something is done under the lock of a dispatch queue.
    fn lock(&mut self, dsq: u64) {
        self.m().lock(Lock::Queue(dsq), self.here);
    }

    pub fn entry(&mut self, task: u32) -> &mut Entry {
        self.entries[task as usize].as_mut().expect("every task was added")
    }

    pub fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    fn allowed(&mut self, kfunc: &str, contexts: &[In]) -> bool {
        let fine = contexts.contains(&self.context);
        if !fine {
            let callback = self.callback;
            self.fail(format!("{kfunc} may not be called from {callback}()"));
        }
        fine
    }

    /// In the order of queueing.
    fn queued(&self, task: u32) -> u64 {
        self.entries[task as usize].as_ref().map_or(0, |entry| entry.queued)
    }

    /// A CPU that a scheduler names.
    fn cpu(&mut self, cpu: i32) -> Option<u32> {
        let known = u32::try_from(cpu).ok().filter(|cpu| (*cpu as usize) < self.local.len());
        if known.is_none() {
            self.fail(format!("{}() names CPU {cpu}, which does not exist", self.callback));
        }
        known
    }

    /// Task number; the simulator's pids are one more.
    unsafe fn task(&mut self, p: *mut TaskStruct) -> Option<u32> {
        if p.is_null() {
            self.fail(format!("{}() passes a task that is NULL", self.callback));
            return None;
        }
        // SAFETY: schedulers have no tasks but ours.
        Some(unsafe { (*p).pid as u32 - 1 })
    }

    /// It leaves the scheduler's custody: ops.dequeue() hears of it (`task_leave_custody()`).
    fn leaves_custody(&mut self, task: u32) {
        if std::mem::take(&mut self.entry(task).custody) {
            self.left.push((task, 0));
        }
    }

    /// `dispatch_enqueue()`.
    pub fn put(&mut self, m: &mut Machine, task: u32, dsq: u64, flags: u64) {
        let own = m.task(task).cpu;
        let local = match dsq {
            LOCAL => Some(own),
            _ if dsq & LOCAL_ON == LOCAL_ON => Some(dsq as u32),
            _ => None,
        };
        self.seq += 1;
        // list_add() to the head for both.
        let head = flags & (ENQ_HEAD | ENQ_PREEMPT) != 0;
        let seq = if head { (1 << 33) - self.seq } else { self.seq };
        let Some(cpu) = local else {
            let ordered = self.entry(task).ordered;
            if let Some(queue) = self.queue_mut(dsq).filter(|_| dsq != GLOBAL) {
                if queue.order.is_empty() {
                    queue.by_vtime = ordered;
                } else if queue.by_vtime != ordered {
                    return self
                        .fail(format!("DSQ {dsq:#x} already holds tasks of the other order"));
                }
            }
            m.lock(Lock::Queue(dsq), self.here);
            self.waits_on(task, own);
            if dsq == GLOBAL {
                self.leaves_custody(task);
            } else {
                self.entry(task).custody = true;
            }
            let now = self.seq;
            let entry = self.entry(task);
            entry.seq = seq;
            entry.queued = now;
            entry.at = At::Queue(dsq);
            let key = (entry.vtime, seq);
            let place = {
                let Some(queue) = self.queue(dsq) else {
                    return self.fail(format!("there is no DSQ {dsq:#x}"));
                };
                let key_of = |other: &u32| {
                    let entry = self.entries[*other as usize].as_ref().expect("queued");
                    (entry.vtime, entry.seq)
                };
                queue.order.partition_point(|other| queue.key_order(key_of(other), key).is_lt())
            };
            if let Some(queue) = self.queue_mut(dsq) {
                queue.order.insert(place, task);
            }
            return;
        };
        if cpu as usize >= m.cpus.len() {
            return self.fail(format!(
                "{}() dispatches to CPU {cpu}, which does not exist",
                self.callback
            ));
        }
        // task_can_run_on_remote_rq(): an error if it may not, the global queue if offline.
        if cpu != own && !m.may_run(task, cpu) {
            if m.task(task).allowed.contains(cpu) {
                self.entry(task).ordered = false;
                return self.put(m, task, GLOBAL, flags);
            }
            return self.fail(format!(
                "{}() dispatches a task to CPU {cpu}, which its affinity forbids",
                self.callback
            ));
        }
        m.tasks[task as usize].cpu = cpu;
        self.entry(task).p.cpu = cpu as i32;
        if cpu != self.here {
            m.lock(Lock::Runqueue(cpu), self.here);
        }
        self.put_local(task, cpu, head);
        let running = m.cpus[cpu as usize].curr;
        if running == NONE {
            m.resched(cpu);
        } else if flags & ENQ_PREEMPT != 0 {
            self.entry(running).p.scx.slice = 0;
            m.resched(cpu);
        }
    }

    /// Into the queue of a pCPU, which does not look there for that reason alone.
    pub fn put_local(&mut self, task: u32, cpu: u32, head: bool) {
        self.waits_on(task, cpu);
        self.leaves_custody(task);
        self.entry(task).at = At::Local(cpu);
        let queue = &mut self.local[cpu as usize];
        if head { queue.insert(0, task) } else { queue.push(task) }
    }

    fn queue(&self, dsq: u64) -> Option<&Dsq> {
        if dsq == GLOBAL { Some(&self.global) } else { self.dsqs.get(&dsq) }
    }

    fn queue_mut(&mut self, dsq: u64) -> Option<&mut Dsq> {
        if dsq == GLOBAL { Some(&mut self.global) } else { self.dsqs.get_mut(&dsq) }
    }

    /// `rq->nr_running` counts it there.
    fn waits_on(&mut self, task: u32, cpu: u32) {
        let before = std::mem::replace(&mut self.entry(task).counted, cpu);
        if before != NONE {
            self.waiting[before as usize] -= 1;
        }
        if cpu != NONE {
            self.waiting[cpu as usize] += 1;
        }
    }

    /// Out of whatever queue it is in.
    pub fn take(&mut self, task: u32) {
        self.waits_on(task, NONE);
        match self.entry(task).at {
            At::Local(cpu) => self.local[cpu as usize].retain(|other| *other != task),
            At::Queue(dsq) => {
                if let Some(queue) = self.queue_mut(dsq)
                    && let Some(place) = queue.order.iter().position(|other| *other == task)
                {
                    queue.order.remove(place);
                }
            }
            At::Nowhere | At::Scheduler => {}
        }
        self.entry(task).at = At::Nowhere;
    }

    pub fn first_local(&self, m: &Machine, cpu: u32) -> Option<u32> {
        let queue = &self.local[cpu as usize];
        queue.iter().copied().find(|task| m.may_run(*task, cpu))
    }

    /// `consume_global_dsq()`.
    pub fn take_global(&mut self, m: &mut Machine, cpu: u32) -> bool {
        self.consume(m, GLOBAL, cpu)
    }

    /// The first of a queue that may run on `cpu`, to its own queue.
    fn consume(&mut self, m: &mut Machine, dsq: u64, cpu: u32) -> bool {
        let Some(queue) = self.queue(dsq) else {
            self.fail(format!("there is no DSQ {dsq:#x}"));
            return false;
        };
        // Looked at without it (`consume_dispatch_q()`).
        if queue.order.is_empty() {
            return false;
        }
        let found = queue.order.iter().copied().find(|task| m.may_run(*task, cpu));
        m.lock(Lock::Queue(dsq), self.here);
        let Some(task) = found else {
            return false;
        };
        self.take(task);
        self.put(m, task, LOCAL_ON | u64::from(cpu), 0);
        true
    }

    /// A CPU that the task may run on, if the one it is on is none.
    pub fn fallback(&self, m: &Machine, task: u32) -> Option<u32> {
        m.task(task).allowed.first_common(&m.online, 0)
    }

    /// `scx_select_cpu_dfl()`: where it was if idle, else an idle core near, an idle core, an idle
    /// CPU near, an idle CPU, else where it was. Claims it.
    pub fn select(
        &mut self,
        m: &Machine,
        task: u32,
        prev: u32,
        mask: Option<&CpuMask>,
        flags: u64,
    ) -> (u32, bool) {
        let allowed = &m.task(task).allowed;
        let masked =
            |cpu: u32| mask.is_none_or(|mask| mask.bits[cpu as usize / 64] >> (cpu % 64) & 1 == 1);
        let idle = |cpu: u32| self.idle.contains(cpu) && allowed.contains(cpu) && masked(cpu);
        let core = |cpu: u32| self.idle_core(m, cpu);
        let smt = m.cpus[prev as usize].sibling != NONE;
        let llc = m.cpus[prev as usize].llc;
        let near = |cpu: &u32| m.cpus[*cpu as usize].llc == llc;
        let one_llc = m.cpus.iter().all(|cpu| cpu.llc == llc);
        let found = if idle(prev) && (!smt || core(prev)) {
            Some(prev)
        } else {
            let mut found = None;
            if smt {
                found = self.idle.iter().find(|cpu| near(cpu) && idle(*cpu) && core(*cpu));
                if !one_llc {
                    found = found.or_else(|| self.idle.iter().find(|cpu| idle(*cpu) && core(*cpu)));
                }
            }
            let only_cores = smt && flags & PICK_IDLE_CORE != 0;
            let any = || {
                (idle(prev).then_some(prev))
                    .or_else(|| self.idle.iter().find(|cpu| near(cpu) && idle(*cpu)))
                    .or_else(|| self.idle.iter().find(|cpu| idle(*cpu)))
            };
            found.or_else(|| if only_cores { None } else { any() })
        };
        match found {
            Some(cpu) => {
                self.idle.remove(cpu);
                (cpu, true)
            }
            None => (prev, false),
        }
    }

    /// Whether the pCPU's whole core is idle, if the pCPU is.
    fn idle_core(&self, m: &Machine, cpu: u32) -> bool {
        let sibling = m.cpus[cpu as usize].sibling;
        sibling == NONE || self.idle.contains(sibling)
    }

    /// `pick_idle_cpu_in_node()`: one of an idle core if there is any, and claims it.
    fn pick(&mut self, mask: *const CpuMask, flags: u64) -> Option<u32> {
        // SAFETY: a task's mask, or one of the scheduler's; as many words as the header says.
        let words = unsafe { &(*mask).bits };
        let m = self.m();
        let allowed = |cpu: &u32| words[*cpu as usize / 64] >> (cpu % 64) & 1 == 1;
        let idle = || self.idle.iter().filter(allowed);
        let smt = m.cpus.iter().any(|cpu| cpu.sibling != NONE);
        let core = if smt { idle().find(|cpu| self.idle_core(m, *cpu)) } else { None };
        let any = || if smt && flags & PICK_IDLE_CORE != 0 { None } else { idle().next() };
        let found = core.or_else(any)?;
        self.idle.remove(found);
        Some(found)
    }
}

unsafe extern "C" fn map_new(
    sim: *mut c_void,
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
) -> *mut c_void {
    // SAFETY: see `Inner::of`; all functions here are called by the shim's headers only.
    let state = unsafe { Inner::of(sim) };
    const ARRAYS: [u32; 2] = [ARRAY, PERCPU_ARRAY];
    const TASK_STORAGE: u32 = 29;
    let value_bytes = value_size as usize;
    // Each pCPU's on lines of its own.
    let value_size = value_size.next_multiple_of(if kind == PERCPU_ARRAY { 64 } else { 8 });
    let copies = if kind == PERCPU_ARRAY { state.local.len() } else { 1 };
    let words = entries as usize * copies * value_size as usize / 8;
    let words = if ARRAYS.contains(&kind) { words } else { 0 };
    let mut values = vec![0u64; words].into_boxed_slice();
    let mut index = 0;
    if kind == TASK_STORAGE {
        state.task_maps += 1;
        index = state.task_maps;
        if index as usize > STORAGES {
            state.fail(format!("at most {STORAGES} task storages"));
            index = 0;
        }
    }
    let map = Map { kind, entries, value_size, index, values: values.as_mut_ptr().cast() };
    let data = Box::new(MapData {
        map,
        key_size,
        value_bytes,
        values,
        hash: FxHashMap::default(),
        removed: Vec::new(),
    });
    state.maps.push(data);
    let last = state.maps.last_mut().expect("just pushed");
    debug_assert!(last.map.values.is_null() || !last.values.is_empty() || words == 0);
    (&raw mut last.map).cast()
}

/// # Safety
///
/// `map` came from [`map_new`].
unsafe fn data<'a>(map: *mut c_void) -> &'a mut MapData {
    // SAFETY: the map is the first field, found from its address.
    unsafe {
        let offset = std::mem::offset_of!(MapData, map);
        &mut *map.cast::<u8>().sub(offset).cast::<MapData>()
    }
}

/// # Safety
///
/// `key` has as many bytes as the map's keys.
unsafe fn key<'a>(data: &MapData, key: *const u8) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(key, data.key_size as usize) }
}

unsafe extern "C" fn map_lookup(_: *mut c_void, map: *mut c_void, k: *const u8) -> *mut c_void {
    // SAFETY: the header passes its own map and a key of its type.
    unsafe {
        let data = data(map);
        let key = key(data, k);
        data.hash.get_mut(key).map_or(std::ptr::null_mut(), |value| value.as_mut_ptr().cast())
    }
}

const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;

const EEXIST: i64 = 17;
const ENOENT: i64 = 2;
const E2BIG: i64 = 7;

unsafe extern "C" fn map_update(
    _: *mut c_void,
    map: *mut c_void,
    k: *const u8,
    value: *const u8,
    flags: u64,
) -> i64 {
    // SAFETY: as above; the value has the size of the map's values, before rounding.
    unsafe {
        let data = data(map);
        if data.map.kind == ARRAY {
            let place = k.cast::<u32>().read_unaligned();
            if place >= data.map.entries {
                return -E2BIG;
            }
            let at = data.map.values.add(place as usize * data.map.value_size as usize);
            std::ptr::copy_nonoverlapping(value, at, data.value_bytes);
            return 0;
        }
        let key = key(data, k);
        let exists = data.hash.contains_key(key);
        match flags {
            1 if exists => return -EEXIST,
            2 if !exists => return -ENOENT,
            _ if !exists && data.hash.len() >= data.map.entries as usize => return -E2BIG,
            _ => {}
        }
        let size = data.map.value_size as usize / 8;
        // In place: the scheduler may have its address.
        let new = || vec![0u64; size].into_boxed_slice();
        let words = data.hash.entry(key.into()).or_insert_with(new);
        std::ptr::copy_nonoverlapping(value, words.as_mut_ptr().cast(), data.value_bytes);
        0
    }
}

unsafe extern "C" fn map_delete(_: *mut c_void, map: *mut c_void, k: *const u8) -> i64 {
    // SAFETY: as above.
    unsafe {
        let data = data(map);
        let key = key(data, k);
        match data.hash.remove(key) {
            // Likewise.
            Some(words) => {
                data.removed.push(words);
                0
            }
            None => -ENOENT,
        }
    }
}

unsafe extern "C" fn storage_new(sim: *mut c_void, size: u32) -> *mut c_void {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    // On lines of its own, as what kmalloc() gives.
    const LINE: usize = 64;
    let words = vec![0u64; (size as usize + LINE).div_ceil(8)].into_boxed_slice();
    state.storages.push(words);
    state.storages.last_mut().map_or(std::ptr::null_mut(), |words| {
        let at = words.as_mut_ptr().cast::<u8>();
        at.wrapping_add(at.align_offset(LINE)).cast()
    })
}

unsafe extern "C" fn cgroup_storage(
    sim: *mut c_void,
    cgroup: *mut Cgroup,
    map: *mut c_void,
    size: u32,
    create: u64,
) -> *mut c_void {
    // SAFETY: as above; cgroups are ours.
    let (state, index) = unsafe { (Inner::of(sim), (*cgroup).index) };
    let at = (index, map as usize);
    if let Some(found) = state.cgroup_storage.get(&at) {
        return found.cast();
    }
    if create & 1 == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    let new = unsafe { storage_new(sim, size) };
    state.cgroup_storage.insert(at, new.cast());
    new
}

unsafe extern "C" fn create_dsq(sim: *mut c_void, dsq: u64) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    if !state.allowed("scx_bpf_create_dsq", &[In::Unlocked]) {
        return -1;
    }
    if dsq >> 63 != 0 {
        return -22;
    }
    if state.dsqs.contains_key(&dsq) {
        return -(EEXIST as i32);
    }
    state.dsqs.insert(dsq, Dsq::default());
    0
}

unsafe extern "C" fn destroy_dsq(sim: *mut c_void, dsq: u64) {
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

unsafe extern "C" fn insert(
    sim: *mut c_void,
    p: *mut TaskStruct,
    dsq: u64,
    slice: u64,
    flags: u64,
) {
    // SAFETY: as above.
    unsafe { insert_any(sim, p, dsq, slice, None, flags) }
}

unsafe extern "C" fn insert_vtime(
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

unsafe extern "C" fn move_to_local(sim: *mut c_void, dsq: u64) -> bool {
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

unsafe extern "C" fn move_(
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
    let to = if dsq == LOCAL { LOCAL_ON | u64::from(cpu) } else { dsq };
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

unsafe extern "C" fn nr_queued(sim: *mut c_void, dsq: u64) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    let n = match dsq {
        LOCAL => state.local[state.dispatching as usize].len(),
        _ if dsq & LOCAL_ON == LOCAL_ON => state.local.get(dsq as u32 as usize).map_or(0, Vec::len),
        _ => match state.queue(dsq) {
            Some(queue) => queue.order.len(),
            None => return -(ENOENT as i32),
        },
    };
    n as i32
}

unsafe extern "C" fn peek(sim: *mut c_void, dsq: u64) -> *mut TaskStruct {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    // An iterator's step, up to Linux 6.18.
    state.lock(dsq);
    match state.queue(dsq).and_then(|queue| queue.order.first().copied()) {
        Some(task) => &raw mut *state.entry(task).p,
        None => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn iter_new(sim: *mut c_void, it: *mut Iter, dsq: u64, _: u64) -> i32 {
    // SAFETY: as above.
    let (state, it) = unsafe { (Inner::of(sim), &mut *it) };
    *it = Iter { dsq, at: 0, slice: 0, vtime: 0, set: 0, seq: state.seq };
    if dsq >> 63 != 0 || state.queue(dsq).is_none() {
        it.dsq = u64::MAX;
        return -(ENOENT as i32);
    }
    0
}

/// The cursor is the place of the next one; whoever was moved away since then leaves it one too far.
unsafe extern "C" fn iter_next(sim: *mut c_void, it: *mut Iter) -> *mut TaskStruct {
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

unsafe extern "C" fn iter_destroy(_: *mut c_void, it: *mut Iter) {
    // SAFETY: as above.
    unsafe { (*it).dsq = u64::MAX };
}

unsafe extern "C" fn kick(sim: *mut c_void, cpu: i32, flags: u64) {
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
    const IDLE: u64 = 1;
    const PREEMPT: u64 = 2;
    if flags & IDLE != 0 && running != NONE {
        return;
    }
    if flags & PREEMPT != 0 && running != NONE {
        state.entry(running).p.scx.slice = 0;
    }
    m.resched(cpu as u32);
}

unsafe extern "C" fn select_cpu_dfl(
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

unsafe extern "C" fn select_cpu_and(
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
        return -16;
    }
    // SAFETY: as above.
    let Some(task) = (unsafe { state.task(p) }) else { return -16 };
    let Some(prev) = state.cpu(prev) else { return -16 };
    // SAFETY: a mask of a task or of the scheduler, or NULL.
    match state.select(state.m(), task, prev, unsafe { mask.as_ref() }, flags) {
        (cpu, true) => cpu as i32,
        _ => -16,
    }
}

unsafe extern "C" fn pick_idle(sim: *mut c_void, allowed: *const CpuMask, flags: u64) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    state.pick(allowed, flags).map_or(-16, |cpu| cpu as i32)
}

unsafe extern "C" fn pick_any(sim: *mut c_void, allowed: *const CpuMask, flags: u64) -> i32 {
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
        .map_or(-16, |cpu| cpu as i32)
}

unsafe extern "C" fn test_and_clear_idle(sim: *mut c_void, cpu: i32) -> bool {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    let idle = cpu >= 0 && state.idle.contains(cpu as u32);
    if idle {
        state.idle.remove(cpu as u32);
    }
    idle
}

unsafe extern "C" fn from_pid(sim: *mut c_void, pid: i32) -> *mut TaskStruct {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    let entry = usize::try_from(pid - 1).ok().and_then(|task| state.entries.get_mut(task));
    match entry {
        Some(Some(entry)) if entry.p.pid == pid => &raw mut *entry.p,
        _ => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn curr(sim: *mut c_void, cpu: i32) -> *mut TaskStruct {
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

unsafe extern "C" fn ancestor(_sim: *mut c_void, cgroup: *mut Cgroup, level: i32) -> *mut Cgroup {
    let mut above = cgroup;
    // SAFETY: cgroups and their parents stay as long as the simulation does.
    unsafe {
        while !above.is_null() && (*above).level != level {
            above = (*above).parent;
        }
    }
    above
}

unsafe extern "C" fn exit(sim: *mut c_void, code: i64, message: *const c_char, error: bool) {
    // SAFETY: as above; the message is a C string of the shim.
    let (state, words) = unsafe { (Inner::of(sim), text(message)) };
    let how = if error { "scx_bpf_error()".into() } else { format!("scx_bpf_exit({code})") };
    state.fail(format!("the scheduler ended by {how}: {words}"));
}

unsafe extern "C" fn timer_start(sim: *mut c_void, timer: *mut Timer, ns: u64) -> i32 {
    // SAFETY: as above.
    let state = unsafe { Inner::of(sim) };
    // SAFETY: a timer in one of the scheduler's maps.
    if unsafe { (*timer).callback }.is_none() {
        return -libc::EINVAL;
    }
    let at = state.m().now.saturating_add(ns);
    // Started anew, it runs out once.
    state.armed.insert(timer as u64, at);
    state.timers.push((at, timer as u64));
    0
}

unsafe extern "C" fn random(sim: *mut c_void) -> u32 {
    // SAFETY: as above.
    unsafe { Inner::of(sim) }.random.next_u32()
}
