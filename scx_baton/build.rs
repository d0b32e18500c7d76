// SPDX-License-Identifier: GPL-2.0-only

fn main() {
    scx_cargo::BpfBuilder::new()
        .and_then(|mut b| {
            b.enable_intf("bpf/intf.h", "bpf_intf.rs").enable_skel("bpf/main.bpf.c", "bpf").build()
        })
        .expect("building bpf/main.bpf.c (clang 17 or newer is needed, see BPF_CLANG)");
    scx_cargo::BpfBuilder::new()
        .and_then(|mut b| b.enable_skel("bpf/kvm.bpf.c", "kvm").build())
        .expect("building bpf/kvm.bpf.c");
    scx_cargo::BpfBuilder::new()
        .and_then(|mut b| b.enable_skel("examples/empty.bpf.c", "empty").build())
        .expect("building examples/empty.bpf.c");

    // policy.h as native code, for the unit tests.
    println!("cargo::rerun-if-changed=bpf/policy.h");
    println!("cargo::rerun-if-changed=tests/policy.c");
    cc::Build::new().file("tests/policy.c").include("bpf").compile("policy");
}
