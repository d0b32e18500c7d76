// SPDX-License-Identifier: GPL-2.0-only
/*
 * scx_baton as one native object: the scheduler and its KVM probes, which share their maps.
 */
#define SHIM_HOME
#include "main.bpf.c"
#define _license _license_of_probes
#include "kvm.bpf.c"

/* A field of all VMs' struct vm_times, summed up. */
u64 shim_vm_times(u32 field)
{
	u64 sum = 0;
	u32 slot;

	for (slot = 1; slot < vm_end(); slot++)
		sum += ((const u64 *)&vm_slot(slot)->times)[field];
	return sum;
}

/* Where a counter is. What each means: sim/src/scx/counters.rs. */
struct shim_counter {
	const char *name;
	u32 place;
};

#define N(table) (sizeof(table) / sizeof((table)[0]))

static const struct shim_counter counters[] = {
	{"yields", STAT_YIELDS},
	{"obeyed", STAT_OBEYED},
	{"missed foreign", STAT_MISSED_FOREIGN},
	{"missed running", STAT_MISSED_RUNNING},
	{"missed asleep", STAT_MISSED_ASLEEP},
	{"missed spent", STAT_MISSED_SPENT},
	{"missed raced", STAT_MISSED_RACED},
	{"redirected", STAT_REDIRECTED},
	{"refused", STAT_REFUSED},
	{"plain yields", STAT_PLAIN_YIELDS},
	{"spins", STAT_SPINS},
	{"turns", STAT_TURNS},
	{"gangs", STAT_GANGS},
	{"stacking avoided", STAT_STACKING_AVOIDED},
	{"host preempts", STAT_HOST_PREEMPTS},
	{"visits", STAT_VISITS},
	{"lent", STAT_LENT},
	{"polls cut", STAT_POLLS_CUT},
	{"cores left", STAT_CORES_LEFT},
	{"boost ns", STAT_BOOST_NS},
};
_Static_assert(N(counters) == BATON_NR_STATS, "a counter has no name");

#define VM_TIME(field) (offsetof(struct vm_times, field) / sizeof(u64))

static const struct shim_counter vm_times[] = {
	{"ran ns", VM_TIME(ran_ns)},
	{"ready ns", VM_TIME(ready_ns)},
	{"throttled ns", VM_TIME(throttled_ns)},
	{"co-stop ns", VM_TIME(costop_ns)},
	{"spin ns", VM_TIME(spin_ns)},
	{"boosted ns", VM_TIME(boost_ns)},
	{"IPI wait ns", VM_TIME(owed_ns)},
	{"PAUSE exits", VM_TIME(spins)},
	{"HLT exits", VM_TIME(halts)},
	{"boosts", VM_TIME(boosts)},
	{"useful", VM_TIME(useful)},
	{"useless", VM_TIME(useless)},
};
_Static_assert(N(vm_times) == sizeof(struct vm_times) / sizeof(u64), "a time has no name");

/* What the simulator takes from intf.h. */
const struct shim_intf {
	u32 max_cpus;
	u32 yield_ipi;
	u32 yield_sent;
	u32 nr_counters;
	const struct shim_counter *counters;
	u32 nr_vm_times;
	const struct shim_counter *vm_times;
} shim_intf = {
	MAX_CPUS, YIELD_IPI, YIELD_SENT, N(counters), counters, N(vm_times), vm_times,
};
