//! `/tokenize`, `/detokenize` and `/v1/embeddings`.

mod common;

use common::{Pod, fast, small, user};
use serde_json::json;

fn pod() -> Pod {
    Pod::simulated(fast(), &small())
}

#[tokio::test]
async fn a_text_goes_to_tokens_and_back() {
    let pod = pod();
    let answer = pod
        .post_bytes("/tokenize", json!({"prompt": "hé"}).to_string())
        .await
        .ok();
    assert_eq!(
        answer,
        json!({"count": 3, "max_model_len": 512, "tokens": [104, 195, 169], "token_strs": null})
    );
    let back = pod
        .post("/detokenize", json!({"tokens": answer["tokens"]}))
        .await
        .ok();
    assert_eq!(back, json!({"prompt": "hé"}));
    let named = pod
        .post(
            "/tokenize",
            json!({"prompt": "h", "return_token_strs": true}),
        )
        .await
        .ok();
    assert_eq!(named["token_strs"], json!(["<0x68>"]));
}

#[tokio::test]
async fn a_conversation_has_the_tokens_that_answering_it_counts() {
    let pod = pod();
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for extra in [json!({}), json!({"tools": tools})] {
        let mut body = json!({"messages": user("hi")});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let tokens = pod.post("/tokenize", body.clone()).await.ok();
        body["max_tokens"] = json!(1);
        assert_eq!(
            pod.chat(body).await.ok()["usage"]["prompt_tokens"],
            tokens["count"]
        );
    }
    let open = pod
        .post(
            "/tokenize",
            json!({"messages": user("hi"), "add_generation_prompt": false}),
        )
        .await
        .ok();
    assert_eq!(open["count"], 9);
}

#[tokio::test]
async fn what_is_wrong_is_400_and_names_its_parameter() {
    let pod = pod();
    let cases = [
        ("/tokenize", json!({}), "messages"),
        (
            "/tokenize",
            json!({"prompt": "x", "temperature": 1}),
            "temperature",
        ),
        ("/tokenize", json!({"prompt": 7}), "prompt"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [999_999]}), "tokens"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens"),
        ("/v1/embeddings", json!({"input": "x"}), "model"),
        ("/v1/embeddings", json!({}), "input"),
    ];
    for (path, body, param) in cases {
        let (status, error) = pod.post(path, body).await.error();
        assert_eq!(
            (status, error["param"].as_str()),
            (400, Some(param)),
            "{path} {error}"
        );
    }
    assert_eq!(
        pod.post("/tokenize", json!({"model": "nobody", "prompt": "x"}))
            .await
            .error()
            .0,
        404
    );
}

#[tokio::test]
async fn a_model_that_makes_no_embeddings_says_so() {
    let (status, error) = pod()
        .post("/v1/embeddings", json!({"input": ["a", "b"]}))
        .await
        .error();
    assert_eq!(
        (status, error["code"].as_str()),
        (400, Some("unsupported_model"))
    );
    assert!(
        error["message"].as_str().unwrap().contains("embeddings"),
        "{error}"
    );
}
