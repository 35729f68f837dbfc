//! What of WebAssembly a component may use. Who describes a component and who compiles it hold to this one set, so that
//! none is listed whose calls would all fail.

use skillhost_api::error::{Error, Result};
use wasmparser::{Validator, WasmFeatures};

/// What Wasmtime has on by itself, and two types of the component model: no action can take one, but beside them a component's
/// other functions can be called. Off is what the engine is built without (threads, garbage collection, exceptions,
/// concurrency) and what Wasmtime calls incomplete.
pub const FEATURES: WasmFeatures = WasmFeatures::WASM3
    .difference(WasmFeatures::THREADS)
    .difference(WasmFeatures::GC_TYPES)
    .difference(WasmFeatures::EXCEPTIONS)
    .union(WasmFeatures::COMPONENT_MODEL)
    .union(WasmFeatures::CM_MAP)
    .union(WasmFeatures::CM_FIXED_LENGTH_LISTS);

/// Refuses a component that uses anything else, or is not valid.
pub(super) fn check(component: &[u8]) -> Result<()> {
    match Validator::new_with_features(FEATURES).validate_all(component) {
        Ok(_) => Ok(()),
        Err(error) if error.message().contains("component model async") => Err(Error::invalid_argument(format!(
            "the component has asynchronous functions, streams or futures, which this host does not call yet ({error}): take \
             `async`, `stream` and `future` out of its WIT"
        ))),
        Err(error) => Err(Error::invalid_argument(format!(
            "this host's engine does not take the component: {error}; build it without that, or again with a current toolchain"
        ))),
    }
}
