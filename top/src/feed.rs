// SPDX-License-Identifier: GPL-2.0-only
//! Samples, of this host or of a recording.

use crate::sample::Sample;
use crate::source::Source;

pub enum Feed {
    Live(Box<Source>),
    Replay(std::vec::IntoIter<Sample>),
}

impl Feed {
    pub fn live() -> Feed {
        Feed::Live(Box::new(Source::here()))
    }

    pub fn replay(samples: Vec<Sample>) -> Feed {
        Feed::Replay(samples.into_iter())
    }

    pub fn is_live(&self) -> bool {
        matches!(self, Feed::Live(_))
    }

    /// `None`: the recording has ended.
    pub fn next(&mut self, vcpus: bool) -> Option<Sample> {
        match self {
            Feed::Live(source) => Some(source.sample(vcpus)),
            Feed::Replay(samples) => samples.next(),
        }
    }
}
