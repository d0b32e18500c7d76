// SPDX-License-Identifier: GPL-2.0-only
//! The KVM probes: a second BPF object on the scheduler's maps, attached when KVM is
//! there and gone before KVM goes.

use crate::bpf_intf::{baton_limits_MAX_VCPUS, report_request, vcpu_report};
use anyhow::{Context, Result, anyhow, ensure};
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, ProgramType};
use std::os::fd::AsFd;
use std::path::Path;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kvm.bpf.o"));

/// Is KVM able to run a VM now?
///
/// An attached probe pins `kvm`, but not the vendor's module, which is unloaded first: so
/// the vendor's module tells when KVM is meant to go. A built-in KVM has no `refcnt`.
pub fn is_present() -> bool {
    let module = |name: &str| Path::new("/sys/module").join(name);
    let is_loaded = |name: &str| module(name).join("refcnt").exists();

    is_loaded("kvm_amd") || is_loaded("kvm_intel") || (module("kvm").exists() && !is_loaded("kvm"))
}

/// Is there an interrupt of which `kvm_apicv_accept_irq` alone tells? Only with AMD's AVIC
/// (`avic_kick_vcpu()`): with Intel's APICv each comes from `__apic_accept_irq()`, which has told
/// `kvm_apic_accept_irq`.
fn has_avic() -> bool {
    let module = |name: &str| Path::new("/sys/module").join(name).exists();
    module("kvm_amd") || !module("kvm_intel")
}

/// Which probes: some are attached only while what they tell matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// What is always attached.
    Rest,
    Ipis,
    Halts,
}

/// Attached probes; dropping them detaches.
pub struct Probes {
    ipis: Vec<Link>,
    halts: Vec<Link>,
    _links: Vec<Link>,
    object: Object,
}

impl Probes {
    /// Load the probes with the maps of the same names of `scheduler`, and attach all but those of
    /// IPIs and HLTs.
    pub fn attach(scheduler: &Object) -> Result<Self> {
        let mut open = ObjectBuilder::default()
            .name("baton_kvm")?
            .open_memory(OBJECT)
            .context("the KVM probes' BPF object is not readable")?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if let Some(shared) = scheduler.maps().find(|shared| shared.name() == map.name()) {
                map.reuse_fd(shared.as_fd()).with_context(|| format!("cannot share map {name}"))?;
            }
        }
        let object = open.load().context(
            "cannot load the KVM probes; does the kernel have CONFIG_DEBUG_INFO_BTF_MODULES=y?",
        )?;
        let links = attach(&object, Of::Rest)?;
        Ok(Self { ipis: Vec::new(), halts: Vec::new(), _links: links, object })
    }

    /// What the vCPUs of the VM in `slot` have done until now; it has `vcpus` of them.
    ///
    /// Errors: the kernel refuses to run the BPF program.
    pub fn reports(&self, slot: u32, vcpus: u32) -> Result<Vec<vcpu_report>> {
        let program = self.object.progs_mut().find(|program| program.name() == "baton_report");
        let program = program.context("the KVM probes have no baton_report")?;
        let map = self.object.maps().find(|map| map.name() == "reports");
        let map = map.context("the KVM probes have no map of reports")?;
        let mut ask = report_request { slot, wanted: vcpus, next_id: 0, n: 0 };
        let mut all = Vec::new();
        loop {
            // SAFETY: integers without padding between them, which stay borrowed as long as the
            // bytes.
            let bytes = unsafe {
                let first = (&raw mut ask).cast::<u8>();
                std::slice::from_raw_parts_mut(first, size_of::<report_request>())
            };
            let input = ProgramInput { context_in: Some(bytes), ..ProgramInput::default() };
            let answer = program.test_run(input).context("cannot ask for the vCPUs' times")?;
            ensure!(answer.return_value == 0, "baton_report returned {}", answer.return_value);
            let told = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
            let reports = told.chunks_exact(size_of::<vcpu_report>()).take(ask.n as usize);
            // SAFETY: integers, for which any bytes are a value; as many as one record has.
            all.extend(
                reports.map(|r| unsafe { r.as_ptr().cast::<vcpu_report>().read_unaligned() }),
            );
            if ask.wanted == 0 || ask.next_id >= baton_limits_MAX_VCPUS {
                return Ok(all);
            }
        }
    }

    /// Follow IPIs, or no longer. On x86 alone: the local APIC's tracepoints tell of them.
    pub fn follow_ipis(&mut self, follow: bool) -> Result<()> {
        match (follow && cfg!(target_arch = "x86_64"), self.ipis.is_empty()) {
            (true, true) => self.ipis = attach(&self.object, Of::Ipis)?,
            (false, false) => self.ipis.clear(),
            _ => {}
        }
        Ok(())
    }

    /// Follow HLTs, or no longer. The BPF programs must know before it begins or ends.
    pub fn follow_halts(&mut self, follow: bool) -> Result<()> {
        // A HLT whose end was not seen would count as one that goes on: the probe of the end comes
        // first, and goes last.
        while self.halts.pop().is_some() {}
        if follow {
            self.halts = attach(&self.object, Of::Halts)?;
        }
        Ok(())
    }
}

/// Of what a probe tells.
fn of(program: &str) -> Of {
    match program {
        "baton_halt" | "baton_halted" => Of::Halts,
        _ if program.ends_with("accept_irq") => Of::Ipis,
        _ => Of::Rest,
    }
}

fn attach(object: &Object, which: Of) -> Result<Vec<Link>> {
    let programs = object.progs_mut().filter(|program| program.prog_type() != ProgramType::Syscall);
    let mut programs: Vec<_> =
        programs.filter(|program| of(&program.name().to_string_lossy()) == which).collect();
    programs.retain(|program| program.name() != "baton_apicv_accept_irq" || has_avic());
    programs.sort_by_key(|program| program.name() != "baton_halted");
    programs
        .into_iter()
        .map(|program| {
            let name = program.name().to_string_lossy().into_owned();
            program.attach().map_err(|e| anyhow!("cannot attach KVM probe {name}: {e}"))
        })
        .collect()
}
