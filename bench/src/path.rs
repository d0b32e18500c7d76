// SPDX-License-Identifier: GPL-2.0-only
//! Which way KVM took for an IPI, from KVM's own trace events.
//!
//! The fast path delivers first and traces then, the slow one the other way round
//! (`__kvm_x2apic_icr_write()` and `kvm_apic_send_ipi()` in arch/x86/kvm/lapic.c).

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use crate::layout::IPI_VECTOR;

/// Where tracefs is: mounted by itself, or by debugfs as soon as somebody looks.
const TRACING: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const SENT: &str = "kvm_apic_ipi: ";
const ACCEPTED: &str = "kvm_apic_accept_irq: ";

/// An instance of the kernel's tracer of our own; dropped, it is gone.
pub struct Trace(PathBuf);

impl Trace {
    /// Of this thread and those that it will start. `None` without permission or tracefs, which
    /// root alone has, and without events for IPIs.
    pub fn start() -> Option<Self> {
        let name = format!("instances/baton-bench-{}", process::id());
        let mut places = TRACING.iter().map(|tracing| Path::new(tracing).join(&name));
        let trace = Trace(places.find(|instance| fs::create_dir(instance).is_ok())?);
        trace.write("options/event-fork", "1")?;
        // SAFETY: gettid cannot fail.
        trace.write("set_event_pid", &unsafe { libc::gettid() }.to_string())?;
        trace.write("events/kvm/kvm_apic_ipi/enable", "1")?;
        trace.write("events/kvm/kvm_apic_accept_irq/enable", "1")?;
        Some(trace)
    }

    /// The way of the IPIs since then.
    pub fn path(&self) -> Option<&'static str> {
        path_of(&fs::read_to_string(self.0.join("trace")).ok()?)
    }

    fn write(&self, file: &str, text: &str) -> Option<()> {
        fs::write(self.0.join(file), text).ok()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Fails only if it is gone already.
        let _ = fs::remove_dir(&self.0);
    }
}

fn path_of(trace: &str) -> Option<&'static str> {
    let vector = format!(" vec {IPI_VECTOR} ");
    let ours = trace.lines().filter(|line| line.contains(&vector));
    let mut sent = ours.filter_map(|line| {
        let sent = line.contains(SENT);
        (sent || line.contains(ACCEPTED)).then_some(sent)
    });
    let first = sent.next()?;
    match (first, sent.next_back()?) {
        (true, false) => Some("slow path"),
        (false, true) => Some("fast path"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_events_tells_the_path() {
        let sent = "CPU 0/KVM-7 [000] 1.0: kvm_apic_ipi: dst 1 vec 64 (Fixed|physical|assert)\n";
        let accepted = "CPU 0/KVM-7 [000] 1.0: kvm_apic_accept_irq: apicid 1 vec 64 (Fixed|edge)\n";
        let timer = "CPU 1/KVM-8 [000] 1.0: kvm_apic_accept_irq: apicid 1 vec 65 (Fixed|edge)\n";
        let all = |lines: &[&str]| path_of(&lines.concat());
        assert_eq!(all(&["# tracer: nop\n", accepted, sent, accepted, sent]), Some("fast path"));
        assert_eq!(all(&[timer, sent, accepted, sent, accepted, timer]), Some("slow path"));
        assert_eq!(all(&[sent, accepted, accepted]), Some("slow path"));
        // Delivered by the hardware, or seen in part.
        assert_eq!(all(&[timer]), None);
        assert_eq!(all(&[sent, accepted, sent]), None);
        assert_eq!(all(&[sent]), None);
    }
}
