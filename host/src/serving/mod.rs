//! How calls come in over connections: one connection, and all of a listener.

mod connection;
mod connections;

pub(crate) use connection::{Admitted, Door, NotAdmitted, PATIENCE, serve_connection, turn_away};
#[cfg(feature = "http")]
pub(crate) use connections::{Busy, ServedConnection};
pub(crate) use connections::{Connections, TenantPlace, TenantPlaces};
