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

#define N(table) (sizeof(table) / sizeof((table)[0]))

#define STAT(name, words, meaning) {words, meaning, STAT_##name},
static const struct shim_counter counters[] = {BATON_STATS(STAT)};

#define VM_TIME(name, words, meaning) {words, meaning, offsetof(struct vm_times, name) / 8},
static const struct shim_counter vm_times[] = {VM_TIMES(VM_TIME)};

const struct shim_intf shim_intf = {
	MAX_CPUS, YIELD_IPI, YIELD_SENT, N(counters), counters, N(vm_times), vm_times,
};
