// SPDX-License-Identifier: GPL-2.0-only
//! A parallel build: many short processes that start, compute and end.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result};
use baton_testbed::plan::Measured;

/// Where the sources lie; the root file system is in memory, so nothing waits for a disk.
const DIR: &str = "/tmp/baton-build";

/// Several for each of two to four vCPUs, so that all work nearly to the end.
const FILES: u32 = 12;

/// Of each file: a build takes about 0.4 s in an emulated guest that has the host for itself.
const FUNCTIONS: u32 = 60;

pub fn run(time: Duration) -> Result<Measured> {
    write_sources(Path::new(DIR)).with_context(|| format!("cannot write {DIR}"))?;
    let jobs = available_parallelism().context("cannot tell how many CPUs there are")?;
    // Everything again, with as many jobs as people give to make.
    let command = ["make", "--silent", "--always-make", "-C", DIR, &format!("-j{jobs}")];
    super::repeat::run(time, &command.map(String::from), "builds/s")
}

fn write_sources(dir: &Path) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut makefile = String::from("all:");
    for file in 0..FILES {
        let _ = write!(makefile, " {file}.o");
        fs::write(dir.join(format!("{file}.c")), source(file))?;
    }
    makefile.push_str("\n%.o: %.c\n\ttcc -nostdinc -c -o $@ $<\n");
    fs::write(dir.join("Makefile"), makefile)
}

/// C that needs no header: functions that call those before them.
fn source(file: u32) -> String {
    let mut text = format!("static unsigned f0(unsigned x) {{ return x + {file}; }}\n");
    for n in 1..=FUNCTIONS {
        let _ = write!(
            text,
            "struct s{n} {{ unsigned a, b[{n}]; struct s{n} *next; }};\n\
             static unsigned f{n}(unsigned x)\n{{\n\
             \tstruct s{n} s = {{ x, {{ {n} }} }};\n\
             \tfor (unsigned i = 0; i < {n}; i++) {{\n\
             \t\tif (x & 1 << i % 32)\n\t\t\ts.b[i] += f{before}(x >> 1) * {file}u;\n\
             \t\telse\n\t\t\ts.a ^= s.b[i] + (x << {shift});\n\
             \t}}\n\treturn s.a + s.b[x % {n}];\n}}\n",
            before = n - 1,
            shift = n % 31,
        );
    }
    let _ = writeln!(text, "unsigned file{file}(unsigned x) {{ return f{FUNCTIONS}(x); }}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_complete() {
        let dir = tempfile::tempdir().unwrap();
        write_sources(dir.path()).unwrap();
        let makefile = fs::read_to_string(dir.path().join("Makefile")).unwrap();
        for file in 0..FILES {
            assert!(makefile.contains(&format!(" {file}.o")));
            let text = fs::read_to_string(dir.path().join(format!("{file}.c"))).unwrap();
            assert_eq!(text.matches('{').count(), text.matches('}').count());
        }
    }
}
