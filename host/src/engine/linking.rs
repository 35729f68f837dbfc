//! The linker of all calls, and the question whether it takes a component that has not been compiled.

use skillhost_api::error::Result;
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};

use super::config;
use super::invocation::StoreData;
use crate::capabilities::{self, Context};
use crate::skills::{Descriptor, describe_linked};

/// All that a component may import.
pub(super) fn linker(engine: &Engine) -> wasmtime::Result<Linker<StoreData<Context>>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    capabilities::add_to_linker(&mut linker)?;
    Ok(linker)
}

/// Describes a component, with whether it links here.
pub fn describe(component: &[u8]) -> Result<Descriptor> {
    describe_linked(component, |probe| links(probe).map_err(|error| format!("{error:#}")))
}

/// Compiles the probe, which has imports and no code, and links it.
fn links(probe: &[u8]) -> wasmtime::Result<()> {
    let engine = config::compiler()?;
    let probe = Component::new(&engine, probe)?;
    linker(&engine)?.instantiate_pre(&probe).map(drop)
}
