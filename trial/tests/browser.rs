// SPDX-License-Identifier: GPL-2.0-only
//! What a browser makes of a trial's report: 'make test-operate'. With BATON_SCREENSHOTS=DIR, its
//! pictures stay there.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use baton_trial::{bundle, plan, report};
use scraper::{Html, Selector};

#[path = "common/mod.rs"]
mod hosts;

use bundle::{Abort, Bundle};
use hosts::{Busy, cut};
use plan::Measure;

/// A telephone, and a wide screen.
const WIDTHS: [u32; 2] = [400, 1600];

/// As Blink numbers what the user prefers.
const SCHEMES: [(&str, u32); 2] = [("dark", 0), ("light", 1)];

struct Case {
    name: &'static str,
    bundle: Bundle,
}

fn cases() -> Result<Vec<Case>> {
    let probe = Measure::Probe { lower_is_better: false };
    let work = Measure::Work { test: "barrier".into(), vms: 2, vcpus: 4 };
    let whole = Busy::default().bundle()?;
    let of = |name, bundle| Case { name, bundle };
    let worse = Busy { gain: 1.7, ..Busy::default() }.bundle()?;
    let mut hostile = cut(whole.clone(), 3, 9, None)?;
    hostile.host.cpu = "</style><script>console.error('it ran')</script>".repeat(3);
    hostile.plan.slot_s = 1e-300;
    Ok(vec![
        of("aborted", cut(whole.clone(), 8, 12, Some(Abort::Ready))?),
        of("killed", cut(whole.clone(), 6, 30, None)?),
        of("nothing", cut(whole.clone(), 0, 0, Some(Abort::User))?),
        of("ready", whole),
        of("worse", worse),
        of("hostile", hostile),
        of("one", Busy { vms: 1, blocks: 1, ..Busy::default() }.bundle()?),
        of("many", Busy { vms: 300, blocks: 10, ..Busy::default() }.bundle()?),
        of("probe", Busy { measure: probe, ..Busy::default() }.bundle()?),
        of("work", Busy { measure: work, ..Busy::default() }.bundle()?),
        of("control", Busy { control: true, ..Busy::default() }.bundle()?),
    ])
}

struct Browser {
    directory: tempfile::TempDir,
}

impl Browser {
    fn new() -> Result<Browser> {
        Ok(Browser { directory: tempfile::tempdir()? })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What it prints, and what a page says on its console. It finds no other machine. A window of
    /// Chromium itself is 500 pixels wide at least.
    fn run(&self, page: &Path, (width, height): (u32, u32), words: &[String]) -> Result<Seen> {
        let output = Command::new("chromium-headless-shell")
            .args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .arg(format!("--user-data-dir={}", self.at("profile").display()))
            .arg(format!("--window-size={width},{height}"))
            .args(words)
            .arg(format!("file://{}", page.display()))
            .stdin(Stdio::null())
            .output()
            .context("it is there: tools/setup chromium-headless-shell")?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{}: {errors}", output.status);
        let is_console = |line: &&str| line.contains("CONSOLE") || line.contains("net_error");
        let console = errors.lines().filter(is_console).map(str::to_owned).collect();
        Ok(Seen { printed: String::from_utf8_lossy(&output.stdout).into_owned(), console })
    }
}

struct Seen {
    printed: String,
    console: Vec<String>,
}

/// Told in the page itself: its width and height, and what looks wrong.
const LOOK: &str = include_str!("common/look.html");

#[derive(serde::Deserialize)]
struct Look {
    found: Vec<String>,
    width: u32,
    height: u32,
    ground: [f64; 3],
}

/// A page that may run what looks at it.
fn with_look(page: &str) -> String {
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    let open = "default-src 'unsafe-inline'";
    assert!(page.contains(policy) && page.contains("</body>"));
    page.replacen(policy, open, 1).replacen("</body>", LOOK, 1)
}

fn look(browser: &Browser, file: &Path, width: u32, scheme: &str) -> Result<Look> {
    let words = ["--dump-dom".to_owned(), scheme.to_owned()];
    let seen = browser.run(file, (width, 1000), &words)?;
    assert_eq!(seen.console, Vec::<String>::new());
    let there = Html::parse_document(&seen.printed);
    let found = Selector::parse("#found").expect("a selector");
    let told = there.select(&found).next().context("nothing was told")?.text().collect::<String>();
    serde_json::from_str(&told).with_context(|| told.clone())
}

/// Its size, and how many colours are in it.
fn picture(file: &Path) -> Result<(u32, u32, usize)> {
    let mut decoder = png::Decoder::new(BufReader::new(File::open(file)?));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info()?;
    let mut bytes = vec![0; reader.output_buffer_size().context("too large")?];
    let info = reader.next_frame(&mut bytes)?;
    let pixels = bytes[..info.buffer_size()].chunks_exact(info.color_type.samples());
    let colours = pixels.collect::<std::collections::HashSet<_>>().len();
    Ok((info.width, info.height, colours))
}

#[test]
fn a_report_is_legible_on_each_screen_and_says_nothing_on_the_console() -> Result<()> {
    let browser = Browser::new()?;
    let kept = std::env::var_os("BATON_SCREENSHOTS").map(PathBuf::from);
    let mut wrong = Vec::new();
    for Case { name, bundle } in cases()? {
        let page = report::html(&bundle)?;
        let [plain, looked] = ["plain", "look"].map(|of| browser.at(&format!("{name}-{of}.html")));
        fs::write(&plain, &page)?;
        fs::write(&looked, with_look(&page))?;
        for (place, (scheme, number)) in SCHEMES.into_iter().enumerate() {
            let prefer = format!("--blink-settings=preferredColorScheme={number}");
            // Of those that hardly differ from another one, half of it: a start takes a second.
            let all = ["ready", "probe", "many"].contains(&name);
            for width in if all { &WIDTHS[..] } else { &WIDTHS[place..=place] }.iter().copied() {
                let at = format!("{name}-{scheme}-{width}");
                let look = look(&browser, &looked, width, &prefer)?;
                assert_eq!(look.width, width, "{at}");
                assert_eq!(look.ground.iter().sum::<f64>() < 300.0, scheme == "dark", "{at}");
                wrong.extend(look.found.iter().map(|found| format!("{at}: {found}")));
                let shot = browser.at(&format!("{at}.png"));
                let words = [format!("--screenshot={}", shot.display()), prefer.clone()];
                let seen = browser.run(&plain, (width, look.height), &words)?;
                assert_eq!(seen.console, Vec::<String>::new(), "{at}");
                let (wide, high, colours) = picture(&shot)?;
                assert_eq!((wide, high), (width, look.height), "{at}");
                assert!(colours > 20, "{at} has {colours} colours");
                if let Some(directory) = &kept {
                    fs::create_dir_all(directory)?;
                    fs::copy(&shot, directory.join(format!("{at}.png")))?;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// What the test above looks for is found where it is.
#[test]
fn a_page_that_is_wrong_is_told() -> Result<()> {
    let browser = Browser::new()?;
    let page = report::html(&Busy { vms: 2, ..Busy::default() }.bundle()?)?;
    let file = browser.at("wrong.html");
    let bad = r#"<div style="font-size: 8px; color: #999; width: 3000px">small</div>
        <svg width="90"><text x="0" y="9">one</text><text x="9" y="9">two</text></svg>
        <table style="width: 9px; overflow-wrap: anywhere"><tr><th>vCPUs</th></tr></table>
        <div class="box" style="width: 50px"><svg width="90"><text x="70">far</text></svg></div>
        <style>th { white-space: normal }</style></main>"#;
    fs::write(&file, with_look(&page.replacen("</main>", bad, 1)))?;
    let found = look(&browser, &file, 400, "--blink-settings=preferredColorScheme=1")?.found;
    let wrong = ["page 3", "8 px: small", "contrast 2.", "overlap: one two"];
    for what in wrong.into_iter().chain(["broken word: vCPUs", "cut off: far", "scrolls: far"]) {
        assert!(found.iter().any(|one| one.starts_with(what)), "{what}: {found:?}");
    }
    // Its policy keeps a page from running and loading anything, and the console tells.
    let more = "<script>document.title = 'it ran'</script><img src=\"http://example.org/x.png\">";
    fs::write(&file, page.replacen("</main>", &format!("{more}</main>"), 1))?;
    let seen = browser.run(&file, (400, 800), &["--dump-dom".to_owned()])?;
    assert!(seen.console.len() >= 2, "{:?}", seen.console);
    assert!(!seen.printed.contains("<title>it ran"));
    Ok(())
}
