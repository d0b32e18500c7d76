// SPDX-License-Identifier: GPL-2.0-only
/*
 * The least that a sched_ext scheduler can do: the callbacks of scx_baton that wake-ups, switches,
 * ticks and yields call, and next to nothing in them. Who wakes runs on an idle pCPU or preempts
 * the one where it ran last. What an event costs under it is sched_ext's own; `make
 * bench-callbacks` counts it. Not fair, and not for a host.
 */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

s32 BPF_STRUCT_OPS(empty_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);

	if (is_idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, 0);
	return cpu;
}

void BPF_STRUCT_OPS(empty_enqueue, struct task_struct *p, u64 enq_flags)
{
	if (enq_flags & SCX_ENQ_WAKEUP)
		enq_flags |= SCX_ENQ_PREEMPT;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, enq_flags);
}

void BPF_STRUCT_OPS(empty_dispatch, s32 cpu, struct task_struct *prev)
{
}

void BPF_STRUCT_OPS(empty_running, struct task_struct *p)
{
}

void BPF_STRUCT_OPS(empty_tick, struct task_struct *p)
{
}

void BPF_STRUCT_OPS(empty_stopping, struct task_struct *p, bool runnable)
{
}

bool BPF_STRUCT_OPS(empty_yield, struct task_struct *from, struct task_struct *to)
{
	if (!to)
		scx_bpf_task_set_slice(from, 0);
	return false;
}

s32 BPF_STRUCT_OPS(empty_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	return 0;
}

void BPF_STRUCT_OPS(empty_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

// clang-format off
SCX_OPS_DEFINE(empty_ops,
	       .select_cpu = (void *)empty_select_cpu,
	       .enqueue = (void *)empty_enqueue,
	       .dispatch = (void *)empty_dispatch,
	       .running = (void *)empty_running,
	       .tick = (void *)empty_tick,
	       .stopping = (void *)empty_stopping,
	       .yield = (void *)empty_yield,
	       .init_task = (void *)empty_init_task,
	       .exit = (void *)empty_exit,
	       .timeout_ms = 5000U,
	       .name = "empty");
// clang-format on
