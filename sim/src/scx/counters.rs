// SPDX-License-Identifier: GPL-2.0-only
//! scx_baton's counters, as `enum baton_stat` and `shim_vm_times()` number them.

/// Name and meaning of each counter of the whole host.
pub const COUNTERS: [(&str, &str); 20] = [
    ("yields", "directed yields seen: vCPUs that KVM asked to run instead of a spinner"),
    ("obeyed", "of them: the vCPU ran on the spinner's slice"),
    ("missed foreign", "of them: not a vCPU of the same VM"),
    ("missed running", "of them: the vCPU was running already"),
    ("missed asleep", "of them: the vCPU was asleep"),
    ("missed spent", "of them: the slice to donate was used up by others before"),
    ("missed raced", "of them: gone when the pCPU came to take it"),
    ("redirected", "of them: to a better target than KVM's"),
    ("refused", "of them: no reason of yield-policy applied, or others would have paid"),
    ("plain yields", "sched_yield(2) calls"),
    ("spins", "PAUSE-loop exits and other spins that KVM noticed"),
    ("turns", "turns that VMs began"),
    ("gangs", "turns in which two or more vCPUs of the VM ran at once"),
    ("stacking avoided", "wake-ups of a vCPU kept off a pCPU where a sibling ran"),
    ("host preempts", "vCPUs preempted by a waking host thread"),
    ("visits", "pCPUs that vCPUs of VMs behind their due took for a moment"),
    ("lent", "pCPUs that vCPUs lent to a sibling that was sent an IPI"),
    ("polls cut", "vCPUs that polled at HLT and were preempted by a waking task"),
    ("cores left", "tasks that left a core that they shared for one that was idle"),
    ("boost ns", "CPU time from directed yields and lending siblings"),
];

/// What is counted of any sched_ext scheduler.
pub const WALK: (&str, &str) =
    ("longest walk", "tasks of queues that one callback has looked at, the most");

/// Name and meaning of each sum over all VMs.
pub const VM_TIMES: [(&str, &str); 12] = [
    ("ran ns", "time that vCPUs ran"),
    ("ready ns", "time that they waited for a pCPU"),
    ("throttled ns", "time that they waited for CPU time by cpu.max"),
    ("co-stop ns", "time that they waited for a pCPU while a sibling ran"),
    ("spin ns", "time from one PAUSE exit to the next one at once"),
    ("boosted ns", "time that they ran on the slices of spinners and lending siblings"),
    ("IPI wait ns", "time from being sent an IPI, while not running, until running"),
    ("PAUSE exits", "PAUSE exits"),
    ("HLT exits", "HLT exits"),
    ("boosts", "yields by spinners that were carried out"),
    ("useful", "of them: the spinner went on afterwards"),
    ("useless", "of them: the spinner spun again within 200 µs of CPU time"),
];

/// Of the models of CFS and EEVDF.
pub const FAIR_COUNTERS: [(&str, &str); 2] = [
    ("yields asked", "directed yields that KVM tried"),
    ("yields obeyed", "of them: the vCPU was picked next"),
];
