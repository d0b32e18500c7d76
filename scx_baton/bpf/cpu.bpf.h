/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a pCPU runs, and what its next dispatch has to do.
 */
#ifndef BATON_CPU_BPF_H
#define BATON_CPU_BPF_H

#include "account.bpf.h"
#include "polling.bpf.h"

enum cpu_runs { RUNS_NOTHING, RUNS_HOST, RUNS_VCPU };

/* Who preempts what runs on a pCPU, if that will run for a moment. */
enum brief {
	BRIEF_NONE,
	BRIEF_VISIT,
	BRIEF_PART, /* a vCPU that may run there alone, in its part (shares_part()) */
	BRIEF_KERNEL, /* a bound thread of the kernel, while no vCPU waits anywhere */
};

/*
 * What a pCPU runs now, and what the next dispatch there must do. What others look at is on one
 * cache line.
 */
struct cpu_ctx {
	u64 since; /* ns; start of what runs: of a vCPU, or of siblings one after the other in a
		      turn */
	u64 host_vtime; /* of the host task that runs */
	u64 turn_start; /* of @vm, when it was started here */
	u16 runs; /* enum cpu_runs */
	u16 runs_bound; /* it may run on no other pCPU */
	u32 vm; /* slot, while it runs a vCPU */
	s32 pid; /* the same */
	u32 kicked; /* preemption is on its way, do not ask for another */
	u32 brief; /* enum brief */
	s32 boost_pid; /* vCPU to run next, by a directed yield; 0: none */
	s32 resume_pid; /* the vCPU that goes on when the boosted one has had its time; 0: none */
	s32 kept; /* vCPU that goes on here after one that runs for a moment; 0: none */
	u32 kept_vm;
	/* the next line */
	u64 ends_at; /* ns; end of the slice of a vCPU for which siblings wait; 0: none do */
	u64 boost_slice; /* ns left of the spinner's slice */
	u64 donates_until; /* ns; end of the slice that directed yields hand on here */
	u64 mixed_at; /* ns; when another VM's vCPU than before began to run here */
	u32 boost_vm;
	u32 resume_vm;
	s32 resuming; /* that vCPU, on its way */
	u32 invited; /* the VM that asks for this pCPU, as its gang lacks one; or NO_VM */
	u32 far; /* the LLC that the last pick looked at: its distance behind this one */
	u32 rescued; /* what runs is not to run for long */
	u32 starved; /* slot from which the next pick looks for a starved vCPU */
	u32 idle_look; /* ns; after so long it looks again for vCPUs near other caches */
	/* the last line */
	u64 kept_until; /* ns; until then no tick gives @kept to others */
	u32 bound; /* slot of the VM that was asked last for a vCPU that waits for this pCPU
		      alone */
	u32 host_weight; /* of the host task that runs, or ran last */
	u64 vm_ran_at; /* ns; when a vCPU began to run here last */
	u32 goes_on; /* a vCPU, as soon as what has taken the pCPU from it sleeps */
	u64 back_at; /* ns; when who was given the pCPU for an IPI gives it back; 0: nobody was */
} __attribute__((aligned(64)));

static struct cpu_ctx cpus[MAX_CPUS];

/* The next hyper-thread of the core; where there is none, the pCPU itself. */
const volatile u16 cpu_sibling[MAX_CPUS];

static inline struct cpu_ctx *cpu_ctx(s32 cpu)
{
	return &cpus[cpu & (MAX_CPUS - 1)];
}

static inline bool runs_vm(s32 cpu, u32 slot)
{
	return cpu_ctx(cpu)->runs == RUNS_VCPU && cpu_ctx(cpu)->vm == slot;
}

/*
 * How far those have come that a host task bound to @cpu competes with: one that runs there can be
 * behind vnow by more than a sleeper may keep, which would always come after it.
 */
static u64 competing_level(const struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	u64 level = level_for(p, t, cpu, now), waiting = bound_level(cpu, level, level);
	u64 running = c->host_vtime;

	return c->runs == RUNS_HOST && vtime_before(running, waiting) ? running : waiting;
}

/*
 * Does a task run on @cpu that is no vCPU of the VM in @slot, while vCPUs wait that could run
 * nowhere else? Where most of the VM's vCPUs wait, a turn of all gets more done than visits, which
 * would use its share.
 */
static bool shares_part(s32 cpu, u32 slot)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	const struct vm_ctx *vm = vm_slot(slot);

	return bound_queue(cpu)->nr > 0 && vm && vm->nr_running >= vm->nr_queued &&
	       (c->runs == RUNS_HOST || (c->runs == RUNS_VCPU && c->vm != slot));
}

static u64 part_needs(const struct vm_ctx *vm, s32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	const struct vm_ctx *running = c->runs == RUNS_VCPU ? vm_slot(c->vm) : NULL;
	u32 against = running ? running->weight : c->host_weight;
	s32 nr = running ? running->nr_running : 1;

	return visit_needs(vm, against, nr, host_waiting(cpu, true), bound_queue(cpu)->nr);
}

/* In how many ns may one of @vm, which may run on @cpu alone, visit it? */
static u64 part_in(const struct vm_ctx *vm, s32 cpu, u64 now)
{
	return elapsed(now, bound_queue(cpu)->visits_from + part_needs(vm, cpu));
}

/* It does. What runs there goes on afterwards. */
static void spend_part(const struct vm_ctx *vm, s32 cpu, u64 now)
{
	struct bound_queue *b = bound_queue(cpu);
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 needs = part_needs(vm, cpu), from = b->visits_from;

	/* Who has waited for long has one visit, not many. */
	if (vtime_before(from, now - needs))
		from = now - needs;
	from += needs + BOOST_IPI_NS;
	b->visits_from = vtime_before(now + TURN_NS, from) ? now + TURN_NS : from;
	c->brief = BRIEF_PART;
}

/* It sleeps again: what it has not used of its visit, it keeps. Not more than one: see above. */
static void spare_part(const struct vm_ctx *vm, s32 cpu, u64 now)
{
	u64 visit = part_needs(vm, cpu) + BOOST_IPI_NS;

	bound_queue(cpu)->visits_from -= visit / BOOST_IPI_NS * elapsed(now, cpu_ctx(cpu)->back_at);
}

/* The slice of what runs on @cpu ends in @ns: siblings wait for that, and a tick may be four times
 * as long. */
static void ends_in(s32 cpu, u64 now, u64 ns)
{
	cpu_ctx(cpu)->ends_at = now + ns;
	look_soon(cpu, ns);
}

/* Who has been given @cpu is to take an IPI there, and gives it back then. */
static void gives_back(s32 cpu, u64 now)
{
	cpu_ctx(cpu)->back_at = now + BOOST_IPI_NS;
	look_soon(cpu, BOOST_IPI_NS);
}

/* A vCPU of @vm runs on @cpu from @now on, for @slice: if that is one of the short ones, a timer
 * ends it. */
static void runs_until(const struct task_struct *p, const struct vm_ctx *vm, s32 cpu, u64 slice,
		       u64 now)
{
	cpu_ctx(cpu)->ends_at = 0;
	if (slice <= CROWDED_MOST_NS && vm_crowded(vm, vm->nr_queued, cpus_for(p, vm)))
		ends_in(cpu, now, slice);
}

/* Does a vCPU run on @cpu that has halted? */
verified_once int polls(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct vm_ctx *vm = c->runs == RUNS_VCPU ? vm_slot(c->vm) : NULL;

	return vm && halts_followed() && vm_has_bit(vm->polling, runs_on(cpu)->vcpu);
}

/* May what runs on @cpu be asked to lend it? A vCPU of the VM in @slot, or anything if @any. */
static bool lends(s32 cpu, u32 slot, bool any)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	return !c->kicked && !c->boost_pid && !c->resume_pid && c->runs != RUNS_NOTHING &&
	       (any || runs_vm(cpu, slot));
}

static bool runs_whole_gang(s32 cpu)
{
	const struct cpu_ctx *c = cpu_ctx(cpu);
	const struct vm_ctx *vm = c->runs == RUNS_VCPU ? vm_slot(c->vm) : NULL;

	return vm && vm_is_whole(vm);
}

/*
 * @p was taken off @cpu by a task that will run for a moment: it waits for that pCPU, up to the
 * first tick after @kept_until. Else another one of this cache would take it meanwhile, and lose
 * its own that way.
 */
static void keep(const struct task_struct *p, struct task_ctx *t, s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (!c->brief || c->kept || t->queued_vm || (c->resume_pid && c->resume_pid != p->pid))
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
static void resumes_later(struct cpu_ctx *c, s32 pid, u32 slot)
{
	c->resume_pid = pid;
	c->resume_vm = slot;
}

/* Is the time @at, if there is one, over? Else @in is not later than that, in ns. */
static bool is_over(u64 at, u64 now, u64 *in)
{
	if (!at || !vtime_before(now, at))
		return at;
	if (at - now < *in)
		*in = at - now;
	return false;
}

/*
 * The boost of a vCPU that was to take an interrupt is over, or the slice of one for which its
 * siblings wait, or a vCPU polls while others wait, not a thread of the kernel that has preempted
 * it; or a task ran ahead of its quota; or the pCPU is idle, and vCPUs wait near other caches.
 */
static int look(void *map, int *key, struct look_timer *at)
{
	struct cpu_ctx *c = cpu_ctx(at->cpu);
	u64 now = scx_bpf_now(), ends_in = ~0ULL;
	bool ends = is_over(c->ends_at, now, &ends_in);
	bool over = is_over(c->back_at, now, &ends_in) || ends;

	if (c->rescued || (c->runs == RUNS_VCPU && (over || polls(at->cpu))))
		scx_bpf_kick_cpu(at->cpu, SCX_KICK_PREEMPT);
	else if (c->idle_look && count(COUNT_WAITING))
		scx_bpf_kick_cpu(at->cpu, SCX_KICK_IDLE);
	if (ends_in != ~0ULL)
		look_soon(at->cpu, ends_in);
	return 0;
}

static s32 init_look_timer(s32 cpu)
{
	struct look_timer *at = bpf_map_lookup_elem(&look_timers, &cpu);

	if (!at)
		return -ENOENT;
	at->cpu = cpu;
	return init_timer(at, look_timers, look);
}

#endif /* BATON_CPU_BPF_H */
