//! What it costs that a guest can be stopped: fuel and epochs, against neither.

use anyhow::{Result, ensure};
use skillhost::engine::{Allocation, wasmtime_config};
use wasm_encoder::{
    BlockType, CodeSection, ExportKind, ExportSection, Function, FunctionSection, Instruction, Module, TypeSection,
    ValType,
};
use wasmtime::{Engine, Instance, Store, TypedFunc};

use crate::bare;
use crate::row::{Control, Row, Unit};
use crate::sample::{Sampled, Side, interleave};
use crate::world::Bench;

/// Turns of the loop in a sample.
const TURNS: i32 = 2_000_000;

pub(super) const METERING: Row = Row {
    name: "metering",
    what: "two million turns of an empty loop with fuel and epochs: the worst case, for each turn is counted and does nothing",
    unit: Unit::Time,
    goal: None,
    controls: &[Control { what: "the same code under the same settings without them", goal: None }],
    run,
};

/// The function, and what it runs in.
struct Loop {
    store: Store<()>,
    turn: TypedFunc<i32, i32>,
}

fn run(bench: &Bench) -> Result<Sampled> {
    let code = empty_loop();
    let mut plain = wasmtime_config(Allocation::Pooling);
    plain.consume_fuel(false).epoch_interruption(false);
    let mut metered = Loop::new(&bare::engine()?, &code)?;
    let mut plain = Loop::new(&Engine::new(&plain)?, &code)?;
    metered.store.set_epoch_deadline(bare::NEVER);
    let subject = Side::timed(|| {
        metered.store.set_fuel(u64::MAX)?;
        metered.run()
    });
    interleave(bench.pace, subject, vec![Ok(Side::timed(|| plain.run()))])
}

impl Loop {
    fn new(engine: &Engine, code: &[u8]) -> Result<Self> {
        let module = wasmtime::Module::from_binary(engine, code)?;
        let mut store = Store::new(engine, ());
        if store.set_fuel(u64::MAX).is_ok() {
            store.set_epoch_deadline(bare::NEVER);
        }
        let instance = Instance::new(&mut store, &module, &[])?;
        let turn = instance.get_typed_func(&mut store, "turn")?;
        Ok(Self { store, turn })
    }

    fn run(&mut self) -> Result<()> {
        let left = self.turn.call(&mut self.store, TURNS)?;
        ensure!(left == 0, "the loop ended with {left} turns to go");
        Ok(())
    }
}

/// `turn(n)`: counts n down to nothing.
fn empty_loop() -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32], [ValType::I32]);
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut exports = ExportSection::new();
    exports.export("turn", ExportKind::Func, 0);
    let mut turn = Function::new([]);
    for instruction in [
        Instruction::Loop(BlockType::Empty),
        Instruction::LocalGet(0),
        Instruction::I32Const(1),
        Instruction::I32Sub,
        Instruction::LocalTee(0),
        Instruction::BrIf(0),
        Instruction::End,
        Instruction::LocalGet(0),
        Instruction::End,
    ] {
        turn.instruction(&instruction);
    }
    let mut code = CodeSection::new();
    code.function(&turn);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&exports).section(&code);
    module.finish()
}
