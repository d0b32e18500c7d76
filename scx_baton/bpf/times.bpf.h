/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where the time of a vCPU went, for the loader, which asks.
 */
#ifndef BATON_TIMES_BPF_H
#define BATON_TIMES_BPF_H

#include "owing.bpf.h"
#include "policy.h"
#include "state.bpf.h"

/* What @t, a vCPU of @vm, does, counted as if it ended at @now. */
static void count_open(const struct task_ctx *t, const struct vm_ctx *vm, u64 now,
		       struct vcpu_times *open)
{
	u64 queued_at = t->queued_at, waited;

	if (t->run_vm != NO_VM) {
		open->ran_ns = elapsed(t->run_at, now);
	} else if (queued_at) {
		waited = elapsed(queued_at, now);
		open->ready_ns = waited;
		open->costop_ns = waited_beside(t, vm, waited, now);
	} else if (t->parked_at) {
		open->throttled_ns = elapsed(t->parked_at, now);
	}
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct vcpu_reports);
	__uint(max_entries, 1);
} reports SEC(".maps");

/* Of the thread @pid, if it is a vCPU of the VM in @slot. */
static bool report(s32 pid, u32 slot, struct vcpu_report *r)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	struct task_ctx *t;
	struct vm_ctx *vm;
	u64 now;

	if (!p)
		return false;
	t = task_ctx(p);
	vm = t && t->vm == slot ? vm_of(t) : NULL;
	if (vm) {
		now = scx_bpf_now();
		r->pid = pid;
		r->cpu = scx_bpf_task_cpu(p);
		r->vcpu_id = t->vcpu_id;
		r->age_ns = elapsed(t->vcpu_since, now);
		r->times = t->times;
		__builtin_memset(&r->open, 0, sizeof(r->open));
		count_open(t, vm, now, &r->open);
	}
	bpf_task_release(p);
	return vm;
}

/*
 * One call tells of many: with one for each vCPU an answer about 256 of them took 5 ms instead of 3
 * (exact host, 1,000 million instructions a second).
 */
SEC("syscall")
int baton_report(struct report_request *ask)
{
	u32 zero = 0, id;
	struct vcpu_reports *told = bpf_map_lookup_elem(&reports, &zero);
	struct vcpu_ctx *v;
	u64 key;

	ask->n = 0;
	if (!told)
		return 1;
	bpf_for(id, ask->next_id, MAX_VCPUS) {
		u32 n = ask->n;

		if (n >= NR_REPORTS || !ask->wanted)
			break;
		ask->next_id = id + 1;
		key = vcpu_key(ask->slot, id);
		v = bpf_map_lookup_elem(&vcpus, &key);
		if (v && report(v->pid, ask->slot, &told->of[n])) {
			ask->wanted--;
			ask->n = n + 1;
		}
	}
	return 0;
}

#endif /* BATON_TIMES_BPF_H */
