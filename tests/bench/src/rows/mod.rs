//! The rows, a file for each group.

mod calls;
mod catalog;
mod copy;
mod exec;
mod launch;
mod memory;
mod metering;
mod processes;
mod python;
mod runaway;
mod stream;

use crate::row::Row;

/// Every row, in the order of the table.
pub(crate) const ALL: &[Row] = &[
    calls::IN_PROCESS,
    calls::SOCKET,
    calls::MANY,
    metering::METERING,
    exec::DOCKER,
    exec::LOCAL,
    stream::DOCKER,
    stream::LOCAL,
    copy::IN_DOCKER,
    copy::IN_LOCAL,
    copy::OUT_DOCKER,
    copy::OUT_LOCAL,
    launch::DOCKER,
    launch::LOCAL,
    processes::HOST_UP,
    processes::COLD,
    memory::IDLE_SKILL,
    memory::LIVE_INVOCATION,
    catalog::START,
    catalog::LIST,
    python::CALL,
    python::COMPILE,
    runaway::OVERRUN,
    runaway::NEIGHBOUR,
];
