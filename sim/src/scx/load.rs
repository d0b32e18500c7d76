// SPDX-License-Identifier: GPL-2.0-only
//! Schedulers as native objects: compiled, and loaded once for each simulation, so that each has
//! global variables of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use libloading::Library;

use crate::scx::ffi::{Ops, Shim};

/// scx_baton, and the two examples.
pub const BATON: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/baton.so"));
pub const FIFO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fifo.so"));
pub const VTIME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vtime.so"));

/// The shim's headers, for schedulers that are compiled at run time.
const HEADERS: [(&str, &str); 7] = [
    ("vmlinux.h", include_str!("../../shim/include/vmlinux.h")),
    ("shim.h", include_str!("../../shim/include/shim.h")),
    ("bpf/bpf_helpers.h", include_str!("../../shim/include/bpf/bpf_helpers.h")),
    ("bpf/bpf_core_read.h", include_str!("../../shim/include/bpf/bpf_core_read.h")),
    ("bpf/bpf_tracing.h", include_str!("../../shim/include/bpf/bpf_tracing.h")),
    ("scx/common.bpf.h", include_str!("../../shim/include/scx/common.bpf.h")),
    ("user.c", include_str!("../../shim/user.c")),
];

/// Integers wrap as in BPF; BPF knows no strict aliasing.
const FLAGS: [&str; 8] = [
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-Wno-unused",
    // A function that nobody has is an error now, not at the first call.
    "-Wl,-z,defs",
];

/// The BPF source `file` as a native object. It is compiled once, whatever becomes of it
/// afterwards.
///
/// Errors: it does not compile; then with the compiler's words.
pub fn compiled(file: &Path) -> Result<Arc<[u8]>> {
    static COMPILED: Mutex<BTreeMap<PathBuf, Arc<[u8]>>> = Mutex::new(BTreeMap::new());
    // Who comes second waits for the first one's result.
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(object) = compiled.get(file) {
        return Ok(object.clone());
    }
    let object: Arc<[u8]> = compile(file)?.into();
    compiled.insert(file.into(), object.clone());
    Ok(object)
}

fn compile(source: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("{} cannot be read", source.display());
    ensure!(fs::metadata(source).with_context(cannot)?.is_file(), "{}: it is no file", cannot());
    let source = fs::canonicalize(source).with_context(cannot)?;
    let directory = tempfile::tempdir().context("no temporary directory")?;
    for (name, text) in HEADERS {
        let file = directory.path().join(name);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let object = directory.path().join("scheduler.so");
    let clang = clang();
    let output = Command::new(&clang)
        .args(FLAGS)
        .arg(format!("-I{}", directory.path().display()))
        .arg(format!("-DSHIM_SCHEDULER=\"{}\"", source.display()))
        .arg(directory.path().join("user.c"))
        .arg("-o")
        .arg(&object)
        .output()
        .with_context(|| format!("cannot run {clang} to compile {}", source.display()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let why = ["undefined", "error"].map(|word| words.lines().find(|line| line.contains(word)));
        let first = why.into_iter().flatten().next().unwrap_or("no reason given");
        bail!("{} does not compile for the simulator: {first}", source.display());
    }
    fs::read(&object).context("the compiled scheduler is gone")
}

/// The newest that is installed.
fn clang() -> String {
    let works = |name: &String| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    let named = std::env::var("BPF_CLANG").ok();
    let versions = (14..40).rev().map(|version| format!("clang-{version}"));
    named.into_iter().chain(["clang".into()]).chain(versions).find(works).unwrap_or("clang".into())
}

/// One instance.
pub struct Loaded {
    library: Library,
    _file: File,
}

impl Loaded {
    /// Errors: no memory, or it is no shared object.
    pub fn new(object: &[u8]) -> Result<Self> {
        // SAFETY: the name is a C string; the descriptor is ours alone.
        let mut file = unsafe {
            let fd = libc::memfd_create(c"scheduler".as_ptr(), libc::MFD_CLOEXEC);
            ensure!(fd >= 0, "no memory for a scheduler: {}", std::io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        file.write_all(object).context("no memory for a scheduler")?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: compiled from the project's sources, or the user's own, which the user wants to
        // run; it has no constructors. Another file, so another instance, each time.
        let library = unsafe { Library::new(path) }.context("the scheduler cannot be loaded")?;
        Ok(Loaded { library, _file: file })
    }

    /// The address of a function or variable, if it has one of that name.
    pub fn symbol<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller names the type that the shim's headers give this symbol.
        unsafe { self.library.get::<T>(name.as_bytes()).ok().map(|symbol| *symbol) }
    }

    /// # Safety
    ///
    /// `shim` must stay where it is while the scheduler is used.
    pub unsafe fn connect(&self, shim: *mut Shim) -> Result<*const Ops> {
        let at: *mut *mut Shim = self
            .symbol("shim")
            .context("the scheduler has no SCX_OPS_DEFINE, so it does nothing")?;
        let ops: *const *const Ops = self
            .symbol("shim_ops")
            .context("the scheduler has no SCX_OPS_DEFINE, so it does nothing")?;
        // SAFETY: both are variables of the shim's headers.
        unsafe {
            *at = shim;
            Ok(*ops)
        }
    }

    /// Sets a `const volatile` variable, as a loader does before BPF programs are loaded.
    pub fn set<T: Copy>(&self, name: &str, place: usize, value: T) {
        let Some(at) = self.symbol::<*mut T>(name) else { return };
        let at = at.wrapping_add(place);
        let page = 4096;
        let start = at as usize / page * page;
        let end = at as usize + size_of::<T>();
        // SAFETY: the variable is in a private mapping of ours, which nothing else writes.
        unsafe {
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            if libc::mprotect(start as *mut libc::c_void, end - start, writable) == 0 {
                at.write_volatile(value);
            }
        }
    }
}
