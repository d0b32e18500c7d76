/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The rules of the scheduler that need no map, no kfunc and no clock, as pure functions over plain
 * records: what they need is passed in, so that the kernel, the unit tests and the simulator call
 * the same code. Whom a yield goes to, who lends a pCPU, and which pCPU is preempted is looked up
 * in yield.bpf.h, lend.bpf.h and room.bpf.h.
 *
 * Virtual time: each VM and each host task has a vtime, the CPU time it used scaled by
 * its weight, on one common axis; who is furthest behind goes first. A VM is one
 * entity however many vCPUs it has.
 *
 * Due: vnow is the least vtime of those that wait, and can have what they are due. A VM below it
 * has used less than its share of late, as one does that sleeps; one that waits for its turn is not
 * below it.
 *
 * Turn: when a VM starts to run, all its vCPUs share one window of TURN_NS. Those that
 * are dispatched inside it end with it, so that siblings which started apart stop
 * together and start together the next time. Within its turn a VM gets back any pCPU
 * that was lent to another VM meanwhile; it takes none from a turn that is older. This
 * is Ousterhout's co-scheduling with the fragments filled (1982), relaxed as in vSphere.
 *
 * The order, for whoever wakes, ends a slice or finds a pCPU: VMs that are behind their due, the
 * one that would be so for longest first; then VMs in their turn, the oldest turn first; then by
 * vtime. See vm_rank().
 *
 * Spread: turns are for vCPUs that wait for each other running, whether they spin in user
 * mode or for a lock of their kernel. Where they wait by halting, the pCPU goes to somebody
 * else anyway; then they do more when they do not run together, for two that run at once
 * contend for locks, and interrupt each other (a preempted vCPU's TLB is flushed without
 * an interrupt).
 * A spread VM's turn is that of one vCPU alone, and it goes after others while it runs.
 */
#ifndef BATON_POLICY_H
#define BATON_POLICY_H

#include "intf.h"

/*
 * One turn. Long against the skew at its two ends (a tick is 1 to 4 ms), during which
 * siblings spin in vain; short against what a person notices with a few VMs waiting.
 */
#define TURN_NS (12ULL * 1000 * 1000)

/* A turn with less than half a tick (4 ms at HZ=250) to go is over: no tick cuts it finer. */
#define TURN_SLACK_NS (2ULL * 1000 * 1000)

/* How long a vCPU may take from being dispatched to running: it counts as running then. */
#define START_NS (200ULL * 1000)

/* What a host task runs before another one of equal rights: EEVDF's base slice at 8 CPUs. */
#define HOST_SLICE_NS (3ULL * 1000 * 1000)

/*
 * What a sleeper may keep of the time it did not use: it goes first, but not for long. With three
 * quarters of a turn 47 of 400 random mixtures break a bound, with half of one 57: who has used its
 * share waits for a turn, and lost what it could not keep of that. With a turn a thread that sleeps
 * beside four VMs does 0.08 of its work (mixture 34 with more host threads).
 */
#define VM_CREDIT_NS (TURN_NS * 3 / 4)
#define HOST_CREDIT_NS VM_CREDIT_NS

/* A donated slice shorter than this is rounded up: a lock holder needs time to enter. */
#define BOOST_MIN_NS (1ULL * 1000 * 1000)

/*
 * What a vCPU gets to take an interrupt that somebody waits for: a few microseconds on hardware,
 * about 120 in emulation (baton bench: switch, entry, handler).
 */
#define BOOST_IPI_NS (250ULL * 1000)

/*
 * A PAUSE exit so soon after the one before belongs to the same spin: KVM's window grows from
 * 4,096 cycles to some milliseconds at most.
 */
#define SAME_SPIN_NS (1ULL * 1000 * 1000)

/* A spinner that exits again within so much CPU time has gained nothing by its yield. */
#define JUDGE_NS (200ULL * 1000)

/*
 * A vCPU that was taken off its pCPU by something short runs there again within so much. No tick
 * gives it to others, and no yield takes it to another cache, before: a move between caches costs
 * 10 us to 400 us (sim/machines/rome-256.toml), and a thread of the kernel runs for 50 us.
 */
#define BRIEF_NS (200ULL * 1000)

/* A yielder is kept out at most so long, should its target never come to run. */
#define KEEP_OUT_NS (1ULL * 1000 * 1000)

/*
 * A thread that has run for so long outside of its guest has no part in its VM any more: a vCPU is
 * there again within milliseconds, whatever it emulates.
 */
#define OUTSIDE_NS (1000ULL * 1000 * 1000)

/* A vCPU that has waited so long goes before any VM's turn, on a host with little to do. */
#define STARVED_NS (100ULL * 1000 * 1000)

/* vCPUs of one VM this close in vtime are equals: the pCPU takes the one it ran last. */
#define CACHE_WINDOW_NS (TURN_NS / 4)

/* And this close: it takes one that ran near it. */
#define NEAR_WINDOW_NS (4 * TURN_NS)

/*
 * A vCPU that waits near another last-level cache leaves that once it has waited so long, if its VM
 * is so far behind those of this one, or a pCPU here is idle. A visitor is gone sooner than that;
 * EEVDF holds what is in a cache to be worth half of it (sysctl_sched_migration_cost).
 */
#define FAR_WAIT_NS (1ULL * 1000 * 1000)
#define FAR_BEHIND_NS (TURN_NS / 2)

/* A pCPU that is idle looks for those after 1 ms, 2 ms and so on; at least so often. */
#define IDLE_LOOK_MAX_NS (64ULL * 1000 * 1000)

/* A host task of another last-level cache goes first if it is so far behind those of this one. */
#define HOST_FAR_NS TURN_NS

/*
 * A VM is spread when more than half of its CPU time is used by vCPUs within SPREAD_BELOW_NS of
 * their own since they halted, and no longer when less than half within SPREAD_ABOVE_NS: where
 * they halt several times, or hardly once, in what would be a turn. One that halts all the time and
 * uses little, as for a device, is not what the others wait for.
 */
#define SPREAD_BELOW_NS (4ULL * 1000 * 1000)
#define SPREAD_ABOVE_NS (16ULL * 1000 * 1000)

/*
 * Nor is it spread when it has a PAUSE exit more often than once in so much CPU time, or before it
 * is spread in twice as much: its vCPUs wait for each other running as well, and an exit with its
 * yield costs 1 to 2 us. A file server of 16 vCPUs that is spread has one in 13 us, and one in 55
 * us that is not (simulated); a Linux guest that shoots down TLBs one in 900 us, and 330 us (exact
 * host): it is better off spread.
 */
#define GANG_SPINS_NS (100ULL * 1000)

/* Same as time_before64(): right across the wrap of the clock. */
static inline bool vtime_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* ns from @from until @to; 0 if that is not later, as the clocks of two pCPUs differ a little. */
static inline u64 elapsed(u64 from, u64 to)
{
	return vtime_before(from, to) ? to - from : 0;
}

static inline u64 weighted(u64 ns, u32 weight)
{
	return ns * WEIGHT_AVERAGE / (weight ? weight : 1);
}

/* The whole CPU, as a share of it that is divided up along the tree of cgroups. */
#define TREE_ALL (1ULL << 40)

/* What a child of @weight gets of @share, where all children that want the CPU weigh @all. */
static inline u64 tree_share(u64 share, u32 weight, u64 all)
{
	if (all < weight)
		all = weight;
	return (share >> 16) * weight / (all ? all : 1) << 16;
}

/* The weight of one with @share of all: WEIGHT_AVERAGE if that is what each of @n / 256 would get.
 */
static inline u32 tree_weight(u64 share, u64 n)
{
	u64 weight = (share >> 14) * (n > 256 ? n : 256) >> 20;

	return weight < 1 ? 1 : weight > 1 << 28 ? 1 << 28 : weight;
}

/*
 * Of a vCPU that begins to wait, where @first is that of the sibling furthest behind: one that had
 * a pCPU to itself, where they had not, or woke beside such a one, would wait until all had had as
 * much.
 */
static inline u64 vcpu_limit(u64 vtime, u64 first)
{
	return vtime_before(first + 4 * TURN_NS, vtime) ? first + 4 * TURN_NS : vtime;
}

/* What a sleeper starts with. */
static inline u64 wake_vtime(u64 vtime, u64 vnow, u64 credit)
{
	return vtime_before(vtime, vnow - credit) ? vnow - credit : vtime;
}

/*
 * Keep @vtime from @credit behind @vnow to @lead ahead of it. Without the lower bound an entity
 * that could not use its share (fewer vCPUs than pCPUs, affinity) would hoard time; without the
 * upper one a VM that ran alone for an hour would pay for it when others come.
 */
static inline u64 vtime_clamp(u64 vtime, u64 vnow, u64 credit, u64 lead)
{
	vtime = wake_vtime(vtime, vnow, credit);
	return vtime_before(vnow + lead, vtime) ? vnow + lead : vtime;
}

/*
 * What @vm is due, in 16ths of a pCPU, of @n / 256 entities that want @cpus pCPUs: no more than the
 * @allowed pCPUs on which it may run at once.
 */
static inline u32 vm_share(const struct vm_ctx *vm, u64 n, u32 cpus, u32 allowed)
{
	u64 share = 4096ULL * cpus * vm->weight / WEIGHT_AVERAGE / (n > 256 ? n : 256);

	return share < 1 ? 1 : share < 16ULL * allowed ? share : 16 * allowed;
}

/*
 * What @vtime costs @vm: less, where it wants fewer pCPUs than its @share. One with few vCPUs would
 * pay as much for its only pCPU as another for one of many.
 */
static inline u64 vm_price(const struct vm_ctx *vm, u64 vtime, u32 share)
{
	s32 nr = vm->nr_running + vm->nr_queued;
	u64 wants = 16ULL * (nr > 0 ? nr : 1);

	return wants < share ? vtime * wants / share : vtime;
}

/* May @vm run on some of @cpus pCPUs alone? */
static inline bool vm_is_confined(const struct vm_ctx *vm, u32 cpus)
{
	return vm->allowed && vm->allowed < cpus;
}

/*
 * Does @vm, which may run on some of @cpus, lead others there? It wants more than it has, as one
 * of its vCPUs has waited that did not sleep: how far one has come that uses less than its share
 * tells nothing of the others. Nor does that of one with vCPUs bound to different pCPUs.
 */
static inline bool vm_may_lead(const struct vm_ctx *vm, u32 cpus, u64 now)
{
	return vm_is_confined(vm, cpus) && vm->limited_at &&
	       vtime_before(now, vm->limited_at + 4 * TURN_NS) &&
	       (vm->share || vm->stacked || vm->nr_vcpus == 1);
}

/*
 * By how much one comes along that is so far @behind vnow, where the VM that leads it is @moved on
 * by its bound, at @credit. One that has pCPUs elsewhere is hardly behind, and nothing holds it
 * back there.
 */
static inline u64 led_by(u64 moved, u64 behind, u64 credit)
{
	return 2 * behind < credit ? moved * (512 * behind / credit) / 256 : moved;
}

/*
 * How many 256ths @vm, which wanted @wanted ns of CPU time and had @alone of them where nobody else
 * wanted any, pays more for what others want. What it has alone costs nothing, and is a part of its
 * share: so it pays for that.
 */
static inline u32 bound_extra(const struct vm_ctx *vm, u64 wanted, u64 alone)
{
	u64 most = vm->nr_vcpus > 1 ? 256ULL * (vm->nr_vcpus - 1) : 0;
	u64 extra = wanted > alone ? 256 * alone / (wanted - alone) : most;

	return extra < most ? extra : most;
}

/* CPU time of a turn of all its vCPUs. */
static inline u64 vm_turn(const struct vm_ctx *vm)
{
	return TURN_NS * (vm->nr_vcpus > 0 ? vm->nr_vcpus : 1);
}

/* A VM uses up to a turn on each of its vCPUs at once; four such turns are its bound. */
static inline u64 vm_lead(const struct vm_ctx *vm)
{
	return weighted(4 * vm_turn(vm), vm->weight);
}

/*
 * What one keeps that runs, on some of its vCPUs, and cannot use its share: half a turn for each.
 * With three quarters for each a VM of 4 that computes beside one of 8, on 8 pCPUs, has 3.61 of the
 * 4 that it is due instead of 3.89. But two turns at least, one with one vCPU: vnow stands while
 * two gangs have a turn each, and comes on by both at once. With half of that a VM of 2 that
 * computes beside two of 8 with mutexes has 1.46 pCPUs of 8 instead of 1.94 (mixture 9).
 */
static inline u64 vm_credit(const struct vm_ctx *vm)
{
	u64 least = TURN_NS * (vm->nr_vcpus < 2 ? 1 : 2), credit = vm_turn(vm) / 2;

	return weighted(credit < least ? least : credit, vm->weight);
}

/* A host task that has had more than its share is this far ahead of the others at most. */
static inline u64 host_lag(u32 weight)
{
	return weighted(TURN_NS, weight);
}

/*
 * sched_ext's watchdog ends a scheduler when a task has waited for 30 s (timeout_ms, the most that
 * the kernel allows). Nobody is to wait for more than a third of that, whatever it weighs: where
 * thousands start at once it can be twice as long, until it is known how many they are.
 */
#define MAX_WAIT_NS (10ULL * 1000 * 1000 * 1000)

/* What a task gets that runs for that reason alone. A timer ends it: a tick may be 4 ms long. */
#define RESCUE_NS (200ULL * 1000)

/*
 * For how long a host task waits at most, roughly, whatever it weighs and has used, where @entities
 * want one of @cpus: one of nice 19 that ran 48 ms on an idle host was 3.2 s ahead of others. With
 * more than five on a CPU it is longer, so that 4 ms for each, a tick, are no more than 2 % of the
 * host; with more than fifty they are a crowd. A tenant who starts ten thousand threads would take
 * the whole host, else.
 */
#define HOST_WAIT_NS (1000ULL * 1000 * 1000)
#define HOST_WAIT_MORE_NS (200ULL * 1000 * 1000)

static inline bool host_is_crowded(u64 entities, u32 cpus)
{
	return entities * HOST_WAIT_MORE_NS > cpus * MAX_WAIT_NS;
}

/*
 * What each task of a crowd runs at a time. As none waits for longer than MAX_WAIT_NS, whatever it
 * weighs, all together take this much in that time: a 128th of the host where 390 to 1,560 want a
 * CPU. Not below 50 us, of which two switches are a tenth.
 */
#define CROWD_SLICE_MIN_NS (50ULL * 1000)

static inline u64 crowd_slice(u64 entities, u32 cpus)
{
	u64 slice = MAX_WAIT_NS / 128 * cpus / entities;

	if (slice > RESCUE_NS)
		return RESCUE_NS;
	return slice < CROWD_SLICE_MIN_NS ? CROWD_SLICE_MIN_NS : slice;
}

/* How far ahead of the others it may be, in virtual time. */
static inline u64 host_lead(u64 entities, u32 cpus)
{
	if (entities <= cpus)
		return HOST_WAIT_NS;
	if (host_is_crowded(entities, cpus))
		return MAX_WAIT_NS * cpus / entities;
	return entities * HOST_WAIT_MORE_NS < cpus * HOST_WAIT_NS ? HOST_WAIT_NS * cpus / entities
								  : HOST_WAIT_MORE_NS;
}

/*
 * The virtual time of a host task at @vtime that has run for @ran, weighted, while @vnow grew by
 * @grown (0: it is not bound to a pCPU). A bound one has had all that it can have: it is owed no
 * more than before, however fast others come on, elsewhere. It would be behind for ever, and keep
 * from that pCPU whoever is bound there, too.
 * Two turns behind, as a VM (vm_credit()): with one a thread that computes beside those two gangs
 * has 0.80 of a pCPU instead of 0.97.
 */
static inline u64 host_charge(u64 vtime, u64 ran, u64 level, u64 vnow, u64 grown, u64 lag)
{
	u64 least = vtime_before(level, vtime + grown) ? level : vtime + grown;

	vtime += ran;
	if ((s64)grown > 0 && vtime_before(vtime, least))
		vtime = least;
	return vtime_clamp(vtime, vnow, vnow - level + 2 * lag, lag);
}

/*
 * What a VM or a host task starts with that has slept for @slept, in which it could have used so
 * much on each of @cpus. It is not charged for more than that: vnow comes on by a VM's turn at
 * once, and whoever sleeps for a moment then would lose what it was owed for that turn. After
 * SLEPT_LONG_NS it has no such claim.
 */
#define SLEPT_LONG_NS (1000ULL * 1000 * 1000)
static inline u64 slept_vtime(u64 vtime, u64 vnow, u64 credit, u64 slept, s32 cpus, u32 weight)
{
	u64 woken = wake_vtime(vtime, vnow, credit), most;

	if (slept > SLEPT_LONG_NS)
		return woken;
	most = vtime + weighted(slept * (cpus > 0 ? cpus : 1), weight);
	return vtime_before(most, woken) ? most : woken;
}

static inline bool vm_in_turn(const struct vm_ctx *vm, u64 now)
{
	if (vm->spread)
		return false;
	if (vm->nr_running <= 0 && !vtime_before(now, vm->turn_start + START_NS))
		return false;
	return vtime_before(now + TURN_SLACK_NS, vm->turn_start + TURN_NS);
}

/* Does a vCPU of @vm halt often that has run for @ran ns since it did? */
static inline bool vcpu_halts(const struct vm_ctx *vm, u64 ran)
{
	return ran < (vm->spread ? SPREAD_ABOVE_NS : SPREAD_BELOW_NS);
}

/*
 * Should @vm be spread, which ran for @ran ns, @halting of them on vCPUs that halt often, and had
 * @spins PAUSE exits in them?
 */
static inline bool vm_spreads(const struct vm_ctx *vm, u64 ran, u64 halting, u64 spins)
{
	return 2 * halting > ran && ran > spins * (vm->spread ? GANG_SPINS_NS : 2 * GANG_SPINS_NS);
}

/*
 * Do several vCPUs of @vm run, and all that want to? Such a gang loses more by an interruption of
 * one of them than one that lacks a vCPU already: those that wait for that one get nothing done.
 */
static inline bool vm_is_whole(const struct vm_ctx *vm)
{
	return vm->nr_running > 1 && vm->nr_queued <= 0 && !vm->spread;
}

/* Until when a vCPU of @vm may run that starts now: to the end of the VM's turn, or a turn. */
static inline u64 vm_turn_end(const struct vm_ctx *vm, u64 now)
{
	return (vm_in_turn(vm, now) ? vm->turn_start : now) + TURN_NS;
}

/*
 * What a vCPU runs at a time where more of its VM want to run than can at once. Whoever spins in
 * user mode, or without PAUSE, does not exit: what it waits for may be in the queue, and gets
 * to run only by the end of slices. The switches cost such a VM 0.3 % (simulated). Where spins
 * exit, more often than once in EXITS_BELOW_NS of CPU time, yields see to that: KVM's window for a
 * spin begins with 4,096 cycles and doubles, so that the first millisecond of one has ten.
 */
#define CROWDED_SLICE_NS (1ULL * 1000 * 1000)
#define EXITS_BELOW_NS (4ULL * 1000 * 1000)
#define EXITS_ABOVE_NS (16ULL * 1000 * 1000)

/*
 * Does a vCPU of @vm, which ran for @ran ns, wait all the time while the others run? It has fewer
 * pCPUs than it wants then, not for a moment only: @costop ns is what all have waited so.
 */
static inline bool vm_torn(const struct vm_ctx *vm, u64 ran, u64 costop)
{
	u64 times = vm->nr_vcpus > 1 ? vm->nr_vcpus : 1;

	return ran < (vm->torn ? 2 : 1) * times * costop;
}

/*
 * Do vCPUs of @vm, @waiting of them, wait for siblings' slices to end? More want to run than can on
 * @cpus, or than did of late, and they would hardly yield to each other, nor halt.
 */
static inline bool vm_crowded(const struct vm_ctx *vm, s32 waiting, s32 cpus)
{
	return waiting > 0 && !vm->exits && !vm->spread &&
	       (vm->torn || vm->nr_running + vm->nr_queued > cpus);
}

/* Do the spins of @vm, which ran for @ran ns, end in PAUSE exits? It had @spins of them. */
static inline bool vm_spins_exit(const struct vm_ctx *vm, u64 ran, u64 spins)
{
	return ran < spins * (vm->exits ? EXITS_ABOVE_NS : EXITS_BELOW_NS);
}

/*
 * The short slice that begins on @cpu. Those of several pCPUs end one after the other: where they
 * end at once, who waits begins to run once in a slice, on all of them (barriers of 10 vCPUs on 8
 * pCPUs: half of the rounds, simulated). Multiples of the golden ratio spread any number of pCPUs
 * over the slice. One that would be shorter than a sixteenth goes on to the next end.
 */
#define CROWDED_LEAST_NS (CROWDED_SLICE_NS / 16)
#define CROWDED_MOST_NS (CROWDED_SLICE_NS + CROWDED_LEAST_NS)
static inline u64 crowded_slice(u32 cpu, u64 now)
{
	u64 phase = cpu * (CROWDED_SLICE_NS * 618 / 1000);
	u64 slice = CROWDED_SLICE_NS - (now + phase) % CROWDED_SLICE_NS;

	return slice < CROWDED_LEAST_NS ? slice + CROWDED_SLICE_NS : slice;
}

/* How long a vCPU of @vm may run that starts on @cpu now. */
static inline u64 vm_slice(const struct vm_ctx *vm, bool crowded, u32 cpu, u64 now)
{
	u64 slice = vm_turn_end(vm, now) - now;

	return crowded && slice > CROWDED_MOST_NS ? crowded_slice(cpu, now) : slice;
}

/* A vCPU of @vm starts to run: does that begin a turn? Each one of a spread VM begins its own. */
static inline bool vm_join_turn(struct vm_ctx *vm, u64 now)
{
	if (vm_in_turn(vm, now))
		return false;
	vm->turn_start = now;
	vm->turn_ganged = 0;
	return true;
}

/* A turn of each of @running vCPUs of @vm, in virtual time. */
static inline u64 turns_of(const struct vm_ctx *vm, s32 running)
{
	return running > 0 ? weighted(TURN_NS * running, vm->weight) : 0;
}

/*
 * Does @vm's turn count on a pCPU? Not where the VM ran until now, in a turn before this one, which
 * began at @ran_turn (0: where another VM ran): it would keep the pCPU for ever from one that may
 * run nowhere else, by beginning its turns on others. Nor once it is more than a turn of all its
 * vCPUs ahead of who waits: a VM whose turn goes on elsewhere would keep it from a vCPU bound
 * there.
 */
static inline bool vm_claims(const struct vm_ctx *vm, u64 ran_turn, u64 vnow, u64 now)
{
	return vm_in_turn(vm, now) && (!ran_turn || ran_turn == vm->turn_start) &&
	       !vtime_before(vnow + turns_of(vm, vm->nr_vcpus), vm->vtime);
}

/* Is @vm behind its due? */
static inline bool vm_behind(const struct vm_ctx *vm, u64 vnow)
{
	return vtime_before(vm->vtime, vnow);
}

/*
 * How long each vCPU of @vm that wants to run would do so until the VM, which is behind its due, is
 * not, roughly, and times its share: n of them use n times as much, and what a VM uses that wants
 * less than its share costs it n times as much (vm_price()). VMs that cannot use their share, as
 * where they are pinned, all are as far behind as they may be (vm_credit()): the one with more
 * vCPUs would go before the others.
 */
static inline u64 vcpu_behind(const struct vm_ctx *vm, const struct vm_ctx *like, u64 vnow)
{
	s32 wants = like->nr_running + like->nr_queued;
	u64 nr = wants > 1 ? wants : 1, times;

	times = like->share && like->share < 16 * nr ? like->share : 16 * nr;
	return 16 * (vnow - vm->vtime) / (nr * times);
}

/*
 * The rank of @vm for a pCPU, while @running of its vCPUs run on others and its turn @claims that
 * pCPU, or does not: the lower one goes first. The class is in the upper bits; below it is where
 * in its class the VM stands, relative to @vnow or @now.
 */
enum vm_class { CLASS_BEHIND, CLASS_TURN, CLASS_OTHER };
#define CLASS_SHIFT 62

static inline u64 vm_rank(const struct vm_ctx *vm, const struct vm_ctx *like, s32 running,
			  bool claims, u64 vnow, u64 now)
{
	u64 class = vm_behind(vm, vnow) ? CLASS_BEHIND : claims ? CLASS_TURN : CLASS_OTHER;
	u64 at = class == CLASS_BEHIND ? -vcpu_behind(vm, like, vnow)
		 : class == CLASS_TURN ? vm->turn_start - now
				       : vm->vtime - vnow;

	/*
	 * A spread VM stands where it will be once those that run have used their slices, so that
	 * it gets another pCPU only when it is that far behind.
	 */
	if (class == CLASS_OTHER && vm->spread)
		at += turns_of(vm, running);
	/* Half of the room is for what is negative. */
	at += 1ULL << (CLASS_SHIFT - 1);
	return class << CLASS_SHIFT | (at & ((1ULL << CLASS_SHIFT) - 1));
}

/*
 * May a VM with the @rank take a pCPU from one with the rank @running, before its slice ends, of
 * which all vCPUs use @turn in a turn? One that is behind by less, and neither behind its due nor
 * in its turn, waits: it would lose the pCPU as soon again.
 */
static inline bool rank_preempts(u64 rank, u64 running, u64 turn)
{
	return rank + (rank >> CLASS_SHIFT == CLASS_OTHER ? turn : 0) < running;
}

/*
 * A vCPU of a VM that is behind its due visits a pCPU: it takes it at once from one that is not as
 * far behind, and gives it back when it sleeps, when its VM has used up what it was behind, or
 * after VISIT_MAX_NS, a quarter of a turn. VISIT_MIN_NS is ample for a request.
 */
#define VISIT_MIN_NS (250ULL * 1000)
#define VISIT_MAX_NS (TURN_NS / 4)

/*
 * May it visit for an IPI, which it has sent itself? Not once it is two turns ahead of its
 * due: its own turn puts it one ahead, and no guest lives on interrupting itself.
 */
static inline bool vm_may_visit(const struct vm_ctx *vm, u64 vnow)
{
	return vtime_before(vm->vtime, vnow + 2 * weighted(TURN_NS, vm->weight));
}

/* For how long. */
static inline u64 vm_visit(const struct vm_ctx *vm, u64 vnow)
{
	u64 ns = vm_behind(vm, vnow) ? (vnow - vm->vtime) * vm->weight / WEIGHT_AVERAGE : 0;

	return ns < VISIT_MIN_NS ? VISIT_MIN_NS : ns > VISIT_MAX_NS ? VISIT_MAX_NS : ns;
}

/*
 * Do two share a core that have run since @since and @beside on its hyper-threads? Who has run for
 * less than a tick of HZ=250 may be gone soon.
 */
#define SHARED_NS (4ULL * 1000 * 1000)
static inline bool core_is_shared(u64 since, u64 beside, u64 now)
{
	return !vtime_before(now, since + SHARED_NS) && !vtime_before(now, beside + SHARED_NS);
}

/* Has @vm its turn, without being behind its due? */
static inline bool vm_has_turn(const struct vm_ctx *vm, u64 vnow, u64 now)
{
	return vm_claims(vm, 0, vnow, now) && !vm_behind(vm, vnow);
}

/*
 * Can a host task of @weight wait for a turn, one of @n / 256 entities that want @cpus pCPUs? It
 * runs on one at a time: where its share is three quarters of a pCPU, or more, it could hardly make
 * up for that.
 */
static inline bool host_can_wait(u32 weight, u64 n, u32 cpus)
{
	return 4 * 256ULL * cpus * weight / WEIGHT_AVERAGE < 3 * (n > 256 ? n : 256);
}

/*
 * Does a host task at @host_vtime go before a VM at @vm_vtime? Whoever is further behind does.
 * Where it @waits for the VM's turn to end, only if it is a slice behind its due: vhost, I/O
 * threads and ssh, which sleep a lot, are. One that computes as much as it gets would take a vCPU
 * from the gang whenever it wakes, and all siblings would wait for that one.
 */
static inline bool host_goes_first(u64 host_vtime, u64 vm_vtime, bool waits, u64 vnow)
{
	return waits ? vtime_before(host_vtime + HOST_SLICE_NS, vnow)
		     : vtime_before(host_vtime, vm_vtime);
}

/*
 * May a waking host task take the pCPU from another one, however short that has run? What it takes
 * is charged to it, and a slice behind it is soon no more if it takes much.
 */
static inline bool host_preempts_host(u64 waker_vtime, u64 running_vtime)
{
	return vtime_before(waker_vtime + HOST_SLICE_NS, running_vtime);
}

/*
 * The part of a spinner's slice, @left, that goes with a directed yield. Yields can follow each
 * other on a pCPU, spinner after spinner: they share the slice of the one that was picked,
 * which ended at @until. 0: it is used up, somebody else is next.
 */
static inline u64 donated_slice(u64 left, u64 now, u64 until)
{
	if (!vtime_before(now, until))
		return 0;
	return left < BOOST_MIN_NS ? BOOST_MIN_NS : left;
}

/*
 * Has a vCPU waited too long, @since then (0: it does not wait), with @waiting vCPUs in the queues
 * of @cpus pCPUs? Another pCPU may have put it there after this one has read its clock. Shares are
 * those of VMs: where affinity lets only some of its vCPUs run, a VM can have its share without the
 * others. What crowded VMs wait by their weights is less than four turns of everybody.
 */
static inline bool starves(u64 since, u64 now, u32 waiting, u32 cpus)
{
	u64 most = STARVED_NS + 4 * TURN_NS * waiting / (cpus ? cpus : 1);

	return since && vtime_before(since + (most < MAX_WAIT_NS ? most : MAX_WAIT_NS), now);
}

/* What is due to a vCPU of @vm for @ns in which somebody with the weight @against ran. */
static inline u64 vcpu_part(const struct vm_ctx *vm, u64 ns, u32 against)
{
	s32 nr = vm->nr_running + vm->nr_queued;

	return ns / (nr > 0 ? nr : 1) * vm->weight / (against ? against : 1);
}

/*
 * A vCPU that may run on one pCPU alone waits while its siblings run, who may wait for it. After
 * TORN_NS of that it runs for half of what makes it its part of the VM's share against each of
 * @running vCPUs of what runs there, with the weight @against: all of that, as under EEVDF, takes
 * more from those than this VM gains by it. 0: not yet.
 */
#define TORN_NS (2 * TURN_NS)
static inline u64 torn_slice(const struct vm_ctx *vm, u64 torn, u32 against, s32 running)
{
	u64 slice = vcpu_part(vm, torn / 2, against) * (running > 0 ? running : 1);

	if (torn < TORN_NS)
		return 0;
	return slice < BOOST_MIN_NS ? BOOST_MIN_NS : slice > TURN_NS ? TURN_NS : slice;
}

/*
 * One that has waited while a host task with the weight @against ran, for @waited, of @others more
 * that are bound there: a thread that computes can be behind all VMs for ever, as they come on
 * elsewhere. It has its part 3 ms at a time. Where most siblings run, and their spins do not exit,
 * it has it sooner: they get nothing done without it, and cannot ask for it (ask_part()). Pinned
 * barriers of 8 do 70 rounds a second instead of 675 else, beside a thread and two VMs that sleep.
 */
static inline u64 bound_slice(const struct vm_ctx *vm, u64 waited, u32 against, s32 others)
{
	u64 slice = vcpu_part(vm, waited, against) / (others > 0 ? 1 + others : 1);
	bool lacks_it = !vm->exits && vm->nr_running >= 2 * vm->nr_queued;

	if (slice < (lacks_it ? BOOST_IPI_NS : HOST_SLICE_NS))
		return 0;
	return slice > TURN_NS ? TURN_NS : slice;
}

/*
 * Does none of @vm run, as one waits for a pCPU, and the others may well sleep for that one? Or all
 * wait for the same pCPU, as @waiting do. One of a gang does not run before its turn.
 */
static inline bool vm_stands_still(const struct vm_ctx *vm, s32 waiting)
{
	return vm->nr_vcpus > 1 && vm->nr_running <= 0 &&
	       (vm->nr_queued == 1 || (vm->stacked && vm->nr_queued <= waiting));
}

/*
 * One that siblings spin for has its part when they do, in visits of BOOST_IPI_NS. For how long it
 * waits for each, where one of @running tasks runs that have the weight @against together, and
 * @others host tasks more are bound there; @bound vCPUs that wait for that pCPU alone have a part
 * each.
 */
static inline u64 visit_needs(const struct vm_ctx *vm, u32 against, s32 running, s32 others,
			      s32 bound)
{
	s32 nr = vm->nr_running + vm->nr_queued;

	return BOOST_IPI_NS * (nr > 0 ? nr : 1) * (others > 0 ? 1 + others : 1) * against /
	       (running > 1 ? running : 1) / vm->weight / (bound > 1 ? bound : 1);
}

/*
 * Should a vCPU of @vm lend its pCPU to a sibling that was sent an IPI? Not in a gang of which a
 * few are missing: more wait for the lender then than for those (simulated, 96 vCPUs: 0.97). Where
 * a quarter as many wait as run, it is no gang.
 */
static inline bool vm_lends(const struct vm_ctx *vm)
{
	return vm->nr_queued * 4 >= vm->nr_running;
}

/* Is a spinner still kept out, because the vCPU it yielded to has not run? */
static inline bool kept_out(const struct task_ctx *spinner, u64 now)
{
	return spinner->wait_for && vtime_before(now, spinner->kept_until);
}

/* Words of a bitmap of VMs in slots below @end. VM MAX_VMS is in the first one. */
static inline u32 vm_words(u32 end)
{
	return end < MAX_VMS ? (end + 63) / 64 : MAX_VMS / 64;
}

/*
 * A cgroup that ran ahead of its quota (a tick on each pCPU) pays that back by waiting, but not
 * for longer than this.
 */
#define MAX_THROTTLE_NS (3ULL * 1000 * 1000 * 1000)

/*
 * Nor does a task of it wait without end, of which there may be hundreds that share little: after
 * MAX_WAIT_NS it runs for RESCUE_NS, ahead of its quota; all of an eighth of a second at once. A
 * thousand tasks take a fiftieth of a CPU for that.
 */
static inline u64 rescue_at(u64 since)
{
	return (((since + MAX_WAIT_NS) >> 27) + 1) << 27;
}

/* Periods of @q that have begun since the last one that was counted. */
static inline u64 quota_periods(const struct quota *q, u64 now)
{
	return vtime_before(now, q->period_end) || !q->period_ns
		       ? 0
		       : (now - q->period_end) / q->period_ns + 1;
}

/* What @q may hold at most. */
static inline s64 quota_full(const struct quota *q)
{
	return q->quota_ns + q->burst_ns;
}

/* What it may owe at most. */
static inline s64 quota_floor(const struct quota *q)
{
	u64 periods = q->period_ns ? MAX_THROTTLE_NS / q->period_ns : 0;

	return -(s64)(q->quota_ns * (periods ? periods - 1 : 0));
}

/* What @periods add where @left is left: no more than makes it full. */
static inline s64 quota_refills(const struct quota *q, s64 left, u64 periods)
{
	s64 room = quota_full(q) - left;
	u64 most;

	if (room <= 0 || !q->quota_ns)
		return 0;
	most = room / q->quota_ns + 1;
	return q->quota_ns * (periods < most ? periods : most);
}

/* When @q has CPU time again, ns; 0: it has now. */
static inline u64 quota_release(const struct quota *q, u64 now)
{
	s64 left = q->left;
	u64 release;

	if (left > 0 || !q->quota_ns)
		return 0;
	release = q->period_end + (u64)-left / q->quota_ns * q->period_ns;
	return vtime_before(now, release) ? release : now + 1;
}

#endif /* BATON_POLICY_H */
