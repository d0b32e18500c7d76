// SPDX-License-Identifier: GPL-2.0-only

use std::process::Command;

/// clang older than 17 cannot compile the sched_ext headers; Debian 12's plain one is 14.
fn choose_clang() {
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    if std::env::var_os("BPF_CLANG").is_some() {
        return;
    }
    let works = |name: &String| Command::new(name).arg("--version").output().is_ok();
    if let Some(clang) = (17..=22).rev().map(|v| format!("clang-{v}")).find(works) {
        // SAFETY: no other thread of this build script is running yet.
        unsafe { std::env::set_var("BPF_CLANG", clang) };
    }
}

fn main() {
    choose_clang();
    scx_cargo::BpfBuilder::new()
        .and_then(|mut b| {
            b.enable_intf("bpf/intf.h", "bpf_intf.rs").enable_skel("bpf/main.bpf.c", "bpf").build()
        })
        .expect("building bpf/main.bpf.c (clang 17 or newer is needed, see BPF_CLANG)");
    scx_cargo::BpfBuilder::new()
        .and_then(|mut b| b.enable_skel("bpf/kvm.bpf.c", "kvm").build())
        .expect("building bpf/kvm.bpf.c");

    // policy.h as native code, for the unit tests.
    println!("cargo::rerun-if-changed=bpf/policy.h");
    println!("cargo::rerun-if-changed=tests/policy.c");
    cc::Build::new().file("tests/policy.c").include("bpf").compile("policy");
}
