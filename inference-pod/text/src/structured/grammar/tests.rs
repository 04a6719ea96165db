use serde_json::{Value, json};

use super::*;
use crate::tools::{CallPolicy, Tool, ToolFormat};

const EOS: u32 = 257;

fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(&Tokenizer::bytes()).unwrap()
}

fn constraint(schema: &Value) -> Constraint {
    let schema = CheckedSchema::new(schema).unwrap();
    compiler().compile(&Form::Json(schema)).unwrap()
}

fn has(mask: &TokenMask, token: u32) -> bool {
    mask.words()[token as usize / 32] >> (token % 32) & 1 == 1
}

/// Whether a form lets a text be written to its end.
fn takes(constraint: &Constraint, text: &str) -> bool {
    let mut constraint = constraint.clone();
    for byte in text.bytes() {
        if constraint.is_complete() || !has(&constraint.allowed().unwrap(), byte.into()) {
            return false;
        }
        constraint.consume(byte.into()).unwrap();
    }
    constraint.is_complete() || has(&constraint.allowed().unwrap(), EOS)
}

#[test]
fn only_json_of_the_schema_can_be_written() {
    let schema = json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    });
    let form = constraint(&schema);
    for text in [
        r#"{"name":"Ada","age":36}"#,
        r#"{ "name": "é\n", "age": 0 }"#,
    ] {
        assert!(takes(&form, text), "{text}");
    }
    for text in [
        "",
        "{}",
        r#"{"name":"Ada"}"#,
        r#"{"name":"Ada","age":151}"#,
        r#"{"name":"Ada","age":-1}"#,
        r#"{"name":"Adalbert","age":1}"#,
        r#"{"name":"Ada","age":36,"x":1}"#,
        r#"{"name":"Ada","age":36"#,
        r#"{"name":"Ada","age":"36"}"#,
        r#"sure: {"name":"Ada","age":36}"#,
    ] {
        assert!(!takes(&form, text), "{text}");
    }
}

#[test]
fn an_object_is_any_object_and_nothing_else() {
    let form = compiler()
        .compile(&Form::Json(CheckedSchema::object()))
        .unwrap();
    for text in ["{}", r#"{"a": [1, {"b": null}]}"#] {
        assert!(takes(&form, text), "{text}");
    }
    for text in ["[]", "1", "null", r#"{"a"}"#, "{}{}"] {
        assert!(!takes(&form, text), "{text}");
    }
}

#[test]
fn white_space_cannot_fill_an_answer() {
    let form = compiler()
        .compile(&Form::Json(CheckedSchema::object()))
        .unwrap();
    assert!(takes(&form, &format!("{{{}}}", " ".repeat(20))));
    assert!(!takes(&form, &format!("{{{}}}", " ".repeat(60))));
}

type Case = (Value, Vec<&'static str>, Vec<&'static str>);

/// A schema for each keyword that the check lets pass, with texts that can and that cannot be written by it.
#[allow(clippy::too_many_lines, reason = "a table")]
fn keywords() -> Vec<Case> {
    vec![
        (
            json!({"enum": ["a", 2, null]}),
            vec![r#""a""#, "2", "null"],
            vec![r#""b""#, "3"],
        ),
        (
            json!({"const": {"a": [1]}}),
            vec![r#"{"a":[1]}"#],
            vec![r#"{"a":[2]}"#, "{}"],
        ),
        (
            json!({"type": ["string", "null"]}),
            vec![r#""x""#, "null"],
            vec!["1"],
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            vec![r#""aa""#],
            vec![r#""ab""#, r#""""#],
        ),
        (
            json!({"type": "string", "pattern": "b"}),
            vec![r#""abc""#],
            vec![r#""ac""#],
        ),
        (
            json!({"type": "string", "minLength": 2}),
            vec![r#""ab""#],
            vec![r#""a""#],
        ),
        (
            json!({"type": "string", "format": "date"}),
            vec![r#""2024-02-29""#],
            vec![r#""2024-13-01""#],
        ),
        (
            json!({"type": "string", "format": "uuid"}),
            vec![r#""123e4567-e89b-12d3-a456-426614174000""#],
            vec![r#""123""#],
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            vec!["10", "0"],
            vec!["7"],
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 1, "maximum": 2}),
            vec!["1.5", "2"],
            vec!["1", "2.1"],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}),
            vec!["[1]", "[1,2]"],
            vec!["[]", "[1,2,3]", r#"["a"]"#],
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, "minItems": 2}),
            vec![r#"[1,"a"]"#],
            vec![r#"["a",1]"#, r#"[1,"a",2]"#, "[1]"],
        ),
        (
            json!({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "null"}}),
            vec!["[1,null]"],
            vec!["[1,2]"],
        ),
        (
            json!({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}),
            vec!["1", "true"],
            vec!["null"],
        ),
        (
            json!({"oneOf": [{"const": 1}, {"const": "a"}]}),
            vec!["1", r#""a""#],
            vec!["2"],
        ),
        (
            json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}),
            vec!["4"],
            vec!["2", "6"],
        ),
        (
            json!({"type": "object", "patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": false}),
            vec![r#"{"n1":1}"#, "{}"],
            vec![r#"{"n1":"a"}"#, r#"{"m":1}"#],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            vec![r#"{"a":1,"b":2}"#],
            vec![r#"{"a":"b"}"#],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 1}),
            vec![r#"{"a":1}"#],
            vec!["{}", r#"{"a":1,"b":2}"#],
        ),
        (
            json!({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}),
            vec!["[[],[[]]]"],
            vec!["[1]"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {"type": "null"}}}),
            vec![r#"{"a":null}"#],
            vec![r#"{"a":1}"#],
        ),
        (json!(true), vec!["1", "[]"], vec!["x"]),
    ]
}

/// Each keyword that the check lets pass is kept to: a valid text can be written, an invalid one cannot.
#[test]
fn every_keyword_that_passes_is_kept_to() {
    let cases = keywords();
    for (schema, valid, invalid) in cases {
        let form = constraint(&schema);
        for text in valid {
            assert!(takes(&form, text), "{text} by {schema}");
        }
        for text in invalid {
            assert!(!takes(&form, text), "{text} by {schema}");
        }
    }
}

#[test]
fn what_no_value_satisfies_or_the_library_cannot_do_is_an_error_in_words() {
    let compiler = compiler();
    for schema in [
        json!(false),
        json!({"enum": []}),
        json!({"type": "integer", "minimum": 5, "maximum": 3}),
        json!({"type": "object", "required": ["a"], "additionalProperties": false, "properties": {"a": false}}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]}),
        json!({"type": "string", "pattern": "(?=a)b"}),
        json!({"type": "string", "pattern": "(a"}),
        json!({"type": "string", "pattern": r"(a)\1"}),
    ] {
        let checked = CheckedSchema::new(&schema).unwrap();
        let error = compiler.compile(&Form::Json(checked)).unwrap_err();
        let GrammarError::Unsupported(message) = error else {
            panic!("{error}")
        };
        assert!(
            !message.is_empty() && message.len() <= 1200,
            "{schema}: {message}"
        );
    }
}

#[test]
fn schemas_and_patterns_that_explode_are_refused_or_harmless() {
    let compiler = compiler();
    let chain = |length: usize| {
        let definitions: serde_json::Map<String, Value> = (0..length)
            .map(|n| (format!("d{n}"), json!({"type": "array", "items": {"$ref": format!("#/$defs/d{}", (n + 1) % length)}})))
            .collect();
        json!({"$ref": "#/$defs/d0", "$defs": definitions})
    };
    let union = |n: usize| json!({"anyOf": (0..n).map(|k| json!({"type": "object", "properties": {format!("p{k}"): {"type": "integer"}}})).collect::<Vec<_>>()});
    let doubling = |levels: usize| {
        let mut definitions = serde_json::Map::new();
        for n in 0..levels {
            let next = format!("#/$defs/d{}", n + 1);
            definitions.insert(
                format!("d{n}"),
                json!({"allOf": [{"$ref": next}, {"$ref": next}]}),
            );
        }
        definitions.insert(format!("d{levels}"), union(4));
        json!({"$ref": "#/$defs/d0", "$defs": definitions})
    };
    let bombs = [
        chain(400),
        doubling(15),
        json!({"allOf": [union(4), union(4), union(4), union(4)]}),
        json!({"type": "string", "pattern": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"}),
        json!({"type": "string", "pattern": "(a|aa|aaa)*(b|a)*c{500}"}),
        json!({"type": "string", "pattern": "(.*a){60}.*"}),
        json!({"type": "string", "pattern": "[a-z]{1000}", "minLength": 16_000}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "array", "maxItems": 1024, "minItems": 1000}, "maxItems": 1024, "minItems": 1000}, "minItems": 1000}),
        json!({"type": "object", "patternProperties": (0..60).map(|n| (format!("^p{n}.*x{{100}}$"), json!({}))).collect::<serde_json::Map<_, _>>()}),
        json!({"enum": (0..5000).map(|n| format!("value number {n}")).collect::<Vec<_>>()}),
        json!({"type": "number", "multipleOf": 0.000_001, "minimum": -9e15, "maximum": 9e15}),
    ];
    std::thread::scope(|scope| {
        let work = || {
            for bomb in &bombs {
                drive(&compiler, bomb);
            }
        };
        let thread = std::thread::Builder::new()
            .stack_size(64 << 20)
            .spawn_scoped(scope, work);
        thread.unwrap().join().unwrap();
    });
}

/// Writes by a schema for a while, always the least of the tokens that may come. Whatever is refused is refused in words.
fn drive(compiler: &GrammarCompiler, schema: &Value) {
    let Ok(checked) = CheckedSchema::new(schema) else {
        return;
    };
    let Ok(mut form) = compiler.compile(&Form::Json(checked)) else {
        return;
    };
    for _ in 0..64 {
        let Ok(mask) = form.allowed() else { return };
        let may = |token: &u32| has(&mask, *token);
        let next = (b'!'.into()..258).chain(0..b'!'.into()).find(may);
        let next = next.expect("some token may come");
        if form.consume(next).is_err() || form.is_complete() {
            return;
        }
    }
}

#[test]
fn a_forced_call_is_a_call_of_one_of_the_tools_with_arguments_of_its_schema() {
    let tool = |name: &str, property: &str| {
        Tool {
        name: name.into(),
        parameters: CheckedSchema::new(&json!({
            "type": "object", "properties": {property: {"type": "integer"}}, "required": [property], "additionalProperties": false,
        }))
        .unwrap(),
    }
    };
    let tools = [tool("add", "n"), tool("say \"hi\"", "times")];
    let tokenizer = Tokenizer::bytes();
    let compiler = compiler();
    let form = |format: ToolFormat, policy| {
        compiler
            .compile(&format.forced(&tools, policy, None, &tokenizer))
            .unwrap()
    };
    let hermes = form(ToolFormat::Hermes, CallPolicy::Many);
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\": 1}}\n</tool_call>";
    assert!(takes(&hermes, call));
    assert!(takes(&hermes, &format!("{call}\n{call}")));
    assert!(!takes(
        &form(ToolFormat::Hermes, CallPolicy::One),
        &format!("{call}\n{call}")
    ));
    for wrong in [
        "Hello",
        "<tool_call>\n{\"name\": \"sub\", \"arguments\": {\"n\": 1}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"times\": 1}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>",
    ] {
        assert!(!takes(&hermes, wrong), "{wrong}");
    }
    let either = ToolFormat::Hermes.forced(
        &tools,
        CallPolicy::One,
        Some(&CheckedSchema::object()),
        &tokenizer,
    );
    let either = compiler.compile(&either).unwrap();
    assert!(takes(&either, call) && takes(&either, "{\"a\": 1}") && !takes(&either, "text"));
    assert!(takes(
        &form(ToolFormat::Mistral, CallPolicy::Many),
        "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"n\": 1}}, {\"name\": \"say \\\"hi\\\"\", \"arguments\": {\"times\": 2}}]"
    ));
    assert!(takes(
        &form(ToolFormat::Llama, CallPolicy::One),
        "{\"name\": \"add\", \"parameters\": {\"n\": 1}}"
    ));
}

#[test]
fn copies_of_a_constraint_go_their_own_ways() {
    let form = constraint(&json!({"enum": ["ab", "cd"]}));
    let (mut one, mut other) = (form.clone(), form);
    for byte in *b"\"ab\"" {
        one.consume(byte.into()).unwrap();
    }
    assert!(one.is_complete());
    assert!(!other.is_complete());
    other.consume(u32::from(b'"')).unwrap();
    assert!(has(&other.allowed().unwrap(), u32::from(b'c')));
}

#[test]
fn a_token_that_is_not_allowed_is_an_error_and_no_panic() {
    let mut form = constraint(&json!({"type": "null"}));
    assert!(form.consume(u32::from(b'x')).is_err());
    assert!(form.allowed().is_err());
    let mut form = constraint(&json!({"type": "null"}));
    assert!(form.consume(1_000_000).is_err());
}
