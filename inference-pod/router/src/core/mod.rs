//! The gateway's decisions: value in, value out.

pub mod hold;
pub mod request_model;
pub mod retry;
pub mod routes;
pub mod traffic;

pub use pagoda_router_core::choose;
