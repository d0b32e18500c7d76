// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two pCPUs do something at once: vCPUs of one VM join and leave the queue near one last-level
 * cache, or the queue as such; a timer is set; VMs come. Before each atomic step of the one, in
 * turn, and behind counting, the other does all of its own; what is counted, or set, must be right
 * in the end. Exits with 1, and says where, if it is not.
 */
#include <stdio.h>
#include <stdlib.h>

static void step(void);

/* Behind it, too: what follows may be a plain write. */
#define stepping(atomic)                                                                           \
	({                                                                                         \
		step();                                                                            \
		typeof(atomic) was_ = atomic;                                                      \
		step();                                                                            \
		was_;                                                                              \
	})
#define __sync_fetch_and_add(at, n) stepping(__atomic_fetch_add(at, n, __ATOMIC_SEQ_CST))
#define __sync_fetch_and_sub(at, n) stepping(__atomic_fetch_sub(at, n, __ATOMIC_SEQ_CST))
#define __sync_fetch_and_or(at, n) (step(), __atomic_fetch_or(at, n, __ATOMIC_SEQ_CST))
#define __sync_fetch_and_and(at, n) (step(), __atomic_fetch_and(at, n, __ATOMIC_SEQ_CST))

#define __sync_lock_test_and_set(at, n) (step(), __atomic_exchange_n(at, n, __ATOMIC_SEQ_CST))
#define __sync_val_compare_and_swap(at, old, new)                                                  \
	({                                                                                         \
		typeof(*(at) + 0) was_ = old;                                                      \
		step();                                                                            \
		__atomic_compare_exchange_n(at, &was_, new, 0, __ATOMIC_SEQ_CST,                   \
					    __ATOMIC_SEQ_CST);                                     \
		was_;                                                                              \
	})

#define __sync_bool_compare_and_swap(at, old, new)                                                 \
	({                                                                                         \
		typeof(*(at) + 0) was_ = old;                                                      \
		step();                                                                            \
		__atomic_compare_exchange_n(at, &was_, new, 0, __ATOMIC_SEQ_CST,                   \
					    __ATOMIC_SEQ_CST);                                     \
	})

#define SHIM_HOME
#include <scx/common.bpf.h>
#include "account.bpf.h"
#include "kvm.bpf.c"
#include "given.bpf.h"
#include "park.bpf.h"
#include "room.bpf.h"
#include "runs.bpf.h"

enum { SLOT = 1024, CPU = 0, STEPS = 24 };

static void (*other)(void);
static u32 steps, stop_at;
static struct task_ctx waiter, comes;

static void step(void)
{
	void (*runs)(void) = other;

	if (steps++ != stop_at || !runs)
		return;
	other = NULL;
	runs();
}

static void join_one(void)
{
	join_near(&comes, SLOT, CPU);
}

static void leave_one(void)
{
	leave_near(&waiter, SLOT);
}

static void share_one(void)
{
	share_near(&waiter, 0, SLOT);
}

static void wait(void)
{
	join_near(&waiter, SLOT, CPU);
}

/* For its pCPU alone. */
static void wait_kept(void)
{
	waiter.queued_llc = KEPT_NEAR | 1;
}

static void wait_kept_beside_one(void)
{
	wait_kept();
	join_one();
}

/* @second comes in between, or behind where @first has no such step. */
static void both(void (*first)(void), void (*second)(void))
{
	steps = 0;
	other = second;
	first();
	if (other) {
		other = NULL;
		second();
	}
}

static int check(const char *what, void (*begins)(void), void (*first)(void), void (*second)(void),
		 s32 left)
{
	for (stop_at = 0; stop_at < STEPS; stop_at++) {
		*waiting_near(0, SLOT) = 0;
		*vms_near(0, 0) = 0;
		other = NULL;
		begins();
		both(first, second);
		if (*waiting_near(0, SLOT) != left || (*vms_near(0, 0) != 0) != (left > 0)) {
			printf("%s, before step %u: %d wait, bits %llx\n", what, stop_at,
			       *waiting_near(0, SLOT), *vms_near(0, 0));
			return 1;
		}
		if (left == 1)
			leave_near(&comes, SLOT);
	}
	return 0;
}

/* When the timer runs out, as it was started last. */
static u64 timer_at;

static s32 start_timer(void *sim, struct bpf_timer *timer, u64 ns)
{
	step();
	timer_at = ns;
	return 0;
}

static void *new_map(void *sim, u32 type, u32 key_size, u32 value_size, u32 entries)
{
	struct shim_map *map = calloc(1, sizeof(*map));

	map->type = type;
	map->entries = entries;
	map->value_size = value_size;
	map->values = calloc(entries, value_size);
	return map;
}

static void soon(void)
{
	look_again(50, 0);
}

static void late(void)
{
	look_again(100, 0);
}

static int check_timer(const char *what, void (*first)(void), void (*second)(void))
{
	for (stop_at = 0; stop_at < STEPS; stop_at++) {
		parked_until = 0;
		both(first, second);
		if (timer_at != 50 || parked_until != 50) {
			printf("%s, before step %u: the timer runs out at %llu, not 50\n", what,
			       stop_at, timer_at);
			return 1;
		}
	}
	return 0;
}

static void leave_whole(void)
{
	leave_queue(&waiter, 1);
}

/* Two pCPUs take one vCPU out of the queue: one of them counts. */
static int check_leave(void)
{
	u32 slot = 1;
	struct vm_ctx *vm = vm_slot(slot);

	for (stop_at = 0; stop_at < STEPS; stop_at++) {
		waiter = (struct task_ctx){.vm = slot, .queued_vm = slot, .queued_at = 1};
		vm->nr_queued = 1;
		count_add(COUNT_WAITING, 1);
		join_near(&waiter, slot, CPU);
		both(leave_whole, leave_whole);
		if (vm->nr_queued || count(COUNT_WAITING) || *waiting_near(0, slot)) {
			printf("a vCPU is taken by two, before step %u: %d wait, %llu in all\n",
			       stop_at, vm->nr_queued, count(COUNT_WAITING));
			return 1;
		}
	}
	return 0;
}

static void claim_one(void)
{
	vm_claim_slot(0x1000);
}

static void claim_other(void)
{
	vm_claim_slot(0x2000);
}

/* Two VMs come at once: both are in slots that are looked at, with nothing of who was there. */
static int check_claim(void)
{
	u64 *end = &shared.counts[COUNT_SLOTS_END].n;
	u32 slot;

	for (stop_at = 0; stop_at < STEPS; stop_at++) {
		for (slot = 1; slot < 4; slot++) {
			vm_slot(slot)->kvm = 0;
			vm_slot(slot)->allowed = vm_slot(slot)->share = 1;
		}
		*end = 0;
		both(claim_one, claim_other);
		if (vm_end() != 3 || !vm_slot(1)->kvm || !vm_slot(2)->kvm || vm_slot(1)->allowed ||
		    vm_slot(1)->share) {
			printf("two VMs come, before step %u: slots end at %u, not 3; share %u\n",
			       stop_at, vm_end(), vm_slot(1)->share);
			return 1;
		}
	}
	return 0;
}

/* A thread takes a vCPU of another VM in hand while it runs: the one that it ran stops. */
static int check_moves(void)
{
	struct task_ctx t = {.vm = 1, .run_vm = 1, .vcpu_id = 3};
	struct vm_ctx *vm = vm_slot(1);

	settle(1, 3, CPU, true, 0);
	poll_begins(vm, 3);
	t.vm = 2;
	t.vcpu_id = 0;
	runs_no_more(&t, CPU);
	if (vm->on_cpu[0] || vm->polling[0] || count(COUNT_POLLING)) {
		printf("a thread left its VM: vCPUs %llx run, %llx poll\n", vm->on_cpu[0],
		       vm->polling[0]);
		return 1;
	}
	return 0;
}

static void poll_one(void)
{
	poll_begins(vm_slot(1), 3);
}

static void poll_no_more(void)
{
	poll_ends(vm_slot(1), 3);
}

/* A vCPU is preempted as it notes that it has halted, or goes on: its pCPU notes the same. */
static int check_polls(void)
{
	struct vm_ctx *vm = vm_slot(1);

	for (stop_at = 0; stop_at < STEPS; stop_at++) {
		vm->polling[0] = 0;
		shared.counts[COUNT_POLLING].n = 0;
		both(poll_one, poll_one);
		if (count(COUNT_POLLING) != 1) {
			printf("a vCPU polls, before step %u: counted %llu times\n", stop_at,
			       count(COUNT_POLLING));
			return 1;
		}
		both(poll_no_more, poll_no_more);
		if (count(COUNT_POLLING)) {
			printf("a vCPU polls no more, before step %u: %lld are left\n", stop_at,
			       (s64)count(COUNT_POLLING));
			return 1;
		}
	}
	return 0;
}

/* The timer counts a vCPU in its queue after that began to run: it waits no more as it stops. */
static int check_late_join(void)
{
	struct vm_ctx *vm = vm_slot(1);

	waiter = (struct task_ctx){.vm = 1, .run_vm = 1, .queued_vm = 1, .queued_at = 900};
	vm->nr_queued = 1;
	vm->nr_running = 1;
	count_add(COUNT_WAITING, 1);
	waiter.run_at = 1000;
	runs_no_more(&waiter, CPU);
	if (vm->nr_queued || count(COUNT_WAITING)) {
		printf("a vCPU that has run waits: %d in its queue\n", vm->nr_queued);
		return 1;
	}
	return 0;
}

static struct task_struct its_task = {.pid = 1}, other_task = {.pid = 2};

static void bind_one(void)
{
	join_bound(&its_task, &waiter, vm_slot(1), CPU);
}

static void bind_other(void)
{
	join_bound(&other_task, &comes, vm_slot(2), CPU);
}

/* vCPUs of two VMs wait for one pCPU alone: both are looked for. The timer holds no lock. */
static int check_bind(void)
{
	for (stop_at = 0; stop_at < STEPS; stop_at++) {
		*bound_queue(CPU) = (struct bound_queue){};
		waiter = (struct task_ctx){.vm = 1};
		comes = (struct task_ctx){.vm = 2};
		both(bind_one, bind_other);
		if (bound_queue(CPU)->nr != 2 || bound_queue(CPU)->vm != MIXED_VMS) {
			printf("two VMs' vCPUs are bound, before step %u: VM %u alone is seen\n",
			       stop_at, bound_queue(CPU)->vm);
			return 1;
		}
	}
	return 0;
}

static void run_sibling(void)
{
	runs_for(&its_task, &comes, CPU, true);
}

static void leave_late(void)
{
	leave_queue(&waiter, 1000);
}

/* A vCPU has waited while none of its siblings ran; one starts as it does, or is just stopping. */
static int check_beside(s32 running, u64 busy_at)
{
	struct vm_ctx *vm = vm_slot(1);

	for (stop_at = 0; stop_at < STEPS; stop_at++) {
		vm->nr_queued = 1;
		vm->nr_running = running;
		vm->busy_ns = 50;
		vm->busy_since = 0;
		vm->times.costop_ns = 0;
		waiter = (struct task_ctx){.vm = 1, .queued_vm = 1, .queued_at = 900};
		waiter.queued_busy = busy_at;
		comes = (struct task_ctx){.vm = 1, .run_at = 1000};
		count_add(COUNT_WAITING, 1);
		both(run_sibling, leave_late);
		if (vm->times.costop_ns) {
			printf("it waited beside nobody, before step %u: for %llu ns\n", stop_at,
			       vm->times.costop_ns);
			return 1;
		}
		vm->nr_running = 0;
	}
	return 0;
}

/* One that waits comes again, without CPU time: it waits there no more. */
static int check_park(void)
{
	struct vm_ctx *vm = vm_slot(1);

	waiter = (struct task_ctx){.vm = 1, .queued_vm = 1, .queued_at = 900};
	vm->nr_queued = 1;
	count_add(COUNT_WAITING, 1);
	park(&its_task, &waiter, 2000, 1000, 0);
	if (vm->nr_queued || count(COUNT_WAITING) || !waiter.parked_at) {
		printf("a vCPU is parked and waits: %d in its queue\n", vm->nr_queued);
		return 1;
	}
	return 0;
}

/* All vCPUs of a VM wake, before the first of them runs: it has slept once. */
static int check_wake(void)
{
	struct vm_ctx *vm = vm_slot(1);
	u64 vtime;

	*vm = (struct vm_ctx){.weight = WEIGHT_AVERAGE, .nr_vcpus = 8, .busy_since = 1000000};
	vnow = 50ULL * 1000 * 1000;
	vm->vtime = 10ULL * 1000 * 1000;
	waiter = comes = (struct task_ctx){.vm = 1};
	wake(&waiter, vm, vnow, 2000000);
	vtime = vm->vtime;
	wake(&comes, vm, vnow, 2000000);
	if (vm->vtime != vtime) {
		printf("two wake at once: %lld ns behind, then %lld\n", vnow - vtime,
		       vnow - vm->vtime);
		return 1;
	}
	return 0;
}

static u32 kicks;

static void kick(void *sim, s32 cpu, u64 flags)
{
	kicks++;
}

/* A host task goes before both VMs whose vCPUs are bound to its pCPU: it stays there. */
static int check_mixed(void)
{
	struct cpu_ctx *c = cpu_ctx(CPU);

	*vm_slot(1) = *vm_slot(2) = (struct vm_ctx){.weight = WEIGHT_AVERAGE, .nr_vcpus = 1};
	vm_slot(1)->vtime = vm_slot(2)->vtime = vnow + TURN_NS;
	*bound_queue(CPU) = (struct bound_queue){.nr = 2, .vm = MIXED_VMS, .pid_vm = 1};
	c->runs = RUNS_HOST;
	c->runs_bound = false;
	c->host_vtime = vnow - TURN_NS;
	c->host_weight = WEIGHT_AVERAGE;
	kicks = 0;
	leave_to_bound(CPU, 1000);
	if (kicks) {
		printf("a host task leaves a pCPU to VMs that it goes before\n");
		return 1;
	}
	return 0;
}

static struct task_struct *nobody(void *sim, s32 pid)
{
	return NULL;
}

/* A pCPU is given away while an older interrupt's end is due: that does not cut the new one short.
 */
static int check_given(void)
{
	struct cpu_ctx *c = cpu_ctx(CPU);

	c->boost_pid = 7;
	c->boost_vm = 1;
	c->resume_pid = 0;
	c->back_at = 100;
	dispatch_given(CPU, false, 50);
	if (c->back_at) {
		printf("what is given ends with what was given before, at %llu\n", c->back_at);
		return 1;
	}
	return 0;
}

static struct task_struct *current_task(void *sim, s32 cpu)
{
	static struct task_struct vmm = {.tgid = 1};

	return &vmm;
}

static void insert(void *sim, struct task_struct *p, u64 dsq, u64 slice, u64 flags)
{
}

int main(void)
{
	static struct shim ours = {
		.map_new = new_map,
		.timer_start = start_timer,
		.curr = current_task,
		.insert = insert,
		.kick = kick,
		.from_pid = nobody,
		.nr_cpu_ids = 1,
	};

	shim = &ours;
	if (check_timer("a late one, a soon one meanwhile", late, soon) ||
	    check_timer("a soon one, a late one meanwhile", soon, late) || check_leave() ||
	    check_claim() || check_moves() || check_polls() || check_late_join() || check_bind() ||
	    check_beside(0, 50) || check_beside(0, 80) || check_park() || check_wake() ||
	    check_mixed() || check_given())
		return 1;
	return check("one leaves, one joins meanwhile", wait, leave_one, join_one, 1) ||
	       check("one joins, one leaves meanwhile", wait, join_one, leave_one, 1) ||
	       check("one kept leaves, is shared meanwhile", wait_kept, leave_one, share_one, 0) ||
	       check("one kept is shared, leaves meanwhile", wait_kept, share_one, leave_one, 0) ||
	       check("one kept leaves beside one that waits, is shared meanwhile",
		     wait_kept_beside_one, leave_one, share_one, 1) ||
	       check("one kept is shared beside one that waits, leaves meanwhile",
		     wait_kept_beside_one, share_one, leave_one, 1);
}
