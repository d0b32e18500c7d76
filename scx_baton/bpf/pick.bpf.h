/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a pCPU runs next.
 */
#ifndef BATON_PICK_BPF_H
#define BATON_PICK_BPF_H

#include "place.bpf.h"

/* VMs tried one after the other, in order, when affinity keeps the first ones off. */
#define MAX_TRIES 8

/* vCPUs looked at to find one that ran here last. */
#define MAX_CACHE_WALK 16

/*
 * The VM that goes first among those with a vCPU to run, after @last in that order. A vCPU
 * of @prev_vm, which is about to leave this pCPU, still counts as running.
 */
static u32 next_vm(u32 last, u32 prev_vm, u64 now, u32 *nr_candidates)
{
	struct vm_ctx *vm, *best_vm = NULL, *last_vm = vm_slot(last);
	u32 slot, best = NO_VM, end = vm_end();
	s32 running, best_running = 0, last_running;

	last_running = last_vm ? last_vm->nr_running - (last == prev_vm) : 0;

	bpf_for(slot, 1, end) {
		vm = vm_slot(slot);
		if (!vm || slot == last || (vm->nr_queued <= 0 && slot != prev_vm))
			continue;
		(*nr_candidates)++;
		running = vm->nr_running - (slot == prev_vm);
		if (last_vm && !vm_goes_first(last_vm, last_running, vm, running, now))
			continue;
		if (best_vm && !vm_goes_first(vm, running, best_vm, best_running, now))
			continue;
		best = slot;
		best_vm = vm;
		best_running = running;
	}
	return best;
}

/*
 * Start one vCPU of the VM on @cpu: of those that are level, the one that ran here last
 * (its state is in this pCPU's caches and VMCB), else the one furthest behind.
 */
static bool dispatch_vcpu(u32 slot, struct vm_ctx *vm, s32 cpu, u64 now)
{
	u64 turn_end = vm_join_turn(vm, now), first_vtime = 0;
	bool begins = vm->turn_start == now, found = false;
	struct task_struct *p;
	struct task_ctx *t;
	u32 pass, seen;

	bpf_for(pass, 0, 2) {
		seen = 0;
		bpf_for_each(scx_dsq, p, vm_dsq(slot), 0) {
			if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
				continue;
			t = task_ctx(p);
			if (!t || kept_out(t, now))
				continue;
			if (!pass) {
				if (!seen++)
					first_vtime = t->vtime;
				if (seen > MAX_CACHE_WALK ||
				    vtime_before(first_vtime + CACHE_WINDOW_NS, t->vtime))
					break;
				if (t->last_cpu != cpu)
					continue;
			}
			scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, turn_end - now);
			found = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
			if (found)
				break;
		}
		if (found || (!pass && !seen))
			break;
	}
	if (found && begins) {
		stat_add(STAT_TURNS, 1);
		summon_siblings(vm, slot, cpu, now);
	}
	return found;
}

/* A directed yield named the vCPU to run here, on what the spinner had left. */
static bool dispatch_boosted(struct cpu_ctx *c)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	struct task_ctx *t;
	bool moved = false;

	p = bpf_task_from_pid(c->boost_pid);
	c->boost_pid = 0;
	if (!p)
		goto out;
	t = task_ctx(p);
	if (t && t->queued_vm == c->boost_vm) {
		t->boosted = 1;
		if (!bpf_iter_scx_dsq_new(&it, vm_dsq(c->boost_vm), 0)) {
			scx_bpf_dsq_move_set_slice(&it, c->boost_slice);
			moved = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0);
		}
		bpf_iter_scx_dsq_destroy(&it);
		if (!moved)
			t->boosted = 0;
	}
	bpf_task_release(p);
out:
	stat_add(moved ? STAT_OBEYED : STAT_MISSED_RACED, 1);
	return moved;
}

static bool peek_vtime(u64 dsq, u64 *vtime)
{
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(dsq);

	if (!p)
		return false;
	*vtime = p->scx.dsq_vtime;
	return true;
}

/* Host tasks of other LLCs, when there is nothing closer to run. */
static bool steal_host_task(s32 cpu)
{
	u32 i, llc, home = cpu_llc[cpu & (MAX_CPUS - 1)];

	bpf_for(i, 1, nr_llcs) {
		llc = home + i;
		if (llc >= nr_llcs)
			llc -= nr_llcs;
		if (scx_bpf_dsq_move_to_local(LLC_DSQ_BASE + llc, 0))
			return true;
	}
	return false;
}

static void raise_vnow(u64 vtime)
{
	if (vtime_before(vnow, vtime))
		vnow = vtime;
}

/*
 * The next task for @cpu, where @prev has used up its slice, sleeps, or was preempted: a
 * boosted vCPU, else whoever is furthest behind of the host tasks that may run here and
 * the VMs, where a VM in its turn goes before other VMs. @prev is a candidate like any.
 */
static void pick_next(s32 cpu, struct task_struct *prev)
{
	bool prev_runnable = prev && (prev->scx.flags & SCX_TASK_QUEUED);
	bool host = false, prev_is_host = false;
	u64 now = scx_bpf_now(), host_vtime = 0, host_dsq = 0, vtime, other;
	struct task_ctx *prev_t = prev_runnable ? task_ctx(prev) : NULL;
	u32 slot = NO_VM, prev_vm = NO_VM, nr_candidates = 0, try;
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm;

	c->kicked = 0;
	if (prev_t)
		charge(prev_t, now);
	if (c->boost_pid && dispatch_boosted(c))
		return;

	if (prev_t && bpf_cpumask_test_cpu(cpu, prev->cpus_ptr)) {
		if (vm_of(prev_t)) {
			prev_vm = prev_t->vm;
		} else {
			prev_is_host = host = true;
			host_vtime = prev_t->vtime;
		}
	}
	if (peek_vtime(cpu, &vtime) && (!host || vtime_before(vtime, host_vtime))) {
		host = true;
		host_vtime = vtime;
		host_dsq = cpu;
		prev_is_host = false;
	}
	if (peek_vtime(llc_dsq(cpu), &vtime) && (!host || vtime_before(vtime, host_vtime))) {
		host = true;
		host_vtime = vtime;
		host_dsq = llc_dsq(cpu);
		prev_is_host = false;
	}

	bpf_for(try, 0, MAX_TRIES) {
		slot = next_vm(slot, prev_vm, now, &nr_candidates);
		vm = vm_slot(slot);
		if (host && (!vm || host_goes_first(host_vtime, vm->vtime, vnow))) {
			if (vm)
				raise_vnow(host_vtime);
			if (prev_is_host) {
				scx_bpf_task_set_slice(prev, HOST_SLICE_NS);
				return;
			}
			if (scx_bpf_dsq_move_to_local(host_dsq, 0))
				return;
			/* Its tasks may not run here: the next VM, without the host. */
			host = false;
		}
		if (!vm)
			break;
		/* The vCPU that was running goes on, unless a sibling is further behind. */
		if (slot == prev_vm && prev_t &&
		    !(peek_vtime(vm_dsq(slot), &other) && vtime_before(other, prev_t->vtime)) &&
		    !kept_out(prev_t, now)) {
			scx_bpf_task_set_slice(prev, vm_join_turn(vm, now) - now);
			return;
		}
		if (dispatch_vcpu(slot, vm, cpu, now)) {
			if (!try && nr_candidates > 1)
				raise_vnow(vm->vtime);
			return;
		}
	}

	steal_host_task(cpu);
}

/*
 * At each tick of a vCPU: does a VM wait that may take this pCPU back, but came while the
 * vCPU's first millisecond was protected?
 */
static bool overdue(const struct cpu_ctx *c, u64 now)
{
	struct vm_ctx *running = vm_slot(c->vm), *waiting;
	u32 ignored = 0;

	waiting = vm_slot(next_vm(NO_VM, NO_VM, now, &ignored));
	return running && waiting && vm_preempts(waiting, running, false, now - c->since, now);
}

#endif /* BATON_PICK_BPF_H */
