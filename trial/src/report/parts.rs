// SPDX-License-Identifier: GPL-2.0-only
//! What several parts of the page have in common.

use maud::{Markup, html};

/// Of one text; a host's facts are short.
const MOST_CHARS: usize = 200;

/// Text from outside: without what a browser would not show, or show as something else. Templates
/// escape it.
pub fn clean(text: &str) -> String {
    let turns = |c: char| {
        matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}')
    };
    let is_none =
        |c: char| matches!(u32::from(c), 0xfdd0..=0xfdef) || u32::from(c) & 0xfffe == 0xfffe;
    let odd = |c: char| c.is_control() || turns(c) || is_none(c);
    let shown = |c: char| if odd(c) { '\u{fffd}' } else { c };
    let mut cleaned: String = text.chars().map(shown).take(MOST_CHARS).collect();
    if text.chars().nth(MOST_CHARS).is_some() {
        cleaned.push('…');
    }
    cleaned
}

/// Three digits that say something.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "–".into(),
        0.0 => "0".into(),
        size if !(1e-3..1e7).contains(&size) => format!("{value:.1e}"),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A round number, without the zeros that a measured one has.
pub fn short(value: f64) -> String {
    let text = number(value);
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A ratio as [`Verdict::words`](crate::verdict::Verdict::words) has it, if it is not too large.
pub fn ratio(value: f64) -> String {
    if (0.01..1e3).contains(&value) { format!("{value:.2}") } else { number(value) }
}

pub fn cell(value: Option<f64>) -> String {
    value.map_or("–".into(), number)
}

/// `1 slot`, `2 slots`.
pub fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Of the width of a picture: from 0 to 1.
pub fn percent(share: f64) -> String {
    let text = format!("{:.2}", 100.0 * share);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Between 0 and 1, whatever it is.
pub fn share(part: f64, whole: f64) -> f64 {
    let share = part / whole;
    if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
}

/// Once a page, for what is dropped.
pub fn patterns() -> Markup {
    html! {
        svg.defs width="0" height="0" aria-hidden="true" {
            defs {
                pattern #hatch width="6" height="6" patternUnits="userSpaceOnUse"
                    patternTransform="rotate(45)" {
                    rect.ground width="6" height="6" {}
                    rect.stripe width="2.5" height="6" {}
                }
            }
        }
    }
}

/// Who a mark belongs to is told by its shape too: the kernel's is a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Kernel,
    Baton,
    /// Of all pairs.
    All,
}

/// At this share of the width of its picture, in the middle of a row.
pub fn mark(mark: Mark, at: f64) -> Markup {
    html! {
        svg x=(percent(at)) y="12" overflow="visible" {
            @match mark {
                Mark::Kernel => circle.ring r="4" {},
                Mark::Baton => path.diamond d="M0 -5.5 L5.5 0 L0 5.5 L-5.5 0 Z" {},
                Mark::All => rect.square x="-5" y="-5" width="10" height="10" {},
            }
        }
    }
}

/// A sample of a mark for a legend.
pub fn key(of: Mark, words: &str) -> Markup {
    html! {
        span.key {
            svg width="16" height="24" aria-hidden="true" { (mark(of, 0.5)) }
            (words)
        }
    }
}
