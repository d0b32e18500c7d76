// SPDX-License-Identifier: GPL-2.0-only
//! What --fix writes, and what takes it back.

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use baton_doctor::{examine, find, findings, fix};
use common::Tree;

const KSM: &str = "/sys/kernel/mm/ksm/run";
const NUMA: &str = "/proc/sys/kernel/numa_balancing";
const SOFT: &str = "/proc/sys/kernel/softlockup_panic";
const HUNG: &str = "/proc/sys/kernel/hung_task_panic";
const POLL: &str = "/sys/module/kvm/parameters/halt_poll_ns";

fn governor(cpu: u32) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")
}

/// A host that shows all that can be mended.
fn ill() -> Tree {
    let tree = Tree::healthy();
    for (file, value) in [(KSM, "1"), (NUMA, "1"), (SOFT, "1"), (HUNG, "10"), (POLL, "4000000")] {
        tree.put(file, value);
    }
    for cpu in [0, 15] {
        tree.put(&governor(cpu), "powersave");
    }
    let thp = "/sys/kernel/mm/transparent_hugepage";
    tree.put(&format!("{thp}/enabled"), "never");
    tree.put(&format!("{thp}/defrag"), "always");
    tree
}

fn apply(tree: &Tree, id: &str) -> anyhow::Result<Vec<String>> {
    fix::apply(&tree.scene(), find(id).expect("one of ours"))
}

fn undo(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let (lines, errors) = fix::undo(&tree.scene().host, |_| false)?;
    assert!(errors.is_empty(), "{errors:?}");
    Ok(lines)
}

/// Every file and what it holds.
fn contents(tree: &Tree) -> Vec<(String, Vec<u8>)> {
    let read = |file: String| {
        let bytes = fs::read(tree.path(&file)).expect("is there");
        (file, bytes)
    };
    tree.files().into_iter().map(read).collect()
}

#[test]
fn looking_changes_nothing() {
    let tree = ill();
    let before = contents(&tree);
    assert!(examine(&tree.scene()).len() >= 6);
    assert_eq!(contents(&tree), before);
}

#[test]
fn what_a_write_mends_is_mended_and_taken_back() {
    let tree = ill();
    let before = contents(&tree);
    let able: Vec<_> = findings().into_iter().filter(|finding| finding.fix.is_some()).collect();
    assert!(able.len() >= 6, "{}", able.len());
    for finding in &able {
        let lines = apply(&tree, finding.id).expect(finding.id);
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(" -> ")), "{lines:?}");
        assert_eq!((finding.look)(&tree.scene()), Vec::<String>::new(), "{}", finding.id);
        // A second time there is nothing to do.
        assert_eq!(apply(&tree, finding.id).expect(finding.id), Vec::<String>::new());
    }
    assert_eq!(tree.text(&governor(15)), "schedutil");
    assert_eq!((tree.text(POLL), tree.text(HUNG)), ("200000".into(), "0".into()));
    assert!(fix::is_applied(&tree.scene().host));
    let lines = undo(&tree).expect("can be written");
    assert_eq!(lines.len(), 9, "{lines:?}");
    assert!(lines.contains(&format!("{POLL}: 200000 -> 4000000")), "{lines:?}");
    assert_eq!(contents(&tree), before);
    assert_eq!(undo(&tree).expect("nothing to do"), Vec::<String>::new());
}

/// The governor of a CPU that is offline cannot be read: all that was changed before it stayed so.
#[test]
fn what_cannot_be_put_back_keeps_nothing_else() {
    let tree = ill();
    apply(&tree, "halt-poll").expect("can be written");
    apply(&tree, "governor").expect("can be written");
    let file = tree.path(&governor(15));
    fs::remove_file(&file).expect("is there");
    fs::create_dir(&file).expect("can be made");
    let (lines, errors) = fix::undo(&tree.scene().host, |_| false).expect("the state is ours");
    assert_eq!(tree.text(POLL), "4000000");
    assert!(lines.len() > 1 && errors.len() == 1, "{lines:?} {errors:?}");
    fs::remove_dir(&file).expect("is there");
    tree.put(&governor(15), "schedutil");
    assert_eq!(undo(&tree).expect("can be written").len(), 1);
    assert!(!fix::is_applied(&tree.scene().host));
}

/// While scx_baton governs polling nothing was put back at all.
#[test]
fn what_somebody_is_in_charge_of_stays() {
    let tree = ill();
    apply(&tree, "halt-poll").expect("can be written");
    apply(&tree, "governor").expect("can be written");
    let undone = fix::undo(&tree.scene().host, |path| path == POLL).expect("the state is ours");
    assert!(undone.0.len() > 1 && undone.1.is_empty(), "{undone:?}");
    assert_eq!((tree.text(POLL), tree.text(&governor(15))), ("200000".into(), "powersave".into()));
    assert_eq!(undo(&tree).expect("can be written"), [format!("{POLL}: 200000 -> 4000000")]);
}

/// What was there before the first of two fixes of a file counts.
#[test]
fn the_oldest_value_is_put_back() {
    let tree = ill();
    apply(&tree, "halt-poll").expect("can be written");
    tree.put(POLL, "3000000");
    apply(&tree, "halt-poll").expect("can be written");
    undo(&tree).expect("can be written");
    assert_eq!(tree.text(POLL), "4000000");
}

/// The kernel's own name can be read and not be written to, not by root either, as a file of /sys
/// whose driver refuses.
#[test]
fn a_fix_that_fails_half_way_leaves_things_as_they_were() {
    let tree = ill();
    apply(&tree, "ksm").expect("can be written");
    let state = tree.text(fix::STATE);
    let last = governor(15);
    tree.remove(&last);
    symlink("/proc/sys/kernel/ostype", tree.path(&last)).expect("a link");
    tree.put(&governor(14), "powersave");
    let scene = tree.scene();
    let governor_fix = find("governor").expect("one of ours");
    let writes = |_: &baton_doctor::Scene| {
        let write = |cpu| fix::Write::new(governor(cpu), "schedutil");
        vec![write(0), write(14), write(15)]
    };
    let refused = baton_doctor::Finding { fix: Some(fix::Fix { writes }), ..*governor_fix };
    let error = fix::apply(&scene, &refused).expect_err("one file refuses");
    assert!(format!("{error:#}").contains("cpu15"), "{error:#}");
    assert_eq!(
        (tree.text(&governor(0)), tree.text(&governor(14))),
        ("powersave".into(), "powersave".into())
    );
    assert_eq!(tree.text(fix::STATE), state);
}

#[test]
fn what_no_write_mends_is_refused_with_the_command() {
    let tree = ill();
    let error = apply(&tree, "isolcpus").expect_err("needs a reboot");
    assert!(error.to_string().contains("cpuset.cpus.partition"), "{error}");
    // Polled in vain with KVM's own limit: no other one is better for sure.
    let tree = Tree::healthy();
    tree.put("/sys/kernel/debug/kvm/halt_poll_fail_ns", "80000000000000");
    let error = apply(&tree, "halt-poll").expect_err("the governor's business");
    assert!(error.to_string().contains("scx_baton --halt-poll auto"), "{error}");
    // scx_baton governs it.
    let tree = ill();
    tree.put("/run/scx_baton.halt-poll.json", "{}");
    apply(&tree, "halt-poll").expect_err("scx_baton's");
    assert_eq!(tree.text(POLL), "4000000");
}

/// The state is input from outside.
#[test]
fn a_state_that_names_other_files_or_values_is_refused() {
    let was = |path: &str, value: &str| {
        serde_json::json!({"version": 1, "found": [{"path": path, "value": value}]}).to_string()
    };
    let states = [
        String::new(),
        "{".into(),
        "[]".into(),
        r#"{"version": 1}"#.into(),
        r#"{"version": 2, "found": []}"#.into(),
        r#"{"version": 1, "found": [{"path": 7, "value": 7}]}"#.into(),
        was("/etc/shadow", "1"),
        was("/proc/sys/kernel/core_pattern", "x"),
        was("/proc/sys/kernel/../kernel/core_pattern", "x"),
        was("proc/sys/kernel/numa_balancing", "1"),
        was(NUMA, ""),
        was(NUMA, "1\n2"),
        was(NUMA, "|/bin/sh"),
        was(NUMA, &"9".repeat(10_000)),
    ];
    let tree = ill();
    tree.put("/etc/shadow", "root");
    for state in states {
        tree.put(fix::STATE, &state);
        let before = contents(&tree);
        let error = undo(&tree).expect_err(&state);
        assert!(format!("{error:#}").contains("doctor.json"), "{error:#}");
        apply(&tree, "ksm").expect_err(&state);
        assert_eq!(contents(&tree), before, "{state}");
    }
    // A file that is gone needs nothing.
    tree.put(fix::STATE, &was(&governor(99), "performance"));
    assert_eq!(undo(&tree).expect("nothing to do"), Vec::<String>::new());
    assert!(!fix::is_applied(&tree.scene().host));
}
