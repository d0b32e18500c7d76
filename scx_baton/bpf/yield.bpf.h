/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whom a directed yield goes to, and how it is handed the pCPU. Who is boosted, and why:
 *
 *  reason      | a vCPU that does not run, and                | gets the pCPU of  | for
 *  YIELD_IPI   | has not taken the spinner's IPI              | the spinner       | 250 us
 *  YIELD_KVM   | KVM proposes: it was preempted in the        | the spinner       | what is left of
 *              | guest's kernel, and may hold a lock          |                   | the slice, 1 ms
 *  YIELD_KICK  | KVM names: it was handed a lock, or is the   | the vCPU that     | at least
 *              | preempted target of an IPI                   | does not spin     |
 *  YIELD_SENT  | is sent an IPI, before anybody spins         | a third sibling   | 250 us
 *              | (lend.bpf.h); or the sender spins, and KVM   | or the spinner    |
 *              | proposes nobody                              |                   |
 */
#ifndef BATON_YIELD_BPF_H
#define BATON_YIELD_BPF_H

#include "cpu.bpf.h"

/* Steps along the list of those that owe, in one decision; and where a pCPU is to be lent. */
#define MAX_OWING 6
#define MAX_OWING_LENT 16

/* For a spinner the first that applies; --yield-policy. */
const volatile u32 yield_policy[NR_YIELD_REASONS] = {YIELD_KICK, YIELD_SENT, YIELD_IPI, YIELD_KVM};

static bool yields_for(u32 reason)
{
	bool wanted = false;
	u32 i;

	for (i = 0; i < NR_YIELD_REASONS; i++)
		wanted |= yield_policy[i] == reason;
	return wanted;
}

/* Of the vCPUs that word @w stands for, those that owe @me. */
static u64 owed_word(const struct vm_ctx *vm, struct vcpu_ctx *me, u32 w)
{
	u64 word = vm->owing[w];

	word &= __sync_fetch_and_and(&me->owed[w], word);
	if (!word)
		__sync_fetch_and_and(&me->owed_words, ~(1U << w));
	return word;
}

/*
 * The thread of vCPU @id, which owes @sender; 0 if @to_lend and it is not to be lent a pCPU,
 * negative if it owes somebody else.
 */
verified_once s32 owing_pid(u32 slot, u32 sender, u32 id, bool to_lend)
{
	u64 key = vcpu_key(slot, id);
	struct vcpu_ctx *v = bpf_map_lookup_elem(&vcpus, &key);

	if (!v || !vm_has_bit(v->owes, sender))
		return -ENOENT;
	return v->lend_pending || !to_lend ? v->pid : 0;
}

/*
 * A vCPU of the VM that owes @sender, waits, and may run on @cpu, or anywhere if that is below 0:
 * its id in the upper half, the pid of its thread in the lower one; 0 if there is none. If
 * @to_lend, only one that waited when it was sent the IPI, and was lent no pCPU since. Who has run
 * since has taken the IPI, and is struck off the list on the way.
 */
verified_once u64 find_owing(u32 slot, u32 sender, s32 cpu, bool to_lend)
{
	u64 own = vcpu_key(slot, sender), word = 0;
	struct vcpu_ctx *me = bpf_map_lookup_elem(&vcpus, &own);
	struct vm_ctx *vm = vm_slot(slot);
	s32 pid;
	u32 words, w = 0, id, i, steps = to_lend ? MAX_OWING_LENT : MAX_OWING;

	if (!vm || !me)
		return 0;
	words = me->owed_words;
	bpf_for(i, 0, steps) {
		if (!word) {
			if (!words)
				break;
			w = __builtin_ctz(words) & (VCPU_WORDS - 1);
			words &= words - 1;
			word = owed_word(vm, me, w);
			continue;
		}
		id = w * 64 + __builtin_ctzll(word);
		word &= word - 1;
		pid = owing_pid(slot, sender, id, to_lend);
		if (pid < 0)
			__sync_fetch_and_and(&me->owed[w], ~vcpu_bit(id));
		else if (pid && waits_for(pid, slot, cpu))
			return (u64)id << 32 | (u32)pid;
	}
	return 0;
}

/* Is the vCPU of @t in kvm_vcpu_on_spin()? KVM says so, and no program of ours need run there. */
static bool spins(const struct task_ctx *t)
{
	bool in_spin_loop = false;

	if (vm_of(t))
		bpf_probe_read_kernel(&in_spin_loop, sizeof(in_spin_loop), (void *)t->in_spin_loop);
	return in_spin_loop;
}

/* Why the spinning vCPU of @t gives its pCPU away, if KVM proposes @pid; and whom to, in @pid. */
static u32 choose(const struct task_ctx *t, s32 *pid, s32 cpu)
{
	u64 owing;
	u32 i;

	for (i = zero; i < NR_YIELD_REASONS; i++) {
		if (yield_policy[i] == YIELD_KVM)
			return YIELD_KVM;
		if (yield_policy[i] != YIELD_IPI)
			continue;
		owing = find_owing(t->vm, t->vcpu_id, cpu, false);
		if (owing) {
			*pid = (u32)owing;
			return YIELD_IPI;
		}
	}
	return YIELD_NONE;
}

/*
 * Run @to on @c next, on the @slice that a vCPU with the pid @from gives away, if it spins for
 * @reason. The choice is carried out in dispatch().
 */
static void boost(struct cpu_ctx *c, struct task_ctx *from_t, s32 from, struct task_struct *to,
		  struct task_ctx *to_t, u32 reason, u64 slice, u64 now)
{
	c->boost_vm = to_t->vm;
	c->boost_slice = slice;
	c->boost_pid = to->pid;
	/* Who may hold a lock may be about to take the next one, and keeps the slice. */
	resumes_later(c, reason == YIELD_IPI ? from : 0, to_t->vm);
	/* One that spins has nothing better to do than to wait. */
	if (reason == YIELD_KICK)
		return;
	to_t->waiter = from;
	from_t->wait_for = to->pid;
	from_t->kept_until = now + KEEP_OUT_NS;
}

/* Does @cpu run a vCPU of the VM in @slot, or nothing? */
static bool costs_nobody_else(s32 cpu, u32 slot)
{
	return cpu_ctx(cpu)->runs == RUNS_NOTHING || runs_vm(cpu, slot);
}

/*
 * Does @to run where it ran last, on @home, rather than on the spinner's pCPU? KVM interrupts @home
 * in any case (yield_to()), and a vCPU that comes to another pCPU makes the one that it left clear
 * its VMCS, by an interrupt that both wait for. Only where a sibling runs there, and the spinner's
 * pCPU gets another one of the VM.
 */
static bool stays(const struct vm_ctx *vm, u32 slot, s32 home)
{
	struct cpu_ctx *c = cpu_ctx(home);

	return vm->nr_queued > 1 && runs_vm(home, slot) && !c->kicked && !c->boost_pid;
}

/*
 * A sibling spins for @to, which may run on @home alone, and has its part of that pCPU now
 * (shares_part()). That costs the spinner nothing, which may go on. Not for one that waits for IPIs
 * to be taken: those have the part (visit_for()), and whom KVM proposes to it may wait as well.
 */
static void ask_part(const struct task_ctx *from_t, const struct task_struct *to,
		     const struct task_ctx *to_t, s32 home, u64 now)
{
	u64 key = vcpu_key(from_t->vm, from_t->vcpu_id);
	struct vcpu_ctx *from = bpf_map_lookup_elem(&vcpus, &key);
	struct vm_ctx *vm = vm_of(to_t);
	struct cpu_ctx *c = cpu_ctx(home);

	if (!vm || (from && from->owed_words) || !shares_part(home, to_t->vm) || c->kicked ||
	    c->boost_pid || c->resume_pid || to_t->queued_cpu != home + 1 ||
	    vtime_before(now, to_t->queued_at + BRIEF_NS) || part_in(vm, home, now))
		return;
	spend_part(vm, home, now);
	c->boost_vm = to_t->vm;
	c->boost_slice = BOOST_IPI_NS;
	c->boost_pid = to->pid;
	resumes_later(c, c->runs == RUNS_VCPU ? c->pid : 0, c->vm);
	ends_in(home, now, BOOST_IPI_NS);
	preempt(home);
}

/*
 * @to is to run on what @from has left of its slice, which it gives away for @reason. Both
 * runqueues are locked, so the choice is noted here and made in dispatch().
 */
verified_once int hand_over(struct task_struct *from __arg_trusted,
			    struct task_ctx *from_t __arg_nonnull,
			    struct task_struct *to __arg_trusted, u32 reason, s32 cpu)
{
	struct task_ctx *to_t = task_ctx(to);
	struct vm_ctx *vm = to_t ? vm_of(to_t) : NULL;
	s32 home = scx_bpf_task_cpu(to), elsewhere = -1;
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 now = scx_bpf_now(), slice;

	if (!vm || from_t->vm != to_t->vm) {
		stat_add(STAT_MISSED_FOREIGN, 1);
		return false;
	}
	if (scx_bpf_task_running(to)) {
		stat_add(STAT_MISSED_RUNNING, 1);
		return false;
	}
	if (to_t->queued_vm != to_t->vm) {
		stat_add(STAT_MISSED_ASLEEP, 1);
		return false;
	}
	/*
	 * To another pCPU of its own cache neither, if its VM is larger than that: the sibling that
	 * gave that one away would be boosted on a far one, and so on.
	 */
	if (is_kept(to_t) && home != cpu &&
	    (llc_of(home) != llc_of(cpu) || (nr_llcs > 1 && (u32)vm->nr_vcpus > nr_near(cpu))) &&
	    vtime_before(now, to_t->queued_at + BRIEF_NS)) {
		stat_add(STAT_REFUSED, 1);
		return false;
	}
	/*
	 * Not allowed here: where it ran last, at the cost of a sibling there, never of others. The
	 * spinner has nothing to go on with then.
	 */
	if (!bpf_cpumask_test_cpu(cpu, to->cpus_ptr)) {
		elsewhere = home;
		if (!costs_nobody_else(elsewhere, to_t->vm)) {
			ask_part(from_t, to, to_t, home, now);
			stat_add(STAT_REFUSED, 1);
			return false;
		}
	} else if (reason == YIELD_KVM && home != cpu && stays(vm, to_t->vm, home)) {
		elsewhere = home;
	}
	slice = donated_slice(from->scx.slice, now, c->donates_until);
	scx_bpf_task_set_slice(from, 0);
	if (!slice) {
		stat_add(STAT_MISSED_SPENT, 1);
		return true;
	}
	if (elsewhere >= 0) {
		c = cpu_ctx(elsewhere);
		preempt(elsewhere);
		reason = reason == YIELD_IPI ? YIELD_KVM : reason;
	}
	boost(c, from_t, from->pid, to, to_t, reason, slice, now);
	return true;
}

#endif /* BATON_YIELD_BPF_H */
