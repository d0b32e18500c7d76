// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The model: a list that is looked through from end to end. The fuzz target uses it, too.

use memslots::{Error, Flags, MAX_PAGES, MAX_SLOTS, Slot};

#[derive(Clone, Debug)]
pub enum Step {
    Set(Slot<u8>),
    Delete(u32),
}

#[derive(Default)]
pub struct Model(pub Vec<Slot<u8>>);

impl Model {
    /// Whether anything changed.
    pub fn apply(&mut self, step: &Step) -> Result<bool, Error> {
        match step {
            Step::Delete(id) => {
                let at = self.0.iter().position(|s| s.id == *id);
                self.0.remove(at.ok_or(Error::NoSuchId { id: *id })?);
                Ok(true)
            }
            Step::Set(new) => {
                let id = new.id;
                if id % 65_536 >= MAX_SLOTS || id / 65_536 > 1 {
                    return Err(Error::NoSuchId { id });
                }
                let memfd = |s: &Slot<u8>| s.flags.contains(Flags::GUEST_MEMFD);
                if memfd(new) && new.flags.bits() != 4 {
                    return Err(Error::BadFlags { id, flags: new.flags });
                }
                let last = u128::from(new.base_gfn) + u128::from(new.npages);
                let (base_gfn, npages) = (new.base_gfn, new.npages);
                if new.npages == 0 || new.npages > MAX_PAGES || last >= 1 << 52 {
                    return Err(Error::BadRange { base_gfn, npages });
                }
                if self.0.iter().any(|s| s.id / 65_536 != id / 65_536) {
                    return Err(Error::OtherAddressSpace { id });
                }
                let old = self.0.iter().position(|s| s.id == id);
                if let Some(old) = old.map(|at| &self.0[at]) {
                    if memfd(old) || memfd(new) {
                        return Err(Error::Immutable { id });
                    }
                    if old.npages != new.npages {
                        return Err(Error::Resized { id });
                    }
                    if old.backing != new.backing {
                        return Err(Error::Remapped { id });
                    }
                    let readonly = |s: &Slot<u8>| s.flags.contains(Flags::READONLY);
                    if readonly(old) != readonly(new) {
                        return Err(Error::ReadonlyChanged { id });
                    }
                }
                let mut others: Vec<&Slot<u8>> = self.0.iter().filter(|s| s.id != id).collect();
                others.sort_by_key(|s| s.base_gfn);
                let gfns = |s: &Slot<u8>| s.base_gfn..s.base_gfn + s.npages;
                if let Some(other) = others
                    .iter()
                    .find(|s| gfns(s).start < gfns(new).end && gfns(new).start < gfns(s).end)
                {
                    return Err(Error::Overlap { with: other.id });
                }
                if last > 1 << 40 {
                    return Err(Error::BadRange { base_gfn, npages });
                }
                if let Some(old) = old {
                    if self.0[old] == *new {
                        return Ok(false);
                    }
                    self.0.remove(old);
                }
                self.0.push(new.clone());
                Ok(true)
            }
        }
    }

    pub fn find(&self, gfn: u64) -> Option<&Slot<u8>> {
        self.0.iter().find(|s| (s.base_gfn..s.base_gfn + s.npages).contains(&gfn))
    }
}
