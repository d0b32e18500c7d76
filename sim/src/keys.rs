// SPDX-License-Identifier: GPL-2.0-only
//! TOML of scenarios and machines: keys that are set on the command line, and errors that say where
//! the mistake is.

use std::fmt;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// A key's path and its value, as `--set` gives them: `vm.0.vcpus`, `8`.
pub type Change = (String, String);

/// A key whose value is not possible, and what it must be.
#[derive(Debug)]
pub struct Wrong {
    path: Vec<String>,
    why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}: {}", self.path.join("."), self.why)
    }
}

impl std::error::Error for Wrong {}

/// The error that a key is wrong: `wrong("vm.0.vcpus", "must be above 0")`.
pub fn wrong(path: impl fmt::Display, why: impl fmt::Display) -> Error {
    let path = path.to_string().split('.').map(String::from).collect();
    Wrong { path, why: why.to_string() }.into()
}

/// The same error, of a key inside of another one.
pub fn inside(parent: impl fmt::Display, error: Error) -> Error {
    match error.downcast::<Wrong>() {
        Ok(Wrong { path, why }) => wrong(format!("{parent}.{}", path.join(".")), why),
        Err(error) => wrong(parent, format!("{error:#}")),
    }
}

/// [`anyhow::ensure`] for a key.
macro_rules! ensure_key {
    ($fine:expr, $path:expr, $($why:tt)+) => {
        if !$fine {
            return Err($crate::keys::wrong($path, format!($($why)+)));
        }
    };
}
pub(crate) use ensure_key;

/// A text, and what the command line changes of it.
pub struct Source<'a> {
    pub text: &'a str,
    pub changes: &'a [Change],
}

impl Source<'_> {
    /// Errors: no TOML, a change that leads nowhere, a key that is unknown, missing or of another
    /// type; with the line, or with the change.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        let mut table: Table = toml::from_str(self.text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(self.text, span.start));
            let words = error.message().replace('\n', " ");
            let large = words.contains("too large") || words.contains("i128");
            let words = if large { "whole numbers go to 2^63 - 1".into() } else { words };
            anyhow!("line {line}: {words}")
        })?;
        for (path, value) in self.changes {
            set(&mut table, path, value).with_context(|| format!("--set {path}={value}"))?;
        }
        typed(table).map_err(|error| self.locate(error))
    }

    /// Says where the key is that an error is about, if it is about one.
    pub fn locate(&self, error: Error) -> Error {
        let Wrong { path, why } = match error.downcast::<Wrong>() {
            Ok(wrong) => wrong,
            Err(error) => return error,
        };
        // The last change of it is the one that counts.
        let blamed = self.changes.iter().rev().find(|(key, _)| {
            let key: Vec<&str> = key.split('.').collect();
            leads_to(&key, &path)
        });
        if let Some((key, value)) = blamed {
            return anyhow!("--set {key}={value}: {why}");
        }
        let line = self.line(&path).map_or(String::new(), |line| format!("line {line}, "));
        let last = path.iter().rposition(|part| !is_number(part)).unwrap_or(0);
        let parent = &path[..last];
        let names: Vec<&str> =
            parent.iter().filter(|part| !is_number(part)).map(String::as_str).collect();
        let table = match parent.last() {
            None => String::new(),
            Some(part) if is_number(part) => format!("[[{}]], ", names.join(".")),
            Some(_) => format!("[{}], ", names.join(".")),
        };
        anyhow!("{line}{table}key {}: {why}", path.join("."))
    }

    /// The line of a key, or of the last one above it that is there.
    fn line(&self, path: &[String]) -> Option<usize> {
        let table = DeTable::parse(self.text).ok()?;
        let mut at = None;
        let mut value: Option<&DeValue> = None;
        let mut table = Some(table.get_ref());
        for part in path {
            let (place, next) = match (table, value) {
                (Some(inner), _) => match inner.iter().find(|(key, _)| key.get_ref() == part) {
                    Some((key, next)) => (key.span().start, next),
                    None => break,
                },
                (None, Some(DeValue::Array(list))) => {
                    let place = part.parse::<usize>().ok();
                    let next: Option<&Spanned<DeValue>> = place.and_then(|place| list.get(place));
                    match next {
                        Some(next) => (next.span().start, next),
                        None => break,
                    }
                }
                _ => break,
            };
            at = Some(line_of(self.text, place));
            value = Some(next.get_ref());
            table = next.get_ref().as_table();
        }
        at
    }
}

/// A table as a type.
///
/// Errors: a [`Wrong`] key.
pub fn typed<T: DeserializeOwned>(table: Table) -> Result<T> {
    serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| {
        let mut path: Vec<String> = error
            .path()
            .iter()
            .map(|segment| match segment {
                Segment::Seq { index } => index.to_string(),
                Segment::Map { key } => key.clone(),
                Segment::Enum { variant } => variant.clone(),
                Segment::Unknown => "?".into(),
            })
            .collect();
        let words = error.inner().message().replace('\n', " ");
        // An enumeration with values, of which serde's words tell nothing.
        if let Some(place) = path.iter().position(|part| part == "halt-poll") {
            path.truncate(place + 1);
            let takes = "it takes \"off\", { fixed = NS }, { adaptive = NS }, { clairvoyant = NS } \
                         or { governed = SHARE }";
            return Wrong { path, why: takes.into() }.into();
        }
        let quoted = words.split('`').nth(1).unwrap_or_default();
        let others: Vec<&str> = words.split('`').skip(3).step_by(2).collect();
        let why = if words.starts_with("unknown field") {
            if path.last().is_none_or(|last| last != quoted) {
                path.push(quoted.into());
            }
            format!("there is no such key here{}", did_you_mean(quoted, &others))
        } else if words.starts_with("missing field") {
            path.push(quoted.into());
            "it is missing".into()
        } else if words.starts_with("unknown variant") {
            format!("\"{quoted}\" is not possible; it takes one of {}", others.join(", "))
        } else {
            expected(&words)
        };
        Wrong { path, why }.into()
    })
}

/// ` (did you mean "…"?)` with the name that is most like a word, if one is.
pub fn did_you_mean(word: &str, names: &[&str]) -> String {
    let like = |name: &str| strsim::normalized_levenshtein(word, name);
    let near = names.iter().max_by(|a, b| like(a).total_cmp(&like(b)));
    match near.filter(|near| like(near) >= 0.5) {
        Some(near) => format!(" (did you mean \"{near}\"?)"),
        None => String::new(),
    }
}

/// serde's words for a wrong type, in those of somebody who writes TOML.
fn expected(words: &str) -> String {
    let found =
        ["invalid type: ", "invalid value: "].iter().find_map(|kind| words.strip_prefix(kind));
    let Some((found, wanted)) = found.and_then(|rest| rest.split_once(", expected ")) else {
        return words.into();
    };
    let wanted = match wanted {
        "u8" | "u16" | "u32" => "a whole number from 0 to 2^32 - 1".into(),
        "u64" | "usize" => "a whole number from 0 to 2^63 - 1".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "a word in quotes".into(),
        "a sequence" => "a list, [ … ]".into(),
        "a tuple of size 2" => "a pair, [ …, … ]".into(),
        "a map" => "a table, { … }".into(),
        wanted if wanted.starts_with("struct ") => "a table, { … }".into(),
        wanted => wanted.replace("string or map", "a word in quotes or a table, { … }"),
    };
    format!("it takes {wanted}, not {found}")
}

fn is_number(part: impl AsRef<str>) -> bool {
    part.as_ref().parse::<usize>().is_ok()
}

fn line_of(text: &str, place: usize) -> usize {
    1 + text.as_bytes()[..place.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// Whether setting a key changes what another one has set: it is the same, above it, or meant for
/// all entries of its list.
pub fn overrides(key: &str, other: &str) -> bool {
    let key: Vec<&str> = key.split('.').collect();
    let other: Vec<String> = other.split('.').map(String::from).collect();
    leads_to(&key, &other)
}

/// Whether setting `key` may have set this path: it is the path, or above it; without numbers it is
/// meant for all entries of a list.
fn leads_to(key: &[&str], path: &[String]) -> bool {
    let Some((first, rest)) = key.split_first() else { return true };
    match path.split_first() {
        Some((part, deeper)) if part == first => leads_to(rest, deeper),
        Some((part, deeper)) if is_number(part) && !is_number(first) => leads_to(key, deeper),
        // The table that it has made is itself the mistake.
        None => true,
        _ => false,
    }
}

/// Parts of a key: those of a scenario have four.
const DEEPEST: usize = 16;

/// `kvm.on-spin=kernel`, `vm.0.vcpus=8`, `vm.vcpus=8` (all VMs).
fn set(table: &mut Table, path: &str, value: &str) -> Result<()> {
    let parsed: Value = toml::from_str::<Table>(&format!("v = {value}"))
        .ok()
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("v"))
        .unwrap_or_else(|| Value::String(value.into()));
    let keys: Vec<&str> = path.split('.').collect();
    let is_key = keys.len() <= DEEPEST && keys.iter().all(|key| !key.is_empty());
    ensure!(is_key, "\"{}\" is no key", path.chars().take(80).collect::<String>());
    let mut whole = Value::Table(std::mem::take(table));
    put(&mut whole, &keys, &parsed)?;
    if let Value::Table(changed) = whole {
        *table = changed;
    }
    Ok(())
}

fn put(at: &mut Value, keys: &[&str], value: &Value) -> Result<()> {
    let Some((key, rest)) = keys.split_first() else {
        *at = value.clone();
        return Ok(());
    };
    match at {
        Value::Table(table) => {
            let listed = rest.first().is_some_and(is_number) && !table.contains_key(*key);
            ensure!(!listed, "there is no [[{key}]]");
            let inner = table.entry(key.to_string()).or_insert_with(|| {
                if rest.is_empty() { value.clone() } else { Value::Table(Table::new()) }
            });
            put(inner, rest, value)
        }
        Value::Array(list) => match key.parse::<usize>() {
            Ok(place) => {
                let n = list.len();
                let inner = list
                    .get_mut(place)
                    .with_context(|| format!("there is no {key}: there are {n}, from 0 on"))?;
                put(inner, rest, value)
            }
            Err(_) => list.iter_mut().try_for_each(|inner| put(inner, keys, value)),
        },
        _ => bail!("\"{key}\" is inside of a value that has no keys"),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    #[expect(dead_code, reason = "only read from TOML")]
    struct Whole {
        seconds: f64,
        #[serde(default)]
        vm: Vec<Part>,
        kvm: Option<Part>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    #[expect(dead_code, reason = "only read from TOML")]
    struct Part {
        vcpus: u32,
        #[serde(default)]
        pin: bool,
        kind: Option<Kind>,
        #[serde(default)]
        task: Vec<String>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Kind {
        Small,
        #[expect(dead_code, reason = "only read from TOML")]
        Fixed(u64),
    }

    fn error(text: &str, changes: &[(&str, &str)]) -> String {
        let changes: Vec<Change> =
            changes.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let source = Source { text, changes: &changes };
        format!("{:#}", source.read::<Whole>().unwrap_err())
    }

    #[test]
    fn an_error_names_line_table_and_key() {
        let text = "seconds = 1.0\n\n[[vm]]\nvcpus = 2\n\n[[vm]]\nvcpus = 4\npin = 3\n";
        assert_eq!(
            error(text, &[]),
            "line 8, [[vm]], key vm.1.pin: it takes true or false, not integer `3`"
        );
        assert_eq!(
            error("seconds = \"x\"\n", &[]),
            "line 1, key seconds: it takes a number, not string \"x\""
        );
        assert_eq!(
            error("seconds = 1\n[kvm]\nvcpus = -1\n", &[]),
            "line 3, [kvm], key kvm.vcpus: it takes a whole number from 0 to 2^32 - 1, not integer `-1`"
        );
        assert_eq!(
            error("seconds = 1\n[kvm]\nvcpu = 1\n", &[]),
            "line 3, [kvm], key kvm.vcpu: there is no such key here (did you mean \"vcpus\"?)"
        );
        assert_eq!(
            error("seconds = 1\n[[vm]]\npin = true\n", &[]),
            "line 2, [[vm]], key vm.0.vcpus: it is missing"
        );
        assert_eq!(
            error("seconds = 1\n[[vm]]\nvcpus = 1\nkind = \"huge\"\n", &[]),
            "line 4, [[vm]], key vm.0.kind: \"huge\" is not possible; it takes one of small, fixed"
        );
        assert_eq!(
            error("seconds = 1\n[[vm]]\nvcpus = 1\ntask = [\n  \"a\",\n  7,\n]\n", &[]),
            "line 6, [[vm]], key vm.0.task.1: it takes a word in quotes, not integer `7`"
        );
        assert!(error("seconds = \n", &[]).starts_with("line 1: "));
        assert!(error("seconds = 1\nseconds = 2\n", &[]).starts_with("line 2: duplicate key"));
    }

    #[test]
    fn an_error_of_a_change_names_the_change() {
        let text = "seconds = 1\n[[vm]]\nvcpus = 2\n[[vm]]\nvcpus = 2\n";
        assert_eq!(
            error(text, &[("vm.vcpus", "x")]),
            "--set vm.vcpus=x: it takes a whole number from 0 to 2^32 - 1, not string \"x\""
        );
        assert_eq!(
            error(text, &[("vm.1.pin", "1"), ("vm.0.pin", "true")]),
            "--set vm.1.pin=1: it takes true or false, not integer `1`"
        );
        assert_eq!(
            error(text, &[("vm.cpus", "1")]),
            "--set vm.cpus=1: there is no such key here (did you mean \"vcpus\"?)"
        );
        assert!(error(text, &[("kwm.vcpus", "1")]).starts_with("--set kwm.vcpus=1: there is no"));
        assert_eq!(
            error(text, &[("vm.2.vcpus", "1")]),
            "--set vm.2.vcpus=1: there is no 2: there are 2, from 0 on"
        );
        assert!(error(text, &[("seconds.x", "1")]).contains("a value that has no keys"));
        assert!(error(text, &[("vm..vcpus", "1")]).contains("is no key"));
        let deep = "a.".repeat(60_000) + "a";
        assert!(error(text, &[(deep.as_str(), "1")]).contains("is no key"));
    }
}
