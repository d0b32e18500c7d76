// SPDX-License-Identifier: GPL-2.0-only
//! What is made of what scx_baton and the kernel tell.

mod common;

use baton_metrics::{Exits, Exporter, Snapshot, Vm};
use common::{Host, OPS, stats, vm};
use serde_json::json;

fn one(key: &str, name: &str) -> Vec<(String, String, u32)> {
    vec![(key.to_owned(), name.to_owned(), 2)]
}

fn sole(snapshot: &Snapshot) -> &Vm {
    assert_eq!(snapshot.vms.len(), 1, "{snapshot:?}");
    &snapshot.vms[0]
}

#[test]
fn tells_what_scx_baton_tells() {
    let host = Host::new();
    host.load(OPS);
    host.answer(stats(&one("70.1.1", "web")));
    let snapshot = Exporter::at(host.root(), false).snapshot();
    let info = snapshot.info.clone().expect("its version");
    assert_eq!((info.version.as_str(), info.kernel.as_str()), ("0.1.0", "6.17.2"));
    assert_eq!(info.policy, "kick,sent,ipi,kvm");
    let totals = snapshot.totals.clone().expect("what it counted");
    assert_eq!((totals.obeyed, totals.missed, totals.refused), (61, 15, 24));
    let vm = sole(&snapshot);
    assert_eq!((vm.name.as_str(), vm.vcpus, vm.spread), ("web", 2, true));
    assert_eq!((vm.times.run, vm.times.ready, vm.times.costop), (14.0, 1.0, 0.5));
    assert_eq!((vm.poll_hit, vm.poll_miss, vm.spin), (0.003, 0.02, 0.1255));
    assert_eq!(vm.by_vcpu, []);
    let with_vcpus = Exporter::at(host.root(), true).snapshot();
    assert_eq!(sole(&with_vcpus).by_vcpu.len(), 2);
    assert_eq!(with_vcpus.exits.values().sum::<u64>(), 0);
}

#[test]
fn files_of_a_vm_tell_who_it_is() {
    let host = Host::new();
    host.load(OPS);
    let uuid = "0B2D8F6A-1111-2222-3333-444455556666";
    host.put("/proc/70/cmdline", &format!("qemu\0-name\0guest=web\0-uuid\0{uuid}\0"));
    host.put("/proc/70/cgroup", "0::/machine.slice/web.scope\n");
    host.put("/proc/71/cmdline", &format!("kvm\0-id\0{}\0-smbios\0type=1,uuid={uuid}\0", 101));
    host.put("/proc/71/cgroup", "0::/kubepods.slice/pod7.slice\n");
    host.put("/proc/72/cmdline", "qemu\0-uuid\0no uuid\" at all\0");
    let vms = ["70.1.1", "71.2.2", "72.3.3", "x"].map(|key| (key.into(), "shop/db".into(), 1));
    host.answer(stats(&vms));
    let vms = Exporter::at(host.root(), false).snapshot().vms;
    let told = vms.iter().map(|vm| [&vm.uuid, &vm.namespace, &vm.cgroup].map(String::as_str));
    let lower = uuid.to_lowercase();
    let expected = [
        [lower.as_str(), "", "/machine.slice/web.scope"],
        [&lower, "shop", "/kubepods.slice/pod7.slice"],
        ["", "", ""],
        ["", "", ""],
    ];
    assert!(told.eq(expected), "{vms:?}");
}

fn exits(snapshot: &Snapshot) -> [u64; 3] {
    ["stopped", "other-scheduler", "not-started"].map(|reason| snapshot.exits[reason])
}

#[test]
fn counts_why_baton_does_not_run() {
    let host = Host::new();
    let mut exporter = Exporter::at(host.root(), false);
    let mut look = || {
        let snapshot = exporter.snapshot();
        (snapshot.enabled, exits(&snapshot))
    };
    assert_eq!(look(), (false, [0, 0, 1]));
    assert_eq!(look(), (false, [0, 0, 1]));
    host.load(OPS);
    host.answer(stats(&[]));
    assert_eq!(look(), (true, [0, 0, 1]));
    assert_eq!(look(), (true, [0, 0, 1]));
    host.unload();
    assert_eq!(look(), (false, [1, 0, 1]));
    host.load("lavd_1.0.9");
    assert_eq!(look(), (false, [1, 1, 1]));
    host.unload();
    assert_eq!(look(), (false, [1, 1, 1]));
    host.load(OPS);
    assert_eq!(look(), (true, [1, 1, 1]));
    host.load("batonette");
    assert_eq!(look(), (false, [1, 2, 1]));
}

#[test]
fn a_kernel_without_sched_ext_is_one_without_baton() {
    let root = tempfile::tempdir().unwrap();
    let snapshot = Exporter::at(root.path(), false).snapshot();
    assert_eq!((snapshot.enabled, exits(&snapshot)), (false, [0, 0, 1]));
}

#[test]
fn the_scheduler_counts_its_own_exits_better() {
    let host = Host::new();
    let told = Exits::of(&["error", "stall"]);
    let mut exporter = Exporter::at(host.root(), false).with_exits(told.clone());
    told.count("stall");
    let snapshot = exporter.snapshot();
    assert_eq!(snapshot.exits.into_iter().collect::<Vec<_>>(), [("error", 0), ("stall", 1)]);
}

#[test]
fn counters_do_not_go_back_until_another_one_begins() {
    let host = Host::new();
    host.load(OPS);
    let answer = host.answer(stats(&one("70.1.1", "web")));
    let mut exporter = Exporter::at(host.root(), true);
    assert_eq!(sole(&exporter.snapshot()).times.run, 14.0);
    {
        let mut answer = answer.lock().unwrap();
        answer["by_vm"]["70.1.1"]["ran_ms"] = json!(13999.0);
        answer["by_vm"]["70.1.1"]["by_vcpu"]["1"]["ran_ms"] = json!(6999.5);
        // Another thread, another vCPU.
        answer["by_vm"]["70.1.1"]["by_vcpu"]["0"]["ran_ms"] = json!(1.0);
        answer["by_vm"]["70.1.1"]["by_vcpu"]["0"]["tid"] = json!(7777);
    }
    let snapshot = exporter.snapshot();
    let vm = sole(&snapshot);
    let runs: Vec<f64> = vm.by_vcpu.iter().map(|vcpu| vcpu.times.run).collect();
    assert_eq!((vm.times.run, runs.as_slice()), (14.0, &[0.001, 7.0][..]));
    assert_eq!(exits(&snapshot), [0, 0, 0]);
    // Another scx_baton, which has counted for less long: the one before ended unseen.
    let mut fresh = stats(&[]);
    fresh["counted_s"] = json!(1.5);
    fresh["by_vm"]["70.1.1"] = vm_that_ran(20.0);
    *answer.lock().unwrap() = fresh;
    let snapshot = exporter.snapshot();
    assert_eq!((sole(&snapshot).times.run, exits(&snapshot)), (0.02, [1, 0, 0]));
    // And one that was seen to end.
    host.unload();
    exporter.snapshot();
    host.load(OPS);
    answer.lock().unwrap()["by_vm"]["70.1.1"] = vm_that_ran(10.0);
    let snapshot = exporter.snapshot();
    assert_eq!((sole(&snapshot).times.run, exits(&snapshot)), (0.01, [2, 0, 0]));
}

fn vm_that_ran(ms: f64) -> serde_json::Value {
    let mut vm = vm("web", 2);
    vm["ran_ms"] = json!(ms);
    vm
}

#[test]
fn an_answer_that_makes_no_sense_is_none() {
    let host = Host::new();
    host.load(OPS);
    let mut exporter = Exporter::at(host.root(), false);
    // Nobody listens.
    let snapshot = exporter.snapshot();
    assert_eq!((snapshot.enabled, snapshot.totals, snapshot.vms), (true, None, vec![]));
    let answer = host.answer(json!({}));
    for wrong in [json!({}), json!(null), json!([1]), json!({"by_vm": {"1.1.1": {}}})] {
        *answer.lock().unwrap() = wrong;
        let snapshot = exporter.snapshot();
        assert_eq!((snapshot.enabled, snapshot.totals, snapshot.vms), (true, None, vec![]));
    }
    *answer.lock().unwrap() = stats(&one("70.1.1", "web"));
    assert_eq!(sole(&exporter.snapshot()).name, "web");
}
