// SPDX-License-Identifier: GPL-2.0-only
//! The generated skeleton of `bpf/main.bpf.c`.
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unreachable_patterns)]

include!(concat!(env!("OUT_DIR"), "/bpf_skel.rs"));
