/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The part of the kernel's types that sched_ext schedulers look at, for a scheduler that is
 * compiled natively and driven by the simulator.
 */
#ifndef BATON_SHIM_VMLINUX_H
#define BATON_SHIM_VMLINUX_H
#define __VMLINUX_H__

#include <stdbool.h>
#include <stddef.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef s64 __s64;
typedef int pid_t;

#define EPERM 1
#define ENOENT 2
#define E2BIG 7
#define ENOMEM 12
#define EBUSY 16
#define EEXIST 17
#define EINVAL 22

#define PF_VCPU 0x00000001
#define PF_EXITING 0x00000004
#define PF_KTHREAD 0x00200000
#define PF_IDLE 0x00000002

/* As large as the largest machine that is simulated. */
#define SHIM_CPU_WORDS 64

struct cpumask {
	u64 bits[SHIM_CPU_WORDS];
};

struct cgroup {
	s32 level;
	s32 index; /* the simulator's */
	void *storage;
	struct cgroup *parent;
};

struct sched_ext_entity {
	u64 slice;
	u64 dsq_vtime;
	u32 weight;
	u32 flags;
	bool disallow;
	u64 ddsp_dsq_id;
};

#define SHIM_STORAGES 4

struct task_struct {
	s32 pid;
	s32 tgid;
	u32 flags;
	s32 nr_cpus_allowed;
	struct sched_ext_entity scx;
	const struct cpumask *cpus_ptr;
	s32 cpu; /* what task_cpu() returns */
	s32 static_prio;
	struct cgroup *cgroup;
	void *storage[SHIM_STORAGES];
	char comm[16];
};

struct kvm {
	u64 index;
};

struct kvm_spin_loop {
	bool in_spin_loop;
};

struct kvm_vcpu_stat {
	u64 exits;
};

struct kvm_vcpu {
	struct kvm_spin_loop spin_loop; /* first, as in struct kvm_vcpu___spins */
	struct kvm *kvm;
	s32 vcpu_id;
	bool wants_to_run;
	bool preempted;
	bool ready;
	u32 halt_poll_ns;
	struct kvm_vcpu_stat stat;
};

/* include/linux/sched/ext.h, kernel/sched/ext/ */
enum scx_public_consts {
	SCX_OPS_NAME_LEN = 128,
	SCX_SLICE_DFL = 20ULL * 1000 * 1000,
	SCX_SLICE_INF = ~0ULL,
};

enum scx_dsq_id_flags {
	SCX_DSQ_FLAG_BUILTIN = 1ULL << 63,
	SCX_DSQ_FLAG_LOCAL_ON = 1ULL << 62,
	SCX_DSQ_INVALID = SCX_DSQ_FLAG_BUILTIN | 0,
	SCX_DSQ_GLOBAL = SCX_DSQ_FLAG_BUILTIN | 1,
	SCX_DSQ_LOCAL = SCX_DSQ_FLAG_BUILTIN | 2,
	SCX_DSQ_LOCAL_ON = SCX_DSQ_FLAG_BUILTIN | SCX_DSQ_FLAG_LOCAL_ON,
	SCX_DSQ_LOCAL_CPU_MASK = 0xffffffffULL,
};

enum scx_enq_flags {
	SCX_ENQ_WAKEUP = 1,
	SCX_ENQ_HEAD = 1ULL << 4,
	SCX_ENQ_CPU_SELECTED = 1ULL << 10,
	SCX_ENQ_PREEMPT = 1ULL << 32,
	SCX_ENQ_REENQ = 1ULL << 40,
	SCX_ENQ_LAST = 1ULL << 41,
};

enum scx_deq_flags {
	SCX_DEQ_SCHED_CHANGE = 1ULL << 33,
};

enum scx_kick_flags {
	SCX_KICK_IDLE = 1 << 0,
	SCX_KICK_PREEMPT = 1 << 1,
	SCX_KICK_WAIT = 1 << 2,
};

enum scx_ent_flags {
	SCX_TASK_QUEUED = 1 << 0,
};

enum scx_pick_idle_cpu_flags {
	SCX_PICK_IDLE_CORE = 1 << 0,
	SCX_PICK_IDLE_IN_NODE = 1 << 1,
};

enum scx_wake_flags {
	SCX_WAKE_TTWU = 8,
	SCX_WAKE_SYNC = 16,
};

enum scx_ops_flags {
	SCX_OPS_KEEP_BUILTIN_IDLE = 1 << 0,
	SCX_OPS_ENQ_LAST = 1 << 1,
	SCX_OPS_ENQ_EXITING = 1 << 2,
	SCX_OPS_SWITCH_PARTIAL = 1 << 3,
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
};

struct scx_exit_task_args {
	bool cancelled;
};

struct scx_cgroup_init_args {
	u32 weight;
	u64 bw_period_us;
	u64 bw_quota_us;
	u64 bw_burst_us;
};

struct scx_exit_info {
	s32 kind;
	s64 exit_code;
	const char *reason;
	const char *msg;
};

struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dequeue)(struct task_struct *p, u64 deq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	void (*set_weight)(struct task_struct *p, u32 weight);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *cpumask);
	void (*update_idle)(s32 cpu, bool idle);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	s32 (*cgroup_init)(struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgrp);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_weight)(struct cgroup *cgrp, u32 weight);
	void (*cgroup_set_bandwidth)(struct cgroup *cgrp, u64 period_us, u64 quota_us,
				     u64 burst_us);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *ei);
	u64 flags;
	u32 timeout_ms;
	u32 dispatch_max_batch;
	char name[SCX_OPS_NAME_LEN];
};

#endif /* BATON_SHIM_VMLINUX_H */
