/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Weighted fair: who has used least goes first, from one queue, whoever belongs together. It
 * compiles for the kernel, against the headers of the scx project, as for the simulator.
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

#define SHARED_DSQ 0

static u64 vtime_now;

s32 BPF_STRUCT_OPS(vtime_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, 0);
	return cpu;
}

void BPF_STRUCT_OPS(vtime_enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 vtime = p->scx.dsq_vtime;

	/* Nobody saves up more than a slice while asleep. */
	if (time_before(vtime, vtime_now - SCX_SLICE_DFL))
		vtime = vtime_now - SCX_SLICE_DFL;
	scx_bpf_dsq_insert_vtime(p, SHARED_DSQ, SCX_SLICE_DFL, vtime, enq_flags);
}

void BPF_STRUCT_OPS(vtime_dispatch, s32 cpu, struct task_struct *prev)
{
	scx_bpf_dsq_move_to_local(SHARED_DSQ, 0);
}

void BPF_STRUCT_OPS(vtime_running, struct task_struct *p)
{
	if (time_before(vtime_now, p->scx.dsq_vtime))
		vtime_now = p->scx.dsq_vtime;
}

void BPF_STRUCT_OPS(vtime_stopping, struct task_struct *p, bool runnable)
{
	u64 used = SCX_SLICE_DFL - p->scx.slice;

	scx_bpf_task_set_dsq_vtime(p, p->scx.dsq_vtime + used * 100 / p->scx.weight);
}

void BPF_STRUCT_OPS(vtime_enable, struct task_struct *p)
{
	scx_bpf_task_set_dsq_vtime(p, vtime_now);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(vtime_init)
{
	return scx_bpf_create_dsq(SHARED_DSQ, -1);
}

void BPF_STRUCT_OPS(vtime_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

// clang-format off
SCX_OPS_DEFINE(vtime_ops,
	       .select_cpu = (void *)vtime_select_cpu,
	       .enqueue = (void *)vtime_enqueue,
	       .dispatch = (void *)vtime_dispatch,
	       .running = (void *)vtime_running,
	       .stopping = (void *)vtime_stopping,
	       .enable = (void *)vtime_enable,
	       .init = (void *)vtime_init,
	       .exit = (void *)vtime_exit,
	       .name = "vtime");
// clang-format on
