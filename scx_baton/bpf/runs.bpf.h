/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A task runs on a pCPU from now on, or no more: what is known of the pCPU, and of its VM.
 */
#ifndef BATON_RUNS_BPF_H
#define BATON_RUNS_BPF_H

#include "cpu.bpf.h"

/*
 * @p runs on @cpu from now on, for its VM or as a host task. A thread can become a vCPU, or one
 * of another VM, while it runs. @picked: for a reason of its own, not on a slice given away.
 */
verified_once int runs_for(struct task_struct *p __arg_trusted, struct task_ctx *t __arg_nonnull,
			   s32 cpu, bool picked)
{
	struct cpu_runs_vcpu *here = runs_on(cpu);
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm = vm_of(t);
	s32 running;

	c->runs_bound = is_bound(p);
	if (!vm) {
		t->run_vm = NO_VM;
		t->seen_vnow = level_for(p, t, cpu, t->run_at);
		c->host_vtime = t->vtime;
		c->host_weight = t->weight;
		c->runs = RUNS_HOST;
		/* They compete, also where each sleeps, or is elsewhere, as the other one runs. */
		if (!c->runs_bound && t->run_at - c->vm_ran_at < 2 * TURN_NS)
			c->mixed_at = t->run_at;
		return 0;
	}
	t->run_vm = t->vm;
	settle(t->vm, t->vcpu_id, cpu, true, t->run_at);
	here->outside = t->outside_ns > OUTSIDE_NS / 2;
	here->spins = 0;
	here->spin_ns = 0;
	here->spun_at = 0;
	if (c->vm != t->vm)
		c->mixed_at = t->run_at;
	c->vm_ran_at = t->run_at;
	c->vm = t->vm;
	c->pid = p->pid;
	if (has_halted(t) && !t->slept_at)
		poll_begins(vm, t->vcpu_id);
	if (t->woken_at && has_halted(t) && t->slept_at)
		count_in(vm->halt.wakeups, elapsed(t->woken_at, t->run_at));
	t->woken_at = 0;
	/* A directed yield changes who runs, not why. */
	if (picked)
		c->turn_start = vm->turn_start;
	c->runs = RUNS_VCPU;
	if (vtime_before(vm->vcpu_vnow, t->vtime))
		vm->vcpu_vnow = t->vtime;
	/* First: who looks in between sees no time in which nobody ran. */
	if (vm->nr_running <= 0)
		vm->busy_since = t->run_at;
	running = __sync_fetch_and_add(&vm->nr_running, 1) + 1;
	if (running > vm->most_running)
		vm->most_running = running;
	if (running > 1 && !vm->turn_ganged) {
		vm->turn_ganged = 1;
		stat_add(STAT_GANGS, 1);
	}
	return 0;
}

static void runs_no_more(struct task_ctx *t, s32 cpu)
{
	struct vm_ctx *vm = vm_slot(t->run_vm);
	const struct cpu_runs_vcpu *here = runs_on(cpu);
	u64 now = t->run_at, since;
	/* The thread may have taken another one in hand meanwhile. */
	u32 id = here->vcpu;
	bool spun;

	/* The timer may have put it into its queue, and counted it there after it began to run. */
	if (t->queued_at)
		leave_queue(t, now);
	if (vm) {
		settle(t->run_vm, id, cpu, false, now);
		poll_ends(vm, id);
		/* Read before the next one that begins can change it. */
		since = vm->busy_since;
		if (__sync_fetch_and_sub(&vm->nr_running, 1) == 1) {
			vm->busy_since = now;
			__sync_fetch_and_add(&vm->busy_ns, elapsed(since, now));
		}
		if (t->awaiting_verdict) {
			spun = here->spun_at &&
			       vtime_before(here->spun_first, t->started_at + JUDGE_NS);
			__sync_fetch_and_add(spun ? &vm->times.useless : &vm->times.useful, 1);
		}
	}
	t->awaiting_verdict = false;
	t->run_vm = NO_VM;
}

/* A spinner has yielded to @p, which runs now: it need not be kept out any more. */
static void ran_for_spinner(struct task_struct *p, struct task_ctx *t)
{
	struct task_struct *spinner = bpf_task_from_pid(t->waiter);
	struct task_ctx *spinner_t;
	struct vm_ctx *vm;

	t->waiter = 0;
	if (!spinner)
		return;
	spinner_t = task_ctx(spinner);
	if (spinner_t && spinner_t->wait_for == p->pid) {
		spinner_t->wait_for = 0;
		spinner_t->awaiting_verdict = true;
		vm = vm_slot(t->run_vm);
		if (vm)
			__sync_fetch_and_add(&vm->times.boosts, 1);
	}
	bpf_task_release(spinner);
}

/* The guest ran until the tick came: vtime_account_guest_enter() sets this. */
#define PF_VCPU 0x00000001

/*
 * A thread that has entered its guest once, and then does other work, is no vCPU any more: not
 * before it enters the guest again (baton_vcpu_load()). As it may have run for long with nobody to
 * take its pCPU, the ticks within its guest count, too.
 */
static void stays_vcpu(const struct task_struct *p, struct task_ctx *t, s32 cpu)
{
	if (p->flags & PF_VCPU)
		t->outside_ns = 0;
	runs_on(cpu)->outside = t->outside_ns > OUTSIDE_NS / 2;
	if (t->outside_ns > OUTSIDE_NS && vm_of(t))
		leave_vm(p, t);
}

#endif /* BATON_RUNS_BPF_H */
