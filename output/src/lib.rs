// SPDX-License-Identifier: GPL-2.0-only
//! What commands write. A file that exists keeps its content until there is a new one; what is no
//! regular file is written to, never replaced; a standard output that cannot be written is an
//! error. SIGINT and SIGTERM end a command between two writes.

mod file;
pub mod interrupt;
mod standard;

pub use file::{Draft, OutFile, directory, open_all, same_file};
pub use standard::{is_read, note, options, say};
