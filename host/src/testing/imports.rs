//! The interfaces of `skillhost:skill` for a test: with fakes behind them, or with the host, which the fakes then look on.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::Value;
use skillhost_guest::testing::{Clock, FUNCTIONS, Fakes};
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, ResourceType, Val};
use wasmtime_wasi::WasiCtxBuilder;

use super::fake_wasi;
use super::json_values::{ContainerHandle, ProcessHandle, ShellHandle, SubscriptionHandle, from_val, to_val};
use super::witness::Witness;
use crate::capabilities::{Context, Log, by_name};
use crate::engine::{ImportContext, StoreData};
use crate::skills::imports::{PACKAGE, VERSION};

/// What a tested component's imports work with.
pub(super) struct TestContext {
    pub(super) fakes: Arc<Mutex<Fakes>>,
    pub(super) log: Log,
    pub(super) deadline: Instant,
    pub(super) world: World,
}

/// Who does what the skill asks for.
pub(super) enum World {
    /// Nobody: the fakes answer, and it is as late as the test says.
    Fake(Clock),
    /// The host. The fakes hold to the test what is asked, before it is done.
    Real(Box<Context>, Arc<Mutex<Witness>>),
}

impl ImportContext for TestContext {
    fn log(&self) -> &Log {
        &self.log
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn with_wasi(&self, wasi: &mut WasiCtxBuilder) {
        if let World::Fake(clock) = &self.world {
            fake_wasi::define(wasi, clock);
        }
    }
}

impl TestContext {
    fn real(&mut self) -> Option<&mut Context> {
        match &mut self.world {
            World::Fake(_) => None,
            World::Real(context, _) => Some(context),
        }
    }
}

type Store = StoreData<TestContext>;

fn full_name(interface: &str) -> String {
    format!("{PACKAGE}/{interface}@{VERSION}")
}

/// Puts every interface of the package into a linker.
pub(super) fn define(linker: &mut Linker<Store>) -> wasmtime::Result<()> {
    // It has types alone.
    linker.instance(&full_name("types"))?;
    for (interface, function) in FUNCTIONS {
        linker.instance(&full_name(interface))?.func_new_async(
            function,
            move |mut store, ty, arguments, results| {
                Box::new(async move {
                    let answer = answer(&mut store, interface, function, arguments).await?;
                    for (result, ty) in results.iter_mut().zip(ty.results()) {
                        *result = to_val(&mut store, &answer, &ty)?;
                    }
                    Ok(())
                })
            },
        )?;
    }
    resource::<ContainerHandle>(linker, "sandbox", "container")?;
    resource::<ProcessHandle>(linker, "sandbox", "process")?;
    resource::<ShellHandle>(linker, "sandbox", "shell")?;
    resource::<SubscriptionHandle>(linker, "blackboard", "subscription")
}

fn resource<T: 'static>(linker: &mut Linker<Store>, interface: &str, name: &'static str) -> wasmtime::Result<()> {
    let ty = ResourceType::host::<T>();
    linker.instance(&full_name(interface))?.resource_async(name, ty, move |mut store, number| {
        Box::new(async move {
            let TestContext { fakes, world, .. } = store.data().context();
            match world {
                World::Fake(_) => fakes.lock().dropped(name, number),
                World::Real(_, witness) => {
                    if let Some(number) = witness.lock().dropped(name, number) {
                        fakes.lock().dropped(name, number);
                    }
                }
            }
            match store.data_mut().view_of(TestContext::real) {
                Some(mut view) => by_name::release(&mut view, name, number).await,
                None => Ok(()),
            }
        })
    })
}

async fn answer(
    store: &mut StoreContextMut<'_, Store>,
    interface: &str,
    function: &str,
    arguments: &[Val],
) -> wasmtime::Result<Value> {
    let values: Vec<Value> = arguments.iter().map(|value| from_val(store, value)).collect::<wasmtime::Result<_>>()?;
    let context = store.data().context();
    // Lines of the log are held to the skill's own limit; from there they come to the fakes.
    let level = values.first().and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
    match (interface, function, values.as_slice()) {
        ("log", "log", [_, Value::String(message)]) => {
            context.log.line(&level, message.clone());
            return Ok(Value::Null);
        }
        ("log", "progress", [Value::Number(done), total, Value::String(message)]) => {
            context.log.progress(done.as_u64().unwrap_or_default(), total.as_u64(), message.clone());
            return Ok(Value::Null);
        }
        _ => {}
    }
    let fakes = context.fakes.clone();
    let ask =
        |values| fakes.lock().call(interface, function, values).map_err(|mismatch| wasmtime::Error::msg(mismatch.0));
    let witness = match &context.world {
        World::Fake(_) => return ask(values),
        World::Real(_, witness) => witness.clone(),
    };
    let (held, seen) = witness.lock().as_the_fakes_know_it(interface, function, values.clone());
    let expected = ask(seen)?;
    let Some(mut view) = store.data_mut().view_of(TestContext::real) else { return Ok(expected) };
    let answer = by_name::call(&mut view, interface, function, values).await?;
    witness.lock().saw(fakes.lock().effects(), function, held, &expected, &answer);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use skillhost_guest::testing::FUNCTIONS;

    use crate::capabilities::by_name;

    #[test]
    fn every_function_of_the_package_has_a_fake_and_a_name() {
        let mut wit = wit_parser::Resolve::default();
        let (package, _) = wit.push_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../wit")).unwrap();
        let interfaces = wit.packages[package].interfaces.iter();
        let functions = interfaces
            .flat_map(|(name, id)| wit.interfaces[*id].functions.keys().map(move |function| (name, function)));
        let of_wit: BTreeSet<_> = functions.map(|(name, function)| (name.as_str(), function.as_str())).collect();
        assert_eq!(of_wit, FUNCTIONS.iter().copied().collect());
        let of_the_log = FUNCTIONS.iter().filter(|(interface, _)| *interface == "log");
        assert_eq!(of_wit, by_name::NAMES.iter().chain(of_the_log).copied().collect());
    }
}
