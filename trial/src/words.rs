// SPDX-License-Identifier: GPL-2.0-only
//! What a trial says before it begins and after it has ended.

use crate::bundle::Bundle;
use crate::plan::{BLOCK, CLAIM_BLOCKS, Measure, Plan, Who};

/// What will be done. `log`: the kernel's log can be read.
pub fn plan(bundle: &Bundle, vms: usize, log: bool, file: &str) -> String {
    let (plan, host) = (&bundle.plan, &bundle.host);
    let minutes = plan.slot_s * plan.order.len() as f64 / 60.0;
    let claim = match plan.blocks() < CLAIM_BLOCKS {
        true => "none: it is too short for a claim".to_owned(),
        false => "the paired ratio of slots, with its 99 % interval".to_owned(),
    };
    let mut lines = vec![
        format!(
            "{} slots of {} s, {minutes:.1} minutes; the first {} s of each are dropped",
            plan.order.len(),
            round(plan.slot_s),
            round(plan.dropped_s)
        ),
        format!("  order    {}", order(plan)),
        format!("  measure  {}", plan.measure.words()),
        format!("  verdict  {claim}"),
    ];
    lines.push(format!("  host     Linux {}, {} CPUs, {vms} VMs", host.kernel, host.cpus));
    if !host.findings.is_empty() {
        lines.push(format!("  found    by 'baton doctor': {}", host.findings.join(", ")));
    }
    let changes = match plan.control {
        true => "nothing is loaded",
        false => "scx_baton schedules this host in its slots, all VMs",
    };
    let load = match &plan.measure {
        Measure::Work { vms, vcpus, .. } => {
            format!(", and {vms} VMs of {vcpus} vCPUs compete with yours all the time")
        }
        Measure::Probe { .. } => ", and the probe runs, once before the first slot, too".to_owned(),
        Measure::Ready => String::new(),
    };
    lines.push(format!("  changes  {changes}{load}"));
    let warning = if log { "a warning of the kernel in Baton's slots," } else { "" };
    let synthetic = match plan.measure {
        Measure::Work { .. } => " a failure of the synthetic VMs,",
        _ => "",
    };
    lines.push(format!(
        "  ends     early with q, Ctrl-C, {warning}{synthetic}\n           or a VM that waits \
         three times as long as before and for more than 10 % of its time,\n           for 5 s; \
         scx_baton ends by itself if this program does not stop it"
    ));
    if !log {
        lines.push(
            "           (the kernel's log cannot be read: its warnings do not end it)".into(),
        );
    }
    lines.push(format!(
        "  bundle   {file}:\n           each second the counters of the host and of its VMs, \
         which are numbers there, and what\n           follows; nothing is sent anywhere"
    ));
    let head = serde_json::json!({ "format": bundle.format, "host": host, "plan": plan });
    lines.push(format!("{head:#}"));
    lines.join("\n") + "\n"
}

/// `K B B K  B K K B`.
fn order(plan: &Plan) -> String {
    let word = |who: &Who| match (who, plan.control) {
        (Who::Kernel, _) => "K",
        (Who::Baton, false) => "B",
        (Who::Baton, true) => "k",
    };
    let block = |block: &[Who]| block.iter().map(word).collect::<Vec<_>>().join(" ");
    let blocks: Vec<String> = plan.order.chunks(BLOCK).map(block).collect();
    let b = match plan.control {
        true => "k: the kernel's again, in Baton's place",
        false => "B: scx_baton",
    };
    format!("{}\n           K: the kernel's scheduler, {b}", blocks.join("  "))
}

/// What was shown.
pub fn verdict(bundle: &Bundle) -> String {
    let Some(end) = &bundle.end else {
        let whole = bundle.slots.iter().filter(|slot| slot.is_whole(&bundle.plan)).count();
        return format!("It was killed after {whole} whole slots: no verdict.\n");
    };
    let other = if bundle.plan.control { "kernel again" } else { "baton" };
    let mut text = format!("slots        kernel {other:>12}          ratio\n");
    let cell = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.4}"));
    for pair in &end.verdict.pairs {
        let ratio = pair.baton.zip(pair.kernel).map(|(baton, kernel)| baton / kernel);
        text += &format!(
            "{:>2} and {:>2} {:>9} {:>12} {:>14}\n",
            pair.slot + 1,
            pair.slot + 2,
            cell(pair.kernel),
            cell(pair.baton),
            ratio.map_or("–".into(), |ratio| format!("{ratio:.3}"))
        );
    }
    if let Some(control) = end.verdict.control {
        text += &format!(
            "control: the kernel's later slots beside its earlier ones: {}\n",
            control.words()
        );
    }
    if let Some(abort) = end.aborted {
        text += &format!("It ended early: {}.\n", abort.words());
    }
    text + &end.verdict.words(&bundle.plan) + "\n"
}

fn round(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}
