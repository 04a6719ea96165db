//! `tools` and `tool_choice`: which functions a model may or must call.

use pagoda_text::Json;
use pagoda_text::structured::CheckedSchema;
use pagoda_text::tools::{CallPolicy, Tool};
use serde::Deserialize;
use serde_json::Value;

use super::errors::ApiError;
use super::fields::Fields;
use super::generate;

/// Tools of one request at most, as OpenAI has it.
const MAX_TOOLS: usize = 128;

/// Bytes of a function's name at most, as OpenAI has it.
const MAX_NAME_BYTES: usize = 64;

/// The tools of a request.
#[derive(Clone, Debug)]
pub struct ToolUse {
    /// As the client sent them, for the template.
    pub given: Json,
    /// What calls must be, for those that may be called.
    pub tools: Vec<Tool>,
    /// What was chosen.
    pub choice: ToolChoice,
    /// Whether one answer may call several times.
    pub parallel: bool,
}

/// Who decides on calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model.
    Auto,
    /// There must be a call.
    Required,
    /// There must be a call of the one tool in [`ToolUse::tools`].
    Named,
}

impl ToolUse {
    /// How many calls a forced answer has.
    pub fn policy(&self) -> CallPolicy {
        if self.parallel && self.choice == ToolChoice::Required {
            CallPolicy::Many
        } else {
            CallPolicy::One
        }
    }
}

#[derive(Deserialize)]
struct GivenTool {
    r#type: String,
    function: Option<GivenFunction>,
}

#[derive(Deserialize)]
struct GivenFunction {
    name: String,
    parameters: Option<Value>,
    strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum GivenChoice {
    Word(String),
    Function { function: Named },
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// Takes the tools; `None` where there are none or none may be called.
pub fn take(fields: &mut Fields) -> Result<Option<ToolUse>, ApiError> {
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    let given: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let choice = fields.take::<GivenChoice>("tool_choice")?;
    if given.is_empty() {
        return match choice {
            Some(GivenChoice::Word(word)) if word == "none" || word == "auto" => Ok(None),
            None => Ok(None),
            Some(_) => Err(ApiError::bad_param(
                "tool_choice",
                "'tool_choice' asks for a call, but 'tools' is empty",
            )),
        };
    }
    let tools = tools(&given)?;
    let (choice, tools) = match choice {
        None => (ToolChoice::Auto, tools),
        Some(GivenChoice::Word(word)) => match word.as_str() {
            "none" => return Ok(None),
            "auto" => (ToolChoice::Auto, tools),
            "required" => (ToolChoice::Required, tools),
            _ => {
                return Err(ApiError::bad_param(
                    "tool_choice",
                    "'tool_choice' must be none, auto, required or a function of 'tools'",
                ));
            }
        },
        Some(GivenChoice::Function { function }) => {
            (ToolChoice::Named, vec![named(tools, &function.name)?])
        }
    };
    Ok(Some(ToolUse {
        given: generate::json(given.into())?,
        tools,
        choice,
        parallel,
    }))
}

fn tools(given: &[Value]) -> Result<Vec<Tool>, ApiError> {
    if given.len() > MAX_TOOLS {
        return Err(ApiError::bad_param(
            "tools",
            format!(
                "'tools' has {} tools; at most {MAX_TOOLS} are allowed",
                given.len()
            ),
        ));
    }
    let mut tools: Vec<Tool> = Vec::with_capacity(given.len());
    for (index, value) in given.iter().enumerate() {
        let tool = tool(&format!("tools[{index}]"), value)?;
        if tools.iter().any(|other| other.name == tool.name) {
            return Err(ApiError::bad_param(
                &format!("tools[{index}]"),
                format!("two tools are called '{}'", tool.name),
            ));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(param: &str, value: &Value) -> Result<Tool, ApiError> {
    let given: GivenTool = serde::Deserialize::deserialize(value).map_err(|error| {
        ApiError::bad_param(param, format!("'{param}' is not as expected: {error}"))
    })?;
    if given.r#type != "function" {
        return Err(ApiError::unsupported(
            param,
            &format!(
                "a tool of type '{}'",
                given.r#type.chars().take(40).collect::<String>()
            ),
        ));
    }
    let function = given
        .function
        .ok_or_else(|| ApiError::bad_param(param, format!("'{param}.function' is missing")))?;
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if function.name.is_empty()
        || function.name.len() > MAX_NAME_BYTES
        || !function.name.chars().all(is_letter)
    {
        return Err(ApiError::bad_param(
            &format!("{param}.function.name"),
            format!(
                "a function's name has 1 to {MAX_NAME_BYTES} letters, digits, dots, dashes and underscores"
            ),
        ));
    }
    Ok(Tool {
        parameters: parameters(param, &function)?,
        name: function.name,
    })
}

/// Without `strict` a schema is a wish: where it cannot be kept to, any object will do.
fn parameters(param: &str, function: &GivenFunction) -> Result<CheckedSchema, ApiError> {
    let Some(schema) = &function.parameters else {
        return Ok(CheckedSchema::object());
    };
    let param = format!("{param}.function.parameters");
    if !schema.is_object() {
        return Err(ApiError::bad_schema(&param, "it must be an object"));
    }
    match CheckedSchema::new(schema) {
        Ok(schema) => Ok(schema),
        Err(error) if function.strict == Some(true) => {
            Err(ApiError::bad_schema(&param, &error.to_string()))
        }
        Err(_) => Ok(CheckedSchema::object()),
    }
}

fn named(tools: Vec<Tool>, name: &str) -> Result<Tool, ApiError> {
    tools
        .into_iter()
        .find(|tool| tool.name == name)
        .ok_or_else(|| {
            ApiError::bad_param(
                "tool_choice",
                format!(
                    "'tool_choice' names '{}', which is not among 'tools'",
                    name.chars().take(MAX_NAME_BYTES).collect::<String>()
                ),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool_use(body: &Value) -> Result<Option<ToolUse>, ApiError> {
        take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}})
    }

    #[test]
    fn choices_say_what_may_and_must_be_called() {
        let tools = json!([function("a"), function("b")]);
        let of = |choice: Value| tool_use(&json!({"tools": tools, "tool_choice": choice})).unwrap();
        assert!(of(json!("none")).is_none());
        assert_eq!(of(json!(null)).unwrap().choice, ToolChoice::Auto);
        let required = of(json!("required")).unwrap();
        assert_eq!(
            (required.choice, required.policy()),
            (ToolChoice::Required, CallPolicy::Many)
        );
        let named = of(json!({"type": "function", "function": {"name": "b"}})).unwrap();
        assert_eq!(
            (named.choice, named.policy()),
            (ToolChoice::Named, CallPolicy::One)
        );
        assert_eq!(named.tools.len(), 1);
        let one = json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false});
        assert_eq!(tool_use(&one).unwrap().unwrap().policy(), CallPolicy::One);
    }

    #[test]
    fn what_is_wrong_with_tools_is_named() {
        let cases = [
            (json!({"tools": [{"type": "web_search"}]}), "tools[0]"),
            (json!({"tools": [{"type": "function"}]}), "tools[0]"),
            (json!({"tools": [function("a"), function("a")]}), "tools[1]"),
            (
                json!({"tools": [function("a b")]}),
                "tools[0].function.name",
            ),
            (json!({"tools": [function("")]}), "tools[0].function.name"),
            (json!({"tools": vec![function("a"); 129]}), "tools"),
            (json!({"tools": "x"}), "tools"),
            (
                json!({"tools": [function("a")], "tool_choice": "b"}),
                "tool_choice",
            ),
            (
                json!({"tools": [function("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}}),
                "tool_choice",
            ),
            (json!({"tool_choice": "required"}), "tool_choice"),
        ];
        for (body, param) in cases {
            let error = tool_use(&body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn a_schema_that_cannot_be_kept_to_is_refused_where_it_is_strict_and_loose_where_not() {
        let with = |strict: bool| json!({"tools": [{"type": "function", "function": {"name": "f", "strict": strict, "parameters": {"type": "object", "uniqueItems": true}}}]});
        let error = tool_use(&with(true)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[0].function.parameters"));
        let loose = tool_use(&with(false)).unwrap().unwrap();
        assert_eq!(loose.tools[0].parameters, CheckedSchema::object());
    }
}
