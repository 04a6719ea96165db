//! `/tokenize`, `/detokenize` and `/v1/embeddings`.

mod common;

use common::{Pod, fast, small, user};
use pagoda_engine::config::Backend;
use pagoda_engine::load::load;
use pagoda_model::{Executor, ExecutorError, ExecutorInfo, Logits, Pooling, StepRow};
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

/// Writes as the simulated executor does; the state of a text's token says whether it is an `a`.
struct Embedder {
    writer: Box<dyn Executor>,
    info: ExecutorInfo,
}

impl Executor for Embedder {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn forward(&mut self, rows: &[StepRow<'_>], logits: &mut Logits) -> Result<(), ExecutorError> {
        self.writer.forward(rows, logits)
    }

    fn states(&mut self, rows: &[StepRow<'_>], states: &mut Vec<f32>) -> Result<(), ExecutorError> {
        if let Some(row) = rows.iter().position(|row| row.tokens.contains(&33)) {
            return Err(ExecutorError::EmptyRow { row });
        }
        // What a model would refuse, the simulation refuses.
        self.writer.forward(rows, &mut Logits::default())?;
        let wanted = rows
            .iter()
            .flat_map(|row| &row.tokens[row.tokens.len() - row.logits..]);
        states.clear();
        states.extend(wanted.flat_map(|token| match token {
            97 => [1.0, 0.0],
            63 => [f32::NAN, 0.0],
            _ => [0.0, 1.0],
        }));
        Ok(())
    }
}

fn embedding_pod() -> Pod {
    let pod = Pod::loading();
    let mut loaded = load(&Backend::Simulated(fast()), &small(), 1, &mut |_| {}).unwrap();
    let info = ExecutorInfo {
        pooling: Some(Pooling::Mean),
        ..loaded.executor.info().clone()
    };
    loaded.executor = Box::new(Embedder {
        writer: loaded.executor,
        info,
    });
    pod.app.start(loaded, 1).unwrap();
    pod
}

#[tokio::test]
async fn texts_and_tokens_become_vectors_in_their_order() {
    let pod = embedding_pod();
    let body = json!({"input": ["aaa", "bb", "aabb"], "user": "u", "priority": 2});
    let answer = pod.post("/v1/embeddings", body).await.ok();
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("list"), &json!("m"))
    );
    assert_eq!(answer["usage"]["prompt_tokens"], 9);
    assert_eq!(answer["usage"]["total_tokens"], 9);
    let data = answer["data"].as_array().unwrap();
    assert_eq!(
        data[0],
        json!({"object": "embedding", "index": 0, "embedding": [1.0, 0.0]})
    );
    assert_eq!(data[1]["embedding"], json!([0.0, 1.0]));
    assert_eq!(data[2]["index"], 2);
    let half = data[2]["embedding"][0].as_f64().unwrap();
    assert!((half - 0.5f64.sqrt()).abs() < 1e-6, "{half}");
    // OpenAI's own clients ask for bytes, and may send tokens.
    let body = json!({"input": [97, 97], "encoding_format": "base64", "dimensions": 2});
    let answer = pod.post("/v1/embeddings", body).await.ok();
    assert_eq!(answer["data"][0]["embedding"], "AACAPwAAAAA=");
    pod.wait_for_metric("pagoda_kv_blocks_used", |used| used == 0)
        .await;
}

#[tokio::test]
async fn embeddings_that_cannot_be_are_refused() {
    let pod = embedding_pod();
    for (body, param) in [
        (json!({"input": ""}), Some("input")),
        (json!({"input": ["x", ""]}), Some("input")),
        (json!({"input": []}), Some("input")),
        (json!({"input": [[]]}), Some("input")),
        (json!({"input": vec!["x"; 2049]}), Some("input")),
        (json!({"input": [99_999_999]}), Some("input")),
        (json!({"input": 5}), Some("input")),
        (json!({"input": "x", "dimensions": 3}), Some("dimensions")),
        (
            json!({"input": "x", "encoding_format": "int8"}),
            Some("encoding_format"),
        ),
        (json!({"input": "x", "priority": -1}), Some("priority")),
        (json!({"input": ["x", "x".repeat(600)]}), None),
    ] {
        let (status, error) = pod.post("/v1/embeddings", body).await.error();
        assert_eq!((status, error["param"].as_str()), (400, param), "{error}");
    }
    // A step that fails, and one that gives no numbers.
    for text in ["not fine!", "not a number?"] {
        let broken = json!({"input": ["fine", text]});
        assert_eq!(pod.post("/v1/embeddings", broken).await.error().0, 500);
    }
    let fine = json!({"input": "fine"});
    pod.post("/v1/embeddings", fine).await.ok();
}

#[tokio::test]
async fn answers_beside_many_texts_stay_as_they_are() {
    let pod = embedding_pod();
    let chat = json!({"messages": user("hello"), "max_tokens": 40, "temperature": 0});
    let alone = pod.chat(chat.clone()).await.ok()["choices"].clone();
    let texts = json!({"input": vec!["x".repeat(300); 100]});
    let (beside, vectors) = tokio::join!(pod.chat(chat), pod.post("/v1/embeddings", texts));
    assert_eq!(beside.ok()["choices"], alone);
    assert_eq!(vectors.ok()["data"].as_array().unwrap().len(), 100);
}
