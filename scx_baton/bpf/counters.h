/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is counted, X(name, words, meaning). The words are what the simulator calls it.
 */
#ifndef BATON_COUNTERS_H
#define BATON_COUNTERS_H

/* Of the whole host. */
#define BATON_STATS(X)                                                                             \
	X(YIELDS, "yields", "directed yields that KVM asked for: some vCPU instead of a spinner")  \
	X(OBEYED, "obeyed", "of them: the vCPU ran on the spinner's slice")                        \
	X(MISSED_FOREIGN, "missed foreign", "of them: not a vCPU of the same VM")                  \
	X(MISSED_RUNNING, "missed running", "of them: the vCPU was running already")               \
	X(MISSED_ASLEEP, "missed asleep", "of them: the vCPU was asleep, or not preempted by us")  \
	X(MISSED_SPENT, "missed spent", "of them: others had used up the slice to donate")         \
	X(MISSED_RACED, "missed raced", "of them: gone when the pCPU came to take it")             \
	X(REDIRECTED, "redirected", "of them: to a better target than KVM's")                      \
	X(REFUSED, "refused",                                                                      \
	  "of them: no reason of yield-policy applied, or others would have paid")                 \
	X(PLAIN_YIELDS, "plain yields", "sched_yield(2) calls")                                    \
	X(SPINS, "spins", "PAUSE-loop exits and other spins that KVM noticed")                     \
	X(TURNS, "turns", "turns that VMs began")                                                  \
	X(GANGS, "gangs", "turns in which two or more vCPUs of the VM ran at once")                \
	X(STACKING_AVOIDED, "stacking avoided",                                                    \
	  "wake-ups of a vCPU kept off a pCPU where a sibling ran")                                \
	X(HOST_PREEMPTS, "host preempts", "vCPUs preempted by a waking host thread")               \
	X(VISITS, "visits", "pCPUs that vCPUs of VMs behind their due took for a moment")          \
	X(LENT, "lent", "pCPUs that vCPUs lent to a sibling that was sent an IPI")                 \
	X(POLLS_CUT, "polls cut", "vCPUs that polled at HLT and were preempted by a waking task")  \
	X(CORES_LEFT, "cores left",                                                                \
	  "tasks that left a core that they shared for one that was idle")                         \
	X(BOOST_NS, "boost ns", "CPU time from directed yields and lending siblings")

/* Of each VM: where the time of its vCPUs went, summed up; and what the yields were good for. */
#define VM_TIMES(X)                                                                                \
	X(ran_ns, "ran ns", "time that vCPUs ran")                                                 \
	X(ready_ns, "ready ns", "time that they waited for a pCPU")                                \
	X(throttled_ns, "throttled ns", "time that they waited for CPU time by cpu.max")           \
	X(costop_ns, "co-stop ns", "time that they waited for a pCPU while a sibling ran")         \
	X(spin_ns, "spin ns", "time from one PAUSE exit to the next one at once")                  \
	X(boost_ns, "boosted ns", "time that they ran on slices of spinners and lending siblings") \
	X(owed_ns, "IPI wait ns", "time from being sent an IPI, while not running, until running") \
	X(spins, "PAUSE exits", "PAUSE exits")                                                     \
	X(halts, "HLT exits", "HLT exits")                                                         \
	X(boosts, "boosts", "yields by spinners that were carried out")                            \
	X(useful, "useful", "of them: the spinner went on afterwards")                             \
	X(useless, "useless", "of them: the spinner spun again within 200 µs of CPU time")

#endif /* BATON_COUNTERS_H */
