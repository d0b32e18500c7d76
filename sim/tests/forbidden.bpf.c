/* SPDX-License-Identifier: GPL-2.0-only */
/* Wrong on purpose: inserts from ops.yield(), where the kernel allows no insertion. */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

bool BPF_STRUCT_OPS(forbidden_yield, struct task_struct *from, struct task_struct *to)
{
	scx_bpf_dsq_insert(to ? to : from, SCX_DSQ_GLOBAL, SCX_SLICE_DFL, 0);
	return true;
}

// clang-format off
SCX_OPS_DEFINE(forbidden_ops,
	       .yield = (void *)forbidden_yield,
	       .name = "forbidden");
// clang-format on
