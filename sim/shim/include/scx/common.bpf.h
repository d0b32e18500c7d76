/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The sched_ext kfuncs, natively: names and arguments as in the scx project's header of the
 * same name, semantics as in kernel/sched/ext/ext.c.
 */
#ifndef BATON_SHIM_SCX_COMMON_H
#define BATON_SHIM_SCX_COMMON_H

#include <stdarg.h>
#include <stdio.h>
#include "../vmlinux.h"
#include "../shim.h"
#include "../bpf/bpf_helpers.h"
#include "../bpf/bpf_core_read.h"
#include "../bpf/bpf_tracing.h"

#define BPF_STRUCT_OPS(name, ...) name(__VA_ARGS__)
#define BPF_STRUCT_OPS_SLEEPABLE(name, ...) name(__VA_ARGS__)
#define SCX_OPS_DEFINE(ops, ...)                                                                   \
	struct sched_ext_ops ops = {__VA_ARGS__};                                                  \
	struct sched_ext_ops *shim_ops = &ops

#define UEI_DEFINE(name) struct scx_exit_info *name
#define UEI_RECORD(name, info) ((name) = (info))

static inline void shim_exit(s64 code, bool error, const char *format, ...)
{
	char message[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	shim->exit(shim->sim, code, message, error);
}

#define scx_bpf_exit(code, ...) shim_exit(code, false, __VA_ARGS__)
#define scx_bpf_error(...) shim_exit(0, true, __VA_ARGS__)

#define scx_bpf_now() (shim->now)
#define scx_bpf_nr_cpu_ids() (shim->nr_cpu_ids)
#define scx_bpf_get_online_cpumask() ((const struct cpumask *)&shim->online)
#define scx_bpf_put_cpumask(mask) ((void)(mask))
#define scx_bpf_task_cpu(p) ((p)->cpu)
#define scx_bpf_task_running(p) (shim->curr(shim->sim, (p)->cpu) == (p))
#define scx_bpf_task_cgroup(p) ((p)->cgroup)
#define scx_bpf_task_set_slice(p, value) ((p)->scx.slice = (value), true)
#define scx_bpf_task_set_dsq_vtime(p, value) ((p)->scx.dsq_vtime = (value), true)
#define scx_bpf_create_dsq(dsq, node) shim->create_dsq(shim->sim, dsq)
#define scx_bpf_destroy_dsq(dsq) shim->destroy_dsq(shim->sim, dsq)
#define scx_bpf_dsq_insert(p, dsq, slice, flags) shim->insert(shim->sim, p, dsq, slice, flags)
#define scx_bpf_dsq_insert_vtime(p, dsq, slice, vtime, flags)                                      \
	shim->insert_vtime(shim->sim, p, dsq, slice, vtime, flags)
#define scx_bpf_dsq_move_to_local(dsq, ...) shim->move_to_local(shim->sim, dsq)
#define scx_bpf_dsq_nr_queued(dsq) shim->nr_queued(shim->sim, dsq)
#define scx_bpf_kick_cpu(cpu, flags) shim->kick(shim->sim, cpu, flags)
#define scx_bpf_select_cpu_dfl(p, prev, flags, idle)                                               \
	shim->select_cpu_dfl(shim->sim, p, prev, flags, idle)
#define __COMPAT_HAS_scx_bpf_select_cpu_and true
#define scx_bpf_select_cpu_and(p, prev, flags, allowed, idle_flags)                                \
	shim->select_cpu_and(shim->sim, p, prev, flags, allowed, idle_flags)
#define scx_bpf_pick_idle_cpu(allowed, flags) shim->pick_idle(shim->sim, allowed, flags)
#define scx_bpf_pick_any_cpu(allowed, flags) shim->pick_any(shim->sim, allowed, flags)
#define scx_bpf_test_and_clear_cpu_idle(cpu) shim->test_and_clear_idle(shim->sim, cpu)
#define scx_bpf_cpu_curr(cpu) shim->curr(shim->sim, cpu)
#define __COMPAT_scx_bpf_dsq_peek(dsq) shim->peek(shim->sim, dsq)
#define scx_bpf_dsq_peek(dsq) shim->peek(shim->sim, dsq)
#define __COMPAT_is_enq_cpu_selected(flags) ((flags) & SCX_ENQ_CPU_SELECTED)

#define bpf_iter_scx_dsq shim_iter
#define bpf_iter_scx_dsq_new(it, dsq, flags) shim->iter_new(shim->sim, it, dsq, flags)
#define bpf_iter_scx_dsq_next(it) shim->iter_next(shim->sim, it)
#define bpf_iter_scx_dsq_destroy(it) shim->iter_destroy(shim->sim, it)

static inline void shim_iter_end(struct shim_iter *it)
{
	shim->iter_destroy(shim->sim, it);
}

/* The one kind of bpf_for_each() that schedulers use: it ends with its scope, also by break. */
#define bpf_for_each(kind, p, dsq, flags)                                                          \
	for (struct shim_iter it_                                                                  \
	     __attribute__((cleanup(shim_iter_end))) = {},                                         \
	     *once_ = (shim->iter_new(shim->sim, &it_, dsq, flags) ? NULL : &it_);                 \
	     once_ && ((p) = shim->iter_next(shim->sim, &it_));)
#define BPF_FOR_EACH_ITER (&it_)

static inline void shim_set_slice(struct shim_iter *it, u64 slice)
{
	it->slice = slice;
	it->set |= 1;
}

static inline void shim_set_vtime(struct shim_iter *it, u64 vtime)
{
	it->vtime = vtime;
	it->set |= 2;
}

#define scx_bpf_dsq_move_set_slice(it, value) shim_set_slice(it, value)
#define scx_bpf_dsq_move_set_vtime(it, value) shim_set_vtime(it, value)
#define scx_bpf_dsq_move(it, p, dsq, flags) shim->move(shim->sim, it, p, dsq, flags, false)
#define scx_bpf_dsq_move_vtime(it, p, dsq, flags) shim->move(shim->sim, it, p, dsq, flags, true)

static inline bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask)
{
	return cpu < SHIM_CPU_WORDS * 64 && mask->bits[cpu / 64] >> cpu % 64 & 1;
}

static inline u32 bpf_cpumask_weight(const struct cpumask *mask)
{
	u32 word, weight = 0;

	for (word = 0; word < SHIM_CPU_WORDS; word++)
		weight += __builtin_popcountll(mask->bits[word]);
	return weight;
}

#define bpf_task_from_pid(pid) shim->from_pid(shim->sim, pid)
#define bpf_task_acquire(p) (p)
#define bpf_task_release(p) ((void)(p))
#define bpf_cgroup_ancestor(c, level) shim->ancestor(shim->sim, c, level)
#define bpf_cgroup_release(c) ((void)(c))

static inline bool time_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

#endif /* BATON_SHIM_SCX_COMMON_H */
