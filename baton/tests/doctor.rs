// SPDX-License-Identifier: GPL-2.0-only
//! `baton doctor` on this machine, whatever it is; what it finds is tested in the crate `doctor`.

use std::process::{Command, Output};

fn baton(words: &str) -> Output {
    let words: Vec<&str> = words.split_whitespace().collect();
    Command::new(env!("CARGO_BIN_EXE_baton")).args(words).output().expect("baton runs")
}

#[test]
fn wrong_options_have_a_status_of_their_own() {
    for words in ["--nope", "--explain", "--explain nope", "--fix nope", "--list --json", "more"] {
        let output = baton(&format!("doctor {words}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{words}: {errors}");
        assert!(errors.starts_with("error: "), "{words}: {errors}");
    }
    assert_eq!(baton("sim nope").status.code(), Some(2));
    assert_eq!(baton("doctors").status.code(), Some(2));
    for words in ["doctor --help", "doctor --list", "doctor --explain rival"] {
        assert_eq!(baton(words).status.code(), Some(0), "{words}");
    }
}

#[test]
fn programs_and_people_are_told_the_same() {
    let (json, text) = (baton("doctor --json"), baton("doctor"));
    assert!([0, 1, 2, 74].contains(&json.status.code().expect("it ends")));
    assert_eq!(json.status.code(), text.status.code());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["version"], 1);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for finding in json["findings"].as_array().expect("a list") {
        let id = finding["id"].as_str().expect("a name");
        assert!(text.contains(&format!(" {id}: ")), "{id}: {text}");
    }
}

#[test]
fn what_cannot_be_mended_by_a_write_is_an_error_with_the_command() {
    let output = baton("doctor --fix isolcpus");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("take isolcpus= off"));
}
