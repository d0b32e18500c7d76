/* SPDX-License-Identifier: GPL-2.0-only */
/* Wrong on purpose: the first thread waits in a queue that nobody looks at. */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

#define FORGOTTEN_DSQ 0

void BPF_STRUCT_OPS(stalls_enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 dsq = p->pid == 1 ? FORGOTTEN_DSQ : SCX_DSQ_GLOBAL;

	scx_bpf_dsq_insert(p, dsq, SCX_SLICE_DFL, enq_flags);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(stalls_init)
{
	return scx_bpf_create_dsq(FORGOTTEN_DSQ, -1);
}

// clang-format off
SCX_OPS_DEFINE(stalls_ops,
	       .enqueue = (void *)stalls_enqueue,
	       .init = (void *)stalls_init,
	       .timeout_ms = 500,
	       .name = "stalls");
// clang-format on
