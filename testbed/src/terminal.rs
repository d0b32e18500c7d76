// SPDX-License-Identifier: GPL-2.0-only
//! The user's terminal: raw while a shell on the host has it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// Standard input's terminal in raw mode, until dropped.
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// Errors: standard input is no terminal.
    pub fn enter() -> io::Result<Raw> {
        let stdin = io::stdin();
        let before = tcgetattr(stdin.as_fd())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(stdin.as_fd(), SetArg::TCSANOW, &raw)?;
        Ok(Raw { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &self.before);
    }
}

/// Rows and columns of standard input's terminal.
pub fn size() -> Option<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize through the pointer, which is valid for that.
    let result = unsafe { libc::ioctl(io::stdin().as_raw_fd(), libc::TIOCGWINSZ, &mut size) };
    (result == 0 && size.ws_row > 0).then_some((size.ws_row, size.ws_col))
}
