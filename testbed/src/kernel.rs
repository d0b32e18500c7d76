// SPDX-License-Identifier: GPL-2.0-only
//! The kernel that the emulated host and its guests run: Debian's, or the user's own.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use baton_output::note;

use crate::apt::Apt;
use crate::cache::Cache;

/// Debian's small kernel for virtual machines; the version it depends on moves.
const META: &str = "linux-image-cloud-amd64";
/// Where Debian offers kernels; sid is the newest but not always newer than the backports.
const SUITES: [&str; 3] = ["trixie", "trixie-backports", "sid"];
/// The first series with sched_ext.
const FIRST: Series = Series(6, 12);
/// Packages, unpacked files and apt's lists of one kernel take about 300 MiB.
const NEEDED_MIB: u64 = 500;

/// What loads before the host can be used, in the order of dependence: the way out (where the
/// kernel does not have it built in), then KVM.
pub const CONSOLE_MODULES: [&str; 6] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_console",
];
pub const KVM_MODULES: [&str; 4] = ["irqbypass", "kvm", "kvm-amd", "kvm-intel"];

/// A kernel series, such as 7.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series(pub u32, pub u32);

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl std::str::FromStr for Series {
    type Err = String;

    fn from_str(text: &str) -> Result<Series, String> {
        let parse = || {
            let (major, minor) = text.split_once('.')?;
            Some(Series(major.parse().ok()?, minor.parse().ok()?))
        };
        parse().ok_or_else(|| format!("'{text}' is no kernel series; one looks like 7.3"))
    }
}

/// A kernel on this machine.
pub struct Kernel {
    /// The bzImage.
    pub image: PathBuf,
    /// Its lib/modules/RELEASE, if it has modules.
    pub modules: Option<PathBuf>,
}

impl Kernel {
    /// The user's own kernel.
    ///
    /// Errors: not a bzImage, or modules that are another kernel's.
    pub fn given(image: &Path, modules: Option<&Path>) -> Result<Kernel> {
        let release = release(image)?;
        let modules = match modules {
            None => None,
            Some(dir) => Some(modules_of(dir, &release)?),
        };
        Ok(Kernel { image: image.to_path_buf(), modules })
    }

    /// Debian's kernel of a series, or the newest that has sched_ext. Fetched only once.
    ///
    /// Errors: see [`Apt`]; a series that is not on offer; too little disk.
    pub fn debian(cache: &Cache, series: Option<Series>) -> Result<Kernel> {
        let known = pointer(series);
        if let Some(version) = cache.read(&known)
            && let Some(dir) = cache.get(&entry(&version))
        {
            return unpacked(&dir);
        }
        let offers = Offers::look(cache)?;
        let wanted = match series {
            Some(series) => {
                let found = offers.newest.iter().find(|offer| offer.0 == series);
                let Some(found) = found else {
                    let all: Vec<String> =
                        offers.newest.iter().map(|offer| offer.0.to_string()).collect();
                    bail!("Debian offers no kernel {series}, but these: {}", all.join(", "));
                };
                std::slice::from_ref(found)
            }
            None => &offers.newest[..],
        };
        for (of, version) in wanted {
            let kernel = offers.fetch(cache, *of, version)?;
            if series.is_some() || kernel.has_sched_ext() {
                cache.write(&known, version)?;
                return Ok(kernel);
            }
        }
        bail!("no kernel that Debian offers has sched_ext: give one with --kernel");
    }

    /// The modules in question, by name, unpacked.
    pub fn module(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(dir) = &self.modules else { return Ok(None) };
        let Some(file) = find_module(&dir.join("kernel"), name)? else { return Ok(None) };
        let unpack = || -> Result<Vec<u8>> {
            let packed = fs::read(&file)?;
            let mut module = Vec::new();
            match file.extension().and_then(|extension| extension.to_str()) {
                Some("xz") => lzma_rs::xz_decompress(&mut &packed[..], &mut module)
                    .map_err(|error| anyhow::anyhow!("{error:?}"))?,
                Some("zst") => {
                    ruzstd::decoding::StreamingDecoder::new(&packed[..])?
                        .read_to_end(&mut module)?;
                }
                _ => module = packed,
            }
            Ok(module)
        };
        unpack().map(Some).with_context(|| format!("cannot unpack {}", file.display()))
    }

    /// Its configuration, where packages and distributions put it.
    pub fn config(&self) -> Option<PathBuf> {
        let dir = self.modules.as_ref()?;
        let name = format!("config-{}", dir.file_name()?.to_str()?);
        [dir.join("config"), self.image.with_file_name(name)].into_iter().find(|f| f.is_file())
    }

    fn has_sched_ext(&self) -> bool {
        self.config().and_then(|file| fs::read(file).ok()).is_some_and(|text| {
            String::from_utf8_lossy(&text).lines().any(|line| line == "CONFIG_SCHED_CLASS_EXT=y")
        })
    }
}

/// The series with sched_ext that the mirror offers now, newest first, all fetched.
///
/// Errors: see [`Apt`]; too little disk.
pub fn series_on_offer(cache: &Cache) -> Result<Vec<(Series, String)>> {
    let offers = Offers::look(cache)?;
    let mut usable = Vec::new();
    for (series, version) in &offers.newest {
        if offers.fetch(cache, *series, version)?.has_sched_ext() {
            cache.write(&pointer(Some(*series)), version)?;
            usable.push((*series, version.clone()));
        }
    }
    if let Some((_, version)) = usable.first() {
        cache.write(&pointer(None), version)?;
    }
    let current: Vec<String> = offers.newest.iter().map(|(_, version)| entry(version)).collect();
    for old in cache.names()? {
        if old.starts_with(&entry("")) && !current.contains(&old) {
            cache.remove(&old)?;
        }
    }
    Ok(usable)
}

/// What Debian offers.
struct Offers {
    apt: Apt,
    /// Each series from [`FIRST`] on, with its newest version, newest series first.
    newest: Vec<(Series, String)>,
}

impl Offers {
    fn look(cache: &Cache) -> Result<Offers> {
        cache.require_free(NEEDED_MIB)?;
        let apt = Apt::open(&cache.scratch("apt-kernel")?, &SUITES)?;
        let newest = newest_of_each(&apt.versions(META)?);
        if newest.is_empty() {
            bail!("the Debian mirror offers no kernel since {FIRST}: give one with --kernel");
        }
        Ok(Offers { apt, newest })
    }

    fn fetch(&self, cache: &Cache, series: Series, version: &str) -> Result<Kernel> {
        let dir = cache.get_or_make(&entry(version), |root| {
            cache.require_free(NEEDED_MIB)?;
            note(&format!("baton: fetching Linux {series}, about 40 MB"));
            self.apt.unpack(&self.packages(version)?, root)
        })?;
        unpacked(&dir)
    }

    /// The meta-package leads to the image, and the image, in newer packages, to its parts.
    fn packages(&self, version: &str) -> Result<Vec<String>> {
        let mut found: Vec<String> = Vec::new();
        let mut look_at = vec![META.to_string()];
        while let Some(package) = look_at.pop() {
            for name in self.apt.depends(&package, version)? {
                let exact = format!("{name}={version}");
                if is_kernel_part(&name) && !found.contains(&exact) {
                    found.push(exact);
                    look_at.push(name);
                }
            }
        }
        Ok(found)
    }
}

fn pointer(series: Option<Series>) -> String {
    match series {
        Some(series) => format!("kernel-of-{series}"),
        None => "kernel-newest".to_string(),
    }
}

fn entry(version: &str) -> String {
    format!("linux-{version}")
}

fn is_kernel_part(package: &str) -> bool {
    ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"]
        .iter()
        .filter_map(|prefix| package.strip_prefix(prefix))
        .any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn newest_of_each(versions: &[String]) -> Vec<(Series, String)> {
    let numbers = |version: &str| -> Vec<u32> {
        let upstream = version.split(['-', '~', '+']).next().unwrap_or_default();
        upstream.split('.').map_while(|number| number.parse().ok()).collect()
    };
    let mut sorted: Vec<&String> = versions.iter().collect();
    sorted.sort_by_key(|version| std::cmp::Reverse(numbers(version)));
    let mut newest: Vec<(Series, String)> = Vec::new();
    for version in sorted {
        let [major, minor, ..] = numbers(version)[..] else { continue };
        let series = Series(major, minor);
        if series >= FIRST && newest.iter().all(|other| other.0 != series) {
            newest.push((series, version.clone()));
        }
    }
    newest
}

/// The kernel in unpacked Debian packages. Newer ones keep all in lib/modules/RELEASE, older ones
/// the image in /boot.
fn unpacked(root: &Path) -> Result<Kernel> {
    let find = || -> std::io::Result<Option<Kernel>> {
        for entry in fs::read_dir(root.join("usr/lib/modules"))? {
            let modules = entry?.path();
            let Some(release) = modules.file_name() else { continue };
            let old = format!("vmlinuz-{}", release.to_string_lossy());
            for image in [modules.join("vmlinuz"), root.join("boot").join(old)] {
                if image.exists() {
                    return Ok(Some(Kernel { image, modules: Some(modules) }));
                }
            }
        }
        Ok(None)
    };
    match find() {
        Ok(Some(kernel)) => Ok(kernel),
        _ => bail!("no kernel in {}: remove it, it will be fetched again", root.display()),
    }
}

/// The release in a bzImage's header (Documentation/arch/x86/boot.rst).
fn release(image: &Path) -> Result<String> {
    let file =
        File::open(image).with_context(|| format!("cannot read the kernel {}", image.display()))?;
    let read = || -> std::io::Result<Option<String>> {
        let mut header = [0; 0x210];
        file.read_exact_at(&mut header, 0)?;
        if header[0x202..0x206] != *b"HdrS" {
            return Ok(None);
        }
        let at = u16::from_le_bytes([header[0x20e], header[0x20f]]);
        let mut text = [0; 128];
        let length = file.read_at(&mut text, u64::from(at) + 0x200)?;
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        Ok(text.split([' ', '\0']).next().map(str::to_string))
    };
    match read() {
        Ok(Some(release)) => Ok(release),
        _ => bail!(
            "{} is not a bzImage: a kernel build leaves it in arch/x86/boot/bzImage",
            image.display()
        ),
    }
}

/// The modules of this release, under a directory that may be anything that `INSTALL_MOD_PATH`
/// or its results can mean.
fn modules_of(dir: &Path, release: &str) -> Result<PathBuf> {
    let candidates = [
        dir.to_path_buf(),
        dir.join(release),
        dir.join("lib/modules").join(release),
        dir.join("usr/lib/modules").join(release),
    ];
    candidates
        .into_iter()
        .filter_map(|dir| dir.canonicalize().ok())
        .find(|dir| dir.ends_with(release) && dir.join("kernel").is_dir())
        .with_context(|| {
            format!(
                "{} has no modules of kernel {release}: give the lib/modules/{release} that \
                 'make modules_install' made",
                dir.display()
            )
        })
}

fn find_module(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    let read = || format!("cannot read {}", dir.display());
    let mut dirs = Vec::new();
    for entry in fs::read_dir(dir).with_context(read)? {
        let path = entry.with_context(read)?.path();
        if path.is_dir() {
            dirs.push(path);
        } else if path.file_name().is_some_and(|file| is_module(&file.to_string_lossy(), name)) {
            return Ok(Some(path));
        }
    }
    for dir in dirs {
        if let Some(found) = find_module(&dir, name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Module names do not tell - from _.
fn is_module(file: &str, name: &str) -> bool {
    let stem = file.split('.').next().unwrap_or_default().replace('_', "-");
    let ending = file.split_once('.').map(|(_, ending)| ending);
    stem == name.replace('_', "-") && matches!(ending, Some("ko" | "ko.xz" | "ko.zst"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sorted_into_series() {
        let versions = ["7.2.9-1", "7.3.4-1~bpo13+1", "6.1.1-1", "7.2.13-1", "6.12.107-1", "x"];
        let versions: Vec<String> = versions.iter().map(|version| version.to_string()).collect();
        let newest = newest_of_each(&versions);
        let expected = [
            (Series(7, 3), "7.3.4-1~bpo13+1"),
            (Series(7, 2), "7.2.13-1"),
            (Series(6, 12), "6.12.107-1"),
        ];
        let expected = expected.map(|(series, version)| (series, version.to_string()));
        assert_eq!(newest, expected);
    }

    #[test]
    fn series_are_read() {
        assert_eq!("7.3".parse(), Ok(Series(7, 3)));
        for bad in ["7", "7.x", "", "7.3.4"] {
            assert!(bad.parse::<Series>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kernel_parts_are_told_from_the_rest() {
        assert!(is_kernel_part("linux-modules-7.3.4+deb13-cloud-amd64"));
        assert!(!is_kernel_part("linux-base-cloud-amd64"));
        assert!(!is_kernel_part("initramfs-tools"));
    }

    #[test]
    fn modules_by_name() {
        assert!(is_module("kvm-amd.ko.xz", "kvm-amd"));
        assert!(is_module("virtio_pci.ko", "virtio-pci"));
        assert!(!is_module("kvm-amd.ko.xz", "kvm"));
        assert!(!is_module("kvm.ko.gz", "kvm"));
    }

    #[test]
    fn a_bzimage_tells_its_release() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e] = 0x80;
        image[0x280..0x290].copy_from_slice(b"7.3.4-x (me@here");
        fs::write(file.path(), &image).unwrap();
        assert_eq!(release(file.path()).unwrap(), "7.3.4-x");
        fs::write(file.path(), "no kernel").unwrap();
        assert!(release(file.path()).unwrap_err().to_string().contains("bzImage"));
    }
}
