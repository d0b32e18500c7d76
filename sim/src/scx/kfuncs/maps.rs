// SPDX-License-Identifier: GPL-2.0-only
//! Maps and storage of BPF programs.

use std::ffi::c_void;

use rustc_hash::FxHashMap;

use crate::scx::ffi::*;
use crate::scx::state::Inner;

/// A map that is no array, or the arrays' memory.
pub struct MapData {
    map: Map,
    key_size: u32,
    value_bytes: usize,
    values: Box<[u64]>,
    hash: FxHashMap<Box<[u8]>, Box<[u64]>>,
    removed: Vec<Box<[u64]>>,
}

pub unsafe extern "C" fn map_new(
    sim: *mut c_void,
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
) -> *mut c_void {
    // SAFETY: see `Inner::of`; all functions here are called by the shim's headers only.
    let state = unsafe { Inner::of(sim) };
    const ARRAYS: [u32; 2] = [BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_PERCPU_ARRAY];
    let value_bytes = value_size as usize;
    // Each pCPU's on lines of its own.
    let value_size =
        value_size.next_multiple_of(if kind == BPF_MAP_TYPE_PERCPU_ARRAY { 64 } else { 8 });
    let copies = if kind == BPF_MAP_TYPE_PERCPU_ARRAY { state.local.len() } else { 1 };
    let words = entries as usize * copies * value_size as usize / 8;
    let words = if ARRAYS.contains(&kind) { words } else { 0 };
    let mut values = vec![0u64; words].into_boxed_slice();
    let mut index = 0;
    if kind == BPF_MAP_TYPE_TASK_STORAGE {
        state.task_maps += 1;
        index = state.task_maps;
        if index as usize > STORAGES {
            state.fail(format!("at most {STORAGES} task storages"));
            index = 0;
        }
    }
    let map = Map { type_: kind, entries, value_size, index, values: values.as_mut_ptr().cast() };
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
unsafe fn key<'a>(data: &MapData, key: *const c_void) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(key.cast(), data.key_size as usize) }
}

pub unsafe extern "C" fn map_lookup(
    _: *mut c_void,
    map: *mut c_void,
    k: *const c_void,
) -> *mut c_void {
    // SAFETY: the header passes its own map and a key of its type.
    unsafe {
        let data = data(map);
        let key = key(data, k);
        data.hash.get_mut(key).map_or(std::ptr::null_mut(), |value| value.as_mut_ptr().cast())
    }
}

pub unsafe extern "C" fn map_update(
    _: *mut c_void,
    map: *mut c_void,
    k: *const c_void,
    value: *const c_void,
    flags: u64,
) -> i64 {
    // SAFETY: as above; the value has the size of the map's values, before rounding.
    unsafe {
        let data = data(map);
        if data.map.type_ == BPF_MAP_TYPE_ARRAY {
            let place = k.cast::<u32>().read_unaligned();
            if place >= data.map.entries {
                return i64::from(-E2BIG);
            }
            let at = data.map.values.add(place as usize * data.map.value_size as usize);
            std::ptr::copy_nonoverlapping(value.cast(), at, data.value_bytes);
            return 0;
        }
        let key = key(data, k);
        let exists = data.hash.contains_key(key);
        match flags {
            1 if exists => return i64::from(-EEXIST),
            2 if !exists => return i64::from(-ENOENT),
            _ if !exists && data.hash.len() >= data.map.entries as usize => {
                return i64::from(-E2BIG);
            }
            _ => {}
        }
        let size = data.map.value_size as usize / 8;
        // In place: the scheduler may have its address.
        let new = || vec![0u64; size].into_boxed_slice();
        let words = data.hash.entry(key.into()).or_insert_with(new);
        std::ptr::copy_nonoverlapping(
            value.cast::<u8>(),
            words.as_mut_ptr().cast(),
            data.value_bytes,
        );
        0
    }
}

pub unsafe extern "C" fn map_delete(_: *mut c_void, map: *mut c_void, k: *const c_void) -> i64 {
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
            None => i64::from(-ENOENT),
        }
    }
}

pub unsafe extern "C" fn storage_new(sim: *mut c_void, size: u32) -> *mut c_void {
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

pub unsafe extern "C" fn cgroup_storage(
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
