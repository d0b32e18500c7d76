// SPDX-License-Identifier: GPL-2.0-only
//! How deep the scheduler's functions call each other. Kernels before 7.0 refuse a program of more
//! than eight calls one in another (`MAX_CALL_FRAMES`, kernel/bpf/verifier.c); the emulated host's
//! newest kernel allows sixteen, and would not tell.

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SymbolKind};
use std::collections::HashMap;

const MAX_CALL_FRAMES: usize = 8;

/// BPF_JMP | BPF_CALL, with BPF_PSEUDO_CALL as its source register: to another BPF function.
const CALL: (u8, u8) = (0x85, 1);
const INSN: usize = 8;

type Place = (SectionIndex, u64);

struct Functions {
    names: HashMap<Place, String>,
    calls: HashMap<Place, Vec<Place>>,
}

fn functions(object: &object::File) -> Functions {
    let mut found = Functions { names: HashMap::new(), calls: HashMap::new() };
    for function in object.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let (Some(at), true) = (function.section_index(), function.size() > 0) else { continue };
        let section = object.section_by_index(at).expect("the section exists");
        let (begin, data) = (function.address(), section.data().expect("it has data"));
        let relocations: HashMap<u64, RelocationTarget> =
            section.relocations().map(|(offset, of)| (offset, of.target())).collect();
        let mut calls = Vec::new();
        for offset in (begin..begin + function.size()).step_by(INSN) {
            let insn = &data[offset as usize..][..INSN];
            if (insn[0], insn[1] >> 4) != CALL {
                continue;
            }
            let imm = i32::from_le_bytes(insn[4..].try_into().expect("four bytes"));
            let relative = ((i64::from(imm) + 1) * INSN as i64) as u64;
            let Some(RelocationTarget::Symbol(symbol)) = relocations.get(&offset) else {
                calls.push((at, offset.wrapping_add(relative)));
                continue;
            };
            let symbol = object.symbol_by_index(*symbol).expect("the symbol exists");
            // The kernel's own functions are in none, and no frames of a BPF program.
            let Some(to) = symbol.section_index() else { continue };
            // A static function is named by its section, and where it is there.
            let is_static = symbol.kind() == SymbolKind::Section;
            calls.push((to, if is_static { relative } else { symbol.address() }));
        }
        found.names.insert((at, begin), function.name().expect("it has a name").to_owned());
        found.calls.insert((at, begin), calls);
    }
    found
}

/// The longest chain of calls that begins at `place`.
fn deepest(of: &Functions, place: Place, known: &mut HashMap<Place, Vec<Place>>) -> Vec<Place> {
    if let Some(chain) = known.get(&place) {
        return chain.clone();
    }
    let below = of.calls[&place].iter().map(|to| deepest(of, *to, known)).max_by_key(Vec::len);
    let chain: Vec<Place> = [place].into_iter().chain(below.unwrap_or_default()).collect();
    known.insert(place, chain.clone());
    chain
}

#[test]
fn kernels_with_eight_call_frames_load_the_scheduler() {
    for name in ["bpf.bpf.o", "kvm.bpf.o"] {
        let path = format!("{}/{name}", env!("OUT_DIR"));
        let bytes = std::fs::read(&path).expect("the build has left the object");
        let object = object::File::parse(&*bytes).expect("it is an ELF object");
        let functions = functions(&object);
        let mut known = HashMap::new();
        for place in functions.names.keys() {
            let chain = deepest(&functions, *place, &mut known);
            let names: Vec<&str> = chain.iter().map(|at| functions.names[at].as_str()).collect();
            assert!(names.len() <= MAX_CALL_FRAMES, "{}: {}", names.len(), names.join(" > "));
        }
        let calls: usize = functions.calls.values().map(Vec::len).sum();
        assert!(name != "bpf.bpf.o" || calls > 100, "{calls} calls: the object was not understood");
    }
}
