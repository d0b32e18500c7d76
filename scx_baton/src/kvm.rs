// SPDX-License-Identifier: GPL-2.0-only
//! The KVM probes: a second BPF object on the scheduler's maps, attached when KVM is
//! there and gone before KVM goes.

use anyhow::{Context, Result, anyhow};
use libbpf_rs::{Link, MapCore, Object, ObjectBuilder};
use std::ffi::OsStr;
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

/// Attached probes; dropping them detaches.
pub struct Probes {
    _links: Vec<Link>,
    _object: Object,
}

impl Probes {
    /// Load the probes with `shared`, the scheduler's maps of the same names, and attach. IPIs can be
    /// followed on x86 alone: the local APIC's tracepoint tells of them.
    pub fn attach<'m>(
        shared: impl Fn(&str) -> Option<&'m dyn MapCore>,
        follow_ipis: bool,
    ) -> Result<Self> {
        let follows = follow_ipis && cfg!(target_arch = "x86_64");
        let of_ipis = |program: &OsStr| program.to_string_lossy().ends_with("accept_irq");
        let wanted = |program: &OsStr| follows || !of_ipis(program);
        let mut open = ObjectBuilder::default()
            .name("baton_kvm")?
            .open_memory(OBJECT)
            .context("the KVM probes' BPF object is not readable")?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if let Some(ours) = shared(&name) {
                map.reuse_fd(ours.as_fd()).with_context(|| format!("cannot share map {name}"))?;
            }
        }
        for mut program in open.progs_mut() {
            let wanted = wanted(program.name());
            program.set_autoload(wanted);
        }
        let object = open.load().context(
            "cannot load the KVM probes; does the kernel have CONFIG_DEBUG_INFO_BTF_MODULES=y?",
        )?;
        let links = object
            .progs_mut()
            .filter(|p| wanted(p.name()))
            .map(|p| {
                let name = p.name().to_string_lossy().into_owned();
                p.attach().map_err(|e| anyhow!("cannot attach KVM probe {name}: {e}"))
            })
            .collect::<Result<_>>()?;
        Ok(Self { _links: links, _object: object })
    }
}
