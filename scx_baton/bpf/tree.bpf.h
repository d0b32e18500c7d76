/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a host task or a VM weighs in the tree of cgroups. Each cgroup divides what it gets among
 * its children that want the CPU, by cpu.weight: those that do not want it must not count, and
 * who does is not known but from what happened. So time is cut into epochs; once in each, whoever
 * runs is counted, with its weight times the part of the time since it was counted last in which
 * it ran or waited for a pCPU, for the epochs to come. Nothing is walked for it but the path
 * upwards.
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

/* A child counts for fewer epochs than that before it is counted again; a power of two. */
#define EPOCHS_AHEAD 32

/* Of the children of a cgroup. */
struct tree_count {
	s64 sum; /* their weights, times the ns of an epoch in which each wants the CPU */
	s64 wants; /* these ns */
};

struct cgrp_ctx {
	u64 epoch;
	u64 sum; /* what counts in this epoch, at least 0 */
	u64 wants;
	struct tree_count count; /* the same, as it was counted */
	struct tree_count ahead[EPOCHS_AHEAD]; /* how that changes in epochs to come */
	struct tree_child child;
	u64 heir_vtime; /* where the next task begins that is made here */
	u64 heir_since; /* ns; 0: as any */
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

/* How many tasks and VMs want the CPU, in 256ths. */
static u64 entities(void)
{
	return everybody.wants >> (EPOCH_SHIFT - 8);
}

/* Kernels without CONFIG_SCHED_CORE have no cookie. */
struct task_struct___core {
	unsigned long core_cookie;
} __attribute__((preserve_access_index));

static bool has_core_cookie(struct task_struct *p)
{
	struct task_struct___core *core = (void *)p;

	return bpf_core_field_exists(core->core_cookie) && BPF_CORE_READ(core, core_cookie);
}

static inline struct tree_count *ahead_of(struct cgrp_ctx *c, u64 epoch)
{
	return &c->ahead[epoch & (EPOCHS_AHEAD - 1)];
}

/* An epoch has begun since the last look: one of the pCPUs that see it comes here in time. */
verified_once int begin_epoch(struct cgrp_ctx *c __arg_nonnull, u64 epoch)
{
	struct tree_count *ahead;
	u64 was = c->epoch, gap, i;

	/* The clocks of two pCPUs may differ a little. */
	if (was >= epoch || __sync_val_compare_and_swap(&c->epoch, was, epoch) != was)
		return 0;
	gap = epoch - was < EPOCHS_AHEAD ? epoch - was : EPOCHS_AHEAD;
	bpf_for(i, 0, gap) {
		ahead = ahead_of(c, epoch - i);
		__sync_fetch_and_add(&c->count.sum, __sync_lock_test_and_set(&ahead->sum, 0));
		__sync_fetch_and_add(&c->count.wants, __sync_lock_test_and_set(&ahead->wants, 0));
	}
	/*
	 * What another pCPU adds to this epoch right now is added EPOCHS_AHEAD late, and taken off
	 * in time: until then the sum is wrong by that child.
	 */
	c->sum = c->count.sum > 0 ? c->count.sum : 0;
	c->wants = c->count.wants > 0 ? c->count.wants : 0;
	return 0;
}

static void count_from(struct cgrp_ctx *c, u64 epoch, u32 weight, s64 wants)
{
	struct tree_count *ahead = ahead_of(c, epoch);

	__sync_fetch_and_add(&ahead->sum, weight * wants);
	__sync_fetch_and_add(&ahead->wants, wants);
}

/*
 * When was @child counted before? @now: it was in this epoch, or less than half of one ago, as
 * where a turn goes on across its begin. Of the pCPUs that ask at once one is told, and counts it.
 */
static u64 counted_before(struct tree_child *child, u64 now)
{
	u64 before = child->counted_at;

	if (before >> EPOCH_SHIFT >= now >> EPOCH_SHIFT ||
	    (before && now - before < EPOCH_NS / 2) ||
	    __sync_val_compare_and_swap(&child->counted_at, before, now) != before)
		return now;
	return before;
}

/*
 * @child of @c, counted @before, wants the CPU for @wants ns of an epoch, from the next one on: for
 * twice as long as it was not counted, unless it is before. One that waits for several epochs is
 * not seen in most and counts in all: a tenant would get more than its share, else, by starting
 * hundreds of VMs.
 */
verified_once int count_child(struct cgrp_ctx *c, struct tree_child *child __arg_nonnull,
			      u32 weight, u32 wants, u64 before)
{
	u64 epochs, from;

	if (!c)
		return 0;
	from = c->epoch + 1;
	epochs = before ? 2 * (c->epoch - (before >> EPOCH_SHIFT)) : 1;
	if (epochs >= EPOCHS_AHEAD)
		epochs = EPOCHS_AHEAD - 1;
	if (from < child->until) {
		count_from(c, from, child->weight, -(s64)child->wants);
		count_from(c, child->until, child->weight, child->wants);
	}
	count_from(c, from, weight, wants);
	count_from(c, from + epochs, weight, -(s64)wants);
	child->weight = weight;
	child->wants = wants;
	child->until = from + epochs;
	return 0;
}

/* For so many epochs counts what has wanted the CPU before it was counted: in one it would jump. */
#define PAST_EPOCHS 4

/*
 * The task @child of @c, counted for the first time, or as it ends, has wanted the CPU for @wants
 * ns: those of which that is told in an epoch say how many there are at a time.
 */
static void count_past(struct cgrp_ctx *c, const struct tree_child *child, u32 weight, u64 wants)
{
	u64 from = c->epoch + 1;

	if (child->wants)
		return;
	if (wants > PAST_EPOCHS * EPOCH_NS)
		wants = PAST_EPOCHS * EPOCH_NS;
	wants /= PAST_EPOCHS;
	count_from(c, from, weight, wants);
	count_from(c, from + PAST_EPOCHS, weight, -(s64)wants);
	count_from(&everybody, from, 0, wants);
	count_from(&everybody, from + PAST_EPOCHS, 0, -(s64)wants);
}

/* The task @child of @c ends, and has wanted the CPU for @wants ns since it was counted. */
static void uncount(struct cgrp_ctx *c, struct tree_child *child, u32 weight, u64 wants)
{
	struct tree_child same = *child;

	count_past(c, child, weight, wants);
	count_child(&everybody, &same, 0, 0, 0);
	count_child(c, child, weight, 0, 0);
}

/* @c counts among the children of @parent, once an epoch; one below it wants the CPU for @wants. */
static void count_cgroup(struct cgrp_ctx *parent, struct cgrp_ctx *c, u64 wants, u64 now)
{
	u64 before = counted_before(&c->child, now);

	if (before == now)
		return;
	if (wants < c->wants)
		wants = c->wants;
	count_child(parent, &c->child, c->weight, wants < EPOCH_NS ? wants : EPOCH_NS, before);
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
	struct tree_child *child;
	u64 was, is, next;

	if (!c)
		return;
	parent = cgrp_at(cgrp, cgrp->level - 1);
	child = &c->child;
	if (parent && parent->epoch < child->until) {
		was = (u64)child->wants * child->weight;
		is = (u64)child->wants * weight;
		parent->sum = parent->sum > was ? parent->sum - was + is : is;
		/* And in the epochs for which it counts. */
		next = parent->epoch + 1;
		if (next < child->until) {
			__sync_fetch_and_add(&ahead_of(parent, next)->sum, is - was);
			__sync_fetch_and_add(&ahead_of(parent, child->until)->sum, was - is);
			child->weight = weight;
		}
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

/*
 * For how many ns of an epoch does a VM, or a host task, want the CPU, judging by the time since it
 * was counted, @before?
 */
static u32 wanted(struct task_ctx *t, struct vm_ctx *vm, u64 before, u64 now)
{
	u64 all, since = before ? now - before : EPOCH_NS;

	if (vm) {
		all = vm->times.ran_ns + vm->times.ready_ns;
		all -= __sync_lock_test_and_set(&vm->wanted_before, all);
		/* Waits that go on are not in it yet. */
		if (vm->nr_queued > 0)
			all += elapsed(vm->queued_since, now);
	} else {
		all = __sync_lock_test_and_set(&t->wants, 0);
	}
	/* However many vCPUs it has, it is one. */
	if (all > since)
		all = since;
	/* It is shifted below, and more than a minute is told roughly. */
	if (since >> (64 - EPOCH_SHIFT)) {
		all >>= EPOCH_SHIFT;
		since >>= EPOCH_SHIFT;
	}
	return (all << EPOCH_SHIFT) / since;
}

/* A walk along the path from the root to a task's cgroup. */
struct walk {
	u64 share; /* what the task or the VM gets of all */
	u64 inner; /* what the vCPU weighs inside its VM */
	u64 now;
	u64 epoch;
	u32 wants; /* ns of an epoch in which the task or the VM wants the CPU */
	u64 sum; /* of the cgroup at @parent */
	s32 parent; /* level of the last one that counts its children; negative: none */
	u32 quota; /* slot of the last one that has a quota; 0: none so far */
	u32 nr_quotas;
	bool first; /* of this VM */
};

/*
 * The walk has come to a cgroup with the quota in slot @slot. Of more than MAX_QUOTA_LEVELS the
 * outer ones are enforced: a tenant that nests them would end the scheduler for all, else.
 */
static void link_quota(struct walk *w, u32 slot)
{
	struct quota *q = quota_slot(slot);

	if (w->nr_quotas >= MAX_QUOTA_LEVELS) {
		count_add(COUNT_QUOTALESS, 1);
		return;
	}
	if (q->above != w->quota)
		q->above = w->quota;
	w->quota = slot;
	w->nr_quotas++;
}

/*
 * The walk to @cgrp has come to @level: note the quota there, count the cgroup, and take its
 * share.
 */
verified_once int walk_level(struct cgroup *cgrp __arg_trusted, u32 level,
			     struct walk *w __arg_nonnull, struct vm_ctx *vm)
{
	struct cgrp_ctx *c = cgrp_at(cgrp, level);

	if (!c)
		return 0;
	if (c->quota)
		link_quota(w, c->quota);
	if (vm && !vm_shares(vm, c, level, w->first)) {
		w->inner = w->inner * c->weight / WEIGHT_DFL;
		return 0;
	}
	begin_epoch(c, w->epoch);
	if (w->parent >= 0) {
		w->share = share_of(w->share, w->sum, c->weight);
		/* Else it would look up the one above in vain. */
		if (c->child.counted_at >> EPOCH_SHIFT != w->epoch)
			count_cgroup(cgrp_at(cgrp, w->parent), c, w->wants, w->now);
	}
	w->sum = c->sum;
	w->parent = level;
	return 0;
}

/* For how many ns has who takes the walk wanted the CPU since it was counted, @before? */
static u64 wants_ns(const struct walk *w, u64 before)
{
	u64 since = w->now - before;

	if (since > PAST_EPOCHS * EPOCH_NS)
		since = PAST_EPOCHS * EPOCH_NS;
	return w->wants * since >> EPOCH_SHIFT;
}

/* Tell in @w what the task or the VM gets; where nothing is known of its cgroup, all. */
static void walk_tree(struct task_struct *p, struct task_ctx *t, struct vm_ctx *vm, struct walk *w)
{
	struct tree_child *child = vm ? &vm->child : &t->child, same;
	u64 before = counted_before(child, w->now);
	u32 weight = p->scx.weight, level;
	struct cgroup *cgrp;
	struct cgrp_ctx *c;

	cgrp = scx_bpf_task_cgroup(p);
	if (!cgrp)
		return;
	if (before != w->now)
		w->wants = wanted(t, vm, before, w->now);
	w->first = vm && !vm->levels;
	if (vm && vm->levels > cgrp->level + 1)
		vm->levels = cgrp->level + 1;
	bpf_for(level, 0, cgrp->level + 1)
		walk_level(cgrp, level, w, vm);
	if (vm && w->first)
		vm->levels = cgrp->level + 1;
	if (w->parent >= 0) {
		w->share = share_of(w->share, w->sum, weight);
		if (before != w->now) {
			c = cgrp_at(cgrp, w->parent);
			if (!vm && c && before)
				count_past(c, child, weight, wants_ns(w, before));
			same = *child;
			count_child(&everybody, &same, 0, w->wants, before);
			count_child(c, child, weight, w->wants, before);
		}
	}
	bpf_cgroup_release(cgrp);
}

/* A vCPU's weight inside its VM has 32 bits. */
#define INNER_MOST (~0U / WEIGHT_AVERAGE * WEIGHT_DFL)

/* What @p weighs, and what its VM does, from @now on. */
verified_once int weigh(struct task_struct *p __arg_trusted, u64 gen, u64 now)
{
	struct walk w = {
		.share = TREE_ALL,
		.inner = p->scx.weight,
		.now = now,
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
	begin_epoch(&everybody, w.epoch);
	walk_tree(p, t, vm, &w);
	t->quota = w.quota;
	weight = tree_weight(w.share, entities());
	if (!vm) {
		t->weight = weight;
		return 0;
	}
	/* nice -20 below two cgroups of weight 10,000 is more than fits. */
	if (w.inner > INNER_MOST)
		w.inner = INNER_MOST;
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
