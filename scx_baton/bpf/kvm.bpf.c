// SPDX-License-Identifier: GPL-2.0-only
/*
 * What KVM knows: which thread is a vCPU, of which VM, and who spins or halts. An object of its
 * own, because an attached probe pins the kvm module: it comes after kvm, and goes
 * before it.
 */
#include <scx/common.bpf.h>
#include "policy.h"
#include "owing.bpf.h"
#include "polling.bpf.h"
#include "state.bpf.h"
#include "times.bpf.h"

/* arch/x86/include/asm/apicdef.h */
#define APIC_DM_INIT 0x500
#define APIC_DM_STARTUP 0x600

/* What vmlinux.h's vCPU lacks: CONFIG_HAVE_KVM_CPU_RELAX_INTERCEPT, as x86 always has it. */
struct kvm_vcpu___spins {
	struct {
		bool in_spin_loop;
	} spin_loop;
} __attribute__((preserve_access_index));

char _license[] SEC("license") = "GPL";

static u32 vm_claim_slot(u64 kvm)
{
	struct vm_ctx *vm;
	volatile u64 *end = &shared.counts[COUNT_SLOTS_END].n;
	u32 slot, tries;
	u64 was;

	bpf_for(slot, 1, MAX_VMS + 1) {
		vm = vm_slot(slot);
		if (!vm || vm->kvm || vm->nr_queued > 0 || vm->nr_running > 0)
			continue;
		if (__sync_val_compare_and_swap(&vm->kvm, 0, kvm))
			continue;
		vm->turn_start = -TURN_NS;
		vm->spread = vm->nr_vcpus = 0;
		/* In two pieces: the compiler has no memset() of more than 1,024 bytes. */
		__builtin_memset(&vm->levels, 0,
				 offsetof(struct vm_ctx, times) - offsetof(struct vm_ctx, levels));
		barrier();
		__builtin_memset(&vm->times, 0,
				 offsetof(struct vm_ctx, path) - offsetof(struct vm_ctx, times));
		vm->weight = WEIGHT_AVERAGE;
		vm->tgid = bpf_get_current_task_btf()->tgid;
		/* VMs may come at once: the largest end stays. */
		bpf_for(tries, 0, MAX_VMS) {
			was = *end;
			if (was > slot || __sync_bool_compare_and_swap(end, was, slot + 1))
				break;
		}
		return slot;
	}
	return NO_VM;
}

static u32 vm_find_or_add(u64 kvm)
{
	struct vm_ctx *vm;
	u32 slot, *found;

	found = bpf_map_lookup_elem(&vm_by_kvm, &kvm);
	if (found)
		return *found;
	slot = vm_claim_slot(kvm);
	if (slot == NO_VM) {
		count_add(COUNT_SLOTLESS, 1);
		return NO_VM;
	}
	if (!bpf_map_update_elem(&vm_by_kvm, &kvm, &slot, BPF_NOEXIST))
		return slot;
	/* A sibling was faster: take its slot, free ours. */
	vm = vm_slot(slot);
	if (vm)
		vm->kvm = 0;
	found = bpf_map_lookup_elem(&vm_by_kvm, &kvm);
	return found ? *found : NO_VM;
}

/* Apart, as all callers would clear the record first. */
verified_once int add_vcpu(u64 key, s32 pid)
{
	struct vcpu_ctx new = {.pid = pid};

	return bpf_map_update_elem(&vcpus, &key, &new, BPF_ANY);
}

/*
 * Called whenever a thread takes a vCPU in hand: from ioctls, and each time a vCPU
 * thread is scheduled in. Only KVM_RUN sets wants_to_run, so this is the thread that
 * runs the vCPU, also when it has been inside KVM_RUN since before Baton came.
 */
SEC("fentry/kvm_arch_vcpu_load")
int BPF_PROG(baton_vcpu_load, struct kvm_vcpu *vcpu, int cpu)
{
	const struct cpu_runs_vcpu *here = runs_on(cpu);
	struct vm_ctx *vm, *old = vm_slot(here->vcpu >> 32);
	struct kvm_vcpu___spins *spins = (void *)vcpu;
	struct task_struct *p;
	struct task_ctx *t;
	u64 exits;
	u32 slot;

	/* It is known, and has just been started here: each switch comes this way. */
	if (old && old->kvm == (u64)vcpu->kvm && !here->outside)
		return 0;
	if (!vcpu->wants_to_run)
		return 0;
	p = bpf_get_current_task_btf();
	t = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!t)
		return 0;
	exits = vcpu->stat.exits;
	if (t->exits != exits) {
		t->exits = exits;
		t->outside_ns = 0;
	}
	old = vm_of(t);
	if ((old && old->kvm == (u64)vcpu->kvm) || t->outside_ns > OUTSIDE_NS)
		return 0;
	slot = vm_find_or_add((u64)vcpu->kvm);
	vm = vm_slot(slot);
	if (!vm)
		return 0;
	/* A thread may run a vCPU of one VM after one of another: what runs here is out of date. */
	runs_on(cpu)->outside = 1;
	if (old)
		__sync_fetch_and_sub(&old->nr_vcpus, 1);
	t->vtime = vm->vcpu_vnow;
	t->vm_gen = vm->gen;
	t->weight_gen = 0;
	t->wait_for = 0;
	t->vcpu_id = vcpu->vcpu_id;
	if (bpf_core_field_exists(spins->spin_loop))
		t->in_spin_loop = (u64)&spins->spin_loop.in_spin_loop;
	t->vcpu_since = scx_bpf_now();
	__builtin_memset(&t->times, 0, sizeof(t->times));
	add_vcpu(vcpu_key(slot, t->vcpu_id), p->pid);
	t->vm = slot;
	__sync_fetch_and_add(&vm->nr_vcpus, 1);
	return 0;
}

SEC("fentry/kvm_arch_destroy_vm")
int BPF_PROG(baton_destroy_vm, struct kvm *kvm)
{
	u64 key = (u64)kvm;
	u32 *slot = bpf_map_lookup_elem(&vm_by_kvm, &key);
	struct vm_ctx *vm = slot ? vm_slot(*slot) : NULL;

	if (vm && vm->kvm == key)
		vm_forget(vm);
	return 0;
}

/*
 * A PAUSE exit begins. As short as can be, with none at its end: a vCPU that is preempted in such a
 * program bypasses the scheduler's queues, and the kernel skips it for who exits on that pCPU
 * meanwhile. What is noted here is counted as the vCPU is charged (charge_spins()). That the vCPU
 * spins tells KVM's own flag (spins(), yield.bpf.h).
 */
SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(baton_on_spin, struct kvm_vcpu *me)
{
	struct cpu_runs_vcpu *here = runs_on(bpf_get_smp_processor_id());
	u64 now = scx_bpf_now(), before = here->spun_at;

	__sync_fetch_and_add(&here->spins, 1);
	here->spun_at = now;
	if (!before)
		here->spun_first = now;
	else if (vtime_before(now, before + SAME_SPIN_NS))
		spins_on(here, now - before);
	return 0;
}

/*
 * KVM delivers an interrupt to vCPU @vcpu_id. If the thread that does so is another vCPU of that
 * VM, it is an IPI, whether by ICR, hypercall or Hyper-V's ways; or an interrupt of a device
 * that is emulated in that thread. Others come from other threads, timers from the vCPU itself.
 * No look-up of the thread's storage: most IPIs are for vCPUs that run, and end here.
 */
static int delivers(u32 vcpu_id, u16 delivery_mode)
{
	u64 key = runs_on(bpf_get_smp_processor_id())->vcpu;
	struct vm_ctx *vm = vm_slot(key >> 32);

	if (vm && !vm_has_bit(vm->on_cpu, vcpu_id) && delivery_mode != APIC_DM_INIT &&
	    delivery_mode != APIC_DM_STARTUP)
		owes(vm, key >> 32, (u32)key, vcpu_id);
	return 0;
}

SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(baton_accept_irq, u32 vcpu_id, u16 delivery_mode, u16 trigger_mode, u8 vector)
{
	return delivers(vcpu_id, delivery_mode);
}

/* AVIC's IPIs to vCPUs that do not run come this way alone (avic_kick_vcpu()). */
SEC("tp_btf/kvm_apicv_accept_irq")
int BPF_PROG(baton_apicv_accept_irq, u32 vcpu_id, u16 delivery_mode, u16 trigger_mode, u8 vector)
{
	return delivers(vcpu_id, delivery_mode);
}

/*
 * A HLT: KVM polls for a while, or not, and then the thread sleeps. Polling costs nobody
 * anything as long as nobody waits: if somebody does, it is cut short by this pCPU's timer
 * (look(), cpu.bpf.h), as no switch must happen inside of this program (docs/policy-limits.md).
 */
SEC("fentry/kvm_vcpu_halt")
int BPF_PROG(baton_halt, struct kvm_vcpu *vcpu)
{
	struct task_ctx *t = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), 0, 0);
	struct vm_ctx *vm = t ? vm_of(t) : NULL;
	u64 now;

	if (!vm)
		return 0;
	now = scx_bpf_now();
	if (shared.halts_since == HALTS_NOT_SEEN && halts_followed())
		shared.halts_since = now - 1;
	__sync_fetch_and_add(&vm->times.halts, 1);
#ifdef __TARGET_ARCH_x86
	vm->own_limit = vcpu->kvm->override_halt_poll_ns;
	vm->guest_polls = !(vcpu->arch.msr_kvm_poll_control & 1);
#endif
	t->halted_at = now;
	t->slept_at = 0;
	t->ran = 0;
	poll_begins(vm, t->vcpu_id);
	/* Where KVM does not poll the thread is about to sleep; preempted, it would wait first. */
	if (vcpu->halt_poll_ns && count(COUNT_WAITING))
		look_soon(bpf_get_smp_processor_id(), POLL_CUT_NS);
	return 0;
}

/* The last thing that kvm_vcpu_halt() does; a program at its return takes a trampoline. */
SEC("tp_btf/kvm_vcpu_wakeup")
int BPF_PROG(baton_halted, u64 ns, bool waited, bool valid)
{
	struct task_ctx *t = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), 0, 0);
	struct vm_ctx *vm = t ? vm_of(t) : NULL;

	if (!vm)
		return 0;
	poll_ends(vm, t->vcpu_id);
	if (has_halted(t))
		halt_ends(&vm->halt, t, scx_bpf_now());
	t->halted_at = 0;
	return 0;
}
