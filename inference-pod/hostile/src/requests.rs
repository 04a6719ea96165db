//! A request's body, from whoever reaches the pod.

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use pagoda_crds::wire::SimulatedConfig;
use pagoda_engine::app::App;
use pagoda_engine::config::{Backend, EngineSize};
use pagoda_engine::http::router;
use pagoda_engine::load::load;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::Mutator;

/// The first byte of an input chooses among these.
const PATHS: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
    "/v1/embeddings",
];
/// So many of them answer with choices.
const GENERATING: usize = 2;

/// Bodies that are answered, with a first byte that names the path.
pub fn request_seeds() -> Vec<Vec<u8>> {
    let messages = json!([{"role": "system", "content": "be kind"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]);
    let seeds = [
        (
            0,
            json!({"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "seed": 1, "stop": ["x", "yz"]}),
        ),
        (
            0,
            json!({"model": "m", "messages": messages, "max_completion_tokens": 3, "stream": true, "stream_options": {"include_usage": true}, "n": 2}),
        ),
        (
            0,
            json!({"model": "m", "messages": messages, "max_tokens": 2, "logit_bias": {"5": -100, "7": 3.5}, "frequency_penalty": 0.5,
                   "presence_penalty": -0.5, "user": "u"}),
        ),
        (
            1,
            json!({"model": "m", "prompt": "once upon", "max_tokens": 5, "echo": true, "min_p": 0.1, "top_k": 3, "ignore_eos": true}),
        ),
        (
            1,
            json!({"model": "m", "prompt": [[1, 2, 3], [4]], "max_tokens": 2, "stream": true, "stop": "\n"}),
        ),
        (
            0,
            json!({"model": "m", "messages": messages, "max_tokens": 8, "response_format": {"type": "json_schema", "json_schema": {
                "name": "s", "schema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{1,3}$"}}}}}}),
        ),
        (
            0,
            json!({"model": "m", "messages": messages, "max_tokens": 8, "stream": true, "tool_choice": "auto", "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]}),
        ),
        (2, json!({"model": "m", "prompt": "a text <|im_end|>"})),
        (3, json!({"model": "m", "tokens": [1, 2, 3]})),
    ];
    let input = |(path, body): (u8, Value)| [vec![path], body.to_string().into_bytes()].concat();
    seeds.map(input).to_vec()
}

/// What bodies are made of, and numbers and texts that break readers of JSON.
const WORDS: &[&[u8]] = &[
    b"\"n\": 128,",
    b"\"n\": 0,",
    b"\"max_tokens\": -1,",
    b"\"max_tokens\": 18446744073709551616,",
    b"\"temperature\": 1e999,",
    b"\"top_p\": NaN,",
    b"\"top_k\": -9223372036854775808,",
    b"\"logprobs\": true, \"top_logprobs\": 20,",
    b"\"best_of\": 3,",
    b"\"stop\": [\"\", \"\"],",
    b"\"seed\": -1,",
    b"\"prompt\": [4294967295],",
    b"\"prompt\": \"\",",
    b"\"messages\": [],",
    b"\"model\": null,",
    b"\"priority\": \"high\",",
    b"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}],",
    b"\"tool_choice\": \"required\",",
    b"\"response_format\": {\"type\": \"json_object\"},",
    b"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"s\", \"schema\": {\"$ref\": \"#\"}}},",
    b"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"s\", \"schema\": {\"pattern\": \"(a*)*(b|b)*$\"}}},",
    b"\"minLength\": 1000000, \"maxItems\": 999999999,",
    b"\"pattern\": \"(((((a{1,1000}){1,1000}){1,1000})))\",",
    b"\"allOf\": [{\"$ref\": \"#\"}, {\"$ref\": \"#\"}],",
    b"\"logit_bias\": {\"-1\": 5, \"99999999999\": 1},",
    b"\\ud800",
    b"\\u0000",
    b"\xff\xfe",
    b"[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":",
];

/// Those seeds, changed.
pub fn request_inputs(seed: u64) -> Mutator {
    Mutator::new(seed, request_seeds(), WORDS)
}

struct Pod {
    runtime: Runtime,
    app: Arc<App>,
}

/// One simulated pod for all inputs: none of them may harm the next.
fn pod() -> &'static Pod {
    static POD: OnceLock<Pod> = OnceLock::new();
    POD.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let simulated = Backend::Simulated(SimulatedConfig {
            prefill_tokens_per_second: 100_000_000,
            decode_step_milliseconds: 0,
            load_seconds: 0,
        });
        let size = EngineSize {
            max_context_tokens: Some(512),
            max_sequences: 8,
            step_tokens: 64,
            ..EngineSize::default()
        };
        let app = Arc::new(App::loading(vec!["m".to_owned()]));
        let loaded = load(&simulated, &size, 1, &mut |_| {}).expect("a simulated model");
        // Its engine's thread lives as long as the process.
        runtime.block_on(async { drop(app.start(loaded, 1).expect("sound limits")) });
        Pod { runtime, app }
    })
}

/// Asks and reads to the end: an answer in its shape, or an error in OpenAI's, and never a fault of the pod's own. Returns whether it
/// was answered.
pub fn request(bytes: &[u8]) -> bool {
    let Some((path, body)) = bytes.split_first() else {
        return false;
    };
    let number = usize::from(*path) % PATHS.len();
    let path = PATHS[number];
    let pod = pod();
    let (status, answer) = pod.runtime.block_on(async {
        let request = Request::post(path)
            .body(Body::from(body.to_vec()))
            .expect("a request");
        let response = router(Arc::clone(&pod.app))
            .oneshot(request)
            .await
            .expect("the router never fails");
        let status = response.status();
        let answer = response
            .into_body()
            .collect()
            .await
            .expect("a body that ends")
            .to_bytes();
        (status, answer)
    });
    assert_ne!(
        status,
        StatusCode::INTERNAL_SERVER_ERROR,
        "{}",
        String::from_utf8_lossy(&answer)
    );
    if status == StatusCode::OK {
        check_answer(&answer, number < GENERATING);
    } else {
        check_error(status, &answer);
    }
    status == StatusCode::OK
}

fn check_answer(answer: &[u8], with_choices: bool) {
    if answer.starts_with(b"data: ") || answer.starts_with(b":") {
        assert!(
            answer.ends_with(b"data: [DONE]\n\n"),
            "a stream without its end"
        );
        return;
    }
    let value: Value = serde_json::from_slice(answer).expect("an answer is JSON");
    let choices = value["choices"].as_array();
    assert!(
        choices.is_some_and(|choices| !choices.is_empty()) || !with_choices,
        "{value}"
    );
}

fn check_error(status: StatusCode, answer: &[u8]) {
    assert!(
        status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE,
        "{status}"
    );
    let value: Value = serde_json::from_slice(answer).expect("an error is JSON");
    let message = value["error"]["message"].as_str();
    assert!(
        message.is_some_and(|message| !message.is_empty()),
        "{value}"
    );
}
