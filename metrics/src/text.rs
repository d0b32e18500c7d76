// SPDX-License-Identifier: GPL-2.0-only
//! OpenMetrics 1.0, as text.
//!
//! It is written here and not by the crate prometheus-client, which writes a histogram's sum in any
//! case. Baton counts wake-ups by powers of two, so a sum would be an estimate that nothing tells
//! from an exact one.

use crate::snapshot::{Snapshot, Totals, Vcpu, Vm};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
}

use Kind::{Counter, Gauge, Histogram};

struct Family<T> {
    /// Without a counter's `_total`.
    name: &'static str,
    kind: Kind,
    help: &'static str,
    write: fn(&mut Samples, &T),
}

/// What a family's samples are made of.
struct Named<'a> {
    label: String,
    vm: &'a Vm,
}

/// Wake-ups below 2^10 ns share a bucket: there are hardly any.
const FIRST_BUCKET: usize = 9;

const HOST: [Family<Snapshot>; 3] = [
    // A gauge, as others' *_info: readers of Prometheus's older format know no type info.
    Family {
        name: "baton_info",
        kind: Gauge,
        help: "Baton's version, its policy (--yield-policy) and the release of the host's kernel",
        write: |to, of| {
            if let Some(info) = &of.info {
                let labels = [
                    ("version", info.version.as_str()),
                    ("policy", info.policy.as_str()),
                    ("kernel", info.kernel.as_str()),
                ];
                to.add(&labels, 1);
            }
        },
    },
    Family {
        name: "baton_enabled",
        kind: Gauge,
        help: "1 if Baton schedules this host, 0 if not: baton_exits_total tells why",
        write: |to, of| to.add(&[], u8::from(of.enabled)),
    },
    Family {
        name: "baton_exits",
        kind: Counter,
        help: "How often Baton was found not to run any more, by the reason",
        write: |to, of| of.exits.iter().for_each(|(reason, n)| to.add(&[("reason", reason)], n)),
    },
];

const TOTALS: [Family<Totals>; 5] = [
    Family {
        name: "baton_yields",
        kind: Counter,
        help: "Directed yields that KVM asked for, by what became of them; together they are all",
        write: |to, of| {
            to.add(&[("result", "obeyed")], of.obeyed);
            to.add(&[("result", "missed")], of.missed);
            to.add(&[("result", "refused")], of.refused);
        },
    },
    Family {
        name: "baton_yields_redirected",
        kind: Counter,
        help: "Directed yields that went to a better target than KVM's, whatever became of them",
        write: |to, of| to.add(&[], of.redirected),
    },
    Family {
        name: "baton_turns",
        kind: Counter,
        help: "Turns that VMs began",
        write: |to, of| to.add(&[], of.turns),
    },
    Family {
        name: "baton_gangs",
        kind: Counter,
        help: "Turns in which two or more vCPUs of the VM ran at once",
        write: |to, of| to.add(&[], of.gangs),
    },
    Family {
        name: "baton_lent",
        kind: Counter,
        help: "CPUs that vCPUs lent to a sibling that was sent an IPI",
        write: |to, of| to.add(&[], of.lent),
    },
];

const VMS: [Family<Snapshot>; 2] = [
    Family {
        name: "baton_vms",
        kind: Gauge,
        help: "VMs that Baton schedules",
        write: |to, of| to.add(&[], of.vms.len()),
    },
    Family {
        name: "baton_vcpus",
        kind: Gauge,
        help: "vCPUs of these VMs that have run",
        write: |to, of| to.add(&[], of.vms.iter().map(|vm| vm.vcpus).sum::<u64>()),
    },
];

fn vm<'a>() -> [Family<Named<'a>>; 16] {
    [
        Family {
            name: "baton_vm_info",
            kind: Gauge,
            help: "A VM: UUID, namespace in Kubernetes and cgroup, where they are known",
            write: |to, of| {
                let labels = [
                    ("vm", of.label.as_str()),
                    ("uuid", of.vm.uuid.as_str()),
                    ("namespace", of.vm.namespace.as_str()),
                    ("cgroup", of.vm.cgroup.as_str()),
                ];
                to.add(&labels, 1);
            },
        },
        Family {
            name: "baton_vm_vcpus",
            kind: Gauge,
            help: "vCPUs of the VM that have run",
            write: |to, of| to.vm(of, of.vm.vcpus),
        },
        Family {
            name: "baton_vm_weight",
            kind: Gauge,
            help: "Weight of the VM's cgroup (cpu.weight)",
            write: |to, of| to.vm(of, of.vm.weight),
        },
        Family {
            name: "baton_vm_spread",
            kind: Gauge,
            help: "1 if the VM's vCPUs wait by halting and run apart, 0 if they run together",
            write: |to, of| to.vm(of, u8::from(of.vm.spread)),
        },
        Family {
            name: "baton_vm_run_seconds",
            kind: Counter,
            help: "Time for which the VM's vCPUs ran, all together",
            write: |to, of| to.vm(of, of.vm.times.run),
        },
        Family {
            name: "baton_vm_ready_seconds",
            kind: Counter,
            help: "Time for which the VM's vCPUs waited for a pCPU while no sibling ran. Libvirt's \
               vcpu.N.delay and KubeVirt's kubevirt_vmi_vcpu_delay_seconds_total have it with \
               costop and throttled in one figure for each vCPU",
            write: |to, of| to.vm(of, of.vm.times.ready),
        },
        Family {
            name: "baton_vm_costop_seconds",
            kind: Counter,
            help: "Time for which the VM's vCPUs waited for a pCPU while a sibling ran",
            write: |to, of| to.vm(of, of.vm.times.costop),
        },
        Family {
            name: "baton_vm_throttled_seconds",
            kind: Counter,
            help: "Time for which the VM's vCPUs waited for CPU time by cpu.max",
            write: |to, of| to.vm(of, of.vm.times.throttled),
        },
        Family {
            name: "baton_vm_spin_seconds",
            kind: Counter,
            help: "Time from one PAUSE exit to the next one at once; part of the time running",
            write: |to, of| to.vm(of, of.vm.spin),
        },
        Family {
            name: "baton_vm_boost_seconds",
            kind: Counter,
            help: "Time running on slices of siblings; part of the time running",
            write: |to, of| to.vm(of, of.vm.boost),
        },
        Family {
            name: "baton_vm_ipi_wait_seconds",
            kind: Counter,
            help: "Time for which IPIs waited for vCPUs that did not run",
            write: |to, of| to.vm(of, of.vm.ipi_wait),
        },
        Family {
            name: "baton_vm_halt_poll_seconds",
            kind: Counter,
            help: "Time for which KVM polled at HLT: hit, until the HLT's end; miss, in vain",
            write: |to, of| {
                to.vm_by(of, "result", "hit", of.vm.poll_hit);
                to.vm_by(of, "result", "miss", of.vm.poll_miss);
            },
        },
        Family {
            name: "baton_vm_halts",
            kind: Counter,
            help: "HLTs: poll, those that ended while KVM polled; sleep, the others",
            write: |to, of| {
                to.vm_by(of, "end", "poll", of.vm.polled);
                to.vm_by(of, "end", "sleep", of.vm.slept);
            },
        },
        Family {
            name: "baton_vm_pause_exits",
            kind: Counter,
            help: "PAUSE exits of the VM's vCPUs",
            write: |to, of| to.vm(of, of.vm.pause_exits),
        },
        Family {
            name: "baton_vm_boosts",
            kind: Counter,
            help: "Yields by spinners that were carried out and judged: useful if the spinner \
                   went on, not if it spun again at once",
            write: |to, of| {
                to.vm_by(of, "useful", "true", of.vm.useful);
                to.vm_by(of, "useful", "false", of.vm.useless);
            },
        },
        Family {
            name: "baton_vm_wakeup_latency_seconds",
            kind: Histogram,
            help: "Time from being woken until running, of vCPUs that slept; buckets are powers \
               in nanoseconds, and there is no sum",
            write: |to, of| to.histogram(of),
        },
    ]
}

fn vcpu<'a>() -> [Family<(&'a str, &'a Vcpu)>; 4] {
    [
        Family {
            name: "baton_vcpu_run_seconds",
            kind: Counter,
            help: "Time for which the vCPU ran",
            write: |to, of| to.vcpu(of, of.1.times.run),
        },
        Family {
            name: "baton_vcpu_ready_seconds",
            kind: Counter,
            help: "Time for which the vCPU waited for a pCPU while no sibling ran. Libvirt's \
               vcpu.N.delay and KubeVirt's kubevirt_vmi_vcpu_delay_seconds_total have it with \
               costop and throttled in one figure",
            write: |to, of| to.vcpu(of, of.1.times.ready),
        },
        Family {
            name: "baton_vcpu_costop_seconds",
            kind: Counter,
            help: "Time for which the vCPU waited for a pCPU while a sibling ran",
            write: |to, of| to.vcpu(of, of.1.times.costop),
        },
        Family {
            name: "baton_vcpu_throttled_seconds",
            kind: Counter,
            help: "Time for which the vCPU waited for CPU time by cpu.max",
            write: |to, of| to.vcpu(of, of.1.times.throttled),
        },
    ]
}

/// The names of all metrics, in order, as they are asked for.
pub fn names() -> Vec<String> {
    fn of<T>(families: &[Family<T>]) -> impl Iterator<Item = String> {
        families.iter().map(|family| match family.kind {
            Counter => format!("{}_total", family.name),
            _ => family.name.to_owned(),
        })
    }
    of(&HOST).chain(of(&TOTALS)).chain(of(&VMS)).chain(of(&vm())).chain(of(&vcpu())).collect()
}

/// What an HTTP client gets.
pub fn text(snapshot: &Snapshot) -> String {
    let mut to = Samples::default();
    let all = std::slice::from_ref(snapshot);
    to.families(&HOST, all);
    if let Some(totals) = &snapshot.totals {
        to.families(&TOTALS, std::slice::from_ref(totals));
        to.families(&VMS, all);
    }
    let vms = named(&snapshot.vms);
    to.families(&vm(), &vms);
    let its = |named| {
        let Named { label, vm }: &Named = named;
        vm.by_vcpu.iter().map(|vcpu| (label.as_str(), vcpu)).collect::<Vec<_>>()
    };
    to.families(&vcpu(), &vms.iter().flat_map(its).collect::<Vec<_>>());
    to.text.push_str("# EOF\n");
    to.text
}

/// VMs with what the label `vm` says: the name; with the key if several have it, since Prometheus
/// refuses all of an answer that has a series twice.
fn named(vms: &[Vm]) -> Vec<Named<'_>> {
    let mut having: BTreeMap<&str, usize> = BTreeMap::new();
    vms.iter().for_each(|vm| *having.entry(&vm.name).or_default() += 1);
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut named = Vec::with_capacity(vms.len());
    for vm in vms {
        let is_sole = !vm.name.is_empty() && having.get(vm.name.as_str()) == Some(&1);
        let mut label = if is_sole { String::new() } else { format!(" ({})", vm.key) };
        label.insert_str(0, &vm.name);
        let mut label = visible(label.trim_start());
        // A name that was chosen to look like that.
        while !taken.insert(label.clone()) {
            label = format!("{label} ({})", visible(&vm.key));
        }
        named.push(Named { label, vm });
    }
    named
}

/// Prometheus takes a NUL for the end of the text.
fn visible(name: &str) -> String {
    name.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

#[derive(Default)]
struct Samples {
    text: String,
    /// Of the family that is written, with a counter's `_total`.
    name: String,
}

impl Samples {
    fn families<T>(&mut self, families: &[Family<T>], of: &[T]) {
        for family in families.iter().filter(|_| !of.is_empty()) {
            let name = family.name;
            let kind = match family.kind {
                Gauge => "gauge",
                Counter => "counter",
                Histogram => "histogram",
            };
            self.line(format_args!("# TYPE {name} {kind}"));
            if name.ends_with("_seconds") {
                self.line(format_args!("# UNIT {name} seconds"));
            }
            self.line(format_args!("# HELP {name} {}", family.help));
            self.name.clear();
            self.name.push_str(name);
            if family.kind == Counter {
                self.name.push_str("_total");
            }
            of.iter().for_each(|one| (family.write)(self, one));
        }
    }

    /// Nothing fails that writes to a string.
    fn line(&mut self, line: impl Display) {
        let _ = writeln!(self.text, "{line}");
    }

    fn add(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.sample("", labels, value);
    }

    fn vm(&mut self, of: &Named, value: impl Display) {
        self.add(&[("vm", &of.label)], value);
    }

    fn vm_by(&mut self, of: &Named, label: &str, word: &str, value: impl Display) {
        self.add(&[("vm", &of.label), (label, word)], value);
    }

    fn vcpu(&mut self, of: &(&str, &Vcpu), value: impl Display) {
        self.add(&[("vm", of.0), ("vcpu", &of.1.id.to_string())], value);
    }

    fn histogram(&mut self, of: &Named) {
        let wakeups = &of.vm.wakeups;
        let mut seen = 0u64;
        // What is in the last place is below nothing but infinity. Times are whole nanoseconds, so
        // "below 2^(i+1)" and "at most" differ by one.
        for (place, n) in wakeups.iter().enumerate().take(wakeups.len().saturating_sub(1)) {
            seen = seen.saturating_add(*n);
            if place >= FIRST_BUCKET {
                let end = 2f64.powi(place as i32 + 1) / 1e9;
                self.sample("_bucket", &[("vm", &of.label), ("le", &end.to_string())], seen);
            }
        }
        seen = seen.saturating_add(wakeups.last().copied().unwrap_or(0));
        self.sample("_bucket", &[("vm", &of.label), ("le", "+Inf")], seen);
        self.sample("_count", &[("vm", &of.label)], seen);
    }

    fn sample(&mut self, end: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(&self.name);
        self.text.push_str(end);
        for (place, (label, word)) in labels.iter().enumerate() {
            self.text.push(if place == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            for c in word.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c if c.is_control() => self.text.push('?'),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        self.text.push_str(if labels.is_empty() { " " } else { "} " });
        self.line(value);
    }
}
