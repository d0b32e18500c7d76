// SPDX-License-Identifier: GPL-2.0-only
/*
 * scx_baton as one native object: the scheduler and its KVM probes, which share their maps.
 */
#define SHIM_HOME
#include "main.bpf.c"
#define _license _license_of_probes
#include "kvm.bpf.c"
