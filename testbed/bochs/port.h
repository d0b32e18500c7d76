/* SPDX-License-Identifier: GPL-2.0-only */
/* What the emulator's main loop needs of port.cc. */

/* Exit statuses, which testbed/src/exact/machine.rs knows as well. */
#define PORT_EXIT_SAVED 90 /* the host was saved */
#define PORT_EXIT_NOT_SAVED 91 /* it could not be saved */
#define PORT_EXIT_RESET 92 /* the host was restarted or switched off */
#define PORT_EXIT_GONE 93 /* the outside closed the socket */

/* Registers the port, if the environment names a socket. */
void port_init(void);

/* Whether a program on the host waits for the outside. */
bool port_waits(void);

/* Waits for the outside, between two rounds of the processors. */
void port_wait(void);

/* A processor has had its turn: counts what it has executed where it stands now, if asked for. */
class BX_CPU_C;
void port_profile(BX_CPU_C *cpu);

/* The host was reset. */
void port_reset(void);
