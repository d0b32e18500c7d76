/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BATON_SHIM_BPF_TRACING_H
#define BATON_SHIM_BPF_TRACING_H

#define BPF_PROG(name, ...) name(__VA_ARGS__)

#endif /* BATON_SHIM_BPF_TRACING_H */
