// SPDX-License-Identifier: GPL-2.0-only
//! Man pages and completions from a parser. The parsers are in the programs, so a test of each
//! program calls [`write_all`]; the programs that are installed have nothing of this.

use std::env;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Roff, roman};

/// The directory that 'make install' wants them in; a test that is run without it writes them to a
/// temporary one.
const WANTED: &str = "BATON_MANUALS";

/// Writes a page for the program and for each of its subcommands, and completions for the shells.
///
/// Errors: a file cannot be written.
pub fn write_all(program: Command, section: u8, see_also: &str) -> Result<()> {
    match env::var_os(WANTED) {
        Some(directory) => write_into(program, section, see_also, Path::new(&directory)),
        None => write_into(program, section, see_also, tempfile::tempdir()?.path()),
    }
}

fn write_into(mut program: Command, section: u8, see_also: &str, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let name = program.get_name().to_owned();
    let mut documented = program.clone().disable_help_subcommand(true);
    documented.build();
    pages(&documented, section, see_also, directory)?;
    for &shell in Shell::value_variants() {
        if matches!(shell, Shell::Bash | Shell::Zsh | Shell::Fish) {
            clap_complete::generate_to(shell, &mut program, &name, directory)
                .with_context(|| format!("cannot write completions for {shell}"))?;
        }
    }
    Ok(())
}

fn pages(command: &Command, section: u8, see_also: &str, directory: &Path) -> Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages(inner, section, see_also, directory)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let file = directory.join(format!("{name}.{section}"));
    let text = page(command, section, see_also)?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn page(command: &Command, section: u8, see_also: &str) -> Result<Vec<u8>> {
    let man = Man::new(command.clone()).section(section.to_string());
    let name = command.get_display_name().unwrap_or(command.get_name());
    // Without a date, so that the same source gives the same page; Roff leaves out what is empty.
    let title =
        format!(".TH {name} {section} \"\" \"Baton {}\" Baton\n", env!("CARGO_PKG_VERSION"));
    let mut text = title.into_bytes();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let about = about.strip_prefix(&format!("{name}: ")).unwrap_or(&about);
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {about}"))]);
    roff.to_writer(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    if let Some(help) = command.get_after_long_help().or(command.get_after_help()) {
        after_help(&mut roff, &help.to_string());
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(see_also)]);
    roff.to_writer(&mut text)?;
    Ok(text)
}

const EXIT_STATUS: &str = "Exit status: ";

/// The text below the options: paragraphs, and tables, whose lines stay as they are.
fn after_help(roff: &mut Roff, help: &str) {
    let (exit, notes): (Vec<&str>, Vec<&str>) =
        help.split("\n\n").partition(|paragraph| paragraph.starts_with(EXIT_STATUS));
    for (place, paragraph) in notes.into_iter().enumerate() {
        match place {
            0 => roff.control("SH", ["NOTES"]),
            _ => roff.control("PP", []),
        };
        if paragraph.lines().any(|line| line.trim_end().contains("  ")) {
            roff.control("nf", []);
            for line in paragraph.lines() {
                roff.text([roman(line)]);
            }
            roff.control("fi", []);
        } else {
            roff.text([roman(paragraph)]);
        }
    }
    for paragraph in exit {
        roff.control("SH", ["EXIT STATUS"]);
        roff.text([roman(paragraph.trim_start_matches(EXIT_STATUS))]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn each_command_has_a_page_and_each_shell_completions() -> Result<()> {
        let program = Command::new("tool")
            .about("tool: does things")
            .after_help("Columns:\n  a    first\n  b    second\n\nExit status: 0; 1 if not.")
            .subcommand(Command::new("part").subcommand(
                Command::new("small").arg(Arg::new("what").long("what").help("Which one")),
            ));
        let directory = tempfile::tempdir()?;
        write_into(program, 8, "other(1)", directory.path())?;
        let mut names: Vec<_> = fs::read_dir(directory.path())?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        names.sort();
        let expected =
            ["_tool", "tool-part-small.8", "tool-part.8", "tool.8", "tool.bash", "tool.fish"];
        assert_eq!(names, expected);
        let page = fs::read_to_string(directory.path().join("tool.8"))?;
        assert!(page.contains(".SH NAME\ntool \\- does things\n"), "{page}");
        assert!(page.contains(".nf\nColumns:\n  a    first\n  b    second\n.fi\n"), "{page}");
        assert!(page.contains(".SH \"EXIT STATUS\"\n0; 1 if not.\n"), "{page}");
        assert!(page.contains(".SH \"SEE ALSO\"\nother(1)\n"), "{page}");
        let page = fs::read_to_string(directory.path().join("tool-part-small.8"))?;
        assert!(page.contains("\\-\\-what"), "{page}");
        Ok(())
    }
}
