// SPDX-License-Identifier: GPL-2.0-only
//! `bpf/intf.h`, for Rust.
#![allow(clippy::all, clippy::undocumented_unsafe_blocks)]
#![allow(dead_code, non_camel_case_types, non_snake_case, non_upper_case_globals)]

include!(concat!(env!("OUT_DIR"), "/bpf_intf.rs"));
