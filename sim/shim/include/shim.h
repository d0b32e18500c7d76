/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the simulator gives to the scheduler: the clock, and a function for each kfunc and map
 * operation that needs it. Everything else is done here, in C, without a call.
 */
#ifndef BATON_SHIM_H
#define BATON_SHIM_H

#include "vmlinux.h"

struct bpf_timer;

struct shim_iter {
	u64 dsq;
	u64 at; /* place of the simulator's cursor */
	u64 slice, vtime;
	u32 set; /* which of both */
	u64 seq; /* tasks that were queued later are not seen */
};

struct shim {
	void *sim;
	u64 now;
	s32 cpu;
	u32 nr_cpu_ids;
	/* which call of a callback is under way, counted from 1, and its name */
	u64 call;
	const char *callback;
	u64 callback_len;
	struct cpumask online;
	void *(*map_new)(void *sim, u32 type, u32 key_size, u32 value_size, u32 entries);
	void *(*map_lookup)(void *sim, void *map, const void *key);
	s64 (*map_update)(void *sim, void *map, const void *key, const void *value, u64 flags);
	s64 (*map_delete)(void *sim, void *map, const void *key);
	void *(*storage_new)(void *sim, u32 size);

	void *(*cgroup_storage)(void *sim, struct cgroup *c, void *map, u32 size, u64 create);
	s32 (*create_dsq)(void *sim, u64 dsq);
	void (*destroy_dsq)(void *sim, u64 dsq);
	void (*insert)(void *sim, struct task_struct *p, u64 dsq, u64 slice, u64 flags);
	void (*insert_vtime)(void *sim, struct task_struct *p, u64 dsq, u64 slice, u64 vtime,
			     u64 flags);
	bool (*move_to_local)(void *sim, u64 dsq);
	bool (*move)(void *sim, struct shim_iter *it, struct task_struct *p, u64 dsq, u64 flags,
		     bool vtime);
	s32 (*nr_queued)(void *sim, u64 dsq);
	struct task_struct *(*peek)(void *sim, u64 dsq);
	s32 (*iter_new)(void *sim, struct shim_iter *it, u64 dsq, u64 flags);
	struct task_struct *(*iter_next)(void *sim, struct shim_iter *it);
	void (*iter_destroy)(void *sim, struct shim_iter *it);
	void (*kick)(void *sim, s32 cpu, u64 flags);
	s32 (*select_cpu_dfl)(void *sim, struct task_struct *p, s32 prev, u64 flags, bool *idle);
	s32 (*select_cpu_and)(void *sim, struct task_struct *p, s32 prev, u64 flags,
			      const struct cpumask *allowed, u64 idle_flags);
	s32 (*pick_idle)(void *sim, const struct cpumask *allowed, u64 flags);
	s32 (*pick_any)(void *sim, const struct cpumask *allowed, u64 flags);
	bool (*test_and_clear_idle)(void *sim, s32 cpu);
	struct task_struct *(*from_pid)(void *sim, s32 pid);
	struct task_struct *(*curr)(void *sim, s32 cpu);
	struct cgroup *(*ancestor)(void *sim, struct cgroup *c, s32 level);

	void (*exit)(void *sim, s64 code, const char *message, bool error);
	s32 (*timer_start)(void *sim, struct bpf_timer *timer, u64 ns);
	u32 (*random)(void *sim);
};

/* A counter of scx_baton. */
struct shim_counter {
	const char *name;
	const char *meaning;
	u32 place;
};

/* What baton.c takes from scx_baton/bpf/intf.h. */
struct shim_intf {
	u32 max_cpus;
	u32 yield_ipi;
	u32 yield_sent;
	u32 nr_counters;
	const struct shim_counter *counters;
	u32 nr_vm_times;
	const struct shim_counter *vm_times;
};

#ifdef SHIM_HOME
struct shim *shim;
#else
extern struct shim *shim;
#endif

#endif /* BATON_SHIM_H */
