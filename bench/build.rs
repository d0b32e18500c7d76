// SPDX-License-Identifier: GPL-2.0-only
//! Builds the guest's payload with the compiler that builds the rest: freestanding code, so the
//! host's own target does, and no other has to be installed.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=guest");
    println!("cargo::rerun-if-changed=src/layout.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let rustc = env::var_os("RUSTC").expect("cargo sets RUSTC");
    let status = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=bin", "--crate-name=payload"])
        .args(["--target=x86_64-unknown-linux-gnu", "-Copt-level=2", "-Cpanic=abort"])
        // Linked where it is loaded; no libc, no interpreter.
        .args(["-Crelocation-model=static", "-Clinker-features=-lld", "-Clink-arg=-nostdlib"])
        .args(["-Clink-arg=-nostartfiles", "-Clink-arg=-static", "-Clink-arg=-no-pie"])
        .args(["-Clink-arg=-Wl,-Tguest/payload.ld", "-Clink-arg=-Wl,--build-id=none"])
        .arg("-o")
        .arg(out.join("payload"))
        .arg("guest/main.rs")
        .status()
        .expect("rustc starts");
    assert!(status.success(), "the payload does not build ({status})");
}
