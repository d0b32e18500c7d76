// SPDX-License-Identifier: GPL-2.0-only
//! One VM: memory, page tables, the payload, an in-kernel LAPIC for each vCPU.

use std::io::Cursor;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result, bail, ensure};
use kvm_bindings::{
    CpuId, KVM_CAP_HALT_POLL, KVM_CAP_X2APIC_API, KVM_MAX_CPUID_ENTRIES, KVM_MEM_LOG_DIRTY_PAGES,
    KVM_MP_STATE_RUNNABLE, kvm_enable_cap, kvm_mp_state, kvm_msi, kvm_regs, kvm_segment,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, IoEventAddress, Kvm, NoDatamatch, VcpuFd, VmFd};
use linux_loader::loader::{Elf, KernelLoader};
use memslots::GuestRegions;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};
use vmm_sys_util::eventfd::EventFd;

use crate::layout::*;

/// The guest's code; build.rs has compiled it.
const PAYLOAD_ELF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/payload"));

const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;

/// What one VM is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub vcpus: u32,
    /// A `TEST_…` of the layout.
    pub test: u64,
    pub args: [u64; 4],
    /// At most [`MAX_SAMPLES`].
    pub samples: u64,
    pub x2apic: bool,
    /// KVM polls at HLT for at most so long; `None`: as the host is set.
    pub halt_poll_ns: Option<u32>,
    /// Memory slots beside the one with the payload.
    pub more_slots: u32,
    /// KVM notes which pages of those slots are written.
    pub log_dirty: bool,
    /// A slot of its own with a page for each sample; the first argument of the test is where.
    pub touches: bool,
}

pub struct Vm {
    pub fd: VmFd,
    pub spec: Spec,
    memory: GuestRegions<GuestRegionMmap>,
    samples_at: u64,
    /// Written by KVM when the guest writes to [`PORT_IO`].
    pub io_request: EventFd,
    /// Keeps what KVM writes to for the other addresses without an exit to user space.
    _in_kernel: EventFd,
}

/// The guest's memory: a slot for each region, of an address and a size in bytes. With `log_dirty`
/// KVM logs what is written to all but the first.
fn memory(
    fd: &VmFd,
    regions: Vec<(u64, u64)>,
    log_dirty: bool,
) -> Result<GuestRegions<GuestRegionMmap>> {
    let regions = regions
        .into_iter()
        .map(|(at, size)| GuestRegionMmap::from_range(GuestAddress(at), size as usize, None))
        .collect::<Result<Vec<_>, _>>()
        .context("no memory for a guest")?;
    let memory = GuestRegions::from_regions(regions).context("guest memory")?;
    for (slot, region) in (0..).zip(memory.iter()) {
        let region = kvm_userspace_memory_region {
            slot,
            flags: if log_dirty && slot > 0 { KVM_MEM_LOG_DIRTY_PAGES } else { 0 },
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
        };
        // SAFETY: the mapping lives as long as `memory`, which is dropped after `fd`'s VM has
        // no vCPU that runs: `vcpu::Running` ends them first.
        unsafe { fd.set_user_memory_region(region) }.context("KVM takes no memory slot")?;
    }
    Ok(memory)
}

impl Vm {
    /// A VM with vCPUs that are ready to run.
    ///
    /// Errors: KVM refuses something, such as so many vCPUs.
    pub fn new(kvm: &Kvm, mut spec: Spec) -> Result<(Vm, Vec<VcpuFd>)> {
        let fd = kvm.create_vm().context("KVM makes no VM")?;
        fd.set_tss_address(0xfffb_d000).context("KVM_SET_TSS_ADDR")?;
        fd.create_irq_chip().context("KVM makes no in-kernel LAPIC (KVM_CREATE_IRQCHIP)")?;
        let enable = |cap, value| {
            let cap = kvm_enable_cap { cap, args: [value, 0, 0, 0], ..Default::default() };
            fd.enable_cap(&cap)
        };
        // 32-bit ids, and no broadcast to id 255.
        if spec.vcpus > 255 {
            enable(KVM_CAP_X2APIC_API, 3).context("KVM has no APIC ids beyond 254")?;
        }
        if let Some(ns) = spec.halt_poll_ns {
            enable(KVM_CAP_HALT_POLL, ns.into()).context("KVM has no halt polling per VM")?;
        }

        let areas_end = AREAS + u64::from(spec.vcpus) * AREA_SIZE;
        let samples_at = areas_end.next_multiple_of(PAGE);
        let size = samples_at + (SERIES * MAX_SAMPLES * 8) as u64;
        let mut regions = vec![(0, size)];
        // Of one page, with holes between them so that KVM cannot merge them.
        let first = size.next_multiple_of(PAGE) + PAGE;
        regions.extend((0..u64::from(spec.more_slots)).map(|i| (first + i * 2 * PAGE, PAGE)));
        if spec.log_dirty {
            spec.args = [first, 2 * PAGE, spec.more_slots.into(), 0];
        }
        let touched = regions.last().map_or(0, |(at, size)| at + size).next_multiple_of(LARGE_PAGE);
        if spec.touches {
            regions.push((touched, spec.samples * PAGE));
        }
        if regions.last().is_some_and(|(at, size)| at + size > MMIO_USER) {
            bail!("{} memory slots do not fit below {MMIO_USER:#x}", spec.more_slots);
        }
        let memory = memory(&fd, regions, spec.log_dirty)?;

        let io_request = EventFd::new(0).context("no eventfd")?;
        let in_kernel = EventFd::new(0).context("no eventfd")?;
        let at_port = |port: u16| IoEventAddress::Pio(port.into());
        fd.register_ioevent(&io_request, &at_port(PORT_IO), NoDatamatch).context("ioeventfd")?;
        fd.register_ioevent(&in_kernel, &at_port(PORT_KERNEL), NoDatamatch).context("ioeventfd")?;
        let mmio = IoEventAddress::Mmio(MMIO_KERNEL);
        fd.register_ioevent(&in_kernel, &mmio, NoDatamatch).context("ioeventfd")?;

        let vm = Vm { fd, spec, memory, samples_at, io_request, _in_kernel: in_kernel };
        vm.write_page_tables()?;
        let loaded = Elf::load(&vm.memory, None, &mut Cursor::new(PAYLOAD_ELF), None)
            .context("the payload cannot be loaded")?;
        ensure!(loaded.kernel_end <= AREAS, "the payload is too large");
        let params = vm.params();
        params.test.store(vm.spec.test, SeqCst);
        params.vcpus.store(vm.spec.vcpus.into(), SeqCst);
        params.samples.store(vm.spec.samples.min(MAX_SAMPLES as u64), SeqCst);
        params.samples_at.store(samples_at, SeqCst);
        params.apic.store(if vm.spec.x2apic { APIC_X2 } else { APIC_X }, SeqCst);
        for (param, arg) in params.args.iter().zip(vm.spec.args) {
            param.store(arg, SeqCst);
        }
        if vm.spec.touches {
            params.args[0].store(touched, SeqCst);
            let pages = vm.memory.get_host_address(GuestAddress(touched))?;
            let size = vm.spec.samples * PAGE;
            // SAFETY: a mapping of ours of this size; the advice changes none of its content.
            // Without it one first touch would be that of 2 MiB.
            unsafe { libc::madvise(pages.cast(), size as usize, libc::MADV_NOHUGEPAGE) };
        }

        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("no CPUID from KVM")?;
        let tsc_deadline = kvm.check_extension(Cap::TscDeadlineTimer);
        let vcpus = (0..vm.spec.vcpus)
            .map(|index| vm.vcpu(index, cpuid.clone(), tsc_deadline, loaded.kernel_load.0))
            .collect::<Result<_>>()?;
        Ok((vm, vcpus))
    }

    /// One that is in long mode already, at the payload's start.
    fn vcpu(&self, index: u32, cpuid: CpuId, tsc_deadline: bool, entry: u64) -> Result<VcpuFd> {
        let vcpu = self.fd.create_vcpu(index.into()).with_context(|| {
            format!(
                "KVM makes no vCPU {index}: take fewer (--vcpus, --vms), or allow more (ulimit -n)"
            )
        })?;
        vcpu.set_cpuid2(&with_apic_id(cpuid, index, tsc_deadline)).context("KVM_SET_CPUID2")?;
        let mut sregs = vcpu.get_sregs().context("KVM_GET_SREGS")?;
        let segment = |selector, type_, l| kvm_segment {
            base: 0,
            limit: !0,
            selector,
            type_,
            present: 1,
            s: 1,
            l,
            g: 1,
            ..Default::default()
        };
        sregs.cs = segment(8, 11, 1);
        let data = segment(16, 3, 0);
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        sregs.cr3 = PAGE_TABLES;
        // PAE, SSE.
        sregs.cr4 = 1 << 5 | 1 << 9 | 1 << 10;
        // Protected mode, x87 as it is today, paging.
        sregs.cr0 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 31;
        // Long mode, enabled and active.
        sregs.efer = 1 << 8 | 1 << 10;
        vcpu.set_sregs(&sregs).context("KVM_SET_SREGS")?;
        let regs = kvm_regs {
            rip: entry,
            rdi: index.into(),
            // As a call leaves it.
            rsp: AREAS + u64::from(index) * AREA_SIZE + AREA_STACK - 8,
            rflags: 2,
            ..Default::default()
        };
        vcpu.set_regs(&regs).context("KVM_SET_REGS")?;
        let runnable = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
        vcpu.set_mp_state(runnable).context("KVM_SET_MP_STATE")?;
        Ok(vcpu)
    }

    /// The first 4 GiB, in pages of 2 MiB, each address to itself.
    fn write_page_tables(&self) -> Result<()> {
        const PRESENT_WRITABLE: u64 = 3;
        const LARGE: u64 = 1 << 7;
        let pdpt = PAGE_TABLES + PAGE;
        let directories = pdpt + PAGE;
        let entry = |at: u64, value: u64| self.memory.write_obj(value, GuestAddress(at));
        entry(PAGE_TABLES, pdpt | PRESENT_WRITABLE)?;
        for gib in 0..4 {
            let directory = directories + gib * PAGE;
            entry(pdpt + gib * 8, directory | PRESENT_WRITABLE)?;
            for i in 0..512 {
                entry(directory + i * 8, gib << 30 | i << 21 | LARGE | PRESENT_WRITABLE)?;
            }
        }
        Ok(())
    }

    pub fn params(&self) -> &Params {
        self.shared(PARAMS)
    }

    pub fn area(&self, vcpu: u32) -> &Area {
        assert!(vcpu < self.spec.vcpus);
        self.shared(AREAS + u64::from(vcpu) * AREA_SIZE)
    }

    fn shared<T>(&self, at: u64) -> &T {
        let host = self.memory.get_host_address(GuestAddress(at)).expect("in the first region");
        // SAFETY: the first region holds all of it, page-aligned; both types consist of atomics,
        // for which any content is right, and which the guest may change at any time.
        unsafe { &*host.cast() }
    }

    /// What vCPU 0 has measured so far: for each series as many samples, TSC cycles.
    pub fn samples(&self) -> Result<Vec<Vec<u64>>> {
        let n = self.area(0).samples.load(SeqCst);
        (0..CALIBRATION).map(|series| self.series(series, n)).collect()
    }

    /// What the calibration loop took, TSC cycles.
    pub fn calibrations(&self) -> Result<Vec<u64>> {
        self.series(CALIBRATION, self.area(0).calibrations.load(SeqCst))
    }

    fn series(&self, series: usize, n: u64) -> Result<Vec<u64>> {
        let sample = |i: usize| {
            let at = self.samples_at + ((series * MAX_SAMPLES + i) * 8) as u64;
            self.memory.read_obj(GuestAddress(at)).context("samples outside of memory")
        };
        // The guest says how many, and a guest can say anything.
        (0..(n as usize).min(MAX_SAMPLES)).map(sample).collect()
    }

    /// One pass over all slots: which pages were written since the last one? Returns how many.
    pub fn dirty_pages(&self) -> Result<u64> {
        let mut pages = 0;
        for slot in 1..=self.spec.more_slots {
            let log = self.fd.get_dirty_log(slot, PAGE as usize).context("KVM_GET_DIRTY_LOG")?;
            pages += log.iter().map(|bits| u64::from(bits.count_ones())).sum::<u64>();
        }
        Ok(pages)
    }

    /// An interrupt for vCPU 0, as a device would send it.
    pub fn interrupt(&self, vector: u8) -> Result<()> {
        let msi = kvm_msi { address_lo: 0xfee0_0000, data: vector.into(), ..Default::default() };
        self.fd.signal_msi(msi).context("KVM_SIGNAL_MSI")?;
        Ok(())
    }
}

fn with_apic_id(mut cpuid: CpuId, index: u32, tsc_deadline: bool) -> CpuId {
    for leaf in cpuid.as_mut_slice() {
        match leaf.function {
            1 => {
                leaf.ebx = leaf.ebx & 0x00ff_ffff | index << 24;
                // x2APIC.
                leaf.ecx |= 1 << 21;
                if tsc_deadline {
                    leaf.ecx |= 1 << 24;
                }
            }
            0xb | 0x1f => leaf.edx = index,
            _ => {}
        }
    }
    cpuid
}
