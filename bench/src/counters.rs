// SPDX-License-Identifier: GPL-2.0-only
//! What KVM counts of a vCPU: its exits, and the time it polled at HLT (KVM_GET_STATS_FD; its
//! layout is in Documentation/virt/kvm/api.rst, 4.133).

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use kvm_ioctls::VcpuFd;

/// `_IO(KVMIO, 0xce)`.
const KVM_GET_STATS_FD: libc::c_ulong = 0xaece;

/// The counters of one vCPU.
pub struct Counters {
    stats: File,
    exits: u64,
    /// Time polled until the guest could go on, and in vain, ns.
    polled: [u64; 2],
}

impl Counters {
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
        let find = |wanted: &[u8]| {
            (0..count).find_map(|place| {
                let at = descriptions + place * size;
                let mut name = vec![0; name_size as usize];
                stats.read_exact_at(&mut name, at + 16).ok()?;
                let found = name.split(|byte| *byte == 0).next() == Some(wanted);
                found.then(|| Some(data + u64::from(word(at + 8)?))).flatten()
            })
        };
        let polled = [find(b"halt_poll_success_ns")?, find(b"halt_poll_fail_ns")?];
        Some(Counters { exits: find(b"exits")?, polled, stats })
    }

    /// How often it has left the guest so far.
    pub fn exits(&self) -> Option<u64> {
        self.read(self.exits)
    }

    /// How long KVM has polled for it so far, ns.
    pub fn polled_ns(&self) -> Option<u64> {
        self.polled.iter().map(|at| self.read(*at)).sum()
    }

    fn read(&self, at: u64) -> Option<u64> {
        let mut count = [0; 8];
        self.stats.read_exact_at(&mut count, at).ok()?;
        Some(u64::from_ne_bytes(count))
    }
}
