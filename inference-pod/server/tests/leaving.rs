//! Clients that leave and pods that leave: nothing goes on for nobody, and nobody is cut off.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Answer, Pod, read_until, slow, small, streamed_content, user};
use pagoda_engine::drain::Stage;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn long() -> Value {
    json!({"messages": user("go on and on"), "max_tokens": 400, "ignore_eos": true})
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_ends_its_generation() {
    let pod = Pod::simulated(slow(), &small());
    let response = pod.open_stream(CHAT, long()).await;
    read_until(response, |text| text.matches("data:").count() > 5).await;
    pod.wait_for_metric("vllm:num_requests_running", |running| running == 0)
        .await;
    pod.wait_for_metric("pagoda_kv_blocks_used", |used| used == 0)
        .await;
    let generated = pod.metric("vllm:generation_tokens_total").await;
    assert!(
        generated < 100,
        "{generated} tokens were generated for nobody"
    );
    let metrics = pod.get("/metrics").await.text();
    assert!(
        metrics
            .contains("vllm:request_success_total{model_name=\"m\",finished_reason=\"abort\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_client_that_leaves_before_its_whole_answer_ends_its_generation() {
    let pod = Arc::new(Pod::simulated(slow(), &small()));
    let asking = tokio::spawn({
        let pod = Arc::clone(&pod);
        async move { pod.chat(long()).await }
    });
    pod.wait_for_metric("vllm:num_requests_running", |running| running == 1)
        .await;
    asking.abort();
    pod.wait_for_metric("vllm:num_requests_running", |running| running == 0)
        .await;
    assert_eq!(pod.app.drain.open_requests(), 0);
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_does_not_disturb_the_one_that_runs() {
    let pod = Pod::simulated(
        slow(),
        &pagoda_engine::config::EngineSize {
            max_sequences: 1,
            ..small()
        },
    );
    let body = json!({"messages": user("first"), "max_tokens": 40, "ignore_eos": true});
    let running = pod.open_stream(CHAT, body.clone()).await;
    let waiting = pod.open_stream(CHAT, long()).await;
    pod.wait_for_metric("vllm:num_requests_waiting", |waiting| waiting == 1)
        .await;
    drop(waiting);
    pod.wait_for_metric("vllm:num_requests_waiting", |waiting| waiting == 0)
        .await;
    let text = Answer::read(running).await.text();
    let mut events = common::events(&text);
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Value> = events
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    assert_eq!(streamed_content(&chunks, 0).len(), 40);
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_nobody_up() {
    let pod = Pod::simulated(common::fast(), &small());
    let _unread = pod.open_stream(CHAT, long()).await;
    let other = pod
        .chat(json!({"messages": user("quick"), "max_tokens": 50, "ignore_eos": true}))
        .await
        .ok();
    assert_eq!(other["usage"]["completion_tokens"], 50);
    pod.wait_for_metric("vllm:num_requests_running", |running| running == 0)
        .await;
}

#[tokio::test]
async fn a_draining_pod_finishes_streams_takes_late_requests_and_then_refuses() {
    let pod = Arc::new(Pod::simulated(slow(), &small()));
    let stream = pod
        .open_stream(
            CHAT,
            json!({"messages": user("x"), "max_tokens": 60, "ignore_eos": true}),
        )
        .await;
    let draining = tokio::spawn({
        let app = Arc::clone(&pod.app);
        async move {
            app.drain
                .run(Duration::from_millis(300), Duration::from_mins(1))
                .await
        }
    });
    while pod.app.drain.stage() == Stage::Serving {
        tokio::task::yield_now().await;
    }
    assert_eq!(pod.get("/health/ready").await.status, 503);
    assert_eq!(pod.get("/health/live").await.status, 200);
    pod.chat(json!({"messages": user("late"), "max_tokens": 1}))
        .await
        .ok();
    while pod.app.drain.stage() != Stage::Refusing {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = pod.chat(json!({"messages": user("too late")})).await;
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.error().1["code"], "shutting_down");
    let text = Answer::read(stream).await.text();
    assert!(
        text.ends_with("data: [DONE]\n\n"),
        "the stream was cut: {text}"
    );
    assert_eq!(draining.await.unwrap(), 0);
}

#[tokio::test]
async fn an_engine_that_is_stopped_ends_streams_with_an_error_event() {
    let pod = Pod::simulated(slow(), &small());
    let stream = pod.open_stream(CHAT, long()).await;
    assert!(pod.app.served().unwrap().engine.stop());
    let text = Answer::read(stream).await.text();
    let last: Value = serde_json::from_str(common::events(&text).last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "shutting_down", "{last}");
    assert_eq!(
        pod.chat(json!({"messages": user("x")})).await.error().0,
        503
    );
}
