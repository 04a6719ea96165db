//! The inference pod: an OpenAI-compatible server around the embedded engine.

fn main() {}
