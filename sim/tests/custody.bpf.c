/* SPDX-License-Identifier: GPL-2.0-only */
/* Counts with enqueue() and dequeue() who is in the scheduler's custody; nobody runs from there. */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

#define WAITING_DSQ 0
#define MAX_PIDS 1024

static bool in_custody[MAX_PIDS];
static u32 left;

void BPF_STRUCT_OPS(custody_enqueue, struct task_struct *p, u64 enq_flags)
{
	if (in_custody[p->pid % MAX_PIDS])
		scx_bpf_error("enqueued twice");
	/* Every other one goes where the scheduler has no say any more. */
	if (p->pid % 2) {
		scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SCX_SLICE_DFL / 8, enq_flags);
		return;
	}
	in_custody[p->pid % MAX_PIDS] = true;
	scx_bpf_dsq_insert(p, WAITING_DSQ, SCX_SLICE_DFL / 8, enq_flags);
}

void BPF_STRUCT_OPS(custody_dequeue, struct task_struct *p, u64 deq_flags)
{
	if (!in_custody[p->pid % MAX_PIDS])
		scx_bpf_error("dequeued without being there");
	in_custody[p->pid % MAX_PIDS] = false;
	left++;
}

void BPF_STRUCT_OPS(custody_dispatch, s32 cpu, struct task_struct *prev)
{
	scx_bpf_dsq_move_to_local(WAITING_DSQ, 0);
}

void BPF_STRUCT_OPS(custody_running, struct task_struct *p)
{
	if (in_custody[p->pid % MAX_PIDS])
		scx_bpf_error("runs in custody");
}

void BPF_STRUCT_OPS(custody_tick, struct task_struct *p)
{
	if (left > 1000)
		scx_bpf_error("a thousand have left");
}

void BPF_STRUCT_OPS(custody_cpu_online, s32 cpu)
{
}

s32 BPF_STRUCT_OPS_SLEEPABLE(custody_init)
{
	return scx_bpf_create_dsq(WAITING_DSQ, -1);
}

// clang-format off
SCX_OPS_DEFINE(custody_ops,
	       .enqueue = (void *)custody_enqueue,
	       .dequeue = (void *)custody_dequeue,
	       .dispatch = (void *)custody_dispatch,
	       .running = (void *)custody_running,
	       .tick = (void *)custody_tick,
	       .cpu_online = (void *)custody_cpu_online,
	       .init = (void *)custody_init,
	       .name = "custody");
// clang-format on
