// SPDX-License-Identifier: GPL-2.0-only
//! Other schedulers, and what Baton itself has left.

use baton_haltpoll::STATE;

use crate::finding::{Finding, Level};
use crate::scene::Scene;

pub const FINDINGS: &[Finding] = &[
    Finding {
        id: "rival",
        level: Level::Blocker,
        title: "another sched_ext scheduler is loaded",
        cost: "The kernel runs one at a time: scx_baton cannot start.",
        mend: "stop it: systemctl stop scx_loader scx, or end its process",
        explain: "/sys/kernel/sched_ext/state is not 'disabled', and \
                  /sys/kernel/sched_ext/root/ops names a scheduler that is not Baton.",
        look: |scene| {
            let state = scene.read("/sys/kernel/sched_ext/state").unwrap_or_default();
            let free = state.is_empty() || state == "disabled" || scene.baton_runs();
            let ops = scene.read("/sys/kernel/sched_ext/root/ops").filter(|ops| !ops.is_empty());
            let name = ops.unwrap_or_else(|| "a scheduler without a name".into());
            if free { vec![] } else { vec![format!("{name} is {state}")] }
        },
        fix: None,
    },
    Finding {
        id: "rival-unit",
        level: Level::Cost,
        title: "a service starts another sched_ext scheduler",
        cost: "Whichever starts first keeps the host; after a reboot that may be the other one. \
               Not measured.",
        mend: "systemctl disable --now scx_loader scx, or set SCX_SCHEDULER=scx_baton in \
               /etc/default/scx",
        explain: "scx.service or scx_loader.service is enabled (a link in a *.wants directory of \
                  /etc/systemd/system). The two do not see each other, nor Baton (scx issue 2639). \
                  scx.service is no rival if /etc/default/scx names scx_baton.",
        look: units,
        fix: None,
    },
    Finding {
        id: "left",
        level: Level::Cost,
        title: "KVM's polling is as a killed scx_baton left it",
        cost: "VMs poll at HLT as long as was right for load that may be gone. Not measured.",
        mend: "baton doctor --restore",
        explain: "'scx_baton --halt-poll' keeps what it found in /run/scx_baton.halt-poll.json, \
                  and puts it back when it ends. The file is there, and no scx_baton runs: it was \
                  killed. The next one puts the values back, too.",
        look: |scene| {
            let left = scene.host.exists(STATE) && !scene.baton_runs();
            if left { vec![LEFT.into()] } else { vec![] }
        },
        fix: None,
    },
];

const LEFT: &str =
    "an scx_baton that was killed has left KVM's parameters changed: baton doctor --restore";

fn units(scene: &Scene) -> Vec<String> {
    const UNITS: &str = "/etc/systemd/system";
    let defaults = scene.read("/etc/default/scx").unwrap_or_default();
    let ours = defaults.lines().any(|line| {
        let value = line.trim().strip_prefix("SCX_SCHEDULER=");
        value.is_some_and(|value| value.trim_matches(['"', '\'']) == "scx_baton")
    });
    let mut enabled = Vec::new();
    for wants in scene.host.list(UNITS).iter().filter(|name| name.ends_with(".wants")) {
        for unit in scene.host.list(&format!("{UNITS}/{wants}")) {
            if unit == "scx_loader.service" || (unit == "scx.service" && !ours) {
                enabled.push(format!("{unit} is enabled ({UNITS}/{wants})"));
            }
        }
    }
    enabled
}
