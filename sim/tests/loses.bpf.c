/* SPDX-License-Identifier: GPL-2.0-only */
/* Wrong on purpose: of tasks that wait, one in a hundred is forgotten. */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

static u32 seen;

void BPF_STRUCT_OPS(loses_enqueue, struct task_struct *p, u64 enq_flags)
{
	if (++seen % 100)
		scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SCX_SLICE_DFL, enq_flags);
}

// clang-format off
SCX_OPS_DEFINE(loses_ops,
	       .enqueue = (void *)loses_enqueue,
	       .name = "loses");
// clang-format on
