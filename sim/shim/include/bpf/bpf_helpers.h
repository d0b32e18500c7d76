/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * libbpf's names, natively. Maps keep their handle in the first field of their definition,
 * which BPF never reads; their sizes are the types of the others.
 */
#ifndef BATON_SHIM_BPF_HELPERS_H
#define BATON_SHIM_BPF_HELPERS_H

#include "../shim.h"

#define SEC(name) __attribute__((used))
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __weak __attribute__((weak))
#define __hidden
#define __ksym
#define __kptr
#define __arg_trusted
#define __arg_nullable
#define __arg_nonnull
#define preserve_access_index
#define barrier_var(v) ((void)(v))
#define barrier() ((void)0)

/* Releases of clang-format disagree about the blank. */
// clang-format off
#define __uint(name, value) int (*name)[value]
// clang-format on
#define __type(name, value) typeof(value) *name
#define __array(name, value) typeof(value) *name[]

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_MAP_TYPE_CGRP_STORAGE = 32,
};

#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_EXIST 2
#define BPF_F_NO_PREALLOC 1
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1

/* A map at run time; arrays are looked into from here. */
struct shim_map {
	u32 type;
	u32 entries;
	u32 value_size;
	u32 index; /* of task storage, plus 1 */
	u8 *values;
};

#define SHIM_COUNT(array) (sizeof(*(array)) / sizeof(int))
#define SHIM_MAP(map)                                                                              \
	({                                                                                         \
		void **handle_ = (void **)(map);                                                   \
		if (!*handle_)                                                                     \
			*handle_ = shim->map_new(shim->sim, SHIM_COUNT((map)->type),               \
						 sizeof(*(map)->key), sizeof(*(map)->value),       \
						 SHIM_COUNT((map)->max_entries));                  \
		(struct shim_map *)*handle_;                                                       \
	})

static inline void *shim_percpu(struct shim_map *map, const void *key, u32 cpu)
{
	u32 i = *(const u32 *)key;

	if (i >= map->entries || cpu >= shim->nr_cpu_ids)
		return NULL;
	return map->values + ((u64)cpu * map->entries + i) * map->value_size;
}

static inline void *shim_lookup(struct shim_map *map, const void *key)
{
	if (map->type == BPF_MAP_TYPE_ARRAY)
		return shim_percpu(map, key, 0);
	if (map->type == BPF_MAP_TYPE_PERCPU_ARRAY)
		return shim_percpu(map, key, shim->cpu);
	return shim->map_lookup(shim->sim, map, key);
}

#define bpf_map_lookup_elem(map, key) ((void *)shim_lookup(SHIM_MAP(map), key))
#define bpf_map_lookup_percpu_elem(map, key, cpu) ((void *)shim_percpu(SHIM_MAP(map), key, cpu))
#define bpf_map_update_elem(map, key, value, flags)                                                \
	shim->map_update(shim->sim, SHIM_MAP(map), key, value, flags)
#define bpf_map_delete_elem(map, key) shim->map_delete(shim->sim, SHIM_MAP(map), key)

static inline void *shim_task_storage(void **handle, struct task_struct *p, u32 size, u64 flags)
{
	struct shim_map *map = *handle;
	void **at;

	if (!map)
		map = *handle = shim->map_new(shim->sim, BPF_MAP_TYPE_TASK_STORAGE, 4, size, 0);
	if (!p || !map->index)
		return NULL;
	at = &p->storage[map->index - 1];
	if (!*at && (flags & BPF_LOCAL_STORAGE_GET_F_CREATE))
		*at = shim->storage_new(shim->sim, size);
	return *at;
}

#define bpf_task_storage_get(map, p, init, flags)                                                  \
	((void *)shim_task_storage((void **)(map), p, sizeof(*(map)->value), flags))

static inline void *shim_cgroup_storage(void **handle, struct cgroup *c, u32 size, u64 flags)
{
	if (!*handle)
		*handle = shim->map_new(shim->sim, BPF_MAP_TYPE_CGRP_STORAGE, 4, size, 0);
	return shim->cgroup_storage(shim->sim, c, *handle, size, flags);
}

#define bpf_cgrp_storage_get(map, c, init, flags)                                                  \
	((void *)shim_cgroup_storage((void **)(map), c, sizeof(*(map)->value), flags))

/* There is no program to read what is written there. */
#define BPF_RB_FORCE_WAKEUP 2
#define bpf_ringbuf_output(map, data, size, flags) ((void)(map), (void)(data))

struct bpf_timer {
	s32 (*callback)(void *map, void *key, void *value);
	void *map;
	void *key;
};

#define bpf_timer_init(timer, map, flags) (0)
#define bpf_timer_set_callback(timer, function)                                                    \
	((timer)->callback = (typeof((timer)->callback))(function), 0)
#define bpf_timer_start(timer, ns, flags) shim->timer_start(shim->sim, timer, ns)

#define bpf_for(i, start, end) for ((i) = (start); (i) < (end); (i)++)
#define bpf_repeat(n) for (u32 repeat_ = 0; repeat_ < (n); repeat_++)
#define can_loop (1)

#define bpf_ktime_get_ns() (shim->now)
#define bpf_get_smp_processor_id() (shim->cpu)
#define bpf_probe_read_kernel(to, size, from) (__builtin_memcpy(to, from, size), 0)
#define bpf_get_current_task_btf() (shim->curr(shim->sim, shim->cpu))
#define bpf_get_prandom_u32() (shim->random(shim->sim))
#define bpf_printk(...) ((void)0)
#define bpf_rcu_read_lock() ((void)0)
#define bpf_rcu_read_unlock() ((void)0)

#endif /* BATON_SHIM_BPF_HELPERS_H */
