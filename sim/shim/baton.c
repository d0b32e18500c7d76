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
