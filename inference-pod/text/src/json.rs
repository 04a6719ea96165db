//! Editing JSON values that keep the order of their keys.

use minijinja::value::ValueKind;
use serde::Deserialize as _;
use serde::de::value::MapDeserializer;

use crate::chat::Json;

/// An object of these entries, in this order.
pub(crate) fn object(entries: impl Iterator<Item = (Json, Json)>) -> Json {
    // Deserialising is the engine's only way to a map that keeps an order of values' own.
    Json::deserialize(MapDeserializer::new(entries))
        .unwrap_or_else(|_: minijinja::Error| Json::from(()))
}

/// Keys and values of an object, in order; nothing for any other value.
pub(crate) fn entries(value: &Json) -> impl Iterator<Item = (Json, Json)> {
    let is_map = value.kind() == ValueKind::Map;
    let keys = value
        .try_iter()
        .ok()
        .filter(|_| is_map)
        .into_iter()
        .flatten();
    keys.map(|key| {
        let item = value.get_item(&key).unwrap_or_default();
        (key, item)
    })
}

/// The object with one of its values changed; any other value as it is.
fn edited(value: &Json, key: &str, edit: impl Fn(&Json) -> Json) -> Json {
    if value.kind() != ValueKind::Map {
        return value.clone();
    }
    object(entries(value).map(|(name, item)| {
        let item = if name.as_str() == Some(key) {
            edit(&item)
        } else {
            item
        };
        (name, item)
    }))
}

/// Tool calls whose arguments are objects: clients send them as JSON text, templates write them
/// with `tojson`. Text that is no object stays as it is.
pub(crate) fn with_parsed_arguments(calls: &Json) -> Json {
    if calls.kind() != ValueKind::Seq {
        return calls.clone();
    }
    let parsed = |arguments: &Json| {
        let object = arguments
            .as_str()
            .and_then(|text| serde_json::from_str::<Json>(text).ok());
        object
            .filter(|value| value.kind() == ValueKind::Map)
            .unwrap_or_else(|| arguments.clone())
    };
    let items = calls.try_iter().into_iter().flatten();
    let call = |call: Json| {
        edited(&call, "function", |function| {
            edited(function, "arguments", parsed)
        })
    };
    Json::from(items.map(call).collect::<Vec<_>>())
}
