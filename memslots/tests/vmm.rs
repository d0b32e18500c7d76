// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What Firecracker and Cloud Hypervisor do with vm-memory, with `GuestRegions` in the place of its
//! collection: the type alone differs. Their own crates are in no registry, so their code's forms
//! are repeated here (src/vmm/src/vstate/memory.rs and users; vmm/src/memory_manager.rs and users,
//! both as of August 2026); the crates of rust-vmm that they give their memory to are the real
//! ones. vhost-user-backend names vm-memory's own type and takes no other.

use std::io::Cursor;
use std::ops::Deref;
use std::sync::Arc;

use linux_loader::cmdline::Cmdline;
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::elf::Elf;
use linux_loader::loader::{KernelLoader, bootparam::boot_params, load_cmdline};
use memslots::GuestRegions;
use vhost::VringConfigData;
use vhost::vhost_kern::vhost_binding::VHOST_VRING_F_LOG;
use virtio_queue::desc::{RawDescriptor, split::Descriptor};
use virtio_queue::mock::MockSplitQueue;
use virtio_queue::{Queue, QueueT};
use vm_memory::bitmap::{AtomicBitmap, Bitmap, NewBitmap};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{
    Address, Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend,
    GuestMemoryError, GuestMemoryLoadGuard, GuestMemoryRegion, GuestRegionCollectionError,
    GuestRegionMmap, MemoryRegionAddress, ReadVolatile,
};

/// The line that a VMM changes.
type GuestMemoryMmap<B = ()> = GuestRegions<GuestRegionMmap<B>>;

const MIB: usize = 1 << 20;

fn memory<B: NewBitmap>() -> GuestMemoryMmap<B> {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 2 * MIB), (GuestAddress(1 << 32), MIB)])
        .expect("3 MiB")
}

/// As Firecracker's `GuestMemoryExtension`: a trait of its own for the alias.
trait Extension {
    fn walk<F>(&self, addr: GuestAddress, len: usize, f: F) -> Result<(), GuestMemoryError>
    where
        F: FnMut(&GuestRegionMmap<Option<AtomicBitmap>>, MemoryRegionAddress, usize);
    fn reset_dirty(&self);
}

impl Extension for GuestMemoryMmap<Option<AtomicBitmap>> {
    fn walk<F>(&self, addr: GuestAddress, len: usize, mut f: F) -> Result<(), GuestMemoryError>
    where
        F: FnMut(&GuestRegionMmap<Option<AtomicBitmap>>, MemoryRegionAddress, usize),
    {
        let (mut cur, mut left) = (addr, len);
        while let Some(region) = self.find_region(cur) {
            let start = region.to_region_addr(cur).expect("it was found");
            let n = left.min((region.len() - start.raw_value()) as usize);
            f(region, start, n);
            left -= n;
            if left == 0 {
                return Ok(());
            }
            cur = cur.checked_add(n as u64).ok_or(GuestMemoryError::GuestAddressOverflow)?;
        }
        Err(GuestMemoryError::InvalidGuestAddress(cur))
    }

    fn reset_dirty(&self) {
        self.iter().for_each(|region| {
            if let Some(bitmap) = (**region).bitmap() {
                bitmap.reset();
            }
        });
    }
}

fn tracked(base: u64, size: usize) -> GuestRegionMmap<Option<AtomicBitmap>> {
    let bitmap = Some(AtomicBitmap::with_len(size));
    let region = MmapRegionBuilder::new_with_bitmap(size, bitmap)
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_NORESERVE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
        .build()
        .expect("memory");
    GuestRegionMmap::new(region, GuestAddress(base)).expect("no wrap")
}

#[test]
fn firecracker_builds_walks_and_tracks_its_memory() -> Result<(), Box<dyn std::error::Error>> {
    let mut mem = GuestMemoryMmap::default();
    for base in [0, 0x20_0000, 0x10_0000] {
        let region = Arc::new(tracked(base, MIB));
        mem = mem.insert_region(Arc::clone(&region))?;
    }
    let again = mem.insert_region(Arc::new(tracked(0xff000, MIB)));
    assert!(matches!(again, Err(GuestRegionCollectionError::MemoryRegionOverlap)));
    assert_eq!(mem.iter().map(|region| region.len()).sum::<u64>(), 3 * MIB as u64);
    assert_eq!((mem.num_regions(), mem.last_addr()), (3, GuestAddress(0x2f_ffff)));
    let device = mem.clone();
    let mut seen = Vec::new();
    device.walk(GuestAddress(0xf_f000), 0x11_0000, |_, at, n| seen.push((at.raw_value(), n)))?;
    assert_eq!(seen, [(0xff000, 0x1000), (0, MIB), (0, 0xf000)]);
    assert!(device.walk(GuestAddress(0x2f_0000), MIB, |_, _, _| ()).is_err());
    // Over the border of two regions.
    mem.write_obj(0x1122_3344_5566_7788u64, GuestAddress(0xf_fffc))?;
    assert_eq!(mem.read_obj::<u64>(GuestAddress(0xf_fffc))?, 0x1122_3344_5566_7788);
    mem.write_slice(&[7; 32], GuestAddress(0x1000))?;
    let dirty = |at: u64| {
        let region = mem.find_region(GuestAddress(at)).expect("there is one");
        region.bitmap().dirty_at((at - region.start_addr().raw_value()) as usize)
    };
    assert!(dirty(0x1000) && dirty(0xf_f000) && dirty(0x10_0000) && !dirty(0x5000));
    for slice in mem.get_slices(GuestAddress(0xf_f000), 0x2000).flatten() {
        slice.bitmap().mark_dirty(0, slice.len());
    }
    mem.reset_dirty();
    assert!(!dirty(0x1000) && !dirty(0x10_0000));
    let host = mem.get_host_address(GuestAddress(0x2000))? as u64;
    assert_eq!(host, mem.get_slice(GuestAddress(0x2000), 1)?.ptr_guard().as_ptr() as u64);
    assert!(mem.address_in_range(GuestAddress(5)) && !mem.address_in_range(GuestAddress(1 << 40)));
    assert_eq!(mem.checked_offset(GuestAddress(0), 8), Some(GuestAddress(8)));
    (&[1u8, 2, 3][..]).read_exact_volatile(&mut mem.get_slice(GuestAddress(0x3000), 3)?)?;
    assert_eq!(mem.read_obj::<[u8; 3]>(GuestAddress(0x3000))?, [1, 2, 3]);
    Ok(())
}

/// As Cloud Hypervisor's devices take it.
fn transfer<M>(space: &M) -> u64
where
    M: GuestAddressSpace + Sync + Send,
    M::M: GuestMemoryBackend,
{
    space.memory().iter().map(GuestMemoryRegion::len).sum()
}

trait Target: Send + Sync {
    fn bytes(&self) -> u64;
}

impl<B: Bitmap + Send + Sync + 'static> Target for GuestMemoryMmap<B> {
    fn bytes(&self) -> u64 {
        self.iter().map(GuestMemoryRegion::len).sum()
    }
}

#[test]
fn cloud_hypervisor_shares_grows_and_copies_its_memory() -> Result<(), Box<dyn std::error::Error>> {
    let boot = memory::<AtomicBitmap>();
    let atomic = GuestMemoryAtomic::new(boot.clone());
    let before: GuestMemoryLoadGuard<GuestMemoryMmap<AtomicBitmap>> = atomic.memory();
    let region = Arc::new(GuestRegionMmap::from_range(GuestAddress(2 << 32), MIB, None)?);
    let grown = atomic.memory().insert_region(region)?;
    atomic.lock().expect("nobody panicked").replace(grown);
    assert_eq!((before.num_regions(), atomic.memory().num_regions()), (2, 3));
    assert_eq!(atomic.memory().last_addr(), GuestAddress((2 << 32) + MIB as u64 - 1));
    assert_eq!(transfer(&atomic), 4 * MIB as u64);
    let target: Arc<dyn Target> = Arc::new(boot);
    assert_eq!(target.bytes(), 3 * MIB as u64);
    let guard = atomic.memory();
    assert!(GuestMemoryBackend::check_range(&*guard, GuestAddress(0), 2 * MIB));
    assert!(!GuestMemoryBackend::check_range(&*guard, GuestAddress(0), 2 * MIB + 1));
    let (region, at) = guard.to_region_addr(GuestAddress((1 << 32) + 9)).expect("there is one");
    assert_eq!((region.start_addr().0, at.0), (1 << 32, 9));
    let mut source = &[5u8; 100][..];
    let read = guard.read_volatile_from(GuestAddress(0x2000), &mut source, 100)?;
    let mut sink = Vec::new();
    guard.write_all_volatile_to(GuestAddress(0x2000), &mut sink, read)?;
    assert_eq!(sink, [5; 100]);
    guard.get_slice(GuestAddress(0x8000), 8)?.bitmap().mark_dirty(0, 8);
    let region = guard.find_region(GuestAddress(0)).expect("there is one");
    assert_ne!((**region).bitmap().get_and_reset()[0], 0);
    assert!(guard.iter().all(|region| region.file_offset().is_none()));
    let (smaller, gone) = guard.remove_region(GuestAddress(1 << 32), MIB as u64)?;
    assert_eq!((smaller.num_regions(), gone.len()), (2, MIB as u64));
    Ok(())
}

#[test]
fn rust_vmms_loader_takes_it() -> Result<(), Box<dyn std::error::Error>> {
    let mem: GuestMemoryMmap = memory();
    // An ELF file of one page that is loaded at 1 MiB.
    let mut elf = vec![0u8; 0x1000];
    elf[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0");
    let mut put = |at: usize, bytes: &[u8]| elf[at..at + bytes.len()].copy_from_slice(bytes);
    put(20, &1u32.to_le_bytes());
    put(24, &0x10_0000u64.to_le_bytes()); // e_entry
    put(32, &64u64.to_le_bytes()); // e_phoff
    put(52, &[64, 0, 56, 0, 1, 0]); // e_ehsize, e_phentsize, e_phnum
    put(64, &[1, 0, 0, 0, 5, 0, 0, 0]); // PT_LOAD, R+X
    put(72, &0x800u64.to_le_bytes());
    put(80, &0x10_0000u64.to_le_bytes());
    put(88, &0x10_0000u64.to_le_bytes());
    put(96, &0x800u64.to_le_bytes());
    put(104, &0x800u64.to_le_bytes());
    put(0x800, b"the kernel");
    let loaded = Elf::load(&mem, None, &mut Cursor::new(elf), None)?;
    assert_eq!(loaded.kernel_load, GuestAddress(0x10_0000));
    assert_eq!(&mem.read_obj::<[u8; 10]>(GuestAddress(0x10_0000))?, b"the kernel");
    let mut line = Cmdline::new(100)?;
    line.insert_str("console=ttyS0")?;
    load_cmdline(&mem, GuestAddress(0x2_0000), &line)?;
    assert_eq!(&mem.read_obj::<[u8; 14]>(GuestAddress(0x2_0000))?, b"console=ttyS0\0");
    let params = BootParams::new(&boot_params::default(), GuestAddress(0x7000));
    LinuxBootConfigurator::write_bootparams(&params, &mem)?;
    Ok(())
}

/// As both VMMs' devices: generic over what leads to memory.
fn chains<M>(queue: &mut Queue, mem: M) -> Vec<u64>
where
    M: Clone + Deref,
    M::Target: vm_memory::GuestMemory + Sized,
{
    let mut all = Vec::new();
    while let Some(mut chain) = queue.pop_descriptor_chain(mem.clone()) {
        all.extend(chain.by_ref().map(|descriptor| descriptor.addr().0));
        queue.add_used(&*mem, chain.head_index(), 1).expect("the used ring is in memory");
    }
    all
}

#[test]
fn rust_vmms_queues_and_vhost_take_it() -> Result<(), Box<dyn std::error::Error>> {
    let mem: GuestMemoryMmap = memory();
    let mock = MockSplitQueue::new(&mem, 16);
    let buffer = |addr| RawDescriptor::from(Descriptor::new(addr, 0x100, 0, 0));
    mock.build_desc_chain(&[buffer(0x10_0000), buffer(0x10_1000)])?;
    let mut queue: Queue = mock.create_queue()?;
    assert!(queue.is_valid(&mem));
    assert_eq!(chains(&mut queue, &mem), [0x10_0000, 0x10_1000]);
    assert!(queue.needs_notification(&mem)?);
    let ring = VringConfigData {
        queue_max_size: 16,
        queue_size: 16,
        flags: VHOST_VRING_F_LOG,
        desc_table_addr: 0x1000,
        used_ring_addr: 0x2000,
        avail_ring_addr: 0x3000,
        log_addr: Some(0x4000),
    };
    let space = GuestMemoryAtomic::new(mem);
    let addresses = ring.to_vhost_vring_addr(0, &space)?;
    let host = space.memory().get_host_address(GuestAddress(0x1000))?;
    assert_eq!(addresses.desc_user_addr, host as u64);
    Ok(())
}
