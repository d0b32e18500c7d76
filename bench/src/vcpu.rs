// SPDX-License-Identifier: GPL-2.0-only
//! The threads that run a VM.

use std::io::ErrorKind;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use baton_output::interrupt;
use kvm_ioctls::{VcpuExit, VcpuFd};

use crate::counters::Counters;
use crate::host::{self, Usage};
use crate::layout::*;
use crate::vm::Vm;

/// Why a vCPU runs no more.
#[derive(Debug)]
enum End {
    /// Only vCPU 0 ever is.
    Done,
    Failed(String),
}

/// A VM that runs. Dropped, it ends.
pub struct Running {
    pub vm: Arc<Vm>,
    threads: Vec<JoinHandle<Usage>>,
    /// `None` if KVM does not tell.
    counters: Option<Vec<Counters>>,
    enough: Arc<AtomicBool>,
    ends: Receiver<End>,
}

impl Running {
    /// Starts a thread for each vCPU, and one that serves I/O requests after `io_time`.
    pub fn start(vm: Vm, vcpus: Vec<VcpuFd>, io_time: Option<Duration>, pin: bool) -> Result<Self> {
        host::prepare_kick();
        let (vm, enough) = (Arc::new(vm), Arc::new(AtomicBool::new(false)));
        let (sender, ends) = channel();
        let counters = vcpus.iter().map(Counters::of).collect();
        let mut running = Running { vm: vm.clone(), threads: Vec::new(), counters, enough, ends };
        for (index, vcpu) in (0..).zip(vcpus) {
            let (vm, enough, sender) = (vm.clone(), running.enough.clone(), sender.clone());
            let run = move || {
                if pin && let Err(why) = host::pin(index) {
                    let _ = sender.send(End::Failed(format!("vCPU {index}: {why:#}")));
                    return Usage::default();
                }
                run(&vm, index, vcpu, &enough, &sender)
            };
            // As QEMU names them: tools know vCPUs by it.
            let thread = thread::Builder::new().name(format!("CPU {index}/KVM")).spawn(run);
            running.threads.push(thread.context("cannot start a thread for a vCPU")?);
        }
        if let Some(time) = io_time {
            let (vm, enough) = (vm.clone(), running.enough.clone());
            let serve = move || serve_io(&vm, time, &enough);
            let thread = thread::Builder::new().name("bench-io".into()).spawn(serve);
            running.threads.push(thread.context("cannot start the I/O thread")?);
        }
        Ok(running)
    }

    /// Waits until vCPU 0 is done.
    ///
    /// Errors: the guest failed, hangs (`deadline`), or the user has had enough.
    pub fn wait(&self, deadline: Instant) -> Result<()> {
        loop {
            if interrupt::asked() {
                bail!("interrupted");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.ends.recv_timeout(left.min(Duration::from_millis(50))) {
                Ok(End::Done) => return Ok(()),
                Ok(End::Failed(why)) => return Err(anyhow!(why)),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    bail!("the guest hangs: no result before the deadline")
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("all vCPUs have ended"),
            }
        }
    }

    /// How often its vCPUs have left the guest so far; `None` if KVM does not tell.
    pub fn exits(&self) -> Option<u64> {
        self.counters.as_ref()?.iter().map(Counters::exits).sum()
    }

    /// How long KVM has polled at HLTs of its vCPUs so far, ns; `None` if KVM does not tell.
    pub fn polled_ns(&self) -> Option<u64> {
        self.counters.as_ref()?.iter().map(Counters::polled_ns).sum()
    }

    /// The guest's failure, if there was one.
    pub fn failure(&self) -> Option<String> {
        self.ends.try_iter().find_map(|end| match end {
            End::Failed(why) => Some(why),
            End::Done => None,
        })
    }

    /// Ends all vCPUs; what the thread of vCPU 0 used.
    pub fn end(mut self) -> Usage {
        self.stop().first().copied().unwrap_or_default()
    }

    fn stop(&mut self) -> Vec<Usage> {
        self.enough.store(true, SeqCst);
        let _ = self.vm.io_request.write(1);
        let threads = std::mem::take(&mut self.threads);
        let kick = |thread: &JoinHandle<Usage>| {
            // One that was just about to enter the guest does not see the signal: again.
            while !thread.is_finished() {
                host::kick(thread.as_pthread_t());
                thread::sleep(Duration::from_millis(1));
            }
        };
        threads.iter().for_each(kick);
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns what this thread used.
fn run(vm: &Vm, index: u32, mut vcpu: VcpuFd, enough: &AtomicBool, ends: &Sender<End>) -> Usage {
    let end = loop {
        if enough.load(SeqCst) {
            break None;
        }
        let failure = match vcpu.run() {
            Ok(VcpuExit::IoOut(PORT_USER, _) | VcpuExit::MmioWrite(MMIO_USER, _)) => continue,
            Ok(VcpuExit::IoOut(PORT_DONE, [DONE_OK])) => break Some(End::Done),
            Ok(VcpuExit::IoOut(PORT_DONE, _)) => exception(vm, index),
            Ok(VcpuExit::Shutdown) => "triple fault".into(),
            Ok(VcpuExit::FailEntry(reason, _)) => {
                format!("KVM cannot enter the guest (hardware reason {reason:#x})")
            }
            Ok(exit) => format!("unexpected exit {exit:?}"),
            Err(error) => match std::io::Error::from(error).kind() {
                ErrorKind::Interrupted | ErrorKind::WouldBlock => continue,
                _ => format!("KVM_RUN failed: {error}"),
            },
        };
        let registers = vcpu.get_regs().map(|regs| format!("{regs:x?}")).unwrap_or_default();
        break Some(End::Failed(format!("vCPU {index}: {failure}; {registers}")));
    };
    if let Some(end) = end {
        // Nobody listens any more: then nobody wants to know.
        let _ = ends.send(end);
    }
    host::usage()
}

fn exception(vm: &Vm, index: u32) -> String {
    let [vector, code, rip, address] =
        vm.area(index).exception.each_ref().map(|value| value.load(SeqCst));
    format!("exception {vector} at {rip:#x} (error code {code:#x}, CR2 {address:#x})")
}

/// A device: each request is answered after a while.
fn serve_io(vm: &Vm, time: Duration, enough: &AtomicBool) -> Usage {
    while vm.io_request.read().is_ok() && !enough.load(SeqCst) {
        let start = Instant::now();
        if time > Duration::from_micros(100) {
            thread::sleep(time - Duration::from_micros(60));
        }
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
        if vm.interrupt(IO_VECTOR).is_err() {
            break;
        }
    }
    host::usage()
}
