// SPDX-License-Identifier: GPL-2.0-only
//! All that the screen shows.

use crate::history::History;
use crate::rates::Rates;
use crate::sample::{Note, Sample};
use crate::view::View;

/// All that is shown.
pub struct Shown<'a> {
    pub now: &'a Sample,
    pub rates: &'a Rates,
    pub history: &'a History,
    /// What doctor said last.
    pub notes: &'a [Note],
    pub view: &'a View,
    /// Seconds from one sample to the next, as asked for.
    pub delay: f64,
    pub colors: bool,
    /// Instead of the keys, on the last line.
    pub message: Option<&'a str>,
}
