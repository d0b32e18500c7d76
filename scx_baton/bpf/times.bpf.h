/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where the time of a vCPU went, for the loader, which asks.
 */
#ifndef BATON_TIMES_BPF_H
#define BATON_TIMES_BPF_H

#include "policy.h"
#include "state.bpf.h"

static u64 since(u64 then, u64 now)
{
	return vtime_before(then, now) ? now - then : 0;
}

/* What @t, a vCPU of @vm, does, counted as if it ended at @now. */
static void count_open(const struct task_ctx *t, const struct vm_ctx *vm, u64 now,
		       struct vcpu_times *open)
{
	u64 queued_at = t->queued_at, waited, busy;

	if (t->run_vm != NO_VM) {
		open->ran_ns = since(t->run_at, now);
	} else if (queued_at) {
		waited = since(queued_at, now);
		busy = vm_busy(vm, now) - t->queued_busy;
		open->ready_ns = waited;
		open->costop_ns = busy < waited ? busy : waited;
	} else if (t->parked_at) {
		open->throttled_ns = since(t->parked_at, now);
	}
}

/* Of the thread @r->pid; not 0: it is no vCPU. */
SEC("syscall")
int baton_report(struct vcpu_report *r)
{
	struct task_struct *p = bpf_task_from_pid(r->pid);
	struct task_ctx *t;
	struct vm_ctx *vm;
	u64 now;

	if (!p)
		return 1;
	t = task_ctx(p);
	vm = t ? vm_of(t) : NULL;
	if (vm) {
		now = scx_bpf_now();
		r->cpu = scx_bpf_task_cpu(p);
		r->slot = t->vm;
		r->vcpu_id = t->vcpu_id;
		r->age_ns = since(t->vcpu_since, now);
		r->times = t->times;
		count_open(t, vm, now, &r->open);
	}
	bpf_task_release(p);
	return !vm;
}

#endif /* BATON_TIMES_BPF_H */
