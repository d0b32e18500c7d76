// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel says: /dev/kmsg, one record a read
//! (Documentation/ABI/testing/dev-kmsg).

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

pub struct KernelLog(File);

impl KernelLog {
    /// From now on. `None` without permission.
    pub fn open() -> Option<KernelLog> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(KernelLog(file))
    }

    /// The records since the last look.
    pub fn records(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        let mut record = vec![0; 8192]; // CONSOLE_EXT_LOG_MAX, printk's longest record
        loop {
            match self.0.read(&mut record) {
                Ok(length) if length > 0 => {
                    all.push(String::from_utf8_lossy(&record[..length]).into_owned());
                }
                // EPIPE: records were lost; the next read goes on behind them.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                _ => return all,
            }
        }
    }
}
