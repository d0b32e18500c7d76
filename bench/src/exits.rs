// SPDX-License-Identifier: GPL-2.0-only
//! How often a vCPU has left the guest, from KVM's own statistics (KVM_GET_STATS_FD; its layout is
//! in Documentation/virt/kvm/api.rst, 4.133).

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use kvm_ioctls::VcpuFd;

/// `_IO(KVMIO, 0xce)`.
const KVM_GET_STATS_FD: libc::c_ulong = 0xaece;

/// The counter of one vCPU's exits.
pub struct Exits {
    stats: File,
    at: u64,
}

impl Exits {
    /// `None` where KVM keeps no such statistics (before Linux 5.14).
    pub fn of(vcpu: &VcpuFd) -> Option<Self> {
        // SAFETY: the descriptor is a vCPU's; the call takes no argument and returns a new one.
        let fd = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_GET_STATS_FD, 0) };
        if fd < 0 {
            return None;
        }
        // SAFETY: KVM has just made it for us.
        let stats = unsafe { File::from_raw_fd(fd) };
        let word = |at: u64| -> Option<u32> {
            let mut word = [0; 4];
            stats.read_exact_at(&mut word, at).ok()?;
            Some(u32::from_ne_bytes(word))
        };
        // flags, name_size, num_desc, id_offset, desc_offset, data_offset
        let [name_size, count, descriptions, data] =
            [word(4)?, word(8)?, word(16)?, word(20)?].map(u64::from);
        // flags, exponent and size, offset, bucket_size, then the name
        let size = 16 + name_size;
        for place in 0..count {
            let at = descriptions + place * size;
            let mut name = vec![0; name_size as usize];
            stats.read_exact_at(&mut name, at + 16).ok()?;
            if name.split(|byte| *byte == 0).next() == Some(b"exits") {
                let at = data + u64::from(word(at + 8)?);
                return Some(Exits { stats, at });
            }
        }
        None
    }

    /// So far.
    pub fn count(&self) -> Option<u64> {
        let mut count = [0; 8];
        self.stats.read_exact_at(&mut count, self.at).ok()?;
        Some(u64::from_ne_bytes(count))
    }
}
