// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use core::fmt;
use core::ops::{BitOr, BitXor};

/// Slots that KVM lets user space have on x86-64: `KVM_USER_MEM_SLOTS`, `SHRT_MAX` less three
/// private ones (arch/x86/include/asm/kvm_host.h).
pub const MAX_SLOTS: u32 = 32_764;

/// Pages of one slot: `KVM_MEM_MAX_NR_PAGES` (include/linux/kvm_host.h).
pub const MAX_PAGES: u64 = (1 << 31) - 1;

/// Frames of a guest whose physical addresses have 64 bits, pages being 4 KiB.
const MAX_GFN: u64 = 1 << 52;

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

    /// The flags of this word; `None` if it has others than the known ones.
    pub const fn from_bits(bits: u32) -> Option<Flags> {
        if bits & !3 == 0 { Some(Flags(bits)) } else { None }
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
    /// Below [`MAX_SLOTS`].
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

    /// Whether a slot like this can be, whatever others there are.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.id >= MAX_SLOTS {
            return Err(Error::NoSuchId { id: self.id });
        }
        let end = self.base_gfn.checked_add(self.npages);
        if self.npages == 0 || self.npages > MAX_PAGES || end.is_none_or(|end| end > MAX_GFN) {
            return Err(Error::BadRange { base_gfn: self.base_gfn, npages: self.npages });
        }
        Ok(())
    }
}

/// Why an update was refused. Nothing has changed then. `KVM_SET_USER_MEMORY_REGION` refuses the
/// same, with `EEXIST` for an overlap and `EINVAL` for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The id is not below [`MAX_SLOTS`], or there is no slot of this id to delete.
    NoSuchId {
        /// The id asked for.
        id: u32,
    },
    /// No pages, more than [`MAX_PAGES`], or frames beyond the guest's physical addresses.
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
