// SPDX-License-Identifier: GPL-2.0-only
//! How a callback of the scheduler is called.

macro_rules! call {
    ($self:ident, $m:ident, $context:expr, $cpu:expr, $op:ident ( $($arg:expr),* )) => {{
        // SAFETY: the ops are the scheduler's, and the library stays loaded as long as `self`.
        let op = unsafe { (*$self.ops).$op };
        op.map(|op| {
            let name = stringify!($op).trim_end_matches('_');
            let before = $self.enter($m, $context, $cpu, name);
            // SAFETY: arguments are as the shim's headers say, and stay alive for the call.
            let result = unsafe { op($($arg),*) };
            $self.leave(before);
            result
        })
    }};
}
