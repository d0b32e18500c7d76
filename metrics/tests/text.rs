// SPDX-License-Identifier: GPL-2.0-only
//! The text that Prometheus reads.

use baton_metrics::{Info, Snapshot, Times, Totals, Vcpu, Vm, names, text};
use std::collections::{BTreeMap, BTreeSet};

fn snapshot(vms: Vec<Vm>) -> Snapshot {
    let info = Info {
        version: "0.1.0".to_owned(),
        policy: "kick,sent,ipi,kvm".to_owned(),
        kernel: "6.17.2".to_owned(),
    };
    let totals = Totals { obeyed: 61, missed: 15, redirected: 22, ..Totals::default() };
    let exits = BTreeMap::from([("stopped", 2), ("not-started", 0)]);
    Snapshot { enabled: true, info: Some(info), exits, totals: Some(totals), vms }
}

fn vm(key: &str, name: &str) -> Vm {
    let times = Times { run: 1.5, ready: 0.25, costop: 0.0, throttled: 0.0 };
    let mut wakeups = vec![0; 32];
    (wakeups[3], wakeups[11], wakeups[31]) = (1, 2, 4);
    let (key, name) = (key.to_owned(), name.to_owned());
    Vm { key, name, vcpus: 2, weight: 100, times, wakeups, ..Vm::default() }
}

/// What OpenMetrics asks for: families in one piece, each with its type before its samples, no
/// series twice, names and labels of legal form, numbers, and an end. What each sample said.
fn parsed(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    let mut family = "";
    let (body, end) = text.rsplit_once("# EOF\n").expect("an end");
    assert_eq!(end, "");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let words: Vec<&str> = rest.splitn(3, ' ').collect();
            assert_eq!(words.len(), 3, "{line}");
            if words[0] == "TYPE" {
                family = words[1];
                assert_eq!(types.insert(family, words[2]), None, "{family} is in two pieces");
            }
            assert!(words[0] != "UNIT" || family.ends_with(words[2]), "{line}");
            assert_eq!(words[1], family);
            continue;
        }
        let name_end = line.find(['{', ' ']).expect("a value");
        let (name, mut rest) = line.split_at(name_end);
        let suffix = name.strip_prefix(family).expect("its own family");
        let suffixes: &[&str] = match types[family] {
            "gauge" => &[""],
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_count"],
            other => panic!("{other}"),
        };
        assert!(suffixes.contains(&suffix), "{line}");
        if rest.starts_with('{') {
            let mut labels = BTreeSet::new();
            loop {
                let (label, value) = rest[1..].split_once("=\"").expect("a label");
                let legal = |c: char| c.is_ascii_lowercase() || c == '_';
                assert!(!label.is_empty() && label.chars().all(legal), "{label}");
                assert!(labels.insert(label), "{line}");
                rest = after_quote(value);
                if let Some(end) = rest.strip_prefix('}') {
                    rest = end;
                    break;
                }
                assert!(rest.starts_with(','), "{line}");
            }
        }
        let value = rest.strip_prefix(' ').expect("a blank");
        let series = line[..line.len() - rest.len()].to_owned();
        let value = value.parse::<f64>().expect("a number");
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert_eq!(samples.insert(series, value), None, "{line} is there twice");
    }
    samples
}

/// Behind the quotation mark that ends a label's value.
fn after_quote(value: &str) -> &str {
    let mut escaped = false;
    for (at, c) in value.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return &value[at + 1..],
            c => {
                assert!(!escaped || ['\\', '"', 'n'].contains(&c), "\\{c}");
                escaped = false;
            }
        }
    }
    panic!("no end: {value}");
}

#[test]
fn all_names_are_there_and_in_order() {
    let vcpu = Vcpu { id: 0, tid: 9, times: Times::default() };
    let one = Vm { by_vcpu: vec![vcpu], ..vm("1.1.1", "web") };
    let text = text(&snapshot(vec![one]));
    parsed(&text);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let told: Vec<String> = types
        .map(|line| match line.split_once(' ') {
            Some((name, "counter")) => format!("{name}_total"),
            Some((name, _)) => name.to_owned(),
            None => panic!("{line}"),
        })
        .collect();
    assert_eq!(told, names());
}

#[test]
fn samples_say_what_was_counted() {
    let text = text(&snapshot(vec![vm("1.1.1", "web")]));
    let samples = parsed(&text);
    for (series, value) in [
        ("baton_enabled", 1.0),
        (r#"baton_info{version="0.1.0",policy="kick,sent,ipi,kvm",kernel="6.17.2"}"#, 1.0),
        (r#"baton_exits_total{reason="stopped"}"#, 2.0),
        (r#"baton_exits_total{reason="not-started"}"#, 0.0),
        ("baton_vms", 1.0),
        ("baton_vcpus", 2.0),
        (r#"baton_yields_total{result="obeyed"}"#, 61.0),
        (r#"baton_yields_total{result="refused"}"#, 0.0),
        ("baton_yields_redirected_total", 22.0),
        (r#"baton_vm_info{vm="web",uuid="",namespace="",cgroup=""}"#, 1.0),
        (r#"baton_vm_run_seconds_total{vm="web"}"#, 1.5),
        (r#"baton_vm_throttled_seconds_total{vm="web"}"#, 0.0),
        (r#"baton_vm_halt_poll_seconds_total{vm="web",result="miss"}"#, 0.0),
        (r#"baton_vm_halts_total{vm="web",end="sleep"}"#, 0.0),
        (r#"baton_vm_boosts_total{vm="web",useful="true"}"#, 0.0),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series} in\n{text}");
    }
    assert!(!text.contains("baton_vcpu_"), "{text}");
}

#[test]
fn wake_ups_are_a_histogram_without_a_sum() {
    let text = text(&snapshot(vec![vm("1.1.1", "web")]));
    let samples = parsed(&text);
    let bucket = |le: &str| {
        samples[&format!("baton_vm_wakeup_latency_seconds_bucket{{vm=\"web\",le=\"{le}\"}}")]
    };
    // Place 11 ends at 4,096 ns; what is in the last place is below no bound.
    let counts = ["0.000001024", "0.000002048", "0.000004096", "2.147483648", "+Inf"].map(bucket);
    assert_eq!(counts, [1.0, 1.0, 3.0, 3.0, 7.0]);
    assert_eq!(samples[r#"baton_vm_wakeup_latency_seconds_count{vm="web"}"#], 7.0);
    assert!(!text.contains("_sum"));
    // Bounds ascend.
    let bounds = text.lines().filter_map(|line| line.split_once("le=\"")?.1.split('"').next());
    let bounds: Vec<f64> = bounds.map(|le| le.parse().unwrap()).collect();
    assert!(bounds.len() == 23 && bounds.is_sorted(), "{bounds:?}");
    // An scx_baton that tells none.
    let none = Vm { wakeups: vec![], ..vm("1.1.1", "web") };
    assert!(parsed(&text_of(none)).values().all(|value| *value < 1000.0));
}

fn text_of(vm: Vm) -> String {
    text(&snapshot(vec![vm]))
}

#[test]
fn without_baton_or_vms_there_is_little_to_say() {
    let gone = Snapshot { exits: BTreeMap::from([("stopped", 1)]), ..Snapshot::default() };
    let samples = parsed(&text(&gone));
    let expected = [("baton_enabled", 0.0), (r#"baton_exits_total{reason="stopped"}"#, 1.0)];
    assert_eq!(samples, expected.map(|(name, value)| (name.to_owned(), value)).into());
    let samples = parsed(&text(&snapshot(vec![])));
    assert_eq!((samples["baton_vms"], samples["baton_vcpus"]), (0.0, 0.0));
    assert!(samples.keys().all(|name| !name.contains("baton_vm_")));
}

#[test]
fn names_of_vms_are_whatever_their_owners_chose() {
    let hostile = [
        "a\"} 1\nbaton_enabled 0",
        "back\\slash\\",
        "\"",
        "nul\0bell\u{7}",
        "{}",
        "",
        "  ",
        "ü☃\u{fffd}",
        "# EOF\n",
        "twice",
        "twice",
        "twice (9.9.9)",
    ];
    let vms: Vec<Vm> =
        hostile.iter().enumerate().map(|(i, name)| vm(&format!("{i}.{i}.{i}"), name)).collect();
    let text = text(&snapshot(vms));
    let samples = parsed(&text);
    assert_eq!(samples["baton_enabled"], 1.0);
    let runs = samples.keys().filter(|name| name.starts_with("baton_vm_run_seconds_total"));
    assert_eq!(runs.count(), hostile.len());
    for label in [r#"a\"} 1\nbaton_enabled 0"#, r"back\\slash\\", "nul?bell?", "(5.5.5)"] {
        let series = format!("baton_vm_vcpus{{vm=\"{label}\"}}");
        assert!(samples.contains_key(&series), "{series} in\n{text}");
    }
    // What looks like another VM's name with its key is not that VM.
    for label in ["twice (9.9.9)", "twice (10.10.10)", "twice (9.9.9) (11.11.11)"] {
        assert!(samples.contains_key(&format!("baton_vm_vcpus{{vm=\"{label}\"}}")), "{text}");
    }
}

#[test]
fn three_hundred_vms_with_two_thousand_vcpus_have_a_series_each() {
    let vms = (0..300).map(|n: u32| {
        let vcpus = if n < 200 { 7 } else { 6 };
        let vcpu = |id| Vcpu { id, tid: 1, times: Times::default() };
        Vm { by_vcpu: (0..vcpus).map(vcpu).collect(), ..vm(&format!("{n}.1.1"), &format!("v{n}")) }
    });
    let samples = parsed(&text(&snapshot(vms.collect())));
    let of = |name: &str| samples.keys().filter(|series| series.starts_with(name)).count();
    assert_eq!(of("baton_vm_run_seconds_total{"), 300);
    assert_eq!(of("baton_vcpu_run_seconds_total{"), 2000);
}
