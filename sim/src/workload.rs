// SPDX-License-Identifier: GPL-2.0-only
//! Workloads named after benchmarks. What each does, and where its figures come from, stands beside
//! it; none of them was fitted to a result.

use std::sync::Arc;

use crate::guest::Op;
use crate::machine::Ns;

/// What a task of a guest does, over and over.
pub type Program = Arc<Vec<Op>>;

const US: Ns = 1_000;
const MS: Ns = 1_000_000;

const NAMES: [(&str, &str); 15] = [
    ("compute", "computes, and waits for nobody"),
    ("barrier", "computes 100 µs, then spins at a barrier in user mode, without PAUSE"),
    ("barrier-pause", "the same, with PAUSE"),
    ("lock", "takes a kernel lock for 2 µs of every 8 µs"),
    (
        "mutex",
        "takes a mutex for 20 µs of every 100 µs; who waits spins or sleeps (mmap_lock's writers)",
    ),
    ("ebizzy", "allocates and frees 512 KiB chunks: a multicast TLB shootdown for each record"),
    ("kernbench", "compiles: processes that fault, fork and exit, with short kernel locks"),
    ("sysbench-oltp", "database clients and servers that hand on to each other, short locks"),
    ("hackbench", "groups of senders and receivers that wake each other"),
    ("pbzip2", "a reader, workers that compress blocks, munmap and so flush TLBs, a writer"),
    ("file-server", "short calls with two kernel locks each; every 49th sleeps for its disk"),
    ("o-dsync", "one task writes with O_DSYNC to a disk with a battery-backed cache"),
    ("timer", "one task sleeps until a timer every millisecond (cyclictest)"),
    ("idle", "each vCPU wakes 2.5 times a second, as an idle Linux of four vCPUs (Bonzini 2015)"),
    ("ipi", "one vCPU interrupts another and waits, over and over"),
];

pub fn names() -> Vec<&'static str> {
    NAMES.map(|(name, _)| name).to_vec()
}

/// Name and one line on each.
pub fn list() -> &'static [(&'static str, &'static str)] {
    &NAMES
}

fn compute(mean: Ns, spread: f64) -> Op {
    Op::Compute { mean, spread, kernel: false }
}

fn kernel(mean: Ns, spread: f64) -> Op {
    Op::Compute { mean, spread, kernel: true }
}

fn same(n: u32, ops: Vec<Op>) -> Vec<Program> {
    let program = Arc::new(ops);
    (0..n).map(|_| program.clone()).collect()
}

/// What a workload of that name cannot be: a key, and why.
pub fn misfit(name: &str, vcpus: u32, tasks: Option<u32>) -> Option<(&'static str, String)> {
    let of_itself = ["o-dsync", "timer", "idle", "ipi"].contains(&name);
    match tasks {
        _ if name == "ipi" && vcpus < 2 => {
            Some(("vcpus", "\"ipi\" needs one to send to: at least 2".into()))
        }
        Some(_) if of_itself => {
            Some(("tasks", format!("the tasks of \"{name}\" follow from its vCPUs; leave it out")))
        }
        Some(tasks) if name == "hackbench" && !tasks.is_multiple_of(40) => {
            Some(("tasks", format!("must be groups of 40 for \"{name}\", not {tasks}")))
        }
        _ => None,
    }
}

/// The tasks of a preset on a VM of so many vCPUs; `None` if there is none of that name.
pub fn preset(name: &str, vcpus: u32, tasks: Option<u32>) -> Option<Vec<Program>> {
    let each = tasks.unwrap_or(vcpus);
    Some(match name {
        "compute" => same(each, vec![compute(MS, 0.1), Op::Done]),
        "barrier" | "barrier-pause" => {
            let pause = name == "barrier-pause";
            // One round is counted once.
            let mut all = same(each, vec![compute(100 * US, 0.02), Op::Barrier { pause }]);
            all[0] = Arc::new(vec![compute(100 * US, 0.02), Op::Barrier { pause }, Op::Done]);
            all
        }
        "lock" => same(
            each,
            vec![compute(6 * US, 0.3), Op::Lock(0), kernel(2 * US, 0.3), Op::Unlock(0), Op::Done],
        ),
        "mutex" => same(
            each,
            vec![
                compute(80 * US, 0.3),
                Op::Mutex(0),
                kernel(20 * US, 0.3),
                Op::Release(0),
                Op::Done,
            ],
        ),
        "ebizzy" => ebizzy(tasks.unwrap_or(2 * vcpus)),
        "kernbench" => kernbench(tasks.unwrap_or(2 * vcpus)),
        "sysbench-oltp" => sysbench(tasks.unwrap_or(2 * vcpus)),
        "hackbench" => hackbench(tasks.unwrap_or(400) / 40),
        "pbzip2" => pbzip2(each),
        "file-server" => file_server(each),
        "o-dsync" => o_dsync(vcpus),
        // A program of its own after each timer: cyclictest takes a few microseconds.
        "timer" => {
            same(1, vec![Op::Sleep { mean: MS, spread: 0.0 }, compute(5 * US, 0.1), Op::Done])
        }
        "idle" => same(
            vcpus,
            vec![Op::Sleep { mean: 400 * MS, spread: 0.5 }, kernel(5 * US, 0.2), Op::Done],
        ),
        "ipi" => {
            let mut all = same(vcpus - 1, vec![compute(MS, 0.1)]);
            all.push(Arc::new(vec![Op::CallOne, compute(US, 0.0), Op::Done]));
            all
        }
        _ => return None,
    })
}

/// ebizzy 0.3: 2 threads a CPU; a record is malloc(512 KiB), a copy, a binary search, free. At 2.27
/// GHz about 225 µs of CPU alone: 150 µs on a 3.4 GHz Core i3/i7 (M. Gorman, "Fix ebizzy
/// performance regression due to X86 TLB range flush v2", 2013) by clock. Of it 90 µs are 128 minor
/// faults (0.7 µs each, estimated), under mmap_sem and, a batch of 31 pages at a time, zone->lock;
/// freeing gives the memory back in one madvise(), which flushes the TLBs of all vCPUs that run the
/// process.
fn ebizzy(tasks: u32) -> Vec<Program> {
    let mut record = Vec::new();
    for _ in 0..4 {
        record.extend([
            kernel(20 * US, 0.2),
            Op::Lock(0),
            // 32 pages out of the zone's list; "most spinlocks are held for less than 2^12 cycles".
            kernel(1_200, 0.5),
            Op::Unlock(0),
            compute(28 * US, 0.2),
        ]);
    }
    record.extend([kernel(5 * US, 0.2), Op::Lock(0), kernel(1_200, 0.5), Op::Unlock(0), Op::Call]);
    record.push(Op::Done);
    same(tasks, record)
}

/// kernbench: `make -j 2·vCPUs`. About 38 ms of CPU a process (1,200 s in 29,135 processes) with
/// 1,080 faults; 4 to 5 % of the time in the kernel (perf.mvermeulen.com; M. Gorman 2013). Done in
/// pieces of 1 ms, each with its share of the faults and of the locks (zone, anon_vma, dentry); a
/// process's end is a piece of kernel time of 1 ms with more of them, and wakes make.
fn kernbench(tasks: u32) -> Vec<Program> {
    let mut process = Vec::new();
    for _ in 0..37 {
        process.extend([
            compute(960 * US, 0.3),
            kernel(20 * US, 0.3),
            Op::Lock(0),
            kernel(US, 0.5),
            Op::Unlock(0),
        ]);
    }
    for _ in 0..20 {
        process.extend([kernel(50 * US, 0.3), Op::Lock(0), kernel(US, 0.5), Op::Unlock(0)]);
    }
    // The jobserver: a token to another one, and one back.
    process.extend([Op::Done]);
    same(tasks, process)
}

/// sysbench 0.4.12 oltp read-only on PostgreSQL: 14 SELECTs with BEGIN and COMMIT; client and
/// server hand on to each other twice a statement. 2.5 ms of CPU a transaction at 2.27 GHz
/// (estimated: 90 µs a select by key, 300 µs a range); LWLocks are held for less than 1 µs. A pair
/// of tasks is one client.
fn sysbench(clients: u32) -> Vec<Program> {
    let mut all = Vec::new();
    for client in 0..clients {
        let (request, answer) = (2 * client, 2 * client + 1);
        let mut transaction = Vec::new();
        for _ in 0..16 {
            transaction.extend([compute(30 * US, 0.3), Op::Post(request), Op::Wait(answer)]);
        }
        transaction.push(Op::Done);
        all.push(Arc::new(transaction));
        all.push(Arc::new(vec![
            Op::Wait(request),
            compute(100 * US, 0.5),
            Op::Lock(client % 16),
            kernel(500, 0.5),
            Op::Unlock(client % 16),
            kernel(20 * US, 0.3),
            Op::Post(answer),
        ]));
    }
    all
}

/// hackbench: groups of 20 senders and 20 receivers; each sender writes to all receivers of its
/// group. 1.84 µs of CPU a message, both sides together (91.9 s × 8 vCPUs / 4·10^8 messages: Zeng
/// Guang, "IPI virtualization" v7, 2022). A socket holds some messages before its writer waits:
/// here 20 at a time are handed over.
fn hackbench(groups: u32) -> Vec<Program> {
    const AT_ONCE: u64 = 20;
    let mut all = Vec::new();
    for group in 0..groups.max(1) {
        for receiver in 0..20 {
            let (data, space) = (group * 40 + receiver, group * 40 + 20 + receiver);
            all.push(Arc::new(vec![
                Op::Wait(data),
                kernel(AT_ONCE * 900, 0.2),
                Op::Lock(group),
                kernel(400, 0.5),
                Op::Unlock(group),
                Op::Post(space),
                Op::Done,
            ]));
        }
        for sender in 0..20 {
            let mut writes = Vec::new();
            for step in 0..20 {
                let receiver = (sender + step) % 20;
                let (data, space) = (group * 40 + receiver, group * 40 + 20 + receiver);
                writes.extend([
                    kernel(AT_ONCE * 900, 0.2),
                    Op::Lock(group),
                    kernel(400, 0.5),
                    Op::Unlock(group),
                    Op::Post(data),
                    Op::Wait(space),
                ]);
            }
            all.push(Arc::new(writes));
        }
    }
    all
}

/// pbzip2: blocks of 900 kB, 95 ms each at 3 GHz (9 to 10 MB/s a core, estimated from 4.15 MB/s on
/// a 2.53 GHz Core 2). For a block three buffers are mapped and unmapped: some 2,300 faults in
/// bursts, and 4 TLB shootdowns of all that run. A queue with a mutex hands blocks out (futexes).
fn pbzip2(workers: u32) -> Vec<Program> {
    let mut block = vec![Op::Wait(0)];
    for _ in 0..4 {
        block.extend([
            kernel(400 * US, 0.2),
            Op::Lock(0),
            kernel(1_200, 0.5),
            Op::Unlock(0),
            compute(23 * MS, 0.1),
            kernel(20 * US, 0.2),
            Op::Call,
        ]);
    }
    block.extend([Op::Done, Op::Post(1)]);
    let mut all = same(workers, block);
    // The reader: 900 kB from the page cache, as many ahead as there are workers.
    // Each of these reads one and waits until one is done: together they do what pbzip2's one
    // reader does.
    let reader = vec![kernel(100 * US, 0.2), Op::Post(0), Op::Wait(1)];
    all.extend(same(workers + 1, reader));
    all
}

/// A file server's calls: 25 µs of computing, with two short global locks (the dentry cache's and a
/// device queue's, about 1 and 0.5 µs: estimates); every 49th waits 200 µs for the disk. So many
/// tasks as vCPUs: each vCPU spins often, and halts often.
fn file_server(tasks: u32) -> Vec<Program> {
    let mut calls = Vec::new();
    for _ in 0..49 {
        calls.extend([
            compute(25 * US, 0.2),
            Op::Lock(0),
            kernel(US, 0.5),
            Op::Unlock(0),
            Op::Lock(1),
            kernel(500, 0.5),
            Op::Unlock(1),
            Op::Done,
        ]);
    }
    calls.push(Op::Sleep { mean: 200 * US, spread: 0.2 });
    same(tasks, calls)
}

/// Writes with O_DSYNC: 50 µs in the device (a SAS controller's cache, estimated), 20 µs of CPU
/// around them. The other vCPUs halt now and then: 50 times a second in all (Bonzini 2015).
fn o_dsync(vcpus: u32) -> Vec<Program> {
    let write =
        vec![kernel(10 * US, 0.1), Op::Io { mean: 50 * US }, compute(10 * US, 0.1), Op::Done];
    let mut all = same(1, write);
    if vcpus > 1 {
        let pause = Op::Sleep { mean: u64::from(vcpus - 1) * 20 * MS, spread: 0.5 };
        all.extend(same(vcpus - 1, vec![pause, kernel(5 * US, 0.2)]));
    }
    all
}
