// SPDX-License-Identifier: GPL-2.0-only
//! Experiments as people write them: a TOML file says what to compare, [`Experiment::runs`] says in
//! which order.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::plan::{self, KERNEL_SCHEDULER, Plan, Run};

/// Schedulers × workloads × repetitions. Unknown keys are refused.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// CPUs of the emulated host, 1 to 16.
    #[serde(default = "two")]
    pub pcpus: u32,
    /// Guests, 1 to 16; a workload may have its own number.
    #[serde(default = "two")]
    pub vms: u32,
    /// 1 to 16; if absent, as many as the host has CPUs.
    pub vcpus_per_vm: Option<u32>,
    /// Memory of each guest, MiB, 128 to 4096.
    #[serde(default = "guest_mem")]
    pub vm_mem_mib: u32,
    /// More for the guests' kernel command line, such as `nopvspin`: up to 256 printable
    /// characters.
    #[serde(default)]
    pub vm_cmdline: String,
    /// More for QEMU's `-cpu host`, such as `kvm-pv-unhalt=off`: up to 256 letters, digits, `=-_,`.
    #[serde(default)]
    pub vm_cpu: String,
    /// `cpu.weight` of each guest's cgroup, 1 to 10,000; 100 where the list ends.
    #[serde(default)]
    pub weights: Vec<u32>,
    /// 1 to 100.
    pub repetitions: u32,
    /// Length of one run, 0.1 to 600.
    pub seconds: f64,
    pub schedulers: Vec<Scheduler>,
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
}

/// A name alone is a public scheduler's program of that name, or the kernel's own scheduler.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a scheduler is a \"name\" or { name = \"…\", command = [\"…\"] }")]
pub enum Scheduler {
    Name(String),
    Command(Command),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    pub name: String,
    pub command: Vec<String>,
}

/// A workload of the testbed by its name, or a command that is run again and again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub name: String,
    #[serde(default)]
    pub command: Vec<String>,
    /// What one completion of `command` is, per second.
    pub unit: Option<String>,
    /// Guests that are up, if not as many as the experiment says.
    pub vms: Option<u32>,
    /// Guests that work at once, if not all.
    pub active_vms: Option<u32>,
    /// Run on the host itself, without guests.
    #[serde(default)]
    pub host: bool,
}

fn two() -> u32 {
    2
}

fn guest_mem() -> u32 {
    256
}

/// Arguments of `baton-agent work`, and what is counted.
const BUILTIN: [(&str, &str, &[&str]); 7] = [
    ("barrier", "rounds/s", &["barrier"]),
    // AMD's pause filter lets 3,000 PAUSEs pass before an exit (KVM's default for it); the emulated
    // CPU has none and exits on each. One PAUSE in 2,000 turns is the closest to it.
    ("barrier-pause", "rounds/s", &["barrier", "--pause-every", "2000"]),
    ("shootdown", "ops/s", &["shootdown"]),
    ("hackbench", "runs/s", &["hackbench"]),
    ("pbzip2", "files/s", &["pbzip2"]),
    ("dbench", "MB/s", &["dbench"]),
    ("build", "builds/s", &["build"]),
];

/// A measurement of `baton bench`, such as bench-barrier: run on the host, which makes the VMs
/// itself.
const BENCH: &str = "bench-";

/// Latencies of one run: its figure is their median, which more make hardly narrower.
const SAMPLES: u32 = 100;

/// The testbed's own workloads, by name.
fn builtin_workloads() -> Vec<&'static str> {
    BUILTIN.map(|(name, ..)| name).to_vec()
}

impl Experiment {
    /// Reads and checks an experiment. The error names the line or the key that is wrong.
    pub fn parse(text: &str) -> Result<Experiment> {
        let experiment: Experiment = toml::from_str(text)?;
        experiment.check()?;
        Ok(experiment)
    }

    /// Whether all is within its limits.
    pub fn check(&self) -> Result<()> {
        in_range("pcpus", self.pcpus, 1, 16)?;
        in_range("vms", self.vms, 1, 16)?;
        in_range("vcpus_per_vm", self.vcpus_per_vm(), 1, 16)?;
        in_range("vm_mem_mib", self.vm_mem_mib, 128, 4096)?;
        let printable = self.vm_cmdline.chars().all(|c| c == ' ' || c.is_ascii_graphic());
        ensure!(
            printable && self.vm_cmdline.len() <= 256,
            "vm_cmdline must be up to 256 printable characters"
        );
        let flags = self.vm_cpu.chars().all(|c| c.is_ascii_alphanumeric() || "=-_,".contains(c));
        ensure!(
            flags && self.vm_cpu.len() <= 256,
            "vm_cpu must be up to 256 letters, digits, and =-_, such as \"kvm-pv-unhalt=off\""
        );
        in_range("repetitions", self.repetitions, 1, 100)?;
        ensure!((0.1..=600.0).contains(&self.seconds), "seconds must be from 0.1 to 600");
        for weight in &self.weights {
            in_range("a weight", *weight, 1, 10_000)?;
        }
        ensure!(!self.schedulers.is_empty(), "schedulers is empty; name at least \"eevdf\"");
        for (i, scheduler) in self.schedulers.iter().enumerate() {
            let name = scheduler.name();
            check_name("scheduler", name)?;
            ensure!(
                self.schedulers[..i].iter().all(|other| other.name() != name),
                "scheduler \"{name}\" appears twice"
            );
            if let Scheduler::Command(Command { command, .. }) = scheduler {
                ensure!(!command.is_empty(), "the command of scheduler \"{name}\" is empty");
                ensure!(name != KERNEL_SCHEDULER, "\"{name}\" is the kernel's own, no command");
            }
        }
        ensure!(!self.workloads.is_empty(), "there is no [[workload]]");
        for (i, workload) in self.workloads.iter().enumerate() {
            self.check_workload(workload)
                .with_context(|| format!("workload {} (\"{}\")", i + 1, workload.name))?;
            let twin = self.workloads[..i]
                .iter()
                .any(|other| other.name == workload.name && self.vms(other) == self.vms(workload));
            ensure!(!twin, "workload \"{}\" appears twice with the same guests", workload.name);
        }
        Ok(())
    }

    fn check_workload(&self, workload: &Workload) -> Result<()> {
        check_name("workload", &workload.name)?;
        if workload.command.is_empty() {
            ensure!(
                workload.bench().is_some()
                    || BUILTIN.iter().any(|(name, ..)| *name == workload.name),
                "neither has a command nor is one of {}, nor {BENCH} and a name of 'baton bench list'",
                builtin_workloads().join(", ")
            );
            ensure!(workload.unit.is_none(), "unit is for workloads with a command");
        }
        if workload.host {
            ensure!(
                workload.vms.is_none() && workload.active_vms.is_none(),
                "host = true runs without guests: vms and active_vms make no sense"
            );
            return Ok(());
        }
        if workload.bench().is_some() {
            ensure!(workload.active_vms.is_none(), "all VMs of a bench are active");
            return in_range("vms", workload.vms.unwrap_or(self.vms), 1, 16);
        }
        let (vms, active) = self.guests(workload);
        in_range("vms", vms, 1, 16)?;
        in_range("active_vms", active, 1, vms)
    }

    pub fn vcpus_per_vm(&self) -> u32 {
        self.vcpus_per_vm.unwrap_or(self.pcpus)
    }

    /// VMs that are up, and that work, for a workload: guests, or those that the bench makes.
    pub fn vms(&self, workload: &Workload) -> (u32, u32) {
        match workload.bench() {
            Some(_) => {
                let vms = workload.vms.unwrap_or(self.vms);
                (vms, vms)
            }
            None => self.guests(workload),
        }
    }

    /// Guests that are up, and that work, for a workload; none for one on the host.
    pub fn guests(&self, workload: &Workload) -> (u32, u32) {
        if workload.host || workload.bench().is_some() {
            return (0, 0);
        }
        let vms = workload.vms.unwrap_or(self.vms);
        (vms, workload.active_vms.unwrap_or(vms))
    }

    /// All runs, in order. Workloads that need the same guests are interleaved; a repetition holds
    /// every workload under every scheduler, and what one guest reaches alone where several work.
    /// Runs of one workload are neighbours, since the machine's speed drifts over minutes, and
    /// their order turns with each repetition, since the first of neighbours may be favoured.
    pub fn runs(&self) -> Vec<Run> {
        let mut counts: Vec<u32> = self.workloads.iter().map(|w| self.guests(w).0).collect();
        let mut seen = Vec::new();
        counts.retain(|count| {
            !seen.contains(count) && {
                seen.push(*count);
                true
            }
        });

        let mut runs = Vec::new();
        for vms in counts {
            for repetition in 0..self.repetitions {
                for (row, workload) in self.workloads.iter().enumerate() {
                    if self.guests(workload).0 == vms {
                        self.push_neighbours(&mut runs, row, workload, repetition);
                    }
                }
            }
        }
        for (id, run) in (0..).zip(&mut runs) {
            run.id = id;
        }
        runs
    }

    /// The runs of one workload in one repetition.
    fn push_neighbours(
        &self,
        runs: &mut Vec<Run>,
        row: usize,
        workload: &Workload,
        repetition: u32,
    ) {
        let (vms, active) = self.guests(workload);
        let run = |scheduler, active, alone| Run {
            id: 0,
            repetition,
            row,
            workload: self.resolve(workload),
            scheduler,
            vms,
            active,
            seconds: self.seconds,
            alone,
        };
        let mut neighbours: Vec<Run> = self
            .schedulers
            .iter()
            .map(|scheduler| run(scheduler.resolve(), (0..active).collect(), false))
            .collect();
        if active > 1 {
            let kernel = Scheduler::Name(KERNEL_SCHEDULER.to_string()).resolve();
            neighbours.push(run(kernel, vec![repetition % active], true));
        }
        let turn = repetition as usize % neighbours.len();
        neighbours.rotate_left(turn);
        runs.append(&mut neighbours);
    }

    fn resolve(&self, workload: &Workload) -> plan::Workload {
        let Some(test) = workload.bench() else { return workload.resolve(self.seconds) };
        let vms = workload.vms.unwrap_or(self.vms);
        let line = format!(
            "baton bench {test} --measured --repetitions 1 --samples {SAMPLES} --seconds {} --vms \
             {vms} --vcpus {}",
            self.seconds,
            self.vcpus_per_vm()
        );
        plan::Workload {
            name: workload.name.clone(),
            // What one of them is the bench knows.
            unit: "per s".into(),
            argv: line.split(' ').map(String::from).collect(),
        }
    }

    /// The plan for some of the runs.
    pub fn plan(&self, runs: &[Run]) -> Plan {
        Plan {
            vcpus_per_vm: self.vcpus_per_vm(),
            vm_mem_mib: self.vm_mem_mib,
            vm_cmdline: self.vm_cmdline.clone(),
            vm_cpu: self.vm_cpu.clone(),
            weights: self.weights.clone(),
            runs: runs.to_vec(),
        }
    }
}

impl Scheduler {
    pub fn name(&self) -> &str {
        match self {
            Scheduler::Name(name) | Scheduler::Command(Command { name, .. }) => name,
        }
    }

    /// The program to look for on this machine; `None` for the kernel's own scheduler.
    pub fn program(&self) -> Option<&str> {
        match self {
            Scheduler::Name(name) if name == KERNEL_SCHEDULER => None,
            Scheduler::Name(name) => Some(name),
            Scheduler::Command(Command { command, .. }) => command.first().map(String::as_str),
        }
    }

    /// As the host starts it: programs are found there by their file name.
    fn resolve(&self) -> plan::Scheduler {
        let mut command = match self {
            Scheduler::Name(name) if name == KERNEL_SCHEDULER => Vec::new(),
            Scheduler::Name(name) => vec![name.clone()],
            Scheduler::Command(Command { command, .. }) => command.clone(),
        };
        if let Some(program) = command.first_mut()
            && let Some((_, file)) = program.rsplit_once('/')
        {
            *program = file.to_string();
        }
        plan::Scheduler { name: self.name().to_string(), command }
    }
}

impl Workload {
    /// A workload of the testbed, in all guests.
    pub fn builtin(name: &str) -> Workload {
        Workload {
            name: name.to_string(),
            command: Vec::new(),
            unit: None,
            vms: None,
            active_vms: None,
            host: false,
        }
    }

    /// Which throughput of the bench it is.
    pub fn bench(&self) -> Option<&str> {
        self.name.strip_prefix(BENCH).filter(|_| self.command.is_empty())
    }

    fn resolve(&self, seconds: f64) -> plan::Workload {
        let head = ["baton-agent", "work", "--seconds", &seconds.to_string()].map(String::from);
        let own = BUILTIN.iter().find(|(name, ..)| self.command.is_empty() && *name == self.name);
        let (unit, tail) = match own {
            Some((_, unit, args)) => (*unit, args.iter().map(|arg| arg.to_string()).collect()),
            None => {
                let unit = self.unit.as_deref().unwrap_or("runs/s");
                let mut tail = ["repeat", "--unit", unit, "--"].map(String::from).to_vec();
                tail.extend(self.command.iter().cloned());
                (unit, tail)
            }
        };
        plan::Workload {
            name: self.name.clone(),
            unit: unit.to_string(),
            argv: [head.to_vec(), tail].concat(),
        }
    }
}

fn in_range(what: &str, value: u32, low: u32, high: u32) -> Result<()> {
    ensure!((low..=high).contains(&value), "{what} is {value}; it must be from {low} to {high}");
    Ok(())
}

fn check_name(what: &str, name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
        bail!("\"{name}\" is no {what} name; use up to 64 letters, digits, \"_\", \".\" and \"-\"");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        repetitions = 3
        seconds = 5
        schedulers = ["eevdf", "scx_baton", { name = "mine", command = ["./bin/scx_mine", "-v"] }]
        [[workload]]
        name = "barrier"
        [[workload]]
        name = "sleep"
        command = ["sleep", "1"]
        unit = "naps/s"
        host = true
        [[workload]]
        name = "barrier"
        vms = 3
        active_vms = 1
        [[workload]]
        name = "hackbench"
        [[workload]]
        name = "bench-lock-ticket"
        vms = 4
    "#;

    fn refusal(from: &str, to: &str) -> String {
        format!("{:#}", Experiment::parse(&GOOD.replacen(from, to, 1)).unwrap_err())
    }

    #[test]
    fn vms_are_as_wide_as_the_host_and_those_of_the_bench_count() {
        let text = "pcpus = 4\nrepetitions = 1\nseconds = 1\nschedulers = [\"eevdf\"]\n";
        let row = |vms| format!("[[workload]]\nname = \"bench-lock-ticket\"\nvms = {vms}\n");
        let experiment = Experiment::parse(&format!("{text}{}{}", row(1), row(3))).unwrap();
        assert_eq!(experiment.vms(&experiment.workloads[1]), (3, 3));
        let line = experiment.runs()[1].workload.argv.join(" ");
        assert!(line.ends_with("--vms 3 --vcpus 4"), "{line}");
        let twins = Experiment::parse(&format!("{text}{}{}", row(3), row(3))).unwrap_err();
        assert!(format!("{twins:#}").contains("twice"));
    }

    #[test]
    fn resolves_workloads_and_schedulers() {
        let runs = Experiment::parse(GOOD).unwrap().runs();
        let barrier = runs.iter().find(|run| run.row == 0).unwrap();
        assert_eq!(barrier.workload.argv, ["baton-agent", "work", "--seconds", "5", "barrier"]);
        let sleep = runs.iter().find(|run| run.row == 1).unwrap();
        assert_eq!(sleep.workload.argv[4..], ["repeat", "--unit", "naps/s", "--", "sleep", "1"]);
        let ticket = runs.iter().find(|run| run.row == 4).unwrap();
        assert_eq!((ticket.vms, ticket.active.len()), (0, 0), "it makes its VMs itself");
        let line = ticket.workload.argv.join(" ");
        assert!(line.starts_with("baton bench lock-ticket ") && line.contains("--vms 4"), "{line}");
        let mine = runs.iter().find(|run| run.scheduler.name == "mine").unwrap();
        assert_eq!(mine.scheduler.command, ["scx_mine", "-v"]);
        assert!(runs.iter().any(|run| run.scheduler.is_kernel()));
    }

    #[test]
    fn every_repetition_is_complete_and_neighbours_stay_together() {
        let experiment = Experiment::parse(GOOD).unwrap();
        let runs = experiment.runs();
        // Two rows with several active guests have an alone run beside the three schedulers.
        assert_eq!(runs.len(), 3 * (2 * 4 + 3 * 3));
        assert!(runs.iter().zip(0..).all(|(run, id)| run.id == id));
        let key = |run: &Run| (run.vms, run.repetition, run.row);
        let mut keys: Vec<_> = runs.iter().map(key).collect();
        keys.dedup();
        let blocks = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), blocks, "runs of one workload and repetition are neighbours");
        let mut counts: Vec<u32> = runs.iter().map(|run| run.vms).collect();
        counts.dedup();
        assert_eq!(counts, [2, 0, 3], "guests are started once for each number of them");
    }

    #[test]
    fn the_order_turns() {
        let runs = Experiment::parse(GOOD).unwrap().runs();
        let first =
            |repetition| runs.iter().find(|r| r.row == 0 && r.repetition == repetition).unwrap();
        assert_eq!(first(0).scheduler.name, "eevdf");
        assert_eq!(first(1).scheduler.name, "scx_baton");
        assert_eq!(first(2).scheduler.name, "mine");
        let alone: Vec<_> = runs.iter().filter(|r| r.row == 0 && r.alone).collect();
        let active: Vec<_> = alone.iter().map(|run| run.active[0]).collect();
        assert_eq!(active, [0, 1, 0]);
    }

    #[test]
    fn bad_files_are_refused_with_the_place() {
        let unknown = refusal("seconds = 5", "seconds = 5\nspeed = 3");
        assert!(unknown.contains("line 4") && unknown.contains("speed"), "{unknown}");
        assert!(refusal("\"eevdf\"", "7").contains("a scheduler is"));
        assert!(refusal("seconds = 5", "seconds = 0").contains("seconds"));
        assert!(refusal("repetitions = 3", "repetitions = 0").contains("repetitions"));
        let cmdline = "seconds = 5\nvm_cmdline = \"a\\nb\"";
        assert!(refusal("seconds = 5", cmdline).contains("printable"));
        assert!(refusal("\"scx_baton\"", "\"eevdf\"").contains("twice"));
        assert!(refusal("\"scx_baton\"", "\"a b\"").contains("no scheduler name"));
        assert!(refusal("\"barrier\"", "\"barier\"").contains("one of barrier"));
        assert!(refusal("active_vms = 1", "active_vms = 4").contains("active_vms is 4"));
        assert!(refusal("host = true", "host = true\nvms = 2").contains("without guests"));
        assert!(refusal("\"hackbench\"", "\"barrier\"").contains("twice"));
        assert!(refusal("[\"./bin/scx_mine\", \"-v\"]", "[]").contains("empty"));
    }
}
