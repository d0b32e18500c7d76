// SPDX-License-Identifier: GPL-2.0-only
//! Files of a host are input from outside.

mod common;

use baton_doctor::report::Report;
use baton_doctor::{Found, examine};
use common::Tree;

fn ids(found: &[Found]) -> Vec<&'static str> {
    found.iter().map(|found| found.finding.id).collect()
}

/// What a process's command line says beside its CPU's features is nobody's business.
#[test]
fn nothing_of_a_command_line_gets_out() {
    let tree = Tree::healthy();
    tree.options(
        4100,
        "web",
        "-cpu host,kvm=off,-x2apic -object secret,data=geheim -overcommit cpu-pm=on",
    );
    let report = Report::of(&tree.scene());
    assert_eq!(ids(&report.found), ["cpu-pm", "pv-off", "fast-path"]);
    let out = format!("{}{}", report.text(None), report.json());
    assert!(!out.contains("geheim") && !out.contains("q35"), "{out}");
}

#[test]
fn no_garbage_in_any_file_makes_it_panic() {
    let long = "9".repeat(100_000);
    let garbage: [&[u8]; 12] = [
        b"",
        b"\n\n\n",
        b"-1\n",
        b"18446744073709551616 18446744073709551615\n",
        long.as_bytes(),
        b"\xff\xfe\x00\x80[\xc3\x28",
        b"cpu  1 2 3 4 5 6 7 nan\n",
        b"cpu 0 0 0 0 0 0 0 0\n",
        b"0-4294967295,5-3,,x-",
        b"0::/../../../../etc\n1:cpu:/..\nx\n::\n",
        b"[always] [never] [[]] ][",
        b"x\0-cpu\0,,=,-,+,=\0-overcommit\0",
    ];
    // One of each kind: a VM, a vCPU, a CPU.
    let again = ["42", "cpu1", "cpu2", "cpu3", "4102", "4103", "4104"];
    let mut files = Tree::healthy().files();
    files.retain(|file| !again.iter().any(|part| file.contains(part)));
    assert!(files.len() > 50, "{files:?}");
    let tree = Tree::healthy();
    for file in &files {
        let before = std::fs::read(tree.path(file)).expect("is there");
        for bytes in garbage {
            tree.put_bytes(file, bytes);
            let report = Report::of(&tree.scene());
            assert!(!report.text(Some(20)).chars().any(|c| c.is_control() && c != '\n'), "{file}");
        }
        tree.put_bytes(file, &before);
    }
    for bytes in garbage {
        let tree = Tree::healthy();
        for file in &files {
            tree.put_bytes(file, bytes);
        }
        let _ = Report::of(&tree.scene()).text(None);
    }
    // And where there is nothing at all.
    let empty = Tree::empty();
    assert_eq!(ids(&examine(&empty.scene())), ["sched-ext", "btf"]);
}
