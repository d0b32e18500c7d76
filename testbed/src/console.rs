// SPDX-License-Identifier: GPL-2.0-only
//! Reads the host's console log as it grows and finds the faults in it.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// What went wrong in a host kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Oops,
    RcuStall,
    Lockup,
    OutOfMemory,
}

/// The console of a running host.
pub struct Console {
    file: File,
    read: u64,
    /// The line that is still being written.
    partial: Vec<u8>,
    echo: bool,
    /// The first fault, with its line.
    pub fault: Option<(Fault, String)>,
}

impl Console {
    /// Follows a log. With `echo`, everything goes to standard error too.
    pub fn new(file: File, echo: bool) -> Console {
        Console { file, read: 0, partial: Vec::new(), echo, fault: None }
    }

    /// Reads what is new.
    pub fn follow(&mut self) -> io::Result<()> {
        let mut bytes = [0; 16384];
        loop {
            let length = self.file.read_at(&mut bytes, self.read)?;
            if length == 0 {
                return Ok(());
            }
            self.read += length as u64;
            if self.echo {
                let _ = io::stderr().write_all(&bytes[..length]);
            }
            self.take(&bytes[..length]);
        }
    }

    /// The whole log so far.
    pub fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = vec![0; self.file.metadata()?.len() as usize];
        let length = self.file.read_at(&mut text, 0)?;
        text.truncate(length);
        Ok(text)
    }

    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte != b'\n' {
                self.partial.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.partial);
            let line = String::from_utf8_lossy(&line);
            let said = message(&line);
            if self.fault.is_none()
                && let Some(fault) = fault(said)
            {
                self.fault = Some((fault, said.to_string()));
            }
        }
    }
}

/// The line without the time and the CPU or thread that printk puts before it.
fn message(line: &str) -> &str {
    let mut rest = line.trim();
    while let Some(tail) = rest.strip_prefix('[')
        && let Some((stamp, tail)) = tail.split_once(']')
        && stamp.trim().starts_with(|c: char| c.is_ascii_digit() || c == 'T' || c == 'C')
    {
        rest = tail.trim_start();
    }
    rest
}

/// The kernel's own words, from `arch/x86/kernel/dumpstack.c`, `kernel/panic.c`,
/// `kernel/rcu/tree_stall.h`, `kernel/watchdog.c`, `kernel/workqueue.c` and `mm/oom_kill.c`. That
/// sched_ext throws out a scheduler that stalls is not among them: the host survives it.
fn fault(said: &str) -> Option<Fault> {
    let starts = |words: &[&str]| words.iter().any(|word| said.starts_with(word));
    if said.contains("BUG: soft lockup")
        || said.contains("hard LOCKUP")
        || starts(&["BUG: workqueue lockup"])
    {
        Some(Fault::Lockup)
    } else if starts(&["rcu: INFO: rcu_"]) && said.contains("stall") {
        Some(Fault::RcuStall)
    } else if starts(&["Out of memory"]) {
        Some(Fault::OutOfMemory)
    } else if starts(&["Oops", "BUG: ", "kernel BUG at", "Kernel panic", "general protection"]) {
        Some(Fault::Oops)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_apart() {
        for (line, expected) in [
            ("[    1.2] Oops: int3: 0000 [#1] SMP", Some(Fault::Oops)),
            ("[    1.2] BUG: kernel NULL pointer dereference, address: 0", Some(Fault::Oops)),
            ("[   21.0][    C1] Kernel panic - not syncing: sysrq", Some(Fault::Oops)),
            (
                "[   21.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
                Some(Fault::RcuStall),
            ),
            ("[   21.0] rcu: INFO: rcu_sched self-detected stall on CPU", Some(Fault::RcuStall)),
            ("[   21.0] watchdog: BUG: soft lockup - CPU#0 stuck", Some(Fault::Lockup)),
            ("[   21.0] BUG: workqueue lockup - pool cpus=0", Some(Fault::Lockup)),
            ("[   21.0] Out of memory: Killed process 7 (x)", Some(Fault::OutOfMemory)),
            ("[   21.0] sched_ext: BPF scheduler \"x\" disabled (runnable task stall)", None),
            ("[   21.0] rcu: INFO: something else", None),
            ("[    0.0] Command line: oops=panic", None),
        ] {
            assert_eq!(fault(message(line)), expected, "{line}");
        }
    }

    #[test]
    fn lines_come_in_pieces() {
        let file = tempfile::tempfile().unwrap();
        let mut console = Console::new(file.try_clone().unwrap(), false);
        (&file).write_all(b"[ 1.0] hello\r\n[ 1.1] Kernel pa").unwrap();
        console.follow().unwrap();
        assert_eq!(console.fault, None);
        (&file).write_all(b"nic - not syncing: x\r\n").unwrap();
        console.follow().unwrap();
        let expected = (Fault::Oops, "Kernel panic - not syncing: x".to_string());
        assert_eq!(console.fault, Some(expected));
    }
}
