/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a host task or a VM weighs in the tree of cgroups. Each cgroup divides what it gets among
 * its children that want the CPU, by cpu.weight: those that do not want it must not count, and
 * who does is not known but from what happened. So time is cut into epochs; in each one every
 * child counts with its weight times the part of the epoch before in which it ran or waited for
 * a pCPU. That is looked up once an epoch by each that runs, and nothing is walked for it but
 * the path upwards.
 *
 * A VM is one child, of the cgroup that the threads of all its vCPUs share; the cgroups below it
 * (libvirt has one for each vCPU) weigh inside the VM.
 */
#ifndef BATON_TREE_BPF_H
#define BATON_TREE_BPF_H

#include "quota.bpf.h"
#include "vnow.bpf.h"

/* 2^28 ns, a quarter of a second: some turns of each VM. */
#define EPOCH_SHIFT 28
#define EPOCH_NS (1ULL << EPOCH_SHIFT)

/* Rises with every change of a weight or a quota anywhere in the tree. */
static u64 cgroup_gen = 1;

const volatile bool smt_active;
static u32 nr_cpu_ids, nr_online;

struct cgrp_ctx {
	u64 epoch;
	u64 sum; /* of the weights of the children, times the ns for which they count */
	u64 sum_before; /* in the epoch before */
	u64 wants; /* ns in which they wanted the CPU, one by one */
	u64 wants_before;
	/* the same of children that waited for longer than an epoch: still to be counted */
	u64 late_sum;
	u64 late_wants;
	u64 counted; /* the epoch in which it was counted with its parent */
	u32 weight; /* cpu.weight */
	u32 quota; /* slot of its cpu.max; 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct cgrp_ctx);
} cgroups SEC(".maps");

/* The time for which all that wanted the CPU did so. */
static struct cgrp_ctx everybody;

/* Kernels without CONFIG_SCHED_CORE have no cookie. */
struct task_struct___core {
	unsigned long core_cookie;
} __attribute__((preserve_access_index));

static bool has_core_cookie(struct task_struct *p)
{
	struct task_struct___core *core = (void *)p;

	return bpf_core_field_exists(core->core_cookie) && BPF_CORE_READ(core, core_cookie);
}

/* What counts of an epoch, @gap epochs ago, and a part of what is @late. */
static u64 of_epoch(u64 counted, u64 *late, u64 gap)
{
	u64 part = gap < 4 ? *late * gap / 4 : *late;

	__sync_fetch_and_sub(late, part);
	return (counted + part) / (gap ?: 1);
}

/*
 * An epoch has begun since the last look: one of the pCPUs that see it comes here in time. What
 * was counted long ago still counts if whoever comes has @waited since.
 */
verified_once int begin_epoch(struct cgrp_ctx *c, u64 epoch, bool waited)
{
	u64 was, sum, wants;

	if (!c)
		return 0;
	was = c->epoch;
	if (was == epoch || __sync_val_compare_and_swap(&c->epoch, was, epoch) != was)
		return 0;
	sum = of_epoch(__sync_lock_test_and_set(&c->sum, 0), &c->late_sum, epoch - was);
	wants = of_epoch(__sync_lock_test_and_set(&c->wants, 0), &c->late_wants, epoch - was);
	waited |= was + 1 == epoch;
	c->sum_before = waited ? sum : 0;
	c->wants_before = waited ? wants : 0;
	return 0;
}

/*
 * A child of @c wanted the CPU for so long. One that waits for longer than an epoch is not seen in
 * some, and counts in others for that: a tenant would get more than its share, else, by starting
 * hundreds of VMs or threads.
 */
verified_once int count_child(struct cgrp_ctx *c, u32 weight, u64 wants)
{
	if (!c)
		return 0;
	if (wants > EPOCH_NS) {
		__sync_fetch_and_add(&c->late_sum, weight * (wants - EPOCH_NS));
		__sync_fetch_and_add(&c->late_wants, wants - EPOCH_NS);
		wants = EPOCH_NS;
	}
	__sync_fetch_and_add(&c->sum, weight * wants);
	__sync_fetch_and_add(&c->wants, wants);
	return 0;
}

/* @c counts among the children of @parent, once an epoch, or for all since then if @waited. */
verified_once int count_cgroup(struct cgrp_ctx *parent, struct cgrp_ctx *c, u64 epoch, bool waited)
{
	u64 epochs, wants;

	if (!parent || !c || c->counted == epoch)
		return 0;
	epochs = waited ? epoch - c->counted : 1;
	wants = c->wants_before < EPOCH_NS ? c->wants_before : EPOCH_NS;
	c->counted = epoch;
	return count_child(parent, c->weight, wants * epochs);
}

/*
 * @t is below a cgroup with the quota in slot @quota. Of more than MAX_QUOTA_LEVELS the outer ones
 * are enforced: a tenant that nests them would end the scheduler for all, else.
 */
verified_once int note_quota(struct task_ctx *t, u32 quota)
{
	u32 nr;

	if (!t)
		return 0;
	nr = t->nr_quotas;
	if (nr >= MAX_QUOTA_LEVELS) {
		count_add(COUNT_QUOTALESS, 1);
		return 0;
	}
	t->quotas[nr & (MAX_QUOTA_LEVELS - 1)] = quota;
	t->nr_quotas = nr + 1;
	return 0;
}

/* What is kept of the cgroup at @level of the path to @cgrp, or NULL. */
static struct cgrp_ctx *cgrp_at(struct cgroup *cgrp, s32 level)
{
	struct cgroup *at = level < 0 ? NULL : bpf_cgroup_ancestor(cgrp, level);
	struct cgrp_ctx *c;

	if (!at)
		return NULL;
	c = bpf_cgrp_storage_get(&cgroups, at, 0, 0);
	bpf_cgroup_release(at);
	return c;
}

/* The cpu.weight of @cgrp changes: at once also in what its siblings are measured against. */
static void change_weight(struct cgroup *cgrp, u32 weight)
{
	struct cgrp_ctx *c = bpf_cgrp_storage_get(&cgroups, cgrp, 0, 0), *parent;
	u64 was, is;

	if (!c)
		return;
	parent = cgrp_at(cgrp, cgrp->level - 1);
	/* It may have been counted there for less. */
	if (parent) {
		is = c->wants_before < EPOCH_NS ? c->wants_before : EPOCH_NS;
		was = is * c->weight;
		is *= weight;
		parent->sum_before = parent->sum_before > was ? parent->sum_before - was + is : is;
	}
	c->weight = weight;
	__sync_fetch_and_add(&cgroup_gen, 1);
}

/*
 * What a child gets of a cgroup's @share, where @sum is that of all its children. Weights can be 1:
 * they are compared in 256ths.
 */
static u64 share_of(u64 share, u64 sum, u32 weight)
{
	return tree_share(share, weight << 8, sum >> (EPOCH_SHIFT - 8));
}

/* Is the cgroup at @level of a vCPU's path one that all vCPUs of the VM are in? */
static bool vm_shares(struct vm_ctx *vm, const struct cgrp_ctx *c, u32 level, bool first)
{
	u64 *at = &vm->path[level & (MAX_LEVELS - 1)], record = (u64)c;

	if (level >= MAX_LEVELS)
		return false;
	if (first)
		*at = record;
	else if (level < vm->levels && *at != record)
		vm->levels = level;
	return first || level < vm->levels;
}

/* How long a VM or a host task wanted the CPU since it was last asked, once an epoch. */
static u64 wanted(struct task_ctx *t, struct vm_ctx *vm, u64 epoch)
{
	u64 all, before, epochs;

	if (!vm)
		return __sync_lock_test_and_set(&t->wants, 0);
	epochs = epoch - vm->counted;
	vm->counted = epoch;
	all = vm->times.ran_ns + vm->times.ready_ns;
	before = __sync_lock_test_and_set(&vm->wanted_before, all);
	all = vtime_before(before, all) ? all - before : 0;
	/* However many vCPUs it has, it is one. */
	return all < epochs * EPOCH_NS ? all : epochs * EPOCH_NS;
}

/* A walk along the path from the root to a task's cgroup. */
struct walk {
	u64 share; /* what the task or the VM gets of all */
	u64 inner; /* what the vCPU weighs inside its VM */
	u64 epoch;
	u64 sum; /* sum_before of the cgroup at @parent */
	s32 parent; /* level of the last one that counts its children; negative: none */
	bool first; /* of this VM */
	bool waited;
};

/*
 * The walk to @cgrp has come to @level: note the quota there, count the cgroup, and take its
 * share.
 */
verified_once int walk_level(struct cgroup *cgrp __arg_trusted, u32 level, struct walk *w,
			     struct task_ctx *t, struct vm_ctx *vm)
{
	struct cgrp_ctx *c = cgrp_at(cgrp, level);

	if (!c || !w)
		return 0;
	if (c->quota)
		note_quota(t, c->quota);
	if (vm && !vm_shares(vm, c, level, w->first)) {
		w->inner = w->inner * c->weight / WEIGHT_DFL;
		return 0;
	}
	begin_epoch(c, w->epoch, w->waited);
	if (w->parent >= 0) {
		w->share = share_of(w->share, w->sum, c->weight);
		/* Else it would look up the one above in vain. */
		if (c->counted != w->epoch)
			count_cgroup(cgrp_at(cgrp, w->parent), c, w->epoch, w->waited);
	}
	w->sum = c->sum_before;
	w->parent = level;
	return 0;
}

/* All levels, from the root on. */
verified_once int walk_path(struct cgroup *cgrp __arg_trusted, struct walk *w, struct task_ctx *t,
			    struct vm_ctx *vm)
{
	u32 level;

	bpf_for(level, 0, cgrp->level + 1)
		walk_level(cgrp, level, w, t, vm);
	return 0;
}

/* Tell in @w what the task or the VM gets; where nothing is known of its cgroup, all. */
static void walk_tree(struct task_struct *p, struct task_ctx *t, struct vm_ctx *vm, struct walk *w)
{
	u32 weight = p->scx.weight;
	struct cgroup *cgrp;
	u64 wants = 0;
	bool counts;

	cgrp = scx_bpf_task_cgroup(p);
	if (!cgrp)
		return;
	counts = !vm || vm->counted != w->epoch;
	if (counts)
		wants = wanted(t, vm, w->epoch);
	w->waited = wants > EPOCH_NS;
	w->first = vm && !vm->levels;
	if (vm && vm->levels > cgrp->level + 1)
		vm->levels = cgrp->level + 1;
	walk_path(cgrp, w, t, vm);
	if (vm && w->first)
		vm->levels = cgrp->level + 1;
	if (w->parent >= 0) {
		w->share = share_of(w->share, w->sum, weight);
		if (counts) {
			count_child(cgrp_at(cgrp, w->parent), weight, wants);
			count_child(&everybody, 0, wants);
		}
	}
	bpf_cgroup_release(cgrp);
}

/* What @p weighs, and what its VM does, from @now on. */
verified_once int weigh(struct task_struct *p __arg_trusted, u64 gen, u64 now)
{
	struct walk w = {
		.share = TREE_ALL,
		.inner = p->scx.weight,
		.epoch = now >> EPOCH_SHIFT,
		.parent = -1,
	};
	struct task_ctx *t = task_ctx(p);
	struct vm_ctx *vm;
	u32 weight;

	if (!t)
		return 0;
	vm = vm_of(t);
	t->weight_gen = gen;
	t->nr_quotas = 0;
	begin_epoch(&everybody, w.epoch, false);
	walk_tree(p, t, vm, &w);
	weight = tree_weight(w.share, everybody.wants_before >> (EPOCH_SHIFT - 8));
	if (!vm) {
		t->weight = weight;
		return 0;
	}
	t->weight = w.inner * WEIGHT_AVERAGE / WEIGHT_DFL ?: 1;
	if (smt_active && has_core_cookie(p))
		scx_bpf_exit(EXIT_CORE_SCHED, "vCPU thread %s[%d] has a core-scheduling cookie",
			     p->comm, p->pid);
	/* A VM seen for the first time starts level with the others. */
	if (!vm->weight_gen)
		vm->vtime = vnow;
	vm->weight_gen = gen;
	vm->weight = weight;
	return 0;
}

/* Once an epoch, and after a change in the tree. */
static void refresh_weight(struct task_struct *p, struct task_ctx *t, struct vm_ctx *vm, u64 now)
{
	u64 gen = cgroup_gen + (now >> EPOCH_SHIFT);

	if (t->weight_gen != gen || (vm && vm->weight_gen != gen))
		weigh(p, gen, now);
}

#endif /* BATON_TREE_BPF_H */
