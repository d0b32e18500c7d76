// SPDX-License-Identifier: GPL-2.0-only
/*
 * Cache lines that a scheduler's callbacks touch, and those that another pCPU has written since
 * this one touched them last: on hardware each of these is a transfer between caches. The scheduler
 * is compiled with -fsanitize=thread, whose calls before each access come here. What the kernel
 * itself touches, its locks and queues, is not seen.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "shim.h"

#define QUIET __attribute__((disable_sanitizer_instrumentation))

enum { LINE = 64, LINES = 1 << 20, CALLBACKS = 64, CPUS = 512 };

static struct line {
	u64 at; /* address / LINE, 0: free */
	u64 call; /* which touched it last */
	bool written; /* by anybody */
	u64 has[CPUS / 64]; /* pCPUs whose caches have it as it is */
} *lines;

static struct callback {
	const char *name;
	u64 len, calls, touched, foreign;
} callbacks[CALLBACKS];

static struct callback *under_way;
static u64 call;

QUIET static struct line *find(u64 at)
{
	u64 i = at * 0x9e3779b97f4a7c15ULL >> 44;

	if (!lines)
		lines = calloc(LINES, sizeof(*lines));
	while (lines[i].at && lines[i].at != at)
		i = (i + 1) % LINES;
	lines[i].at = at;
	return &lines[i];
}

QUIET static void begin(void)
{
	struct callback *c;

	call = shim->call;
	for (c = callbacks;
	     c->name && (c->len != shim->callback_len || memcmp(c->name, shim->callback, c->len));
	     c++)
		if (c == &callbacks[CALLBACKS - 1])
			abort();
	c->name = shim->callback;
	c->len = shim->callback_len;
	c->calls++;
	under_way = c;
}

QUIET static void touch(const volatile void *address, bool writes)
{
	u64 at = (u64)address, here, bit;
	struct line *l;

	/* The stack, and what is the simulator's own. */
	if (at - (u64)__builtin_frame_address(0) + (1 << 20) < 1 << 21 ||
	    at - (u64)shim < sizeof(*shim) || (const void *)address == &shim || !shim->call)
		return;
	if (call != shim->call)
		begin();
	l = find(at / LINE);
	here = (u64)shim->cpu / 64;
	bit = 1ULL << shim->cpu % 64;
	under_way->touched += l->call != call;
	l->call = call;
	/* A line that nobody has written is everybody's. */
	if (l->written && !(l->has[here] & bit))
		under_way->foreign++;
	if (writes) {
		memset(l->has, 0, sizeof(l->has));
		l->written = true;
	}
	l->has[here] |= bit;
}

QUIET __attribute__((destructor)) static void report(void)
{
	struct callback *c;

	for (c = callbacks; c->name; c++)
		fprintf(stderr, "lines %.*s: %llu %llu %llu\n", (int)c->len, c->name, c->calls,
			c->touched, c->foreign);
}

#define ACCESS(bytes)                                                                              \
	QUIET void __tsan_read##bytes(void *at)                                                    \
	{                                                                                          \
		touch(at, false);                                                                  \
	}                                                                                          \
	QUIET void __tsan_write##bytes(void *at)                                                   \
	{                                                                                          \
		touch(at, true);                                                                   \
	}                                                                                          \
	QUIET void __tsan_unaligned_read##bytes(void *at)                                          \
	{                                                                                          \
		touch(at, false);                                                                  \
	}                                                                                          \
	QUIET void __tsan_unaligned_write##bytes(void *at)                                         \
	{                                                                                          \
		touch(at, true);                                                                   \
	}

ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

#define RMW(bits, name, type)                                                                      \
	QUIET type __tsan_atomic##bits##_##name(volatile type *at, type n, int order)              \
	{                                                                                          \
		touch(at, true);                                                                   \
		return __atomic_##name(at, n, __ATOMIC_SEQ_CST);                                   \
	}

#define ATOMIC(bits, type)                                                                         \
	RMW(bits, fetch_add, type)                                                                 \
	RMW(bits, fetch_sub, type)                                                                 \
	RMW(bits, fetch_and, type)                                                                 \
	RMW(bits, fetch_or, type)                                                                  \
	RMW(bits, exchange_n, type)                                                                \
	QUIET type __tsan_atomic##bits##_exchange(volatile type *at, type n, int order)            \
	{                                                                                          \
		return __tsan_atomic##bits##_exchange_n(at, n, order);                             \
	}                                                                                          \
	QUIET type __tsan_atomic##bits##_compare_exchange_val(volatile type *at, type was, type n, \
							      int order, int failed)               \
	{                                                                                          \
		touch(at, true);                                                                   \
		__atomic_compare_exchange_n(at, &was, n, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
		return was;                                                                        \
	}

ATOMIC(32, u32)
ATOMIC(64, u64)

QUIET void __tsan_init(void)
{
}
QUIET void __tsan_func_entry(void *from)
{
}
QUIET void __tsan_func_exit(void)
{
}

QUIET static void touch_all(const void *at, size_t n, bool writes)
{
	const u8 *byte;

	for (byte = at; byte < (const u8 *)at + n; byte += LINE - (u64)byte % LINE)
		touch(byte, writes);
}

QUIET void *__tsan_memset(void *at, int value, size_t n)
{
	touch_all(at, n, true);
	return memset(at, value, n);
}

QUIET void *__tsan_memcpy(void *to, const void *from, size_t n)
{
	touch_all(from, n, false);
	touch_all(to, n, true);
	return memcpy(to, from, n);
}
