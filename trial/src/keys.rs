// SPDX-License-Identifier: GPL-2.0-only
//! Single keys from the user's terminal, until dropped. Ctrl-C stays a signal.

use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

pub struct Keys {
    before: Termios,
}

impl Keys {
    /// `None` without a terminal, or in its background.
    pub fn listen() -> Option<Keys> {
        let stdin = io::stdin();
        let ours = stdin.is_terminal() && tcgetpgrp(stdin.as_fd()).ok()? == getpgrp();
        let before = ours.then(|| tcgetattr(stdin.as_fd()).ok()).flatten()?;
        let mut single = before.clone();
        single.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        tcsetattr(stdin.as_fd(), SetArg::TCSANOW, &single).ok()?;
        Some(Keys { before })
    }

    /// Whether `q` was pressed since the last look.
    pub fn quit(&self) -> bool {
        let stdin = io::stdin();
        let mut bytes = [0; 64];
        let waiting = |stdin: &io::Stdin| {
            let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
            ready && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN))
        };
        while waiting(&stdin) {
            match stdin.lock().read(&mut bytes) {
                Ok(read) if read > 0 => {
                    if bytes[..read].iter().any(|byte| byte.eq_ignore_ascii_case(&b'q')) {
                        return true;
                    }
                }
                // The terminal has gone: SIGHUP tells.
                _ => return false,
            }
        }
        false
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &self.before);
    }
}
