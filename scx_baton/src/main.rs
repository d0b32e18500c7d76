// SPDX-License-Identifier: GPL-2.0-only
//! The loader of scx_baton: options, refusals, statistics. Every scheduling decision is
//! taken in `bpf/`.

mod bpf_intf;
mod bpf_skel;
mod counted;
mod kvm;
mod names;
mod notify;
mod options;
mod polling;
mod quotas;
mod records;
mod refuse;
mod restarts;
mod scrape;
mod stats;
mod waits;

use anyhow::{Context, Result, bail};
use baton_counters::Metrics;
use baton_metrics::Exits;
use baton_output::{interrupt, note, options, say};
use bpf_intf::*;
use bpf_skel::BpfSkelBuilder;
use crossbeam::channel::select;
use libbpf_rs::OpenObject;
use libbpf_rs::skel::Skel;
use log::info;
use names::Names;
use options::{Opts, YieldPolicy, named};
use polling::{HaltPoll, Polling};
use restarts::Restarts;
use scx_stats::prelude::*;
use scx_utils::{ScxExitKind, Topology, UserExitInfo};
use scx_utils::{
    build_id, compat, scx_ops_attach, scx_ops_load, scx_ops_open, try_set_rlimit_infinity,
};
use scx_utils::{uei_exited, uei_read};
use signal_hook::flag;
use std::io::IsTerminal;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use waits::{ASKED_LOOKS, Follow, HALT_LOOKS, IPI_LOOKS, START_LOOKS, Waits};

const NAME: &str = "scx_baton";

struct Scheduler<'a> {
    skel: bpf_skel::BpfSkel<'a>,
    struct_ops: Option<libbpf_rs::Link>,
    probes: Option<kvm::Probes>,
    follow_ipis: Follow,
    follow_halts: Follow,
    /// The kernel did not attach the probes of HLTs.
    halts_refused: bool,
    stats_server: StatsServer<(), Metrics>,
    wants_ipis: bool,
    /// The kernel tells of `cpu.max`.
    told_of_quotas: bool,
    quotas: quotas::Watch,
    names: Names,
    policy: String,
    began: Instant,
    halt_poll: Option<(HaltPoll, f64)>,
    pcpus: usize,
    polling: Option<Polling>,
    /// Of too many VMs, and of too many quotas.
    warned: [bool; 2],
}

/// Which caches and cores pCPUs share, before the scheduler is loaded.
///
/// Errors: there are more pCPUs, or caches, than it knows.
fn tell_topology(rodata: &mut bpf_skel::types::rodata, topo: &Topology) -> Result<()> {
    rodata.smt_active = topo.smt_enabled;
    // A virtual machine without caches has one for each CPU: they are no closer to one another.
    let shared = topo.all_llcs.values().any(|llc| llc.all_cpus.len() > 1);
    rodata.nr_llcs = if shared { topo.all_llcs.len().max(1) as u32 } else { 1 };
    if rodata.nr_llcs > baton_limits_MAX_LLCS {
        bail!(
            "{} last-level caches, at most {} are supported",
            rodata.nr_llcs,
            baton_limits_MAX_LLCS
        );
    }
    let mut place = 0;
    for (i, llc) in topo.all_llcs.values().enumerate() {
        let slot_of_llc = if shared { i } else { 0 };
        for &cpu in llc.all_cpus.keys() {
            let Some(slot) = rodata.cpu_llc.get_mut(cpu) else {
                bail!("CPU {cpu}: at most {} CPUs are supported", baton_limits_MAX_CPUS);
            };
            *slot = slot_of_llc as u16;
            rodata.llc_cpus[place] = cpu as u16;
            rodata.cpu_place[cpu] = place as u16;
            place += 1;
        }
        rodata.llc_first[slot_of_llc + 1] = place as u16;
    }

    // Those that are offline now have no core.
    for (cpu, sibling) in rodata.cpu_sibling.iter_mut().enumerate() {
        *sibling = cpu as u16;
    }
    // A kernel without this flag ends a scheduler that moves a task which must not migrate now.
    let may_leave = *compat::SCX_OPS_ENQ_MIGRATION_DISABLED != 0;
    for core in topo.all_cores.values().filter(|_| may_leave) {
        let cpus: Vec<usize> = core.cpus.keys().copied().collect();
        for (i, &cpu) in cpus.iter().enumerate() {
            // Their numbers were checked above.
            rodata.cpu_sibling[cpu] = cpus[(i + 1) % cpus.len()] as u16;
        }
    }
    Ok(())
}

impl<'a> Scheduler<'a> {
    fn start(
        opts: &Opts,
        shutdown: &Arc<AtomicBool>,
        object: &'a mut MaybeUninit<OpenObject>,
    ) -> Result<Self> {
        try_set_rlimit_infinity();
        let topo = Topology::new().context("cannot read the CPU topology from /sys")?;

        let mut builder = BpfSkelBuilder::default();
        builder.obj_builder.debug(opts.verbose);
        let open_opts = opts.libbpf.clone().into_bpf_open_opts();
        let mut skel = scx_ops_open!(builder, object, baton_ops, open_opts)?;
        skel.struct_ops.baton_ops_mut().exit_dump_len = opts.exit_dump_len;

        let rodata = skel.maps.rodata_data.as_mut().context("the BPF object has no options")?;
        tell_topology(rodata, &topo)?;
        let shared = skel.maps.bss_shared_data.as_mut();
        shared.context("the BPF object shares nothing")?.shared.halts_off = 1;
        let mut policy = opts.yield_policy.clone();
        policy.dedup();
        rodata.yield_policy.fill(yield_reason_YIELD_NONE);
        for (place, policy) in rodata.yield_policy.iter_mut().zip(policy) {
            *place = policy.reason();
        }

        let mut skel = scx_ops_load!(skel, baton_ops, uei)?;
        // Until here the kernel's scheduler is in charge anyway.
        if let Some(time) = opts.time {
            end_after(time, shutdown.clone());
        }
        let struct_ops = Some(scx_ops_attach!(skel, baton_ops)?);
        let stats_server = StatsServer::new(stats::server_data()).launch()?;
        info!("{NAME} {} started", build_id::full_version(env!("CARGO_PKG_VERSION")));
        let needs_ipis = |policy| matches!(policy, YieldPolicy::Ipi | YieldPolicy::Sent);
        let wants_ipis = opts.yield_policy.iter().copied().any(needs_ipis);
        let told_of_quotas = compat::struct_has_field("sched_ext_ops", "cgroup_set_bandwidth")?;
        Ok(Self {
            skel,
            struct_ops,
            probes: None,
            follow_ipis: Follow::default(),
            follow_halts: Follow::default(),
            halts_refused: false,
            stats_server,
            wants_ipis,
            told_of_quotas,
            quotas: quotas::Watch::default(),
            names: Names::default(),
            policy: named(&opts.yield_policy),
            began: Instant::now(),
            halt_poll: opts.halt_poll.map(|how| (how, opts.poll_budget)),
            pcpus: topo.all_cpus.len(),
            polling: None,
            warned: [false; 2],
        })
    }

    /// KVM may come after us, and may go.
    fn follow_kvm(&mut self) -> Result<()> {
        match (kvm::is_present(), self.probes.is_some()) {
            (true, false) => {
                self.probes = Some(kvm::Probes::attach(self.skel.object())?);
                self.follow_halts.begin(START_LOOKS);
                info!("watching KVM");
                if let Some((how, budget)) = self.halt_poll {
                    self.polling = Some(Polling::begin(how, budget, self.pcpus)?);
                }
            }
            (false, true) => {
                // Attached probes keep the module.
                self.probes = None;
                // KVM's own module, whose parameters these are, may have stayed: they are put back.
                self.polling = None;
                info!("KVM is gone");
            }
            _ => {}
        }
        Ok(())
    }

    /// Says once what it does without for those that are too many.
    fn warn_of_limits(&mut self) -> Result<()> {
        let vms = format!(
            "there are more than {baton_limits_MAX_VMS} VMs: vCPUs of the others are scheduled as any task of the \
             host"
        );
        let quotas = format!(
            "more than {baton_limits_MAX_QUOTA_LEVELS} cgroups one inside another have a cpu.max, or more than {} \
             in all: the outer ones are enforced; echo max > .../cpu.max removes one",
            baton_limits_MAX_QUOTAS - 1
        );
        let limits = [(baton_count_COUNT_SLOTLESS, vms), (baton_count_COUNT_QUOTALESS, quotas)];
        for (place, (count, words)) in limits.into_iter().enumerate() {
            if !self.warned[place] && self.count(count)? > 0 {
                self.warned[place] = true;
                log::warn!("{words}");
            }
        }
        Ok(())
    }

    /// Another second is over: IPIs and HLTs are followed while vCPUs wait for pCPUs.
    fn look_at_waits(&mut self) -> Result<()> {
        let bss = self.skel.maps.bss_data.as_mut().context("the BPF object has no variables")?;
        let at = &raw mut bss.waited_long;
        // SAFETY: an integer in memory that stays mapped with the object; BPF programs write it at
        // any time.
        let waited = unsafe { at.read_volatile() } != 0;
        // SAFETY: as above.
        unsafe { at.write_volatile(0) };
        self.follow_ipis.look(waited, IPI_LOOKS);
        self.follow_halts.look(waited, HALT_LOOKS);
        self.follow()
    }

    /// Probes come and go.
    fn follow(&mut self) -> Result<()> {
        if let Some(probes) = &mut self.probes {
            probes.follow_ipis(self.wants_ipis && self.follow_ipis.is_on())?;
        }
        // The governor of polling lives on them.
        let wanted = self.follow_halts.is_on() || self.polling.is_some();
        let follows = wanted && self.probes.is_some();
        let bss =
            self.skel.maps.bss_shared_data.as_mut().context("the BPF object shares nothing")?;
        let (since, off) = (&raw mut bss.shared.halts_since, &raw mut bss.shared.halts_off);
        // SAFETY: integers in memory that stays mapped with the object, which BPF programs read at
        // any time. What was noted before is stale when they have seen the first HLT.
        unsafe {
            if follows == (off.read_volatile() == 0) || self.halts_refused {
                return Ok(());
            }
            if follows {
                since.write_volatile(u64::MAX);
                fence(Ordering::SeqCst);
            }
            off.write_volatile(u32::from(!follows));
        }
        log::debug!("HLTs are followed: {follows}");
        let Some(probes) = &mut self.probes else { return Ok(()) };
        if let Err(why) = probes.follow_halts(follows) {
            log::warn!("HLTs are not followed: {why:#}");
            self.halts_refused = true;
            // SAFETY: as above.
            unsafe { off.write_volatile(1) };
        }
        Ok(())
    }

    /// What is due each second.
    fn look(&mut self) -> Result<()> {
        self.follow_kvm()?;
        self.look_at_waits()?;
        if self.halts_refused && self.polling.take_if(|polling| polling.is_governed()).is_some() {
            log::warn!("--halt-poll auto needs HLTs: halt_poll_ns is as it was found");
        }
        if let Some(mut polling) = self.polling.take() {
            polling.govern(&self.vms()?)?;
            self.polling = Some(polling);
        }
        self.warn_of_limits()?;
        if !self.told_of_quotas {
            let tgids = self.vms()?.iter().map(|(_, vm)| vm.tgid).collect();
            self.quotas.look(&tgids)?;
        }
        Ok(())
    }

    /// Until it ends: `Some` if it may start again.
    fn run(&mut self, shutdown: &AtomicBool) -> Result<Option<Ended>> {
        let (res_ch, req_ch) = self.stats_server.channels();
        let waits = Waits::listen(&self.skel.maps.waits)?;
        self.look()?;
        notify::ready();
        let mut next = Instant::now() + Duration::from_secs(1);
        while !shutdown.load(Ordering::Relaxed) && !uei_exited!(&self.skel, uei) {
            if Instant::now() >= next {
                self.look()?;
                next = Instant::now() + Duration::from_secs(1);
            }
            select! {
                recv(req_ch) -> asked => {
                    asked?;
                    res_ch.send(self.metrics()?)?;
                    self.follow_halts.begin(ASKED_LOOKS);
                    self.follow()?;
                }
                recv(waits.told) -> told => {
                    told.context("the thread that hears of waiting vCPUs has ended")?;
                    self.follow_ipis.begin(IPI_LOOKS);
                    self.follow_halts.begin(HALT_LOOKS);
                    log::debug!("vCPUs wait");
                    self.follow()?;
                }
                default(next.saturating_duration_since(Instant::now())) => {}
            }
        }
        if shutdown.load(Ordering::Relaxed) {
            notify::stopping();
        }
        self.polling = None;
        self.probes = None;
        self.struct_ops = None;
        let kind =
            self.skel.maps.data_data.as_ref().context("the BPF object has no data")?.uei.kind;
        ended(kind, uei_read!(&self.skel, uei))
    }
}

/// Why the kernel ended it, and in a word.
struct Ended {
    why: String,
    reason: &'static str,
}

/// The words, for metrics.
const REASONS: [&str; 3] = ["error", "stall", "restart"];

/// Ends that the kernel asked for and its errors may be mended by a new start; what an operator or
/// the scheduler itself asked for is none, or an error.
fn ended(kind: i32, uei: UserExitInfo) -> Result<Option<Ended>> {
    let errors = [ScxExitKind::Error, ScxExitKind::ErrorBPF, ScxExitKind::ErrorStall];
    let failed = errors.into_iter().any(|error| error as i32 == kind);
    let [error, stall, restart] = REASONS;
    let reason = if kind == ScxExitKind::ErrorStall as i32 { stall } else { error };
    match uei.report() {
        // SysRq-S: an operator wants the kernel's scheduler, and no service manager to start it
        // again.
        Err(why) if kind == ScxExitKind::SysRq as i32 => {
            log::warn!("{why:#}");
            Ok(None)
        }
        Err(why) if failed => Ok(Some(Ended { why: format!("{why:#}"), reason })),
        Err(why) => Err(why),
        Ok(()) if uei.should_restart() => {
            Ok(Some(Ended { why: "the kernel asks for a new start".to_owned(), reason: restart }))
        }
        Ok(()) => remedy(&uei).map(|()| None),
    }
}

/// What to do about an exit that the scheduler itself asked for.
fn remedy(uei: &UserExitInfo) -> Result<()> {
    match uei.exit_code() {
        Some(code) if code == baton_exit_EXIT_CORE_SCHED as i64 => bail!(
            "vCPU threads have core-scheduling cookies on a host with SMT, a combination that is \
             known to deadlock under sched_ext: switch core scheduling off for them; the kernel's \
             scheduler is in charge"
        ),
        _ => Ok(()),
    }
}

/// What an end in good order may take.
const END: Duration = Duration::from_secs(5);

/// Counted from the first call. As Ctrl-C; and if that does not help, at once: the kernel takes
/// over when the file descriptors are closed.
fn end_after(time: Duration, shutdown: Arc<AtomicBool>) {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        std::thread::spawn(move || {
            std::thread::sleep(time);
            info!("its time is over (--for)");
            shutdown.store(true, Ordering::Relaxed);
            std::thread::sleep(END);
            std::process::exit(1);
        });
    });
}

fn run(opts: Opts) -> Result<()> {
    if opts.version {
        return say(&format!("{NAME} {}\n", build_id::full_version(env!("CARGO_PKG_VERSION"))));
    }
    if opts.help_stats {
        let mut text = Vec::new();
        stats::server_data().describe_meta(&mut text, None)?;
        return say(&String::from_utf8_lossy(&text));
    }

    let level = if opts.verbose { log::LevelFilter::Debug } else { log::LevelFilter::Info };
    let color = match std::io::stderr().is_terminal() {
        true => simplelog::ColorChoice::Auto,
        false => simplelog::ColorChoice::Never,
    };
    let config = simplelog::Config::default();
    simplelog::TermLogger::init(level, config, simplelog::TerminalMode::Stderr, color)?;

    let shutdown = Arc::new(AtomicBool::new(false));
    let wanted = stats::Wanted { totals: opts.totals, vcpus: opts.vcpus };
    // Before signals are heard: it sleeps for its interval, and Ctrl-C ends it at once.
    if let Some(interval) = opts.monitor {
        return stats::monitor(interval, wanted, shutdown);
    }
    for signal in interrupt::signals() {
        flag::register(signal, shutdown.clone()).context("cannot handle Ctrl-C")?;
    }
    refuse::unfit_host()?;
    let exits = Exits::of(&REASONS);
    if let Some(address) = opts.metrics {
        scrape::answer(address, opts.metrics_vcpus, &exits)?;
    }
    if let Some(interval) = opts.stats {
        let shutdown = shutdown.clone();
        std::thread::spawn(move || {
            if let Err(e) = stats::monitor(interval, wanted, shutdown) {
                log::warn!("statistics stopped: {e:#}");
            }
        });
    }

    let mut restarts = Restarts::default();
    loop {
        let mut object = MaybeUninit::uninit();
        let ended = Scheduler::start(&opts, &shutdown, &mut object)?.run(&shutdown)?;
        let Some(Ended { why, reason }) = ended else {
            return Ok(());
        };
        exits.count(reason);
        let Some(wait) = restarts.wait(Instant::now()) else {
            bail!(
                "{why}: it has started again {} times within {} minutes, and stops; the kernel's \
                 scheduler is in charge",
                restarts::MOST,
                restarts::WITHIN.as_secs() / 60
            );
        };
        log::warn!("{why}: it starts again in {} s", wait.as_secs());
        notify::ended(&why);
        let again = Instant::now() + wait;
        while Instant::now() < again {
            if shutdown.load(Ordering::Relaxed) {
                notify::stopping();
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        refuse::unfit_host()?;
    }
}

fn main() -> ExitCode {
    let opts = match options() {
        Ok(opts) => opts,
        Err(status) => return ExitCode::from(status),
    };
    match run(opts) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            note(&format!("{NAME}: {e:#}"));
            match e.is::<refuse::Unfit>() {
                true => ExitCode::from(refuse::UNFIT),
                false => ExitCode::FAILURE,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// 'make install' runs this for the files.
    #[test]
    fn has_manuals() -> Result<()> {
        baton_manuals::write_all(Opts::command(), 8, "baton-doctor(1), baton-top(1), systemctl(1)")
    }
}
