// SPDX-License-Identifier: GPL-2.0-only
//! scx_baton on a real kernel with real KVM and real guests, on the exact host: a test runs alike
//! each time, on any machine, however busy. Run by `make test`; `BATON_KERNEL_SERIES` chooses the
//! kernel. Times are virtual.

mod bench;
mod life;
#[path = "../script/mod.rs"]
mod script;
mod shares;
mod trial;
mod vms;
mod yields;

use baton_testbed::exact::{Cpu, Exact, Ready};
use baton_testbed::host::{Exec, HostOptions, Stream};
use script::{Findings, GUESTS, logs};
use std::sync::LazyLock;
use std::time::Duration;

/// Where a script begins. What comes before is done once, and the host saved.
enum From {
    /// At the shell.
    Boot,
    /// With the guests a and b, cgroups with quotas and, after them, scx_baton.
    Guests,
}

const GUESTS_AND_QUOTAS: &str = r#"
    vm a; vm b
    at=/sys/fs/cgroup/deep
    mkdir -p /sys/fs/cgroup/box/inner $at
    echo +cpu >/sys/fs/cgroup/box/cgroup.subtree_control
    echo "30000 100000" >/sys/fs/cgroup/box/cpu.max
    for below in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
        echo +cpu >$at/cgroup.subtree_control
        echo "50000 100000" >$at/cpu.max
        at=$at/$below; mkdir $at
    done
    echo "50000 100000" >$at/cpu.max
    baton"#;

/// Asks for the script and runs it; the agent saves the host when it is asked.
const ASK: &str = r#"
    printf '\005'
    script=
    while IFS= read -r line && [ "$line" != @end ]; do
        script="$script
$line"
    done
    eval "$script""#;

/// The longest that a script may take.
const DEADLINE: Duration = Duration::from_secs(600);

impl From {
    fn ready(&self) -> &'static Ready {
        static BOOT: LazyLock<Ready> = LazyLock::new(|| get(&host()));
        static BATON: LazyLock<Ready> = LazyLock::new(|| prepared(&BOOT, GUESTS_AND_QUOTAS));
        match self {
            From::Boot => &BOOT,
            From::Guests => &BATON,
        }
    }
}

/// Slow pCPUs: the tests are about order, and a second of work costs the fewer instructions.
fn host() -> HostOptions {
    let exact = Exact { cpu: Cpu::Intel, mips: 100 };
    let mut options = HostOptions { mem_mib: 1024, exact: Some(exact), ..HostOptions::default() };
    if let Ok(series) = std::env::var("BATON_KERNEL_SERIES") {
        options.source.series = Some(series.parse().expect("BATON_KERNEL_SERIES"));
    }
    options
}

fn get(options: &HostOptions) -> Ready {
    Ready::get(options).unwrap_or_else(|error| panic!("{error}"))
}

fn prepared(base: &Ready, setup: &str) -> Ready {
    let text = format!("{GUESTS}\n{setup}\n{ASK}\nall_well\n");
    let exec = Exec::new(["sh", "-c", &text], DEADLINE);
    let mut out = Vec::new();
    let prepared = base
        .prepared(&text, |host| host.begin(&exec, &mut |_, bytes| out.extend_from_slice(bytes)));
    prepared.unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(&out)))
}

/// Runs `script` after guests.sh on a host of its own, and returns what it printed; it must end
/// with status 0.
fn on_host(from: From, script: &str) -> Findings {
    let mut host = from.ready().restore(0).unwrap_or_else(|error| panic!("{error}"));
    let mut out = Vec::new();
    let mut hear = |stream, bytes: &[u8]| {
        if stream == Stream::Out {
            out.extend_from_slice(bytes);
        }
    };
    let ended = match from {
        From::Boot => {
            let text = format!("{GUESTS}\n{script}\nall_well\n");
            host.exec(&Exec::new(["sh", "-c", &text], DEADLINE), &mut hear)
        }
        _ => {
            let stdin = format!("{script}\n@end\n").into_bytes();
            host.answer(&Exec { stdin, ..Exec::new(["sh"], DEADLINE) }, &mut hear)
        }
    };
    let out = String::from_utf8_lossy(&out).into_owned();
    match ended {
        Ok(0) => Findings { out },
        Ok(status) => panic!("the script ended with {status}:\n{out}{}", logs(&mut host)),
        Err(error) => panic!("{error}\n{out}"),
    }
}
