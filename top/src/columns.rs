// SPDX-License-Identifier: GPL-2.0-only
//! The columns of a row, on a screen and in plain lines.

use crate::rates::{MoreRates, Parts, ThreadRates, VmRates};
use clap::ValueEnum;

/// In the order in which they stand; the first ones are kept where there is little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    Name,
    #[value(name = "vc")]
    Vcpus,
    Run,
    #[value(name = "rdy")]
    Ready,
    #[value(name = "cstp")]
    Costop,
    #[value(name = "mlmtd")]
    Throttled,
    Spin,
    Poll,
    #[value(name = "ipiw")]
    IpiWait,
    #[value(name = "ple")]
    Spins,
    #[value(name = "bst")]
    Boosts,
    Use,
    Wake99,
    Wait,
}

/// How urgent a figure is, by what administrators of esxtop act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heat {
    Fine,
    Warm,
    Hot,
}

impl Column {
    pub const ALL: [Column; 14] = [
        Column::Name,
        Column::Vcpus,
        Column::Run,
        Column::Ready,
        Column::Costop,
        Column::Throttled,
        Column::Spin,
        Column::Poll,
        Column::IpiWait,
        Column::Spins,
        Column::Boosts,
        Column::Use,
        Column::Wake99,
        Column::Wait,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Column::Name => "VM",
            Column::Vcpus => "vC",
            Column::Run => "%RUN",
            Column::Ready => "%RDY",
            Column::Costop => "%CSTP",
            Column::Throttled => "%MLMTD",
            Column::Spin => "%SPIN",
            Column::Poll => "%POLL",
            Column::IpiWait => "IPIw/s",
            Column::Spins => "PLE/s",
            Column::Boosts => "BST/s",
            Column::Use => "use",
            Column::Wake99 => "wake99",
            Column::Wait => "%WAIT",
        }
    }

    /// Columns of a terminal, the space before it included. The name takes what is left.
    pub fn width(self) -> u16 {
        match self {
            Column::Name => 12,
            Column::Vcpus => 4,
            Column::Throttled | Column::IpiWait | Column::Spins | Column::Wake99 => 8,
            Column::Use => 5,
            _ => 7,
        }
    }

    /// A line of `--help` and of the screen's help.
    pub fn meaning(self) -> &'static str {
        match self {
            Column::Name => "what people call the VM",
            Column::Vcpus => "its vCPUs that have run",
            Column::Run => "its vCPUs ran",
            Column::Ready => "they waited for a pCPU while no sibling ran (without Baton: at all)",
            Column::Costop => "they waited for a pCPU while a sibling ran (co-stop)",
            Column::Throttled => "they waited for CPU time by cpu.max",
            Column::Spin => "they spun, from one PAUSE exit to the next",
            Column::Poll => "KVM polled at their HLTs",
            Column::IpiWait => "an IPI waited for a vCPU that did not run, a second",
            Column::Spins => "PAUSE exits a second",
            Column::Boosts => "yields by spinners that were carried out, a second",
            Column::Use => "part of them after which the spinner went on",
            Column::Wake99 => "99th percentile from being woken until running",
            Column::Wait => "the rest: halted, or at work for the VMM",
        }
    }

    /// A figure to sort by; `None`: it is not known. The name has none.
    pub fn figure(self, vm: &VmRates, sum: bool) -> Option<f64> {
        let times = if sum { f64::from(vm.nr_vcpus.max(1)) } else { 1.0 };
        let more = |of: fn(&MoreRates) -> f64| vm.more.as_ref().map(of);
        match self {
            Column::Name => None,
            Column::Vcpus => Some(f64::from(vm.nr_vcpus)),
            Column::Spin => more(|m| m.spin).map(|spin| spin * times),
            Column::Poll => more(|m| m.poll).or(vm.poll).map(|poll| poll * times),
            Column::IpiWait => more(|m| m.ipi_wait),
            Column::Spins => more(|m| m.spins),
            Column::Boosts => more(|m| m.boosts),
            Column::Use => vm.more.as_ref().and_then(|m| m.useful),
            Column::Wake99 => vm.more.as_ref().and_then(|m| m.wake99),
            _ => self.part(&vm.parts).map(|part| part * times),
        }
    }

    /// Those that a vCPU has, too.
    pub fn part(self, parts: &Parts) -> Option<f64> {
        match self {
            Column::Run => Some(parts.run),
            Column::Ready => Some(parts.ready),
            Column::Costop => parts.costop,
            Column::Throttled => parts.throttled,
            Column::Wait => Some(parts.wait),
            _ => None,
        }
    }

    /// Those that a thread of the host has, too.
    pub fn of_thread(self, thread: &ThreadRates) -> Option<f64> {
        match self {
            Column::Run => Some(thread.run),
            Column::Ready => Some(thread.ready),
            _ => None,
        }
    }

    pub fn text(self, vm: &VmRates, sum: bool) -> String {
        let Some(figure) = self.figure(vm, sum) else {
            return if self == Column::Name { vm.name.clone() } else { String::new() };
        };
        match self {
            Column::Vcpus => format!("{figure:.0}"),
            Column::IpiWait => format!("{figure:.0}ms"),
            Column::Spins | Column::Boosts => counted(figure),
            Column::Use => format!("{figure:.0}%"),
            Column::Wake99 => time(figure),
            _ => percent(figure),
        }
    }

    /// VMware's administrators act at 5 % ready (10 is bad), at 3 % co-stop, and at any time that a
    /// limit takes.
    pub fn heat(self, parts: &Parts) -> Heat {
        let figure = self.part(parts).unwrap_or(0.0);
        let (warm, hot) = match self {
            Column::Ready => (5.0, 10.0),
            Column::Costop => (3.0, 10.0),
            Column::Throttled => (0.05, 5.0),
            _ => return Heat::Fine,
        };
        match figure {
            f if f >= hot => Heat::Hot,
            f if f >= warm => Heat::Warm,
            _ => Heat::Fine,
        }
    }
}

pub fn percent(figure: f64) -> String {
    if figure < 999.95 { format!("{figure:.1}") } else { format!("{figure:.0}") }
}

/// With thousands apart: 8,412.
pub fn counted(figure: f64) -> String {
    let digits = format!("{:.0}", figure.clamp(0.0, 1e15));
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Of microseconds.
fn time(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.0}ns", us * 1e3),
        us if us < 1e3 => format!("{us:.0}µs"),
        us if us < 1e4 => format!("{:.1}ms", us / 1e3),
        us if us < 1e6 => format!("{:.0}ms", us / 1e3),
        us => format!("{:.1}s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(
            (counted(8412.4), counted(912.0), counted(1e6)),
            ("8,412".into(), "912".into(), "1,000,000".into())
        );
        let times = [0.512, 65.5, 1048.576, 16777.0, 4.2e6].map(time);
        assert_eq!(times, ["512ns", "66µs", "1.0ms", "17ms", "4.2s"]);
        assert_eq!((percent(99.96), percent(1600.0)), ("100.0".into(), "1600".into()));
        assert_eq!(counted(f64::NAN), "NaN");
    }

    #[test]
    fn any_time_that_a_limit_takes_is_shown() {
        let parts =
            |ready, throttled| Parts { ready, throttled: Some(throttled), ..Parts::default() };
        assert_eq!(Column::Ready.heat(&parts(4.9, 0.0)), Heat::Fine);
        assert_eq!(Column::Ready.heat(&parts(5.0, 0.0)), Heat::Warm);
        assert_eq!(Column::Ready.heat(&parts(14.0, 0.0)), Heat::Hot);
        assert_eq!(Column::Throttled.heat(&parts(0.0, 0.1)), Heat::Warm);
        assert_eq!(Column::Costop.heat(&parts(0.0, 0.0)), Heat::Fine);
    }
}
