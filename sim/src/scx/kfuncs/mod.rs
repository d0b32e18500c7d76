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

const EEXIST: i64 = 17;
const ENOENT: i64 = 2;

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
