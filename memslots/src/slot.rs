// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use core::fmt;
use core::ops::{BitOr, BitXor};

/// Slots that KVM lets user space have on x86-64: `KVM_USER_MEM_SLOTS`, `SHRT_MAX` less three
/// private ones (arch/x86/include/asm/kvm_host.h).
pub const MAX_SLOTS: u32 = 32_764;

/// Pages of one slot: `KVM_MEM_MAX_NR_PAGES` (include/linux/kvm_host.h).
pub const MAX_PAGES: u64 = (1 << 31) - 1;

/// Frames that a guest can have: physical addresses have 52 bits, pages 4 KiB
/// (`kvm_mmu_max_gfn()`, arch/x86/kvm/mmu.h). With EPT or NPT it is fewer: as many as the host has.
pub const MAX_GFNS: u64 = 1 << 40;

/// Address spaces of a VM: `KVM_MAX_NR_ADDRESS_SPACES`, the second one is that of the system
/// management mode.
pub const MAX_ADDRESS_SPACES: u32 = 2;

/// Frames of 64-bit addresses: a region that ends there, or wraps, is refused before all else.
const WRAPS_AT: u64 = 1 << 52;

/// Flags of a slot; the values are those of `KVM_SET_USER_MEMORY_REGION`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u32);

impl Flags {
    /// None.
    pub const NONE: Flags = Flags(0);
    /// `KVM_MEM_LOG_DIRTY_PAGES`.
    pub const LOG_DIRTY_PAGES: Flags = Flags(1);
    /// `KVM_MEM_READONLY`; it cannot change while the slot exists.
    pub const READONLY: Flags = Flags(2);
    /// `KVM_MEM_GUEST_MEMFD` (`KVM_SET_USER_MEMORY_REGION2`): private memory is in a guest_memfd.
    /// It goes with no other flag, and such a slot can only be deleted.
    pub const GUEST_MEMFD: Flags = Flags(4);

    /// The flags of this word; `None` if it has others than the known ones.
    pub const fn from_bits(bits: u32) -> Option<Flags> {
        if bits & !7 == 0 { Some(Flags(bits)) } else { None }
    }

    /// As KVM wants them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitXor for Flags {
    type Output = Flags;

    fn bitxor(self, other: Flags) -> Flags {
        Flags(self.0 ^ other.0)
    }
}

/// Guest memory that is contiguous on both sides: guest frames `base_gfn` to
/// `base_gfn + npages - 1`.
///
/// `T` is what the VMM needs to reach it, such as an address in its own address space or an
/// `Arc` of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot<T> {
    /// As KVM's `slot`: the address space, below [`MAX_ADDRESS_SPACES`], in bits 16 to 31, in the
    /// others a number below [`MAX_SLOTS`]. A map holds one address space: those of another one may
    /// have the same frames.
    pub id: u32,
    /// What KVM does with it.
    pub flags: Flags,
    /// The first guest frame number.
    pub base_gfn: u64,
    /// Length in pages; 1 to [`MAX_PAGES`].
    pub npages: u64,
    /// Where it is for the VMM.
    pub backing: T,
}

impl<T> Slot<T> {
    /// Whether the frame is one of the slot's.
    #[inline]
    pub fn contains(&self, gfn: u64) -> bool {
        // Frames below the base wrap to huge numbers: one comparison instead of two.
        gfn.wrapping_sub(self.base_gfn) < self.npages
    }

    /// One past the last guest frame number.
    pub fn end_gfn(&self) -> u64 {
        self.base_gfn + self.npages
    }

    /// The address space, from the id.
    pub fn address_space(&self) -> u32 {
        self.id >> 16
    }

    /// What KVM checks before it looks at other slots: the flags' combination after the number,
    /// before the range (`kvm_set_memory_region()`, virt/kvm/kvm_main.c).
    pub(crate) fn check(&self) -> Result<(), Error> {
        let id = self.id;
        if id & 0xffff >= MAX_SLOTS || self.address_space() >= MAX_ADDRESS_SPACES {
            return Err(Error::NoSuchId { id });
        }
        if self.flags.contains(Flags::GUEST_MEMFD) && self.flags != Flags::GUEST_MEMFD {
            return Err(Error::BadFlags { id, flags: self.flags });
        }
        let end = self.base_gfn.checked_add(self.npages);
        let fits = (1..=MAX_PAGES).contains(&self.npages) && end.is_some_and(|end| end < WRAPS_AT);
        if fits { Ok(()) } else { Err(self.bad_range()) }
    }

    /// What KVM checks last (`kvm_arch_prepare_memory_region()`).
    pub(crate) fn check_end(&self) -> Result<(), Error> {
        if self.end_gfn() <= MAX_GFNS { Ok(()) } else { Err(self.bad_range()) }
    }

    fn bad_range(&self) -> Error {
        Error::BadRange { base_gfn: self.base_gfn, npages: self.npages }
    }
}

/// One update, as one call of `KVM_SET_USER_MEMORY_REGION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// Creates a slot, moves it or changes its flags: [`Snapshot::with`](crate::Snapshot::with).
    Set(Slot<T>),
    /// Deletes the slot of this id: [`Snapshot::without`](crate::Snapshot::without).
    Delete(u32),
}

/// Why an update was refused. Nothing has changed then. `KVM_SET_USER_MEMORY_REGION` refuses the
/// same, with `EEXIST` for an overlap and `EINVAL` for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No id can be like this (see [`Slot::id`]), or there is no slot of this id to delete.
    NoSuchId {
        /// The id asked for.
        id: u32,
    },
    /// [`Flags::GUEST_MEMFD`] goes with no other flag.
    BadFlags {
        /// Id of the slot.
        id: u32,
        /// Flags asked for.
        flags: Flags,
    },
    /// The other slots of this map are of another address space. KVM, which has one table for each,
    /// knows no such error.
    OtherAddressSpace {
        /// Id of the slot.
        id: u32,
    },
    /// A slot with [`Flags::GUEST_MEMFD`] can be deleted, nothing else. (KVM refuses a request that
    /// has this flag; one without it, for such a slot, it takes for a change of flags.)
    Immutable {
        /// Id of the slot.
        id: u32,
    },
    /// No pages, more than [`MAX_PAGES`], or frames beyond [`MAX_GFNS`].
    BadRange {
        /// First frame asked for.
        base_gfn: u64,
        /// Pages asked for.
        npages: u64,
    },
    /// Another slot has some of these frames.
    Overlap {
        /// Id of that slot.
        with: u32,
    },
    /// Two slots of one list have this id.
    SameId {
        /// The id.
        id: u32,
    },
    /// A slot that exists may move or change its dirty logging, but not its size.
    Resized {
        /// Id of the slot.
        id: u32,
    },
    /// A slot that exists may not get another backing.
    Remapped {
        /// Id of the slot.
        id: u32,
    },
    /// A slot that exists may not become read-only, or cease to be.
    ReadonlyChanged {
        /// Id of the slot.
        id: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSuchId { id } => write!(f, "there is no memory slot {id}"),
            Error::BadFlags { id, flags } => {
                write!(f, "memory slot {id} cannot have the flags {:#x}", flags.bits())
            }
            Error::OtherAddressSpace { id } => {
                write!(f, "memory slot {id:#x} is of another address space than those of this map")
            }
            Error::Immutable { id } => {
                write!(f, "memory slot {id} has a guest_memfd and can only be deleted")
            }
            Error::BadRange { base_gfn, npages } => {
                write!(f, "no memory slot can have {npages} pages from frame {base_gfn:#x} on")
            }
            Error::Overlap { with } => write!(f, "memory slot {with} has some of these frames"),
            Error::SameId { id } => write!(f, "two memory slots have the id {id}"),
            Error::Resized { id } => write!(f, "memory slot {id} exists and cannot be resized"),
            Error::Remapped { id } => {
                write!(f, "memory slot {id} exists and cannot get another backing")
            }
            Error::ReadonlyChanged { id } => {
                write!(f, "memory slot {id} exists; whether it is read-only cannot change")
            }
        }
    }
}

impl core::error::Error for Error {}
