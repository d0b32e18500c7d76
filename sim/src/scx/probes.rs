// SPDX-License-Identifier: GPL-2.0-only
//! KVM's events, for a scheduler that has probes into KVM (scx_baton's).

use super::Scx;
use super::ffi::{Kvm, KvmSpinLoop, KvmVcpu, KvmVcpuStat};
use super::load::Loaded;
use super::state::In;
use crate::machine::{KvmEvent, Machine};

type LoadFn = unsafe extern "C" fn(*mut KvmVcpu, i32) -> i32;
type VcpuFn = unsafe extern "C" fn(*mut KvmVcpu) -> i32;
type WakeupFn = unsafe extern "C" fn(u64, bool, bool) -> i32;
type AcceptFn = unsafe extern "C" fn(u32, u16, u16, u8) -> i32;
type VmFn = unsafe extern "C" fn(*mut Kvm) -> i32;

/// Probes into KVM, if the scheduler has any (scx_baton's).
pub struct Probes {
    pub load: Option<LoadFn>,
    pub spin: Option<VcpuFn>,
    pub accept: Option<AcceptFn>,
    pub halt: Option<VcpuFn>,
    pub halted: Option<WakeupFn>,
    pub destroy: Option<VmFn>,
}

impl Probes {
    /// Those that the scheduler has; of interrupts only if it `follows_ipis`.
    pub fn of(loaded: &Loaded, follows_ipis: bool) -> Self {
        Probes {
            load: loaded.symbol("baton_vcpu_load"),
            spin: loaded.symbol("baton_on_spin"),
            accept: loaded.symbol("baton_accept_irq").filter(|_: &AcceptFn| follows_ipis),
            halt: loaded.symbol("baton_halt"),
            halted: loaded.symbol("baton_halted"),
            destroy: loaded.symbol("baton_destroy_vm"),
        }
    }
}

impl Scx {
    /// Runs a probe on `cpu`, under the name of what it is attached to.
    fn probe(
        &mut self,
        m: &mut Machine,
        context: In,
        cpu: u32,
        at: &'static str,
        run: impl FnOnce(),
    ) {
        let before = self.enter(m, context, cpu, at);
        run();
        self.leave(before);
    }

    pub fn kvm_event(&mut self, m: &mut Machine, cpu: u32, task: u32, event: KvmEvent) {
        if let KvmEvent::IpiSent { to } = event {
            if let Some(accept) = self.probes.accept {
                // SAFETY: plain numbers; a fixed, edge-triggered interrupt.
                let run = || unsafe {
                    accept(to, 0, 0, 0xfd);
                };
                self.probe(m, In::Locked, cpu, "tp_btf/kvm_apic_accept_irq", run);
            }
            return;
        }
        if event == KvmEvent::Halted {
            if let Some(halted) = self.probes.halted {
                // SAFETY: plain numbers, which it does not look at.
                let run = || unsafe {
                    halted(0, false, true);
                };
                self.probe(m, In::Locked, cpu, "tp_btf/kvm_vcpu_wakeup", run);
            }
            return;
        }
        if event == KvmEvent::VcpuLoaded && self.outside[m.task(task).vm as usize] {
            return;
        }
        let vcpu = self.vcpu(m, task);
        // SAFETY: the record is in a box that stays, and nobody else uses it now.
        unsafe {
            match event {
                KvmEvent::VcpuLoaded => (*vcpu).stat.exits += 1,
                KvmEvent::Spins => (*vcpu).spin_loop.in_spin_loop = true,
                KvmEvent::Spun => (*vcpu).spin_loop.in_spin_loop = false,
                KvmEvent::Halts { poll_ns } => {
                    (*vcpu).halt_poll_ns = u32::try_from(poll_ns).unwrap_or(u32::MAX);
                }
                _ => {}
            }
        }
        if let (KvmEvent::VcpuLoaded, Some(load)) = (event, self.probes.load) {
            // SAFETY: as above.
            let run = || unsafe {
                load(vcpu, cpu as i32);
            };
            return self.probe(m, In::Locked, cpu, "fentry/kvm_arch_vcpu_load", run);
        }
        let (probe, at) = match event {
            KvmEvent::Spins => (self.probes.spin, "fentry/kvm_vcpu_on_spin"),
            KvmEvent::Halts { .. } => (self.probes.halt, "fentry/kvm_vcpu_halt"),
            KvmEvent::VcpuLoaded | KvmEvent::Spun | KvmEvent::Halted | KvmEvent::IpiSent { .. } => {
                return;
            }
        };
        if let Some(probe) = probe {
            // SAFETY: as above.
            let run = || unsafe {
                probe(vcpu);
            };
            self.probe(m, In::Locked, cpu, at, run);
        }
    }

    pub fn vm_destroyed(&mut self, m: &mut Machine, vm: u32) {
        let kvm = &raw mut *self.kvms[vm as usize];
        if let Some(destroy) = self.probes.destroy {
            // SAFETY: as above.
            let run = || unsafe {
                destroy(kvm);
            };
            self.probe(m, In::Unlocked, 0, "fentry/kvm_arch_destroy_vm", run);
        }
    }

    fn vcpu(&mut self, m: &Machine, task: u32) -> *mut KvmVcpu {
        let at = task as usize;
        if self.vcpus.len() <= at {
            self.vcpus.resize_with(at + 1, || None);
        }
        let vm = m.task(task).vm as usize;
        let vcpu_id = (task - self.first[vm]) as i32;
        let kvm = &raw mut *self.kvms[vm];
        &raw mut **self.vcpus[at].get_or_insert_with(|| {
            Box::new(KvmVcpu {
                kvm,
                vcpu_id,
                wants_to_run: true,
                preempted: false,
                ready: false,
                halt_poll_ns: 0,
                spin_loop: KvmSpinLoop { in_spin_loop: false },
                stat: KvmVcpuStat { exits: 0 },
            })
        })
    }
}
