/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who has been sent an IPI and has not taken it, because it does not run: whose sender may spin
 * until it does (Ishiguro 2021). There is no debt of a vCPU that runs, and it ends where one is
 * started or stopped: an IPI that was taken while running must not boost a vCPU that was
 * preempted afterwards.
 */
#ifndef BATON_OWING_BPF_H
#define BATON_OWING_BPF_H

#include "policy.h"
#include "state.bpf.h"

static inline u64 vcpu_key(u32 slot, u32 vcpu_id)
{
	return (u64)slot << 32 | vcpu_id;
}

static inline u64 vcpu_bit(u32 vcpu_id)
{
	return 1ULL << (vcpu_id % 64);
}

/* Masked where the compiler cannot tell that there is no need: the verifier cannot, either. */
static inline u32 vcpu_word(u32 vcpu_id)
{
	u32 word = vcpu_id / 64;

	barrier_var(word);
	return word & (VCPU_WORDS - 1);
}

static inline bool vm_has_bit(const u64 *words, u32 vcpu_id)
{
	return vcpu_id < MAX_VCPUS && words[vcpu_word(vcpu_id)] & vcpu_bit(vcpu_id);
}

/* A vCPU has sent an IPI to one that waits: somebody lends it a pCPU, see lend.bpf.h. */
struct lend_timer {
	struct bpf_timer timer;
	s32 cpu; /* of the sender */
	u64 sender; /* as vcpu_key() */
	u32 spins; /* it lends its own pCPU, with which it has nothing better to do */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct lend_timer);
	__uint(max_entries, MAX_CPUS);
} lend_timers SEC(".maps");

/* An IPI to many is sent to one after the other: so long after the last one, all are looked at. */
#define LEND_AFTER_NS 2000

/* Does the thread @pid wait for the VM in @slot, and may it run on @cpu, or anywhere if below 0? */
verified_once int waits_for(s32 pid, u32 slot, s32 cpu)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	struct task_ctx *t;
	bool waits;

	if (!p)
		return false;
	t = task_ctx(p);
	waits = t && t->vm == slot && t->queued_vm == slot &&
		(cpu < 0 || bpf_cpumask_test_cpu(cpu, p->cpus_ptr));
	bpf_task_release(p);
	return waits;
}

/* The vCPU @sender, which runs here, has sent IPIs to some that wait. */
static inline void lend_soon(u64 sender, bool spins)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct lend_timer *lend = bpf_map_lookup_elem(&lend_timers, &cpu);

	if (!lend)
		return;
	lend->sender = sender;
	lend->spins = spins;
	bpf_timer_start(&lend->timer, LEND_AFTER_NS, 0);
}

/* vCPU @from, which runs here, sends an IPI to @to, which does not run. */
static inline void owes(struct vm_ctx *vm, u32 slot, u32 from, u32 to)
{
	u64 key = vcpu_key(slot, to), own = vcpu_key(slot, from);
	struct vcpu_ctx *v, *sender;

	if (from == to || from >= MAX_VCPUS || to >= MAX_VCPUS)
		return;
	v = bpf_map_lookup_elem(&vcpus, &key);
	sender = bpf_map_lookup_elem(&vcpus, &own);
	if (!v || !sender)
		return;
	if (!vm_has_bit(vm->owing, to)) {
		v->owes_since = scx_bpf_now();
		v->lend_pending = waits_for(v->pid, slot, -1);
	}
	__sync_fetch_and_or(&v->owes[vcpu_word(from)], vcpu_bit(from));
	__sync_fetch_and_or(&vm->owing[vcpu_word(to)], vcpu_bit(to));
	__sync_fetch_and_or(&sender->owed[vcpu_word(to)], vcpu_bit(to));
	__sync_fetch_and_or(&sender->owed_words, 1U << vcpu_word(to));
	if (v->lend_pending && vm_lends(vm))
		lend_soon(own, false);
}

/*
 * The vCPU that runs @here spins on, for @ns since its last PAUSE exit: KVM proposed nobody to
 * yield to, as where all that wait were preempted in user mode. Who owes it gets its pCPU. By a
 * timer: this program must not switch.
 */
static inline void spins_on(struct cpu_runs_vcpu *here, u64 ns)
{
	u64 own = here->vcpu;
	struct vm_ctx *vm = vm_slot(own >> 32);
	struct vcpu_ctx *me;

	__sync_fetch_and_add(&here->spin_ns, ns);
	me = vm && vm->nr_queued > 0 ? bpf_map_lookup_elem(&vcpus, &own) : NULL;
	if (me && me->owed_words)
		lend_soon(own, true);
}

#endif /* BATON_OWING_BPF_H */
