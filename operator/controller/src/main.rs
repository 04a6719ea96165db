//! The operator: watches, applies and scales InferenceServices.

fn main() {}
