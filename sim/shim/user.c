// SPDX-License-Identifier: GPL-2.0-only
/* Any other scheduler: the file is named on the command line. */
#define SHIM_HOME
#include SHIM_SCHEDULER
