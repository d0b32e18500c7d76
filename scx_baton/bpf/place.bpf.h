/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a task that becomes runnable goes: an idle pCPU, or the queue it waits in and the
 * pCPU that is preempted for it.
 */
#ifndef BATON_PLACE_BPF_H
#define BATON_PLACE_BPF_H

#include "park.bpf.h"
#include "polling.bpf.h"

enum cpu_runs { RUNS_NOTHING, RUNS_HOST, RUNS_VCPU };

/*
 * What a pCPU runs now, and what the next dispatch there must do. What others look at is on one
 * cache line.
 */
struct cpu_ctx {
	u64 since; /* ns; start of what runs: of a vCPU, or of siblings one after the other in a
		      turn */
	u64 host_vtime; /* of the host task that runs */
	u64 turn_start; /* of @vm, when it was started here */
	u32 runs; /* enum cpu_runs */
	u32 vm; /* slot, while it runs a vCPU */
	u32 vcpu_id; /* the same */
	s32 pid; /* the same */
	u32 kicked; /* preemption is on its way, do not ask for another */
	u32 brief; /* who preempts will run for a moment */
	s32 boost_pid; /* vCPU to run next, by a directed yield; 0: none */
	s32 donor; /* the vCPU that goes on when the boosted one has had its time; 0: none */
	s32 kept; /* vCPU that goes on here after one that runs for a moment; 0: none */
	u32 kept_vm;
	/* the next line */
	u64 ends_at; /* ns; end of the slice of a vCPU for which siblings wait; 0: none do */
	u64 boost_slice; /* ns left of the spinner's slice */
	u64 donates_until; /* ns; end of the slice that directed yields hand on here */
	u64 mixed_at; /* ns; when another VM's vCPU than before began to run here */
	u32 boost_vm;
	u32 donor_vm;
	s32 resumes; /* the donor, on its way */
	u32 invited; /* the VM that asks for this pCPU, as its gang lacks one; or NO_VM */
	u32 far; /* so many LLCs behind this one is the one that the last pick looked at */
	u32 rescued; /* what runs is ahead of its quota, and not for long */
	u32 starved; /* slot from which the next pick looks for a starved vCPU */
	u32 idle_look; /* ns; after so long it looks again for vCPUs near other caches */
	/* the last line */
	u64 kept_until; /* ns; until then @kept is for no other pCPU */
	u32 bound; /* slot of the VM that was asked last for a vCPU that waits for this pCPU
		      alone */
	u64 vm_ran_at; /* ns; when a vCPU began to run here last */
} __attribute__((aligned(64)));

static struct cpu_ctx cpus[MAX_CPUS];

/* The next hyper-thread of the core; where there is none, the pCPU itself. */
const volatile u16 cpu_sibling[MAX_CPUS];

static inline struct cpu_ctx *cpu_ctx(s32 cpu)
{
	return &cpus[cpu & (MAX_CPUS - 1)];
}

/* On how many pCPUs can the VM of @p run? One whose vCPUs are bound, each to its own, on any. */
static inline s32 cpus_for(const struct task_struct *p)
{
	s32 online = nr_online, allowed = p->nr_cpus_allowed;

	/* Else one load from either address, which the verifier refuses. */
	barrier_var(online);
	barrier_var(allowed);
	return allowed == 1 || allowed > online ? online : allowed;
}

/* The slice of what runs on @cpu ends in @ns: siblings wait for that, and a tick may be four times
 * as long. */
static void ends_in(s32 cpu, u64 now, u64 ns)
{
	cpu_ctx(cpu)->ends_at = now + ns;
	look_soon(cpu, ns);
}

/* A vCPU of @vm runs on @cpu from @now on, for @slice: if that is one of the short ones, a timer
 * ends it. */
static void runs_until(const struct task_struct *p, const struct vm_ctx *vm, s32 cpu, u64 slice,
		       u64 now)
{
	cpu_ctx(cpu)->ends_at = 0;
	if (slice <= CROWDED_SLICE_NS && vm_crowded(vm, vm->nr_queued, cpus_for(p)))
		ends_in(cpu, now, slice);
}

/* The slice of a task that starts at once on an idle pCPU. */
static u64 idle_slice(struct vm_ctx *vm, u64 now)
{
	if (!vm)
		return HOST_SLICE_NS;
	if (vm_join_turn(vm, now))
		stat_add(STAT_TURNS, 1);
	return vm_turn_end(vm, now) - now;
}

/* An idle pCPU for @p, taken from the idle mask; negative if there is none. */
static s32 take_idle_cpu(struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu;

	if (is_bound(p))
		return scx_bpf_test_and_clear_cpu_idle(prev_cpu) ? prev_cpu : -EBUSY;
	if (__COMPAT_HAS_scx_bpf_select_cpu_and)
		return scx_bpf_select_cpu_and(p, prev_cpu, wake_flags, p->cpus_ptr, 0);
	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
	return idle ? cpu : -EBUSY;
}

/*
 * An idle pCPU for @p, which loses @cpu, taken from the idle mask: of an idle core, or else on the
 * core that it is on, as what takes its place may be gone soon; negative if there is none.
 */
static s32 take_idle_cpu_for(struct task_struct *p, s32 cpu)
{
	s32 beside = cpu_sibling[cpu & (MAX_CPUS - 1)], idle;

	if (is_bound(p))
		return scx_bpf_test_and_clear_cpu_idle(cpu) ? cpu : -EBUSY;
	if (!smt_active)
		return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE);
	if (idle >= 0)
		return idle;
	if (bpf_cpumask_test_cpu(beside, p->cpus_ptr) && scx_bpf_test_and_clear_cpu_idle(beside))
		return beside;
	return scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
}

/*
 * @p shares its core on @cpu, and neither leaves by itself as long as both run: a pCPU of an idle
 * core where it may run, which is its own from now on; negative if there is none.
 */
static s32 claim_core(struct task_struct *p, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu), *beside = cpu_ctx(cpu_sibling[cpu & (MAX_CPUS - 1)]);

	/* The kernel does not move one that exits. */
	if (beside == c || beside->runs == RUNS_NOTHING || (p->flags & PF_EXITING) ||
	    !core_is_shared(c->since, beside->since, now))
		return -EBUSY;
	return scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE);
}

/* It does not go there after all: what it claimed is idle again. */
static void stay(struct task_ctx *t)
{
	if (!t->leaves_for)
		return;
	scx_bpf_kick_cpu(t->leaves_for - 1, 0);
	t->leaves_for = 0;
}

/*
 * The rank of @vm, which has @slot, for the pCPU of @c while @running of its vCPUs run on others.
 */
static inline u64 rank_of(const struct cpu_ctx *c, u32 slot, const struct vm_ctx *vm, s32 running,
			  u64 now)
{
	bool claims = vm_claims(vm, slot == c->vm ? c->turn_start : 0, vnow, now);

	return vm_rank(vm, running, claims, vnow, now);
}

verified_once u64 rank_on(const struct cpu_ctx *c, u32 slot, const struct vm_ctx *vm, s32 running,
			  u64 now)
{
	return c && vm ? rank_of(c, slot, vm, running, now) : 0;
}

/* May @vm, which has @slot, take the pCPU from the vCPU that @c runs? */
static bool vm_takes(const struct cpu_ctx *c, u32 slot, const struct vm_ctx *vm, u64 now)
{
	struct vm_ctx *running = vm_slot(c->vm);

	if (!running || vm == running)
		return false;
	return rank_preempts(rank_on(c, slot, vm, vm->nr_running, now),
			     rank_on(c, c->vm, running, running->nr_running, now),
			     turns_of(running, running->nr_vcpus));
}

/* Does a vCPU run on @cpu that has halted? */
verified_once int polls(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm = c->runs == RUNS_VCPU ? vm_slot(c->vm) : NULL;

	return vm && vm_has_bit(vm->polling, c->vcpu_id);
}

/*
 * May a waking task preempt what @cpu runs? It is a vCPU of the VM in @slot, or else a host task
 * at @vtime.
 */
verified_once int may_preempt(s32 cpu, u32 slot, u64 vtime, u64 now)
{
	struct vm_ctx *vm = vm_slot(slot), *running;
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (c->kicked || c->boost_pid)
		return false;
	if (c->runs == RUNS_HOST)
		return vm ? vm_behind(vm, vnow) && vtime_before(vm->vtime, c->host_vtime)
			  : host_preempts_host(vtime, c->host_vtime, now - c->since);
	if (c->runs != RUNS_VCPU)
		return false;
	/* A visit is short, and a sibling's boost, too. */
	if (vm)
		return (!c->donor || vm_behind(vm, vnow)) && vm_takes(c, slot, vm, now);
	running = vm_slot(c->vm);
	return running && host_goes_first(vtime, running->vtime, vnow);
}

/*
 * @p was taken off @cpu by a task that will run for a moment: it waits for that pCPU, up to its
 * next tick. Else another one of this cache would take it meanwhile, and lose its own that way.
 */
static void keep(const struct task_struct *p, struct task_ctx *t, s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (!c->brief || c->kept || t->queued_vm || (c->donor && c->donor != p->pid))
		return;
	/* It is moved, or has lost this pCPU by its affinity. */
	if (t->last_cpu != cpu || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return;
	t->queued_llc = KEPT_NEAR | (llc_of(cpu) + 1);
	c->kept_vm = t->vm;
	c->kept = p->pid;
}

static inline bool is_kept(const struct task_ctx *t)
{
	return t->queued_llc & KEPT_NEAR;
}

/* Others may have the vCPU that is kept for @cpu. */
verified_once int release(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_struct *p = bpf_task_from_pid(c->kept);
	struct task_ctx *t;

	c->kept = 0;
	if (!p)
		return 0;
	t = task_ctx(p);
	if (t && t->last_cpu == cpu)
		share_near(t, llc_of(cpu), c->kept_vm);
	bpf_task_release(p);
	return 0;
}

static bool runs_whole_gang(s32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	const struct vm_ctx *vm = c->runs == RUNS_VCPU ? vm_slot(c->vm) : NULL;

	return vm && vm_is_whole(vm);
}

/* The VM that asks for the pCPU of @c, once. */
static u32 take_invitation(struct cpu_ctx *c)
{
	u32 slot = c->invited ? __sync_lock_test_and_set(&c->invited, NO_VM) : NO_VM;
	struct vm_ctx *vm = vm_slot(slot);

	if (vm)
		__sync_fetch_and_sub(&vm->nr_invited, 1);
	return slot;
}

static void preempt(s32 cpu)
{
	cpu_ctx(cpu)->kicked = 1;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* @pid, of the VM in @slot, goes on when who is boosted on @c has had its time. */
static void donates(struct cpu_ctx *c, s32 pid, u32 slot)
{
	c->donor = pid;
	c->donor_vm = slot;
}

/*
 * pCPUs looked at for a task that wakes, of those that share the cache of its last one: on a host
 * of hundreds, looking at all of them would take longer than the wake-up, and those of another
 * cache do not look into the queue of a host task.
 */
#define MAX_LOOKS 32

/* With the first that may be preempted so many for one that is better to preempt. */
#define MORE_LOOKS 8

/* What a task that wakes finds on a pCPU, the better the higher. */
enum room {
	ROOM_NONE,
	ROOM_IN_GANG, /* it may preempt what runs there, one of a whole gang */
	ROOM_TAKEN, /* another one that it may preempt */
	ROOM_POLLS, /* a vCPU that has halted: it costs nobody anything */
};

/* The best room that was found, for a vCPU of the VM in @slot, or else a host task at @vtime. */
struct room_found {
	u64 vtime;
	u64 now;
	u32 slot;
	u32 room; /* enum room */
	s32 cpu;
	u32 enough; /* nothing better is looked for */
	u32 more; /* looks, with the first that may be preempted */
};

/* Is there room on @cpu, and better than what was found? True: that will do. */
verified_once int look_for_room(struct task_struct *p __arg_trusted, s32 cpu,
				struct room_found *found)
{
	u32 room = ROOM_NONE;

	if (!found || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return false;
	if (found->enough == ROOM_POLLS && !cpu_ctx(cpu)->kicked && polls(cpu))
		room = ROOM_POLLS;
	else if (found->room < ROOM_TAKEN &&
		 may_preempt(cpu, found->slot, found->vtime, found->now))
		room = runs_whole_gang(cpu) ? ROOM_IN_GANG : ROOM_TAKEN;
	if (room > found->room) {
		found->room = room;
		found->cpu = cpu;
	}
	if (found->room == ROOM_IN_GANG && found->enough == ROOM_TAKEN && !--found->more)
		return true;
	return found->room >= found->enough;
}

/*
 * The pCPU with the best room for @p, which has just woken and found no idle one, at home if
 * possible; negative if there is none.
 */
verified_once s32 find_room(struct task_struct *p __arg_trusted, u32 slot, u64 vtime, u64 now)
{
	s32 home = scx_bpf_task_cpu(p);
	u32 i, looks = nr_near(home) < MAX_LOOKS ? nr_near(home) : MAX_LOOKS;
	struct room_found found = {
		.vtime = vtime,
		.now = now,
		.slot = slot,
		.cpu = -1,
		.enough = count(COUNT_POLLING) ? ROOM_POLLS : ROOM_TAKEN,
		.more = MORE_LOOKS,
	};

	bpf_for(i, 0, looks) {
		if (look_for_room(p, near_cpu(home, i), &found))
			break;
	}
	return found.cpu;
}

/* What runs on @cpu is preempted for @p: what --stats tells of that. */
static void count_preemption(s32 cpu, s32 home, const struct vm_ctx *vm, u32 slot)
{
	const struct cpu_ctx *c = cpu_ctx(cpu), *h = cpu_ctx(home);

	if (vm && h->runs == RUNS_VCPU && h->vm == slot)
		stat_add(STAT_STACKING_AVOIDED, 1);
	if (polls(cpu))
		stat_add(STAT_POLLS_CUT, 1);
	else if (!vm && c->runs == RUNS_VCPU)
		stat_add(STAT_HOST_PREEMPTS, 1);
}

/* Make room for @p, which has just woken, and waits in its queue. */
verified_once int preempt_for(struct task_struct *p __arg_trusted, const struct task_ctx *t,
			      struct vm_ctx *vm, u64 now)
{
	s32 home = scx_bpf_task_cpu(p), best;
	struct cpu_ctx *c = cpu_ctx(home);

	if (!t)
		return 0;
	/* The sibling there had a longer slice, as all had a pCPU. */
	if (vm && c->runs == RUNS_VCPU && c->vm == t->vm && !c->ends_at &&
	    vm_crowded(vm, vm->nr_queued, cpus_for(p)))
		ends_in(home, now, CROWDED_SLICE_NS);
	best = find_room(p, vm ? t->vm : NO_VM, t->vtime, now);
	if (best < 0)
		return 0;
	count_preemption(best, home, vm, t->vm);
	cpu_ctx(best)->brief = !vm;
	preempt(best);
	return 0;
}

/*
 * @p has just woken, and its VM is behind its due: it visits a pCPU, past all queues. What runs
 * there goes on when it sleeps, or at the first tick after its slice.
 */
verified_once int wakes_as_visitor(struct task_struct *p __arg_trusted, struct task_ctx *t,
				   struct vm_ctx *vm, u64 enq_flags, u64 now)
{
	struct cpu_ctx *c;
	s32 cpu;

	if (!t || !vm)
		return false;
	cpu = find_room(p, t->vm, t->vtime, now);
	if (cpu < 0)
		return false;
	c = cpu_ctx(cpu);
	count_preemption(cpu, scx_bpf_task_cpu(p), vm, t->vm);
	stat_add(STAT_VISITS, 1);
	if (c->runs == RUNS_VCPU && !c->donor)
		donates(c, c->pid, c->vm);
	t->boosted = BOOST_VISIT;
	c->brief = 1;
	c->kicked = 1;
	/* It is waited for: whoever leaves is charged. */
	join_queue(p, t, vm, now);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, vm_visit(vm, vnow),
			   enq_flags | SCX_ENQ_PREEMPT);
	return true;
}

/* Does @cpu run a vCPU that gives way to one of @vm, which begins a turn and waits there? */
static bool may_summon(const struct vm_ctx *vm, u32 slot, s32 cpu, u64 now)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);

	return c->runs == RUNS_VCPU && !c->kicked && waits_here(vm, slot, cpu) &&
	       vm_takes(c, slot, vm, now);
}

/*
 * @vm begins a turn and has @want more vCPUs in its queue: take back the pCPUs of VMs whose
 * turn is over too, so that the siblings start together. A turn that still runs is left
 * alone, so nobody pays for the gang, and a pCPU where none of the siblings may run, too.
 */
static void summon_siblings(struct vm_ctx *vm, u32 slot, s32 want, s32 this_cpu, u64 now)
{
	u32 llc, place;
	s32 cpu;

	if (want <= 0 || vm->spread)
		return;
	bpf_for(llc, 0, nr_llcs) {
		if (*waiting_near(llc, slot) <= 0)
			continue;
		bpf_for(place, llc_first[llc & (MAX_LLCS - 1)],
			llc_first[(llc & (MAX_LLCS - 1)) + 1]) {
			cpu = llc_cpus[place & (MAX_CPUS - 1)];
			if (cpu == this_cpu || !may_summon(vm, slot, cpu, now))
				continue;
			preempt(cpu);
			if (--want <= 0)
				return;
		}
	}
}

/* The queue that @p waits in, which last ran on @cpu. */
static u64 queue_of(const struct task_struct *p, const struct task_ctx *t, const struct vm_ctx *vm,
		    s32 cpu)
{
	if (vm)
		return vm_dsq(t->vm);
	return is_bound(p) ? (u64)cpu : llc_dsq(cpu);
}

/* A pCPU looks into the queue where @p waits now: one that is idle, or that it may preempt. */
static void call_for(struct task_struct *p, struct task_ctx *t, struct vm_ctx *vm, u64 now)
{
	s32 idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);

	if (idle >= 0)
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	else
		preempt_for(p, t, vm, now);
}

/*
 * @p is put back, as it has yielded to a sibling, while its VM's turn goes on. A pCPU that looked
 * for a vCPU of the VM in between has found none, and runs another VM's, in a younger turn: it is
 * taken back at once. At the next tick would be up to 4 ms later, during which the gang lacks one,
 * and whoever spins for it yields. Not where all pCPUs but this one run the VM.
 */
static void rejoin_turn(struct task_struct *p, struct task_ctx *t, struct vm_ctx *vm, u64 now)
{
	if (t->wait_for && vm_in_turn(vm, now) && vm->nr_running + 1 < cpus_for(p))
		preempt_for(p, t, vm, now);
}

/*
 * A host task is about to wait: not for long, whatever it weighs. The slice that it gets; who comes
 * sooner than it should gets less.
 */
verified_once u64 limit_lead(const struct task_struct *p __arg_trusted, struct task_ctx *t)
{
	u64 entities = everybody.wants_before >> EPOCH_SHIFT, latest;
	s32 cpu = scx_bpf_task_cpu(p), waiting = host_waiting(cpu, is_bound(p));
	u32 cpus = is_bound(p) ? 1 : nr_online;
	bool limited;

	if (!t)
		return HOST_SLICE_NS;
	/* Thousands that start at once are counted there as they come to run. */
	if (waiting > 0 && entities < waiting)
		entities = waiting;
	latest = vnow + host_lead(entities, cpus);

	limited = vtime_before(latest, t->vtime);
	if (limited)
		t->vtime = latest;
	if (host_is_crowded(entities, cpus))
		return RESCUE_NS;
	return limited ? MIN_RUN_NS : HOST_SLICE_NS;
}

/*
 * The timer's: all tasks whose cgroups have CPU time again go back to their queues, some each time.
 * Those that have none go to the end, so that the next time begins behind them.
 */
static int unpark(void *map, u32 *key, struct park_timer *timer)
{
	u64 now = scx_bpf_now(), release;
	struct task_struct *p;
	struct task_ctx *t;
	struct vm_ctx *vm;
	u32 looked = zero;

	parked_until = 0;
	barrier();
	if (!parked_left) {
		next_release = 0;
		round_parks = *(volatile u64 *)&nr_parks;
		parked_left = scx_bpf_dsq_nr_queued(PARKED_DSQ);
	}
	bpf_for_each(scx_dsq, p, PARKED_DSQ, 0) {
		if (!parked_left || looked++ >= MAX_UNPARKS)
			break;
		parked_left--;
		t = task_ctx(p);
		if (!t)
			continue;
		release = throttled_until(t, now);
		if (release) {
			make_earlier(&next_release, release);
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, PARKED_DSQ, 0);
			continue;
		}
		vm = vm_of(t);
		if (!vm)
			scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, limit_lead(p, t));
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, t->vtime);
		if (!scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p,
					    queue_of(p, t, vm, scx_bpf_task_cpu(p)), 0))
			continue;
		unparked(t, vm, now);
		join_queue(p, t, vm, now);
		/* Another pCPU may have been faster. */
		if (scx_bpf_task_running(p))
			leave_queue(t, now);
		call_for(p, t, vm, now);
	}
	if (parked_left && looked > MAX_UNPARKS) {
		set_timer(now + UNPARK_REST_NS, now);
		return 0;
	}
	/* Some may have gone meanwhile. */
	parked_left = 0;
	release = *(volatile u64 *)&next_release;
	if (!release && round_parks != seen_parks)
		release = now + PARK_AGAIN_NS;
	seen_parks = round_parks;
	if (release)
		set_timer(release, now);
	return 0;
}

static s32 init_park_timer(void)
{
	u32 only = 0;
	struct park_timer *timer = bpf_map_lookup_elem(&park_timers, &only);

	return timer ? init_timer(timer, park_timers, unpark) : -ENOENT;
}

static void enqueue_task(struct task_struct *p, struct task_ctx *t, u64 enq_flags)
{
	struct vm_ctx *vm = vm_now(t);
	u64 now = scx_bpf_now(), release, slice;
	s32 cpu = scx_bpf_task_cpu(p), idle;

	t->boosted = BOOST_NONE;
	/* It waits already, and comes again with another affinity. */
	if (is_kept(t))
		share_near(t, (t->queued_llc & ~KEPT_NEAR) - 1, t->queued_vm);
	refresh_weight(p, t, vm, now);
	/* As above, out of the queue of those without CPU time. */
	if (t->parked_at)
		unparked(t, vm, now);
	if (enq_flags & SCX_ENQ_WAKEUP)
		wake(t, vm, now);
	release = throttled_until(t, now);
	if (release) {
		stay(t);
		park(p, t, release, now, enq_flags);
		return;
	}
	if (t->leaves_for && bpf_cpumask_test_cpu(t->leaves_for - 1, p->cpus_ptr)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | (t->leaves_for - 1), idle_slice(vm, now),
				   enq_flags);
		t->leaves_for = 0;
		stat_add(STAT_CORES_LEFT, 1);
		return;
	}
	stay(t);

	/* Bound kernel threads are part of the kernel's own machinery: before any vCPU. */
	if ((p->flags & PF_KTHREAD) && is_bound(p)) {
		if (cpu_ctx(cpu)->runs == RUNS_VCPU) {
			cpu_ctx(cpu)->brief = 1;
			enq_flags |= SCX_ENQ_PREEMPT;
		}
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, HOST_SLICE_NS, enq_flags);
		return;
	}

	/* select_cpu() has looked for an idle pCPU already, where it ran. */
	if (!__COMPAT_is_enq_cpu_selected(enq_flags)) {
		idle = take_idle_cpu_for(p, cpu);
		if (idle >= 0) {
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | idle, idle_slice(vm, now),
					   enq_flags);
			return;
		}
	}

	if ((enq_flags & SCX_ENQ_WAKEUP) && vm && vm_behind(vm, vnow) &&
	    wakes_as_visitor(p, t, vm, enq_flags, now))
		return;

	slice = vm ? HOST_SLICE_NS : limit_lead(p, t);
	if (vm && !(enq_flags & SCX_ENQ_WAKEUP))
		keep(p, t, cpu);
	join_queue(p, t, vm, now);
	scx_bpf_dsq_insert_vtime(p, queue_of(p, t, vm, cpu), slice, t->vtime, enq_flags);

	if (!(enq_flags & SCX_ENQ_WAKEUP)) {
		/* This pCPU goes idle, and would not look again. */
		if (enq_flags & SCX_ENQ_LAST)
			scx_bpf_kick_cpu(cpu, 0);
		else if (vm)
			rejoin_turn(p, t, vm, now);
		return;
	}
	/* One that went idle after select_cpu() looked has not seen the queue. */
	call_for(p, t, vm, now);
}

#endif /* BATON_PLACE_BPF_H */
