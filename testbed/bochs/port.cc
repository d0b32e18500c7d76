// SPDX-License-Identifier: GPL-2.0-only
// The emulated host's way to the outside: an I/O port that carries bytes to and from a socket. No
// read from it depends on real time. While a program on the host waits for the outside, virtual
// time stands still; else it would depend on when the outside answers.

#include "bochs.h"
#include "cpu/cpu.h"
#include "iodev/iodev.h"
#include "port.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define LOG_THIS genlog->

// What baton-agent knows as well.
#define PORT_DATA 0xba70
#define PORT_CONTROL 0xba74
#define PORT_MAGIC 0x6e746162 // "batn"

// Commands for the control port. Reading from it gives the number of bytes that wait.
#define COMMAND_WAIT 1 // stop virtual time until bytes have come
#define COMMAND_FLUSH 2 // send what was written
#define COMMAND_POLL 3 // take what has come; waits for it up to NAP_MS of real time
#define COMMAND_MAGIC 4 // the next read of the control port gives PORT_MAGIC
#define COMMAND_SAVE 5 // save the host, which then waits, and end

// A host that only polls, with nothing to do, would keep a processor of this machine busy.
#define NAP_MS 5

// How often the outside sees virtual time pass.
#define CLOCK_US 1000

// Instructions by place, in a table that the outside maps too: open addressing, places of 0 are
// free. Guests and user mode have one place each, and so have all further places of the kernel when
// half of the slots are taken: the table is never full.
#define PROFILE_SLOTS (1 << 20)
#define PROFILE_GUEST 1
#define PROFILE_USER 2
#define PROFILE_OTHER 3
#define KERNEL_START ((Bit64u)1 << 63)

struct profile_slot {
	Bit64u rip, instructions;
};

static struct profile_slot *profile;
static int outside = -1;
static const char *save_to;
static volatile Bit64u *virtual_us;

static Bit8u in[65536], out[65536];
static size_t in_start, in_end, out_end;
static bool waiting, saving, tell_magic;

static int number(const char *name)
{
	const char *text = getenv(name);
	return text ? atoi(text) : -1;
}

// The outside has gone: nobody wants the rest.
static void leave(int status)
{
	_exit(status);
}

static void flush(void)
{
	for (size_t sent = 0; sent < out_end;) {
		ssize_t done = send(outside, out + sent, out_end - sent, MSG_NOSIGNAL);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			leave(PORT_EXIT_GONE);
		sent += done;
	}
	out_end = 0;
}

// Takes what the outside has sent, waiting for it up to timeout_ms of real time; -1 is for ever.
static void take(int timeout_ms)
{
	struct pollfd ready = {outside, POLLIN, 0};

	if (in_start < in_end)
		return;
	if (poll(&ready, 1, timeout_ms) <= 0)
		return;
	ssize_t length = recv(outside, in, sizeof(in), 0);
	if (length == 0 || (length < 0 && errno != EINTR))
		leave(PORT_EXIT_GONE);
	in_start = 0;
	in_end = length > 0 ? length : 0;
}

static Bit32u read_port(void *, Bit32u address, unsigned length)
{
	if (address == PORT_CONTROL) {
		if (tell_magic) {
			tell_magic = false;
			return PORT_MAGIC;
		}
		return in_end - in_start;
	}
	Bit32u value = 0;
	for (unsigned i = 0; i < length && in_start < in_end; i++)
		value |= (Bit32u)in[in_start++] << (8 * i);
	return value;
}

static void write_port(void *, Bit32u address, Bit32u value, unsigned length)
{
	if (address == PORT_DATA) {
		for (unsigned i = 0; i < length; i++) {
			if (out_end == sizeof(out))
				flush();
			out[out_end++] = value >> (8 * i);
		}
		return;
	}
	switch (value) {
	case COMMAND_SAVE:
		saving = true;
		// fall through
	case COMMAND_WAIT:
		waiting = true;
		// The loop over the processors ends this one's turn and then calls port_wait().
		BX_CPU(0)->async_event |= BX_ASYNC_EVENT_STOP_TRACE;
		break;
	case COMMAND_FLUSH:
		flush();
		break;
	case COMMAND_POLL:
		take(NAP_MS);
		break;
	case COMMAND_MAGIC:
		tell_magic = true;
		break;
	}
}

static void show_clock(void *)
{
	*virtual_us = bx_pc_system.time_usec();
}

void port_init(void)
{
	outside = number("BATON_SOCKET");
	if (outside < 0)
		return;
	save_to = getenv("BATON_SAVE");
	waiting = SIM->get_param_bool(BXPN_RESTORE_FLAG)->get(); // as it was when it was saved
	int clock = number("BATON_CLOCK");
	void *page = mmap(NULL, sizeof(*virtual_us), PROT_READ | PROT_WRITE, MAP_SHARED, clock, 0);
	if (page == MAP_FAILED)
		BX_PANIC(("BATON_CLOCK is no file to be mapped"));
	virtual_us = (Bit64u *)page;
	int table = number("BATON_PROFILE");
	if (table >= 0) {
		page = mmap(NULL, PROFILE_SLOTS * sizeof(*profile), PROT_READ | PROT_WRITE,
			    MAP_SHARED, table, 0);
		if (page == MAP_FAILED)
			BX_PANIC(("BATON_PROFILE is no file to be mapped"));
		profile = (struct profile_slot *)page;
	}
	bx_pc_system.register_timer(NULL, show_clock, CLOCK_US, true, true, "baton clock");
	bx_devices.register_io_read_handler(NULL, read_port, PORT_DATA, "baton", 7);
	bx_devices.register_io_read_handler(NULL, read_port, PORT_CONTROL, "baton", 7);
	bx_devices.register_io_write_handler(NULL, write_port, PORT_DATA, "baton", 7);
	bx_devices.register_io_write_handler(NULL, write_port, PORT_CONTROL, "baton", 7);
}

bool port_waits(void)
{
	return waiting;
}

void port_wait(void)
{
	waiting = false;
	flush();
	if (saving)
		leave(save_to && SIM->save_state(save_to) ? PORT_EXIT_SAVED : PORT_EXIT_NOT_SAVED);
	while (in_start == in_end)
		take(-1);
}

void port_profile(BX_CPU_C *cpu)
{
	static Bit64u counted[BX_MAX_SMP_THREADS_SUPPORTED];
	static unsigned taken;

	if (!profile)
		return;
	Bit64u count = cpu->get_icount(), &before = counted[cpu->bx_cpuid];
	Bit64u instructions = before ? count - before : 0;

	before = count;
	if (!instructions)
		return;
	Bit64u rip = cpu->get_instruction_pointer();
	if (cpu->in_vmx_guest || cpu->in_svm_guest)
		rip = PROFILE_GUEST;
	else if (rip < KERNEL_START)
		rip = PROFILE_USER;
	else if (taken > PROFILE_SLOTS / 2)
		rip = PROFILE_OTHER;
	unsigned at = (rip * 0x9e3779b97f4a7c15) >> 44; // the upper 20 bits
	while (profile[at].rip && profile[at].rip != rip)
		at = (at + 1) % PROFILE_SLOTS;
	if (!profile[at].rip)
		taken++;
	profile[at].rip = rip;
	profile[at].instructions += instructions;
}

void port_reset(void)
{
	leave(PORT_EXIT_RESET);
}
