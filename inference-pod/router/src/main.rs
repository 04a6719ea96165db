//! The gateway: routes each request to the pod that answers first.

fn main() {}
