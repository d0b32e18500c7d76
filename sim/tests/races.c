// SPDX-License-Identifier: GPL-2.0-only
/*
 * vCPUs of one VM join and leave the queue near one last-level cache on two pCPUs at once. Before
 * each atomic step of the one, in turn, the other does all of its own; what is counted must be
 * right in the end. Exits with 1, and says where, if it is not.
 */
#include <stdio.h>

static void step(void);

#define __sync_fetch_and_add(at, n) (step(), __atomic_fetch_add(at, n, __ATOMIC_SEQ_CST))
#define __sync_fetch_and_sub(at, n) (step(), __atomic_fetch_sub(at, n, __ATOMIC_SEQ_CST))
#define __sync_fetch_and_or(at, n) (step(), __atomic_fetch_or(at, n, __ATOMIC_SEQ_CST))
#define __sync_fetch_and_and(at, n) (step(), __atomic_fetch_and(at, n, __ATOMIC_SEQ_CST))

#define __sync_lock_test_and_set(at, n) (step(), __atomic_exchange_n(at, n, __ATOMIC_SEQ_CST))
#define __sync_val_compare_and_swap(at, old, new)                                                  \
	({                                                                                         \
		typeof(*(at)) was = old;                                                           \
		step();                                                                            \
		__atomic_compare_exchange_n(at, &was, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
		was;                                                                               \
	})

#define SHIM_HOME
#include <scx/common.bpf.h>
#include "wanted.bpf.h"

enum { SLOT = 1024, CPU = 0 };

static void (*other)(void);
static u32 steps, stop_at;
static struct task_ctx waits, comes;

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
	leave_near(&waits, SLOT);
}

static void share_one(void)
{
	share_near(&waits, 0, SLOT);
}

static void wait(void)
{
	join_near(&waits, SLOT, CPU);
}

/* For its pCPU alone. */
static void wait_kept(void)
{
	waits.queued_llc = KEPT_NEAR | 1;
}

static void wait_kept_beside_one(void)
{
	wait_kept();
	join_one();
}

static int check(const char *what, void (*begins)(void), void (*first)(void), void (*second)(void),
		 s32 left)
{
	for (stop_at = 0; stop_at < 6; stop_at++) {
		*waiting_near(0, SLOT) = 0;
		*vms_near(0, 0) = 0;
		other = NULL;
		begins();
		steps = 0;
		other = second;
		first();
		/* There were fewer steps. */
		if (other) {
			other = NULL;
			second();
		}
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

int main(void)
{
	return check("one leaves, one joins meanwhile", wait, leave_one, join_one, 1) ||
	       check("one joins, one leaves meanwhile", wait, join_one, leave_one, 1) ||
	       check("one kept leaves, is shared meanwhile", wait_kept, leave_one, share_one, 0) ||
	       check("one kept is shared, leaves meanwhile", wait_kept, share_one, leave_one, 0) ||
	       check("one kept leaves beside one that waits, is shared meanwhile",
		     wait_kept_beside_one, leave_one, share_one, 1) ||
	       check("one kept is shared beside one that waits, leaves meanwhile",
		     wait_kept_beside_one, share_one, leave_one, 1);
}
