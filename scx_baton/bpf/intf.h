/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler, its KVM probes and the loader share: sizes, records, counters.
 */
#ifndef BATON_INTF_H
#define BATON_INTF_H

#include "counters.h"

#ifndef __VMLINUX_H__
#include <stdbool.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;
#endif

enum baton_limits {
	MAX_CPUS = 1024,
	MAX_LLCS = 256,
	MAX_VMS = 1024,
	/* of a VM, whose IPIs are followed; KVM's largest VMs have 4,096 */
	MAX_VCPUS = 1024,
	VCPU_WORDS = MAX_VCPUS / 64,
	/* cgroups with cpu.max, and how many of them one inside another; slot 0 stays unused */
	MAX_QUOTAS = 4096,
	MAX_QUOTA_LEVELS = 16,
	/* as far as one walks: a chain is longer while cgroups in its middle are given one */
	MAX_QUOTA_CHAIN = 4 * MAX_QUOTA_LEVELS,
	/* what cgroup v2 and the kernel call the weight of an ordinary task */
	WEIGHT_DFL = 100,
	/* an ordinary weight in the scheduler's own, finer measure: a power of two */
	WEIGHT_AVERAGE = 1 << 14,
	/* 2^31 ns are two seconds; all that is longer is in the last one */
	HALT_BUCKETS = 32,
	/* vCPUs that the loader is told of at once */
	NR_REPORTS = 64,
	/* cgroups one inside another that a VM's vCPUs can have in common */
	MAX_LEVELS = 16,
};

/* No VM. Slots of VMs are numbered from 1, so that a zeroed record means "not a vCPU". */
#define NO_VM 0

/* No struct kvm is there; a slot with this address is about to become free. */
#define VM_DYING 1

#define VM_TIME(name, words, meaning) u64 name;
struct vm_times {
	VM_TIMES(VM_TIME)
};
#undef VM_TIME

/* Where the time of one vCPU went since its thread became one, summed up where each part ends. */
struct vcpu_times {
	u64 ran_ns;
	u64 ready_ns; /* waited for a pCPU */
	u64 costop_ns; /* of that, while a sibling ran */
	u64 throttled_ns; /* waited for CPU time by cpu.max */
};

/* What the loader asks of a VM's vCPUs, and is told beside @of in reports. */
struct report_request {
	u32 slot; /* asked: the VM */
	u32 wanted; /* asked: so many vCPUs; told: how many have not been found yet */
	u32 next_id; /* asked: from this vcpu_id on; told: where to go on */
	u32 n; /* told: reports */
};

struct vcpu_report {
	s32 pid; /* its thread */
	s32 cpu; /* where it runs, or ran last */
	u32 vcpu_id;
	u32 none;
	u64 age_ns; /* since its thread became a vCPU */
	struct vcpu_times times;
	struct vcpu_times open; /* what is not over yet, up to now */
};

struct vcpu_reports {
	struct vcpu_report of[NR_REPORTS];
};

/* Of HLTs; bucket i counts those of 2^i ns and more, below 2^(i+1). */
struct halt_times {
	u64 lengths[HALT_BUCKETS]; /* from HLT until the guest goes on, a sleep's end included */
	u64 wakeups[HALT_BUCKETS]; /* from being woken until running, of those that slept */
	u64 polled; /* HLTs that ended before the vCPU slept */
	u64 slept;
	u64 polled_ns; /* time until they ended */
	u64 vain_ns; /* time until the others slept */
};

/* For what a VM, a host task or a cgroup counts among the children of its cgroup (tree.bpf.h). */
struct tree_child {
	u64 counted_at; /* ns; 0: never */
	u32 weight; /* as it was counted */
	u32 wants; /* ns of an epoch in which it wants the CPU */
	u64 until; /* the epoch in which it counts no more, if it is not counted again */
};

/* One virtual machine. The slot's index is its identity inside the scheduler. */
struct vm_ctx {
	/* where the VM stands: one cache line */
	u64 vtime; /* CPU time of all vCPUs, in ns, scaled by WEIGHT_AVERAGE / weight */
	u64 turn_start; /* ns; of the turn that the vCPUs share, see policy.h */
	u32 weight; /* WEIGHT_AVERAGE: as much as an average one */
	u32 spread; /* its vCPUs wait by halting and need not run together */
	s32 nr_vcpus;
	s32 nr_queued;
	s32 nr_bound; /* of them, those that may run on one pCPU alone */
	s32 nr_running;
	u64 kvm; /* address of struct kvm; 0: the slot is free */
	u64 gen; /* rises with every reuse of the slot */
	u64 vcpu_vnow; /* virtual time inside the VM: which of its vCPUs is next */
	/* the next line */
	s32 nr_invited; /* pCPUs that are asked to run one of them (gang.bpf.h) */
	u32 levels; /* how many of @path; it and all from here on is 0 in a new VM */
	u32 share; /* 16ths of a pCPU that it is due; 0: not known */
	u32 allowed; /* pCPUs on which it may run at once; 0: not known */
	u64 weight_gen; /* for which state of the cgroup tree @weight was computed */
	struct tree_child child;
	u64 wanted_before; /* ns for which its vCPUs wanted the CPU until it was counted */
	u32 turn_ganged; /* this turn has been counted as a gang */
	u64 seen_ns; /* CPU time since @spread, @exits, @torn and @extra were decided last */
	u64 seen_alone; /* of it, what nobody else could have had, or wanted */
	u64 seen_halting; /* of it, that of vCPUs that halt often */
	u64 seen_spins; /* PAUSE exits in that time */
	u64 seen_waited; /* ns for which vCPUs waited for one pCPU alone in that time */
	u64 seen_costop; /* ns for which vCPUs waited while others ran, unless for one pCPU alone */
	u32 torn; /* its vCPUs wait while others of them run */
	u32 exits; /* its spins end in PAUSE exits */
	u32 own_limit; /* its VMM has set a limit for polling at HLT (KVM_CAP_HALT_POLL) */
	u32 guest_polls; /* its guest has switched the host's polling off (cpuidle-haltpoll) */
	s32 tgid; /* the process whose threads its vCPUs are */
	u32 extra; /* 256ths; what it pays more where other VMs' vCPUs are bound, too */
	u32 ran_at_once; /* the most of its vCPUs that did in the time before that decision */
	s32 most_running; /* and since then */
	u32 stacked; /* several of its vCPUs may run on one and the same pCPU alone */
	u32 led; /* slot of the VM that leads it (confined.bpf.h); NO_VM: none does */
	u64 last_bound; /* the pCPU for which one waited alone last, and the pid of that one */
	u64 queued_since; /* ns; since when some of its vCPUs wait, while any do */
	u64 busy_ns; /* time in which any vCPU ran; grows when the last one stops */
	u64 busy_since; /* ns; since when any runs, or none does */
	u64 on_cpu[VCPU_WORDS]; /* bitmap by vcpu_id: those that run */
	u64 polling[VCPU_WORDS]; /* those that have halted, and poll on their pCPU or go to sleep */
	u64 owing[VCPU_WORDS]; /* those that were sent an IPI since they ran last */
	struct vm_times times;
	struct halt_times halt;
	u64 moved; /* virtual time by which its bound, or who leads it, has moved it on */
	u64 seen_moved; /* that of the VM that leads it, when it came along last */
	u64 led_at; /* ns; when it ran last where another VM leads */
	u64 limited_at; /* ns; when a vCPU that had not slept waited for long last; 0: never */
	u64 path[MAX_LEVELS]; /* records of the cgroups that its vCPUs share, from the root on */
	u64 none[5]; /* up to a whole number of cache lines */
};

/* CPU time that a cgroup has by its cpu.max. */
struct quota {
	u64 quota_ns; /* for each period; 0: no limit */
	u64 period_ns;
	u64 burst_ns; /* what it may save beyond one quota */
	u64 period_end; /* ns; the next period begins */
	s64 left; /* ns; below 0: used ahead of time */
	u32 used; /* the slot is some cgroup's */
	u32 above; /* slot of the nearest cgroup above that has one; 0: none */
};

/* One vCPU, by slot and vcpu_id. */
struct vcpu_ctx {
	u64 owes[VCPU_WORDS]; /* bitmap: siblings that sent it an IPI since it ran last */
	u64 owed[VCPU_WORDS]; /* those that it sent one, and that may not have run since */
	u32 owed_words; /* which words of @owed are not 0 */
	u64 owes_since; /* ns; when the first of them was sent */
	u32 lend_pending; /* it waited then, and no sibling has lent it a pCPU since */
	s32 pid; /* of its thread */
};

/* One task; a vCPU while @vm is not NO_VM. */
struct task_ctx {
	/* what a pCPU looks at that looks for a vCPU to run: one cache line */
	u64 vtime; /* vCPU: inside its VM; other tasks: global. ns, weighted */
	u64 vm_gen; /* generation of the slot that @vm means */
	u64 queued_at; /* ns; since when it waits; 0: it does not */
	u64 kept_until; /* ns; not dispatched before, unless @wait_for ran */
	s32 wait_for; /* pid of the vCPU that a spinner yielded to */
	s32 last_cpu;
	u32 quota; /* slot of the nearest cgroup above it that has one; 0: none */
	u32 vm;
	u32 queued_vm; /* in whose DSQ it waits */
	u32 queued_llc; /* a vCPU that waits: one past the LLC where it ran, perhaps KEPT_NEAR; else
			   0 */
	u32 queued_cpu; /* a vCPU that waits for one pCPU alone: one past that; else 0 */
	u32 queued_host; /* a host task that waits: one past its place in host_waits; else 0 */
	/* the next line */
	u64 run_at; /* ns; start of the stretch of CPU time not charged yet */
	u64 weight_gen;
	u64 wants; /* ns for which a host task ran or waited, since it was counted */
	u64 queued_busy; /* what its VM's vm_busy() was then */
	u64 started_at; /* ns; when it began to run */
	u64 seen_vnow; /* a host task that runs: its level_of() when it was charged last */
	u64 seen_moved; /* a host task: @moved of the VM that leads it, when it came along last */
	u64 woken_at; /* ns; 0: not since it ran last */
	u64 halted_at; /* ns; 0: it has not */
	u64 ran; /* ns of CPU time since it halted */
	u64 outside_ns; /* a vCPU: CPU time since it is known to have been in its guest */
	u64 exits; /* from its guest, when KVM took it in hand last */
	u64 in_spin_loop; /* a vCPU: address of KVM's flag, set in kvm_vcpu_on_spin() */
	u64 slept_at; /* ns; 0: not since it halted */
	u64 parked_at; /* ns; since when it waits for CPU time by cpu.max; 0: it does not */
	u32 run_vm; /* for whom it was started */
	u32 weight; /* as a VM's; a vCPU: inside its VM */
	s32 waiter; /* pid of the spinner that waits for this vCPU */
	u32 boosted; /* enum boost: why it runs, if not for its VM's turn */
	u32 vcpu_id; /* KVM's, below MAX_VCPUS or not followed */
	s32 leaves_for; /* one past the pCPU of an idle core that it has claimed; 0: none */
	u32 awaiting_verdict; /* the vCPU that it yielded to has run: was it of use? */
	u32 led; /* a host task: slot of the VM that leads it; NO_VM: none does */
	struct tree_child child; /* a host task */
	u64 vcpu_since; /* ns; when it became a vCPU of its VM */
	struct vcpu_times times; /* since then */
};

enum boost {
	BOOST_NONE,
	BOOST_SIBLING, /* on a slice that a sibling gave away */
	BOOST_VISIT, /* as it is behind its due, on somebody else's */
};

/* What is counted of the whole host, each on a cache line of its own. */
struct host_count {
	u64 n;
	u64 none[7];
};

/* What a pCPU runs, on a line of its own. */
struct cpu_runs_vcpu {
	u64 vcpu; /* as vcpu_key(); 0: none */
	u64 spun_first; /* ns; its first PAUSE exit since it was started here */
	u64 spun_at; /* ns; the last one; 0: none yet */
	u64 spin_ns; /* between two of them in one spin, not charged yet */
	u32 spins; /* PAUSE exits, not charged yet */
	u32 outside; /* that has not been seen to enter its guest for long */
	u32 none[6];
};

enum baton_count {
	COUNT_SLOTS_END, /* one past the highest slot in use */
	COUNT_WAITING, /* vCPUs in the queues of all VMs */
	COUNT_BOUND, /* of them, those that wait for one pCPU alone */
	COUNT_BOUND_HOST, /* host tasks that do */
	COUNT_POLLING, /* vCPUs with a bit in @polling */
	COUNT_SLOTLESS, /* times that a vCPU was met whose VM is one too many */
	COUNT_QUOTALESS, /* times that a cpu.max was met which is one too many */
	NR_COUNTS,
};

/* What the scheduler, its KVM probes and its loader share. */
struct baton_shared {
	struct vm_ctx vms[MAX_VMS]; /* by slot; MAX_VMS is at 0, as slot 0 is NO_VM */
	struct host_count counts[NR_COUNTS];
	struct cpu_runs_vcpu runs[MAX_CPUS];
	u64 halts_since; /* ns; what was noted of a HLT until then is stale */
	u32 halts_off; /* set by the loader: HLTs are not followed */
	u32 none[13];
};

#define STAT(name, words, meaning) STAT_##name,
enum baton_stat {
	BATON_STATS(STAT) BATON_NR_STATS,
};
#undef STAT

struct baton_stats {
	u64 count[BATON_NR_STATS];
};

/* Why a vCPU gets a spinner's CPU. */
enum yield_reason {
	YIELD_NONE,
	YIELD_IPI, /* it owes the spinner the handling of an IPI */
	YIELD_KVM, /* KVM proposes it */
	YIELD_SENT, /* it was sent an IPI: before anybody spins */
	YIELD_KICK, /* a vCPU that does not spin has done something for it */
	/* those that can be asked for */
	NR_YIELD_REASONS = YIELD_KICK,
};

/* Exit codes of scx_bpf_exit(), so that the loader can name the remedy. */
enum baton_exit {
	EXIT_CORE_SCHED = 2,
};

#endif /* BATON_INTF_H */
