/* SPDX-License-Identifier: GPL-2.0-only */
/* Asks for idle cores: on what it gets the other hyper-thread is idle, too. */
#include <scx/common.bpf.h>

char _license[] SEC("license") = "GPL";

#define MAX_CPUS 8

static bool busy[MAX_CPUS];
static u32 found;

s32 BPF_STRUCT_OPS(cores_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	s32 cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE);

	if (cpu < 0)
		return prev_cpu;
	if (busy[cpu % MAX_CPUS] || busy[(cpu ^ 1) % MAX_CPUS])
		scx_bpf_error("no idle core");
	found++;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, 0);
	return cpu;
}

void BPF_STRUCT_OPS(cores_running, struct task_struct *p)
{
	busy[scx_bpf_task_cpu(p) % MAX_CPUS] = true;
}

void BPF_STRUCT_OPS(cores_stopping, struct task_struct *p, bool runnable)
{
	busy[scx_bpf_task_cpu(p) % MAX_CPUS] = false;
	if (found > 1000)
		scx_bpf_error("a thousand found");
}

// clang-format off
SCX_OPS_DEFINE(cores_ops,
	       .select_cpu = (void *)cores_select_cpu,
	       .running = (void *)cores_running,
	       .stopping = (void *)cores_stopping,
	       .name = "cores");
// clang-format on
