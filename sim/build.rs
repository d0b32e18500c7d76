// SPDX-License-Identifier: GPL-2.0-only
//! Compiles scx_baton's BPF source, and the examples, as native shared objects, and describes the
//! shim's headers to Rust.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let clang = env::var("BPF_CLANG").unwrap_or_else(|_| "clang".into());
    for path in ["shim", "examples", "../scx_baton/bpf"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    let examples = ["fifo", "vtime"];
    let mut objects = vec![("baton", "shim/baton.c", None)];
    objects.extend(examples.map(|name| {
        let source = format!("-DSHIM_SCHEDULER=\"../examples/{name}.bpf.c\"");
        (name, "shim/user.c", Some(source))
    }));
    for (name, source, define) in objects {
        let object = Path::new(&out).join(format!("{name}.so"));
        let status = Command::new(&clang)
            // As `FLAGS` in src/scx/load.rs.
            .args(["-std=gnu11", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-fwrapv"])
            .args(["-Wall", "-Werror", "-Wno-unused", "-Ishim/include", "-I../scx_baton/bpf"])
            .args(define)
            .arg(source)
            .arg("-o")
            .arg(&object)
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{clang} does not compile {source}: {status}"),
            Err(error) => panic!("cannot run {clang}: {error} (see BPF_CLANG)"),
        }
    }
    describe(Path::new(&out));
}

/// The records that the simulator and the objects share, and the kernel's constants.
fn describe(out: &Path) {
    bindgen::Builder::default()
        .header("shim/include/bpf/bpf_helpers.h")
        .clang_args(["-std=gnu11", "-Ishim/include"])
        .allowlist_type(
            "shim|shim_map|shim_intf|sched_ext_ops|kvm_vcpu|bpf_timer|bpf_map_type|scx_.*",
        )
        .allowlist_var("SHIM_.*|SCX_.*|PF_.*|E[A-Z0-9]+")
        .prepend_enum_name(false)
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .generate()
        .expect("describing the shim's headers (libclang is needed, as for scx_baton)")
        .write_to_file(out.join("shim.rs"))
        .expect("cargo's OUT_DIR can be written");
}
