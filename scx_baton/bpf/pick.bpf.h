/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a pCPU runs next.
 */
#ifndef BATON_PICK_BPF_H
#define BATON_PICK_BPF_H

#include "place.bpf.h"
#include "yield.bpf.h"

/*
 * VMs tried one after the other, in order, when affinity keeps the first ones off. Beyond
 * that, all in the order of their slots: a search in order is quadratic.
 */
#define MAX_TRIES 8

/* vCPUs looked at to find one that ran here last. */
#define MAX_CACHE_WALK 16

/* VMs, and vCPUs of each, that are looked at in one pick, in case they starve. */
#define MAX_STARVED_WALK 8
#define MAX_STARVED_VCPUS 4

/* A look at the VMs with a vCPU to run that waits near @llc: how many, and the least vtime. */
struct vms_seen {
	u64 least;
	u32 nr;
	u32 llc;
	/* for which pCPU; @prev_vm is about to leave it */
	s32 cpu;
	u32 prev_vm;
	/* the one after which the next in order is looked for, and that one */
	u32 last;
	u32 best;
	u64 last_rank;
	u64 best_rank;
};

/* Is the VM in @slot the one that is looked for, so far? */
verified_once int look_at_vm(u32 slot, struct vms_seen *seen, u64 now)
{
	struct vm_ctx *vm = vm_slot(slot);
	u64 rank;

	if (!vm || !seen)
		return 0;
	if (slot != seen->prev_vm && (vm->nr_queued <= 0 || !waits_here(vm, slot, seen->cpu)))
		return 0;
	if (!seen->nr++ || vtime_before(vm->vtime, seen->least))
		seen->least = vm->vtime;
	rank = rank_of(cpu_ctx(seen->cpu), slot, vm, vm->nr_running - (slot == seen->prev_vm), now);
	if (seen->last != NO_VM &&
	    (rank < seen->last_rank || (rank == seen->last_rank && slot <= seen->last)))
		return 0;
	if (seen->best == NO_VM || rank < seen->best_rank) {
		seen->best = slot;
		seen->best_rank = rank;
	}
	return 0;
}

/*
 * The VM that goes first on @cpu among those with a vCPU to run there, after @last in that order;
 * of equals, the one with the lower slot. A vCPU of @prev_vm, which is about to leave this pCPU,
 * still counts as running. All that were looked at are in @seen.
 */
verified_once u32 next_vm(u32 last, u32 prev_vm, s32 cpu, u64 now, struct vms_seen *seen)
{
	u32 w, i, words = (vm_end() + 63) / 64;
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm = vm_slot(last);
	u64 word;

	if (!seen)
		return NO_VM;
	seen->cpu = cpu;
	seen->prev_vm = prev_vm;
	seen->last = last;
	seen->best = NO_VM;
	seen->nr = 0;
	if (vm)
		seen->last_rank = rank_on(c, last, vm, vm->nr_running - (last == prev_vm), now);
	bpf_for(w, 0, words) {
		word = *vms_near(seen->llc, w);
		if (c->kept && seen->llc == llc_of(cpu) && w == (c->kept_vm & (MAX_VMS - 1)) / 64)
			word |= 1ULL << c->kept_vm % 64;
		if (prev_vm != NO_VM && w == (prev_vm & (MAX_VMS - 1)) / 64)
			word |= 1ULL << prev_vm % 64;
		bpf_for(i, 0, 64) {
			if (!word)
				break;
			look_at_vm(w * 64 + __builtin_ctzll(word) ?: MAX_VMS, seen, now);
			word &= word - 1;
		}
	}
	return seen->best;
}

/* A vCPU of the VM is about to run on @cpu, and @queued more wait. */
verified_once int join_turn(u32 slot, s32 queued, s32 cpu, u64 now)
{
	struct vm_ctx *vm = vm_slot(slot);

	if (!vm || !vm_join_turn(vm, now))
		return 0;
	stat_add(STAT_TURNS, 1);
	summon_siblings(vm, slot, queued, cpu, now);
	return 0;
}

/* Of the vCPUs of a VM that wait, which ones are looked at, one pass after the other. */
enum pass {
	PASS_CACHED, /* 0; ran here last: their state is in this pCPU's caches and VMCS */
	PASS_NEAR, /* ran near */
	PASS_ANY,
	PASS_KEPT_OUT, /* spinners, too, that wait for somebody else to run */
	NR_PASSES,
};

/* A look along the vCPUs of the VM in @slot that wait. */
struct walk_queue {
	u64 now;
	u64 first_vtime;
	u64 slice; /* of the one that starts */
	u32 slot;
	u32 pass; /* enum pass */
	u32 seen;
	bool visits;
};

/* What comes of one of them. */
enum walked { WALK_ON, WALK_PARKS, WALK_STARTS, WALK_ENDS };

/* May @p start on @cpu? */
verified_once int look_at_vcpu(struct task_struct *p __arg_trusted, s32 cpu, struct walk_queue *w)
{
	struct task_ctx *t = task_ctx(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm;
	s32 leaves;

	if (!w || !t || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return WALK_ON;
	if ((w->pass != PASS_KEPT_OUT && kept_out(t, w->now)) || (is_kept(t) && t->last_cpu != cpu))
		return WALK_ON;
	if (throttled_until(t, w->now))
		return WALK_PARKS;
	if (w->pass <= PASS_NEAR) {
		if (!w->seen++)
			w->first_vtime = t->vtime;
		if (w->seen > MAX_CACHE_WALK ||
		    vtime_before(w->first_vtime + (w->pass == PASS_CACHED ? CACHE_WINDOW_NS
									  : NEAR_WINDOW_NS),
				 t->vtime))
			return WALK_ENDS;
		if (w->pass == PASS_CACHED ? t->last_cpu != cpu : t->queued_llc != llc_of(cpu) + 1)
			return WALK_ON;
	}
	vm = vm_slot(w->slot);
	if (!vm)
		return WALK_ENDS;
	/* Who gives way to a sibling waits, too. */
	leaves = c->runs == RUNS_VCPU && c->vm == w->slot;
	if (w->visits)
		w->slice = vm_visit(vm, vnow);
	else
		w->slice = vm_slice(vm, vm_crowded(vm, vm->nr_queued - 1 + leaves, cpus_for(p)),
				    w->now);
	t->boosted = w->visits ? BOOST_VISIT : BOOST_NONE;
	return WALK_STARTS;
}

/* Start the first one of the VM on @cpu that @pass looks at. */
verified_once int dispatch_pass(u32 slot, s32 cpu, u32 pass, bool visits, u64 now)
{
	struct walk_queue w = {.now = now, .slot = slot, .pass = pass, .visits = visits};
	struct task_struct *p;
	struct task_ctx *t;
	u32 walked;

	bpf_for_each(scx_dsq, p, vm_dsq(slot), 0) {
		walked = look_at_vcpu(p, cpu, &w);
		if (walked == WALK_ON)
			continue;
		if (walked == WALK_ENDS)
			break;
		if (walked == WALK_STARTS) {
			scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, w.slice);
			if (scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0))
				return true;
		}
		t = task_ctx(p);
		if (!t)
			continue;
		if (walked == WALK_PARKS)
			parks(BPF_FOR_EACH_ITER, p, t, now);
		else
			t->boosted = BOOST_NONE;
	}
	return false;
}

/*
 * Start one vCPU of the VM on @cpu: of those that are level, the one that ran here last, else the
 * one furthest behind. For a turn, or @visits.
 */
verified_once int dispatch_vcpu(u32 slot, s32 cpu, bool visits, u64 now)
{
	struct vm_ctx *vm = vm_slot(slot);
	u32 pass;

	if (!vm || vm->nr_queued <= 0)
		return false;
	for (pass = zero; pass < NR_PASSES; pass++) {
		if ((pass == PASS_NEAR && nr_llcs == 1) ||
		    !dispatch_pass(slot, cpu, pass, visits, now))
			continue;
		/* The one that was found counts as queued until it runs. */
		if (!visits)
			join_turn(slot, vm->nr_queued - 1, cpu, now);
		return true;
	}
	return false;
}

/*
 * A vCPU that has waited too long, of a VM that may well have had its share meanwhile. Those
 * furthest behind are the first in their VM's queue; a few are looked at each time. @waiting:
 * vCPUs that wait in all.
 */
verified_once int dispatch_starved(s32 cpu, u64 waiting, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 i, slot, seen, end = vm_end(), walk = end - 1;
	struct task_struct *p;
	struct task_ctx *t;
	struct vm_ctx *vm;
	bool moved = false;

	if (walk > MAX_STARVED_WALK)
		walk = MAX_STARVED_WALK;
	bpf_for(i, 0, walk) {
		slot = c->starved >= 1 && c->starved < end ? c->starved : 1;
		c->starved = slot + 1;
		vm = vm_slot(slot);
		if (!vm || vm->nr_queued <= 0)
			continue;
		seen = zero;
		bpf_for_each(scx_dsq, p, vm_dsq(slot), 0) {
			t = task_ctx(p);
			if (t && !throttled_until(t, now) &&
			    starves(now - t->queued_at, waiting, nr_online) &&
			    bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
				scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, TURN_NS);
				moved = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
			}
			if (moved || ++seen >= MAX_STARVED_VCPUS)
				break;
		}
		if (moved)
			return true;
	}
	return false;
}

/*
 * The thread @pid runs next on @cpu, for @slice and because of @why, if it waits for the VM in
 * @slot and may run there.
 */
verified_once int start_vcpu(s32 pid, u32 slot, u64 slice, u32 why, s32 cpu)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	struct bpf_iter_scx_dsq it;
	struct task_ctx *t;
	bool moved = false;

	if (!p)
		return false;
	t = task_ctx(p);
	if (!t || t->queued_vm != slot || (t->nr_quotas && throttled_until(t, scx_bpf_now())))
		goto out;
	t->boosted = why;
	/*
	 * Its affinity is looked at while the iterator is open: a task that was put back with
	 * another one since then is refused by the move.
	 */
	if (!bpf_iter_scx_dsq_new(&it, vm_dsq(slot), 0) && bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
		scx_bpf_dsq_move_set_slice(&it, slice);
		moved = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL_ON | cpu, SCX_ENQ_HEAD);
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (!moved)
		t->boosted = BOOST_NONE;
out:
	bpf_task_release(p);
	return moved;
}

/* vCPUs of a VM that are looked at for one that waits for this pCPU alone. */
#define MAX_BOUND_WALK 64

/* One of those in the queue of the VM in @slot that wait for @cpu alone, or 0. */
verified_once s32 find_bound(u32 slot, s32 cpu)
{
	struct vm_ctx *vm = vm_slot(slot);
	struct task_struct *p;
	struct task_ctx *t;
	u32 seen = zero;

	if (!vm || vm->nr_bound <= 0)
		return 0;
	bpf_for_each(scx_dsq, p, vm_dsq(slot), 0) {
		t = task_ctx(p);
		if (t && t->queued_cpu == cpu + 1)
			return p->pid;
		if (++seen >= MAX_BOUND_WALK)
			break;
	}
	return 0;
}

/*
 * For how long @t, which waits for @cpu alone, runs there now; 0: it does not. It has waited for
 * long while its siblings ran, or a host task did that has the @weight (0: none did), or at all.
 */
static u64 part_of_bound(const struct task_ctx *t, s32 cpu, u32 weight, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm = vm_slot(t->queued_vm), *running;
	u64 since = c->since;

	running = c->runs == RUNS_VCPU ? vm_slot(c->vm) : NULL;
	if (!vm || vm == running || throttled_until(t, now))
		return 0;
	if (starves(now - t->queued_at, count(COUNT_WAITING), nr_online))
		return TURN_NS;
	if (weight) {
		if (vtime_before(since, t->queued_at))
			since = t->queued_at;
		return vtime_before(since, now)
			       ? bound_slice(vm, now - since, weight, host_waiting(cpu, true))
			       : 0;
	}
	return vm->nr_running <= 0 ? 0
				   : torn_slice(vm, vm_busy(vm, now) - t->queued_busy,
						running ? running->weight : WEIGHT_AVERAGE,
						running ? running->nr_running : 1);
}

/* The same for the one that the pCPU's record names; else who is next is noted there. */
verified_once u64 bound_due(s32 cpu, u32 weight, u64 now)
{
	struct bound_queue *b = bound_queue(cpu);
	struct task_struct *p = bpf_task_from_pid(b->pid);
	struct task_ctx *t = p ? task_ctx(p) : NULL;
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 slot = b->vm;
	u64 slice = 0;

	if (t && t->queued_cpu == cpu + 1) {
		slice = part_of_bound(t, cpu, weight, now);
	} else {
		/* Where several VMs' vCPUs wait, one of another. */
		if (slot == MIXED_VMS)
			slot = c->bound = c->bound + 1 < vm_end() ? c->bound + 1 : 1;
		b->pid_vm = slot;
		b->pid = find_bound(slot, cpu);
	}
	if (p)
		bpf_task_release(p);
	return slice;
}

/*
 * Such a vCPU runs on @cpu next. What it displaces goes on afterwards, and is not to take the pCPU
 * of a sibling meanwhile.
 */
verified_once int dispatch_bound(s32 cpu, u32 weight, u64 now)
{
	struct bound_queue *b = bound_queue(cpu);
	u64 slice = bound_due(cpu, weight, now);
	struct cpu_ctx *c = cpu_ctx(cpu);
	s32 pid = b->pid;

	if (!slice)
		return false;
	/* Who is next is looked for. */
	b->pid = 0;
	if (!start_vcpu(pid, b->pid_vm, slice, BOOST_VISIT, cpu))
		return false;
	c->brief = 1;
	c->kept_until = now + slice;
	return true;
}

/* A directed yield named the vCPU to run here. */
static bool dispatch_boosted(struct cpu_ctx *c, s32 cpu)
{
	bool moved = start_vcpu(c->boost_pid, c->boost_vm, c->boost_slice, BOOST_SIBLING, cpu);

	c->boost_pid = 0;
	if (moved && c->donor)
		look_soon(cpu, BOOST_IPI_NS);
	stat_add(moved ? STAT_OBEYED : STAT_MISSED_RACED, 1);
	return moved;
}

/* The boosted vCPU has had its time: who it was taken from goes on, if it still may. */
static bool dispatch_donor(struct cpu_ctx *c, s32 donor, s32 cpu, u64 now)
{
	u64 until = c->donates_until;

	if (!vtime_before(now, until) ||
	    !start_vcpu(donor, c->donor_vm, until - now, BOOST_NONE, cpu))
		return false;
	c->resumes = donor;
	return true;
}

/*
 * A visit to @cpu has ended, of which the VM in @host_vm goes on: a vCPU that is behind its due and
 * waits visits next.
 */
static bool dispatch_visitor(u32 host_vm, s32 cpu, u64 now)
{
	struct vm_ctx *host = vm_slot(host_vm), *vm;
	struct vms_seen seen = {.llc = llc_of(cpu)};
	u32 best;

	/* Else, of visitors without end, nobody would look for who is bound here. */
	if (!host || count(COUNT_WAITING) < 2 || !vtime_before(now, cpu_ctx(cpu)->donates_until))
		return false;
	best = next_vm(NO_VM, NO_VM, cpu, now, &seen);
	vm = vm_slot(best);
	if (!vm || !vm_behind(vm, vnow) || !vtime_before(vm->vtime, host->vtime) ||
	    !dispatch_vcpu(best, cpu, true, now))
		return false;
	stat_add(STAT_VISITS, 1);
	return true;
}

/*
 * The pCPU is given away: to a vCPU that is boosted, or back to who it was taken from; @asked:
 * somebody else asks for this pCPU.
 */
verified_once int dispatch_given(s32 cpu, bool asked, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	s32 donor = c->donor;

	if (c->boost_pid) {
		if (dispatch_boosted(c, cpu))
			return true;
		donor = 0;
	} else if (donor && !asked && dispatch_visitor(c->donor_vm, cpu, now)) {
		return true;
	}
	c->donor = 0;
	return donor && !asked && dispatch_donor(c, donor, cpu, now);
}

/* Host tasks of other LLCs, when there is nothing closer to run. */
verified_once int steal_host_task(s32 cpu)
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

static bool peek_vtime(u64 dsq, u64 *vtime)
{
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(dsq);

	if (!p)
		return false;
	*vtime = p->scx.dsq_vtime;
	return true;
}

/* The LLC that is looked at beside that of @cpu: the next one each time. */
static u32 far_llc(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 llc;

	c->far = c->far + 1 < nr_llcs ? c->far + 1 : 1;
	llc = llc_of(cpu) + c->far;
	return llc < nr_llcs ? llc : llc - nr_llcs;
}

/* The host task that goes first on a pCPU. */
struct host_pick {
	u64 vtime;
	u64 dsq; /* where it waits, unless it runs */
	bool found;
	bool runs; /* it is the one that has just run */
	u64 later; /* what @vtime has of that for being far */
	u32 seen; /* candidates */
};

/* Of equals, one of the @nr that wait goes before one that has just run; from afar it must be
 * @later. */
static void consider_queue(struct host_pick *h, u64 dsq, s32 nr, u64 later)
{
	u64 vtime;

	if (nr <= 0 || !peek_vtime(dsq, &vtime))
		return;
	vtime += later;
	h->seen += nr;
	if (h->found && vtime_before(h->vtime, vtime))
		return;
	h->found = true;
	h->runs = false;
	h->vtime = vtime;
	h->later = later;
	h->dsq = dsq;
}

/* The host tasks that wait for @cpu are candidates. */
verified_once int consider_host(struct host_pick *h, s32 cpu, u64 now)
{
	u32 far;

	if (!h)
		return 0;
	if (nr_quotas) {
		park_heads(cpu, now);
		park_heads(llc_dsq(cpu), now);
	}
	consider_queue(h, cpu, host_waiting(cpu, true), 0);
	consider_queue(h, llc_dsq(cpu), host_waiting(cpu, false), 0);
	if (nr_llcs == 1)
		return 0;
	/* More may wait there, or no pCPU be online any more. */
	far = far_llc(cpu);
	consider_queue(h, LLC_DSQ_BASE + far, *host_queue(MAX_CPUS + far), HOST_FAR_NS);
	return 0;
}

/*
 * Start the first one of @dsq on @cpu; if only tasks are there that may not run here, the next
 * best.
 */
verified_once int start_from(u64 dsq, s32 cpu)
{
	return scx_bpf_dsq_move_to_local(dsq, 0) ||
	       (dsq != cpu && scx_bpf_dsq_move_to_local(cpu, 0));
}

static bool start_host(struct host_pick *h, s32 cpu, struct task_struct *prev)
{
	if (h->runs && prev) {
		scx_bpf_task_set_slice(prev, HOST_SLICE_NS);
		return true;
	}
	return start_from(h->dsq, cpu);
}

/*
 * The first one in the queue of @vm, which has @slot, if it has waited for long; of a VM that is
 * larger than the cache of @cpu, if some vCPU or other has: those that spin take turns, and none
 * waits for long.
 */
static struct task_struct *waits_long(const struct vm_ctx *vm, u32 slot, s32 cpu, u64 now)
{
	struct task_struct *p = __COMPAT_scx_bpf_dsq_peek(vm_dsq(slot));
	struct task_ctx *t = p ? task_ctx(p) : NULL;
	u64 since, any_since;
	bool late;

	if (!t)
		return NULL;
	since = t->queued_at;
	any_since = vm->queued_since;
	/* As in cpus_for(). */
	barrier_var(since);
	barrier_var(any_since);
	if (vm->nr_vcpus > nr_near(cpu))
		since = any_since;
	late = vtime_before(since + FAR_WAIT_NS, now);
	/* Else the sign masks the pointer. */
	barrier_var(late);
	return late ? p : NULL;
}

/*
 * The VM that goes first on @cpu of those that wait for long in another LLC, if well before @near,
 * of which one runs on if that is @prev_vm; any, if there is no @near and @idle. One other LLC is
 * looked at each time, or all.
 */
verified_once u32 far_vm(u32 near, u32 prev_vm, s32 cpu, bool idle, u64 now)
{
	struct vm_ctx *near_vm = vm_slot(near), *vm;
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vms_seen seen = {};
	struct task_struct *p;
	u64 rank = ~0ULL;
	u32 i, far;

	if (near_vm)
		rank = rank_on(c, near, near_vm, near_vm->nr_running - (near == prev_vm), now);
	bpf_for(i, 1, nr_llcs) {
		seen.llc = far_llc(cpu);
		far = next_vm(NO_VM, NO_VM, cpu, now, &seen);
		vm = vm_slot(far);
		p = vm ? waits_long(vm, far, cpu, now) : NULL;
		if (p && bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
		    rank_on(c, far, vm, vm->nr_running, now) + FAR_BEHIND_NS < rank)
			return far;
		if (near_vm || !idle)
			break;
	}
	return NO_VM;
}

/* Start a vCPU that waits in another LLC, if that goes before @near, of the VMs, and @host. */
static bool dispatch_far(u32 near, u32 prev_vm, s32 cpu, const struct host_pick *host, u64 now)
{
	u32 far = far_vm(near, prev_vm, cpu, !host->found, now);
	struct vm_ctx *vm = vm_slot(far);

	return vm && !(host->found && host_goes_first(host->vtime, vm->vtime, vnow)) &&
	       dispatch_vcpu(far, cpu, false, now);
}

/* @cpu would go idle: it takes a vCPU that is kept for another pCPU of this cache. */
verified_once int dispatch_kept(s32 cpu, u64 now)
{
	u32 i, looks = nr_near(cpu) < MAX_LOOKS ? nr_near(cpu) : MAX_LOOKS, slot;
	struct cpu_ctx *c;
	struct vm_ctx *vm;
	s32 kept;

	bpf_for(i, 1, looks) {
		c = cpu_ctx(near_cpu(cpu, i));
		kept = *(volatile s32 *)&c->kept;
		slot = c->kept_vm;
		vm = kept ? vm_slot(slot) : NULL;
		if (!vm || !start_vcpu(kept, slot, vm_slice(vm, false, now), BOOST_NONE, cpu))
			continue;
		join_turn(slot, vm->nr_queued - 1, cpu, now);
		return true;
	}
	return false;
}

/*
 * @cpu goes idle, and vCPUs wait near other caches, not for long: it looks again when they have,
 * and less and less often, as they may not be allowed here.
 */
static void look_when_idle(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	c->idle_look = c->idle_look ? 2 * c->idle_look : FAR_WAIT_NS;
	if (c->idle_look > IDLE_LOOK_MAX_NS)
		c->idle_look = IDLE_LOOK_MAX_NS;
	look_soon(cpu, c->idle_look);
}

/* @cpu would go idle, where @waiting vCPUs wait in all. */
verified_once int dispatch_rest(s32 cpu, u64 waiting, u64 now)
{
	/* Known as it is loaded: one LLC is no loop. */
	if ((nr_llcs > 1 && steal_host_task(cpu)) || (waiting && dispatch_kept(cpu, now)))
		return true;
	if (nr_llcs > 1 && waiting)
		look_when_idle(cpu);
	return false;
}

/* None of those that go first may run here: any VM that may, round robin, from @c's last on. */
static bool dispatch_any(struct cpu_ctx *c, s32 cpu, u64 now)
{
	u32 i, slot, end = vm_end();

	bpf_for(i, 0, end) {
		slot = c->vm + 1 + i;
		if (slot >= end)
			slot -= end;
		if (dispatch_vcpu(slot, cpu, false, now))
			return true;
	}
	return false;
}

/*
 * Somebody goes before all others on @cpu: one that waits for this pCPU alone, where a host task
 * of @weight leaves it (0: none does), one that has waited for too long, or one of the VM
 * @invited.
 */
verified_once int dispatch_urgent(s32 cpu, u32 weight, u32 invited, u64 waiting, u64 now)
{
	if (bound_queue(cpu)->nr > 0 && dispatch_bound(cpu, weight, now))
		return true;
	return (waiting && dispatch_starved(cpu, waiting, now)) ||
	       (invited && dispatch_vcpu(invited, cpu, false, now));
}

/*
 * May @prev, which has run on @cpu, not go on there? One that polls gives way to whoever has
 * @asked.
 */
static bool must_leave(const struct task_struct *prev, const struct task_ctx *t, s32 cpu,
		       bool asked, u64 now)
{
	return !bpf_cpumask_test_cpu(cpu, prev->cpus_ptr) || t->leaves_for ||
	       throttled_until(t, now) || (asked && t->halted_at && !t->slept_at);
}

/* What comes of the VM that goes first. */
enum tried { TRIED_IN_VAIN, TRIED_STARTS, TRIED_GOES_ON };

/*
 * The VM in @slot goes first on @cpu; @t is its vCPU that has run there, if any. That one goes on,
 * unless a sibling that may run here is behind it.
 */
verified_once int try_vm(u32 slot, const struct task_ctx *t, s32 cpu, u64 now)
{
	bool goes_on = t && !kept_out(t, now);
	u64 other;

	if ((!goes_on || (peek_vtime(vm_dsq(slot), &other) && vtime_before(other, t->vtime))) &&
	    dispatch_vcpu(slot, cpu, false, now))
		return TRIED_STARTS;
	return goes_on ? TRIED_GOES_ON : TRIED_IN_VAIN;
}

/* The vCPU @p of the VM in @slot goes on, on @cpu. */
verified_once int go_on(struct task_struct *p __arg_trusted, struct vm_ctx *vm, u32 slot, s32 cpu,
			u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 slice;

	if (!vm)
		return 0;
	slice = vm_slice(vm, vm_crowded(vm, vm->nr_queued, cpus_for(p)), now);
	runs_until(p, vm, cpu, slice, now);
	/* Who asked has gone elsewhere. */
	c->brief = 0;
	c->donates_until = now + slice;
	scx_bpf_task_set_slice(p, slice);
	join_turn(slot, vm->nr_queued, cpu, now);
	c->turn_start = vm->turn_start;
	return 0;
}

/*
 * None of those that go first may run on @cpu: @any VM that may, or a host task, or somebody from
 * afar.
 */
verified_once int dispatch_last(s32 cpu, bool any, u64 waiting, u64 now)
{
	return (any && dispatch_any(cpu_ctx(cpu), cpu, now)) || scx_bpf_dsq_move_to_local(cpu, 0) ||
	       scx_bpf_dsq_move_to_local(llc_dsq(cpu), 0) || dispatch_rest(cpu, waiting, now);
}

/* Who goes first on a pCPU: what is known of that when one after the other is tried. */
struct order {
	struct host_pick host;
	struct vms_seen vms;
	u64 least; /* vtime of all VMs */
	u64 now;
	u32 slot; /* of the VM that is tried, after the one that went before it in order */
	u32 prev_vm;
	bool again;
	bool choice; /* the one that is furthest behind tells how far all have come */
};

/*
 * Try the VM that is next in @o, or the host task that goes before it; @t is what is known of
 * @prev, if that may go on.
 */
verified_once int try_next(struct task_struct *prev __arg_trusted __arg_nullable,
			   const struct task_ctx *t, s32 cpu, struct order *o)
{
	struct vm_ctx *vm;
	u32 tried;

	if (!o)
		return TRIED_STARTS;
	if (o->again)
		o->slot = next_vm(o->slot, o->prev_vm, cpu, o->now, &o->vms);
	vm = vm_slot(o->slot);
	if (o->host.found && (!vm || host_goes_first(o->host.vtime, vm->vtime, vnow))) {
		if (o->choice)
			raise_vnow(llc_of(cpu), o->host.vtime - o->host.later, o->now);
		if (start_host(&o->host, cpu, prev))
			return TRIED_STARTS;
		o->host.found = false;
	}
	if (!vm)
		return TRIED_IN_VAIN;
	tried = try_vm(o->slot, o->slot == o->prev_vm ? t : NULL, cpu, o->now);
	if (tried != TRIED_IN_VAIN && !o->again && o->choice)
		raise_vnow(llc_of(cpu), o->least, o->now);
	if (tried == TRIED_GOES_ON && prev)
		go_on(prev, vm, o->slot, cpu, o->now);
	o->again = true;
	return tried;
}

/*
 * Whoever is furthest behind of the host tasks that may run on @cpu and the VMs, where a VM in its
 * turn goes before other VMs. @prev is a candidate like any, if @t, what is known of it, is given.
 */
verified_once int dispatch_order(struct task_struct *prev __arg_trusted __arg_nullable,
				 const struct task_ctx *t, s32 cpu, u64 waiting, u64 now)
{
	struct order o = {.vms.llc = llc_of(cpu), .now = now, .prev_vm = NO_VM, .slot = NO_VM};
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 try;

	if (t && vm_of(t)) {
		o.prev_vm = t->vm;
	} else if (t) {
		o.host.found = o.host.runs = true;
		o.host.vtime = t->vtime;
		o.host.seen = 1;
	}
	consider_host(&o.host, cpu, now);
	if (waiting || o.prev_vm != NO_VM)
		o.slot = next_vm(NO_VM, o.prev_vm, cpu, now, &o.vms);
	if (nr_llcs > 1 && waiting && dispatch_far(o.slot, o.prev_vm, cpu, &o.host, now))
		return true;
	o.least = o.vms.least;
	/* Who sleeps now may have been here a moment ago. */
	o.choice = o.host.seen + o.vms.nr > 1 || now - c->mixed_at < 2 * TURN_NS;

	/* Hosts without VMs, and pCPUs that go idle, come here most often. */
	if (o.slot == NO_VM) {
		if (o.host.found && (o.choice || now - c->vm_ran_at < 2 * TURN_NS))
			raise_vnow(llc_of(cpu), o.host.vtime - o.host.later, now);
		return (o.host.found && start_host(&o.host, cpu, prev)) ||
		       dispatch_rest(cpu, waiting, now);
	}

	bpf_for(try, 0, MAX_TRIES) {
		if (try_next(prev, t, cpu, &o) != TRIED_IN_VAIN)
			return true;
		if (o.slot == NO_VM)
			break;
	}
	return dispatch_last(cpu, o.slot != NO_VM, t ? 0 : waiting, now);
}

/*
 * The next task for @cpu, where @prev has used up its slice, sleeps, or was preempted: who is
 * boosted, or goes before all others, or else the first one in order.
 */
static void pick_next(s32 cpu, struct task_struct *prev)
{
	bool prev_runnable = prev && (prev->scx.flags & SCX_TASK_QUEUED);
	struct task_ctx *prev_t = prev_runnable ? task_ctx(prev) : NULL;
	u64 now = scx_bpf_now(), waiting = count(COUNT_WAITING);
	struct cpu_ctx *c = cpu_ctx(cpu);
	bool asked = c->kicked;
	u32 invited;
	s32 yielded;

	c->kicked = 0;
	invited = take_invitation(c);
	if (prev_t)
		charge(prev, prev_t, cpu, now);
	yielded = c->boost_pid;
	if ((c->boost_pid || c->donor) && dispatch_given(cpu, asked, now))
		return;
	if (yielded && prev_t)
		prev_t->wait_for = 0;
	if ((waiting || invited) &&
	    dispatch_urgent(cpu, prev_t && !vm_of(prev_t) ? prev_t->weight : 0, invited, waiting,
			    now))
		return;
	if (prev_t && must_leave(prev, prev_t, cpu, asked, now)) {
		prev_t = NULL;
		/*
		 * One that exits, or must not migrate now, is put back here without enqueue(), and
		 * nobody would look.
		 */
		scx_bpf_kick_cpu(cpu, 0);
	}
	/* A spinner that is kept out has the pCPU rather than nobody. */
	if (!dispatch_order(prev, prev_t, cpu, waiting, now) && prev_t)
		scx_bpf_task_set_slice(prev, KEEP_OUT_NS);
}

/*
 * At each tick of a vCPU: may the VM that goes first take this pCPU? It may have come while it
 * could not.
 */
static bool overdue(s32 cpu, u64 now)
{
	struct vms_seen seen = {.llc = llc_of(cpu)};
	u32 best = next_vm(NO_VM, NO_VM, cpu, now, &seen), far = NO_VM;
	struct vm_ctx *vm;

	if (bound_queue(cpu)->nr > 0 && bound_due(cpu, 0, now))
		return true;
	if (nr_llcs > 1)
		far = far_vm(best, NO_VM, cpu, false, now);
	if (far != NO_VM)
		best = far;
	vm = vm_slot(best);

	return vm && vm_takes(cpu_ctx(cpu), best, vm, now);
}

#endif /* BATON_PICK_BPF_H */
