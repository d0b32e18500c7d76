// SPDX-License-Identifier: GPL-2.0-only
//! What the tasks of a VM do.

use std::sync::Arc;

use anyhow::Result;

use super::records::VmSpec;
use crate::guest::Op;
use crate::keys::{did_you_mean, wrong};
use crate::machine::Ns;
use crate::program;
use crate::workload::{self, Program};

/// Numbers of locks that programs cannot name.
const TLB_LOCKS: u32 = 10_000;

impl VmSpec {
    pub(crate) fn programs(&self) -> Result<Vec<Program>> {
        let mut programs = self.plain_programs()?;
        if self.work_scale != 1.0 {
            let scaled = |op: &Op| match *op {
                Op::Compute { mean, spread, kernel } => {
                    let mean = (mean as f64 * self.work_scale) as Ns;
                    Op::Compute { mean: mean.max(1), spread, kernel }
                }
                op => op,
            };
            for program in &mut programs {
                *program = Arc::new(program.iter().map(scaled).collect());
            }
        }
        if self.guest.tlb_lock {
            for (task, program) in (0..).zip(&mut programs) {
                let lock = TLB_LOCKS + task % 8;
                let locked = |op: &Op| match op {
                    Op::Call => vec![Op::Lock(lock), Op::Call, Op::Unlock(lock)],
                    op => vec![*op],
                };
                *program = Arc::new(program.iter().flat_map(locked).collect());
            }
        }
        Ok(programs)
    }

    fn plain_programs(&self) -> Result<Vec<Program>> {
        if let Some(name) = &self.workload {
            if let Some((key, why)) = workload::misfit(name, self.vcpus, self.tasks) {
                return Err(wrong(key, why));
            }
            return workload::preset(name, self.vcpus, self.tasks).ok_or_else(|| {
                let names = workload::names();
                let near = did_you_mean(name, &names);
                let why = format!("there is no \"{name}\"{near}; there are {}", names.join(", "));
                wrong("workload", why)
            });
        }
        let mut programs = Vec::new();
        for (place, spec) in self.programs.iter().enumerate() {
            let key = format!("task.{place}.program");
            let step = |(step, text): (usize, &String)| {
                program::step(text)
                    .map_err(|error| wrong(format!("{key}.{step}"), format!("{error:#}")))
            };
            let ops = spec.program.iter().enumerate().map(step).collect::<Result<Vec<Op>>>()?;
            program::check(&ops).map_err(|error| wrong(&key, error))?;
            let program = Arc::new(ops);
            programs.extend((0..spec.count).map(|_| program.clone()));
        }
        Ok(programs)
    }
}
