// SPDX-License-Identifier: GPL-2.0-only
/*
 * scx_baton: the callbacks of the scheduler. What happens, in the order of the data, and where:
 *
 * 1. KVM's events tell which task is a vCPU, who spins, who halts, and who was sent an IPI
 *    (kvm.bpf.c; owing, polling).
 * 2. CPU time is charged to a VM or a host task while another one wants it (account, wanted; by
 *    weight: tree).
 * 3. A task that becomes runnable takes an idle pCPU (idle). Else, if its VM is behind its due, it
 *    takes one that it may preempt, as a visitor; one that is bound, in its part (room). Else it
 *    joins its VM's queue (place).
 * 4. A pCPU that looks for work runs the task to which it was given (given), else one that may run
 *    nowhere else (bound), else the host task or the VM's vCPU that is first in order (pick, host,
 *    first, start).
 * 5. A vCPU that spins gives its pCPU to the sibling that it waits for (yield). One that sends an
 *    IPI to a sibling that waits for a pCPU has it lent one (lend).
 * 6. A tick ends the slice of a task that has had its time, or its cpu.max (below; quota, park).
 *
 * The rules are in policy.h. What is in which file: docs/ARCHITECTURE.md.
 */
#include <scx/common.bpf.h>
#include "gang.bpf.h"
#include "lend.bpf.h"
#include "pick.bpf.h"
#include "place.bpf.h"
#include "runs.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

s32 BPF_STRUCT_OPS(baton_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_ctx *t = task_ctx(p);
	struct vm_ctx *vm;
	bool idle = false;
	s32 cpu;
	u64 now;

	/* Of a new task it is not known yet whether its cgroup has CPU time: enqueue() looks. */
	if (!t || (nr_quotas && !t->weight_gen) || (t->quota && throttled_until(t, scx_bpf_now())))
		return prev_cpu;
	/*
	 * Not @wake_flags: by SCX_WAKE_SYNC the kernel says of the waker's own pCPU that it is
	 * idle, which runs a vCPU if an interrupt has come there.
	 */
	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, 0, &idle);
	if (!idle)
		return prev_cpu;
	now = scx_bpf_now();
	vm = vm_now(t);
	/* The pCPU is idle. */
	wake(t, vm, vnow, now);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, idle_slice(vm, now), 0);
	return cpu;
}

void BPF_STRUCT_OPS(baton_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *t = task_ctx(p);

	if (t)
		enqueue_task(p, t, enq_flags);
	else
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, HOST_SLICE_NS, enq_flags);
}

void BPF_STRUCT_OPS(baton_dispatch, s32 cpu, struct task_struct *prev)
{
	pick_next(cpu, prev);
}

void BPF_STRUCT_OPS(baton_running, struct task_struct *p)
{
	struct task_ctx *t = task_ctx(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	bool goes_on, picked, asked = c->kicked;
	struct vm_ctx *vm;

	if (!t)
		return;
	t->run_at = scx_bpf_now();
	t->started_at = t->run_at;
	stay(t);
	leave_queue(t, t->run_at);
	c->kicked = 0;
	c->brief = 0;
	c->idle_look = 0;
	/* A spinner that goes on is not picked again. */
	goes_on = c->resuming == p->pid;
	picked = !goes_on && !t->boosted;
	c->resuming = 0;
	if (!t->boosted)
		c->back_at = 0;
	vm = vm_of(t);
	if (picked) {
		/* A sibling in the same turn is no newcomer, however short the slices are. */
		if (!vm || t->vm != c->vm || vm->turn_start != c->turn_start)
			c->since = t->run_at;
		c->donates_until = t->run_at + p->scx.slice;
	}
	if (c->kept == p->pid) {
		c->kept = 0;
		c->kept_until = 0;
	} else if (vm && picked && c->kept) {
		release(cpu);
	}
	/* Not only where tasks queue: on an idle pCPU they never do. */
	refresh_weight(p, t, vm, t->run_at);
	runs_for(p, t, cpu, picked);
	if (asked)
		leave_to_bound(cpu, t->run_at);
	/* It was not picked: somebody may have come meanwhile. */
	if (vm && c->goes_on) {
		c->goes_on = false;
		if (count(COUNT_WAITING) || host_is_due(cpu, vm, t->run_at, t->run_at))
			preempt(cpu);
	}
	/* A host task comes between, it does not change whose turn this is. */
	if (vm && picked) {
		runs_until(p, vm, cpu, p->scx.slice, t->run_at);
	} else if (vm && t->boosted && !c->resume_pid && c->ends_at) {
		/* The spinner's slice was rounded up; or it visits for an interrupt. */
		ends_in(cpu, t->run_at, p->scx.slice);
	}
	c->rescued = p->scx.slice <= RESCUE_NS || throttled_until(t, t->run_at);
	if (c->rescued)
		look_soon(cpu, vm || p->scx.slice > RESCUE_NS ? RESCUE_NS : p->scx.slice);
	if (t->waiter)
		ran_for_spinner(p, t);
}

void BPF_STRUCT_OPS(baton_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p), claimed;
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_ctx *t = task_ctx(p);
	u64 now = scx_bpf_now();

	if (!t)
		return;
	charge(p, t, cpu, now);
	if (c->runs == RUNS_HOST)
		c->host_vtime = t->vtime;
	if (c->kept && !vtime_before(now, c->kept_until))
		release(cpu);
	stays_vcpu(p, t, cpu);
	/* One that is never switched away would not hear of a new weight or quota. */
	refresh_weight(p, t, vm_of(t), now);
	if (t->run_vm != (vm_of(t) ? t->vm : NO_VM)) {
		runs_no_more(t, cpu);
		runs_for(p, t, cpu, !t->boosted);
	}
	if (throttled_until(t, now)) {
		scx_bpf_task_set_slice(p, 0);
		return;
	}
	if (smt_active && !t->leaves_for) {
		claimed = claim_core(p, cpu, now);
		t->leaves_for = claimed < 0 ? 0 : claimed + 1;
	}
	if (t->leaves_for) {
		scx_bpf_task_set_slice(p, 0);
		return;
	}
	/* What is boosted for a moment has a timer; a sibling on a slice that a spinner gave has
	 * none. */
	if (!t->run_vm || t->boosted == BOOST_VISIT || c->resume_pid)
		return;
	if (nr_llcs > 1 && count(COUNT_WAITING))
		invite(t->run_vm, cpu, now);
	if (overdue(cpu, now)) {
		c->kicked = 1;
		scx_bpf_task_set_slice(p, 0);
	}
}

void BPF_STRUCT_OPS(baton_stopping, struct task_struct *p, bool runnable)
{
	struct task_ctx *t = task_ctx(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct vm_ctx *vm;

	if (!t)
		return;
	charge(p, t, cpu, scx_bpf_now());
	if (!runnable)
		stay(t);
	if (!runnable && (p->flags & PF_EXITING))
		bequeath(p, t, t->run_at);
	if (!runnable && has_halted(t) && !t->slept_at)
		t->slept_at = t->run_at;
	vm = vm_of(t);
	if (!runnable && vm && t->boosted == BOOST_VISIT && is_bound(p))
		spare_part(vm, cpu, t->run_at);
	runs_no_more(t, cpu);
	t->boosted = BOOST_NONE;
	t->last_cpu = cpu;
	cpu_ctx(cpu)->runs = RUNS_NOTHING;
}

/*
 * KVM, on behalf of a vCPU that runs here (@from), asks to run @to instead: because @from
 * spins, or because it has just done something for @to (a lock handed on, an IPI to one that is
 * preempted). Then it knows best, and YIELD_KICK lets it.
 */
bool BPF_STRUCT_OPS(baton_yield, struct task_struct *from, struct task_struct *to)
{
	s32 cpu = bpf_get_smp_processor_id(), pid;
	struct task_ctx *from_t = task_ctx(from);
	struct task_struct *better;
	u32 reason = YIELD_NONE;
	int yields;

	if (!to) {
		stat_add(STAT_PLAIN_YIELDS, 1);
		scx_bpf_task_set_slice(from, 0);
		return true;
	}
	stat_add(STAT_YIELDS, 1);
	if (!from_t) {
		stat_add(STAT_MISSED_FOREIGN, 1);
		return false;
	}
	pid = to->pid;
	if (spins(from_t))
		reason = choose(from_t, &pid, cpu);
	else if (yields_for(YIELD_KICK))
		reason = YIELD_KICK;
	if (reason == YIELD_NONE) {
		stat_add(STAT_REFUSED, 1);
		return false;
	}
	if (pid == to->pid)
		return hand_over(from, from_t, to, reason, cpu);
	better = bpf_task_from_pid(pid);
	if (!better) {
		stat_add(STAT_MISSED_RACED, 1);
		return false;
	}
	stat_add(STAT_REDIRECTED, 1);
	yields = hand_over(from, from_t, better, reason, cpu);
	bpf_task_release(better);
	return yields;
}

static u32 timers_begun;

/*
 * Called for the first task, before anything is scheduled. Not by baton_init(), which may sleep:
 * Linux 7.2 verifies what the timers call as if it might, too, and refuses a task's cpus_ptr there.
 */
static s32 init_timers(void)
{
	s32 i, err = init_park_timer();

	if (err)
		return err;
	bpf_for(i, 0, nr_cpu_ids) {
		err = init_look_timer(i) ?: init_lend_timer(i);
		if (err)
			return err;
	}
	return 0;
}

s32 BPF_STRUCT_OPS(baton_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *t;
	s32 err;

	if (!timers_begun && !__sync_val_compare_and_swap(&timers_begun, 0, 1)) {
		err = init_timers();
		if (err)
			return err;
	}

	t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t)
		return -ENOMEM;
	t->last_cpu = -1;
	t->weight = WEIGHT_AVERAGE;
	if (args->fork && args->cgroup)
		inherit(t, args->cgroup);
	return 0;
}

void BPF_STRUCT_OPS(baton_enable, struct task_struct *p)
{
	struct task_ctx *t = task_ctx(p);
	struct vm_ctx *vm;

	if (!t)
		return;
	t->weight_gen = 0;
	if (is_new(t))
		return;
	vm = vm_of(t);
	t->vtime = vm ? vm->vcpu_vnow : vnow;
	/* What it has waited for elsewhere. */
	t->run_at = scx_bpf_now();
}

/* Off to another scheduling class, perhaps out of our queue. */
void BPF_STRUCT_OPS(baton_disable, struct task_struct *p)
{
	struct task_ctx *t = task_ctx(p);

	if (!t)
		return;
	stay(t);
	leave_queue(t, scx_bpf_now());
	t->parked_at = 0;
}

void BPF_STRUCT_OPS(baton_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_ctx *t = task_ctx(p);

	if (!t)
		return;
	leave_queue(t, scx_bpf_now());
	leave_vm(p, t);
}

void BPF_STRUCT_OPS(baton_set_weight, struct task_struct *p, u32 weight)
{
	struct task_ctx *t = task_ctx(p);

	if (t)
		t->weight_gen = 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(baton_cgroup_init, struct cgroup *cgrp,
			     struct scx_cgroup_init_args *args)
{
	struct cgrp_ctx *c;

	c = bpf_cgrp_storage_get(&cgroups, cgrp, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!c)
		return -ENOMEM;
	c->weight = args->weight;
	/* Told from Linux 6.17 on. */
	if (bpf_core_field_exists(args->bw_quota_us))
		set_quota(&c->quota, args->bw_period_us, args->bw_quota_us, args->bw_burst_us);
	return 0;
}

void BPF_STRUCT_OPS(baton_cgroup_exit, struct cgroup *cgrp)
{
	struct cgrp_ctx *c = bpf_cgrp_storage_get(&cgroups, cgrp, 0, 0);

	if (c)
		set_quota(&c->quota, 0, ~0ULL, 0);
}

void BPF_STRUCT_OPS(baton_cgroup_move, struct task_struct *p, struct cgroup *from,
		    struct cgroup *to)
{
	struct task_ctx *t = task_ctx(p);
	struct vm_ctx *vm = t ? vm_of(t) : NULL;

	/* Counted anew; where it was, and among everybody, it stays until its time has come. */
	if (t) {
		t->weight_gen = 0;
		t->child.counted_at = 0;
		t->child.until = 0;
	}
	/* Found again as its vCPUs run. */
	if (vm) {
		vm->levels = 0;
		vm->child.counted_at = 0;
		vm->child.until = 0;
	}
}

void BPF_STRUCT_OPS(baton_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	change_weight(cgrp, weight);
}

void BPF_STRUCT_OPS(baton_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us,
		    u64 burst_us)
{
	struct cgrp_ctx *c = bpf_cgrp_storage_get(&cgroups, cgrp, 0, 0);

	if (c)
		set_quota(&c->quota, period_us, quota_us, burst_us);
	__sync_fetch_and_add(&cgroup_gen, 1);
}

/*
 * A CPU that goes does not look into queues any more, and the kernel waits until all tasks have
 * left it: those that ran there last go onto its own runqueue, from which the kernel pushes them
 * away. No other CPU might be allowed to take them.
 */
static void release_from(u64 dsq, s32 cpu)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, dsq, 0) {
		if (scx_bpf_task_cpu(p) == cpu)
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	}
}

/* With these two the kernel lets the scheduler stay through CPU hotplug. */
void BPF_STRUCT_OPS(baton_cpu_online, s32 cpu)
{
	cpu_ctx(cpu)->runs = RUNS_NOTHING;
	__sync_fetch_and_add(&nr_online, 1);
}

void BPF_STRUCT_OPS(baton_cpu_offline, s32 cpu)
{
	u32 slot, end = vm_end();

	cpu_ctx(cpu)->runs = RUNS_NOTHING;
	cpu_ctx(cpu)->boost_pid = 0;
	take_invitation(cpu_ctx(cpu));
	release(cpu);
	__sync_fetch_and_sub(&nr_online, 1);
	/* First: its timer puts tasks back into the others. */
	release_from(PARKED_DSQ, cpu);
	release_from(cpu, cpu);
	release_from(llc_dsq(cpu), cpu);
	bpf_for(slot, 1, end)
		release_from(vm_dsq(slot), cpu);
}

static __always_inline s32 create_dsqs(u64 first, u32 n)
{
	s32 err;
	u32 i;

	bpf_for(i, 0, n) {
		err = scx_bpf_create_dsq(first + i, -1);
		if (err)
			return err;
	}
	return 0;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(baton_init)
{
	const struct cpumask *online;

	nr_cpu_ids = scx_bpf_nr_cpu_ids();
	if (nr_cpu_ids > MAX_CPUS) {
		scx_bpf_error("%u CPUs, at most %d are supported", nr_cpu_ids, MAX_CPUS);
		return -E2BIG;
	}
	online = scx_bpf_get_online_cpumask();
	nr_online = bpf_cpumask_weight(online);
	scx_bpf_put_cpumask(online);
	return create_dsqs(PARKED_DSQ, 1) ?: create_dsqs(0, nr_cpu_ids) ?:
	       create_dsqs(LLC_DSQ_BASE, nr_llcs) ?: create_dsqs(vm_dsq(1), MAX_VMS);
}

void BPF_STRUCT_OPS(baton_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

// clang-format off
SCX_OPS_DEFINE(baton_ops,
	       .select_cpu = (void *)baton_select_cpu,
	       .enqueue = (void *)baton_enqueue,
	       .dispatch = (void *)baton_dispatch,
	       .running = (void *)baton_running,
	       .tick = (void *)baton_tick,
	       .stopping = (void *)baton_stopping,
	       .disable = (void *)baton_disable,
	       .yield = (void *)baton_yield,
	       .init_task = (void *)baton_init_task,
	       .enable = (void *)baton_enable,
	       .exit_task = (void *)baton_exit_task,
	       .set_weight = (void *)baton_set_weight,
	       .cgroup_init = (void *)baton_cgroup_init,
	       .cgroup_exit = (void *)baton_cgroup_exit,
	       .cgroup_move = (void *)baton_cgroup_move,
	       .cgroup_set_weight = (void *)baton_cgroup_set_weight,
	       .cgroup_set_bandwidth = (void *)baton_cgroup_set_bandwidth,
	       .cpu_online = (void *)baton_cpu_online,
	       .cpu_offline = (void *)baton_cpu_offline,
	       .init = (void *)baton_init,
	       .exit = (void *)baton_exit,
	       .timeout_ms = 30000,
	       .flags = SCX_OPS_ENQ_LAST,
	       .name = "baton");
// clang-format on
