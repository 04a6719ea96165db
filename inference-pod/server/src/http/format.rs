//! `response_format`: what an answer must look like.

use pagoda_text::structured::CheckedSchema;
use serde::Deserialize;
use serde_json::Value;

use super::errors::ApiError;
use super::fields::Fields;

/// Longest name of a schema.
const MAX_NAME_BYTES: usize = 64;

/// What an answer must look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum AnswerFormat {
    /// Anything.
    #[default]
    Text,
    /// JSON of a schema. `json_object` is any object.
    Json(CheckedSchema),
}

#[derive(Deserialize)]
struct Given {
    r#type: String,
    json_schema: Option<GivenSchema>,
}

#[derive(Deserialize)]
struct GivenSchema {
    // Only a label; OpenAI wants it.
    name: Option<String>,
    schema: Option<Value>,
}

/// Takes `response_format`. A schema is kept to whether it calls itself strict or not.
pub fn take(fields: &mut Fields) -> Result<AnswerFormat, ApiError> {
    let Some(given) = fields.take::<Given>("response_format")? else {
        return Ok(AnswerFormat::Text);
    };
    match given.r#type.as_str() {
        "text" => Ok(AnswerFormat::Text),
        "json_object" => Ok(AnswerFormat::Json(CheckedSchema::object())),
        "json_schema" => json_schema(given.json_schema),
        other => Err(ApiError::bad_param(
            "response_format.type",
            format!(
                "'response_format.type' must be text, json_object or json_schema, got '{}'",
                other.chars().take(40).collect::<String>()
            ),
        )),
    }
}

fn json_schema(given: Option<GivenSchema>) -> Result<AnswerFormat, ApiError> {
    const PARAM: &str = "response_format.json_schema";
    let given = given.ok_or_else(|| ApiError::bad_param(PARAM, format!("'{PARAM}' is missing")))?;
    if given.name.is_some_and(|name| name.len() > MAX_NAME_BYTES) {
        return Err(ApiError::bad_param(
            "response_format.json_schema.name",
            format!("'{PARAM}.name' must have at most {MAX_NAME_BYTES} bytes"),
        ));
    }
    match given.schema {
        // OpenAI: without a schema any object is meant.
        None => Ok(AnswerFormat::Json(CheckedSchema::object())),
        Some(schema) => CheckedSchema::new(&schema)
            .map(AnswerFormat::Json)
            .map_err(|error| ApiError::bad_schema(SCHEMA_PARAM, &error.to_string())),
    }
}

/// The parameter at fault when a schema is.
pub const SCHEMA_PARAM: &str = "response_format.json_schema.schema";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn format(value: &Value) -> Result<AnswerFormat, ApiError> {
        let body = json!({"response_format": value}).to_string();
        take(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn the_three_types_are_taken() {
        assert_eq!(
            format(&json!({"type": "text"})).unwrap(),
            AnswerFormat::Text
        );
        assert_eq!(format(&json!(null)).unwrap(), AnswerFormat::Text);
        let object = AnswerFormat::Json(CheckedSchema::object());
        assert_eq!(format(&json!({"type": "json_object"})).unwrap(), object);
        let schema = json!({"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": {"type": "integer"}}});
        assert!(
            matches!(format(&schema).unwrap(), AnswerFormat::Json(checked) if checked.value() == &json!({"type": "integer"}))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let param = |value: &Value| format(value).unwrap_err().param.unwrap();
        assert_eq!(param(&json!("json")), "response_format");
        assert_eq!(param(&json!({"type": "grammar"})), "response_format.type");
        assert_eq!(
            param(&json!({"type": "json_schema"})),
            "response_format.json_schema"
        );
        let bad = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"uniqueItems": true}}});
        assert_eq!(param(&bad), SCHEMA_PARAM);
    }
}
