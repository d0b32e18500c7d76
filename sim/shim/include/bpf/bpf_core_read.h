/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BATON_SHIM_BPF_CORE_READ_H
#define BATON_SHIM_BPF_CORE_READ_H

/* Fields that only some kernels have are not in the simulator's records. */
/* The simulated kernel has every field that is asked for but core scheduling's. */
#define bpf_core_field_exists(field) (!__builtin_strstr(#field, "core_cookie"))
#define bpf_core_type_exists(type) (0)
#define BPF_CORE_READ(p, field) ((p)->field)

#endif /* BATON_SHIM_BPF_CORE_READ_H */
