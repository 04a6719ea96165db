//! What of JSON Schema is taken, and how much of it.
//!
//! The grammar library ignores keywords that it does not know, lets a schema change its own options (`x-guidance`), and
//! spends time and stack on schemas in proportion to products of their parts. So only known keywords pass, whatever
//! changes nothing is left out, and sizes are bounded, before it sees anything.

use serde_json::{Map, Value};

/// Schemas within a schema at most, itself included.
const MAX_SCHEMAS: usize = 2000;

/// Levels of schemas within schemas at most.
const MAX_DEPTH: usize = 32;

/// Values of all `enum`s at most, and members of all `required`.
const MAX_VALUES: usize = 5000;

/// Bytes of names, patterns and constant strings at most.
const MAX_TEXT_BYTES: usize = 128 << 10;

/// Bytes of one regular expression at most.
const MAX_PATTERN_BYTES: usize = 1024;

/// Regular expressions at most.
const MAX_PATTERNS: usize = 64;

/// Members of all `allOf` at most: they multiply.
const MAX_INTERSECTED: usize = 32;

/// Branches (`anyOf`, `oneOf`) within one member of an `allOf` at most: they multiply across members.
const MAX_INTERSECTED_BRANCHES: usize = 16;

/// The greatest length of a string, and the greatest number of items or properties that a bound may name.
const MAX_LENGTH: u64 = 16_384;
const MAX_COUNT: u64 = 1024;

/// Every integer up to here is a number of its own in the grammar's arithmetic.
const MAX_NUMBER: f64 = 9_007_199_254_740_992.0;

/// Keywords that say nothing about which values are valid.
const ANNOTATIONS: [&str; 17] = [
    "$anchor",
    "$comment",
    "$id",
    "contentEncoding",
    "contentMediaType",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "externalDocs",
    "id",
    "readOnly",
    "title",
    "writeOnly",
    "xml",
];

/// Formats that the grammar knows.
const FORMATS: [&str; 10] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];

const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];

/// A schema that cannot be kept to, with the place and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}, at '{at}' of the schema")]
pub struct SchemaError {
    /// Where, as a JSON pointer.
    pub at: String,
    /// What is wrong.
    pub what: String,
}

/// A schema that the grammar honours to the letter.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedSchema(Value);

impl CheckedSchema {
    /// Checks a client's schema.
    pub fn new(schema: &Value) -> Result<Self, SchemaError> {
        let mut check = Check::default();
        check.schema(schema, 0).map(Self)
    }

    /// Any object.
    pub fn object() -> Self {
        Self(serde_json::json!({"type": "object"}))
    }

    /// What passed.
    pub fn value(&self) -> &Value {
        &self.0
    }
}

/// What was seen so far, and where we are.
#[derive(Default)]
struct Check {
    path: Vec<String>,
    schemas: usize,
    values: usize,
    text_bytes: usize,
    patterns: usize,
    intersected: usize,
}

impl Check {
    fn error<T>(&self, what: impl Into<String>) -> Result<T, SchemaError> {
        let at = if self.path.is_empty() {
            String::new()
        } else {
            format!("/{}", self.path.join("/"))
        };
        Err(SchemaError {
            at,
            what: what.into(),
        })
    }

    fn within<T>(
        &mut self,
        part: &str,
        work: impl FnOnce(&mut Self) -> Result<T, SchemaError>,
    ) -> Result<T, SchemaError> {
        // A name may be long, and the place is for people to read.
        self.path.push(part.chars().take(64).collect());
        let done = work(self);
        if done.is_ok() {
            self.path.pop();
        }
        done
    }

    fn schema(&mut self, schema: &Value, depth: usize) -> Result<Value, SchemaError> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            return self.error(format!("there are more than {MAX_SCHEMAS} schemas"));
        }
        if depth > MAX_DEPTH {
            return self.error(format!("schemas nest deeper than {MAX_DEPTH} levels"));
        }
        match schema {
            Value::Bool(_) => Ok(schema.clone()),
            Value::Object(fields) => self.fields(fields, depth).map(Value::Object),
            _ => self.error("a schema must be an object or a boolean"),
        }
    }

    fn fields(
        &mut self,
        fields: &Map<String, Value>,
        depth: usize,
    ) -> Result<Map<String, Value>, SchemaError> {
        let mut kept = Map::new();
        for (keyword, value) in fields {
            if ANNOTATIONS.contains(&keyword.as_str()) || changes_nothing(keyword, value) {
                continue;
            }
            let value = self.within(keyword, |check| check.keyword(keyword, value, depth))?;
            kept.insert(keyword.clone(), value);
        }
        Ok(kept)
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &Value,
        depth: usize,
    ) -> Result<Value, SchemaError> {
        match keyword {
            "properties" | "$defs" | "definitions" => self.named(value, depth, false),
            "patternProperties" => self.named(value, depth, true),
            "items" if value.is_array() => self.list(value, depth),
            "items" | "additionalProperties" | "additionalItems" => self.schema(value, depth + 1),
            "prefixItems" | "anyOf" | "oneOf" => self.list(value, depth),
            "allOf" => self.intersected(value, depth),
            "$ref" => self.reference(value),
            "$schema" => self.text(value).map(|_| value.clone()),
            "type" => self.types(value),
            "const" => self.constant(value, 0).map(|()| value.clone()),
            "enum" => self.constants(value),
            "required" => self.required(value),
            "pattern" => self.pattern(value),
            "format" => self.format(value),
            "minLength" | "maxLength" => self.bound(value, MAX_LENGTH),
            "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                self.bound(value, MAX_COUNT)
            }
            "minimum" | "maximum" => self.number(value).map(|()| value.clone()),
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => Ok(value.clone()),
            "exclusiveMinimum" | "exclusiveMaximum" => self.number(value).map(|()| value.clone()),
            "multipleOf" => self.multiple(value),
            _ => self.error("this keyword is not supported: leave it out"),
        }
    }

    fn named(
        &mut self,
        value: &Value,
        depth: usize,
        are_patterns: bool,
    ) -> Result<Value, SchemaError> {
        let Value::Object(schemas) = value else {
            return self.error("this must be an object of schemas");
        };
        let mut kept = Map::new();
        for (name, schema) in schemas {
            let schema = self.within(name, |check| {
                check.count_text(name)?;
                if are_patterns {
                    check.count_pattern(name)?;
                }
                check.schema(schema, depth + 1)
            })?;
            kept.insert(name.clone(), schema);
        }
        Ok(Value::Object(kept))
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<Value, SchemaError> {
        let Value::Array(schemas) = value else {
            return self.error("this must be a list of schemas");
        };
        let mut kept = Vec::with_capacity(schemas.len().min(MAX_SCHEMAS));
        for (index, schema) in schemas.iter().enumerate() {
            kept.push(self.within(&index.to_string(), |check| check.schema(schema, depth + 1))?);
        }
        Ok(Value::Array(kept))
    }

    /// Every combination of branches of the members is worked out, so both are few.
    fn intersected(&mut self, value: &Value, depth: usize) -> Result<Value, SchemaError> {
        let members = value.as_array().map_or(0, Vec::len);
        self.intersected += members;
        if self.intersected > MAX_INTERSECTED {
            return self.error(format!(
                "all 'allOf' together have more than {MAX_INTERSECTED} members"
            ));
        }
        if value
            .as_array()
            .into_iter()
            .flatten()
            .map(branches)
            .sum::<usize>()
            > MAX_INTERSECTED_BRANCHES
        {
            return self.error(format!(
                "an 'allOf' has more than {MAX_INTERSECTED_BRANCHES} branches"
            ));
        }
        self.list(value, depth)
    }

    fn reference(&mut self, value: &Value) -> Result<Value, SchemaError> {
        let target = self.text(value)?;
        if target == "#" || target.starts_with("#/") {
            Ok(value.clone())
        } else {
            self.error("only references within the schema are followed: '#/$defs/...'")
        }
    }

    fn types(&mut self, value: &Value) -> Result<Value, SchemaError> {
        let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
        let is_valid = match value {
            Value::Array(types) => !types.is_empty() && types.iter().all(known),
            one => known(one),
        };
        if is_valid {
            Ok(value.clone())
        } else {
            self.error(format!("types are {}", TYPES.join(", ")))
        }
    }

    fn constants(&mut self, value: &Value) -> Result<Value, SchemaError> {
        let Value::Array(values) = value else {
            return self.error("this must be a list of values");
        };
        values
            .iter()
            .try_for_each(|value| self.constant(value, 0))?;
        Ok(value.clone())
    }

    fn constant(&mut self, value: &Value, depth: usize) -> Result<(), SchemaError> {
        self.count_values(1)?;
        if depth > MAX_DEPTH {
            return self.error(format!("a value nests deeper than {MAX_DEPTH} levels"));
        }
        match value {
            Value::String(text) => self.count_text(text),
            Value::Number(_) => self.number(value),
            Value::Array(items) => items
                .iter()
                .try_for_each(|item| self.constant(item, depth + 1)),
            Value::Object(fields) => fields.iter().try_for_each(|(name, item)| {
                self.count_text(name)?;
                self.constant(item, depth + 1)
            }),
            Value::Null | Value::Bool(_) => Ok(()),
        }
    }

    fn required(&mut self, value: &Value) -> Result<Value, SchemaError> {
        let Value::Array(names) = value else {
            return self.error("this must be a list of names");
        };
        self.count_values(names.len())?;
        for name in names {
            self.text(name)?;
        }
        Ok(value.clone())
    }

    fn pattern(&mut self, value: &Value) -> Result<Value, SchemaError> {
        let pattern = self.text(value)?;
        self.count_pattern(&pattern)?;
        Ok(value.clone())
    }

    fn format(&mut self, value: &Value) -> Result<Value, SchemaError> {
        let name = self.text(value)?;
        if FORMATS.contains(&name.as_str()) {
            Ok(value.clone())
        } else {
            self.error(format!("formats are {}", FORMATS.join(", ")))
        }
    }

    fn bound(&mut self, value: &Value, most: u64) -> Result<Value, SchemaError> {
        match value.as_u64() {
            Some(bound) if bound <= most => Ok(value.clone()),
            _ => self.error(format!("this must be a whole number from 0 to {most}")),
        }
    }

    fn number(&mut self, value: &Value) -> Result<(), SchemaError> {
        match value.as_f64() {
            Some(number) if number.abs() <= MAX_NUMBER => Ok(()),
            _ => self.error(format!("this must be a number within ±{MAX_NUMBER}")),
        }
    }

    fn multiple(&mut self, value: &Value) -> Result<Value, SchemaError> {
        match value.as_f64() {
            Some(number) if (1e-6..=1e6).contains(&number) => Ok(value.clone()),
            _ => self.error("this must be a number from 0.000001 to 1000000"),
        }
    }

    fn text(&mut self, value: &Value) -> Result<String, SchemaError> {
        let Value::String(text) = value else {
            return self.error("this must be a string");
        };
        self.count_text(text)?;
        Ok(text.clone())
    }

    fn count_text(&mut self, text: &str) -> Result<(), SchemaError> {
        self.text_bytes += text.len();
        if self.text_bytes > MAX_TEXT_BYTES {
            return self.error(format!(
                "names, patterns and constants are longer than {MAX_TEXT_BYTES} bytes in all"
            ));
        }
        Ok(())
    }

    fn count_values(&mut self, values: usize) -> Result<(), SchemaError> {
        self.values += values;
        if self.values > MAX_VALUES {
            return self.error(format!("there are more than {MAX_VALUES} values in all"));
        }
        Ok(())
    }

    fn count_pattern(&mut self, pattern: &str) -> Result<(), SchemaError> {
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return self.error(format!("there are more than {MAX_PATTERNS} patterns"));
        }
        if pattern.len() > MAX_PATTERN_BYTES {
            return self.error(format!(
                "a pattern is longer than {MAX_PATTERN_BYTES} bytes"
            ));
        }
        Ok(())
    }
}

/// Set to what holds anyway.
fn changes_nothing(keyword: &str, value: &Value) -> bool {
    match keyword {
        "uniqueItems" | "nullable" => *value == Value::Bool(false),
        _ => false,
    }
}

/// How many ways through a schema its unions offer, a union's members counted with their own.
fn branches(schema: &Value) -> usize {
    let Value::Object(fields) = schema else {
        return 0;
    };
    let unions = ["anyOf", "oneOf", "allOf", "type"];
    let members = unions
        .iter()
        .filter_map(|name| fields.get(*name)?.as_array());
    members.flatten().map(|member| 1 + branches(member)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(schema: &Value) -> String {
        CheckedSchema::new(schema).unwrap_err().to_string()
    }

    #[test]
    fn what_would_be_ignored_is_refused_with_its_place() {
        for keyword in [
            "uniqueItems",
            "not",
            "if",
            "contains",
            "propertyNames",
            "nullable",
            "minlength",
            "x-guidance",
            "unevaluatedProperties",
            "$dynamicRef",
        ] {
            let schema = json!({"type": "object", "properties": {"a": {keyword: true}}});
            assert_eq!(
                error(&schema),
                format!(
                    "this keyword is not supported: leave it out, at '/properties/a/{keyword}' of the schema"
                )
            );
        }
    }

    #[test]
    fn annotations_are_left_out_and_the_rest_is_kept_in_its_order() {
        let schema = json!({
            "title": "T", "type": "object", "description": "d", "nullable": false,
            "properties": {"b": {"type": "string", "default": "x"}, "a": {"type": "integer", "minimum": 1}},
            "required": ["b"], "additionalProperties": false,
        });
        let checked = CheckedSchema::new(&schema).unwrap();
        assert_eq!(
            checked.value().to_string(),
            r#"{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer","minimum":1}},"required":["b"],"additionalProperties":false}"#
        );
    }

    #[test]
    fn a_property_may_bear_the_name_of_a_keyword() {
        let schema = json!({"properties": {"title": {"type": "string"}, "not": {"type": "null"}}});
        assert_eq!(CheckedSchema::new(&schema).unwrap().value(), &schema);
    }

    #[test]
    fn sizes_are_bounded() {
        let mut deep = json!({"type": "string"});
        for _ in 0..40 {
            deep = json!({"type": "array", "items": deep});
        }
        let wide: Map<String, Value> = (0..3000).map(|n| (format!("p{n}"), json!({}))).collect();
        let values: Vec<usize> = (0..6000).collect();
        let union =
            |n: usize| json!({"anyOf": (0..n).map(|k| json!({"const": k})).collect::<Vec<_>>()});
        let cases = [
            (deep, "nest deeper than 32"),
            (json!({"properties": wide}), "more than 2000 schemas"),
            (json!({"enum": values}), "more than 5000 values"),
            (
                json!({"const": "x".repeat(200_000)}),
                "longer than 131072 bytes",
            ),
            (
                json!({"pattern": "a".repeat(2000)}),
                "longer than 1024 bytes",
            ),
            (json!({"maxItems": 1_000_000_000}), "from 0 to 1024"),
            (json!({"minLength": 1e18}), "from 0 to 16384"),
            (json!({"minLength": -1}), "from 0 to 16384"),
            (json!({"maximum": 1e300}), "within"),
            (json!({"multipleOf": 0}), "from 0.000001"),
            (json!({"allOf": vec![union(9); 2]}), "more than 16 branches"),
            (
                json!({"allOf": vec![json!({}); 40]}),
                "more than 32 members",
            ),
        ];
        for (schema, expected) in cases {
            assert!(error(&schema).contains(expected), "{}", error(&schema));
        }
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused_and_none_panics() {
        let wrong = [
            json!(null),
            json!(7),
            json!("äöü".repeat(60)),
            json!([1]),
            json!({"a": 1}),
        ];
        for keyword in [
            "properties",
            "items",
            "anyOf",
            "allOf",
            "$ref",
            "type",
            "enum",
            "required",
            "pattern",
            "format",
            "minLength",
            "minItems",
            "minimum",
            "multipleOf",
            "additionalProperties",
        ] {
            let refused = wrong
                .iter()
                .filter(|value| CheckedSchema::new(&json!({keyword: value})).is_err());
            assert!(refused.count() >= 2, "{keyword}");
        }
        for schema in [json!([]), json!("x"), json!(null)] {
            assert!(error(&schema).starts_with("a schema must be an object"));
        }
    }

    #[test]
    fn references_stay_within_the_schema() {
        for target in [
            "http://example.com/x",
            "other.json#/a",
            "file:///etc/passwd",
            "#anchor",
        ] {
            assert!(error(&json!({"$ref": target})).contains("only references within"));
        }
    }
}
