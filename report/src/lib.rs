// SPDX-License-Identifier: GPL-2.0-only
//! How figures are reported: what is computed from them, and tables of text.

pub mod columns;
pub mod stats;
