// SPDX-License-Identifier: GPL-2.0-only
//! What can be measured. Everything that a test's parameters stand for is written beside them.

use std::time::Duration;

use kvm_ioctls::{Cap, Kvm};

use crate::host;
use crate::layout::*;
use crate::polling::FixedPolling;

/// What a test gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gives {
    /// Latencies, in ns, of vCPU 0: the names of its series.
    Latencies(&'static [&'static str]),
    /// What all vCPUs do in a second.
    Rate(&'static str),
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Test {
    pub name: String,
    /// One line.
    pub what: String,
    pub gives: Gives,
    pub(crate) test: u64,
    pub(crate) args: Args,
    pub(crate) vcpus: Vcpus,
    pub(crate) x2apic: bool,
    pub(crate) poll: Poll,
    pub(crate) io_time: Option<Duration>,
    pub(crate) more_slots: u32,
    /// KVM logs writes to those slots; the host measures how long it takes to read the logs.
    pub(crate) log_dirty: bool,
    /// A thread of the host computes on the CPU of vCPU 1.
    pub(crate) rival: bool,
    /// The test whose first series shows what could be reached.
    pub(crate) reference: Option<&'static str>,
    /// Memory of its own, of which each sample touches a page for the first time.
    pub(crate) touches: bool,
    /// It idles: what it costs is the CPU time that vCPU 0 uses.
    pub(crate) idles: bool,
    /// Samples of a run at most, where one takes long.
    pub(crate) most_samples: u64,
    /// The curve that its medians belong to, what is on the x axis there, and where.
    pub(crate) on_curve: Option<(String, f64)>,
}

/// How long KVM polls at HLT before the thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Poll {
    Off,
    /// Always so long, ns.
    Fixed(u32),
    /// As the host is set: KVM grows and shrinks the time.
    Adaptive,
}

/// Times are in ns here; the guest wants TSC cycles.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Args {
    Plain([u64; 4]),
    /// The one at this place is a time.
    Time(usize, [u64; 4]),
    /// So many at the beginning are times.
    Times(usize, [u64; 4]),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Vcpus {
    /// As many, whatever the user says.
    Exactly(u32),
    /// As the user says, but at least so many.
    Wanted(u32),
}

const COST: Gives = Gives::Latencies(&["cost"]);
const IPI: Gives = Gives::Latencies(&["send", "one-way", "round-trip"]);
const CALL: Gives = Gives::Latencies(&["send", "all acknowledged"]);
const TIMER: Gives = Gives::Latencies(&["arm", "late", "late in program"]);
const PING_PONG: Gives = Gives::Latencies(&["wake other", "wake self"]);
const REQUEST: Gives = Gives::Latencies(&["request"]);
const PASS: Gives = Gives::Latencies(&["pass"]);

/// Multiply-adds between barriers: 100 µs at 3 GHz, as the testbed's guests compute; each takes 4
/// cycles.
const BARRIER_WORK: u64 = 75_000;

/// Multiply-adds under a lock and outside of it: 2 µs and 6 µs at 3 GHz. Held for a quarter of the
/// time, the lock is contended with four vCPUs, and not the bottleneck with two.
const LOCK_INSIDE: u64 = 1500;
const LOCK_OUTSIDE: u64 = 4500;

/// A halted target has been so for this long: beyond KVM's default limit of halt polling (200 µs).
const HALTED_NS: u64 = 300_000;

/// As the number of an IPI's targets.
pub(crate) const ALL_OTHERS: u64 = 0;

/// Between two calls, multiply-adds: 10 µs at 3 GHz.
const CALL_WORK: u64 = 7500;

impl Test {
    fn new(name: impl Into<String>, what: impl Into<String>, gives: Gives, test: u64) -> Self {
        Test {
            name: name.into(),
            what: what.into(),
            gives,
            test,
            args: Args::Plain([0; 4]),
            vcpus: Vcpus::Exactly(1),
            x2apic: true,
            poll: Poll::Adaptive,
            io_time: None,
            more_slots: 0,
            log_dirty: false,
            rival: false,
            reference: None,
            touches: false,
            idles: false,
            most_samples: MAX_SAMPLES as u64,
            on_curve: None,
        }
    }

    fn curve(self, name: impl Into<String>, x: f64) -> Self {
        Test { on_curve: Some((name.into(), x)), ..self }
    }

    /// How many vCPUs it takes at least, where the user says how many.
    pub fn least_vcpus(&self) -> u32 {
        match self.vcpus {
            Vcpus::Exactly(_) => 1,
            Vcpus::Wanted(least) => least,
        }
    }

    /// The same for VMs of different sizes, where the test leaves a choice.
    pub(crate) fn scaled(&self, sizes: &[u32]) -> Vec<Test> {
        let Vcpus::Wanted(least) = self.vcpus else { return vec![self.clone()] };
        let sized = |size: &u32| {
            let test = Test { name: format!("{}-{size}-vcpus", self.name), ..self.clone() };
            let curve = format!("{}: over vCPUs", self.name);
            test.vcpus(Vcpus::Exactly(*size)).curve(curve, f64::from(*size))
        };
        sizes.iter().filter(|size| **size >= least).map(sized).collect()
    }

    /// The test's name without the part that is on the x axis, and its series.
    pub(crate) fn curve_label(&self, series: &str) -> String {
        let x = |part: &&str| {
            !part.starts_with(|c: char| c.is_ascii_digit()) && !["slots", "vcpus"].contains(part)
        };
        let kind: Vec<&str> = self.name.split('-').filter(x).collect();
        format!("{} {series}", kind.join("-"))
    }

    fn args(self, args: [u64; 4]) -> Self {
        Test { args: Args::Plain(args), ..self }
    }

    fn time(self, place: usize, args: [u64; 4]) -> Self {
        Test { args: Args::Time(place, args), ..self }
    }

    fn times(self, first: usize, args: [u64; 4]) -> Self {
        Test { args: Args::Times(first, args), ..self }
    }

    fn vcpus(self, vcpus: Vcpus) -> Self {
        Test { vcpus, ..self }
    }

    /// Why it cannot run on this KVM.
    pub(crate) fn missing(&self, kvm: &Kvm) -> Option<&'static str> {
        let deadline = self.test == TEST_TIMER && !kvm.check_extension(Cap::TscDeadlineTimer);
        let poll = self.poll != Poll::Adaptive
            && kvm.check_extension_raw(kvm_bindings::KVM_CAP_HALT_POLL.into()) <= 0;
        let crowded = match self.vcpus {
            // Those that spin all at once; of two, one may well wait for the other.
            Vcpus::Exactly(n) => self.test == TEST_IPI && n as usize > host::pcpus().max(2),
            Vcpus::Wanted(_) => false,
        };
        if deadline {
            Some("this KVM has no TSC-deadline timer")
        } else if poll {
            Some("this KVM has no halt polling per VM (KVM_CAP_HALT_POLL)")
        } else if matches!(self.poll, Poll::Fixed(_)) && FixedPolling::missing().is_some() {
            FixedPolling::missing()
        } else if crowded {
            Some("the host has fewer CPUs than sender and targets need")
        } else if self.rival && host::pcpus() < 2 {
            Some("sender and target need a CPU each")
        } else if self.rival && !tells_preempted(kvm) {
            Some("this KVM does not tell a guest which vCPUs are preempted (steal time)")
        } else {
            None
        }
    }
}

/// KVM_FEATURE_STEAL_TIME, in leaf KVM_CPUID_FEATURES.
fn tells_preempted(kvm: &Kvm) -> bool {
    let cpuid = kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES);
    cpuid.is_ok_and(|cpuid| {
        cpuid.as_slice().iter().any(|leaf| leaf.function == 0x4000_0001 && leaf.eax & 1 << 5 != 0)
    })
}

/// All of them, in the order in which they are reported.
pub fn all() -> Vec<Test> {
    let mut all = vec![
        exit("cpuid", "CPUID: an exit that KVM handles", TEST_CPUID),
        exit("hypercall", "a hypercall that KVM does not know", TEST_HYPERCALL),
        exit("pio-kernel", "a write to a port with an ioeventfd", TEST_PIO_KERNEL),
        exit("pio-user", "a write to a port of user space", TEST_PIO_USER),
        exit("mmio-kernel", "a write to MMIO with an ioeventfd", TEST_MMIO_KERNEL),
        exit("mmio-user", "a write to MMIO of user space", TEST_MMIO_USER),
        exit("pause", "PAUSE, most of which do not exit where there is a filter", TEST_PAUSE),
    ];
    all.extend([64, 509].map(|slots| Test {
        more_slots: slots - 1,
        ..exit(
            &format!("mmio-user-{slots}-slots"),
            &format!("a write to MMIO of user space, with {slots} memory slots"),
            TEST_MMIO_USER,
        )
    }));
    all.extend([1, 64, 509].map(|slots| {
        Test {
            touches: true,
            more_slots: slots - 1,
            ..Test::new(
                format!("touch-{slots}-slots"),
                format!("the first write to a page of 4 KiB, {slots} memory slots beside"),
                COST,
                TEST_TOUCH,
            )
            .curve("touch: the first write over memory slots", f64::from(slots))
        }
    }));
    all.extend([1, 64, 509].map(|slots| {
        Test {
            log_dirty: true,
            more_slots: slots,
            // Every slot takes the MMU lock, and its pages fault again.
            most_samples: 100,
            ..Test::new(
                format!("dirty-log-{slots}-slots"),
                format!("which pages were written? asked of {slots} memory slots of a page each"),
                PASS,
                TEST_DIRTY,
            )
            .curve("dirty-log: a pass over memory slots", f64::from(slots))
        }
    }));
    all.extend(ipis());
    all.push(
        Test::new(
            "call",
            "interrupt all others at once and wait for their acknowledgements (TLB shootdown)",
            CALL,
            TEST_CALL,
        )
        .args([CALL_WORK, 0, 0, 0])
        .vcpus(Vcpus::Wanted(2)),
    );
    for (us, what) in [(10, "10 µs"), (100, "100 µs"), (1000, "1 ms")] {
        for (state, name) in [(WAIT_SPIN, "running"), (WAIT_HALT, "halted")] {
            all.push(
                Test::new(
                    format!("timer-{name}-{us}us"),
                    format!("TSC-deadline timer of {what}, vCPU {name}"),
                    TIMER,
                    TEST_TIMER,
                )
                .time(0, [us * 1000, state, 0, 0])
                .curve("timer: lateness over the time to the deadline", us as f64 * 1000.0),
            );
        }
    }
    for us in [1, 10, 100, 1000, 10_000] {
        for (name, what, poll) in HALT_POLLS {
            all.push(Test {
                poll,
                // Two seconds of waiting.
                most_samples: 1_000_000 / us,
                ..Test::new(
                    format!("ping-pong-{us}us-{name}"),
                    format!("two vCPUs wake each other from HLT after {us} µs, {what}"),
                    PING_PONG,
                    TEST_PING_PONG,
                )
                .times(2, [us * 1000, FIRST_HALTS_NS, 0, 0])
                .vcpus(Vcpus::Exactly(2))
                .curve("ping-pong: wake-up over the time halted", us as f64 * 1000.0)
            });
        }
    }
    for (name, what, poll) in HALT_POLLS {
        all.push(Test {
            poll,
            idles: true,
            // Two seconds of ticks.
            most_samples: 2_000_000_000 / TICK_NS,
            ..Test::new(
                format!("idle-tick-{name}"),
                format!("an idle guest with a tick of 250 Hz, {what}"),
                TIMER,
                TEST_TIMER,
            )
            .time(0, [TICK_NS, WAIT_HALT, 0, 0])
        });
    }
    for (state, name, what) in
        [(WAIT_HALT, "halted", "waits in HLT"), (WAIT_SPIN, "polling", "polls")]
    {
        all.push(Test {
            io_time: Some(Duration::from_micros(50)),
            reference: (state == WAIT_HALT).then_some("io-polling"),
            ..Test::new(
                format!("io-{name}"),
                format!(
                    "a request that another host thread completes after 50 µs; the guest {what}"
                ),
                REQUEST,
                TEST_IO,
            )
            .args([state, 0, 0, 0])
        });
    }
    all.extend(throughput());
    all
}

fn exit(name: &str, what: &str, test: u64) -> Test {
    Test::new(format!("exit-{name}"), what, COST, test)
}

/// 200 µs is KVM's default limit (KVM_HALT_POLL_NS_DEFAULT, arch/x86/include/asm/kvm_host.h).
const HALT_POLLS: [(&str, &str, Poll); 3] = [
    ("poll-off", "halt polling off", Poll::Off),
    ("poll-fixed", "halt polling for 200 µs", Poll::Fixed(200_000)),
    ("poll-adaptive", "halt polling as the host is set", Poll::Adaptive),
];

/// Of a guest's kernel with HZ=250, as distributions have it.
const TICK_NS: u64 = 4_000_000;

/// The halts before those that count: short, so that KVM begins to poll.
const FIRST_HALTS_NS: u64 = 10_000;

fn ipis() -> Vec<Test> {
    let ipi = |name: &str, what: &str, mode, state, n: u64, vcpus| {
        Test::new(format!("ipi-{name}"), what, IPI, TEST_IPI)
            .time(3, [mode, state, n, HALTED_NS])
            .vcpus(vcpus)
    };
    let two = Vcpus::Exactly(2);
    let xapic = |test: Test| Test { x2apic: false, ..test };
    let to_some = [2, 4, 8].map(|n| {
        let what = format!("to {n} others, one ICR write each");
        let vcpus = Vcpus::Exactly(n + 1);
        ipi(&format!("multicast-{n}"), &what, IPI_MULTICAST, WAIT_SPIN, n.into(), vcpus)
            .curve("multicast: over the number of targets", n.into())
    });
    let mut all = vec![
        ipi("self", "to itself, x2APIC", IPI_SELF, WAIT_SPIN, 1, Vcpus::Exactly(1)),
        ipi("unicast", "to one running vCPU, x2APIC ICR", IPI_UNICAST, WAIT_SPIN, 1, two),
        xapic(ipi("unicast-xapic", "the same, xAPIC MMIO", IPI_UNICAST, WAIT_SPIN, 1, two)),
        ipi("unicast-halted", "to one halted vCPU, x2APIC", IPI_UNICAST, WAIT_HALT, 1, two),
        Test {
            rival: true,
            // Each waits for two slices of the host's scheduler.
            most_samples: 100,
            ..ipi(
                "unicast-preempted",
                "to one vCPU that a thread of the host has preempted",
                IPI_UNICAST,
                WAIT_PREEMPTED,
                1,
                two,
            )
        },
        ipi("logical", "to one running vCPU, logical destination", IPI_LOGICAL, WAIT_SPIN, 1, two),
        ipi(
            "multicast",
            "to all others, one ICR write each",
            IPI_MULTICAST,
            WAIT_SPIN,
            ALL_OTHERS,
            ALL,
        ),
        ipi("broadcast", "to all others, one ICR write", IPI_BROADCAST, WAIT_SPIN, ALL_OTHERS, ALL),
    ];
    all.extend(to_some);
    all
}

const ALL: Vcpus = Vcpus::Wanted(2);

fn throughput() -> Vec<Test> {
    let barrier = |name: &str, what: &str, pause| {
        Test::new(name, what, Gives::Rate("rounds/s"), TEST_BARRIER)
            .args([BARRIER_WORK, pause, 0, 0])
            .vcpus(ALL)
    };
    let lock = |name: &str, what: &str, kind| {
        Test::new(format!("lock-{name}"), what, Gives::Rate("turns/s"), TEST_LOCK)
            .args([kind, LOCK_INSIDE, LOCK_OUTSIDE, 0])
            .vcpus(ALL)
    };
    vec![
        Test::new(
            "pause",
            "PAUSE over and over: how many, and how often KVM ends it (PLE)",
            Gives::Rate("PAUSEs/s"),
            TEST_PAUSES,
        ),
        barrier("barrier", "compute 100 µs at 3 GHz, then spin at a barrier, no PAUSE", 0),
        barrier("barrier-pause", "the same, spinning with PAUSE", 1),
        lock("test-and-set", "a test-and-set lock, held a quarter of the time", LOCK_TEST_AND_SET),
        lock("ticket", "a ticket lock: strictly in order", LOCK_TICKET),
        lock("queued", "a queued lock (MCS): strictly in order", LOCK_QUEUED),
        lock("queued-kick", "the same; long waiters halt and are kicked (PV)", LOCK_QUEUED_KICK),
    ]
}

/// Not for measuring: what goes wrong in a guest, so that it can be seen what is said then.
fn trouble() -> [Test; 2] {
    [
        Test::new("trouble-fault", "a triple fault", COST, TEST_FAULT),
        Test::new("trouble-hang", "a guest that hangs", COST, TEST_HANG),
    ]
}

/// Those with one of these names, or whose name begins with it and a dash, unless whole names are
/// given; all if there are no names. `trouble-fault` and `trouble-hang`, which are not among them,
/// end as they say.
///
/// Errors: the first name that fits nothing.
pub fn find(names: &[String], whole: bool) -> Result<Vec<Test>, String> {
    let fits = |test: &Test, name: &str| {
        let rest = test.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || !whole && rest.starts_with('-'))
    };
    let known: Vec<Test> = all().into_iter().chain(trouble()).collect();
    if let Some(name) = names.iter().find(|name| !known.iter().any(|test| fits(test, name))) {
        return Err(name.clone());
    }
    if names.is_empty() {
        return Ok(all());
    }
    Ok(known.into_iter().filter(|test| names.iter().any(|name| fits(test, name))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let mut names: Vec<String> = all().into_iter().map(|test| test.name).collect();
        for name in &names {
            let found = |whole| find(std::slice::from_ref(name), whole).unwrap();
            assert!(found(false).iter().any(|test| test.name == *name));
            let [test] = &found(true)[..] else { panic!("{name}: not one") };
            assert_eq!(test.name, *name);
        }
        assert_eq!(find(&["no-such".into()], false).unwrap_err(), "no-such");
        assert_eq!(find(&["ipi".into()], true).unwrap_err(), "ipi");
        let of_ipi = find(&["ipi".into()], false).unwrap();
        assert!(of_ipi.len() > 5 && of_ipi.iter().all(|test| test.name.starts_with("ipi-")));
        let n = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n);
    }
}
