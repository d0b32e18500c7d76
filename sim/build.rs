// SPDX-License-Identifier: GPL-2.0-only
//! Compiles scx_baton's BPF source, and the examples, as native shared objects.

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
}
