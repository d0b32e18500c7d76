// SPDX-License-Identifier: GPL-2.0-only
//! While vCPUs wait for pCPUs, it matters who has sent whom an IPI: bpf/waits.bpf.h.

use anyhow::{Context, Result};
use crossbeam::channel::{Receiver, bounded};
use libbpf_rs::{ErrorKind, MapCore, RingBufferBuilder};
use std::sync::Arc;
use std::time::Duration;

/// IPIs are followed for so many looks more, a second apart, when no vCPU has waited for long: a
/// probe that comes and goes would cost more than one that stays.
const QUIET_LOOKS: u32 = 5;

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

/// Whether IPIs are to be followed, from what is seen each second.
#[derive(Default)]
pub struct Follow {
    quiet: u32,
    on: bool,
}

impl Follow {
    /// vCPUs have begun to wait.
    pub fn begin(&mut self) {
        *self = Follow { quiet: 0, on: true };
    }

    /// A second is over, in which a vCPU `waited` for long, or none did.
    pub fn look(&mut self, waited: bool) {
        self.quiet = if waited { 0 } else { self.quiet + 1 };
        self.on &= self.quiet < QUIET_LOOKS;
    }

    pub fn is_on(&self) -> bool {
        self.on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipis_are_followed_until_nobody_has_waited_for_five_seconds() {
        let mut follow = Follow::default();
        follow.look(true);
        assert!(!follow.is_on());
        follow.begin();
        for waited in [false, false, false, false, true, false, false, false, false] {
            follow.look(waited);
            assert!(follow.is_on());
        }
        follow.look(false);
        assert!(!follow.is_on());
    }
}
