//! Fixtures of this crate's tests.

use pagoda_crds::InferenceService;
use serde_json::{Value, json};

use crate::validate::{Service, validate};

/// An object as the API server would hand it out.
pub fn service(mut spec: Value) -> InferenceService {
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|_, value| !value.is_null());
    }
    serde_json::from_value(json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo", "namespace": "team-a", "uid": "2f1c", "generation": 3},
        "spec": spec
    }))
    .expect("a spec of the test")
}

/// The same, checked.
pub fn checked(spec: Value) -> Service {
    validate(&service(spec)).expect("a valid spec of the test")
}
