/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * First come, first served, from one queue: the smallest scheduler there is. It compiles for
 * the kernel, against the headers of the scx project, as for the simulator.
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

#define SHARED_DSQ 0

s32 BPF_STRUCT_OPS(fifo_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, 0);
	return cpu;
}

void BPF_STRUCT_OPS(fifo_enqueue, struct task_struct *p, u64 enq_flags)
{
	scx_bpf_dsq_insert(p, SHARED_DSQ, SCX_SLICE_DFL, enq_flags);
}

void BPF_STRUCT_OPS(fifo_dispatch, s32 cpu, struct task_struct *prev)
{
	scx_bpf_dsq_move_to_local(SHARED_DSQ, 0);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(fifo_init)
{
	return scx_bpf_create_dsq(SHARED_DSQ, -1);
}

void BPF_STRUCT_OPS(fifo_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

// clang-format off
SCX_OPS_DEFINE(fifo_ops,
	       .select_cpu = (void *)fifo_select_cpu,
	       .enqueue = (void *)fifo_enqueue,
	       .dispatch = (void *)fifo_dispatch,
	       .init = (void *)fifo_init,
	       .exit = (void *)fifo_exit,
	       .name = "fifo");
// clang-format on
