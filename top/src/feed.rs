// SPDX-License-Identifier: GPL-2.0-only
//! Samples, of this host or of a recording.

use crate::sample::Sample;
use crate::source::Source;
use crate::wanted::Wanted;

pub enum Feed {
    Live(Box<Source>),
    Replay(std::vec::IntoIter<Sample>),
}

impl Feed {
    pub fn live() -> Feed {
        Feed::Live(Box::new(Source::here()))
    }

    /// From now on doctor looks at this host from time to time.
    pub fn call_doctor(&mut self) {
        if let Feed::Live(source) = self {
            source.call_doctor();
        }
    }

    pub fn replay(samples: Vec<Sample>) -> Feed {
        Feed::Replay(samples.into_iter())
    }

    pub fn is_live(&self) -> bool {
        matches!(self, Feed::Live(_))
    }

    /// `None`: the recording has ended.
    pub fn next(&mut self, wanted: &Wanted) -> Option<Sample> {
        match self {
            Feed::Live(source) => Some(source.sample(wanted)),
            Feed::Replay(samples) => samples.next(),
        }
    }
}
