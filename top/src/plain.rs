// SPDX-License-Identifier: GPL-2.0-only
//! Lines without a screen: for people, for spreadsheets, for programs.

use crate::columns::Column;
use crate::rates::{Parts, Rates, ThreadRates, VcpuRates, VmRates};
use crate::sample::Sample;
use crate::view::View;
use anyhow::Result;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Text,
    Csv,
    Json,
}

/// One interval. The head of a CSV table comes with the first one.
///
/// Errors: none of ours; JSON's are impossible for these figures.
pub fn interval(
    form: Form,
    now: &Sample,
    rates: &Rates,
    view: &View,
    is_first: bool,
) -> Result<String> {
    let vms = view.vms(rates);
    Ok(match form {
        Form::Text => text(now, &vms),
        Form::Csv => csv(now, &vms, is_first),
        Form::Json => {
            let (wall_s, host) = (now.wall_s, &now.host.name);
            let scheduler = &now.host.scheduler;
            let vms = vms.into_iter().cloned().collect();
            let rates = &Rates { vms, ..rates.clone() };
            serde_json::to_string(&Line { wall_s, host, scheduler, rates })? + "\n"
        }
    })
}

#[derive(Serialize)]
struct Line<'a> {
    wall_s: u64,
    host: &'a str,
    scheduler: &'a str,
    #[serde(flatten)]
    rates: &'a Rates,
}

/// Before the names of what belongs to a VM.
const INDENT: &str = "  ";

fn text(now: &Sample, vms: &[&VmRates]) -> String {
    let threads = vms.iter().flat_map(|vm| &vm.threads);
    let threads = threads.map(|thread| INDENT.len() + thread.name.chars().count());
    let names = vms.iter().map(|vm| vm.name.chars().count()).chain(threads);
    // A width of format!() has 16 bits.
    let longest = names.max().unwrap_or(0).clamp(12, u16::MAX.into());
    let cell = |column: Column, text: &str| match column {
        Column::Name => format!("{text:<longest$}"),
        _ => format!("{text:>width$}", width = usize::from(column.width())),
    };
    let row = |cells: &dyn Fn(Column) -> String| {
        let cells = Column::ALL.into_iter().map(|column| cell(column, &cells(column)));
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    let host = &now.host;
    let mut out = format!("{}  {}  {}\n", now.wall_s, host.name, host.scheduler);
    out += &row(&|column| column.title().to_owned());
    for vm in vms {
        out += &row(&|column| column.text(vm, false));
        for vcpu in &vm.vcpus {
            out += &row(&|column| vcpu_cell(column, vcpu));
        }
        for thread in &vm.threads {
            out += &row(&|column| thread_cell(column, thread));
        }
    }
    out + "\n"
}

fn vcpu_cell(column: Column, vcpu: &VcpuRates) -> String {
    match column {
        Column::Name => format!("  vCPU {}", vcpu.id),
        _ => column.part(&vcpu.parts).map(crate::columns::percent).unwrap_or_default(),
    }
}

fn thread_cell(column: Column, thread: &ThreadRates) -> String {
    match column {
        Column::Name => format!("{INDENT}{}", thread.name),
        _ => column.of_thread(thread).map(crate::columns::percent).unwrap_or_default(),
    }
}

const CSV_HEAD: &str = "time,host,scheduler,vm,vcpu,vcpus,run,ready,costop,throttled,wait,spin,\
     poll,ipi_wait_ms,ple_s,boosts_s,useful,wake99_us\n";

fn csv(now: &Sample, vms: &[&VmRates], is_first: bool) -> String {
    let mut out = if is_first { CSV_HEAD.to_owned() } else { String::new() };
    let begin =
        format!("{},{},{}", now.wall_s, quoted(&now.host.name), quoted(&now.host.scheduler));
    for vm in vms {
        let name = quoted(&vm.name);
        let more = vm.more.as_ref();
        let known = |figure: Option<f64>| figure.map(number).unwrap_or_default();
        let of_baton = [
            more.map(|m| m.spin),
            more.map(|m| m.poll).or(vm.poll),
            more.map(|m| m.ipi_wait),
            more.map(|m| m.spins),
            more.map(|m| m.boosts),
            more.and_then(|m| m.useful),
            more.and_then(|m| m.wake99),
        ];
        let rest = of_baton.map(known).join(",");
        out += &format!("{begin},{name},,{},{},{rest}\n", vm.nr_vcpus, parts(&vm.parts));
        for vcpu in &vm.vcpus {
            out += &format!("{begin},{name},{},1,{},,,,,,,\n", vcpu.id, parts(&vcpu.parts));
        }
    }
    out
}

fn parts(parts: &Parts) -> String {
    let known = |figure: Option<f64>| figure.map(number).unwrap_or_default();
    let all = [Some(parts.run), Some(parts.ready), parts.costop, parts.throttled, Some(parts.wait)];
    all.map(known).join(",")
}

fn number(figure: f64) -> String {
    format!("{figure:.3}")
}

/// RFC 4180.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::MoreRates;
    use crate::sample::HostSample;

    fn shown(form: Form, is_first: bool) -> Result<String> {
        filtered(form, is_first, "")
    }

    fn filtered(form: Form, is_first: bool, filter: &str) -> Result<String> {
        let costop = Some(6.3);
        let parts = Parts { run: 71.2, ready: 14.1, costop, throttled: None, wait: 8.4 };
        let more = Some(MoreRates { spins: 1904.0, wake99: Some(1900.0), ..MoreRates::default() });
        let vcpus = vec![VcpuRates { id: 1, tid: 9, cpu: 3, parts }];
        let (key, name) = ("7".to_owned(), "a,\"b\"".to_owned());
        let thread = |name: &str| ThreadRates { tid: 8, name: name.into(), run: 38.0, ready: 0.2 };
        let threads = vec![thread("IO x"), thread("qemu-system-x86")];
        let vm =
            VmRates { key, name, pid: 7, nr_vcpus: 8, parts, poll: None, more, vcpus, threads };
        let rates = Rates { seconds: 1.0, vms: vec![vm], ..Rates::default() };
        let host =
            HostSample { name: "h".into(), scheduler: "baton".into(), ..HostSample::default() };
        let (baton, vms) = (Err("x".into()), vec![]);
        let now = Sample { at_s: 1.0, wall_s: 5, host, baton, vms, notes: None };
        interval(form, &now, &rates, &View::new(Column::Run, filter), is_first)
    }

    #[test]
    fn every_line_of_csv_has_every_column() -> Result<()> {
        let csv = shown(Form::Csv, true)?;
        // The name's own comma is one more.
        let commas: Vec<_> = csv.lines().map(|line| line.matches(',').count()).collect();
        assert_eq!(commas, [17, 18, 18], "{csv}");
        assert!(csv.contains("5,h,baton,\"a,\"\"b\"\"\",,8,71.200,14.100,6.300,,8.400,"), "{csv}");
        assert_eq!(shown(Form::Csv, false)?.lines().count(), 2);
        Ok(())
    }

    #[test]
    fn json_is_a_line_and_text_a_table() -> Result<()> {
        let json: serde_json::Value = serde_json::from_str(&shown(Form::Json, true)?)?;
        assert_eq!(json["vms"][0]["parts"]["ready"], 14.1);
        assert_eq!(json["vms"][0]["parts"]["throttled"], serde_json::Value::Null);
        let text = shown(Form::Text, true)?;
        assert!(text.contains("1,904") && text.contains("  vCPU 1"), "{text}");
        assert_eq!(json["vms"][0]["threads"][0]["run"], 38.0);
        // All end where the longest name lets them.
        assert!(text.contains("  IO x                  38.0    0.2\n"), "{text}");
        assert!(text.contains("  qemu-system-x86       38.0    0.2\n"), "{text}");
        let other: serde_json::Value = serde_json::from_str(&filtered(Form::Json, true, "b-")?)?;
        assert_eq!(other["vms"].as_array().map(Vec::len), Some(0));
        Ok(())
    }
}
