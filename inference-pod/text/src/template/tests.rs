use crate::chat::{ChatRequest, Content, Json, Message};
use crate::template::{CHATML, ChatTemplate, TemplateError};

/// Seconds of 2024-07-04T00:00:00Z.
const DAY: i64 = 1_720_051_200;

fn render(source: &str, messages: &[Message]) -> Result<String, TemplateError> {
    ChatTemplate::parse(source)
        .unwrap()
        .render(&ChatRequest::new(messages, DAY), "<s>", "</s>")
}

fn rendered(source: &str, text: &str) -> String {
    render(source, &[Message::new("user", text)]).unwrap()
}

#[test]
fn chatml_stands_in_for_a_missing_template() {
    let template = ChatTemplate::from_metadata(&pagoda_gguf::Metadata::default()).unwrap();
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "Hi"),
    ];
    let text = template
        .render(&ChatRequest::new(&messages, 0), "", "")
        .unwrap();
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(text, expected);
    let closed = ChatRequest {
        add_generation_prompt: false,
        ..ChatRequest::new(&messages, 0)
    };
    assert_eq!(
        template.render(&closed, "", "").unwrap(),
        expected.trim_end_matches("<|im_start|>assistant\n")
    );
}

#[test]
fn blocks_lose_the_white_space_around_them_as_hugging_face_has_it() {
    let source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n";
    assert_eq!(rendered(source, "x"), "x\n");
}

#[test]
fn content_is_neither_escaped_nor_read_as_a_template() {
    let text = "<b>\"5 > 4\" & '3'</b> {{ 7 * 7 }} {% raw %}";
    assert_eq!(rendered("{{ messages[0]['content'] }}", text), text);
}

#[test]
fn a_role_the_template_refuses_is_a_refusal_in_its_own_words() {
    let source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok";
    let error = render(source, &[Message::new("system", "x")]).unwrap_err();
    assert_eq!(
        error,
        TemplateError::Refused {
            message: "System role not supported".into()
        }
    );
    assert_eq!(rendered(source, "x"), "ok");
}

#[test]
fn a_template_that_loops_or_swells_runs_out_of_its_budget() {
    let budget = |source: &str| {
        let error = render(source, &[Message::new("user", "x")]).unwrap_err();
        assert!(
            matches!(error, TemplateError::OutOfBudget { .. }),
            "{source}: {error}"
        );
    };
    budget(
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}",
    );
    budget(
        "{% set ns = namespace(x='0123456789') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    );
    budget("{% for a in range(100) %}{{ 'x' * 99999999 }}{% endfor %}");
}

#[test]
fn json_that_would_fill_memory_is_cut_off() {
    let error = render(
        "{{ ([1] * 99999999) | tojson }}",
        &[Message::new("user", "x")],
    )
    .unwrap_err();
    assert!(
        matches!(
            error,
            TemplateError::Failed { .. } | TemplateError::OutOfBudget { .. }
        ),
        "{error}"
    );
}

#[test]
fn a_template_reads_no_files() {
    for source in [
        "{% include '/etc/passwd' %}",
        "{% extends '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}{{ x }}",
    ] {
        let error = render(source, &[Message::new("user", "x")]).unwrap_err();
        assert!(
            matches!(error, TemplateError::Failed { .. }),
            "{source}: {error}"
        );
        assert!(!error.to_string().contains("root:"));
    }
}

#[test]
fn endless_recursion_is_an_error() {
    let source = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(render(source, &[Message::new("user", "x")]).is_err());
}

#[test]
fn a_broken_template_is_refused_when_parsed() {
    let error = ChatTemplate::parse("{% for m in messages %}{{ m.content }}").unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { .. }), "{error}");
}

#[test]
fn python_methods_and_the_date_work() {
    let source = "{{ messages[0].content.strip().upper() }}|{{ strftime_now('%d %b %Y') }}|{{ bos_token }}{{ eos_token }}";
    assert_eq!(rendered(source, "  hi "), "HI|04 Jul 2024|<s></s>");
    let loops = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}";
    assert_eq!(
        render(loops, &[Message::new("a", ""), Message::new("b", "")]).unwrap(),
        "a"
    );
    assert_eq!(
        rendered(
            "{% generation %}{{ messages[0].content }}{%- endgeneration -%} .",
            "x"
        ),
        "x."
    );
}

#[test]
fn json_is_written_as_python_writes_it_and_keys_keep_their_order() {
    let tools: Json = serde_json::from_str(
        r#"[{"type":"function","function":{"name":"f","a":[1,2.5,null,true],"é":"<'&"}}]"#,
    )
    .unwrap();
    let messages = [Message::new("user", "x")];
    let request = ChatRequest {
        tools: Some(&tools),
        ..ChatRequest::new(&messages, 0)
    };
    let text = |source: &str| {
        ChatTemplate::parse(source)
            .unwrap()
            .render(&request, "", "")
            .unwrap()
    };
    let expected =
        r#"{"type": "function", "function": {"name": "f", "a": [1, 2.5, null, true], "é": "<'&"}}"#;
    assert_eq!(text("{{ tools[0] | tojson }}"), expected);
    assert_eq!(
        text("{{ {'b': 1, 'a': []} | tojson(indent=2) }}"),
        "{\n  \"b\": 1,\n  \"a\": []\n}"
    );
    assert_eq!(
        text("{{ tools[0].function.name | tojson(ensure_ascii=False) }}"),
        "\"f\""
    );
}

#[test]
fn tool_call_arguments_reach_the_template_as_objects_in_their_order() {
    let calls = r#"[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":\"x\"}"}}]"#;
    let calls: Json = serde_json::from_str(calls).unwrap();
    let message = Message {
        role: "assistant".into(),
        tool_calls: Some(calls),
        ..Message::default()
    };
    let source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{{ messages[0].content is none }}";
    assert_eq!(
        render(source, &[message]).unwrap(),
        "{\"b\": 1, \"a\": \"x\"}True"
    );
}

#[test]
fn contents_take_the_shape_the_template_wants() {
    let parts = Message {
        role: "user".into(),
        content: Content::Parts(vec!["a".into(), "b".into()]),
        ..Message::default()
    };
    assert_eq!(
        render("{{ messages[0].content }}", std::slice::from_ref(&parts)).unwrap(),
        "a\nb"
    );
    let listing = "{% for part in messages[0].content %}[{{ part.text }}]{% endfor %}";
    assert_eq!(render(listing, &[parts]).unwrap(), "[a][b]");
    assert_eq!(rendered(listing, "x"), "[x]");
}

#[test]
fn variables_reach_the_template_but_do_not_replace_its_own() {
    let variables: Json =
        serde_json::from_str(r#"{"enable_thinking":false,"bos_token":"evil"}"#).unwrap();
    let messages = [Message::new("user", "x")];
    let request = ChatRequest {
        variables: Some(&variables),
        ..ChatRequest::new(&messages, 0)
    };
    let template = ChatTemplate::parse("{{ enable_thinking }} {{ bos_token }}").unwrap();
    assert_eq!(template.render(&request, "<s>", "").unwrap(), "False <s>");
}

#[test]
fn the_default_template_is_what_the_documentation_says() {
    assert_eq!(ChatTemplate::parse(CHATML).unwrap().source(), CHATML);
}
