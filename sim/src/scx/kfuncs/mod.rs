// SPDX-License-Identifier: GPL-2.0-only
//! What schedulers can call. A call from a callback where the kernel does not allow it ends the
//! simulation with the names of both.

mod cpus;
mod maps;
mod queues;
mod tasks;

use self::cpus::*;
pub use self::maps::MapData;
use self::maps::*;
use self::queues::*;
use self::tasks::*;
use super::ffi::*;
use super::state::Inner;

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
        map_new: Some(map_new),
        map_lookup: Some(map_lookup),
        map_update: Some(map_update),
        map_delete: Some(map_delete),
        storage_new: Some(storage_new),

        cgroup_storage: Some(cgroup_storage),
        create_dsq: Some(create_dsq),
        destroy_dsq: Some(destroy_dsq),
        insert: Some(insert),
        insert_vtime: Some(insert_vtime),
        move_to_local: Some(move_to_local),
        move_: Some(move_),
        nr_queued: Some(nr_queued),
        peek: Some(peek),
        iter_new: Some(iter_new),
        iter_next: Some(iter_next),
        iter_destroy: Some(iter_destroy),
        kick: Some(kick),
        select_cpu_dfl: Some(select_cpu_dfl),
        select_cpu_and: Some(select_cpu_and),
        pick_idle: Some(pick_idle),
        pick_any: Some(pick_any),
        test_and_clear_idle: Some(test_and_clear_idle),
        from_pid: Some(from_pid),
        curr: Some(curr),
        ancestor: Some(ancestor),

        exit: Some(exit),
        timer_start: Some(timer_start),
        random: Some(random),
    }
}
