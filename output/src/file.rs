// SPDX-License-Identifier: GPL-2.0-only
//! Files that a command is told to write.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::{Gid, Uid, fchown};
use tempfile::NamedTempFile;

/// `MAXSYMLINKS` of Linux.
const MOST_LINKS: usize = 40;

/// A file that a command will write, found writable before the work that fills it.
#[derive(Debug)]
pub struct OutFile {
    /// As the user wrote it.
    name: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A regular file, or none yet, at this path behind all links. A new file takes its place.
    Replaced(PathBuf),
    /// A regular file that no other one can replace (its directory is read-only, it is a mount
    /// point, it was named by its descriptor): written in place.
    InPlace(File),
    /// A device, a FIFO, a pipe, or the command's own standard output: written once. It stays open
    /// from the start on, since the reader of a FIFO takes a writer that closes it for the end.
    Stream(File),
}

/// Opens the files of several options: `("--json", Some(path))`. A FIFO is waited for, as by a
/// shell's redirection.
///
/// Errors: one that cannot be written, two that are the same file, one that is also an input
/// (`("the scenario", path)`).
pub fn open_all<const N: usize>(
    wanted: [(&str, Option<&Path>); N],
    inputs: &[(&str, &Path)],
) -> Result<[Option<OutFile>; N]> {
    for (place, (option, path)) in wanted.iter().enumerate() {
        let Some(path) = path else { continue };
        for (other, earlier) in &wanted[..place] {
            if earlier.is_some_and(|earlier| same_file(earlier, path)) {
                bail!("{other} and {option} name the same file, {}", path.display());
            }
        }
        if let Some((what, _)) = inputs.iter().find(|(_, input)| same_file(input, path)) {
            bail!("{option} {} would overwrite {what}; name another file", path.display());
        }
    }
    let mut opened = [const { None }; N];
    for (slot, (_, path)) in opened.iter_mut().zip(wanted) {
        *slot = path.map(OutFile::open).transpose()?;
    }
    Ok(opened)
}

/// Whether two paths lead to one file, also one that does not exist yet.
pub fn same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => same(&a, &b),
        (Err(_), Err(_)) => {
            let (a, b) = (behind_links(a), behind_links(b));
            a.is_ok_and(|a| b.is_ok_and(|b| a == b))
        }
        _ => false,
    }
}

/// Makes a directory for several files, if it is not there.
///
/// Errors: it cannot be made, or no file can be made in it.
pub fn directory(path: &Path) -> Result<()> {
    let usable = || -> Result<()> {
        ensure!(!path.exists() || path.is_dir(), "it is no directory");
        fs::create_dir_all(path)?;
        Ok(tempfile::tempfile_in(path).map(drop)?)
    };
    usable().with_context(|| format!("cannot write into the directory {}", path.display()))
}

impl OutFile {
    /// Errors: a directory or a block device, no permission, no such directory.
    pub fn open(path: &Path) -> Result<OutFile> {
        let kind = kind(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(OutFile { name: path.into(), kind })
    }

    /// What is known so far, for files that may be written again; others wait for
    /// [`finish`](Self::finish).
    ///
    /// Errors: it cannot be written; a file that would have been replaced is as it was.
    pub fn keep(&self, text: &str) -> Result<()> {
        if matches!(self.kind, Kind::Stream(_)) { Ok(()) } else { self.finish(text) }
    }

    /// Writes all of it. Who reads a replaced file meanwhile sees the old one or the new one.
    ///
    /// Errors: as [`keep`](Self::keep).
    pub fn finish(&self, text: &str) -> Result<()> {
        let mut draft = self.draft()?;
        let written = draft.write_all(text.as_bytes()).and_then(|()| draft.flush());
        written.with_context(|| format!("cannot write {}", self.name.display()))?;
        draft.commit()
    }

    /// To write piece by piece. Dropped without [`Draft::commit`], a file that would have been
    /// replaced is as it was.
    ///
    /// Errors: as [`keep`](Self::keep).
    pub fn draft(&self) -> Result<Draft> {
        let to = match &self.kind {
            Kind::Replaced(real) => beside(real).map(|new| To::New(new, real.clone())),
            Kind::InPlace(file) => file
                .try_clone()
                .and_then(|mut file| {
                    file.set_len(0)?;
                    file.rewind()?;
                    Ok(file)
                })
                .map(To::Open),
            Kind::Stream(file) => file.try_clone().map(To::Open),
        };
        let to = to.with_context(|| format!("cannot write {}", self.name.display()))?;
        Ok(Draft { name: self.name.clone(), to: BufWriter::new(to) })
    }
}

/// A file in the making.
#[derive(Debug)]
pub struct Draft {
    name: PathBuf,
    to: BufWriter<To>,
}

#[derive(Debug)]
enum To {
    New(NamedTempFile, PathBuf),
    Open(File),
}

impl Draft {
    /// What another process can open to write this instead of us, as long as we hold it: to append.
    pub fn path_for_others(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        let fd = match self.to.get_ref() {
            To::New(file, _) => file.as_file().as_raw_fd(),
            To::Open(file) => file.as_raw_fd(),
        };
        format!("/proc/{}/fd/{fd}", std::process::id()).into()
    }

    /// From now on the file has this content.
    ///
    /// Errors: it cannot be written; a file that would have been replaced is as it was.
    pub fn commit(self) -> Result<()> {
        let Draft { name, mut to } = self;
        let to = to.flush().and_then(|()| to.into_inner().map_err(io::IntoInnerError::into_error));
        let done = to.and_then(|to| match to {
            To::New(file, real) => file.persist(real).map(drop).map_err(|error| error.error),
            To::Open(_) => Ok(()),
        });
        done.with_context(|| format!("cannot write {}", name.display()))
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Write for To {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            To::New(file, _) => file.as_file_mut().write(bytes),
            To::Open(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            // To the disk: if the host hangs then, as in a trial, it would be empty in its place.
            To::New(file, _) => file.as_file().sync_all(),
            To::Open(file) => file.flush(),
        }
    }
}

fn same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

fn kind(path: &Path) -> Result<Kind> {
    // Elsewhere that is standard output, where tables go here.
    ensure!(path != Path::new("-"), "write /dev/stdout, or ./- for a file of that name");
    let meta = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let real = behind_links(path)?;
            drop(beside(&real)?);
            return Ok(Kind::Replaced(real));
        }
        result => result?,
    };
    ensure!(!meta.is_dir(), "it is a directory");
    ensure!(!meta.file_type().is_block_device(), "it is a block device");
    // Renamed over, what the shell has redirected there would be lost; opened again, overwritten.
    if let Some(own) = own_output(&meta)? {
        return Ok(Kind::Stream(own));
    }
    let file = OpenOptions::new().write(true).open(path)?;
    if !meta.is_file() {
        return Ok(Kind::Stream(file));
    }
    let real = fs::canonicalize(path).ok().filter(|real| !of_descriptor(path) && real.is_file());
    let Some(real) = real else { return Ok(Kind::InPlace(file)) };
    match beside(&real) {
        Ok(_) => {}
        Err(error) if refused(&error) => return Ok(Kind::InPlace(file)),
        Err(error) => return Err(error.into()),
    }
    // A file that is mounted by itself, as containers do, cannot be renamed over.
    let parent = real.parent().and_then(|parent| fs::metadata(parent).ok());
    if parent.is_some_and(|parent| parent.dev() != meta.dev()) || mounted(&real) {
        return Ok(Kind::InPlace(file));
    }
    Ok(Kind::Replaced(real))
}

fn refused(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

fn of_descriptor(path: &Path) -> bool {
    path.starts_with("/dev/fd") || path.starts_with("/proc")
}

/// Whether a file system is mounted exactly there (proc(5): the fifth word is the mount point, with
/// blanks as `\040`).
fn mounted(real: &Path) -> bool {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let escaped: Vec<u8> = real
        .as_os_str()
        .as_bytes()
        .iter()
        .flat_map(|byte| match byte {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
            byte => vec![*byte],
        })
        .collect();
    let points = table.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
    points.into_iter().any(|mut words| words.nth(4) == Some(&escaped[..]))
}

/// Our own standard output or standard error, if it is this file.
fn own_output(meta: &Metadata) -> io::Result<Option<File>> {
    for own in [io::stdout().as_fd(), io::stderr().as_fd()] {
        let own = File::from(own.try_clone_to_owned()?);
        if own.metadata().is_ok_and(|own| same(&own, meta)) {
            return Ok(Some(own));
        }
    }
    Ok(None)
}

/// Where a path leads, if there is no file yet: links are followed, the directory must exist.
fn behind_links(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        if let Ok(target) = fs::read_link(&path) {
            path = path.parent().unwrap_or(Path::new("")).join(target);
            continue;
        }
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let name = name.context("it names a directory")?;
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let parent = fs::canonicalize(parent.unwrap_or(Path::new(".")))?;
        return Ok(parent.join(name));
    }
    bail!("too many symbolic links")
}

/// A new file beside another one, with that one's owner and permissions.
fn beside(real: &Path) -> io::Result<NamedTempFile> {
    let directory = real.parent().unwrap_or(Path::new("/"));
    let mut prefix = OsStr::new(".").to_os_string();
    prefix.push(real.file_name().unwrap_or_default());
    // A name has at most 255 bytes.
    let prefix = OsStr::from_bytes(&prefix.as_bytes()[..prefix.len().min(200)]);
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).suffix(".part");
    let Ok(old) = fs::metadata(real) else {
        // What the mask leaves of it, as for any new file.
        return builder.permissions(Permissions::from_mode(0o666)).tempfile_in(directory);
    };
    let new = builder.tempfile_in(directory)?;
    // Only root may give files away; for others the new one is their own.
    let (uid, gid) = (Uid::from_raw(old.uid()), Gid::from_raw(old.gid()));
    let _ = fchown(new.as_file(), Some(uid), Some(gid));
    new.as_file().set_permissions(Permissions::from_mode(old.mode() & 0o777))?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;
    use std::thread;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use tempfile::{TempDir, tempdir};

    use super::*;

    fn write(path: &Path, text: &str) -> Result<()> {
        OutFile::open(path)?.finish(text)
    }

    fn content(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    fn names(dir: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_earlier_result_stays_until_there_is_a_new_one() {
        let dir = tempdir().unwrap();
        let file = dir.path().join("result.json");
        write(&file, "old").unwrap();
        let out = OutFile::open(&file).unwrap();
        assert_eq!(content(&file), "old");
        out.keep("half").unwrap();
        out.finish("new").unwrap();
        assert_eq!((content(&file), names(&dir)), ("new".into(), vec!["result.json".into()]));
    }

    #[test]
    fn a_draft_that_is_dropped_leaves_nothing_and_destroys_nothing() {
        let dir = tempdir().unwrap();
        for (name, before) in [("a", Some("old")), ("b", None)] {
            let file = dir.path().join(name);
            if let Some(text) = before {
                fs::write(&file, text).unwrap();
            }
            let mut draft = OutFile::open(&file).unwrap().draft().unwrap();
            draft.write_all(b"half").unwrap();
            draft.flush().unwrap();
            drop(draft);
            assert_eq!(fs::read_to_string(&file).ok().as_deref(), before);
        }
        assert_eq!(names(&dir), ["a"]);
    }

    #[test]
    fn a_device_is_written_and_stays_a_device() {
        let dir = tempdir().unwrap();
        let link = dir.path().join("null");
        symlink("/dev/null", &link).unwrap();
        for path in [Path::new("/dev/null"), &link] {
            write(path, "text").unwrap();
            assert!(fs::metadata(path).unwrap().file_type().is_char_device());
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let full = write(Path::new("/dev/full"), "text").unwrap_err();
        assert!(format!("{full:#}").contains("No space left"), "{full:#}");
    }

    #[test]
    fn symbolic_links_are_followed_also_to_what_is_not_there_yet() {
        let dir = tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        symlink("sub/new", at("to-new")).unwrap();
        symlink("to-new", at("to-link")).unwrap();
        for text in ["first", "second"] {
            write(&at("to-link"), text).unwrap();
            assert_eq!(content(&at("sub/new")), text);
            assert!(fs::symlink_metadata(at("to-link")).unwrap().is_symlink());
        }
        symlink("loop", at("loop")).unwrap();
        assert!(write(&at("loop"), "").is_err());
    }

    #[test]
    fn a_fifo_is_written_once_and_its_reader_sees_one_text() {
        let dir = tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let reader = {
            let fifo = fifo.clone();
            thread::spawn(move || content(&fifo))
        };
        let out = OutFile::open(&fifo).unwrap();
        out.keep("so far").unwrap();
        out.finish("all").unwrap();
        drop(out);
        assert_eq!(reader.join().unwrap(), "all");
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    }

    /// As bash's `>(…)`.
    #[test]
    fn a_pipe_named_by_its_descriptor_is_written() {
        let (mut reader, writer) = io::pipe().unwrap();
        write(Path::new(&format!("/dev/fd/{}", writer.as_raw_fd())), "text").unwrap();
        drop(writer);
        assert_eq!(io::read_to_string(&mut reader).unwrap(), "text");
    }

    #[test]
    fn a_file_named_by_its_descriptor_is_written_in_place() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "a longer text").unwrap();
        let open = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        write(Path::new(&format!("/proc/self/fd/{}", open.as_raw_fd())), "new").unwrap();
        assert_eq!(io::read_to_string(open).unwrap(), "new");
    }

    #[test]
    fn files_of_the_user_with_similar_names_stay() {
        let dir = tempdir().unwrap();
        let mine = dir.path().join("result.json.part");
        fs::write(&mine, "mine").unwrap();
        write(&dir.path().join("result.json"), "new").unwrap();
        assert_eq!(content(&mine), "mine");
    }

    #[test]
    fn permissions_stay_and_a_new_file_has_the_usual_ones() {
        let dir = tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::write(&old, "").unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o640)).unwrap();
        let usual = dir.path().join("usual");
        fs::write(&usual, "").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        write(&old, "x").unwrap();
        write(&new, "x").unwrap();
        assert_eq!((mode(&old), mode(&new)), (0o640, mode(&usual)));
    }

    #[test]
    fn what_cannot_be_a_file_is_refused_before_the_work() {
        let dir = tempdir().unwrap();
        let missing = dir.path().join("no/such");
        let slash = format!("{}/file/", dir.path().display());
        for path in [dir.path(), &missing, Path::new(&slash), Path::new("")] {
            assert!(OutFile::open(path).is_err(), "{}", path.display());
        }
        assert!(names(&dir).is_empty());
        let sub = dir.path().join("a/b");
        directory(&sub).unwrap();
        assert!(sub.is_dir() && directory(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn two_outputs_in_one_file_and_outputs_over_inputs_are_refused() {
        let dir = tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("input"), "input").unwrap();
        fs::hard_link(at("input"), at("twin")).unwrap();
        symlink("new", at("to-new")).unwrap();
        let (new, link, twin, input) = (at("new"), at("to-new"), at("twin"), at("input"));
        let open = |a: &Path, b: &Path| {
            open_all([("--json", Some(a)), ("--csv", Some(b))], &[("the scenario", &input)])
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        for same in [&new, &link, &dir.path().join("./new")] {
            let error = open(&new, same).unwrap_err();
            assert!(error.contains("--json and --csv name the same file"), "{error}");
        }
        for over in [&input, &twin] {
            let error = open(&new, over).unwrap_err();
            assert!(error.contains("would overwrite the scenario"), "{error}");
        }
        open(&new, &at("other")).unwrap();
        assert_eq!(content(&input), "input");
    }
}
