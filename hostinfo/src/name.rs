// SPDX-License-Identifier: GPL-2.0-only
//! What people call a VM.

use crate::Host;

/// Longer names are cut: whoever started the VM chose them, and they fill a terminal.
const LONGEST: usize = 64;

/// The name of the VM of process `pid`: as its command line has it (QEMU's `-name`, after Proxmox's
/// `-id` and a slash if there is one; Firecracker's `--id`; kvmtool's `--name`), as libvirt's files
/// have it, as its systemd unit's; else its process's, with the pid. KubeVirt's `NAMESPACE_NAME`
/// becomes `NAMESPACE/NAME`. Control characters are replaced.
pub fn name(host: &Host, pid: i32) -> String {
    let cgroup = host.read(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let known = by_command_line(&arguments(host, pid)).or_else(|| by_libvirt(host, pid));
    let known = match known {
        Some(name) if cgroup.contains("kubepods") => Some(name.replacen('_', "/", 1)),
        Some(name) => Some(name),
        None => by_unit(&cgroup),
    };
    let name = known.filter(|name| !name.is_empty()).unwrap_or_else(|| {
        let comm = host.read(&format!("/proc/{pid}/comm")).filter(|comm| !comm.is_empty());
        format!("{}-{pid}", comm.as_deref().unwrap_or("vm"))
    });
    name.chars().take(LONGEST).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A process may say that its command line is any part of its memory (`PR_SET_MM_MAP`). QEMU's are
/// some kilobytes.
const LONGEST_LINE: u64 = 1 << 20;
const MOST_ARGUMENTS: usize = 8192;

/// The command line of a process; empty if it has ended, or is a thread of the kernel.
pub fn arguments(host: &Host, pid: i32) -> Vec<String> {
    let text = host.read_start(&format!("/proc/{pid}/cmdline"), LONGEST_LINE).unwrap_or_default();
    text.split_terminator('\0').take(MOST_ARGUMENTS).map(str::to_owned).collect()
}

/// The value of an option, as in `-name x`, `--name x` or `--name=x`.
pub fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let mut arguments = arguments.iter().skip(1);
    while let Some(argument) = arguments.next() {
        let Some(word) = argument.strip_prefix('-') else { continue };
        let word = word.strip_prefix('-').unwrap_or(word);
        if word == name {
            return arguments.next().map(String::as_str);
        }
        if let Some(value) = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value);
        }
    }
    None
}

/// The parts of a value of QEMU's, `a,key=b,,c`, in which two commas are one of the value.
pub fn parts(value: &str) -> Vec<String> {
    const COMMA: &str = "\u{0}";
    value.replace(",,", COMMA).split(',').map(|part| part.replace(COMMA, ",")).collect()
}

/// `/run/libvirt/qemu/NAME.pid`, which libvirt writes beside its status files.
fn by_libvirt(host: &Host, pid: i32) -> Option<String> {
    let directory = "/run/libvirt/qemu";
    let is_its = |file: &&String| {
        file.strip_suffix(".pid").is_some_and(|_| {
            host.read(&format!("{directory}/{file}")).is_some_and(|text| text.parse() == Ok(pid))
        })
    };
    let files = host.list(directory);
    let file = files.iter().find(is_its)?;
    file.strip_suffix(".pid").map(str::to_owned)
}

fn by_command_line(arguments: &[String]) -> Option<String> {
    let id = option(arguments, "id").map(str::to_owned);
    let name = option(arguments, "name").map(|value| {
        let parts = parts(value);
        let key = parts.iter().find_map(|part| part.strip_prefix("guest="));
        let first = parts.first().filter(|part| !part.contains('='));
        key.or(first.map(String::as_str)).unwrap_or_default().to_owned()
    });
    match (id, name.filter(|name| !name.is_empty())) {
        (Some(id), Some(name)) => Some(format!("{id}/{name}")),
        (id, name) => name.or(id),
    }
}

/// The unit nearest to the process that is its own: `machine-qemu\x2d7\x2dweb.scope` is `web`.
fn by_unit(cgroup: &str) -> Option<String> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let unit = path.rsplit('/').find_map(|part| {
        let unit = part.strip_suffix(".scope").or_else(|| part.strip_suffix(".service"))?;
        // Whatever somebody starts at a terminal is in these.
        let shared = ["session-", "user@", "init", "app-", "run-"];
        (!shared.iter().any(|shared| unit.starts_with(shared))).then_some(unit)
    })?;
    let unit = unescaped(unit);
    let Some(machine) = unit.strip_prefix("machine-qemu-") else { return Some(unit) };
    // libvirt numbers its machines.
    let numbered = machine.split_once('-').filter(|(number, _)| number.parse::<u32>().is_ok());
    Some(numbered.map_or(machine, |(_, name)| name).to_owned())
}

/// `\x2d` as `-`: see systemd-escape(1).
fn unescaped(unit: &str) -> String {
    let mut bytes = Vec::with_capacity(unit.len());
    let mut rest = unit;
    while let Some(at) = rest.find("\\x") {
        let code = rest.get(at + 2..at + 4).and_then(|code| u8::from_str_radix(code, 16).ok());
        let Some(code) = code else { break };
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        bytes.push(code);
        rest = &rest[at + 4..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Result;

    /// The name of a process with this command line and cgroup.
    fn named(arguments: &[&str], cgroup: &str) -> Result<String> {
        let root = tempfile::tempdir()?;
        let process = root.path().join("proc/7");
        fs::create_dir_all(&process)?;
        fs::write(process.join("cmdline"), arguments.join("\0") + "\0")?;
        fs::write(process.join("cgroup"), format!("0::{cgroup}\n"))?;
        fs::write(process.join("comm"), "vmm\n")?;
        Ok(name(&Host::at(root.path()), 7))
    }

    #[test]
    fn command_lines_of_vmms_are_read() -> Result<()> {
        let libvirt = ["qemu-system-x86_64", "-name", "guest=web-03,debug-threads=on", "-S"];
        assert_eq!(named(&libvirt, "/")?, "web-03");
        assert_eq!(named(&["qemu", "-name", "guest=a,,b"], "/")?, "a,b");
        assert_eq!(named(&["qemu", "-name", "plain,process=x"], "/")?, "plain");
        let proxmox = ["/usr/bin/kvm", "-id", "100", "-name", "mail,debug-threads=on"];
        assert_eq!(named(&proxmox, "/qemu.slice/100.scope")?, "100/mail");
        assert_eq!(named(&["firecracker", "--id", "f-1", "--api-sock", "s"], "/")?, "f-1");
        assert_eq!(named(&["lkvm", "run", "--name=k"], "/")?, "k");
        let pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice/x.scope";
        assert_eq!(named(&["qemu-kvm", "-name", "guest=shop_db_1"], pod)?, "shop/db_1");
        Ok(())
    }

    /// Whoever is told the name asks as root, and any process may say that gigabytes are its own.
    #[test]
    fn a_command_line_costs_a_megabyte_at_most() -> Result<()> {
        let root = tempfile::tempdir()?;
        fs::create_dir_all(root.path().join("proc/7"))?;
        fs::write(root.path().join("proc/7/cmdline"), vec![0; 4 << 20])?;
        let host = Host::at(root.path());
        assert!(arguments(&host, 7).len() <= MOST_ARGUMENTS);
        fs::write(root.path().join("proc/7/cmdline"), vec![b'x'; 4 << 20])?;
        assert_eq!(arguments(&host, 7), ["x".repeat(1 << 20)]);
        Ok(())
    }

    #[test]
    fn units_and_processes_name_the_rest() -> Result<()> {
        let scope = r"/machine.slice/machine-qemu\x2d7\x2dpg\x2dprimary.scope/libvirt/vcpu0";
        assert_eq!(named(&["qemu"], scope)?, "pg-primary");
        assert_eq!(named(&["vmm"], "/system.slice/fc@web.service")?, "fc@web");
        assert_eq!(named(&["vmm"], "/user.slice/user-0.slice/session-1.scope")?, "vmm-7");
        assert_eq!(named(&[], "/")?, "vmm-7");
        Ok(())
    }

    #[test]
    fn names_do_no_harm_to_a_terminal() -> Result<()> {
        assert_eq!(named(&["qemu", "-name", "a\x1b[2Jb"], "/")?, "a?[2Jb");
        assert_eq!(named(&["qemu", "-name", &"x".repeat(1000)], "/")?.len(), LONGEST);
        // An option without its value, an empty one, an escape that is cut off.
        assert_eq!(named(&["qemu", "-name"], "/")?, "vmm-7");
        assert_eq!(named(&["qemu", "-name", ""], "/")?, "vmm-7");
        assert_eq!(named(&["vmm"], r"/a\x2.scope")?, r"a\x2");
        assert_eq!(named(&["vmm"], r"/é\x2dé\xzz.scope")?, r"é-é\xzz");
        Ok(())
    }

    #[test]
    fn libvirts_files_tell_where_no_command_line_does() -> Result<()> {
        let root = tempfile::tempdir()?;
        let run = root.path().join("run/libvirt/qemu");
        fs::create_dir_all(&run)?;
        fs::write(run.join("other.pid"), "8")?;
        fs::write(run.join("shop.pid"), "7\n")?;
        fs::write(run.join("broken.pid"), "x")?;
        assert_eq!(name(&Host::at(root.path()), 7), "shop");
        assert_eq!(name(&Host::at(root.path()), 9), "vm-9");
        Ok(())
    }
}
