/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tells the loader that vCPUs wait for pCPUs. Only then does it matter who has sent whom an IPI,
 * and who halts; the probes that follow cost each of either some 500 instructions (exact host),
 * and are attached only while vCPUs wait.
 */
#ifndef BATON_WAITS_BPF_H
#define BATON_WAITS_BPF_H

#include "intf.h"

/*
 * A vCPU that has waited for so long waits for another VM, or a sibling. Kernel threads come and go
 * within less.
 */
#define LONG_WAIT_NS (1ULL * 1000 * 1000)

/* One message, and nothing in it, each time that vCPUs begin to wait. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} waits SEC(".maps");

/* Has a vCPU waited for long since the loader has last cleared this? */
volatile u32 waited_long;

static inline void note_wait(u64 ns)
{
	u64 nothing = 0;

	if (ns < LONG_WAIT_NS || waited_long)
		return;
	waited_long = 1;
	bpf_ringbuf_output(&waits, &nothing, sizeof(nothing), BPF_RB_FORCE_WAKEUP);
}

#endif /* BATON_WAITS_BPF_H */
