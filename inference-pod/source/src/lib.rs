//! Fetches models: resumed, verified, with typed failures.
