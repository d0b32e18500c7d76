// SPDX-License-Identifier: GPL-2.0-only
//! Which loader and which shared libraries a program needs, so that it runs elsewhere too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;

/// A program with everything that it is linked against.
pub struct Program {
    pub file: PathBuf,
    /// The dynamic loader; none for a static program.
    pub loader: Option<PathBuf>,
    /// Shared libraries, where they are on this machine.
    pub libs: Vec<PathBuf>,
}

impl Program {
    /// As this machine's own loader resolves it.
    ///
    /// Errors: not an x86-64 ELF file, or a library that is not there.
    pub fn of_this_machine(file: &Path) -> Result<Program> {
        match interpreter(file)? {
            None => Ok(Program { file: file.to_path_buf(), loader: None, libs: Vec::new() }),
            Some(loader) => {
                let mut list = Command::new(&loader);
                list.arg("--list").arg(file);
                Program::resolve(file, loader, &mut list)
            }
        }
    }

    /// As the given loader resolves it, with libraries from one directory.
    pub fn with_libraries(file: &Path, loader: &Path, dir: &Path) -> Result<Program> {
        let mut list = Command::new(loader);
        list.arg("--library-path").arg(dir).arg("--list").arg(file);
        Program::resolve(file, loader.to_path_buf(), &mut list)
    }

    fn resolve(file: &Path, loader: PathBuf, list: &mut Command) -> Result<Program> {
        let text = command::output(list.env_remove("LD_PRELOAD"))
            .with_context(|| format!("cannot list the libraries of {}", file.display()))?;
        let libs = libraries(&text)
            .with_context(|| format!("{} cannot run on this machine", file.display()))?;
        Ok(Program { file: file.to_path_buf(), loader: Some(loader), libs })
    }
}

/// Reads what a loader's `--list` prints.
fn libraries(list: &str) -> Result<Vec<PathBuf>> {
    let mut libs = Vec::new();
    for line in list.lines() {
        // "name => path (address)"; without an arrow it is the vDSO or the loader itself.
        let Some((name, target)) = line.trim().split_once(" => ") else { continue };
        if target.starts_with("not found") {
            bail!("its library {name} is missing: install the package that has it");
        }
        let path = target.rsplit_once(" (").map_or(target, |(path, _)| path);
        if !name.starts_with('/') {
            libs.push(PathBuf::from(path));
        }
    }
    Ok(libs)
}

/// The program without what is never loaded: symbols and debug information, which are nine tenths
/// of a Rust program and which an emulated machine would have to copy.
///
/// Errors: not an x86-64 ELF file.
pub fn loaded_part(file: &Path) -> Result<Vec<u8>> {
    let mut bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let headers = program_headers(file, &bytes)?;
    let ends = headers.iter().map(|header| header.offset.saturating_add(header.size));
    let end = ends.max().unwrap_or(0).max(HEADER_SIZE);
    if end < bytes.len() {
        bytes.truncate(end);
        // The section table is gone: e_shoff, and e_shnum with e_shstrndx.
        bytes[40..48].fill(0);
        bytes[60..64].fill(0);
    }
    Ok(bytes)
}

/// The PT_INTERP, if the program is dynamic.
fn interpreter(file: &Path) -> Result<Option<PathBuf>> {
    const PT_INTERP: u32 = 3;
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let headers = program_headers(file, &bytes)?;
    let Some(header) = headers.iter().find(|header| header.kind == PT_INTERP) else {
        return Ok(None);
    };
    let path = bytes.get(header.offset..).unwrap_or_default();
    let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(Some(PathBuf::from(String::from_utf8_lossy(path).into_owned())))
}

const HEADER_SIZE: usize = 64;

/// One program header: its type, and its bytes in the file.
struct ProgramHeader {
    kind: u32,
    offset: usize,
    size: usize,
}

/// The program headers of a 64-bit little-endian x86 ELF file (System V ABI, chapters 4 and 5).
fn program_headers(file: &Path, bytes: &[u8]) -> Result<Vec<ProgramHeader>> {
    // Magic, 64-bit, little endian; machine EM_X86_64 = 62.
    let ours =
        bytes.len() >= HEADER_SIZE && bytes[..6] == *b"\x7fELF\x02\x01" && bytes[18..20] == [62, 0];
    if !ours {
        bail!("{} is not an x86-64 program", file.display());
    }
    let (table, size, count) = (number(bytes, 32, 8), number(bytes, 54, 2), number(bytes, 56, 2));
    let entry = |index: usize| {
        let start = table.checked_add(index * size)?;
        let entry = bytes.get(start..start.checked_add(56)?)?;
        Some(ProgramHeader {
            kind: number(entry, 0, 4) as u32,
            offset: number(entry, 8, 8),
            size: number(entry, 32, 8),
        })
    };
    (0..count)
        .map(entry)
        .collect::<Option<_>>()
        .with_context(|| format!("{} is cut off", file.display()))
}

/// A little-endian number of `width` bytes.
fn number(bytes: &[u8], at: usize, width: usize) -> usize {
    bytes[at..at + width].iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_output_is_read() {
        let list = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/a b/libc.so.6 (0x2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 => /x/ld-linux-x86-64.so.2 (0x3)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        assert_eq!(libraries(list).unwrap(), [PathBuf::from("/lib/a b/libc.so.6")]);
        let error = libraries("\tlibx.so => not found\n").unwrap_err();
        assert!(error.to_string().contains("libx.so"));
    }

    #[test]
    fn this_program_is_dynamic() {
        let us = Program::of_this_machine(&std::env::current_exe().unwrap()).unwrap();
        assert!(us.loader.is_some_and(|loader| loader.exists()));
        assert!(us.libs.iter().all(|lib| lib.exists()));
    }

    #[test]
    fn the_loaded_part_still_runs() {
        let us = std::env::current_exe().unwrap();
        let part = loaded_part(&us).unwrap();
        assert!(part.len() < fs::metadata(&us).unwrap().len() as usize);
        let copy = tempfile::NamedTempFile::new().unwrap();
        fs::write(copy.path(), part).unwrap();
        // By the loader: to execute a file that was just written fails while another thread's
        // child still has it open.
        let loader = interpreter(&us).unwrap().unwrap();
        let list = command::output(Command::new(loader).arg(copy.path()).arg("--list"));
        assert!(list.unwrap().contains("still_runs"));
    }

    #[test]
    fn other_files_are_refused() {
        assert!(interpreter(Path::new("/proc/self/status")).is_err());
        assert!(interpreter(Path::new("/no/such/file")).is_err());
        assert!(program_headers(Path::new("x"), b"\x7fELF\x02\x01").is_err());
    }
}
