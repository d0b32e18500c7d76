// SPDX-License-Identifier: GPL-2.0-only
//! While vCPUs wait for pCPUs, it matters who has sent whom an IPI, and who halts: bpf/waits.bpf.h.

use anyhow::{Context, Result};
use crossbeam::channel::{Receiver, bounded};
use libbpf_rs::{ErrorKind, MapCore, RingBufferBuilder};
use std::sync::Arc;
use std::time::Duration;

/// IPIs are followed for so many looks more, a second apart, when no vCPU has waited for long: a
/// probe that comes and goes would cost more than one that stays.
pub const IPI_LOOKS: u32 = 5;

/// HLTs: attaching their probes takes 25 million instructions (exact host), ftrace's mostly.
pub const HALT_LOOKS: u32 = 20;

/// HLTs, from when KVM is there: which VMs halt is known before anybody waits.
pub const START_LOOKS: u32 = 60;

/// HLTs, for who asks for statistics: longer than from one scrape to the next.
pub const ASKED_LOOKS: u32 = 300;

/// How long the thread that listens may outlive who listens.
const OUTLIVES: Duration = Duration::from_secs(60);

/// A message in `told` each time that vCPUs begin to wait.
pub struct Waits {
    pub told: Receiver<()>,
    _alive: Arc<()>,
}

impl Waits {
    pub fn listen(waits: &impl MapCore) -> Result<Waits> {
        let (sender, told) = bounded(1);
        let mut builder = RingBufferBuilder::new();
        builder.add(waits, move |_| {
            // One that is not read yet says the same.
            let _ = sender.try_send(());
            0
        })?;
        let ring = builder.build().context("cannot listen to the BPF programs")?;
        let alive = Arc::new(());
        let listener = Arc::downgrade(&alive);
        std::thread::spawn(move || {
            let goes_on = |e: libbpf_rs::Error| e.kind() == ErrorKind::Interrupted;
            while listener.strong_count() > 0 && ring.poll(OUTLIVES).map_or_else(goes_on, |()| true)
            {
            }
        });
        Ok(Waits { told, _alive: alive })
    }
}

/// Whether something is to be followed, from what is seen each second.
#[derive(Default)]
pub struct Follow {
    /// So many looks more.
    left: u32,
}

impl Follow {
    /// For `looks` more at least.
    pub fn begin(&mut self, looks: u32) {
        self.left = self.left.max(looks);
    }

    /// A second is over, in which a vCPU `waited` for long, or none did: then it ends in `looks`.
    pub fn look(&mut self, waited: bool, looks: u32) {
        if waited && self.is_on() {
            self.begin(looks);
        } else {
            self.left = self.left.saturating_sub(1);
        }
    }

    pub fn is_on(&self) -> bool {
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipis_are_followed_until_nobody_has_waited_for_five_seconds() {
        let mut follow = Follow::default();
        follow.look(true, IPI_LOOKS);
        assert!(!follow.is_on());
        follow.begin(IPI_LOOKS);
        for waited in [false, false, false, false, true, false, false, false, false] {
            follow.look(waited, IPI_LOOKS);
            assert!(follow.is_on());
        }
        follow.look(false, IPI_LOOKS);
        assert!(!follow.is_on());
    }

    #[test]
    fn who_asks_is_answered_for_longer_than_vcpus_wait() {
        let mut follow = Follow::default();
        follow.begin(ASKED_LOOKS);
        follow.look(true, HALT_LOOKS);
        follow.begin(HALT_LOOKS);
        for _ in 0..ASKED_LOOKS - 1 {
            follow.look(false, HALT_LOOKS);
            assert!(follow.is_on());
        }
        follow.look(false, HALT_LOOKS);
        assert!(!follow.is_on());
    }
}
