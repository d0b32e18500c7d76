// SPDX-License-Identifier: GPL-2.0-only
//! The guests of an experiment: QEMU processes on the emulated host, each in a cgroup of its own,
//! spoken to over their serial console.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use baton_testbed::plan::{Measured, Plan};

use crate::guest::MARK;
use baton_testbed::scheduler::last_line;

const QEMU: &str = "/bin/qemu-system-x86_64";
const KERNEL: &str = "/guest/bzImage";
const INITRD: &str = "/guest/initrd";

/// Emulated SVM offers no XSAVE, the kernel would die looking for it; mitigations cost a factor in
/// emulation and tell nothing; a panic ends QEMU at once (triple fault, `-no-reboot`).
const CMDLINE: &str = "console=ttyS0 quiet noxsave mitigations=off reboot=t panic=-1 \
     sysrq_always_enabled";

/// What the kernel says on the console when it is past help.
const FAULTS: [&str; 4] = ["Kernel panic", "Oops", "BUG: ", "Attempted to kill init"];
/// What it says when it does not get on; a reason for silence, not in itself an end.
const STALLS: [&str; 3] = ["detected stall", "soft lockup", "blocked for more than"];

/// All guests are killed when this is dropped.
pub struct Vms {
    vms: Vec<Vm>,
    heard: Receiver<(usize, Heard)>,
}

struct Vm {
    qemu: Child,
    console: ChildStdin,
    stall: Option<String>,
}

enum Heard {
    Line(String),
    /// QEMU closed the console.
    Closed,
}

/// An answer of one guest.
enum Answer {
    Up,
    Done(u32, Measured),
    Fail(u32, String),
    /// Its agent gave up.
    Stuck(String),
}

/// Why guests gave no figure.
pub struct Trouble {
    pub what: String,
    /// The guest that is dead or silent; `None` if all are well.
    pub guest: Option<usize>,
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Trouble { what: format!("{error:#}"), guest: None }
    }
}

/// How much of a guest's console is worth keeping, bytes.
const CONSOLE_TAIL: usize = 64 << 10;

/// How long a silent guest may take to tell what its CPUs do.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Vms {
    /// Starts `count` guests and waits until all are up, at most `deadline`.
    pub fn start(count: u32, plan: &Plan, deadline: Duration) -> Result<Vms, Trouble> {
        let (tell, heard) = channel();
        let mut vms = Vms { vms: Vec::new(), heard };
        for number in 0..count as usize {
            vms.vms.push(Vm::start(number, plan, tell.clone())?);
        }
        let end = Instant::now() + deadline;
        let mut up = vec![false; count as usize];
        while let Some(missing) = up.iter().position(|up| !up) {
            match vms.answer(end) {
                Ok((vm, Answer::Up)) => up[vm] = true,
                Ok(_) => {}
                Err(Some(mut trouble)) => {
                    trouble.what.push_str(" (before it was up)");
                    return Err(trouble);
                }
                Err(None) => {
                    let what = format!("guest vm{missing} did not come up in {deadline:.0?}");
                    return Err(vms.silent(missing, what));
                }
            }
        }
        Ok(vms)
    }

    pub fn len(&self) -> u32 {
        self.vms.len() as u32
    }

    /// Runs a command in the `active` guests at once and returns what each reported, in the order
    /// of `active`. All must answer by `deadline`, and within `straggle` after the first.
    pub fn run(
        &mut self,
        id: u32,
        argv: &[String],
        active: &[u32],
        deadline: Duration,
        straggle: Duration,
    ) -> Result<Vec<Measured>, Trouble> {
        let argv = serde_json::to_string(argv).map_err(anyhow::Error::from)?;
        for number in active.iter().map(|vm| *vm as usize) {
            let vm = self.vms.get_mut(number).with_context(|| format!("no guest vm{number}"))?;
            writeln!(vm.console, "@run {id} {argv}").map_err(|error| Trouble {
                what: format!("guest vm{number} takes no command: {error}"),
                guest: Some(number),
            })?;
        }
        let start = Instant::now();
        let mut end = start + deadline;
        let mut reached: Vec<Option<Measured>> = vec![None; active.len()];
        let mut failed = None;
        let mut open = active.to_vec();
        while let Some(waited_for) = open.first().map(|vm| *vm as usize) {
            if open.len() < active.len() {
                end = end.min(Instant::now() + straggle);
            }
            match self.answer(end) {
                Ok((vm, Answer::Done(of, measured))) if of == id => {
                    open.retain(|number| *number as usize != vm);
                    if let Some(place) = active.iter().position(|a| *a as usize == vm) {
                        reached[place] = Some(measured);
                    }
                }
                Ok((vm, Answer::Fail(of, text))) if of == id => {
                    open.retain(|number| *number as usize != vm);
                    failed = Some(Trouble { what: format!("guest vm{vm}: {text}"), guest: None });
                }
                Ok(_) => {}
                Err(Some(trouble)) => return Err(trouble),
                Err(None) => {
                    let names: Vec<String> = open.iter().map(|vm| format!("vm{vm}")).collect();
                    let waited = start.elapsed();
                    let what = format!("no answer from guest {} in {waited:.0?}", names.join(", "));
                    return Err(self.silent(waited_for, what));
                }
            }
        }
        match failed {
            Some(trouble) => Err(trouble),
            None => Ok(reached.into_iter().flatten().collect()),
        }
    }

    /// What to make of a guest that does not answer: what its kernel complained about, and, on its
    /// console, what its CPUs do.
    fn silent(&mut self, guest: usize, mut what: String) -> Trouble {
        // A break on the serial line, then a letter, is SysRq: tasks on CPUs, blocked tasks.
        for request in ["\u{1}bl", "\u{1}bw"] {
            // Who takes no input has nothing more to say.
            let _ = self.vms[guest].console.write_all(request.as_bytes());
            let _ = self.vms[guest].console.flush();
            let end = Instant::now() + LAST_WORDS;
            while self.answer(end).is_ok() {}
        }
        if let Some(stall) = &self.vms[guest].stall {
            what.push_str(&format!("; its kernel says: {stall}"));
        }
        Trouble { what, guest: Some(guest) }
    }

    /// The next answer of any guest. `Err(None)` when there was none by `end`, `Err(Some)` when a
    /// guest died.
    fn answer(&mut self, end: Instant) -> Result<(usize, Answer), Option<Trouble>> {
        let died = |vm, what| Some(Trouble { what, guest: Some(vm) });
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (vm, heard) = match self.heard.recv_timeout(left) {
                Ok(heard) => heard,
                // Every guest has a listener; when all have gone there is nobody left to answer.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(None);
                }
            };
            let line = match heard {
                Heard::Closed => {
                    let what = self.death(vm);
                    return Err(died(vm, what));
                }
                Heard::Line(line) => line,
            };
            match parse_answer(&line) {
                Some(Answer::Stuck(why)) => {
                    return Err(died(vm, format!("the agent of guest vm{vm} gave up: {why}")));
                }
                Some(answer) => return Ok((vm, answer)),
                None => {}
            }
            if FAULTS.iter().any(|sign| line.contains(sign)) {
                return Err(died(vm, format!("guest vm{vm}'s kernel died: {}", line.trim())));
            }
            if STALLS.iter().any(|sign| line.contains(sign)) {
                self.vms[vm].stall = Some(line.trim().to_string());
            }
        }
    }

    /// How the QEMU of a guest whose console closed has ended.
    fn death(&mut self, vm: usize) -> String {
        let words = last_line(&fs::read(error_path(vm)).unwrap_or_default());
        match self.vms[vm].qemu.wait() {
            Ok(status) => format!("QEMU of guest vm{vm} ended ({status}): {words}"),
            Err(error) => format!("QEMU of guest vm{vm} is lost: {error}"),
        }
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        for vm in &mut self.vms {
            // Fails only if it is gone already.
            let _ = vm.qemu.kill();
        }
        for (number, vm) in self.vms.iter_mut().enumerate() {
            let _ = vm.qemu.wait();
            // An empty cgroup is no harm; the next guest of this number takes it over.
            let _ = fs::remove_dir(cgroup_path(number));
        }
    }
}

impl Vm {
    fn start(number: usize, plan: &Plan, tell: Sender<(usize, Heard)>) -> Result<Vm> {
        let weight = plan.weights.get(number).copied();
        let cgroup = cgroup_path(number);
        fs::create_dir_all(&cgroup).with_context(|| format!("cannot create {cgroup}"))?;
        fs::write(format!("{cgroup}/cpu.weight"), weight.unwrap_or(100).to_string())
            .with_context(|| format!("cannot set the weight of {cgroup}"))?;
        let log = File::create(log_path(number))?;
        let more = if plan.vm_cpu.is_empty() { "" } else { "," };
        let mut qemu = Command::new(QEMU)
            .args(["-cpu", &format!("host{more}{}", plan.vm_cpu)])
            .args(["-accel", "kvm", "-M", "microvm,rtc=on", "-nodefaults"])
            .args(["-no-user-config", "-display", "none", "-no-reboot"])
            // The name makes the vCPU threads recognisable, for people and for tests.
            .args(["-name", &format!("vm{number},debug-threads=on")])
            .args(["-smp", &plan.vcpus_per_vm.to_string(), "-m", &plan.vm_mem_mib.to_string()])
            .args(["-kernel", KERNEL, "-initrd", INITRD])
            .args(["-append", &format!("{CMDLINE} {}", plan.vm_cmdline)])
            // With mux=on, Ctrl-A b on the input is a break on the line.
            .args(["-chardev", "stdio,id=console,mux=on,signal=off", "-serial", "chardev:console"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(error_path(number))?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {QEMU}"))?;
        fs::write(format!("{cgroup}/cgroup.procs"), qemu.id().to_string())
            .with_context(|| format!("cannot move a guest to {cgroup}"))?;
        let (console, output) = match (qemu.stdin.take(), qemu.stdout.take()) {
            (Some(console), Some(output)) => (console, output),
            _ => bail!("QEMU was started without pipes"),
        };
        std::thread::spawn(move || listen(number, output, log, &tell));
        Ok(Vm { qemu, console, stall: None })
    }
}

/// Passes the console on line by line, and to the log.
fn listen(number: usize, output: ChildStdout, mut log: File, tell: &Sender<(usize, Heard)>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // A full disk (memory, here) loses the log, not the experiment.
        let _ = log.write_all(&line);
        if tell.send((number, Heard::Line(String::from_utf8_lossy(&line).into_owned()))).is_err() {
            return;
        }
        line.clear();
    }
    let _ = tell.send((number, Heard::Closed));
}

/// A line of the guest's agent; `None` for all the rest that a console says.
fn parse_answer(line: &str) -> Option<Answer> {
    let (word, rest) = line.trim().split_once(MARK)?.1.split_once(' ')?;
    match word {
        "up" => return Some(Answer::Up),
        "stuck" => return Some(Answer::Stuck(rest.to_string())),
        _ => {}
    }
    let (id, rest) = rest.split_once(' ')?;
    let id = id.parse().ok()?;
    match word {
        "done" => Some(Answer::Done(id, serde_json::from_str(rest).ok()?)),
        "fail" => Some(Answer::Fail(id, rest.to_string())),
        _ => None,
    }
}

/// The end of a guest's console, also when the guest is gone.
pub fn console(vm: usize) -> String {
    let log = fs::read(log_path(vm)).unwrap_or_default();
    String::from_utf8_lossy(&log[log.len().saturating_sub(CONSOLE_TAIL)..]).into_owned()
}

fn cgroup_path(number: usize) -> String {
    format!("/sys/fs/cgroup/vm{number}")
}

fn log_path(number: usize) -> String {
    format!("/run/vm{number}.log")
}

fn error_path(number: usize) -> String {
    format!("/run/vm{number}.qemu")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_answers_between_kernel_messages() {
        assert!(matches!(parse_answer("@baton up {\"cpus\": 2}\r\n"), Some(Answer::Up)));
        let done = r#"[    9.1] x@baton done 3 {"rate":2.0,"unit":"x/s","ops":4,"seconds":2.0}"#;
        assert!(matches!(parse_answer(done), Some(Answer::Done(3, m)) if m.ops == 4));
        let fail = parse_answer("@baton fail 4 no such program\n");
        assert!(matches!(fail, Some(Answer::Fail(4, text)) if text == "no such program"));
        for noise in ["", "@baton", "@baton done x {}", "@baton done 3 {", "[ 1.0] Oops: 0002"] {
            assert!(parse_answer(noise).is_none(), "{noise}");
        }
    }
}
