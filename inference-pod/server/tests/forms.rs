//! Answers that keep to a form, and calls of tools, whole and in streams.

mod common;

use common::{Pod, content, fast, small, streamed_content, user};
use pagoda_engine::config::EngineSize;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// A token is a byte here, so tools take much room.
fn pod() -> Pod {
    let size = EngineSize {
        max_context_tokens: Some(4096),
        ..small()
    };
    Pod::simulated(fast(), &size)
}

fn schema() -> Value {
    json!({
        "type": "object", "required": ["city", "warm", "degrees"], "additionalProperties": false,
        "properties": {
            "city": {"enum": ["Paris", "Rome", "Oslo"]}, "warm": {"type": "boolean"},
            "degrees": {"type": "integer", "minimum": -9, "maximum": 39},
        },
    })
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": schema()}})
}

fn check_weather(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(
        ["Paris", "Rome", "Oslo"].contains(&value["city"].as_str().unwrap()),
        "{text}"
    );
    assert!(value["warm"].is_boolean(), "{text}");
    assert!(
        (-9..=39).contains(&value["degrees"].as_i64().unwrap()),
        "{text}"
    );
    assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
}

#[tokio::test]
async fn json_of_a_schema_is_json_of_that_schema_whatever_the_seed() {
    let pod = pod();
    for seed in 0..6 {
        let body = json!({
            "messages": user("weather?"), "temperature": 2, "seed": seed,
            "response_format": {"type": "json_schema", "json_schema": {"name": "w", "strict": true, "schema": schema()}},
        });
        let answer = pod.chat(body.clone()).await.ok();
        check_weather(content(&answer));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let chunks = pod.stream(CHAT, body).await;
        assert_eq!(streamed_content(&chunks, 0), content(&answer));
    }
}

#[tokio::test]
async fn an_object_begins_as_one_and_completions_take_forms_too() {
    let pod = pod();
    let format = json!({"type": "json_object"});
    let answer = pod
        .chat(json!({"messages": user("x"), "max_tokens": 20, "response_format": format}))
        .await
        .ok();
    assert!(content(&answer).trim_start().starts_with('{'), "{answer}");
    let body = json!({"prompt": "x", "max_tokens": 200, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema()}}});
    let answer = pod.complete(body).await.ok();
    check_weather(answer["choices"][0]["text"].as_str().unwrap());
}

#[tokio::test]
async fn choices_of_one_form_and_their_neighbours_do_not_mix() {
    let pod = pod();
    let form = |n: u32| json!({"messages": user("x"), "n": 3, "temperature": 2, "seed": n, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema()}}});
    let free = json!({"messages": user("tell me"), "max_tokens": 40, "temperature": 0});
    let alone = pod.chat(free.clone()).await.ok();
    let (a, b, beside) = tokio::join!(pod.chat(form(1)), pod.chat(form(2)), pod.chat(free));
    for choice in [a.ok(), b.ok()]
        .iter()
        .flat_map(|answer| answer["choices"].as_array().unwrap().clone())
    {
        check_weather(choice["message"]["content"].as_str().unwrap());
    }
    assert_eq!(content(&beside.ok()), content(&alone));
}

/// The calls of a streamed choice, put together, and the content beside them.
fn streamed_calls(chunks: &[Value]) -> (Vec<(String, String, String)>, String) {
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for chunk in chunks {
        for delta in chunk["choices"][0]["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let index = delta["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert_eq!(delta["type"], "function");
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                calls.push((
                    text(&delta["id"]),
                    text(&delta["function"]["name"]),
                    String::new(),
                ));
            }
            calls[index]
                .2
                .push_str(delta["function"]["arguments"].as_str().unwrap());
        }
    }
    (calls, streamed_content(chunks, 0))
}

#[tokio::test]
async fn a_call_that_must_be_is_one_whole_and_streamed() {
    let pod = pod();
    let other = json!({"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}});
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for (choice, finish) in [(json!("required"), "tool_calls"), (named, "stop")] {
        let body = json!({
            "messages": user("weather?"), "tools": [weather(), other], "tool_choice": choice, "temperature": 1.5, "seed": 3,
            "parallel_tool_calls": false,
        });
        let answer = pod.chat(body.clone()).await.ok();
        let message = &answer["choices"][0]["message"];
        assert_eq!(
            (
                &message["content"],
                answer["choices"][0]["finish_reason"].as_str()
            ),
            (&Value::Null, Some(finish))
        );
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        let (name, arguments) = (
            &calls[0]["function"]["name"],
            calls[0]["function"]["arguments"].as_str().unwrap(),
        );
        if finish == "stop" {
            assert_eq!(name, "get_weather");
        }
        if name == "get_weather" {
            check_weather(arguments);
        } else {
            assert_eq!(arguments.parse::<Value>().unwrap(), json!({}));
        }
        let chunks = pod.stream(CHAT, body).await;
        let (streamed, text) = streamed_calls(&chunks);
        assert_eq!((streamed.len(), text.as_str()), (1, ""));
        assert_eq!(
            (json!(streamed[0].1), streamed[0].2.as_str()),
            (name.clone(), arguments)
        );
        assert!(streamed[0].0.starts_with("call_"));
        assert_eq!(
            chunks.last().unwrap()["choices"][0]["finish_reason"],
            finish
        );
    }
}

#[tokio::test]
async fn tools_that_need_not_be_called_leave_answers_as_they_are() {
    let pod = pod();
    let body = json!({"messages": user("hello"), "max_tokens": 30, "temperature": 0, "tools": [weather()]});
    let answer = pod.chat(body.clone()).await.ok();
    assert!(!content(&answer).is_empty());
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    assert_eq!(
        streamed_content(&pod.stream(CHAT, body).await, 0),
        content(&answer)
    );
    // What may not be called is not even told.
    let none = json!({"messages": user("hello"), "max_tokens": 1, "tools": [weather()], "tool_choice": "none"});
    let without = json!({"messages": user("hello"), "max_tokens": 1});
    assert_eq!(
        pod.chat(none).await.ok()["usage"]["prompt_tokens"],
        pod.chat(without).await.ok()["usage"]["prompt_tokens"]
    );
}

#[tokio::test]
async fn a_conversation_with_calls_and_results_goes_on() {
    let messages = json!([
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":\"Rome\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "warm"},
    ]);
    let answer = pod()
        .chat(json!({"messages": messages, "max_tokens": 10, "tools": [weather()]}))
        .await
        .ok();
    assert!(!content(&answer).is_empty());
}

#[tokio::test]
async fn a_form_that_no_tokens_are_left_for_ends_with_reason_length() {
    let body = json!({"messages": user("x"), "max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema()}}});
    let answer = pod().chat(body).await.ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn schemas_that_cannot_be_kept_to_or_explode_are_400_with_the_place() {
    let pod = pod();
    let union = |n: usize| json!({"anyOf": (0..n).map(|k| json!({"type": "object", "properties": {format!("p{k}"): {}}})).collect::<Vec<_>>()});
    let mut doubling = serde_json::Map::new();
    for n in 0..16 {
        let next = format!("#/$defs/d{}", n + 1);
        doubling.insert(
            format!("d{n}"),
            json!({"allOf": [{"$ref": next}, {"$ref": next}]}),
        );
    }
    doubling.insert("d16".into(), union(4));
    let mut deep = json!({});
    for _ in 0..60 {
        deep = json!({"items": deep});
    }
    let schemas = [
        json!({"type": "array", "uniqueItems": true}),
        json!({"x-guidance": {"whitespace_pattern": ".*"}}),
        json!({"type": "string", "pattern": "(?<=a)b"}),
        json!({"type": "string", "pattern": "("}),
        json!({"type": "array", "maxItems": 4_000_000_000_u64}),
        json!({"$ref": "http://127.0.0.1/schema.json"}),
        json!({"$ref": "#/$defs/d0", "$defs": doubling}),
        json!({"not": {}}),
        json!(false),
        deep,
    ];
    for schema in schemas {
        let body = json!({"messages": user("x"), "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}});
        let (status, error) = pod.chat(body).await.error();
        assert_eq!(
            (status, error["param"].as_str(), error["code"].as_str()),
            (
                400,
                Some("response_format.json_schema.schema"),
                Some("invalid_json_schema")
            ),
            "{error}"
        );
        let tool = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": schema}});
        let body = json!({"messages": user("x"), "tools": [tool], "tool_choice": "required"});
        assert_eq!(pod.chat(body).await.error().0, 400);
    }
    let answer = pod
        .chat(json!({"messages": user("hello"), "max_tokens": 3}))
        .await;
    answer.ok();
}

#[tokio::test]
async fn patterns_that_explode_harm_nobody_else() {
    let pod = pod();
    let free = json!({"messages": user("tell me"), "max_tokens": 60, "temperature": 0});
    let alone = pod.chat(free.clone()).await.ok();
    for pattern in [
        "((((a{1,99}){1,99}){1,99}){1,99}){1,99}",
        "(.*a){60}.*",
        "(a|aa|aaa)*(b|a)*c{500}",
    ] {
        let bomb = json!({
            "messages": user("x"), "max_tokens": 40,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "string", "pattern": pattern}}},
        });
        let (bomb, beside) = tokio::join!(pod.chat(bomb), pod.chat(free.clone()));
        assert!(
            [200, 400].contains(&bomb.status.as_u16()),
            "{}",
            bomb.text()
        );
        assert_eq!(content(&beside.ok()), content(&alone));
    }
    pod.wait_for_metric("pagoda_kv_blocks_used", |used| used == 0)
        .await;
}
