// SPDX-License-Identifier: GPL-2.0-only
//! A private apt: fetches Debian packages and checks their signatures without touching the
//! system's sources, lists or packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use baton_output::note;

use crate::command::{self, Failed};

/// Debian's archive keys, from package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

const REMEDY: &str = "give --kernel, --modules and --qemu instead";

/// An apt with its own sources, lists and cache, all in one directory.
pub struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// An apt that sees these suites of the Debian mirror that the system's apt uses, with fresh
    /// package lists.
    ///
    /// Errors: no apt, no Debian mirror or keyring on this machine, no network, a bad signature.
    pub fn open(dir: &Path, suites: &[&str]) -> Result<Apt> {
        Apt::open_for(dir, suites, "deb")
    }

    /// As [`Apt::open`], but sees the packages' sources.
    pub fn open_for_sources(dir: &Path, suites: &[&str]) -> Result<Apt> {
        Apt::open_for(dir, suites, "deb-src")
    }

    fn open_for(dir: &Path, suites: &[&str], kind: &str) -> Result<Apt> {
        for tool in ["apt-get", "apt-cache", "dpkg-deb"] {
            if command::find(tool).is_none() {
                bail!("this machine has no {tool} to fetch Debian packages with: {REMEDY}");
            }
        }
        if !Path::new(KEYRING).exists() {
            bail!("{KEYRING} is missing: install debian-archive-keyring, or {REMEDY}");
        }
        let apt = Apt { dir: dir.to_path_buf() };
        apt.configure()?;
        note(&format!("baton: reading Debian's package lists ({})", suites.join(", ")));
        let mut refused = anyhow!("apt on this machine knows no Debian mirror: {REMEDY}");
        for mirror in mirrors()? {
            apt.write("sources.list", &sources(&mirror, suites, kind))?;
            match apt.get().arg("update").run() {
                Ok(_) => return Ok(apt),
                Err(error) => {
                    refused = error.context("cannot fetch Debian's package lists");
                    baton_output::interrupt::check()?;
                }
            }
        }
        Err(refused)
    }

    /// Every version of a package that is on offer, in apt's order.
    pub fn versions(&self, package: &str) -> Result<Vec<String>> {
        Ok(madison(&self.cache().args(["madison", package]).run()?))
    }

    /// The packages that this version of a package depends on, alternatives included.
    pub fn depends(&self, package: &str, version: &str) -> Result<Vec<String>> {
        let name = format!("{package}={version}");
        Ok(dependencies(&self.cache().args(["show", &name]).run()?))
    }

    /// Fetches exactly these packages (`name=version`) and unpacks them into `root`.
    pub fn unpack(&self, packages: &[String], root: &Path) -> Result<()> {
        let debs = tempfile::tempdir_in(&self.dir).context("cannot write to the cache")?;
        let mut get = self.get();
        get.0.current_dir(debs.path());
        get.arg("download").args(packages).run()?;
        unpack_all(debs.path(), root)
    }

    /// Fetches these packages with everything that they depend on, from `suite` where it has them,
    /// and unpacks all into `root`.
    pub fn unpack_closure(&self, packages: &[&str], suite: &str, root: &Path) -> Result<()> {
        self.get()
            .args(["--target-release", suite])
            .args(["install", "--yes", "--download-only", "--no-install-recommends"])
            .args(packages)
            .run()?;
        let debs = self.dir.join("cache/archives");
        unpack_all(&debs, root)?;
        fs::remove_dir_all(&debs).with_context(|| format!("cannot remove {}", debs.display()))
    }

    /// Fetches the archive of this package's source, as its authors released it.
    pub fn source(&self, package: &str) -> Result<PathBuf> {
        let dir = self.dir.join("source");
        let _ = fs::remove_dir_all(&dir); // another version may be in it
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut get = self.get();
        get.0.current_dir(&dir);
        get.args(["source", "--tar-only", package]).run()?;
        let mut archives = fs::read_dir(&dir)
            .with_context(|| format!("cannot read {}", dir.display()))?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.to_string_lossy().contains(".orig.tar."));
        archives.next().with_context(|| format!("apt fetched no source of {package}"))
    }

    fn configure(&self) -> Result<()> {
        let dir = self.dir.to_str().filter(|dir| !dir.contains(['"', '\n']));
        let Some(dir) = dir else {
            bail!("apt cannot work in {}: name another with BATON_CACHE", self.dir.display());
        };
        for sub in ["state/lists/partial", "cache/archives/partial", "empty"] {
            let sub = self.dir.join(sub);
            fs::create_dir_all(&sub).with_context(|| format!("cannot make {}", sub.display()))?;
        }
        self.write("status", "")?;
        // The system's hooks could touch the system (container images remove their apt cache in
        // one). Without Error-Mode, apt-get update forgives a failed download. The sandbox user
        // could not write to the cache of root.
        self.write(
            "apt.conf",
            &format!(
                r#"#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::SourceList "{dir}/sources.list";
Dir::Etc::SourceParts "{dir}/empty";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "{dir}/empty";
Dir::State "{dir}/state";
Dir::State::status "{dir}/status";
Dir::Cache "{dir}/cache";
Dir::Cache::archives "archives";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
APT::Get::List-Cleanup "true";
"#
            ),
        )
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn get(&self) -> Call {
        self.call("apt-get")
    }

    fn cache(&self) -> Call {
        self.call("apt-cache")
    }

    fn call(&self, tool: &str) -> Call {
        let mut command = Command::new(tool);
        command.env("LC_ALL", "C").arg("-q").arg("-c").arg(self.dir.join("apt.conf"));
        Call(command)
    }
}

/// One call of apt, whose complaint becomes the error.
struct Call(Command);

impl Call {
    fn arg(mut self, arg: &str) -> Self {
        self.0.arg(arg);
        self
    }

    fn args<S: AsRef<std::ffi::OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.0.args(args);
        self
    }

    fn run(mut self) -> Result<String> {
        command::output(&mut self.0).map_err(|error| match error.downcast_ref::<Failed>() {
            Some(failed) => anyhow!(
                "{} (without a network and without a filled cache, {REMEDY})",
                complaint(&failed.said)
            ),
            None => error,
        })
    }
}

/// What apt complains about first; the lines after that are consequences.
fn complaint(said: &str) -> &str {
    said.lines()
        .find_map(|line| line.strip_prefix("E: ").or(line.strip_prefix("W: ")))
        .or(command::last_line(said))
        .unwrap_or("apt failed")
        .trim()
}

fn sources(mirror: &str, suites: &[&str], kind: &str) -> String {
    suites
        .iter()
        .map(|suite| format!("{kind} [signed-by={KEYRING}] {mirror} {suite} main\n"))
        .collect()
}

/// The addresses where the system's apt finds Debian, the surest first.
fn mirrors() -> Result<Vec<String>> {
    // The origin is known only once the system's lists were fetched. Without them every address
    // is tried: apt accepts none that Debian's keys did not sign.
    let list = |more: &[&str]| {
        command::output(
            Command::new("apt-get")
                .args(["indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(ORIGIN)"])
                .args(more),
        )
        .context("cannot ask apt for its mirror")
    };
    let mut found = addresses(&list(&[])?, |origin| origin == "Debian");
    if found.is_empty() {
        found = addresses(&list(&["--no-release-info"])?, |_| true);
    }
    Ok(found)
}

fn addresses(targets: &str, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for line in targets.lines() {
        let mut fields = line.split('|');
        let (Some(uri), Some(release), Some(origin)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        // The security archive is another one, and lacks the suites that we need.
        let known = found.iter().any(|other| other == uri);
        if wanted(origin) && !release.contains("-security") && !known {
            found.push(uri.to_string());
        }
    }
    found
}

fn madison(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| Some(line.split('|').nth(1)?.trim().to_string()))
        .filter(|version| !version.is_empty())
        .collect()
}

fn dependencies(show: &str) -> Vec<String> {
    show.lines()
        .filter_map(|line| line.strip_prefix("Depends: "))
        .flat_map(|line| line.split([',', '|']))
        .filter_map(|item| Some(item.split_whitespace().next()?.to_string()))
        .collect()
}

fn unpack_all(debs: &Path, root: &Path) -> Result<()> {
    let read = || format!("cannot read {}", debs.display());
    for entry in fs::read_dir(debs).with_context(read)? {
        let deb = entry.with_context(read)?.path();
        if deb.extension().is_some_and(|extension| extension == "deb") {
            command::output(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(root))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_archive_is_found() {
        let targets = "http://m/debian-security/|bookworm-security|Debian\n\
                       http://m/node/|nodistro|Node\n\
                       http://m/debian/|bookworm-updates|Debian\n\
                       http://m/debian/|bookworm|Debian\n";
        assert_eq!(addresses(targets, |origin| origin == "Debian"), ["http://m/debian/"]);
        let all = addresses(targets, |_| true);
        assert_eq!(all, ["http://m/node/", "http://m/debian/"]);
        assert!(addresses("nonsense\n\n", |_| true).is_empty());
    }

    #[test]
    fn apt_output_is_read() {
        let text = " linux-image-cloud-amd64 | 7.3.4-1~bpo13+1 | http://m/debian x/main amd64\n\
                    linux-image-cloud-amd64 |   7.2.13-1 | http://m/debian sid/main amd64\n";
        assert_eq!(madison(text), ["7.3.4-1~bpo13+1", "7.2.13-1"]);
        let text = "Package: p\nDepends: a (= 1), b | c (>= 2), d\nSize: 3\n";
        assert_eq!(dependencies(text), ["a", "b", "c", "d"]);
        let said = "W: Failed to fetch x  Could not resolve\nE: Some index files failed\n";
        assert_eq!(complaint(said), "Failed to fetch x  Could not resolve");
    }
}
