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

static int check(const char *what, void (*first)(void), void (*second)(void), s32 left)
{
	for (stop_at = 0; stop_at < 4; stop_at++) {
		*waiting_near(0, SLOT) = 0;
		*vms_near(0, 0) = 0;
		other = NULL;
		join_near(&waits, SLOT, CPU);
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
	return check("one leaves, one joins meanwhile", leave_one, join_one, 1) ||
	       check("one joins, one leaves meanwhile", join_one, leave_one, 1);
}
