//! The InferenceService API: types, rules, names and wire types shared by operator and pods.
