// SPDX-License-Identifier: GPL-2.0-only
//! What systemd is told (sd_notify(3)) when it has started this; nothing elsewhere.

use sd_notify::NotifyState::{Ready, Status, Stopping};

/// The scheduler is in charge, and watches KVM if it is there.
pub fn ready() {
    tell(&[Ready, Status("schedules the host")]);
}

/// The kernel's scheduler is in charge for some seconds.
pub fn ended(why: &str) {
    let first = why.lines().next().unwrap_or_default();
    tell(&[Status(&format!("starts again soon; the kernel ended it: {first}"))]);
}

/// systemd keeps the last status of a unit that is off.
pub fn stopping() {
    tell(&[Stopping, Status("leaves the host to the kernel's scheduler")]);
}

fn tell(state: &[sd_notify::NotifyState]) {
    if let Err(error) = sd_notify::notify(state) {
        log::warn!("cannot tell systemd: {error}");
    }
}
